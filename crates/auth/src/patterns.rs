//! Matches the patterns of grants.

use crate::Principal;
use crate::grants::{CLIENT, SUBJECT};

/// Returns true if one of the patterns matches the topic, for one of the users.
pub(crate) fn any_matches(patterns: &[Box<str>], who: &Principal, topic: &str) -> bool {
    patterns.iter().any(|pattern| match (pattern.contains(SUBJECT), pattern.contains(CLIENT)) {
        (false, false) => model::rules::matches(pattern, topic),
        (false, true) => who.client().is_some_and(|client| matches(pattern, ("", client), topic)),
        (true, false) => who.users.iter().any(|user| matches(pattern, (user, ""), topic)),
        (true, true) => who.client().is_some_and(|client| {
            who.users.iter().any(|user| matches(pattern, (user, client), topic))
        }),
    })
}

impl Principal {
    /// Returns the client identifier if it can stand in a pattern: one of several levels, or with wildcards, would
    /// reach another client's topics.
    fn client(&self) -> Option<&str> {
        self.client.as_deref().filter(|client| !client.contains(['/', '+', '#']))
    }
}

/// Returns true if one of the patterns matches all topics that the filter does (MQTT 5.0, section 4.7), for one of
/// the users. Only a `*` covers a wildcard.
pub(crate) fn any_covers(patterns: &[Box<str>], who: &Principal, filter: &str) -> bool {
    // No pattern has this character: control characters are in no name.
    let stands_in = |text: &str| text.replace(['+', '#'], "\u{1}");
    let whole = stands_in(filter);
    // `a/#` matches `a` as well.
    let parent = filter.strip_suffix("/#").map(stands_in);
    patterns.chunks(1).any(|pattern| {
        any_matches(pattern, who, &whole)
            && parent.as_ref().is_none_or(|parent| any_matches(pattern, who, parent))
    })
}

/// Returns true if a pattern matches all of a text. The pattern is split at its stars before the name is inserted,
/// so that no name brings stars of its own.
fn matches(pattern: &str, (user, client): (&str, &str), text: &str) -> bool {
    let parts = pattern.split('*').map(|part| {
        // Each name stands for itself: a user may be called `{client}`.
        let mut parts = part.split(CLIENT).map(|part| part.replace(SUBJECT, user));
        let first = parts.next().unwrap_or_default();
        parts.fold(first, |whole, part| whole + client + &part)
    });
    let mut parts: Vec<String> = parts.collect();
    let last = parts.pop().unwrap_or_default();
    let Some((first, middle)) = parts.split_first() else {
        return last == text;
    };
    let inner = text.strip_prefix(first.as_str()).and_then(|text| text.strip_suffix(&*last));
    // The first match of each part leaves the most text for the parts after it.
    let mut left = inner;
    for part in middle {
        left = left.and_then(|text| Some(text.split_once(part.as_str())?.1));
    }
    left.is_some()
}

#[cfg(test)]
mod tests {
    use model::Name;

    use super::*;

    #[test]
    fn a_filter_is_covered_where_all_its_topics_are() {
        let al = Principal::anonymous(vec!["al".into()]);
        let covers = |pattern: &str, filter| any_covers(&[pattern.into()], &al, filter);
        for (pattern, filter) in [
            ("*", "#"),
            ("*", "+/a/#"),
            ("site/*", "site/+/temp"),
            ("site/*", "site/7/+/#"),
            ("site/*/temp", "site/+/temp"),
            ("site*", "site/#"),
            ("{sub}/*", "al/+"),
        ] {
            assert!(covers(pattern, filter), "{pattern} {filter}");
        }
        for (pattern, filter) in [
            ("site/*", "#"),
            ("site/*", "+/a"),
            // It matches `site` as well.
            ("site/*", "site/#"),
            ("site/+", "site/+"),
            ("site/#", "site/#"),
            ("{sub}/*", "bo/+"),
        ] {
            assert!(!covers(pattern, filter), "{pattern} {filter}");
        }
        // The check does not combine two patterns that cover a filter only together.
        let both = ["site/*".into(), "site".into()];
        assert!(!any_covers(&both, &al, "site/#"));
    }

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
            assert!(matches(pattern, (user, ""), topic), "{pattern} {user} {topic}");
        }
        for (pattern, user, topic) in [
            ("room:{sub}", "*", "room:al"),
            ("room:{sub}", "a*", "room:al"),
            ("room:{sub}", "al", "room:alice"),
            ("{sub}:*", "al", "alice:1"),
            ("*{sub}*", "b", "a-c"),
        ] {
            assert!(!matches(pattern, (user, ""), topic), "{pattern} {user} {topic}");
        }
    }

    #[test]
    fn any_pattern_and_any_user_will_do() {
        let patterns: Vec<Box<str>> = vec!["news".into(), "room:{sub}".into()];
        let who = Principal::anonymous(vec![Name::from("al"), Name::from("bo")]);
        for topic in ["news", "room:al", "room:bo"] {
            assert!(any_matches(&patterns, &who, topic), "{topic}");
        }
        assert!(!any_matches(&patterns, &who, "room:{sub}"));
        let anonymous = Principal::anonymous(Vec::new());
        assert!(any_matches(&patterns, &anonymous, "news"));
        assert!(!any_matches(&patterns, &anonymous, "room:al"));
        assert!(!any_matches(&[], &who, "news"));
    }

    #[test]
    fn a_client_identifier_stands_for_itself_only() {
        let patterns: Vec<Box<str>> = vec!["devices/{client}/*".into(), "{sub}/{client}".into()];
        let may = |client: &str, topic: &str| {
            let client = Some(Name::from(client));
            let who = Principal { client, ..Principal::anonymous(vec!["{client}".into()]) };
            any_matches(&patterns, &who, topic)
        };
        assert!(may("7", "devices/7/temp") && may("7", "{client}/7"));
        assert!(!may("7", "devices/8/temp") && !may("7", "devices/{client}/temp"));
        assert!(!may("7", "7/7"));
        // It would reach topics below another client's.
        for client in ["7/x", "+", "#"] {
            assert!(!may(client, &format!("devices/{client}/temp")), "{client}");
        }
        let without = Principal::anonymous(vec!["al".into()]);
        assert!(!any_matches(&patterns, &without, "devices//x"));
    }

    proptest::proptest! {
        /// A name without stars may as well stand in the pattern.
        #[test]
        fn a_plain_name_is_as_if_written(
            pattern in "(\\{sub\\}|[ab*]){0,5}", user in "[ab]{1,3}", topic in "[ab]{0,8}",
        ) {
            let written = pattern.replace(SUBJECT, &user);
            let want = model::rules::matches(&written, &topic);
            proptest::prop_assert_eq!(matches(&pattern, (&user, ""), &topic), want);
        }
    }
}
