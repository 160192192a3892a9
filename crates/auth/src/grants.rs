//! What a token grants.

use model::Name;

/// Stands for the name of the principal's user in a pattern.
pub(crate) const SUBJECT: &str = "{sub}";

/// What a principal may do at the most. A grant never allows what the rules deny.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Grants {
    /// All that the rules allow.
    Everything,
    /// What these patterns name, and nothing else.
    Patterns(Patterns),
}

impl Default for Grants {
    /// Nothing.
    fn default() -> Self {
        Grants::Patterns(Patterns::default())
    }
}

/// The topics of each action: `*` matches any run of characters, `{sub}` the name of one of the
/// principal's users, all else itself. A `*` in a user's name is a character like any other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Patterns {
    /// Topics to enter.
    pub subscribe: Vec<Box<str>>,
    /// Topics to publish to.
    pub publish: Vec<Box<str>>,
    /// Topics of which to see who is there.
    pub presence: Vec<Box<str>>,
    /// Topics of which to read what was before.
    pub history: Vec<Box<str>>,
}

/// Whether one of the patterns matches the topic, for one of the users.
pub(crate) fn any_matches(patterns: &[Box<str>], users: &[Name], topic: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.contains(SUBJECT) {
        true => users.iter().any(|user| matches(pattern, user, topic)),
        false => model::rules::matches(pattern, topic),
    })
}

/// Whether a pattern matches all of a text. The pattern is taken apart at its stars before the name
/// is inserted, so that no name brings stars of its own.
fn matches(pattern: &str, user: &str, text: &str) -> bool {
    let mut parts: Vec<String> =
        pattern.split('*').map(|part| part.replace(SUBJECT, user)).collect();
    let last = parts.pop().unwrap_or_default();
    let Some((first, middle)) = parts.split_first() else {
        return last == text;
    };
    let inner = text.strip_prefix(first.as_str()).and_then(|text| text.strip_suffix(&*last));
    // The first place for each part leaves the most room for the parts after it.
    let mut left = inner;
    for part in middle {
        left = left.and_then(|text| Some(text.split_once(part.as_str())?.1));
    }
    left.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_name_stands_for_itself_only() {
        for (pattern, user, topic) in [
            ("room:{sub}", "al", "room:al"),
            ("{sub}:*", "al", "al:1"),
            ("*:{sub}", "*", "x:*"),
            ("{sub}-{sub}", "a", "a-a"),
            ("a*{sub}*c", "b", "a-b-c"),
            ("{sub}", "{sub}", "{sub}"),
        ] {
            assert!(matches(pattern, user, topic), "{pattern} {user} {topic}");
        }
        for (pattern, user, topic) in [
            ("room:{sub}", "*", "room:al"),
            ("room:{sub}", "a*", "room:al"),
            ("room:{sub}", "al", "room:alice"),
            ("{sub}:*", "al", "alice:1"),
            ("*{sub}*", "b", "a-c"),
        ] {
            assert!(!matches(pattern, user, topic), "{pattern} {user} {topic}");
        }
    }

    #[test]
    fn any_pattern_and_any_user_will_do() {
        let patterns: Vec<Box<str>> = vec!["news".into(), "room:{sub}".into()];
        let users = [Name::from("al"), Name::from("bo")];
        for topic in ["news", "room:al", "room:bo"] {
            assert!(any_matches(&patterns, &users, topic), "{topic}");
        }
        assert!(!any_matches(&patterns, &users, "room:{sub}"));
        assert!(any_matches(&patterns, &[], "news") && !any_matches(&patterns, &[], "room:al"));
        assert!(!any_matches(&[], &users, "news"));
    }

    proptest::proptest! {
        /// A name without stars may as well stand in the pattern.
        #[test]
        fn a_plain_name_is_as_if_written(
            pattern in "(\\{sub\\}|[ab*]){0,5}", user in "[ab]{1,3}", topic in "[ab]{0,8}",
        ) {
            let written = pattern.replace(SUBJECT, &user);
            let want = model::rules::matches(&written, &topic);
            proptest::prop_assert_eq!(matches(&pattern, &user, &topic), want);
        }
    }
}
