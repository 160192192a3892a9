//! The events that an operator sees of connections to an engine.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use history::History;
use model::{
    AcknowledgeRule, ConnectionId, Data, HistoryRule, NodeId, Publication, PublishRule, Rule, Rules,
};
use protocol::websocket::frame::{Opcode, encode_masked};

use super::event::{TraceEvent, TraceKind, TraceSink};
use super::state::{EVENTS_PER_SECOND_MAX, RESERVED, TRACES_MAX};
use crate::core::command::{Command, Target};
use crate::core::handle::Shared;
use crate::testing::{self, ClientEnd, Driver};

/// The received events.
#[derive(Default)]
struct Sink(Mutex<Vec<TraceEvent>>);

impl TraceSink for Sink {
    fn push(&self, event: TraceEvent) {
        self.0.lock().unwrap().push(event);
    }
}

impl Sink {
    fn take(&self) -> Vec<TraceEvent> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// Returns the received events, a line each.
    fn lines(&self) -> Vec<String> {
        self.take().iter().map(line).collect()
    }
}

fn line(event: &TraceEvent) -> String {
    match &event.kind {
        TraceKind::Open(it) => format!("open {} {} topics", it.transport, it.topics),
        TraceKind::Connected(it) => format!("connected {} {:?}", it.transport, it.users),
        TraceKind::LoggedIn(user) => format!("logged in {user}"),
        TraceKind::LoggedOut(user) => format!("logged out {user}"),
        TraceKind::Disconnected { reason, age_seconds } => {
            format!("disconnected {} after {age_seconds} s", reason.name())
        }
        TraceKind::Subscribed(topic) => format!("subscribed {topic}"),
        TraceKind::Unsubscribed(topic) => format!("unsubscribed {topic}"),
        TraceKind::Published { topic, bytes } => format!("published {topic} {bytes}"),
        TraceKind::Delivered(it) => {
            format!("delivered {} {} {} after {} us", it.topic, it.event, it.bytes, it.age_us)
        }
        TraceKind::NotDelivered(it, why) => format!("not delivered {} {}", it.topic, why.name()),
        TraceKind::Acknowledged { topic, .. } => format!("acknowledged {topic}"),
        TraceKind::Blocked => "blocked".into(),
        TraceKind::Drained => "drained".into(),
        TraceKind::LeftOut(events) => format!("left out {events}"),
    }
}

struct World {
    driver: Driver,
    broker: Arc<dyn broker::Broker>,
}

fn rules() -> Rules {
    let rule = |pattern: &str| Rule {
        pattern: pattern.into(),
        publish: Some(PublishRule::Allow),
        ..Rule::default()
    };
    let acknowledge = AcknowledgeRule {
        window_messages_max: 5,
        redelivery_seconds: 30,
        delivery_count_max: 0,
        dead_letter: None,
    };
    let history = HistoryRule {
        messages_max: 10,
        bytes_max: 1 << 20,
        seconds_max: 1_000,
        durable: false,
        compact: false,
        acknowledge: Some(acknowledge),
    };
    let rules = vec![
        Rule { history: Some(Arc::new(history)), ..rule("ack/*") },
        Rule { conflate: true, ..rule("newest") },
        rule("*"),
    ];
    Rules { rules, publish_prefixes: vec!["".into()], ..Rules::default() }
}

impl World {
    fn new() -> World {
        let handle = testing::handle(100);
        let limits = broker::Limits {
            recent_messages_max: 10,
            recent_bytes_max: 1 << 20,
            recent_seconds_max: 1,
        };
        let started = Instant::now();
        let router = Arc::new(broker::Router::new(vec![handle.inbox()]));
        let begin = history_local::Begin::in_memory(broker::epoch(&[7; 20]));
        let history_limits = history_local::HistoryLimits::default();
        let history =
            history_local::Local::new(router.clone(), begin, started, history_limits, limits);
        let history = Arc::new(history);
        history.set_rules(Arc::new(rules()), 60);
        let broker =
            Arc::new(broker::Local::new(router, [7; 20], started, limits, history.clone()));
        let node = NodeId(0x5f3a_91c2);
        let presence = presence::Limits {
            users_max: 10,
            list_bytes_max: 10_000,
            interval_us: 1_000_000,
            members_per_ms: 0,
        };
        let presence = Arc::new(presence::Local::new(presence, node));
        let sessions = sessions::in_memory(node);
        let protocols = protocol::standard();
        let shared = Shared::new(node, protocols, presence, Arc::default(), sessions);
        let mut settings = crate::recovery::simulation::settings();
        settings.session.policy = auth::Policy::new(rules(), auth::LoginRule::Allow);
        let drivers =
            testing::drivers(&[handle], settings, broker.clone(), history, Arc::new(shared));
        World { driver: drivers.into_iter().next().unwrap(), broker }
    }

    fn trace(&mut self, number: u64, target: Target) -> (Arc<Sink>, u32) {
        let sink = Arc::<Sink>::default();
        let count = Arc::new(Mutex::new(None));
        let counted = count.clone();
        let reply = Box::new(move |found| *counted.lock().unwrap() = Some(found));
        let command = Command::Trace { number, target, sink: sink.clone(), reply };
        self.driver.engine.handle().send(command);
        self.work();
        let count = count.lock().unwrap().take().expect("a reply");
        (sink, count)
    }

    fn alice(&mut self) -> Arc<Sink> {
        self.trace(1, Target::User("alice".into())).0
    }

    fn connect(&mut self, request: &str) -> ClientEnd {
        let (ours, theirs) = testing::pair();
        ours.send(request.as_bytes());
        self.driver.connect(theirs);
        self.work();
        ours
    }

    fn sse(&mut self, query: &str) -> ClientEnd {
        self.connect(&format!("GET /sse?{query} HTTP/1.1\r\nHost: t\r\n\r\n"))
    }

    fn ws(&mut self, query: &str) -> ClientEnd {
        let socket = self.connect(&format!(
            "GET /ws?{query} HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        ));
        read(&socket);
        socket
    }

    fn command(&mut self, socket: &ClientEnd, text: &str) -> String {
        let mut out = Vec::new();
        encode_masked(Opcode::Text, false, text.as_bytes(), [1, 2, 3, 4], &mut out);
        socket.send(&out);
        self.work();
        read(socket)
    }

    fn publish(&mut self, topic: &str, data: &str) {
        let publication = Publication::new(topic, Data::Text(data.into()));
        self.broker.publish(publication, None).unwrap();
        self.work();
    }

    /// Lets the engine work until it is quiet.
    fn work(&mut self) {
        for _ in 0..8 {
            self.driver.resume();
            let (sockets, _) = self.driver.events();
            sockets.into_iter().for_each(|slot| self.driver.ready(slot));
            self.driver.work();
        }
    }

    /// Lets so many seconds pass.
    fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.driver.engine.set_now(self.driver.engine.now_us() + 250_000);
            self.driver.sweep();
            self.work();
        }
    }
}

fn read(socket: &ClientEnd) -> String {
    String::from_utf8_lossy(&socket.read(usize::MAX).unwrap_or_default()).into_owned()
}

#[test]
fn a_users_connection_is_followed_from_its_beginning_to_its_end() {
    let mut world = World::new();
    let sink = world.alice();
    assert_eq!(sink.lines(), [""; 0]);
    let stranger = world.sse("user=bob&topic=news");
    assert_eq!(sink.lines(), [""; 0]);
    let socket = world.ws("user=alice&topic=news");
    assert_eq!(sink.lines(), ["connected ws [\"alice\"]", "subscribed news"]);
    world.publish("news", "four");
    let events = sink.take();
    assert_eq!(
        events.iter().map(line).collect::<Vec<_>>(),
        ["delivered news message 4 after 0 us"]
    );
    let id: ConnectionId = events[0].connection.unwrap();
    assert_eq!((id.shard, id.node), (0, NodeId(0x5f3a_91c2)));
    world.command(&socket, r#"{"type":"subscribe","id":1,"topic":"room"}"#);
    world.command(&socket, r#"{"type":"publish","id":2,"topic":"room","data":"me"}"#);
    world.command(&socket, r#"{"type":"unsubscribe","id":3,"topic":"news"}"#);
    let lines = sink.lines();
    assert_eq!(lines[..2], ["subscribed room", "published room 2"]);
    assert!(lines[2].starts_with("delivered room message 2 "), "{lines:?}");
    assert_eq!(lines[3..], ["unsubscribed news"]);
    world.publish("@alice", "own");
    world.publish("news", "no");
    assert_eq!(sink.lines(), ["delivered @alice message 3 after 0 us"]);
    world.wait(3);
    drop(socket);
    world.work();
    assert_eq!(sink.lines(), ["disconnected client after 3 s"]);
    assert!(world.driver.engine.core.traces.followers(1).next().is_none());
    drop(stranger);
}

#[test]
fn what_is_open_is_reported_at_the_beginning_and_nothing_after_the_end() {
    let mut world = World::new();
    let _first = world.sse("user=alice&topic=a&topic=b");
    let _second = world.ws("user=alice");
    world.wait(2);
    let (sink, count) = world.trace(7, Target::User("alice".into()));
    assert_eq!(count, 2);
    let mut lines = sink.lines();
    lines.sort();
    assert_eq!(lines, ["open sse 2 topics", "open ws 0 topics"]);
    // Another trace of the same user has its own events.
    let (other, _) = world.trace(8, Target::User("alice".into()));
    other.take();
    world.publish("a", "x");
    assert_eq!((sink.take().len(), other.take().len()), (1, 1));
    world.driver.engine.handle().send(Command::TraceEnd { number: 7 });
    world.publish("a", "x");
    assert_eq!((sink.take().len(), other.take().len()), (0, 1));
    world.driver.engine.handle().send(Command::TraceEnd { number: 8 });
    world.driver.engine.handle().send(Command::TraceEnd { number: 9 });
    world.publish("a", "x");
    assert_eq!((sink.take().len(), other.take().len()), (0, 0));
    assert!(world.driver.engine.core.traces.is_empty());
}

#[test]
fn one_connection_is_followed_without_a_user_as_well() {
    let mut world = World::new();
    let absent = ConnectionId { node: NodeId(0x5f3a_91c2), shard: 0, slot: 0, serial: 1 };
    assert_eq!(world.trace(1, Target::Connection(absent)).1, 0);
    let socket = world.ws("topic=a");
    let other_node = ConnectionId { node: NodeId(1), ..absent };
    assert_eq!(world.trace(2, Target::Connection(other_node)).1, 0);
    let (sink, count) = world.trace(3, Target::Connection(absent));
    assert_eq!((count, sink.lines()), (1, vec!["open ws 1 topics".to_owned()]));
    world.command(&socket, r#"{"type":"login","id":1,"user":"alice"}"#);
    world.command(&socket, r#"{"type":"logout","id":2,"user":"alice"}"#);
    assert_eq!(sink.lines(), ["logged in alice", "logged out alice"]);
    drop(socket);
    world.work();
    assert_eq!(sink.lines(), ["disconnected client after 0 s"]);
}

#[test]
fn a_user_that_logs_in_later_is_followed_until_the_logout() {
    let mut world = World::new();
    let sink = world.alice();
    let socket = world.ws("user=bob&topic=a");
    world.command(&socket, r#"{"type":"login","id":1,"user":"alice"}"#);
    let mut connected = sink.lines();
    assert_eq!(connected.len(), 1, "{connected:?}");
    let connected = connected.remove(0);
    assert!(connected.starts_with("connected ws ") && connected.contains("bob"), "{connected}");
    world.publish("a", "x");
    world.command(&socket, r#"{"type":"logout","id":2,"user":"alice"}"#);
    world.publish("a", "x");
    assert_eq!(sink.lines(), ["delivered a message 1 after 0 us", "logged out alice"]);
}

#[test]
fn messages_that_do_not_come_say_why() {
    let mut world = World::new();
    let sink = world.alice();
    let socket = world.ws("user=alice&topic=a&tag=x");
    sink.take();
    world.publish("a", "no tag");
    assert_eq!(sink.lines(), ["not delivered a tags"]);
    let id = ConnectionId { node: NodeId(0x5f3a_91c2), shard: 0, slot: 0, serial: 1 };
    let own = Publication::new("a", Data::Text("mine".into()));
    world.broker.publish(Publication { except: Some(id), ..own }, None).unwrap();
    world.work();
    assert_eq!(sink.lines(), ["not delivered a own"]);
    assert_eq!(read(&socket), "");
}

#[test]
fn acknowledgements_are_of_the_user() {
    let mut world = World::new();
    let sink = world.alice();
    let socket = world.ws("user=alice&topic=ack/1");
    sink.take();
    world.publish("ack/1", "one");
    let events = sink.take();
    let id = events.iter().find_map(|event| {
        let TraceKind::Delivered(message) = &event.kind else { return None };
        Some(message.id)
    });
    let id = id.unwrap_or_else(|| panic!("{events:?}"));
    let text = format!(r#"{{"type":"ack","id":1,"topic":"ack/1","message":"{id}"}}"#);
    let reply = world.command(&socket, &text);
    assert_eq!(sink.lines(), ["acknowledged ack/1"], "{reply}");
}

#[test]
fn a_client_that_does_not_read_is_seen_to_be_slow() {
    let mut world = World::new();
    let sink = world.alice();
    let socket = world.sse("user=alice&topic=a");
    sink.take();
    let big = "x".repeat(2_000);
    for _ in 0..3 {
        world.publish("a", &big);
    }
    let events = sink.take();
    let lines: Vec<String> = events.iter().map(line).collect();
    assert!(lines.iter().filter(|line| line.starts_with("delivered a")).count() == 3, "{lines:?}");
    let blocked = events.iter().find(|event| event.kind == TraceKind::Blocked);
    assert!(blocked.is_some_and(|event| event.outbox_bytes > 0), "{lines:?}");
    while !read(&socket).is_empty() {
        world.work();
    }
    assert_eq!(sink.lines(), ["drained"]);
    // It takes no bytes for some seconds; the end is reported, however many messages there were.
    world.wait(5);
    for _ in 0..200 {
        world.publish("a", &big);
    }
    let last = sink.lines().pop();
    assert_eq!(last.as_deref(), Some("disconnected slow_consumer after 5 s"));
}

#[test]
fn events_above_the_rate_are_left_out_and_counted() {
    let mut world = World::new();
    let sink = world.alice();
    let socket = world.sse("user=alice&topic=a");
    let max = (EVENTS_PER_SECOND_MAX - RESERVED) as usize;
    for _ in 0..max + 30 {
        world.publish("a", "x");
        read(&socket);
    }
    // Two of them were of the connect.
    assert_eq!(sink.take().len(), max);
    world.wait(2);
    assert_eq!(sink.lines(), ["left out 32"]);
    world.publish("a", "x");
    assert_eq!(sink.take().len(), 1);
}

#[test]
fn there_are_only_so_many_traces() {
    let mut world = World::new();
    let _socket = world.sse("user=alice");
    let counts = (0..=TRACES_MAX as u64).map(|number| {
        let target = Target::User("alice".into());
        world.trace(number, target).1
    });
    let counts: Vec<u32> = counts.collect();
    assert_eq!(counts, [[1; TRACES_MAX].as_slice(), &[0]].concat());
    world.driver.engine.handle().send(Command::TraceEnd { number: 3 });
    assert_eq!(world.trace(99, Target::User("alice".into())).1, 1);
}

#[test]
fn a_poll_is_a_connection_that_ends_with_its_reply() {
    let mut world = World::new();
    let sink = world.alice();
    let _poll = world.connect("GET /poll?user=alice&topic=a HTTP/1.1\r\nHost: t\r\n\r\n");
    world.publish("a", "x");
    let lines = sink.lines();
    assert_eq!(lines[..2], ["connected poll [\"alice\"]", "subscribed a"]);
    assert!(lines[2].starts_with("delivered a message 1 "), "{lines:?}");
    assert_eq!(lines[3..], ["disconnected answered after 0 s"]);
}
