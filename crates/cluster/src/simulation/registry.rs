//! The presence of the simulation's processes, and the views of a member of each topic at each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use model::NodeId;
use presence::{Limits, List, Local, Presence as _, PresenceReply, Ref, Snapshot, Updates};
use random::Random;
use serde_json::Value;

pub const TOPICS: usize = 5;
const USERS: u32 = 12;
/// A topic with more than nine users is not listed.
const LIMITS: Limits =
    Limits { users_max: 9, list_bytes_max: 1 << 20, interval_us: 200_000, members_per_ms: 0 };

/// A connection's entry: topic, user and ref.
type Entry = (usize, String, Ref);
/// The refs of each user, and the payloads of their connections.
type Users = BTreeMap<String, BTreeMap<String, Value>>;

/// The registry of a process, its connections, and a member of each topic.
pub struct Registry {
    pub local: Local,
    /// Changes of other nodes' entries that wait.
    pub updates: Updates,
    /// The nodes whose entries are being removed.
    expiring: BTreeSet<NodeId>,
    /// No update is applied until then.
    busy_until_us: u64,
    node: NodeId,
    entries: Vec<(Entry, u64)>,
    /// The view of a Phoenix client in each topic; empty if the topic is not listed.
    views: Vec<Users>,
}

fn topic(number: usize) -> String {
    format!("room:{number}")
}

impl Registry {
    pub fn new(node: NodeId, bytes_max: usize, pending_bytes_max: usize) -> Self {
        let local = Local::new(LIMITS, node).with_nodes(bytes_max);
        let local = local.with_pending_bytes_max(pending_bytes_max);
        Registry {
            local,
            updates: Updates::default(),
            expiring: BTreeSet::new(),
            busy_until_us: 0,
            node,
            entries: Vec::new(),
            views: vec![Users::new(); TOPICS],
        }
    }

    /// Makes a connection enter a topic, leave it, or change its payload. Below `entries.start` entries one enters,
    /// and from `entries.end` on one leaves.
    pub fn act(&mut self, random: &mut Random, entries: &Range<usize>, now_us: u64) {
        let shown = now_us % 1_000;
        let meta = format!(r#"{{"at":{shown}}}"#);
        let at = random.below(self.entries.len().max(1));
        let kind = match self.entries.len() {
            count if count < entries.start => 0,
            count if count >= entries.end => 2,
            _ => random.below(5_u32),
        };
        match kind {
            0 | 1 => {
                // Only the first topics get more users than are listed.
                let (index, user) = (random.below(TOPICS), random.below(USERS));
                let user = format!("u{}", user % if index < 2 { USERS } else { 4 });
                let of = self.local.enter(&topic(index), &user, &meta, now_us);
                self.entries.push(((index, user, of), shown));
            }
            2 | 3 => {
                let ((index, user, of), _) = self.entries.swap_remove(at);
                self.local.leave(&topic(index), &user, of, now_us);
            }
            _ => {
                let ((index, user, of), at) = &mut self.entries[at];
                *of = self.local.update(&topic(*index), user, *of, &meta, now_us).unwrap();
                *at = shown;
            }
        }
    }

    /// Notifies all members, as a process does before another one takes over.
    pub fn settle(&mut self, now_us: u64, seed: u64) {
        // A topic has one notice for each time.
        for later_us in 0..10 {
            self.local.hasten(now_us + later_us);
            self.notify(now_us + later_us, seed);
        }
        assert!(self.local.is_settled(), "seed {seed}");
    }

    /// Returns the registry of the next process, which must have the same entries. Waiting changes are lost.
    pub fn passed(self, bytes_max: usize, pending_bytes_max: usize, seed: u64) -> Self {
        let new = Registry::new(self.node, bytes_max, pending_bytes_max);
        let mut sent = handover::Sent::new();
        handover::testing::pass(&self.local, &new.local, &mut sent);
        for ((index, user, of), _) in &self.entries {
            let passed = self.local.passed(&topic(*index), user, *of).unwrap();
            new.local.restore(&topic(*index), user, *of, &passed);
        }
        handover::testing::pass_all(&self.local, &new.local, &mut sent);
        let list = |local: &Local, index| {
            let list = local.list(&topic(index), None, Box::new(|_| {}));
            let PresenceReply::Now(List { counts, users }) = list else { panic!("later") };
            (counts, users.map(Snapshot::into_json))
        };
        for index in 0..TOPICS {
            assert_eq!(list(&new.local, index), list(&self.local, index), "seed {seed}");
        }
        let stats =
            |local: &Local| presence::Stats { notices: 0, notices_delayed: 0, ..local.stats() };
        assert_eq!(stats(&new.local), stats(&self.local), "seed {seed}");
        assert!(new.local.is_settled(), "seed {seed}: members are notified of what they know");
        Registry { entries: self.entries, views: self.views, ..new }
    }

    /// Removes another node's entries, which takes until `until_us`, as if they were very many.
    pub fn expire(&mut self, node: NodeId, until_us: u64) {
        self.updates.push_expire(node);
        self.expiring.insert(node);
        self.busy_until_us = until_us;
    }

    /// Returns true while a node's entries are being removed.
    pub fn is_expiring(&self, node: NodeId) -> bool {
        self.expiring.contains(&node)
    }

    /// Applies some updates of other nodes' entries. Returns the nodes with entries that did not fit, and their
    /// bytes.
    pub fn advance(&mut self, updates_max: usize, now_us: u64) -> BTreeMap<NodeId, usize> {
        let updates_max = if now_us < self.busy_until_us { 0 } else { updates_max };
        let dropped = self.local.advance(&mut self.updates, updates_max, now_us);
        self.expiring.retain(|node| self.updates.has(*node));
        dropped
    }

    /// Publishes the due notices to the members.
    pub fn notify(&mut self, now_us: u64, seed: u64) {
        let mut batches = self.local.take(now_us, usize::MAX);
        for batch in &mut batches {
            batch.publish(&mut |name, event, json| {
                let index: usize = name["room:".len()..].parse().unwrap();
                let json: Value = serde_json::from_str(json).unwrap();
                let view = &mut self.views[index];
                match event {
                    presence::DIFF => apply_diff(view, &json, seed),
                    presence::STATE => *view = users(&json),
                    presence::COUNT => {}
                    other => panic!("{other}"),
                }
                true
            });
        }
        self.local.confirm(batches, now_us);
    }

    /// Returns the connections of the process in a topic.
    fn own(&self, index: usize) -> impl Iterator<Item = (String, (String, Value))> {
        let entries = self.entries.iter().filter(move |((of, ..), _)| *of == index);
        entries.map(|((_, user, of), shown)| {
            let meta = serde_json::json!({ "at": shown });
            (user.clone(), (of.to_string(), meta))
        })
    }
}

fn users(json: &Value) -> Users {
    let metas = |user: &Value| {
        let metas = user["metas"].as_array().unwrap().iter().map(|meta| {
            let mut meta = meta.as_object().unwrap().clone();
            let of = meta.remove("phx_ref").unwrap().as_str().unwrap().to_string();
            meta.remove("phx_ref_prev");
            (of, Value::from(meta))
        });
        metas.collect()
    };
    let users = json.as_object().unwrap().iter();
    users.map(|(user, value)| (user.clone(), metas(value))).collect()
}

/// Does the same as `Presence.syncDiff` of the npm client, and checks that no entry comes twice.
fn apply_diff(view: &mut Users, json: &Value, seed: u64) {
    for (user, joined) in users(&json["joins"]) {
        let metas = view.entry(user).or_default();
        for (of, meta) in joined {
            assert!(metas.insert(of, meta).is_none(), "seed {seed}: {json} is there");
        }
    }
    for (user, left) in users(&json["leaves"]) {
        let Some(metas) = view.get_mut(&user) else { continue };
        metas.retain(|of, _| !left.contains_key(of));
        if metas.is_empty() {
            view.remove(&user);
        }
    }
}

/// Verifies that every registry, and the member of each topic there, has the entries of all. Returns their number.
pub fn verify(all: &[&Registry], seed: u64) -> usize {
    let mut count = 0;
    for index in 0..TOPICS {
        let mut expected = Users::new();
        for (user, (of, meta)) in all.iter().flat_map(|it| it.own(index)) {
            expected.entry(user).or_default().insert(of, meta);
        }
        let connections = expected.values().map(BTreeMap::len).sum::<usize>();
        count += connections;
        for registry in all {
            let me = registry.node;
            let list = registry.local.list(&topic(index), None, Box::new(|_| {}));
            let PresenceReply::Now(List { counts, users: list }) = list else { panic!("later") };
            assert_eq!(
                (counts.users, counts.connections),
                (expected.len(), connections),
                "seed {seed}: {me}, topic {index}"
            );
            let Some(list) = list.map(Snapshot::into_json) else {
                assert!(registry.views[index].is_empty(), "seed {seed}: {me}, topic {index}");
                continue;
            };
            let list = users(&serde_json::from_str(&list).unwrap());
            assert_eq!(list, expected, "seed {seed}: {me}, topic {index}");
            assert_eq!(registry.views[index], expected, "seed {seed}: a member at {me}");
        }
    }
    count
}
