//! Keys that requests to the application are signed with, as Standard Webhooks writes them
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>).

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// What a key in base64 begins with; any other text is the key itself.
const PREFIX: &str = "whsec_";

/// With or without padding, as people copy it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The bytes of a key; nothing where it is no base64 behind `whsec_`.
pub fn key(text: &str) -> Option<Vec<u8>> {
    match text.strip_prefix(PREFIX) {
        None => Some(text.into()),
        Some(base64) => BASE64.decode(base64).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_text_or_base64() {
        for (text, want) in [
            ("plain text", Some(&b"plain text"[..])),
            ("", Some(b"")),
            ("whsec_AAECAw==", Some(&[0, 1, 2, 3])),
            ("whsec_AAECAw", Some(&[0, 1, 2, 3])),
            ("whsec_", Some(b"")),
            ("whsec_not base64", None),
        ] {
            assert_eq!(key(text).as_deref(), want, "{text}");
        }
    }
}
