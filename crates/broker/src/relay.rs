//! The way to the other nodes of a cluster.

use std::sync::Arc;

use model::Envelope;

/// Carries messages to other nodes, and learns which topics have members here.
///
/// All calls come from any thread and return at once.
pub trait Relay: Send + Sync {
    /// Whether another message may be published. Where it may not, no member gets it.
    fn has_capacity(&self) -> bool;

    /// Takes a message to other nodes. The caller holds the lock that orders the topic's messages, so that they leave
    /// in the order in which the members here get them.
    fn publish(&self, message: Arc<Envelope>);

    /// A shard has its first member of a topic. `skip_offset` draws an offset that no message has: what other nodes published
    /// before did not come here, so no client that has all up to the offset before has all up to this one.
    fn enter(&self, topic: &str, skip_offset: &dyn Fn() -> u64);

    /// A shard has no member of a topic any more.
    fn leave(&self, topic: &str);

    /// A connection has a filter that may match any topic.
    fn enter_all(&self, skip_offset: &dyn Fn() -> u64);

    /// It has the filter no longer.
    fn leave_all(&self);

    /// The offset after which all messages of a topic have come here that other nodes published; `u64::MAX` while they
    /// don't come.
    fn complete_after(&self, topic: &str) -> u64;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Instant;

    use model::{Attributes, Data, Position, Publication};

    use super::*;
    use crate::{Broker, Limits, Local, NoHistory, Options, Publish, PublishError, Router};

    #[derive(Default)]
    struct FakeRelay {
        is_full: AtomicBool,
        complete_after: AtomicU64,
        calls: Mutex<Vec<String>>,
    }

    impl FakeRelay {
        fn push(&self, call: String) {
            self.calls.lock().unwrap().push(call);
        }
    }

    impl Relay for FakeRelay {
        fn has_capacity(&self) -> bool {
            !self.is_full.load(Ordering::Relaxed)
        }

        fn publish(&self, message: Arc<Envelope>) {
            self.push(format!("{} {}", message.publication.topic, message.id.offset));
        }

        fn enter(&self, topic: &str, skip_offset: &dyn Fn() -> u64) {
            self.push(format!("enter {topic} at {}", skip_offset()));
        }

        fn leave(&self, topic: &str) {
            self.push(format!("leave {topic}"));
        }

        fn enter_all(&self, skip_offset: &dyn Fn() -> u64) {
            self.push(format!("enter all at {}", skip_offset()));
        }

        fn leave_all(&self) {
            self.push("leave all".into());
        }

        fn complete_after(&self, _: &str) -> u64 {
            self.complete_after.load(Ordering::Relaxed)
        }
    }

    fn broker() -> (Arc<FakeRelay>, Local) {
        let (relay, router) = (Arc::new(FakeRelay::default()), Arc::new(Router::new(Vec::new())));
        let limits =
            Limits { recent_messages_max: 10, recent_bytes_max: 1 << 20, recent_seconds_max: 60 };
        let local = Local::new(router, [7; 20], Instant::now(), limits, Arc::new(NoHistory));
        (relay.clone(), local.with_relay(relay))
    }

    fn publication(topic: &str) -> Publication {
        Publication::new(topic, Data::Text("x".into()))
    }

    #[test]
    fn what_is_published_here_goes_to_other_nodes_and_what_they_published_does_not() {
        let (relay, local) = broker();
        local.publish(publication("a"), None).unwrap();
        local.publish_from_node(publication("a")).unwrap();
        let publish = Publish { publication: publication("b"), options: Options::default() };
        local.submit(publish, None, Box::new(|published| assert!(published.is_ok())));
        let mut own = publication("c");
        own.attributes = Some(Box::new(Attributes { is_own: true, ..Attributes::default() }));
        local.publish(own, None).unwrap();
        let mut notice = publication("d");
        notice.event = Some("presence_diff".into());
        local.publish(notice, None).unwrap();
        assert_eq!(*relay.calls.lock().unwrap(), ["a 1", "b 3"]);
        relay.is_full.store(true, Ordering::Relaxed);
        assert_eq!(local.publish(publication("a"), None), Err(PublishError::Overloaded));
        local.publish_from_node(publication("a")).unwrap();
        assert_eq!(local.skip_offset(), 7, "what was refused has no offset");
    }

    #[test]
    fn topics_and_filters_are_reported_to_other_nodes() {
        let (relay, local) = broker();
        assert!(local.has_nodes());
        local.publish(publication("a"), None).unwrap();
        local.enter_topic("a");
        local.leave_topic("a");
        for filter in [model::name::filter(None, "a/+"), model::name::filter(Some("g"), "b")] {
            local.enter_filter(0, local.hash(&filter), &filter);
            local.leave_filter(0, &filter);
        }
        let calls = relay.calls.lock().unwrap();
        let expected = [
            "a 1",
            "enter a at 2",
            "leave a",
            "enter all at 3",
            "leave all",
            "enter b at 4",
            "leave b",
        ];
        assert_eq!(*calls, expected);
    }

    #[test]
    fn a_scan_is_complete_from_the_message_on_that_the_relay_names() {
        let (relay, local) = broker();
        (0..3).for_each(|_| drop(local.publish_from_node(publication("a"))));
        relay.complete_after.store(2, Ordering::Relaxed);
        let is_complete = |offset| {
            let after = Position { epoch: local.epoch(), offset };
            local.recent(&[(local.hash("a"), "a")], Some(after)).complete
        };
        assert_eq!([1, 2, 3].map(is_complete), [false, true, true]);
        // What was lost came after all that has an offset by now.
        assert_eq!(local.skip_offset(), 4);
        relay.complete_after.store(4, Ordering::Relaxed);
        assert_eq!([3, 4].map(is_complete), [false, true]);
    }
}
