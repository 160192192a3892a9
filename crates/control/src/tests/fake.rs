//! A node without connections: shards that reply from a table, and a broker that records.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use axum::response::Response;
use broker::{
    Activity, Broker, Done, HistoryLog, Latest, Local, Publish, PublishError, Published, Receipt,
    Recent, TopicActivity,
};
use history_local::{Begin, HistoryLimits};
use model::{
    AcknowledgeRule, ConnectionId, Envelope, Epoch, FilterKey, HistoryRule, Message, Name,
    Position, Publication,
};
use serde_json::Value;
use shard::{
    Command, ConnectionInfo, Cost, Costliest, LoggedIn, LoginError, Metrics, Target, TopicInfo,
};
use tower::ServiceExt;

use crate::http::admission;
use crate::monitor::{Monitor, Sampler};
use crate::outgoing::Authorities;
use crate::webhook::{self, Dispatcher};
use crate::{Live, Node, Shards, api};

/// How shards and receipts behave.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Willing,
    /// The shards have ended: replies are dropped.
    Ended,
    /// The shards take commands and don't reply; receipts stay open.
    Silent,
    /// Mailboxes are at capacity.
    Overloaded,
}

/// Events of a trace from each shard: both send more than may wait for a reader.
pub const EVENTS: usize = 600;

/// Two shards, each with two connections of `alice` in `news`.
pub struct FakeShards {
    mood: Mood,
    metrics: [Metrics; 2],
    /// One line for each command.
    commands: Arc<Mutex<Vec<String>>>,
    /// Commands that never get a reply.
    pending: Mutex<Vec<Command>>,
    /// Runs at the first command.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Shards for FakeShards {
    fn count(&self) -> usize {
        2
    }

    fn send(&self, shard: usize, command: Command) {
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().take() {
            meanwhile();
        }
        match self.mood {
            Mood::Ended => drop(command),
            Mood::Silent => self.pending.lock().unwrap().push(command),
            Mood::Willing | Mood::Overloaded => {
                let line = reply_text(shard, command);
                self.commands.lock().unwrap().push(format!("{shard} {line}"));
            }
        }
    }

    fn metrics(&self, shard: usize) -> &Metrics {
        &self.metrics[shard]
    }

    fn mailbox(&self, shard: usize) -> u64 {
        self.metrics[shard].commands_pending.get()
    }
}

fn reply_text(shard: usize, command: Command) -> String {
    match command {
        Command::Disconnect { target: Target::User(user), close, reply } => {
            reply(2);
            format!("disconnect {user} {}", close.name())
        }
        Command::Disconnect { target: Target::Connection(id), reply, .. } => {
            reply(1);
            format!("disconnect {id}")
        }
        Command::Evict { connections, reply, .. } => {
            reply(connections);
            format!("evict {connections}")
        }
        Command::Subscribe { user, topic, reply } => {
            reply(2);
            format!("subscribe {user} {topic}")
        }
        Command::Unsubscribe { user, topic, reply } => {
            reply(1);
            format!("unsubscribe {user} {topic}")
        }
        Command::Login { connection, user, reply } => {
            reply(login(&user, 2));
            format!("login {connection} {user}")
        }
        Command::Logout { connection, user, reply } => {
            reply(login(&user, 1));
            format!("logout {connection} {user}")
        }
        Command::Topics { prefix, after, limit, reply } => {
            // Both shards know "a" and "c"; only one knows "b" or "d".
            let own = if shard == 0 { "b" } else { "d" };
            let mut names = vec!["a", "c", own];
            names.sort();
            let names = names.into_iter().filter(|name| {
                name.starts_with(&prefix) && after.as_deref().is_none_or(|after| *name > after)
            });
            reply(
                names
                    .take(limit)
                    .map(|name| TopicInfo { topic: name.into(), members: 3 })
                    .collect(),
            );
            format!("topics {prefix:?} {after:?} {limit}")
        }
        Command::Topic { topic, reply } => {
            reply(if topic == "news" || topic == "@alice" { 2 } else { 0 });
            format!("topic {topic}")
        }
        Command::HaveMembers { topics, reply } => {
            // Shard 0 has alice, shard 1 has bob.
            let own = ["@alice", "@bob"][shard];
            reply(topics.iter().map(|topic| *topic == own).collect());
            format!("have members {topics:?}")
        }
        Command::Biggest { limit, reply } => {
            // "deep" is the biggest of all, but a small one on shard 1.
            let own = [vec![("deep", 30), ("a", 6)], vec![("a", 5), ("b", 4), ("deep", 3)]];
            let own = own[shard].iter().map(|(topic, members)| (Name::from(*topic), *members));
            let small = (0..limit).map(|n| (format!("small-{shard}-{n:03}").into(), 2));
            let topics = own.chain(small).take(limit);
            reply(topics.map(|(topic, members)| TopicInfo { topic, members }).collect());
            format!("biggest {limit}")
        }
        Command::Costliest { reply } => {
            let cost = |deliveries, bytes| Cost { deliveries, bytes };
            let own = [
                vec![("news", cost(30, 900)), ("@alice", cost(40, 100))],
                vec![("news", cost(30, 300)), ("a", cost(3, 5_000))],
            ];
            let own = own[shard].iter().map(|(topic, cost)| (Name::from(*topic), *cost));
            reply(Costliest { span_us: 30_000_000, topics: own.collect() });
            "costliest".into()
        }
        Command::Slowest { limit, reply } => {
            let slow = |n: usize| ConnectionInfo {
                outbox_bytes: 1_000 - 100 * n + shard,
                ..connection(shard as u16)
            };
            reply((5, (0..5.min(limit)).map(slow).collect()));
            format!("slowest {limit}")
        }
        Command::Members { topic, limit, reply } => {
            reply((5, (0..5.min(limit)).map(|_| connection(shard as u16)).collect()));
            format!("members {topic} {limit}")
        }
        Command::MqttClients { listing, reply } => {
            // In the order of their keys, the clients of one shard alternate with those of the other.
            let keys = [["al\0phone", "y"], ["b", "z"]][shard];
            let keys = keys.into_iter().filter(|key| listing.has(sessions::SessionKey::parse(key)));
            let clients = keys.take(listing.limit).map(|key| mqtt_client(shard as u16, key));
            let clients: Vec<_> = clients.collect();
            reply((clients.len() as u32, clients));
            format!("clients {:?} {:?} {}", listing.prefix, listing.after, listing.limit)
        }
        Command::MqttClient { slot, key, reply } => {
            let has = key == "b";
            let clients = has.then(|| mqtt_client(shard as u16, &key));
            reply((u32::from(has), clients.into_iter().collect()));
            format!("client {slot} {key}")
        }
        Command::MqttEnd { slot, key, reply } => {
            reply(key == "b");
            format!("end {slot} {key}")
        }
        Command::Trace { number, target, sink, reply } => {
            // Only the connection with the slot 12 exists.
            let count = match &target {
                Target::User(_) => 1,
                Target::Connection(id) => u32::from(id.slot == 12),
            };
            reply(count);
            let message = shard::TracedMessage {
                id: Position { epoch: HISTORY_EPOCH, offset: 7 },
                topic: "news".into(),
                event: "message".into(),
                bytes: 4,
                age_us: 1_500,
            };
            for _ in 0..EVENTS {
                sink.push(shard::TraceEvent {
                    at_ms: 5_000,
                    connection: Some(connection(shard as u16).id),
                    outbox_bytes: 3,
                    kind: shard::TraceKind::Delivered(message.clone()),
                });
            }
            let whom = match target {
                Target::User(user) => user.to_string(),
                Target::Connection(id) => id.to_string(),
            };
            format!("trace {number} {whom}")
        }
        Command::TraceEnd { number } => format!("trace end {number}"),
        Command::Revoke { revocation, reply } => {
            reply(1);
            format!("revoke {revocation:?}")
        }
        _ => "other".into(),
    }
}

fn login(user: &str, users: u32) -> Result<LoggedIn, LoginError> {
    match user {
        "gone" => Err(LoginError::NoConnection),
        "full" => Err(LoginError::TooManyTopics),
        "nobody" => Err(LoginError::NotLoggedIn),
        _ => Ok(LoggedIn { users, already: false }),
    }
}

fn mqtt_client(shard: u16, key: &str) -> ConnectionInfo {
    let options = sessions::SubscriptionOptions::from_bits(0b101);
    let subscription = sessions::Subscription::new("a/+".into(), Some("g".into()), options, 7, 0);
    let mqtt = shard::MqttInfo {
        key: key.into(),
        version: "5.0",
        seconds: 60,
        keep_alive_s: 30,
        subscriptions: 1,
        filters: vec![subscription],
        in_flight: 2,
        waiting: 3,
    };
    ConnectionInfo { transport: "mqtt", mqtt: Some(Box::new(mqtt)), ..connection(shard) }
}

fn connection(shard: u16) -> ConnectionInfo {
    ConnectionInfo {
        id: ConnectionId { node: model::NodeId(9), shard, slot: 12, serial: 345 },
        transport: "sse",
        age_seconds: 60,
        address: Some("10.0.0.1:5000".parse().unwrap()),
        users: vec!["alice".into()],
        topics: vec!["news".into()],
        bytes_sent: 1000,
        bytes_received: 100,
        outbox_bytes: 7,
        outbox_age_ms: 1_500,
        mqtt: None,
    }
}

/// The epoch of topics with history.
pub const HISTORY_EPOCH: Epoch = Epoch(0x0bad_cafe);

/// Assigns offsets from 1, retains all messages for half a minute, and counts four members for each message. A real
/// broker has topics with history.
pub struct FakeBroker {
    real: Local,
    history: Arc<history_local::Local>,
    mood: Mood,
    offset: AtomicU64,
    published: Arc<Mutex<Vec<Publication>>>,
    messages: Mutex<Vec<Arc<Envelope>>>,
    /// Receipts that stay open.
    receipts: Mutex<Vec<Receipt>>,
    /// Publishes that wait for a disk that never replies.
    waiting: Mutex<Vec<Done>>,
}

impl FakeBroker {
    fn history(&self) -> &history_local::Local {
        &self.history
    }
}

impl Broker for FakeBroker {
    fn publish(
        &self,
        publication: Publication,
        receipt: Option<Receipt>,
    ) -> Result<Position, PublishError> {
        if self.mood == Mood::Overloaded {
            return Err(PublishError::Overloaded);
        }
        self.published.lock().unwrap().push(publication.clone());
        if let Some(receipt) = receipt {
            receipt.add(4);
            if self.mood == Mood::Silent {
                self.receipts.lock().unwrap().push(receipt);
            }
        }
        let offset = self.offset.fetch_add(1, Ordering::Relaxed) + 1;
        let id = Position { epoch: self.epoch(), offset };
        let message = Message::new(
            publication.clone(),
            id,
            self.hash(&publication.topic),
            offset * 1_000_000,
        );
        self.messages.lock().unwrap().push(Arc::new(message.into()));
        Ok(id)
    }

    fn submit(&self, publish: Publish, receipt: Option<Receipt>, done: Done) {
        let Publish { publication, options } = &publish;
        let has_rule = self.history().rule(&publication.topic).is_some() && !options.no_history;
        match &*publication.topic {
            "log:silent" => self.waiting.lock().unwrap().push(done),
            "log:full" => done(Err(PublishError::StoreBusy)),
            "log:broken" => done(Err(PublishError::StoreFailed("the disk is full".into()))),
            _ if has_rule && self.mood != Mood::Overloaded => {
                self.published.lock().unwrap().push(publication.clone());
                if let Some(receipt) = &receipt {
                    receipt.add(4);
                }
                self.real.submit(publish, receipt, done);
            }
            _ => {
                let id = self.publish(publish.publication, receipt);
                done(id.map(|id| Published { id, repeated: false, queued: false }));
            }
        }
    }

    fn enter_filter(&self, shard: u16, hash: u64, name: &str) {
        self.real.enter_filter(shard, hash, name);
    }

    fn leave_filter(&self, shard: u16, name: &str) {
        self.real.leave_filter(shard, name);
    }

    fn leave_filters(&self, shard: u16) {
        self.real.leave_filters(shard);
    }

    fn pass_to_group(
        &self,
        message: &Arc<Envelope>,
        key: &Arc<FilterKey>,
        passed: broker::Passed,
    ) -> bool {
        self.real.pass_to_group(message, key, passed)
    }

    fn recent(&self, _: &[(u64, &str)], _: Option<Position>) -> Recent {
        let top = Position { epoch: self.epoch(), offset: self.offset.load(Ordering::Relaxed) };
        Recent { messages: Vec::new(), top, complete: true }
    }

    fn latest(&self, topic: Option<(u64, &str)>, limit: usize) -> Latest {
        let messages = self.messages.lock().unwrap();
        let matching = messages
            .iter()
            .rev()
            .filter(|message| topic.is_none_or(|(_, name)| name == message.publication.topic));
        // A search for a needle is never complete.
        let complete = topic.is_none_or(|(_, name)| name != "needle");
        Latest { messages: matching.take(limit).cloned().collect(), complete }
    }

    fn activity(&self, _: u64) -> Activity {
        let mut activity = Activity { span_us: 30_000_000, ..Activity::default() };
        for message in self.messages.lock().unwrap().iter() {
            let topic = message.publication.topic.clone();
            let new = TopicActivity { topic, messages: 0 };
            activity.topics.entry(message.topic_hash).or_insert(new).messages += 1;
        }
        activity
    }

    fn hash(&self, topic: &str) -> u64 {
        self.real.hash(topic)
    }

    fn epoch(&self) -> Epoch {
        Epoch(0x5f3a_91c2)
    }
}

/// A node, and what it did.
pub struct Bench {
    pub node: Arc<Node>,
    pub monitor: Arc<Monitor>,
    pub sampler: Sampler,
    /// Publications that the broker got.
    pub published: Arc<Mutex<Vec<Publication>>>,
    /// Commands that the shards got, one line each.
    pub commands: Arc<Mutex<Vec<String>>>,
}

/// A response.
pub struct TestReply {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl TestReply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn code(&self) -> String {
        let error = &self.json()["error"];
        assert!(error["message"].as_str().is_some_and(|message| message.len() > 10), "{error}");
        error["code"].as_str().unwrap().to_string()
    }
}

pub fn bench(mood: Mood) -> Bench {
    let (published, commands) = (Arc::default(), Arc::default());
    bench_of(node(mood, Arc::clone(&published), Arc::clone(&commands)), published, commands)
}

/// A node whose topics with history are on disk.
pub fn stored(store: store::Store, last: u64) -> Bench {
    let (published, commands) = (Arc::default(), Arc::default());
    let begin = Begin { epoch: HISTORY_EPOCH, last, store: Some(store) };
    let node = node_from(Mood::Willing, Arc::clone(&published), Arc::clone(&commands), begin);
    bench_of(node, published, commands)
}

/// A node whose subscriptions go to this store.
pub fn with_subscription_store(
    mood: Mood,
    store: Arc<dyn subscriptions::SubscriptionStore>,
) -> Bench {
    let (published, commands) = (Arc::default(), Arc::default());
    let node = node(mood, Arc::clone(&published), Arc::clone(&commands));
    bench_of(Node { keep_subscriptions: Some(store), ..node }, published, commands)
}

/// A node with these retained messages.
pub fn with_retained(mood: Mood, retained: Arc<dyn sessions::Retained>) -> Bench {
    let (published, commands) = (Arc::default(), Arc::default());
    let mut node = node(mood, Arc::clone(&published), Arc::clone(&commands));
    Arc::get_mut(&mut node.shared).unwrap().retained = retained;
    bench_of(node, published, commands)
}

/// A node with this upgrader.
pub fn with_upgrader(upgrader: Arc<dyn crate::Upgrader>) -> Bench {
    let (published, commands) = (Arc::default(), Arc::default());
    let node = node(Mood::Willing, Arc::clone(&published), Arc::clone(&commands));
    let upgrades = crate::Upgrades { upgrader: Some(upgrader), ..crate::Upgrades::default() };
    bench_of(Node { upgrades, ..node }, published, commands)
}

/// A node that runs this when a shard gets the first command.
pub fn with_meanwhile(meanwhile: impl FnOnce(&shard::Shared) + Send + 'static) -> Bench {
    let (published, commands) = (Arc::default(), Arc::default());
    let node = node(Mood::Willing, Arc::clone(&published), Arc::clone(&commands));
    let shared = node.shared.clone();
    *node.shards.meanwhile.lock().unwrap() = Some(Box::new(move || meanwhile(&shared)));
    bench_of(node, published, commands)
}

/// A node without the table of subscriptions by topic.
pub fn without_followers(mood: Mood) -> Bench {
    let (published, commands) = (Arc::default(), Arc::default());
    let node = node(mood, Arc::clone(&published), Arc::clone(&commands));
    let subscriptions = Arc::new(subscriptions::Subscriptions::new(false));
    bench_of(Node { subscriptions, ..node }, published, commands)
}

fn bench_of(
    node: Node<FakeShards>,
    published: Arc<Mutex<Vec<Publication>>>,
    commands: Arc<Mutex<Vec<String>>>,
) -> Bench {
    let node: Arc<Node> = Arc::new(node);
    let (monitor, sampler) = Monitor::new(node.clone(), Default::default());
    Bench { node, monitor, sampler, published, commands }
}

/// A node that records what it publishes and what commands it sends.
pub fn node(
    mood: Mood,
    published: Arc<Mutex<Vec<Publication>>>,
    commands: Arc<Mutex<Vec<String>>>,
) -> Node<FakeShards> {
    node_from(mood, published, commands, Begin { epoch: HISTORY_EPOCH, last: 0, store: None })
}

fn node_from(
    mood: Mood,
    published: Arc<Mutex<Vec<Publication>>>,
    commands: Arc<Mutex<Vec<String>>>,
    begin: Begin,
) -> Node<FakeShards> {
    let (metrics, pending, meanwhile) = Default::default();
    let shards = FakeShards { mood, metrics, commands, pending, meanwhile };
    let store = begin.store.clone();
    let (real, history) = real(begin);
    let broker = FakeBroker {
        real,
        history: history.clone(),
        waiting: Mutex::default(),
        mood,
        offset: AtomicU64::new(0),
        published,
        messages: Mutex::default(),
        receipts: Mutex::default(),
    };
    let live = Live {
        message_bytes_max: 100,
        memory_bytes_max: 0,
        policy: auth::Policy::new(rules(), auth::LoginRule::Allow),
        subscriptions_per_user_max: 5,
        subscriptions_max: 8,
        jwks: Arc::default(),
        has_tokens: true,
        revocations_max: 3,
        revocation_seconds: 100,
        sys_seconds: 0,
        backups: "/backups".into(),
        limits: vec![("limits.message_bytes_max", 100), ("limits.connections_max", 5000)],
        config: "[limits]\n".into(),
    };
    let subscriptions = Arc::<subscriptions::Subscriptions>::default();
    let node = Node {
        store,
        cluster: None,
        outbox: None,
        history_database: None,
        subscription_database: None,
        broker: Arc::new(broker),
        history,
        shared: Arc::new(shard::Shared::new(
            model::NodeId(9),
            protocol::standard(),
            Arc::new(presence::Local::new(
                presence::Limits {
                    users_max: 3,
                    list_bytes_max: 1 << 20,
                    interval_us: 0,
                    members_per_ms: 0,
                },
                presence::NodeId(1),
            )),
            subscriptions.clone(),
            sessions::in_memory(model::NodeId(9)),
        )),
        subscriptions,
        keep_subscriptions: None,
        is_new: false,
        subscription_locks: crate::UserLocks::default(),
        started: Instant::now(),
        client_url: Some("http://127.0.0.1:8000".into()),
        client_url_tls: None,
        body_bytes_max: 4096,
        upgrades: crate::Upgrades::default(),
        evictions: crate::Evictions::default(),
        connections: crate::Connections::new(admission::tests::limits(9)),
        access: crate::Access::new(access(&[])),
        anonymous_at_start: 0,
        give_back: None,
        revocations: Arc::default(),
        token_stats: Arc::default(),
        certificates: Arc::default(),
        keys: crate::KeyFetcher::default(),
        webhook: webhook().0,
        tracer: None,
        live: Arc::new(RwLock::new(live)),
        shards,
    };
    node.history().set_rules(Arc::new(rules()), 300);
    let unix_us = crate::unix_us();
    node.shared.set_time(0, unix_us, unix_us);
    node
}

/// The configuration of keys with these names and scopes; the text of each is its name, twice.
pub fn access(keys: &[(&str, &[&str])]) -> crate::AccessSettings {
    let key = |(name, scopes): &(&str, &[&str])| crate::ApiKey {
        scopes: scopes.iter().map(|scope| scope.parse().unwrap()).collect(),
        ..crate::ApiKey::of_text(name, &name.repeat(2))
    };
    crate::AccessSettings {
        keys: keys.iter().map(key).collect(),
        hosts: vec!["throng.example".into()],
        proxies: proxies::Networks::default(),
        session: Duration::from_secs(3600),
    }
}

fn real(begin: Begin) -> (Local, Arc<history_local::Local>) {
    let limits = broker::Limits {
        recent_messages_max: 100,
        recent_bytes_max: 1 << 20,
        recent_seconds_max: 60,
    };
    let history_limits = HistoryLimits {
        history_bytes_max: 32 << 20,
        topics_max: 100,
        idempotency_keys_max: 100,
        cursors_max: 100,
    };
    let started = Instant::now();
    let router = Arc::new(broker::Router::new(Vec::new()));
    let history = history_local::Local::new(router.clone(), begin, started, history_limits, limits);
    let history = Arc::new(history);
    (Local::new(router, [7; 20], started, limits, history.clone()), history)
}

/// `room:` has presence; `log:` and `bulk:` have a history; `job:` is acknowledged, as the messages
/// of the user `keen` are.
fn rules() -> model::Rules {
    let history = HistoryRule {
        messages_max: 5,
        bytes_max: 1 << 20,
        seconds_max: 3600,
        durable: true,
        compact: false,
        acknowledge: None,
    };
    let acknowledge = AcknowledgeRule {
        window_messages_max: 10,
        redelivery_seconds: 30,
        delivery_count_max: 5,
        dead_letter: None,
    };
    let acknowledged = Arc::new(HistoryRule { acknowledge: Some(acknowledge), ..history.clone() });
    let bulk =
        HistoryRule { messages_max: 5000, bytes_max: 1 << 30, durable: false, ..history.clone() };
    let brief = HistoryRule { seconds_max: 1, ..history.clone() };
    let rule = |pattern: &str, history: Option<Arc<HistoryRule>>| model::Rule {
        pattern: pattern.into(),
        presence: pattern == "room:*",
        history,
        ..model::Rule::default()
    };
    model::Rules {
        rules: vec![
            rule("room:*", None),
            rule("log:*", Some(Arc::new(history))),
            rule("bulk:*", Some(Arc::new(bulk))),
            rule("job:*", Some(acknowledged.clone())),
            rule("@keen", Some(acknowledged)),
            rule("brief", Some(Arc::new(brief))),
        ],
        publish_prefixes: Vec::new(),
        inbox: None,
    }
}

/// Webhooks without a URL.
pub fn webhook() -> (Arc<Dispatcher>, webhook::Workers) {
    let fixed = webhook::Fixed {
        authorities: Authorities::SYSTEM,
        queue_events_max: 1,
        queue_events_per_url_max: 1,
        queue_bytes_max: 1 << 20,
        requests_max: 1,
        events: webhook::EventLimits { events_max: 1, bytes_max: 1 << 10 },
        tracer: None,
    };
    let settings = webhook::Settings {
        url: None,
        secret: None,
        signing_key: None,
        timeout: Duration::from_secs(1),
        batch_events_max: 1,
        events: Default::default(),
        event_retry: Duration::from_secs(1),
        occupancy: Duration::ZERO,
        forwards: Vec::new(),
    };
    Dispatcher::new(fixed, settings, webhook::EventStart::default())
}

impl Bench {
    /// Makes a call, and leaves its body to be read. Each call has a router of its own: the state of its layers
    /// begins anew.
    pub async fn open(&self, request: Request<Body>) -> Response {
        let (mut parts, body) = request.into_parts();
        parts.headers.entry("host").or_insert("127.0.0.1:8001".parse().unwrap());
        let router = api::router(self.monitor.clone());
        router.oneshot(Request::from_parts(parts, body)).await.unwrap()
    }

    pub async fn call(&self, request: Request<Body>) -> TestReply {
        let response = self.open(request).await;
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, 8 << 20).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        TestReply { status: parts.status.as_u16(), headers: parts.headers, text }
    }

    pub async fn get(&self, path: &str) -> TestReply {
        self.call(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn delete(&self, path: &str) -> TestReply {
        self.call(Request::delete(path).body(Body::empty()).unwrap()).await
    }

    pub async fn post(&self, path: &str, body: impl ToString) -> TestReply {
        self.call(Request::post(path).body(body.to_string().into()).unwrap()).await
    }
}
