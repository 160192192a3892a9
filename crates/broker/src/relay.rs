//! The interface to the other nodes of a cluster.

use std::sync::Arc;

use model::{Envelope, GroupChoice, Name};

use crate::GroupMessage;

/// Passes messages to other nodes, and gets the topics that have members here.
///
/// All calls come from any thread and return at once.
pub trait Relay: Send + Sync {
    /// Returns true if another message may be published. Otherwise no member gets it.
    fn has_capacity(&self) -> bool;

    /// Passes a message to other nodes. The caller holds the lock that orders the topic's messages, so that they
    /// leave in the order in which the members here get them. `choices` are the nodes that pass it to members of
    /// groups.
    fn publish(&self, message: Arc<Envelope>, choices: Vec<GroupChoice>);

    /// Passes a message to another node, for a member of a group there alone.
    fn pass_to_node(&self, message: GroupMessage);

    /// Returns the number of an MQTT client's connect at this time of day, in microseconds since 1970. It is larger
    /// than those of all connects in the cluster that this node knows.
    fn connect_number(&self, unix_us: u64) -> u64;

    /// Notifies other nodes of the connect of an MQTT client whose session has this key: its earlier connections
    /// there end, and if it `is_clean` its sessions, too.
    fn client_connected(&self, key: &Name, number: u64, is_clean: bool);

    /// Adds a topic that has its first member on a shard. `skip_offset` draws an offset that no message gets. Earlier
    /// messages of other nodes did not come here, so a client whose position is before that offset may lack some.
    fn enter(&self, topic: &str, skip_offset: &dyn Fn() -> u64);

    /// Removes a topic that has lost its last member on a shard.
    fn leave(&self, topic: &str);

    /// Adds a filter of a connection that may match any topic.
    fn enter_all(&self, skip_offset: &dyn Fn() -> u64);

    /// Removes such a filter.
    fn leave_all(&self);

    /// Returns the offset after which all of a topic's messages from other nodes have come here; `u64::MAX` while
    /// they do not come.
    fn complete_after(&self, topic: &str) -> u64;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Instant;

    use model::{Attributes, Data, Epoch, HistoryRule, Name, NodeId, Position, Publication};

    use super::*;
    use crate::{
        Activity, Append, Broker, Delivery, Done, Gap, GroupChanges, HistoryLog, Inbox, Latest,
        Limits, Local, NoHistory, Options, Publish, PublishError, Published, Router,
    };

    const NODE: NodeId = NodeId(1);
    const OTHER: NodeId = NodeId(2);

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

        fn publish(&self, message: Arc<Envelope>, choices: Vec<GroupChoice>) {
            let nodes = choices.iter().map(|choice| format!(" for {}", choice.node.0));
            let nodes: String = nodes.collect();
            self.push(format!("{} {}{nodes}", message.publication.topic, message.id.offset));
        }

        fn pass_to_node(&self, message: GroupMessage) {
            let GroupMessage { message, to, passed, .. } = message;
            let passed: Vec<u32> = passed.iter().map(|node| node.0).collect();
            let topic = &message.publication.topic;
            self.push(format!("{topic} to {} past {passed:?}", to.0));
        }

        fn connect_number(&self, unix_us: u64) -> u64 {
            unix_us + 1
        }

        fn client_connected(&self, key: &Name, number: u64, is_clean: bool) {
            self.push(format!("{key} by {number}, {is_clean}"));
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
        (relay.clone(), local.with_relay(NODE, relay))
    }

    fn publication(topic: &str) -> Publication {
        Publication::new(topic, Data::Text("x".into()))
    }

    #[test]
    fn what_is_published_here_goes_to_other_nodes_and_what_they_published_does_not() {
        let (relay, local) = broker();
        local.publish(publication("a"), None).unwrap();
        local.publish_from_node(publication("a"), &[], 0).unwrap();
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
        local.publish_from_node(publication("a"), &[], 0).unwrap();
        assert_eq!(local.skip_offset(), 7, "what was refused has no offset");
    }

    /// A log that all nodes share, with one topic in it.
    #[derive(Default)]
    struct SharedLog(Mutex<Vec<String>>);

    impl HistoryLog for SharedLog {
        fn rule(&self, topic: &str) -> Option<Arc<HistoryRule>> {
            let rule = HistoryRule {
                messages_max: 1,
                bytes_max: 1,
                seconds_max: 1,
                durable: true,
                compact: false,
                acknowledge: None,
            };
            (topic == "log").then(|| Arc::new(rule))
        }

        fn is_shared(&self) -> bool {
            true
        }

        fn append(&self, append: Append, done: Done) {
            self.0.lock().unwrap().push(append.publication.topic.to_string());
            let id = Position { epoch: Epoch(1), offset: 1 };
            done(Ok(Published { id, repeated: false, queued: false }));
        }

        fn append_now(&self, _: Append) -> Result<Position, PublishError> {
            panic!("nothing is appended twice");
        }

        fn latest(&self, _: usize) -> Vec<Arc<Envelope>> {
            Vec::new()
        }

        fn latest_of(&self, _: u64, _: &str, _: usize) -> Latest {
            Latest { messages: Vec::new(), complete: true }
        }

        fn count_newest(&self, _: u64, _: usize, _: &mut Activity) -> u64 {
            0
        }
    }

    #[test]
    fn what_is_in_a_log_that_all_nodes_share_goes_by_the_log_and_what_passes_it_by_the_relay() {
        let (relay, log) = (Arc::new(FakeRelay::default()), Arc::new(SharedLog::default()));
        let limits =
            Limits { recent_messages_max: 10, recent_bytes_max: 1 << 20, recent_seconds_max: 60 };
        let router = Arc::new(Router::new(Vec::new()));
        let local = Local::new(router, [7; 20], Instant::now(), limits, log.clone());
        let local = local.with_relay(NODE, relay.clone());
        for no_history in [false, true] {
            let options = Options { no_history, ..Options::default() };
            let publish = Publish { publication: publication("log"), options };
            local.submit(publish, None, Box::new(|published| assert!(published.is_ok())));
        }
        // Another node sends only messages that bypass the log.
        local.publish_from_node(publication("log"), &[], 1).unwrap();
        assert_eq!(*log.0.lock().unwrap(), ["log"]);
        assert_eq!(*relay.calls.lock().unwrap(), ["log 1"]);
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
        (0..3).for_each(|_| drop(local.publish_from_node(publication("a"), &[], 0)));
        relay.complete_after.store(2, Ordering::Relaxed);
        let is_complete = |offset| {
            let after = Position { epoch: local.epoch(), offset };
            local.recent(&[(local.hash("a"), "a")], Some(after)).complete
        };
        assert_eq!([1, 2, 3].map(is_complete), [false, true, true]);
        // The loss came after all messages that have an offset by now.
        assert_eq!(local.skip_offset(), 4);
        relay.complete_after.store(4, Ordering::Relaxed);
        assert_eq!([3, 4].map(is_complete), [false, true]);
    }

    /// A shard that records messages to members of groups.
    #[derive(Default)]
    struct Members(Mutex<Vec<String>>);

    impl Inbox for Members {
        fn wants(&self, _: u64) -> bool {
            false
        }
        fn has_capacity(&self) -> bool {
            true
        }
        fn deliver(&self, delivery: Delivery) {
            let topic = &delivery.message.publication.topic;
            let passed = delivery.passed.map_or(0, |passed| passed.nodes.len());
            let groups = delivery.groups.len();
            self.0.lock().unwrap().push(format!("{topic} to {groups} past {passed}"));
        }
        fn notify_gap(&self, _: Arc<Gap>) {}
    }

    fn with_members() -> (Arc<Members>, Arc<FakeRelay>, Local) {
        let (members, relay) = (Arc::<Members>::default(), Arc::new(FakeRelay::default()));
        let router = Arc::new(Router::new(vec![members.clone()]));
        let limits =
            Limits { recent_messages_max: 10, recent_bytes_max: 1 << 20, recent_seconds_max: 60 };
        let local = Local::new(router, [7; 20], Instant::now(), limits, Arc::new(NoHistory));
        (members, relay.clone(), local.with_relay(NODE, relay))
    }

    fn enter(local: &Local, group: &Name) {
        local.enter_filter(0, local.hash(group), group);
    }

    #[test]
    fn one_node_gives_a_message_to_a_member_of_a_group_and_names_it_to_the_others() {
        let (members, relay, local) = with_members();
        let group = model::name::filter(Some("g"), "a");
        enter(&local, &group);
        local.set_group(OTHER, &group, 1);
        local.set_group(OTHER, "a", 1);
        (0..4).for_each(|_| drop(local.publish(publication("a"), None)));
        relay.calls.lock().unwrap().retain(|call| !call.starts_with("enter"));
        let taken = || std::mem::take(&mut *members.0.lock().unwrap());
        assert_eq!(
            *relay.calls.lock().unwrap(),
            ["a 2 for 1", "a 3 for 2", "a 4 for 1", "a 5 for 2"]
        );
        assert_eq!(taken().len(), 2);
        // Messages of another node: for this one, for another one, and of a node that did not know the group.
        let choice = |node| GroupChoice { node, group: group.clone() };
        local.publish_from_node(publication("a"), &[choice(NODE)], 0).unwrap();
        assert_eq!(taken(), ["a to 1 past 0"]);
        local.publish_from_node(publication("a"), &[choice(NodeId(3))], 0).unwrap();
        assert!(taken().is_empty());
        (0..4).for_each(|number| drop(local.publish_from_node(publication("a"), &[], number)));
        assert_eq!(taken().len(), 2);
        // While other nodes can't be reached, its own members get all.
        local.set_alone(true);
        (0..4).for_each(|_| drop(local.publish(publication("a"), None)));
        assert_eq!(taken().len(), 4);
        // The server's messages about itself stay here.
        local.set_alone(false);
        let mut own = publication("a");
        own.attributes = Some(Box::new(Attributes { is_own: true, ..Attributes::default() }));
        (0..4).for_each(|_| drop(local.publish(own.clone(), None)));
        assert_eq!(taken().len(), 4);
    }

    #[test]
    fn a_message_for_a_member_that_has_left_passes_to_another_node_once() {
        let (members, relay, local) = with_members();
        let group = model::name::filter(Some("g"), "a");
        local.set_group(OTHER, &group, 1);
        let choice = GroupChoice { node: NODE, group: group.clone() };
        local.publish_from_node(publication("a"), std::slice::from_ref(&choice), 0).unwrap();
        assert!(!local.publish_to_group(publication("b"), &group, vec![OTHER]).unwrap());
        assert!(local.publish_to_group(publication("c"), &group, vec![NodeId(3)]).unwrap());
        assert_eq!(*relay.calls.lock().unwrap(), ["a to 2 past [1]", "c to 2 past [3, 1]"]);
        enter(&local, &group);
        assert!(local.publish_to_group(publication("d"), &group, vec![OTHER]).unwrap());
        assert_eq!(*members.0.lock().unwrap(), ["d to 1 past 1"]);
        // A node that is gone has no members.
        local.set_group(OTHER, &group, 0);
        local.leave_filter(0, &group);
        local.publish_from_node(publication("a"), &[choice], 0).unwrap();
        assert!(!local.publish_to_group(publication("b"), &group, Vec::new()).unwrap());
    }

    #[test]
    fn a_message_of_a_log_that_all_nodes_read_goes_to_one_member_of_a_group() {
        let router = Arc::new(Router::new(vec![Arc::<Members>::default()]));
        let limits =
            Limits { recent_messages_max: 10, recent_bytes_max: 1 << 20, recent_seconds_max: 60 };
        let log = Arc::new(NoHistory);
        let local = Local::new(router.clone(), [7; 20], Instant::now(), limits, log);
        let local = local.with_relay(NODE, Arc::new(FakeRelay::default()));
        let group = model::name::filter(Some("g"), "a");
        enter(&local, &group);
        let given = || {
            let groups = |number| router.routes_from_log("a", number).take_groups().len();
            (0..6).map(groups).collect::<Vec<_>>()
        };
        assert_eq!(given(), [1; 6]);
        local.set_group(OTHER, &group, 2);
        assert_eq!(given(), [1, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn changes_of_groups_are_taken_once() {
        let (_, _, local) = with_members();
        let group = |name| model::name::filter(Some(name), "a");
        enter(&local, &group("before"));
        let is_whole = true;
        let expected = GroupChanges { is_whole, groups: vec![(1, group("before"))] };
        assert_eq!(local.take_group_changes(), expected);
        enter(&local, &group("x"));
        enter(&local, &group("x"));
        enter(&local, &model::name::filter(None, "a/+"));
        local.leave_filter(0, &group("before"));
        // Changes at other nodes are not this node's changes.
        local.set_group(OTHER, &group("y"), 3);
        let groups = vec![(0, group("before")), (2, group("x"))];
        assert_eq!(local.take_group_changes(), GroupChanges { is_whole: false, groups });
        assert_eq!(local.take_group_changes(), GroupChanges::default());
    }
}
