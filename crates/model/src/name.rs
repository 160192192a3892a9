//! Names of topics, users, events and keys, and their limits.

use compact_str::CompactString;

/// A topic's, user's or event's name. Up to 24 bytes need no allocation.
pub type Name = CompactString;

/// [`NAME_BYTES_MAX`], for texts that are joined at compile time.
macro_rules! name_bytes_max {
    () => {
        254
    };
}

/// The longest name of a topic, a user, an event or a key, in bytes.
pub const NAME_BYTES_MAX: usize = name_bytes_max!();

/// The longest personal topic in bytes: a user's name behind [`PERSONAL`].
pub const PERSONAL_BYTES_MAX: usize = NAME_BYTES_MAX + PERSONAL.len_utf8();

/// The message for a user's name that [`check_name`] rejects, if it must say that a user's name is meant.
pub const BAD_USER: &str = concat!(
    "the user's name must have 1 to ",
    name_bytes_max!(),
    " bytes and no control characters"
);

/// The topics in which the server reports about itself: this one, and all below it.
pub const SYSTEM: &str = "$SYS";

/// Returns true if the server reports about itself in the topic, so that no other publisher may publish there.
///
/// ```
/// use model::name::is_system;
///
/// assert!(is_system("$SYS") && is_system("$SYS/broker/uptime"));
/// assert!(!is_system("$SYSTEM/1") && !is_system("a/$SYS"));
/// ```
pub fn is_system(topic: &str) -> bool {
    let rest = topic.strip_prefix(SYSTEM);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The topic that every connection is in.
pub const BROADCAST: &str = "*";

/// The first character of a personal topic: user `alice` is the topic `@alice`.
pub const PERSONAL: char = '@';

/// The first character of a filter's name beside those of topics. No topic's name may have it.
pub const FILTER: char = '\0';

/// Returns the name of a filter of topics (see [`crate::filter`]) beside those of topics: its connections are the
/// members. `group` is the group that shares it.
///
/// ```
/// use model::TopicKind;
/// use model::name::{filter, of_filter};
///
/// let name = filter(Some("workers"), "jobs/+");
/// assert_eq!(of_filter(&name), Some((Some("workers"), "jobs/+")));
/// assert!(matches!(TopicKind::of(&name), TopicKind::Filter(_)));
/// assert_eq!(of_filter("jobs/+"), None);
/// ```
pub fn filter(group: Option<&str>, filter: &str) -> Name {
    let mut name = Name::with_capacity(filter.len() + 1);
    name.push(FILTER);
    if let Some(group) = group {
        name.push_str(SHARED);
        name.push_str(group);
        name.push('/');
    }
    name.push_str(filter);
    name
}

/// The beginning of a filter that a group shares (MQTT 5.0, section 4.8.2).
pub const SHARED: &str = "$share/";

/// Returns the group and the filter of a name that [`filter`] made; `None` for a topic's.
pub fn of_filter(name: &str) -> Option<(Option<&str>, &str)> {
    let text = name.strip_prefix(FILTER)?;
    let shared = text.strip_prefix(SHARED).and_then(|shared| shared.split_once('/'));
    Some(shared.map_or((None, text), |(group, filter)| (Some(group), filter)))
}

/// Returns a topic's name, or a filter as its client wrote it: the form of a name for people and programs.
///
/// ```
/// use model::name::{filter, shown};
///
/// assert_eq!((shown("a/1"), shown(&filter(None, "a/+"))), ("a/1", "a/+"));
/// ```
pub fn shown(name: &str) -> &str {
    name.strip_prefix(FILTER).unwrap_or(name)
}

/// Returns the personal topic of a user.
///
/// ```
/// use model::TopicKind;
/// use model::name::personal;
///
/// let topic = personal("alice");
/// assert_eq!(topic, "@alice");
/// assert_eq!(TopicKind::of(&topic).user(), Some("alice"));
/// ```
pub fn personal(user: &str) -> Name {
    let mut name = Name::with_capacity(user.len() + 1);
    name.push(PERSONAL);
    name.push_str(user);
    name
}

/// Checks a topic's name: 1 to [`NAME_BYTES_MAX`] bytes, no control characters, and neither `*` nor
/// a leading `@`, which are Throng's own. The error says why it is invalid.
///
/// ```
/// use model::name::check_topic;
///
/// assert!(check_topic("room:lobby").is_ok());
/// // Any text, but for what would end a line.
/// assert!(check_topic("Größe/日本 🙂").is_ok());
/// assert_eq!(check_topic("a\nb"), Err("a name may not contain control characters"));
/// assert!(check_topic("@alice").is_err());
/// ```
pub fn check_topic(name: &str) -> Result<(), &'static str> {
    check_name(name)?;
    if name.starts_with(PERSONAL) {
        return Err("a topic may not begin with '@', which marks users' personal topics");
    }
    if name == BROADCAST {
        return Err("the topic '*' is every connection: use broadcast");
    }
    Ok(())
}

/// Checks a user's name or a key: 1 to [`NAME_BYTES_MAX`] bytes and no control characters. (Events have more rules:
/// [`crate::event::check_event`].)
pub fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("a name may not be empty");
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(concat!("a name may have at most ", name_bytes_max!(), " bytes"));
    }
    if has_control(name) {
        return Err("a name may not contain control characters");
    }
    Ok(())
}

/// Returns true if a text has control characters, which no name, tag or key may have: they end lines and commands
/// of terminals, logs and protocols.
pub fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_server_itself_are_invalid() {
        assert!(check_topic("room:1").is_ok());
        for bad in ["", "@alice", "*", "a\nb"] {
            assert!(check_topic(bad).is_err(), "{bad}");
        }
        assert!(check_name("@odd but a user").is_ok());
        assert_eq!(personal("alice"), "@alice");
    }

    /// Topics, users and events have one limit, and all texts that state it state the same.
    #[test]
    fn the_longest_name_is_one_number_everywhere() {
        let (fits, too_long) = ("x".repeat(NAME_BYTES_MAX), "x".repeat(NAME_BYTES_MAX + 1));
        for check in [check_topic, check_name] {
            assert_eq!(check(&fits), Ok(()));
            assert!(check(&too_long).unwrap_err().contains(&NAME_BYTES_MAX.to_string()));
        }
        assert_eq!(personal(&fits).len(), PERSONAL_BYTES_MAX);
        assert!(BAD_USER.contains(&format!("1 to {NAME_BYTES_MAX} bytes")));
        let text = include_str!("../../../docs/internals/limits.md");
        let row = text.lines().find(|line| line.starts_with("| name of a topic"));
        assert!(row.is_some_and(|row| row.contains(&format!("| {NAME_BYTES_MAX} bytes |"))));
        let text = include_str!("../../../docs/glossary.md");
        assert!(text.contains(&format!("| 1 to {NAME_BYTES_MAX} |")), "docs/glossary.md");
    }
}
