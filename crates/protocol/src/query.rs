//! The query string of a request's target: `key=value` pairs in the format of HTML forms.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// A key or a value does not decode to UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the query string does not decode to UTF-8")]
pub struct QueryError;

/// The decoded pairs of a query string, in order (WHATWG URL, section
/// application/x-www-form-urlencoded: `+` is a space, `%XX` a byte).
pub fn pairs(
    query: &str,
) -> impl Iterator<Item = Result<(Cow<'_, str>, Cow<'_, str>), QueryError>> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = split_once(pair, b'=').unwrap_or((pair, ""));
        Ok((decode(key)?, decode(value)?))
    })
}

/// The text before and after the first of these ASCII characters. The standard library's
/// [`str::split_once`] costs several times as much on texts as short as these.
pub(crate) fn split_once(text: &str, at: u8) -> Option<(&str, &str)> {
    let at = text.bytes().position(|byte| byte == at)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

fn decode(text: &str) -> Result<Cow<'_, str>, QueryError> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Ok(Cow::Borrowed(text));
    }
    let spaced = text.replace('+', " ");
    let bytes: Vec<u8> = percent_decode(spaced.as_bytes()).collect();
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| QueryError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_in_order() {
        let got: Vec<_> =
            pairs("topic=a&topic=b%2Fc+d&&flag&x=%C3%A9&y=1=2").map(Result::unwrap).collect();
        let want = [("topic", "a"), ("topic", "b/c d"), ("flag", ""), ("x", "é"), ("y", "1=2")];
        assert_eq!(got, want.map(|(key, value)| (key.into(), value.into())));
        assert!(pairs("x=%FF").any(|pair| pair == Err(QueryError)));
        assert_eq!(pairs("x=100%").next(), Some(Ok(("x".into(), "100%".into()))));
    }

    proptest::proptest! {
        #[test]
        fn any_text_survives_form_encoding(text: String) {
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let query = format!("k={encoded}");
            let value = pairs(&query).next().unwrap().unwrap().1.into_owned();
            proptest::prop_assert_eq!(value, text);
        }
    }
}
