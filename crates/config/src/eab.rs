//! Keys of external account bindings (RFC 8555, 7.3.4), with which an authority recognizes its customers.

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Base64url, with or without padding.
const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Decodes a key. Returns `None` if the text is empty or not base64url.
pub fn parse_eab_key(text: &str) -> Option<Vec<u8>> {
    BASE64URL.decode(text).ok().filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_base64url_with_or_without_padding() {
        for (text, expected) in [
            ("a2V5", Some("key")),
            ("a2V5cw==", Some("keys")),
            ("a2V5cw", Some("keys")),
            ("", None),
            ("a2V5 ", None),
            ("a+/5", None),
        ] {
            assert_eq!(parse_eab_key(text).as_deref(), expected.map(str::as_bytes), "{text}");
        }
        assert_eq!(parse_eab_key("-_-_").map(|key| key.len()), Some(3));
    }
}
