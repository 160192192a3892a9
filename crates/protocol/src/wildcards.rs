//! Topic filters of clients on transports other than MQTT. They need `filter=mqtt` beside the topic, because a
//! topic's name may contain `+` and `#` like any other character.

use model::filter::{Filter, FilterError, has_wildcard, levels};
use model::name::{self, check_topic};
use model::{CodedError, ErrorCode, Name, Since};

use crate::Settings;

/// The only value of `filter`.
const MQTT: &str = "mqtt";

/// Checks the value of `filter`.
///
/// # Errors
/// `bad_filter` for any value but `mqtt`.
pub fn check_kind(filter: &str) -> Result<(), CodedError> {
    match filter == MQTT {
        true => Ok(()),
        false => Err(CodedError::new(
            ErrorCode::BadFilter,
            "filter must be mqtt, which makes + and # in topic wildcards",
        )),
    }
}

/// Returns the name under which a connection subscribes to a topic with `filter=mqtt`: the topic itself if it has no
/// wildcard.
///
/// # Errors
/// `bad_filter` if a client may not have this filter, and `bad_topic` if it is not a topic.
pub fn subscription_name(text: &str) -> Result<Name, CodedError> {
    check_topic(text).map_err(|error| CodedError::new(ErrorCode::BadTopic, error))?;
    let bad = |error: FilterError| CodedError::new(ErrorCode::BadFilter, error.to_string());
    let filter = Filter::parse(text).map_err(bad)?;
    if filter.group.is_some() {
        let message = "shared subscriptions are only for MQTT clients: remove $share and the group";
        return Err(CodedError::new(ErrorCode::BadFilter, message));
    }
    Ok(if has_wildcard(text) { name::filter(None, text) } else { text.into() })
}

/// Checks that the settings allow this topic or filter.
///
/// # Errors
/// `wildcards_off` for a filter with a wildcard if the server does not allow them; `bad_filter` if it has too many
/// levels.
pub fn check_allowed(topic: &str, settings: &Settings) -> Result<(), CodedError> {
    let Some((_, filter)) = name::of_filter(topic) else { return Ok(()) };
    if settings.wildcards {
        let (levels, max) = (levels(filter), settings.filter_levels_max);
        return match levels <= max {
            true => Ok(()),
            false => Err(CodedError::new(
                ErrorCode::BadFilter,
                format!(
                    "the filter has {levels} levels, and at most {max} are allowed \
                     (mqtt.filter_levels_max)"
                ),
            )),
        };
    }
    let message = "this server does not allow clients to subscribe by wildcards: its operator can \
                   allow it with client.wildcards = true";
    Err(CodedError::new(ErrorCode::WildcardsOff, message))
}

/// Checks the position from which a client subscribes. A reconnecting client may give its last position, as browsers
/// do by themselves: the server notifies it that nothing is recovered.
///
/// # Errors
/// `bad_since` if the client requests history, which only topics have.
pub fn check_since(topic: &str, since: Option<&Since>) -> Result<(), CodedError> {
    let requests_history = since.is_some_and(|since| since.token().is_none());
    if !requests_history || name::of_filter(topic).is_none() {
        return Ok(());
    }
    let message =
        "a filter with a wildcard has no history: since may be start or last:N only for a topic";
    Err(CodedError::new(ErrorCode::BadSince, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_a_wildcard_is_a_filter() {
        assert_eq!(subscription_name("a/b").as_deref(), Ok("a/b"));
        assert_eq!(subscription_name("a/+/#").as_deref(), Ok("\0a/+/#"));
        let code = |text: &str| subscription_name(text).unwrap_err().code;
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
        let allowed = |text: &str| check_allowed(&subscription_name(text).unwrap(), &settings);
        assert_eq!(allowed(&most), Ok(()));
        assert_eq!(allowed(&format!("{most}/a")).unwrap_err().code, "bad_filter");
        assert_eq!(allowed(&format!("{most}/a").replace('+', "b")), Ok(()));
        assert!(check_kind("mqtt").is_ok());
        assert_eq!(check_kind("glob").unwrap_err().code, "bad_filter");
    }
}
