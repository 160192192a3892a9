//! Groups that share messages, with the broker of each node: members come and go, and one of them gets each message.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use broker::{Broker as _, Delivery, Gap, GroupMessage, Inbox, Limits, Local, NoHistory, Relay};
use handover::message::{
    decode_publication, decode_shared, encode_publication, encode_shared_into,
};
use model::{Data, Envelope, GroupChoice, Name, NodeId, Publication};
use random::Random;

use super::{NODES, World};
use crate::{GroupMembers, Interest, Node, Stream, number_of};

pub const GROUPS: usize = 3;

/// Members of one group at one node.
const MEMBERS_MAX: u32 = 3;

/// Takes the place of a message's id in messages for groups.
pub const MARK: [u8; 8] = [0xff; 8];

/// An event of the broker for other nodes.
enum Event {
    Publish(Arc<Envelope>, Vec<GroupChoice>),
    Pass(GroupMessage),
    Enter(Stream),
    Leave(Stream),
}

#[derive(Default)]
struct Events(Mutex<Vec<Event>>);

impl Events {
    fn push(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

impl Relay for Events {
    fn has_capacity(&self) -> bool {
        true
    }
    fn publish(&self, message: Arc<Envelope>, choices: Vec<GroupChoice>) {
        self.push(Event::Publish(message, choices));
    }
    fn pass_to_node(&self, message: GroupMessage) {
        self.push(Event::Pass(message));
    }
    fn connect_number(&self, _: u64) -> u64 {
        0
    }
    fn client_connected(&self, _: &Name, _: u64, _: bool) {}
    fn enter(&self, topic: &str, _: &dyn Fn() -> u64) {
        self.push(Event::Enter(Stream::of(topic)));
    }
    fn leave(&self, topic: &str) {
        self.push(Event::Leave(Stream::of(topic)));
    }
    fn enter_all(&self, _: &dyn Fn() -> u64) {}
    fn leave_all(&self) {}
    fn complete_after(&self, _: &str) -> u64 {
        0
    }
}

/// The ids that members of this node got.
#[derive(Default)]
struct Taken(Mutex<Vec<u64>>);

impl Inbox for Taken {
    fn wants(&self, _: u64) -> bool {
        false
    }
    fn has_capacity(&self) -> bool {
        true
    }
    fn deliver(&self, delivery: Delivery) {
        let Data::Text(text) = &delivery.message.publication.data else { panic!("it is a text") };
        let id: u64 = text.parse().unwrap();
        self.0.lock().unwrap().extend(delivery.groups.iter().map(|_| id));
    }
    fn notify_gap(&self, _: Arc<Gap>) {}
}

/// The groups of a process.
pub struct Groups {
    id: NodeId,
    local: Local,
    events: Arc<Events>,
    taken: Arc<Taken>,
    members: [u32; GROUPS],
}

fn topic(group: usize) -> String {
    format!("shared:{group}")
}

fn name(group: usize) -> Name {
    model::name::filter(Some("g"), &topic(group))
}

impl Groups {
    pub fn new(id: NodeId) -> Self {
        Groups::with(id, Arc::default())
    }

    fn with(id: NodeId, taken: Arc<Taken>) -> Self {
        let events = Arc::<Events>::default();
        let router = Arc::new(broker::Router::new(vec![taken.clone()]));
        let limits = Limits { recent_messages_max: 1, recent_bytes_max: 1, recent_seconds_max: 1 };
        let local = Local::new(router, [7; 20], Instant::now(), limits, Arc::new(NoHistory));
        let local = local.with_relay(id, events.clone());
        Groups { id, local, events, taken, members: [0; GROUPS] }
    }

    /// Returns the groups in another process, with the same connections.
    pub fn passed(self) -> Self {
        let mut new = Groups::with(self.id, self.taken);
        for (group, members) in self.members.into_iter().enumerate() {
            (0..members).for_each(|_| new.enter(group));
        }
        // The process before has reported this interest.
        new.events.0.lock().unwrap().clear();
        new
    }

    fn enter(&mut self, group: usize) {
        self.members[group] += 1;
        self.local.enter_filter(0, self.local.hash(&name(group)), &name(group));
    }

    /// Makes a member come or go.
    pub fn act(&mut self, random: &mut Random) {
        let group = random.below(GROUPS);
        if random.one_in(2_u32) && self.members[group] < MEMBERS_MAX {
            self.enter(group);
        } else if self.members[group] > 0 {
            self.members[group] -= 1;
            self.local.leave_filter(0, &name(group));
        }
    }

    pub fn has_members(&self, group: usize) -> bool {
        self.members[group] > 0
    }

    pub fn publish(&self, id: u64, group: usize) {
        let data = Data::Text(id.to_string().into());
        self.local.publish(Publication::new(topic(group), data), None).unwrap();
    }

    pub fn deliver(&self, payload: &[u8]) {
        let payload = &payload[MARK.len()..];
        let (publication, choices) = decode_shared(payload).unwrap();
        self.local.publish_from_node(publication, &choices, number_of(payload)).unwrap();
    }

    pub fn deliver_to_group(&self, message: &crate::GroupMessage) {
        let publication = decode_publication(&message.publication).unwrap();
        let passed = message.passed.iter().map(|node| NodeId(*node)).collect();
        self.local.publish_to_group(publication, &message.group, passed).unwrap();
    }

    pub fn on_changed(&self, node: NodeId, changes: &[GroupMembers]) {
        for (group, members) in changes {
            self.local.set_group(node, group, *members as usize);
        }
    }

    pub fn set_alone(&self, is_alone: bool) {
        self.local.set_alone(is_alone);
    }

    /// Passes the broker's events for others to the node; with `has_changes` also changes of groups.
    pub fn flush(&self, node: &mut Node, interest: &mut Interest, has_changes: bool, now_us: u64) {
        for event in std::mem::take(&mut *self.events.0.lock().unwrap()) {
            match event {
                Event::Publish(message, choices) => {
                    let stream = Stream::of(&message.publication.topic);
                    node.publish(stream, now_us, |out| {
                        out.extend(MARK);
                        encode_shared_into(&message.publication, &choices, out);
                    });
                }
                Event::Pass(GroupMessage { message, group, to, passed }) => {
                    let (to, group) = (to.0, group.to_string());
                    let passed = passed.iter().map(|node| node.0).collect();
                    let publication = encode_publication(&message.publication);
                    let passed = crate::GroupMessage { to, group, passed, publication };
                    node.pass_to_group(passed, now_us);
                }
                Event::Enter(stream) => {
                    if interest.enter(stream) {
                        node.on_interest_begun(stream, now_us, now_us);
                    }
                }
                Event::Leave(stream) => interest.leave(stream, now_us),
            }
        }
        let changes = if has_changes { self.local.take_group_changes() } else { return };
        if changes.is_whole || !changes.groups.is_empty() {
            let groups = changes.groups.into_iter();
            let groups = groups.map(|(members, name)| (name.into(), members as u32)).collect();
            node.publish_groups(changes.is_whole, groups, now_us);
        }
    }
}

/// Messages for groups, by their ids.
#[derive(Default)]
pub struct Shares {
    next_id: u64,
    /// The groups of messages that were published in quiet times.
    quiet: BTreeMap<u64, usize>,
}

impl World {
    /// Makes a node publish a message for a group.
    pub fn share(&mut self, is_quiet: bool) {
        let (node, group) = (self.random.below(NODES), self.random.below(GROUPS));
        if self.processes[node].is_none() || self.stands_until(node).is_some() {
            return;
        }
        self.shares.next_id += 1;
        let id = self.shares.next_id;
        if is_quiet {
            self.shares.quiet.insert(id, group);
        }
        self.input(node, |process, now_us| {
            process.groups.publish(id, group);
            process.groups.flush(&mut process.node, &mut process.interest, false, now_us);
        });
    }

    /// Makes a member of a group come or go.
    pub fn act_in_group(&mut self, node: usize) {
        let mut random = Random::new(self.random.below(u64::MAX));
        self.input(node, |process, now_us| {
            process.groups.act(&mut random);
            process.groups.flush(&mut process.node, &mut process.interest, false, now_us);
        });
    }

    /// Verifies that one member of each group got each message that was published in quiet times, of all nodes.
    pub fn verify_groups(&self) {
        let seed = self.seed;
        let mut taken = BTreeMap::<u64, usize>::new();
        for process in self.processes.iter().flatten() {
            let others = self.nats.ids.iter().filter(|id| **id != process.node.id());
            let has_all = others.copied().all(|id| process.node.has_groups_of(id));
            assert!(has_all, "seed {seed}: {} has not all groups", process.node.id());
            for id in process.groups.taken.0.lock().unwrap().iter() {
                *taken.entry(*id).or_default() += 1;
            }
        }
        let has_members = |group: usize| {
            self.processes.iter().flatten().any(|process| process.groups.has_members(group))
        };
        assert!(self.shares.quiet.len() > 20, "seed {seed}");
        for (id, group) in &self.shares.quiet {
            let (got, expected) = (taken.get(id).copied(), has_members(*group).then_some(1));
            assert_eq!(got, expected, "seed {seed}: message {id} of group {group}");
        }
    }
}
