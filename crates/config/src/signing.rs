//! Keys that sign requests to the application, in the format of Standard Webhooks
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>).

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// The prefix of a key in base64; any other text is the key itself.
const PREFIX: &str = "whsec_";

/// Base64 with or without padding, because people copy either.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns the bytes of a key; `None` if the text after `whsec_` is not base64.
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
