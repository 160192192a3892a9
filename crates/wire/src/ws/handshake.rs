//! The opening handshake (RFC 6455, section 4) and the offer of permessage-deflate (RFC 7692,
//! section 7.1). Method, version and the rest of the head are the caller's.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use super::deflate::{WINDOW_BITS_MAX, WINDOW_BITS_MIN};
use crate::http::status_line;

const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The permessage-deflate that was agreed. Neither side keeps its window between messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deflate {
    /// What the server keeps its window to, in bits: 15, or 9 when less than 15 was asked for.
    pub server_max_window_bits: u8,
}

/// The value of Sec-WebSocket-Accept; `None` when the key is not 16 bytes in base64.
pub fn accept(key: &str) -> Option<String> {
    if STANDARD.decode(key).ok()?.len() != 16 {
        return None;
    }
    Some(digest(key))
}

fn digest(key: &str) -> String {
    let mut sha1 = Sha1::new();
    sha1.update(key.as_bytes());
    sha1.update(GUID);
    STANDARD.encode(sha1.finalize())
}

/// The first acceptable offer among the values of Sec-WebSocket-Extensions; others are declined
/// by not being answered.
pub fn negotiate<'a>(values: impl Iterator<Item = &'a str>) -> Option<Deflate> {
    values.flat_map(|value| split(value, ',')).find_map(offer)
}

fn offer(text: &str) -> Option<Deflate> {
    let mut parts = split(text, ';');
    if parts.next()? != "permessage-deflate" {
        return None;
    }
    let mut bits = WINDOW_BITS_MAX;
    let mut seen = Vec::new();
    for part in parts {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name.trim_ascii(), Some(value.trim_ascii().trim_matches('"'))),
            None => (part, None),
        };
        if seen.contains(&name) {
            return None;
        }
        seen.push(name);
        match (name, value) {
            ("server_no_context_takeover" | "client_no_context_takeover", None) => {}
            ("client_max_window_bits", None) => {}
            ("client_max_window_bits", Some(value)) => {
                window(value)?;
            }
            ("server_max_window_bits", Some(value)) => bits = window(value)?,
            _ => return None,
        }
    }
    match bits {
        WINDOW_BITS_MAX.. => Some(Deflate { server_max_window_bits: WINDOW_BITS_MAX }),
        WINDOW_BITS_MIN.. => Some(Deflate { server_max_window_bits: WINDOW_BITS_MIN }),
        // Deflate can't keep to a window of 8 bits, and more may not be answered.
        _ => None,
    }
}

/// 8 to 15, without leading zeros.
fn window(value: &str) -> Option<u8> {
    let bits: u8 = value.parse().ok()?;
    ((8..=WINDOW_BITS_MAX).contains(&bits) && bits.to_string() == value).then_some(bits)
}

/// Splits outside of quotes, and trims.
fn split(text: &str, at: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |c: char| {
        quoted ^= c == '"';
        c == at && !quoted
    })
    .map(str::trim_ascii)
}

/// Appends the head of the 101 answer.
pub fn response(accept: &str, deflate: Option<&Deflate>, out: &mut Vec<u8>) {
    status_line(101, out);
    out.extend_from_slice(b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ");
    out.extend_from_slice(accept.as_bytes());
    out.extend_from_slice(b"\r\n");
    if let Some(deflate) = deflate {
        out.extend_from_slice(
            b"Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; \
              client_no_context_takeover",
        );
        if deflate.server_max_window_bits < WINDOW_BITS_MAX {
            out.extend_from_slice(b"; server_max_window_bits=9");
        }
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a client's request. `nonce` must be random for each connection.
pub fn request(host: &str, target: &str, nonce: [u8; 16], deflate: bool, out: &mut Vec<u8>) {
    let extensions = match deflate {
        true => "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n",
        false => "",
    };
    let key = STANDARD.encode(nonce);
    out.extend_from_slice(
        format!(
            "GET {target} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\
             {extensions}\r\n"
        )
        .as_bytes(),
    );
}

/// Whether Sec-WebSocket-Accept answers a client's `nonce`.
pub fn is_answer(nonce: [u8; 16], accept: &str) -> bool {
    digest(&STANDARD.encode(nonce)) == accept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standards_key_gets_its_answer() {
        let answer = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ==").as_deref(), Some(answer));
        assert!(is_answer(*b"the sample nonce", answer));
        for bad in ["", "abc", "dGhlIHNhbXBsZSBub25j", "dGhlIHNhbXBsZSBub25jZQ"] {
            assert_eq!(accept(bad), None);
        }
    }

    #[test]
    fn offers_are_taken_or_passed_over() {
        let bits = |values: &[&str]| {
            negotiate(values.iter().copied()).map(|deflate| deflate.server_max_window_bits)
        };
        for (offer, want) in [
            ("permessage-deflate", Some(15)),
            ("permessage-deflate; client_max_window_bits", Some(15)),
            ("permessage-deflate; server_max_window_bits=10", Some(9)),
            ("permessage-deflate; server_max_window_bits=\"15\"", Some(15)),
            ("permessage-deflate; server_max_window_bits=8", None),
            ("permessage-deflate; server_max_window_bits=8, permessage-deflate", Some(15)),
            ("permessage-deflate; server_max_window_bits=16", None),
            ("permessage-deflate; server_max_window_bits=09", None),
            ("permessage-deflate; server_max_window_bits", None),
            ("permessage-deflate; client_max_window_bits=7", None),
            ("permessage-deflate; server_no_context_takeover=1", None),
            ("permessage-deflate; client_no_context_takeover; client_no_context_takeover", None),
            ("permessage-deflate; unknown", None),
            ("x-webkit-deflate-frame", None),
            ("foo; a=\",permessage-deflate\"", None),
        ] {
            assert_eq!(bits(&[offer]), want, "{offer}");
        }
        assert_eq!(bits(&["foo", "permessage-deflate"]), Some(15));
        assert_eq!(bits(&[]), None);
    }

    proptest::proptest! {
        #[test]
        fn noise_never_panics(text: String) {
            negotiate(std::iter::once(text.as_str()));
            accept(&text);
        }
    }
}
