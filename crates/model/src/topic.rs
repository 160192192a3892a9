//! Whose a topic is by its name, and what the rules say of it.

use std::sync::Arc;

use crate::name::{BROADCAST, FILTER, PERSONAL};
use crate::{HistoryRule, JoinRule, PublishRule, Rule, Rules};

/// Whose a topic is. Only its name says so, and only [`TopicKind::of`] reads that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicKind<'a> {
    /// Clients enter it and leave it.
    Ordinary,
    /// The user's own: the user's connections are in it.
    Personal(&'a str),
    /// Everyone's: every connection is in it.
    Broadcast,
    /// None at all: a filter with which connections listen to many topics, and what marks a group that
    /// shares it. Nothing is published to it.
    Filter(&'a str),
}

impl<'a> TopicKind<'a> {
    /// The kind of the topic with this name.
    pub fn of(name: &'a str) -> Self {
        match name.strip_prefix(PERSONAL) {
            Some(user) => TopicKind::Personal(user),
            None if name == BROADCAST => TopicKind::Broadcast,
            None => match name.strip_prefix(FILTER) {
                Some(filter) => TopicKind::Filter(filter),
                None => TopicKind::Ordinary,
            },
        }
    }

    /// The user whose own the topic is.
    pub fn user(self) -> Option<&'a str> {
        match self {
            TopicKind::Personal(user) => Some(user),
            TopicKind::Ordinary | TopicKind::Broadcast | TopicKind::Filter(_) => None,
        }
    }

    /// Whether it is a user's own.
    pub fn is_personal(self) -> bool {
        matches!(self, TopicKind::Personal(_))
    }

    /// Whether it is neither a user's own nor everyone's, nor a filter.
    pub fn is_ordinary(self) -> bool {
        self == TopicKind::Ordinary
    }
}

/// A topic with its rule: [`Rules::topic`] searches for the rule once.
#[derive(Clone, Copy, Debug)]
pub struct Topic<'n, 'r> {
    /// Its name.
    pub name: &'n str,
    /// Whose it is.
    pub kind: TopicKind<'n>,
    /// The first rule whose pattern matches the name.
    pub rule: Option<&'r Rule>,
    rules: &'r Rules,
    /// What becomes of what clients send where nothing says anything of it.
    unsaid: PublishRule,
}

impl Rules {
    /// The topic with its rule. The one place that goes through the rules.
    pub fn topic<'n, 'r>(&'r self, name: &'n str) -> Topic<'n, 'r> {
        let kind = TopicKind::of(name);
        // A filter reaches topics of several rules, or of none.
        let rule = if matches!(kind, TopicKind::Filter(_)) { None } else { self.of(name) };
        Topic { name, kind, rule, rules: self, unsaid: PublishRule::Refuse }
    }

    /// Who may join the topic.
    pub fn join(&self, topic: &str) -> JoinRule {
        self.topic(topic).join()
    }

    /// Whether a filter with wildcards reaches the topic: anybody may enter it, so nobody decides about
    /// each who does.
    pub fn is_open_to_wildcards(&self, topic: &str) -> bool {
        self.join(topic) == JoinRule::Allow
    }

    /// What becomes of what a client sends.
    pub fn publish(&self, topic: &str) -> PublishRule {
        self.topic(topic).publish()
    }

    /// How the topic's messages are retained. What goes to everyone is not.
    pub fn history(&self, topic: &str) -> Option<&Arc<HistoryRule>> {
        self.topic(topic).history()
    }

    /// Whether members of the topic know of each other.
    pub fn presence(&self, topic: &str) -> bool {
        self.topic(topic).presence()
    }
}

impl<'r> Topic<'_, 'r> {
    /// Who may enter it.
    pub fn join(&self) -> JoinRule {
        self.rule.map_or(JoinRule::Allow, |rule| rule.join)
    }

    /// What becomes of what a client sends.
    pub fn publish(&self) -> PublishRule {
        self.rule.and_then(|rule| rule.publish).unwrap_or_else(|| {
            let open = |prefix: &String| self.name.starts_with(&**prefix);
            match self.rules.publish_prefixes.iter().any(open) {
                true => PublishRule::Allow,
                false => self.unsaid,
            }
        })
    }

    /// The same topic, to which clients may publish where nothing says anything of it.
    pub fn open(self) -> Self {
        Topic { unsaid: PublishRule::Allow, ..self }
    }

    /// How its messages are retained. What goes to everyone is not.
    pub fn history(&self) -> Option<&'r Arc<HistoryRule>> {
        let inbox = match self.kind {
            TopicKind::Broadcast | TopicKind::Filter(_) => return None,
            TopicKind::Personal(_) => self.rules.inbox.as_ref(),
            TopicKind::Ordinary => None,
        };
        self.rule.and_then(|rule| rule.history.as_ref()).or(inbox)
    }

    /// Whether its members know of each other. Never in users' own topics and everyone's, also
    /// where a pattern takes them in.
    pub fn presence(&self) -> bool {
        self.kind.is_ordinary() && self.rule.is_some_and(|rule| rule.presence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::personal;

    #[test]
    fn a_name_says_whose_the_topic_is() {
        assert_eq!(TopicKind::of("room:1"), TopicKind::Ordinary);
        assert_eq!(TopicKind::of("*"), TopicKind::Broadcast);
        assert_eq!(TopicKind::of("**"), TopicKind::Ordinary);
        assert_eq!(TopicKind::of("@alice").user(), Some("alice"));
        assert_eq!(TopicKind::of(&personal("@")).user(), Some("@"));
        assert_eq!(TopicKind::of("a@b").user(), None);
        assert!(TopicKind::of("@").is_personal() && !TopicKind::of("@").is_ordinary());
        assert!(!TopicKind::of("").is_personal() && TopicKind::of("").is_ordinary());
        assert_eq!(TopicKind::of("\0a/#"), TopicKind::Filter("a/#"));
    }

    #[test]
    fn a_topic_has_all_that_its_one_rule_says() {
        let history = |messages_max| {
            Arc::new(HistoryRule {
                messages_max,
                bytes_max: 1,
                seconds_max: 1,
                durable: false,
                compact: false,
                acknowledge: None,
            })
        };
        let rules = Rules {
            rules: vec![Rule {
                pattern: "*o*".into(),
                join: JoinRule::Refuse,
                presence: true,
                history: Some(history(1)),
                ..Rule::default()
            }],
            publish_prefixes: vec!["r".into()],
            inbox: Some(history(2)),
        };
        let messages = |name| rules.topic(name).history().map(|rule| rule.messages_max);
        assert_eq!(
            ["room", "@bo", "@al", "*", "x"].map(messages),
            [Some(1), Some(1), Some(2), None, None]
        );
        let presence = |name| rules.topic(name).presence();
        assert_eq!(["room", "@bo", "*", "x"].map(presence), [true, false, false, false]);
        let chat = rules.topic("room");
        assert_eq!((chat.join(), chat.publish()), (JoinRule::Refuse, PublishRule::Allow));
        let other = rules.topic("x");
        assert_eq!((other.join(), other.publish()), (JoinRule::Allow, PublishRule::Refuse));
    }
}
