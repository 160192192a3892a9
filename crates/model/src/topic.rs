//! The kind of a topic by its name, and its rule.

use std::sync::Arc;

use crate::name::{BROADCAST, FILTER, PERSONAL};
use crate::{HistoryRule, JoinRule, PublishRule, Rule, Rules};

/// The kind of a topic. Only its name decides it, and only [`TopicKind::of`] reads that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicKind<'a> {
    /// Clients join it and leave it.
    Ordinary,
    /// A user's own: the user's connections are in it.
    Personal(&'a str),
    /// Broadcast: every connection is in it.
    Broadcast,
    /// No topic: a filter by which connections subscribe to many topics, with the mark of a group that shares it.
    /// No message is published to it.
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

    /// Returns the user of a user's own topic.
    pub fn user(self) -> Option<&'a str> {
        match self {
            TopicKind::Personal(user) => Some(user),
            TopicKind::Ordinary | TopicKind::Broadcast | TopicKind::Filter(_) => None,
        }
    }

    /// True for a user's own topic.
    pub fn is_personal(self) -> bool {
        matches!(self, TopicKind::Personal(_))
    }

    /// True if it is neither a user's own, nor broadcast, nor a filter.
    pub fn is_ordinary(self) -> bool {
        self == TopicKind::Ordinary
    }
}

/// A topic with its rule: [`Rules::topic`] searches for the rule once.
#[derive(Clone, Copy, Debug)]
pub struct Topic<'n, 'r> {
    /// Its name.
    pub name: &'n str,
    /// Its kind.
    pub kind: TopicKind<'n>,
    /// The first rule whose pattern matches the name.
    pub rule: Option<&'r Rule>,
    rules: &'r Rules,
    /// The publish rule if neither a rule nor a prefix decides.
    unsaid: PublishRule,
}

impl Rules {
    /// Returns the topic with its rule. No other function searches the rules.
    pub fn topic<'n, 'r>(&'r self, name: &'n str) -> Topic<'n, 'r> {
        let kind = TopicKind::of(name);
        // A filter reaches topics of several rules, or of none.
        let rule = if matches!(kind, TopicKind::Filter(_)) { None } else { self.of(name) };
        Topic { name, kind, rule, rules: self, unsaid: PublishRule::Refuse }
    }

    /// Returns the topic's join rule.
    pub fn join(&self, topic: &str) -> JoinRule {
        self.topic(topic).join()
    }

    /// True if a filter with wildcards reaches the topic: any client may join it, without a decision for each.
    pub fn is_open_to_wildcards(&self, topic: &str) -> bool {
        self.join(topic) == JoinRule::Allow
    }

    /// Returns the topic's publish rule.
    pub fn publish(&self, topic: &str) -> PublishRule {
        self.topic(topic).publish()
    }

    /// Returns how the topic's messages are retained. Broadcast messages are not.
    pub fn history(&self, topic: &str) -> Option<&Arc<HistoryRule>> {
        self.topic(topic).history()
    }

    /// True if members of the topic see each other.
    pub fn presence(&self, topic: &str) -> bool {
        self.topic(topic).presence()
    }
}

impl<'r> Topic<'_, 'r> {
    /// Returns the join rule.
    pub fn join(&self) -> JoinRule {
        self.rule.map_or(JoinRule::Allow, |rule| rule.join)
    }

    /// Returns the publish rule.
    pub fn publish(&self) -> PublishRule {
        self.rule.and_then(|rule| rule.publish).unwrap_or_else(|| {
            let open = |prefix: &String| self.name.starts_with(&**prefix);
            match self.rules.publish_prefixes.iter().any(open) {
                true => PublishRule::Allow,
                false => self.unsaid,
            }
        })
    }

    /// Returns the same topic, to which clients may publish if neither a rule nor a prefix decides.
    pub fn open(self) -> Self {
        Topic { unsaid: PublishRule::Allow, ..self }
    }

    /// Returns how its messages are retained. Broadcast messages are not.
    pub fn history(&self) -> Option<&'r Arc<HistoryRule>> {
        let inbox = match self.kind {
            TopicKind::Broadcast | TopicKind::Filter(_) => return None,
            TopicKind::Personal(_) => self.rules.inbox.as_ref(),
            TopicKind::Ordinary => None,
        };
        self.rule.and_then(|rule| rule.history.as_ref()).or(inbox)
    }

    /// True if its members see each other. Never in users' own topics and broadcast, even if a pattern matches
    /// them.
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
