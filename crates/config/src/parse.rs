//! Parses single values of the file, of a variable, or of a flag.

use toml::de::DeValue;

use crate::Value;
use crate::address::Resolve;
use crate::setting::Kind;
use crate::size;

/// Characters of an invalid value in an error, at most.
const SHOWN_CHARS_MAX: usize = 60;

/// The reason why a value is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// The written value. Never shown for a secret.
    found: String,
    /// Advice on this value, if any.
    advice: Option<String>,
}

impl Mismatch {
    /// Creates the error of a written value, with advice.
    pub fn new(found: &str, advice: Option<String>) -> Self {
        let words: Vec<&str> = found.split_whitespace().collect();
        let words = words.join(" ");
        let mut shown: String = words.chars().take(SHOWN_CHARS_MAX).collect();
        if shown.len() < words.len() {
            shown.push('…');
        }
        Mismatch { found: shown, advice }
    }

    /// Creates the error of a value that is not UTF-8.
    pub fn not_utf8() -> Self {
        Mismatch::new("text that is not UTF-8", None)
    }

    /// Returns the error's message. `expected` describes the valid values.
    pub fn message(&self, expected: &str, is_secret: bool) -> String {
        let Mismatch { found, advice } = self;
        if is_secret {
            return format!("expected {expected}; the value is not shown, because it is a secret");
        }
        match advice {
            Some(advice) => format!("expected {expected}, found {found}: {advice}"),
            None => format!("expected {expected}, found {found}"),
        }
    }
}

/// Parses a value of the file; `written` is its text in the file.
pub(crate) fn from_toml(
    kind: Kind,
    value: &DeValue<'_>,
    written: &str,
    resolve: Option<Resolve>,
) -> Result<Value, Mismatch> {
    let mismatch = || Err(Mismatch::new(written, None));
    match (kind, value) {
        (Kind::Bool, DeValue::Boolean(value)) => Ok(Value::Bool(*value)),
        (Kind::Number(min, max) | Kind::Bytes(min, max), DeValue::Integer(integer)) => {
            let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
            let number = number.and_then(|number| u64::try_from(number).ok());
            bounded(min, max, number).ok_or_else(|| Mismatch::new(written, None))
        }
        (Kind::List, DeValue::Array(items)) => {
            let items = items.iter().map(|item| item.get_ref().as_str().map(str::to_string));
            items.collect::<Option<_>>().map(Value::List).map_or_else(mismatch, Ok)
        }
        (Kind::Bool | Kind::Number(..) | Kind::List, _) => mismatch(),
        (Kind::Address | Kind::OptionalAddress, DeValue::Integer(_)) => {
            let advice = crate::address::advice(written.trim());
            Err(Mismatch::new(written, advice))
        }
        (Kind::Time, DeValue::Datetime(time)) => from_text(kind, &time.to_string(), resolve),
        (_, DeValue::String(text)) => from_text(kind, text, resolve),
        _ => mismatch(),
    }
}

/// Parses a value of a variable or of a flag, or a text of the file.
pub(crate) fn from_text(
    kind: Kind,
    text: &str,
    resolve: Option<Resolve>,
) -> Result<Value, Mismatch> {
    let mismatch = |advice| Mismatch::new(&format!("{text:?}"), advice);
    match kind {
        Kind::Bool => match text {
            "true" | "1" => Ok(Value::Bool(true)),
            "false" | "0" => Ok(Value::Bool(false)),
            _ => Err(mismatch(None)),
        },
        Kind::Number(min, max) => {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|_| is_number);
            bounded(min, max, number).ok_or_else(|| mismatch(None))
        }
        Kind::Bytes(min, max) => {
            let bytes = size::parse(text).map_err(|advice| mismatch(Some(advice)))?;
            bounded(min, max, bytes).ok_or_else(|| mismatch(None))
        }
        Kind::OptionalAddress if text.is_empty() => Ok(Value::Text(String::new())),
        Kind::Address | Kind::OptionalAddress => match crate::address::parse(text, resolve) {
            Ok(address) => Ok(Value::Text(address.to_string())),
            Err(advice) => Err(mismatch(advice)),
        },
        Kind::TextBytes(min, max) if !(min..=max).contains(&(text.len() as u64)) => {
            Err(mismatch(Some(format!("it has {} bytes", text.len()))))
        }
        Kind::Choice(words) if !words.contains(&text) => Err(mismatch(None)),
        Kind::Time => match crate::time::seconds(text) {
            Ok(_) => Ok(Value::Text(text.into())),
            Err(advice) => Err(mismatch(advice)),
        },
        Kind::Hash if crate::keys::KeyHash::parse(text).is_none() => Err(mismatch(None)),
        Kind::Text | Kind::TextBytes(..) | Kind::Choice(_) | Kind::Hash => {
            Ok(Value::Text(text.into()))
        }
        Kind::List => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Ok(Value::List(items.map(str::to_string).collect()))
        }
    }
}

/// Checks that a number is within its bounds. `None` is one that doesn't fit into a `u64`.
fn bounded(min: u64, max: u64, number: Option<u64>) -> Option<Value> {
    number.filter(|number| (min..=max).contains(number)).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_what_was_found_on_one_short_line() {
        let expected = "a whole number from 1 to 9";
        let of = |text: &str| from_text(Kind::Number(1, 9), text, None).unwrap_err();
        assert_eq!(
            of("lots").message(expected, false),
            format!("expected {expected}, found \"lots\"")
        );
        assert_eq!(of("10").message(expected, false), format!("expected {expected}, found \"10\""));
        assert!(!of("lots").message(expected, true).contains("lots"));
        let long = of(&"x\n".repeat(1_000)).message(expected, false);
        assert!(long.ends_with('…') && long.chars().count() < 120, "{long}");
        let wide = Mismatch::new("[\n  1,\n  \"a\",\n]", None).message(expected, false);
        assert!(wide.ends_with("found [ 1, \"a\", ]"), "{wide}");
        let message = Mismatch::not_utf8().message(expected, false);
        assert!(message.ends_with("found text that is not UTF-8"));
    }
}
