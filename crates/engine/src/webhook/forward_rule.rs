//! The rules that say which client messages go to a back end, and the request for such a message.

use std::fmt;
use std::sync::Arc;

use model::{ConnectionId, Name, Publication, filter};

use crate::core::reply::Reply;
use crate::webhook::{SharedHook, WebhookResponse};

/// Which messages go to a back end: rules in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwards(Arc<[ForwardRule]>);

/// The back end of messages whose topics match a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardRule {
    /// A topic filter of MQTT, without `$share`. It is the rule's name as well.
    pub filter: Arc<str>,
    /// True if the topic's members get the messages, too.
    pub deliver: bool,
    /// Filters of topics that clients may name for replies, even if they may not publish there.
    pub answer_filters: Arc<[Box<str>]>,
}

impl Forwards {
    /// Creates the rules. The first rule that matches a topic wins.
    pub fn new(rules: Vec<ForwardRule>) -> Self {
        Forwards(rules.into())
    }

    /// Returns the rule for a topic, if there is one.
    pub fn of(&self, topic: &str) -> Option<&ForwardRule> {
        self.0.iter().find(|rule| filter::matches(&rule.filter, topic))
    }
}

/// A message for a back end.
pub struct ForwardRequest {
    /// The filter of its rule.
    pub filter: Arc<str>,
    /// The message. It names a response topic only if the client may name it.
    pub publication: Publication,
    /// The users of its connection; may be none.
    pub users: Vec<Name>,
    /// The connection that sent it, if it is still open.
    pub connection: Option<ConnectionId>,
    /// The name of the transport.
    pub transport: &'static str,
    /// The client identifier of an MQTT client.
    pub client: Option<Name>,
    /// When it was received, in milliseconds since 1970.
    pub at_ms: u64,
    /// What waits until the back end has taken the message.
    pub hook: SharedHook,
    /// Takes the response of the back end. `None` if the client does not wait for it.
    pub reply: Option<Reply<WebhookResponse>>,
}

impl fmt::Debug for ForwardRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardRequest")
            .field("filter", &self.filter)
            .field("topic", &self.publication.topic)
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_wins() {
        let rule = |filter: &str| ForwardRule {
            filter: filter.into(),
            deliver: true,
            answer_filters: [].into(),
        };
        let rules = Forwards::new(vec![rule("a/b"), rule("a/#"), rule("+")]);
        let of = |topic| rules.of(topic).map(|rule| &*rule.filter);
        assert_eq!((of("a/b"), of("a/c"), of("a")), (Some("a/b"), Some("a/#"), Some("a/#")));
        assert_eq!((of("b"), of("b/c"), of("@b"), of("*")), (Some("+"), None, None, None));
        assert_eq!(Forwards::default().of("a"), None);
    }
}
