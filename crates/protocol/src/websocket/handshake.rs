//! The opening handshake (RFC 6455, section 4) and the negotiation of permessage-deflate (RFC 7692, section 7.1). The
//! caller checks method, version and the rest of the head.

use std::mem;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use super::deflate::{WINDOW_BITS_MAX, WINDOW_BITS_MIN};
use crate::http::status_line;

const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The offer of our clients. It contains no limit for the client's window, so no server may set one.
const OFFER: &str = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";

/// The agreed permessage-deflate. Neither side reuses its window for the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deflate {
    /// The server's window in bits: 15, or 9 when the client requires less than 15.
    pub server_max_window_bits: u8,
    /// The offer contains the server's window, so the response must (RFC 7692, section 7.1.2.1).
    pub server_max_window_bits_requested: bool,
}

/// A server agreed to an extension that the client did not offer; the client must fail the connection (RFC 6455,
/// section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server accepted an extension that the client did not offer")]
pub struct AgreementError;

/// The value of Sec-WebSocket-Accept; `None` if the key is not 16 bytes in base64.
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

/// Returns the first acceptable offer among the values of Sec-WebSocket-Extensions. The response declines the others
/// by omitting them.
pub fn negotiate<'a>(values: impl Iterator<Item = &'a str>) -> Option<Deflate> {
    values.flat_map(|value| split(value, ',')).find_map(offer)
}

fn offer(text: &str) -> Option<Deflate> {
    let parameters = parameters(text)?;
    let bits = parameters.server_max_window_bits;
    let server_max_window_bits = match bits.unwrap_or(WINDOW_BITS_MAX) {
        WINDOW_BITS_MAX.. => WINDOW_BITS_MAX,
        WINDOW_BITS_MIN.. => WINDOW_BITS_MIN,
        // Deflate can't limit its window to 8 bits, and the response must not contain more than the offer.
        _ => return None,
    };
    Some(Deflate { server_max_window_bits, server_max_window_bits_requested: bits.is_some() })
}

/// Parses the agreement in a server's Sec-WebSocket-Extensions, for a client that sent [`request`]; `offered` is the
/// argument `deflate` of that.
pub fn agreed<'a>(
    values: impl Iterator<Item = &'a str>,
    offered: bool,
) -> Result<Option<Deflate>, AgreementError> {
    let mut extensions = values.flat_map(|value| split(value, ','));
    let Some(first) = extensions.next() else {
        return Ok(None);
    };
    let parameters = parameters(first).ok_or(AgreementError)?;
    let as_offered = parameters.server_no_context_takeover && !parameters.client_max_window_bits;
    if !offered || !as_offered || extensions.next().is_some() {
        return Err(AgreementError);
    }
    let bits = parameters.server_max_window_bits;
    Ok(Some(Deflate {
        server_max_window_bits: bits.unwrap_or(WINDOW_BITS_MAX),
        server_max_window_bits_requested: bits.is_some(),
    }))
}

/// The parameters of a permessage-deflate in an offer or an agreement (RFC 7692, section 7.1).
#[derive(Default)]
struct Parameters {
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    server_max_window_bits: Option<u8>,
    client_max_window_bits: bool,
}

/// `None` for another extension, and for a parameter that is unknown, repeated or invalid.
fn parameters(text: &str) -> Option<Parameters> {
    let mut parts = split(text, ';');
    if !parts.next()?.eq_ignore_ascii_case("permessage-deflate") {
        return None;
    }
    let mut found = Parameters::default();
    for part in parts {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name.trim_ascii(), Some(unquoted(value.trim_ascii())?)),
            None => (part, None),
        };
        let twice = match (name, value) {
            ("server_no_context_takeover", None) => {
                mem::replace(&mut found.server_no_context_takeover, true)
            }
            ("client_no_context_takeover", None) => {
                mem::replace(&mut found.client_no_context_takeover, true)
            }
            ("server_max_window_bits", Some(value)) => {
                found.server_max_window_bits.replace(window(value)?).is_some()
            }
            ("client_max_window_bits", value) => {
                value.map_or(Some(0), window)?;
                mem::replace(&mut found.client_max_window_bits, true)
            }
            _ => return None,
        };
        if twice {
            return None;
        }
    }
    Some(found)
}

/// Parses a token or a quoted string; no known value contains a backslash.
fn unquoted(value: &str) -> Option<&str> {
    match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"'),
        None => Some(value),
    }
}

/// Parses 8 to 15, without leading zeros.
fn window(value: &str) -> Option<u8> {
    let bits: u8 = value.parse().ok()?;
    ((8..=WINDOW_BITS_MAX).contains(&bits) && bits.to_string() == value).then_some(bits)
}

/// Splits outside of quotes, and trims the parts.
fn split(text: &str, at: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |c: char| {
        quoted ^= c == '"';
        c == at && !quoted
    })
    .map(str::trim_ascii)
}

/// Appends the head of a response with status 101.
pub fn response(
    accept: &str,
    protocol: Option<&str>,
    deflate: Option<&Deflate>,
    out: &mut Vec<u8>,
) {
    status_line(101, out);
    out.extend_from_slice(b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ");
    out.extend_from_slice(accept.as_bytes());
    out.extend_from_slice(b"\r\n");
    if let Some(protocol) = protocol {
        out.extend_from_slice(format!("Sec-WebSocket-Protocol: {protocol}\r\n").as_bytes());
    }
    if let Some(deflate) = deflate {
        out.extend_from_slice(
            b"Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; \
              client_no_context_takeover",
        );
        if deflate.server_max_window_bits_requested {
            let bits = deflate.server_max_window_bits;
            out.extend_from_slice(format!("; server_max_window_bits={bits}").as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a client's request, with an offer of permessage-deflate if `deflate` is set. `nonce` must be random for
/// each connection; `host` and `target` are not escaped. The caller checks the response with [`is_reply`] and
/// [`agreed`].
pub fn request(host: &str, target: &str, nonce: [u8; 16], deflate: bool, out: &mut Vec<u8>) {
    let extensions = match deflate {
        true => format!("Sec-WebSocket-Extensions: {OFFER}\r\n"),
        false => String::new(),
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

/// Checks that Sec-WebSocket-Accept is the reply to a client's `nonce`.
pub fn is_reply(nonce: [u8; 16], accept: &str) -> bool {
    digest(&STANDARD.encode(nonce)) == accept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standards_key_gets_its_reply() {
        let reply = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ==").as_deref(), Some(reply));
        assert!(is_reply(*b"the sample nonce", reply));
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
            ("permessage-deflate; server_max_window_bits=\"15", None),
            ("permessage-deflate; server_max_window_bits=10; server_max_window_bits=10", None),
            ("permessage-deflate; client_max_window_bits=10", Some(15)),
            ("permessage-deflate; client_max_window_bits; client_max_window_bits=9", None),
            ("permessage-deflate;", None),
            ("Permessage-Deflate ; client_no_context_takeover", Some(15)),
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

    #[test]
    fn the_reply_names_a_window_where_the_offer_does() {
        for (offer, want) in [
            ("permessage-deflate", ""),
            ("permessage-deflate; server_max_window_bits=15", "; server_max_window_bits=15"),
            ("permessage-deflate; server_max_window_bits=12", "; server_max_window_bits=9"),
        ] {
            let deflate = negotiate(std::iter::once(offer));
            let mut out = Vec::new();
            response("x", None, deflate.as_ref(), &mut out);
            let both = "server_no_context_takeover; client_no_context_takeover";
            let want = format!("Extensions: permessage-deflate; {both}{want}\r\n\r\n");
            assert!(String::from_utf8(out).unwrap().ends_with(&want));
        }
    }

    #[test]
    fn a_client_takes_only_what_it_offered() {
        let bits = |values: &[&str], offered| {
            agreed(values.iter().copied(), offered)
                .map(|deflate| deflate.map(|deflate| deflate.server_max_window_bits))
        };
        let good = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        let small = "permessage-deflate;server_no_context_takeover;server_max_window_bits=9";
        for (values, want) in [
            (&[][..], Ok(None)),
            (&[good], Ok(Some(15))),
            (&[small], Ok(Some(9))),
            (&["permessage-deflate"], Err(AgreementError)),
            (&[good, good], Err(AgreementError)),
            (&["foo"], Err(AgreementError)),
            (&[&format!("{good}; client_max_window_bits=9")], Err(AgreementError)),
            (&[&format!("{good}; unknown")], Err(AgreementError)),
        ] {
            assert_eq!(bits(values, true), want, "{values:?}");
        }
        assert_eq!(bits(&[], false), Ok(None));
        assert_eq!(bits(&[good], false), Err(AgreementError));
    }

    #[test]
    fn our_server_agrees_with_our_client() {
        for deflate in [false, true] {
            let mut out = Vec::new();
            request("h", "/ws", [7; 16], deflate, &mut out);
            let text = String::from_utf8(out).unwrap();
            let offers =
                || text.lines().filter_map(|l| l.strip_prefix("Sec-WebSocket-Extensions: "));
            let key = text.lines().find_map(|l| l.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
            assert!(is_reply([7; 16], &accept(key).unwrap()));
            let chosen = negotiate(offers());
            assert_eq!(chosen.is_some(), deflate);
            let mut out = Vec::new();
            response("x", None, chosen.as_ref(), &mut out);
            let text = String::from_utf8(out).unwrap();
            let replies = text.lines().filter_map(|l| l.strip_prefix("Sec-WebSocket-Extensions: "));
            assert_eq!(agreed(replies, deflate), Ok(chosen));
        }
    }

    proptest::proptest! {
        #[test]
        fn noise_never_panics(text: String) {
            negotiate(std::iter::once(text.as_str()));
            let _ = agreed(std::iter::once(text.as_str()), true);
            accept(&text);
        }

        #[test]
        fn only_whole_offers_are_taken(
            bits in 0u8..20, quoted: bool, names in proptest::collection::vec(0usize..4, 0..4)
        ) {
            let value = if quoted { format!("\"{bits}\"") } else { bits.to_string() };
            let each = [
                "server_no_context_takeover".into(),
                "client_no_context_takeover".into(),
                format!("server_max_window_bits={value}"),
                format!("client_max_window_bits={value}"),
            ];
            let mut text = String::from("permessage-deflate");
            for name in &names {
                text.push_str("; ");
                text.push_str(&each[*name]);
            }
            let twice = (0..4).any(|n| names.iter().filter(|name| **name == n).count() > 1);
            let (server, client) = (names.contains(&2), names.contains(&3));
            let good = !twice && (!server || (9..=15).contains(&bits))
                && (!client || (8..=15).contains(&bits));
            let want = good.then_some(Deflate {
                server_max_window_bits: if server && bits < 15 { 9 } else { 15 },
                server_max_window_bits_requested: server,
            });
            proptest::prop_assert_eq!(negotiate(std::iter::once(text.as_str())), want);
        }
    }
}
