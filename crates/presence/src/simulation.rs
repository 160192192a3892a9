//! A seeded simulation: users enter, change and leave, a node dies, notices fail at random, and each client must end
//! with the right list, whenever it begins. `PRESENCE_SEED=n cargo test -p presence` replays one run.

use std::collections::BTreeMap;

use random::Random;
use serde_json::{Map, Value, json};

use crate::meta::{ListText, user_bytes};
use crate::registry::Registry;
use crate::*;

const USERS_MAX: usize = 5;
/// About six metas, so that either cap may be met first.
const LIST_BYTES_MAX: usize = 600;
const TOPICS: u32 = 3;
const INTERVAL_US: u64 = 1000;
const OWN: NodeId = NodeId(0x5f3a_91c2);
/// A node whose entries are in the same registry, and which dies now and then.
const OTHER: NodeId = NodeId(7);

type List = BTreeMap<String, Vec<Value>>;

fn parse(json: &Value) -> List {
    let metas = |presence: &Value| presence["metas"].as_array().unwrap().clone();
    json.as_object().unwrap().iter().map(|(key, user)| (key.clone(), metas(user))).collect()
}

fn has(metas: &[Value], of: &Value) -> bool {
    metas.iter().any(|meta| meta["phx_ref"] == of["phx_ref"])
}

/// `Presence.syncDiff` of the npm client.
fn sync_diff(state: &mut List, joins: List, leaves: List) {
    for (key, mut joined) in joins {
        let mut metas = state.remove(&key).unwrap_or_default();
        metas.retain(|meta| !has(&joined, meta));
        metas.append(&mut joined);
        state.insert(key, metas);
    }
    for (key, left) in leaves {
        let Some(metas) = state.get_mut(&key) else { continue };
        metas.retain(|meta| !has(&left, meta));
        if metas.is_empty() {
            state.remove(&key);
        }
    }
}

/// `Presence.syncState` of the npm client: a meta whose ref the client has stays as it is.
fn sync_state(state: &mut List, new: List) {
    let missing = |from: &List, other: &List| -> List {
        let none = Vec::new();
        let rest = from.iter().map(|(key, metas)| {
            let known = other.get(key).unwrap_or(&none);
            let metas = metas.iter().filter(|meta| !has(known, meta)).cloned().collect::<Vec<_>>();
            (key.clone(), metas)
        });
        rest.filter(|(_, metas)| !metas.is_empty()).collect()
    };
    let (joins, leaves) = (missing(&new, state), missing(state, &new));
    sync_diff(state, joins, leaves);
}

/// A client that follows a topic.
struct Viewer {
    topic: String,
    state: List,
    counts: Value,
    /// The connection, if the client is itself a member.
    own: Option<(String, u64)>,
    /// The client got every notice from the first: its list is exactly the announced one.
    strict: bool,
    /// False while the connection is lost; the client keeps its list and misses notices.
    online: bool,
}

impl Viewer {
    fn notice(&mut self, event: &str, json: &Value) {
        match event {
            STATE => sync_state(&mut self.state, parse(json)),
            DIFF => {
                let (joins, leaves) = (parse(&json["joins"]), parse(&json["leaves"]));
                if self.strict {
                    self.check(&joins, &leaves);
                }
                sync_diff(&mut self.state, joins, leaves);
            }
            COUNT => self.counts = json.clone(),
            _ => panic!("{event}"),
        }
    }

    /// Checks that each meta that joins is new, that each that leaves is known, and that none does both.
    fn check(&self, joins: &List, leaves: &List) {
        assert!(!joins.is_empty() || !leaves.is_empty());
        let none = Vec::new();
        for (key, metas) in joins {
            let entry = self.state.get(key).unwrap_or(&none);
            for meta in metas {
                assert!(!has(entry, meta), "{meta} joins again");
                if let Some(prev) = meta.get("phx_ref_prev") {
                    assert!(has(entry, &json!({ "phx_ref": prev })), "{meta}");
                }
            }
        }
        for (key, metas) in leaves {
            for meta in metas {
                assert!(has(&self.state[key], meta), "{meta} left");
                assert_eq!(meta.as_object().unwrap().len(), 1, "{meta} is a ref only");
            }
        }
    }
}

/// A member: its ref and its meta without refs.
type Member = (Ref, Map<String, Value>);

#[derive(Default)]
struct Model {
    /// User and a number for the connection.
    members: BTreeMap<(String, u64), Member>,
    unlisted: bool,
    last_us: Option<u64>,
    log: Vec<(&'static str, Value)>,
    /// Crossings that only the bytes of the list caused.
    by_bytes: usize,
    /// Changes that were too large for one notice.
    splits: usize,
}

impl Model {
    fn users(&self) -> usize {
        self.list().len()
    }

    fn list(&self) -> BTreeMap<&str, BTreeMap<String, &Map<String, Value>>> {
        let mut list = BTreeMap::<_, BTreeMap<_, _>>::new();
        for ((key, _), (of, meta)) in &self.members {
            list.entry(&**key).or_default().insert(of.to_string(), meta);
        }
        list
    }

    /// `bytes` are those of a list of all members.
    fn changed(&mut self, bytes: usize) {
        let users = self.users();
        let (many, long) = (users > USERS_MAX, bytes > LIST_BYTES_MAX);
        self.by_bytes += usize::from(!self.unlisted && long && !many);
        let stays = users > USERS_MAX * 3 / 4 || bytes > LIST_BYTES_MAX * 3 / 4;
        self.unlisted = many || long || (self.unlisted && stays);
    }
}

struct Simulation {
    random: Random,
    presence: Registry,
    /// The next ref of the other node.
    other: Ref,
    topics: BTreeMap<String, Model>,
    viewers: Vec<Viewer>,
    now_us: u64,
    connections: u64,
    /// Members that went with their node.
    expired: usize,
    /// Notices under way: anything may have happened since they were taken.
    taken: Vec<Batch>,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let limits = Limits {
            users_max: USERS_MAX,
            list_bytes_max: LIST_BYTES_MAX,
            interval_us: INTERVAL_US,
            members_per_ms: 5,
        };
        let topics: BTreeMap<_, _> =
            (0..TOPICS).map(|n| (format!("t{n}"), Model::default())).collect();
        let viewers = topics.keys().map(|topic| Viewer {
            topic: topic.clone(),
            state: List::new(),
            counts: Value::Null,
            own: None,
            strict: true,
            online: true,
        });
        let mut presence = Registry::new(limits, OWN);
        // Refs of 16 bytes.
        presence.next = Ref::new(OWN, (seed & 0xff) | 1 << 31);
        Simulation {
            random: Random::new(seed),
            presence,
            other: Ref::new(OTHER, 0),
            viewers: viewers.collect(),
            topics,
            now_us: 0,
            connections: 0,
            expired: 0,
            taken: Vec::new(),
        }
    }

    fn step(&mut self, users: u32, busy: u32) {
        let topic = format!("t{}", self.random.below(TOPICS));
        match self.random.below(27) {
            0..8 if self.random.below(10) < busy => self.enter(topic, users),
            0..8 => self.leave(&topic),
            8..12 => {
                if let Some(member) = self.member(&topic) {
                    self.update(&topic, &member);
                }
            }
            12..14 => self.add_viewer(topic),
            14..19 => self.now_us += self.random.below(700),
            19..22 => self.publish_some(3),
            22..24 => {
                // All at once, which is more than one notice may hold.
                let members: Vec<_> = self.topics[&topic].members.keys().cloned().collect();
                members.iter().for_each(|member| self.update(&topic, member));
            }
            24 => self.expire(),
            _ => {
                self.now_us = self.now_us.max(self.presence.due_us().unwrap_or(0));
                self.publish_some(5);
            }
        }
    }

    /// Returns the text of a meta, and its properties.
    fn meta(&mut self) -> (String, Map<String, Value>) {
        let n = self.random.below(1000);
        let pad = "x".repeat(self.random.below(90) as usize);
        let text = match self.random.below(3) {
            0 => format!(r#"{{"n":{n}}}"#),
            1 => format!(r#"{{ "phx_ref":"1", "n" : {n}, "phx_ref_prev":null}}"#),
            _ => format!(r#"{{"n":{n},"a":{{"phx_ref":[{n}]}},"pad":"{pad}"}}"#),
        };
        let mut meta: Map<_, _> = serde_json::from_str(&text).unwrap();
        meta.remove("phx_ref");
        meta.remove("phx_ref_prev");
        (text, meta)
    }

    fn enter(&mut self, topic: String, users: u32) {
        let (text, meta) = self.meta();
        let key = format!("user{}", self.random.below(users));
        self.connections += 1;
        let node = if self.random.below(4) == 0 { OTHER } else { OWN };
        let now_us = self.now_us;
        let of = self.of(node, |presence| presence.enter(&topic, &key, &text, now_us));
        let model = self.topics.get_mut(&topic).unwrap();
        model.members.insert((key.clone(), self.connections), (of, meta));
        self.changed(&topic);
        if self.random.below(2) == 0 {
            let state = self.state(&topic, Some((&key, of)));
            let listed = self.counts(&topic).listed;
            assert_eq!(listed, state.contains(&format!(r#""phx_ref":"{of}""#)), "sees itself");
            self.view(topic, &state, Some((key, self.connections)));
        }
    }

    /// Calls the registry as the node that draws the refs.
    fn of<T>(&mut self, node: NodeId, call: impl FnOnce(&mut Registry) -> T) -> T {
        let swap = |simulation: &mut Self| {
            if node == OTHER {
                std::mem::swap(&mut simulation.presence.next, &mut simulation.other);
            }
        };
        swap(self);
        let result = call(&mut self.presence);
        swap(self);
        result
    }

    /// The other node dies.
    fn expire(&mut self) {
        self.presence.expire(OTHER, None, usize::MAX, self.now_us);
        for topic in self.topics.keys().cloned().collect::<Vec<_>>() {
            let model = self.topics.get_mut(&topic).unwrap();
            let gone = model.members.extract_if(.., |_, (of, _)| of.node() == OTHER);
            for (member, _) in gone {
                self.viewers.retain(|viewer| viewer.own.as_ref() != Some(&member));
                self.expired += 1;
            }
            self.changed(&topic);
        }
    }

    /// Returns the list's text; `{}` while members get counts only.
    fn state(&self, topic: &str, own: Option<(&str, Ref)>) -> String {
        let users = self.presence.list(topic, own).users.map(Snapshot::into_json);
        users.unwrap_or_else(|| "{}".into())
    }

    fn counts(&self, topic: &str) -> Counts {
        self.presence.list(topic, None).counts
    }

    fn member(&mut self, topic: &str) -> Option<(String, u64)> {
        let members = &self.topics[topic].members;
        let nth = self.random.below(members.len().max(1) as u32) as usize;
        members.keys().nth(nth).cloned()
    }

    fn leave(&mut self, topic: &str) {
        let Some(member) = self.member(topic) else { return };
        let model = self.topics.get_mut(topic).unwrap();
        let (of, _) = model.members.remove(&member).unwrap();
        self.presence.leave(topic, &member.0, of, self.now_us);
        self.changed(topic);
        self.viewers.retain(|viewer| viewer.own.as_ref() != Some(&member));
        assert_eq!(self.presence.update(topic, &member.0, of, "{}", self.now_us), None);
    }

    fn update(&mut self, topic: &str, member: &(String, u64)) {
        let (text, meta) = self.meta();
        let (old, now_us) = (self.topics[topic].members[member].0, self.now_us);
        let update =
            |presence: &mut Registry| presence.update(topic, &member.0, old, &text, now_us);
        let of = self.of(old.node(), update).unwrap();
        self.topics.get_mut(topic).unwrap().members.insert(member.clone(), (of, meta));
        self.changed(topic);
    }

    /// Checks the registry's running sum of bytes against a list of all members.
    fn changed(&mut self, topic: &str) {
        let bytes = self.presence.topics.get(topic).map_or(0, |topic| {
            let here = topic.metas.iter().filter(|(entry, _)| !topic.leaves.contains(entry));
            let here: BTreeMap<_, _> = here.chain(&topic.joins).collect();
            let users: usize = topic.users.keys().map(|key| user_bytes(key)).sum();
            let bytes = users + here.iter().map(|(entry, meta)| meta.bytes(entry.1)).sum::<usize>();
            assert_eq!(topic.bytes, bytes);
            let text = ListText::new(here.into_iter()).text;
            assert!(text.len() <= bytes + 2, "{text}");
            bytes
        });
        self.topics.get_mut(topic).unwrap().changed(bytes);
        assert!(self.state(topic, None).len() <= LIST_BYTES_MAX + 2);
    }

    /// A client comes, or loses its connection, or is back and gets the list again.
    fn add_viewer(&mut self, topic: String) {
        let state = self.state(&topic, None);
        let others: Vec<_> = (0..self.viewers.len())
            .filter(|n| self.viewers[*n].topic == topic)
            .filter(|n| !self.viewers[*n].strict && self.viewers[*n].own.is_none())
            .collect();
        if others.len() < 2 {
            return self.view(topic, &state, None);
        }
        let nth = others[self.random.below(others.len() as u32) as usize];
        let mut viewer = self.viewers.swap_remove(nth);
        viewer.online = !viewer.online;
        if viewer.online {
            let counts = self.counts(&topic);
            viewer.counts = json!({ "users": counts.users, "connections": counts.connections });
            sync_state(&mut viewer.state, parse(&serde_json::from_str(&state).unwrap()));
            self.late(&mut viewer);
        }
        self.viewers.push(viewer);
    }

    fn view(&mut self, topic: String, state: &str, own: Option<(String, u64)>) {
        let counts = self.counts(&topic);
        let state = parse(&serde_json::from_str(state).unwrap());
        let counts = json!({ "users": counts.users, "connections": counts.connections });
        let mut viewer = Viewer { topic, state, counts, own, strict: false, online: true };
        self.late(&mut viewer);
        self.viewers.push(viewer);
    }

    /// Some notices from before the list reach a client after the list.
    fn late(&mut self, viewer: &mut Viewer) {
        let log = &self.topics[&viewer.topic].log;
        let late = (self.random.below(6) as usize).min(log.len());
        log[log.len() - late..].iter().for_each(|(event, json)| viewer.notice(event, json));
    }

    /// Takes the due notices, or publishes and confirms the taken ones, so that other steps come in between. One
    /// notice in `stuck_one_in` fails; with 0 none does.
    fn publish_some(&mut self, stuck_one_in: u32) {
        if self.taken.is_empty() {
            return self.take();
        }
        for mut batch in std::mem::take(&mut self.taken) {
            self.publish(&mut batch, stuck_one_in);
            // A client that begins now doesn't get this notice: the list must have its content.
            match self.random.below(4) {
                0 => self.add_viewer(batch.topic().to_string()),
                1 => self.enter(batch.topic().to_string(), 9),
                2 => self.leave(&batch.topic().clone()),
                _ => (),
            }
            self.presence.confirm(vec![batch], self.now_us);
        }
    }

    fn take(&mut self) {
        self.taken = self.presence.take(self.now_us, 2);
        for batch in &self.taken {
            let model = self.topics.get_mut(&**batch.topic()).unwrap();
            let last_us = model.last_us.replace(self.now_us);
            assert!(last_us.is_none_or(|last_us| last_us + INTERVAL_US <= self.now_us));
        }
    }

    fn publish(&mut self, batch: &mut Batch, stuck_one_in: u32) {
        let mut tried = Vec::new();
        let Simulation { random, topics, viewers, .. } = self;
        batch.publish(&mut |topic, event, json| {
            assert!(json.len() <= LIST_BYTES_MAX + 64, "{json}");
            let json: Value = serde_json::from_str(json).unwrap();
            tried.push((event, json.clone()));
            if stuck_one_in > 0 && random.below(stuck_one_in) == 0 {
                return false;
            }
            for viewer in viewers.iter_mut().filter(|it| it.topic == topic && it.online) {
                viewer.notice(event, &json);
            }
            topics.get_mut(topic).unwrap().log.push((event, json));
            true
        });
        let model = topics.get_mut(&**batch.topic()).unwrap();
        let diffs = tried.iter().all(|(event, _)| *event == DIFF);
        model.splits += usize::from(diffs && tried.len() > 1);
        assert!(diffs || tried.len() == 1 || tried[0] == (STATE, json!({})), "{tried:?}");
        assert!(diffs || tried.len() <= 2, "{tried:?}");
    }

    fn flush(&mut self) {
        while !self.taken.is_empty() || self.presence.due_us().is_some_and(|it| it <= self.now_us) {
            if self.taken.is_empty() {
                self.take();
            }
            for mut batch in std::mem::take(&mut self.taken) {
                self.publish(&mut batch, 0);
                self.presence.confirm(vec![batch], self.now_us);
            }
        }
    }

    fn check_counts(&self) {
        for (topic, model) in &self.topics {
            let counts = self.counts(topic);
            let want = (model.users(), model.members.len());
            assert_eq!((counts.users, counts.connections), want);
            assert!(!(counts.listed && model.unlisted));
        }
    }

    /// Publishes everything; then every client has the right list.
    fn quiesce(&mut self) {
        self.flush();
        while let Some(due_us) = self.presence.due_us() {
            self.now_us = self.now_us.max(due_us);
            self.flush();
        }
        for viewer in self.viewers.iter().filter(|viewer| viewer.online) {
            let model = &self.topics[&viewer.topic];
            let counts = self.counts(&viewer.topic);
            assert_eq!(counts.listed, !model.unlisted);
            if model.unlisted {
                assert_eq!(viewer.state, List::new());
                let (users, connections) = (model.users(), model.members.len());
                let want = json!({ "users": users, "connections": connections });
                assert_eq!(viewer.counts, want);
                continue;
            }
            let bare = |meta: &Value| {
                let mut meta = meta.as_object().unwrap().clone();
                meta.remove("phx_ref_prev");
                let of = meta.remove("phx_ref").unwrap();
                (of.as_str().unwrap().to_string(), meta)
            };
            let seen: BTreeMap<_, BTreeMap<_, _>> = (viewer.state.iter())
                .map(|(key, metas)| (&**key, metas.iter().map(bare).collect()))
                .collect();
            let want: BTreeMap<_, BTreeMap<_, _>> = (model.list().into_iter())
                .map(|(key, metas)| {
                    (key, metas.into_iter().map(|(of, meta)| (of, meta.clone())).collect())
                })
                .collect();
            assert_eq!(seen, want);
            assert!(viewer.state.iter().all(|(key, metas)| metas.len() == want[&**key].len()));
        }
    }
}

/// Returns how often lists came back, how often only bytes caused a crossing, how many notices had parts, and how
/// many members left with their node, so that the test knows it covers these.
fn run(seed: u64) -> [usize; 4] {
    let mut simulation = Simulation::new(seed);
    for round in 0..12 {
        let users = 3 + simulation.random.below(10);
        let busy = 2 + simulation.random.below(6);
        for _ in 0..120 {
            simulation.step(users, busy);
            simulation.check_counts();
        }
        if round % 3 == 2 {
            simulation.quiesce();
        }
    }
    for topic in simulation.topics.keys().cloned().collect::<Vec<_>>() {
        while !simulation.topics[&topic].members.is_empty() {
            simulation.leave(&topic);
        }
    }
    simulation.quiesce();
    assert_eq!((simulation.presence.topics.len(), simulation.presence.due.len()), (0, 0));
    assert_eq!(simulation.presence.stats().connections, 0);
    let lists = |model: &Model| {
        let returns = |(event, json): &&(&str, Value)| *event == STATE && *json != json!({});
        model.log.iter().filter(returns).count()
    };
    let models = || simulation.topics.values();
    [
        models().map(lists).sum(),
        models().map(|model| model.by_bytes).sum(),
        models().map(|model| model.splits).sum(),
        simulation.expired,
    ]
}

#[test]
fn every_client_ends_with_the_truth() {
    if let Ok(seed) = std::env::var("PRESENCE_SEED") {
        run(seed.parse().unwrap());
        return;
    }
    let mut sum = [0; 4];
    for seed in 0..30 {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(seen) => sum = std::array::from_fn(|at| sum[at] + seen[at]),
            Err(_) => panic!("PRESENCE_SEED={seed} replays the run that failed"),
        }
    }
    assert!(sum.iter().all(|seen| *seen > 30), "returns, by bytes, in parts, expired: {sum:?}");
}
