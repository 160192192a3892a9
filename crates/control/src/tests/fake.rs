//! A node without connections: shards that answer from a table, and a broker that remembers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use axum::response::Response;
use broker::{
    Activity, Begin, Broker, Done, Kept, Latest, Local, Publish, PublishError, Published, Receipt,
    Recent, TopicActivity,
};
use serde_json::Value;
use shard::{Command, ConnectionInfo, Metrics, Target, TopicInfo};
use tower::ServiceExt;
use wire::{Acknowledge, ConnectionId, Draft, Epoch, History, Id, Message, Name};

use crate::live::{Monitor, Sampler};
use crate::webhook::{self, Dispatcher, Worker};
use crate::{Live, Node, Shards, api};

/// How shards and receipts behave.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Willing,
    /// The shards have ended: replies are dropped.
    Ended,
    /// The shards take commands and don't answer; receipts stay open.
    Silent,
    /// Mailboxes are full.
    Overloaded,
}

/// Two shards, each with two connections of `alice` in `news`.
pub struct FakeShards {
    mood: Mood,
    metrics: [Metrics; 2],
    /// What was asked, one line a command.
    asked: Arc<Mutex<Vec<String>>>,
    kept: Mutex<Vec<Command>>,
}

impl Shards for FakeShards {
    fn count(&self) -> usize {
        2
    }

    fn send(&self, shard: usize, command: Command) {
        match self.mood {
            Mood::Ended => drop(command),
            Mood::Silent => self.kept.lock().unwrap().push(command),
            Mood::Willing | Mood::Overloaded => {
                let told = answer(shard, command);
                self.asked.lock().unwrap().push(format!("{shard} {told}"));
            }
        }
    }

    fn metrics(&self, shard: usize) -> &Metrics {
        &self.metrics[shard]
    }
}

fn answer(shard: usize, command: Command) -> String {
    match command {
        Command::Disconnect { target: Target::User(user), close, reply } => {
            reply(2);
            format!("disconnect {user} {}", close.name())
        }
        Command::Disconnect { target: Target::Connection(id), reply, .. } => {
            reply(1);
            format!("disconnect {id}")
        }
        Command::Subscribe { user, topic, reply } => {
            reply(2);
            format!("subscribe {user} {topic}")
        }
        Command::Unsubscribe { user, topic, reply } => {
            reply(1);
            format!("unsubscribe {user} {topic}")
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
        Command::Biggest { limit, reply } => {
            // "deep" is the biggest of all, but a small one on shard 1.
            let own = [vec![("deep", 30), ("a", 6)], vec![("a", 5), ("b", 4), ("deep", 3)]];
            let own = own[shard].iter().map(|(topic, members)| (Name::from(*topic), *members));
            let small = (0..limit).map(|n| (format!("small-{shard}-{n:03}").into(), 2));
            let topics = own.chain(small).take(limit);
            reply(topics.map(|(topic, members)| TopicInfo { topic, members }).collect());
            format!("biggest {limit}")
        }
        Command::Members { topic, limit, reply } => {
            reply((5, (0..5.min(limit)).map(|_| connection(shard as u16)).collect()));
            format!("members {topic} {limit}")
        }
        _ => "other".into(),
    }
}

fn connection(shard: u16) -> ConnectionInfo {
    ConnectionInfo {
        id: ConnectionId { shard, slot: 12, serial: 345 },
        transport: "sse",
        age_seconds: 60,
        address: Some("10.0.0.1:5000".parse().unwrap()),
        users: vec!["alice".into()],
        topics: vec!["news".into()],
        bytes_sent: 1000,
        bytes_received: 100,
        outbox_bytes: 7,
    }
}

/// The epoch of topics with history.
pub const KEPT_EPOCH: Epoch = Epoch(0x0bad_cafe);

/// Gives offsets from 1, keeps all messages for half a minute, and counts four members for each
/// message. Topics with history are a real broker's.
pub struct FakeBroker {
    real: Local,
    mood: Mood,
    offset: AtomicU64,
    drafts: Arc<Mutex<Vec<Draft>>>,
    messages: Mutex<Vec<Arc<Message>>>,
    kept: Mutex<Vec<Receipt>>,
    /// What waits for a disk that never answers.
    waiting: Mutex<Vec<Done>>,
}

impl Broker for FakeBroker {
    fn publish(&self, draft: Draft, receipt: Option<Receipt>) -> Result<Id, PublishError> {
        if self.mood == Mood::Overloaded {
            return Err(PublishError::Overloaded);
        }
        self.drafts.lock().unwrap().push(draft.clone());
        if let Some(receipt) = receipt {
            receipt.add(4);
            if self.mood == Mood::Silent {
                self.kept.lock().unwrap().push(receipt);
            }
        }
        let offset = self.offset.fetch_add(1, Ordering::Relaxed) + 1;
        let id = Id { epoch: self.epoch(), offset };
        let message = Message::new(draft.clone(), id, self.hash(&draft.topic), offset * 1_000_000);
        self.messages.lock().unwrap().push(Arc::new(message));
        Ok(id)
    }

    fn submit(&self, publish: Publish, receipt: Option<Receipt>, done: Done) {
        let Publish { draft, options } = &publish;
        let is_kept = self.real.kept().rule(&draft.topic).is_some() && !options.no_history;
        match &*draft.topic {
            "log:silent" => self.waiting.lock().unwrap().push(done),
            "log:full" => done(Err(PublishError::StoreBusy)),
            "log:broken" => done(Err(PublishError::StoreFailed("the disk is full".into()))),
            _ if is_kept && self.mood != Mood::Overloaded => {
                self.drafts.lock().unwrap().push(draft.clone());
                if let Some(receipt) = &receipt {
                    receipt.add(4);
                }
                self.real.submit(publish, receipt, done);
            }
            _ => {
                let id = self.publish(publish.draft, receipt);
                done(id.map(|id| Published { id, repeated: false }));
            }
        }
    }

    fn kept(&self) -> &Kept {
        self.real.kept()
    }

    fn recent(&self, _: &[(u64, &str)], _: Option<Id>) -> Recent {
        let top = Id { epoch: self.epoch(), offset: self.offset.load(Ordering::Relaxed) };
        Recent { messages: Vec::new(), top, complete: true }
    }

    fn latest(&self, topic: Option<(u64, &str)>, limit: usize) -> Latest {
        let messages = self.messages.lock().unwrap();
        let asked = messages
            .iter()
            .rev()
            .filter(|message| topic.is_none_or(|(_, name)| name == message.draft.topic));
        // Whoever looks for a needle is told that not all was looked at.
        let complete = topic.is_none_or(|(_, name)| name != "needle");
        Latest { messages: asked.take(limit).cloned().collect(), complete }
    }

    fn activity(&self, _: u64) -> Activity {
        let mut activity = Activity { span_us: 30_000_000, ..Activity::default() };
        for message in self.messages.lock().unwrap().iter() {
            let topic = message.draft.topic.clone();
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
    pub drafts: Arc<Mutex<Vec<Draft>>>,
    pub asked: Arc<Mutex<Vec<String>>>,
}

/// An answer.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
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
    let (drafts, asked) = (Arc::default(), Arc::default());
    bench_of(node(mood, Arc::clone(&drafts), Arc::clone(&asked)), drafts, asked)
}

/// A node whose topics with history are on disk.
pub fn stored(store: store::Store, last: u64) -> Bench {
    let (drafts, asked) = (Arc::default(), Arc::default());
    let begin = Begin { epoch: KEPT_EPOCH, last, store: Some(store) };
    let node = node_from(Mood::Willing, Arc::clone(&drafts), Arc::clone(&asked), begin);
    bench_of(node, drafts, asked)
}

/// A node whose subscriptions are kept there.
pub fn keeping(mood: Mood, keep: Arc<dyn subscriptions::Keep>) -> Bench {
    let (drafts, asked) = (Arc::default(), Arc::default());
    let node = node(mood, Arc::clone(&drafts), Arc::clone(&asked));
    bench_of(Node { keep_subscriptions: Some(keep), ..node }, drafts, asked)
}

fn bench_of(
    node: Node<FakeShards>,
    drafts: Arc<Mutex<Vec<Draft>>>,
    asked: Arc<Mutex<Vec<String>>>,
) -> Bench {
    let node: Arc<Node> = Arc::new(node);
    let (monitor, sampler) = Monitor::new(node.clone());
    Bench { node, monitor, sampler, drafts, asked }
}

/// A node that writes down what it publishes and asks.
pub fn node(
    mood: Mood,
    drafts: Arc<Mutex<Vec<Draft>>>,
    asked: Arc<Mutex<Vec<String>>>,
) -> Node<FakeShards> {
    node_from(mood, drafts, asked, Begin { epoch: KEPT_EPOCH, last: 0, store: None })
}

fn node_from(
    mood: Mood,
    drafts: Arc<Mutex<Vec<Draft>>>,
    asked: Arc<Mutex<Vec<String>>>,
    begin: Begin,
) -> Node<FakeShards> {
    let rules = rules();
    let real = real(begin);
    real.kept().set_rules(Arc::new(rules.clone()), 300);
    let shards = FakeShards { mood, metrics: Default::default(), asked, kept: Mutex::default() };
    let broker = FakeBroker {
        real,
        waiting: Mutex::default(),
        mood,
        offset: AtomicU64::new(0),
        drafts,
        messages: Mutex::default(),
        kept: Mutex::default(),
    };
    let live = Live {
        api_key: None,
        message_bytes_max: 100,
        memory_bytes_max: 0,
        rules,
        subscriptions_per_user_max: 5,
        limits: vec![("limits.message_bytes_max", 100), ("limits.connections_max", 5000)],
        config: "[limits]\n".into(),
    };
    let subscriptions = Arc::<subscriptions::Subscriptions>::default();
    Node {
        broker: Arc::new(broker),
        shared: Arc::new(shard::Shared::new(
            shard::Presence::new(
                shard::PresenceLimits {
                    users_max: 3,
                    list_bytes_max: 1 << 20,
                    interval_us: 0,
                    members_per_ms: 0,
                },
                1,
            ),
            subscriptions.clone(),
        )),
        subscriptions,
        keep_subscriptions: None,
        subscription_turns: crate::Turns::default(),
        started: Instant::now(),
        client_url: "http://127.0.0.1:8000".into(),
        body_bytes_max: 4096,
        connections: crate::Connections::new(crate::connections::tests::limits(9)),
        anonymous_at_start: 0,
        give_back: None,
        webhook: webhook().0,
        live: Arc::new(RwLock::new(live)),
        shards,
    }
}

fn real(begin: Begin) -> Local {
    let limits = broker::Limits {
        recent_messages_max: 100,
        recent_bytes_max: 1 << 20,
        recent_seconds_max: 60,
        kept: broker::KeptLimits {
            history_bytes_max: 32 << 20,
            topics_max: 100,
            idempotency_keys_max: 100,
            cursors_max: 100,
        },
    };
    Local::new(Vec::new(), [7; 20], Instant::now(), limits, Some(begin))
}

/// `room:` has presence; `log:` and `bulk:` have a history; `job:` is acknowledged, as the messages
/// of the user `keen` are.
fn rules() -> wire::Rules {
    let history = History {
        messages_max: 5,
        bytes_max: 1 << 20,
        seconds_max: 3600,
        durable: true,
        compact: false,
        acknowledge: None,
    };
    let acknowledge = Acknowledge {
        window_messages_max: 10,
        redelivery_seconds: 30,
        tries_max: 5,
        dead_letter: None,
    };
    let acknowledged = Arc::new(History { acknowledge: Some(acknowledge), ..history.clone() });
    let bulk =
        History { messages_max: 5000, bytes_max: 1 << 30, durable: false, ..history.clone() };
    let brief = History { seconds_max: 1, ..history.clone() };
    let rule = |pattern: &str, history: Option<Arc<History>>| wire::Rule {
        pattern: pattern.into(),
        presence: pattern == "room:*",
        history,
        ..wire::Rule::default()
    };
    wire::Rules {
        rules: vec![
            rule("room:*", None),
            rule("log:*", Some(Arc::new(history))),
            rule("bulk:*", Some(Arc::new(bulk))),
            rule("job:*", Some(acknowledged.clone())),
            rule("@keen", Some(acknowledged)),
            rule("brief", Some(Arc::new(brief))),
        ],
        publish_prefixes: Vec::new(),
        offline: None,
    }
}

/// Asks nobody.
pub fn webhook() -> (Arc<Dispatcher>, Worker) {
    let fixed = webhook::Fixed {
        queue_events_max: 1,
        queue_events_per_url_max: 1,
        queue_bytes_max: 1 << 20,
        requests_max: 1,
    };
    let settings = webhook::Settings {
        url: None,
        secret: None,
        timeout: Duration::from_secs(1),
        batch_events_max: 1,
    };
    Dispatcher::new(fixed, settings)
}

impl Bench {
    /// Calls, and leaves the body to be read.
    pub async fn open(&self, request: Request<Body>) -> Response {
        let (mut parts, body) = request.into_parts();
        parts.headers.entry("host").or_insert("127.0.0.1:8001".parse().unwrap());
        let router = api::router(self.monitor.clone());
        router.oneshot(Request::from_parts(parts, body)).await.unwrap()
    }

    pub async fn call(&self, request: Request<Body>) -> Answer {
        let response = self.open(request).await;
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, 8 << 20).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer { status: parts.status.as_u16(), headers: parts.headers, text }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call(Request::delete(path).body(Body::empty()).unwrap()).await
    }

    pub async fn post(&self, path: &str, body: impl ToString) -> Answer {
        self.call(Request::post(path).body(body.to_string().into()).unwrap()).await
    }
}
