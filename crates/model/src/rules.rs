//! What clients may do with a topic, by pattern.

use std::sync::Arc;

use crate::Name;

/// The rule for clients that join a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JoinRule {
    /// Any client may.
    #[default]
    Allow,
    /// No client may.
    Refuse,
    /// The application decides.
    Webhook,
}

/// The rule for what clients send to a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublishRule {
    /// The server rejects it.
    #[default]
    Refuse,
    /// It is published to all members.
    Allow,
    /// It is published to all members but the sender.
    Others,
    /// The application gets it, and its response is the reply.
    Webhook,
    /// The application decides first; what it allows is published to all members.
    Ask,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The topics of the rule: `*` matches any run of characters, all else itself.
    pub pattern: String,
    /// The join rule, on any transport.
    pub join: JoinRule,
    /// The publish rule; `None` leaves it to [`Rules::publish_prefixes`].
    pub publish: Option<PublishRule>,
    /// True if members see each other.
    pub presence: bool,
    /// True if the application gets events of joins and leaves.
    pub events: bool,
    /// The application's URL for this rule, if it is not the URL for all rules.
    pub webhook_url: Option<Arc<str>>,
    /// A member that doesn't keep up gets only the newest message of each key, and is not closed for it.
    pub conflate: bool,
    /// How the topic's messages are retained; `None` retains none.
    pub history: Option<Arc<HistoryRule>>,
}

/// How a topic's messages are retained, for members that come back. The first limit that is reached
/// counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRule {
    /// Messages; at least 1.
    pub messages_max: u64,
    /// The bytes of their payloads.
    pub bytes_max: u64,
    /// Their age in seconds; [`u64::MAX`] is without end.
    pub seconds_max: u64,
    /// True if a publisher gets its reply only when the message is on disk.
    pub durable: bool,
    /// Only the last message of each key is retained, and a client that joins gets those first.
    pub compact: bool,
    /// Users acknowledge messages; the server delivers again what they have not acknowledged.
    pub acknowledge: Option<AcknowledgeRule>,
}

/// How the server delivers messages that users acknowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcknowledgeRule {
    /// Messages that a connection may have without having acknowledged them; at least 1.
    pub window_messages_max: u32,
    /// A client that acknowledges on the connection itself gets a message again there after this many seconds without
    /// an acknowledgement; 0 is never. A new connection gets it in any case.
    pub redelivery_seconds: u32,
    /// How often the server delivers a message before it gives it up: the message then goes to the
    /// dead-letter topic, or nowhere. 0 is without end.
    pub delivery_count_max: u32,
    /// The topic for messages that no client acknowledges.
    pub dead_letter: Option<Name>,
}

impl AcknowledgeRule {
    /// Returns the time in seconds within which deliveries to a user count as one: those of several connections, or of
    /// one that comes and goes. Without [`AcknowledgeRule::redelivery_seconds`] it is 30.
    pub fn deliveries_apart_seconds(&self) -> u32 {
        match self.redelivery_seconds {
            0 => 30,
            seconds => seconds,
        }
    }
}

/// All rules. The first one whose pattern matches a topic is the topic's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The rules, in order.
    pub rules: Vec<Rule>,
    /// Clients may publish to topics that begin with one of these where no rule says otherwise; the
    /// empty text is any topic.
    pub publish_prefixes: Vec<String>,
    /// How messages of users' own topics are retained where no rule says otherwise: they wait for
    /// users until they acknowledge them.
    pub inbox: Option<Arc<HistoryRule>>,
}

impl Rules {
    /// The topic's rule.
    pub fn of(&self, topic: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| matches(&rule.pattern, topic))
    }

    /// True when members of some topic get only the newest messages if they don't keep up.
    pub fn conflates_any(&self) -> bool {
        self.rules.iter().any(|rule| rule.conflate)
    }

    /// True when some topic has history.
    pub fn retains_any(&self) -> bool {
        self.inbox.is_some() || self.rules.iter().any(|rule| rule.history.is_some())
    }
}

/// Returns true if a pattern matches all of a text: `*` is any run of characters, all else stands for itself.
///
/// ```
/// use model::rules::matches;
///
/// assert!(matches("room:*", "room:lobby") && matches("*", ""));
/// assert!(matches("user:*:inbox", "user:7:inbox"));
/// assert!(!matches("room:*", "rooms"));
/// ```
pub fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let inner = text.strip_prefix(first).and_then(|text| text.strip_suffix(last));
    // The first match of each part leaves the most text for the parts after it.
    let mut left = inner;
    for part in middle.split('*') {
        left = left.and_then(|text| Some(text.split_once(part)?.1));
    }
    left.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_run_and_all_else_itself() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "a"),
            ("a", "a"),
            ("room:*", "room:"),
            ("room:*", "room:1:*"),
            ("*:x", "a:b:x"),
            ("a*b*c", "a-b-b-c"),
            ("a*b*c", "abc"),
            ("**", "é"),
            ("*é*", "cafés"),
            ("a*?", "a.?"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("a", ""),
            ("a", "ab"),
            ("room:*", "room"),
            ("room:*", "a room:1"),
            ("ab*ba", "aba"),
            ("a*b*b", "ab"),
            ("*a*b*", "ba"),
            ("a?", "ab"),
            ("A*", "a"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    /// By definition, with every split tried.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|at| slow(rest, &text[at..])),
            Some((first, rest)) => text.first() == Some(first) && slow(rest, &text[1..]),
        }
    }

    proptest::proptest! {
        #[test]
        fn patterns_match_by_their_definition(pattern in "[ab*]{0,8}", text in "[ab*]{0,8}") {
            let want = slow(pattern.as_bytes(), text.as_bytes());
            proptest::prop_assert_eq!(matches(&pattern, &text), want);
        }

        /// The checks of the configuration rely on this: a pattern that matches another one as a text matches all of
        /// its topics.
        #[test]
        fn a_pattern_that_matches_another_covers_it(
            a in "[ab*]{1,5}", b in "[ab*]{1,5}", text in "[abc]{0,6}",
        ) {
            if matches(&a, &b) && matches(&b, &text) {
                proptest::prop_assert!(matches(&a, &text));
            }
        }
    }

    #[test]
    fn the_first_rule_that_matches_is_the_topics() {
        let rule = |pattern: &str, publish, presence| Rule {
            pattern: pattern.into(),
            publish,
            presence,
            ..Rule::default()
        };
        let rules = Rules {
            rules: vec![
                rule("room:quiet", Some(PublishRule::Refuse), false),
                rule("room:*", Some(PublishRule::Others), true),
                rule("open:*", None, true),
            ],
            publish_prefixes: vec!["open:".into(), "room:".into()],
            inbox: None,
        };
        assert_eq!(rules.publish("room:quiet"), PublishRule::Refuse);
        assert_eq!(rules.publish("room:a"), PublishRule::Others);
        assert_eq!(rules.publish("open:a"), PublishRule::Allow);
        assert_eq!(rules.publish("other"), PublishRule::Refuse);
        assert!(rules.presence("room:a") && rules.presence("open:x"));
        assert!(!rules.presence("room:quiet") && !rules.presence("other"));
        assert_eq!(rules.join("other"), JoinRule::Allow);
        let all = Rules { rules: vec![rule("*", None, true)], ..Rules::default() };
        assert!(all.presence("a") && !all.presence("@alice") && !all.presence("*"));
    }
}
