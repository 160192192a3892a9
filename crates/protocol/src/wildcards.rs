//! Topics that clients name by a filter of MQTT, on transports other than MQTT: `filter=mqtt` beside the topic
//! says so, since a topic's name may hold `+` and `#` like any other character.

use model::filter::{Filter, FilterError, has_wildcard, levels};
use model::name::{self, check_topic};
use model::{CodedError, ErrorCode, Name, Since};

use crate::Settings;

/// What `filter` says.
const MQTT: &str = "mqtt";

/// Checks what a client says as `filter`.
///
/// # Errors
/// `bad_filter`: there is one kind of filter.
pub fn check_kind(filter: &str) -> Result<(), CodedError> {
    match filter == MQTT {
        true => Ok(()),
        false => Err(CodedError::new(
            ErrorCode::BadFilter,
            "filter is mqtt: + and # in topic are wildcards then",
        )),
    }
}

/// The name under which a connection listens to what a client names with `filter=mqtt`: a topic's where it
/// has no wildcard.
///
/// # Errors
/// `bad_filter` where it is no filter that a client may have, and `bad_topic` where it is no topic.
pub fn wanted(text: &str) -> Result<Name, CodedError> {
    check_topic(text).map_err(|error| CodedError::new(ErrorCode::BadTopic, error))?;
    let bad = |error: FilterError| CodedError::new(ErrorCode::BadFilter, error.to_string());
    let wanted = Filter::parse(text).map_err(bad)?;
    if wanted.group.is_some() {
        let message = "shared subscriptions are for MQTT clients: leave $share and the group away";
        return Err(CodedError::new(ErrorCode::BadFilter, message));
    }
    Ok(if has_wildcard(text) { name::filter(None, text) } else { text.into() })
}

/// Checks that the server lets clients have what they want.
///
/// # Errors
/// `wildcards_off` where it is a filter with a wildcard, and the server lets no client use them; `bad_filter`
/// where it has more levels than it may.
pub fn check_allowed(wanted: &str, settings: &Settings) -> Result<(), CodedError> {
    let Some((_, filter)) = name::of_filter(wanted) else { return Ok(()) };
    if settings.wildcards {
        let (levels, max) = (levels(filter), settings.filter_levels_max);
        return match levels <= max {
            true => Ok(()),
            false => Err(CodedError::new(
                ErrorCode::BadFilter,
                format!(
                    "the filter has {levels} levels: {max} are allowed (mqtt.filter_levels_max)"
                ),
            )),
        };
    }
    let message = "this server lets no client name topics by wildcards: its operator can, with \
                   client.wildcards = true";
    Err(CodedError::new(ErrorCode::WildcardsOff, message))
}

/// Checks from where a client asks for what it wants. One that comes back may say what it saw last, as browsers
/// do by themselves: it is told that nothing is recovered.
///
/// # Errors
/// `bad_since` where it asks for what was before, which only a topic has.
pub fn check_since(wanted: &str, since: Option<&Since>) -> Result<(), CodedError> {
    let asks = since.is_some_and(|since| since.token().is_none());
    if !asks || name::of_filter(wanted).is_none() {
        return Ok(());
    }
    let message = "a filter with a wildcard has no past: since may be start or last: for a topic";
    Err(CodedError::new(ErrorCode::BadSince, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_a_wildcard_is_a_filter() {
        assert_eq!(wanted("a/b").as_deref(), Ok("a/b"));
        assert_eq!(wanted("a/+/#").as_deref(), Ok("\0a/+/#"));
        let code = |text: &str| wanted(text).unwrap_err().code;
        for (text, expected) in [
            ("a/b+", "bad_filter"),
            ("#/a", "bad_filter"),
            ("$share/g/a/+", "bad_filter"),
            ("@alice", "bad_topic"),
            ("", "bad_topic"),
            ("a\0/+", "bad_topic"),
        ] {
            assert_eq!(code(text), expected, "{text:?}");
        }
        let settings = Settings::for_tests(auth::Policy::default());
        let most = vec!["+"; settings.filter_levels_max].join("/");
        let allowed = |text: &str| check_allowed(&wanted(text).unwrap(), &settings);
        assert_eq!(allowed(&most), Ok(()));
        assert_eq!(allowed(&format!("{most}/a")).unwrap_err().code, "bad_filter");
        assert_eq!(allowed(&format!("{most}/a").replace('+', "b")), Ok(()));
        assert!(check_kind("mqtt").is_ok());
        assert_eq!(check_kind("glob").unwrap_err().code, "bad_filter");
    }
}
