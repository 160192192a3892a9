//! The media type that a request gives its body: one rule for both ports.
//!
//! The default type of a tool says nothing about the body: `fetch` calls a string `text/plain;charset=UTF-8`, `curl
//! -d` calls anything `application/x-www-form-urlencoded`, a `Blob` or an `ArrayBuffer` has no type or
//! `application/octet-stream`. So a call that takes one type reads a body with one of these as that type. Any other
//! type is an error, which names the header to send.

/// The media type of a body, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// The header is missing or empty.
    Unnamed,
    /// `text/plain`.
    Text,
    /// `application/x-www-form-urlencoded`.
    Form,
    /// `application/octet-stream`.
    Bytes,
    /// `application/json` or `text/json`.
    Json,
    /// `multipart/…`: several bodies in one.
    Multipart,
    /// Another type.
    Other,
}

impl Media {
    /// Parses a value of `Content-Type`; parameters change nothing.
    pub fn of(content_type: Option<&str>) -> Self {
        const KNOWN: [(&str, Media); 6] = [
            ("", Media::Unnamed),
            ("text/plain", Media::Text),
            ("application/x-www-form-urlencoded", Media::Form),
            ("application/octet-stream", Media::Bytes),
            ("application/json", Media::Json),
            ("text/json", Media::Json),
        ];
        let name = essence(content_type);
        let known = KNOWN.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        let multipart = name.get(..10).is_some_and(|it| it.eq_ignore_ascii_case("multipart/"));
        match known {
            Some((_, media)) => *media,
            None if multipart => Media::Multipart,
            None => Media::Other,
        }
    }

    /// Returns true for a type that tools send by themselves, whatever the body is.
    fn is_default(self) -> bool {
        matches!(self, Media::Unnamed | Media::Text | Media::Form | Media::Bytes)
    }
}

/// The type without its parameters.
fn essence(content_type: Option<&str>) -> &str {
    content_type.unwrap_or("").split(';').next().unwrap_or("").trim()
}

/// Checks the type of a body against the type that the call takes, mostly `application/json`.
///
/// # Errors
/// A message that names the header to send.
pub fn expect(content_type: Option<&str>, expected: &str) -> Result<(), String> {
    let (said, media) = (essence(content_type), Media::of(content_type));
    let is_expected = if media == Media::Json {
        expected.eq_ignore_ascii_case("application/json")
    } else {
        media.is_default() || said.eq_ignore_ascii_case(expected)
    };
    match is_expected {
        true => Ok(()),
        false => Err(format!(
            "this call accepts {expected}, and the body of the request is declared as {said}: send \
             the header Content-Type: {expected}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_say_by_themselves_is_read_as_what_the_call_takes() {
        for (content_type, media) in [
            (None, Media::Unnamed),
            (Some(""), Media::Unnamed),
            (Some("text/plain;charset=UTF-8"), Media::Text),
            (Some("Application/X-WWW-Form-URLEncoded; charset=UTF-8"), Media::Form),
            (Some("application/octet-stream"), Media::Bytes),
        ] {
            assert_eq!(Media::of(content_type), media, "{content_type:?}");
            assert_eq!(expect(content_type, "application/json"), Ok(()), "{content_type:?}");
            assert_eq!(expect(content_type, "text/csv"), Ok(()), "{content_type:?}");
        }
        for json in ["application/json", "APPLICATION/JSON ; charset=utf-8", "text/json"] {
            assert_eq!(Media::of(Some(json)), Media::Json);
            assert_eq!(expect(Some(json), "application/json"), Ok(()), "{json}");
            assert!(expect(Some(json), "text/csv").is_err(), "{json}");
        }
        assert_eq!(expect(Some("Text/CSV"), "text/csv"), Ok(()));
    }

    #[test]
    fn another_type_is_an_error_that_names_the_header() {
        for other in ["text/html", "text/csv", "application/json-patch+json", "image/png", "json"] {
            assert_eq!(Media::of(Some(other)), Media::Other);
            let error = expect(Some(other), "application/json").unwrap_err();
            assert!(error.contains("send the header Content-Type: application/json"), "{error}");
            assert!(error.contains(other), "{error}");
        }
        let form = "Multipart/Form-Data; boundary=x";
        assert_eq!(Media::of(Some(form)), Media::Multipart);
        assert!(expect(Some(form), "application/json").is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_type_does_harm(text in "[a-zA-Z/;=+ é]{0,20}") {
            let of = Media::of(Some(&text));
            let checked = expect(Some(&text), "application/json");
            proptest::prop_assert_eq!(checked.is_ok(), of.is_default() || of == Media::Json);
        }
    }
}
