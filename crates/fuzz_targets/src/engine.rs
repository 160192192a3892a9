//! An engine with peers of all protocols.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use ::engine::{
    Arrival, Command, Config, Engine, Handle, Listener, Output, Outputs, Queue, Settings, Shared,
    Target, TraceEvent, TraceSink,
};
use broker::Broker;
use history::{History, Implicit};
use model::{
    CloseReason, Data, Envelope, HistoryRule, NodeId, Publication, PublishRule, Rule, Rules,
};

/// The first bytes of peers, so that the bytes that follow get beyond the first line.
const OPENINGS: [&[u8]; 9] = [
    b"",
    b"GET /sse?topic=h/1&user=u&since=f8f8f8f8:1 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /stream?topic=h/1&topic=p&user=u HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /poll?topic=h/1&timeout=5 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST /publish?topic=h/1 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /ws?user=u&topic=h/1 HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
      Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    b"GET /socket/websocket?vsn=2.0.0&user=u HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n\
      Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
      Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    b"GET /socket/longpoll?vsn=2.0.0&user=u HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /presence?topic=p HTTP/1.1\r\nHost: h\r\n\r\n",
];

/// The first packets of MQTT clients: CONNECT, and packets that may follow it.
const MQTT_OPENINGS: [&[&[u8]]; 8] = [
    &[],
    &[MQTT_3],
    &[MQTT_3, b"\x82\x0e\0\x01\0\x03h/+\x01\0\x03p/#\x02"],
    // A whole QoS 2 exchange.
    &[MQTT_3, b"\x34\x08\0\x03h/1\0\x07x", b"\x62\x02\0\x07"],
    &[MQTT_5],
    &[MQTT_5, b"\x82\x16\0\x01\0\0\x03h/+\x01\0\x0a$share/g/#\x02"],
    // The client receives its own QoS 2 message, which is retained and expires.
    &[MQTT_5, SUBSCRIBE_5, b"\x35\x0e\0\x03h/1\0\x07\x05\x02\0\0\0\x02x"],
    &[MQTT_5_WILL, SUBSCRIBE_5],
];

/// SUBSCRIBE of MQTT 5.0 to `h/#`, with QoS 2.
const SUBSCRIBE_5: &[u8] = b"\x82\x09\0\x01\0\0\x03h/#\x02";

/// CONNECT of MQTT 3.1.1: client c, with a persistent session.
const MQTT_3: &[u8] = b"\x10\x0d\0\x04MQTT\x04\0\0\x05\0\x01c";

/// CONNECT of MQTT 5.0: client c, with a persistent session and receive maximum 2.
const MQTT_5: &[u8] = b"\x10\x16\0\x04MQTT\x05\0\0\x05\x08\x11\0\0\0\x09\x21\0\x02\0\x01c";

/// CONNECT of MQTT 5.0: client w, with a retained will that is delayed by a second.
const MQTT_5_WILL: &[u8] = b"\x10\x23\0\x04MQTT\x05\x34\0\x05\x05\x11\0\0\0\x09\0\x01w\
      \x05\x18\0\0\0\x01\0\x03h/1\0\x03bye";

#[derive(Default)]
struct Commands(Mutex<Vec<Command>>);

impl Queue for Commands {
    fn push(&self, command: Command) {
        self.0.lock().unwrap().push(command);
    }
    fn has_capacity(&self) -> bool {
        true
    }
    fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
    fn take(&self, empty: Vec<Command>) -> Vec<Command> {
        std::mem::replace(&mut *self.0.lock().unwrap(), empty)
    }
}

/// Receives the events of a trace of the user.
struct Follower;

impl TraceSink for Follower {
    fn push(&self, event: TraceEvent) {
        assert!(event.connection.is_none_or(|id| id.node == NodeId(1)));
    }
}

/// A history of a few messages.
fn small_history() -> Arc<HistoryRule> {
    Arc::new(HistoryRule {
        messages_max: 5,
        bytes_max: 1_000,
        seconds_max: 1_000,
        durable: false,
        compact: false,
        acknowledge: None,
    })
}

/// The implicit history for MQTT sessions.
fn implicit(interests: Arc<sessions::Interests>) -> Implicit {
    let (any, wants) = (interests.clone(), interests);
    Implicit {
        rule: small_history(),
        any: Arc::new(move || any.count() > 0),
        wants: Arc::new(move |topic| wants.holds(topic)),
    }
}

fn rules() -> Rules {
    let rule = |pattern: &str, history| Rule {
        pattern: pattern.into(),
        publish: Some(PublishRule::Allow),
        presence: true,
        history,
        ..Rule::default()
    };
    Rules {
        rules: vec![rule("h/*", Some(small_history())), rule("p*", None)],
        publish_prefixes: vec!["".into()],
        ..Rules::default()
    }
}

fn settings() -> Settings {
    let policy = auth::Policy::new(rules(), auth::LoginRule::Allow);
    let defaults = Settings::for_tests(policy);
    Settings {
        session: protocol::Settings {
            http: protocol::http::Limits {
                head_bytes_max: 1_024,
                uri_bytes_max: 512,
                body_bytes_max: 256,
                longpoll_body_bytes_max: 256,
            },
            topics_per_connection_max: 8,
            message_bytes_max: 256,
            frame_bytes_max: 512,
            sse_retry_ms: 1,
            poll_seconds: 1,
            poll_seconds_max: 9,
            sse_heartbeat_seconds: 3,
            stream_heartbeat_seconds: 3,
            ws_ping_seconds: 3,
            ws_silence_seconds: 9,
            phoenix_silence_seconds: 9,
            compression: true,
            ws_echo: true,
            status_page: true,
            ..defaults.session.clone()
        },
        connections_max: 50,
        outbox_bytes_max: 4_096,
        outbox_messages_max: 20,
        input_bytes_max: 100_000,
        outboxes_bytes_max: 100_000,
        publishes_per_second_max: 5,
        joins_per_second_max: 5,
        head_seconds: 2,
        idle_seconds: 5,
        longpoll_seconds: 2,
        longpoll_sessions_max: 5,
        ..defaults
    }
}

/// The sessions of MQTT clients, and retained messages.
type MqttStores = (Arc<dyn sessions::Sessions>, Arc<dyn sessions::Retained>);

fn new_engine(
    handle: Handle,
    broker: &Arc<broker::Local>,
    history: &Arc<history_local::Local>,
    presence: &Arc<presence::Local>,
    mqtt: &MqttStores,
    now_us: u64,
) -> Engine {
    let protocols = protocol::standard();
    let shared = Shared::new(NodeId(1), protocols, presence.clone(), Arc::default(), mqtt.clone());
    Engine::new(Config {
        number: 0,
        engines: [handle].into(),
        shared: Arc::new(shared),
        settings: Arc::new(settings()),
        broker: broker.clone(),
        history: history.clone(),
        webhook: None,
        codecs: protocol::Codecs::new(1, 64),
        now_us,
    })
}

struct World {
    engine: Engine,
    broker: Arc<broker::Local>,
    history: Arc<history_local::Local>,
    presence: Arc<presence::Local>,
    mqtt: MqttStores,
    /// The slots of open sockets; true if the kernel takes no more bytes of the socket.
    sockets: Vec<(u32, bool)>,
    /// The slots whose engine waits for all bytes to leave.
    confirmed: Vec<u32>,
    now_us: u64,
}

impl World {
    fn new() -> Self {
        let handle = Handle::new(Box::<Commands>::default(), 64);
        let retained = Arc::new(sessions::LocalRetained::new(None));
        let keeper = retained.clone();
        let router = broker::Router::new(vec![handle.inbox()])
            .retaining(Arc::new(move |message: &Arc<Envelope>, _| keeper.retain(message)));
        let router = Arc::new(router);
        let started = Instant::now();
        let limits = broker::Limits {
            recent_messages_max: 20,
            recent_bytes_max: 10_000,
            recent_seconds_max: 100,
        };
        let begin = history_local::Begin::in_memory(broker::epoch(&[7; 20]));
        let windows = history_local::HistoryLimits::default();
        let history =
            Arc::new(history_local::Local::new(router.clone(), begin, started, windows, limits));
        let interests = Arc::new(sessions::Interests::default());
        let sessions = sessions::Local::new(NodeId(1), interests.clone(), None);
        history.set_rules(Arc::new(rules()), 60);
        history.set_implicit(Some(implicit(interests)));
        let broker =
            Arc::new(broker::Local::new(router, [7; 20], started, limits, history.clone()));
        let limits = presence::Limits {
            users_max: 3,
            list_bytes_max: 1_000,
            interval_us: 0,
            members_per_ms: 0,
        };
        let presence = Arc::new(presence::Local::new(limits, NodeId(1)));
        let mqtt: MqttStores = (Arc::new(sessions), retained);
        let engine = new_engine(handle, &broker, &history, &presence, &mqtt, 0);
        let (sockets, confirmed) = (Vec::new(), Vec::new());
        let world =
            World { engine, broker, history, presence, mqtt, sockets, confirmed, now_us: 0 };
        world.follow();
        world
    }

    /// Makes the engine trace the user.
    fn follow(&self) {
        let (number, target, sink) = (1, Target::User("u".into()), Arc::new(Follower));
        self.engine.handle().send(Command::Trace { number, target, sink, reply: Box::new(|_| ()) });
    }

    /// Replaces the engine by a new one, unless it does not become quiet. First, the engine of another world imports
    /// the same records with `damage`: the position and the bits of a byte.
    fn upgrade(&mut self, damage: &[u8]) {
        for _ in 0..50 {
            if self.engine.is_quiet() {
                break;
            }
            self.turn();
        }
        if !self.engine.is_quiet() {
            return;
        }
        let World { engine, broker, history, presence, mqtt, now_us, .. } = self;
        let handle = engine.handle().successor();
        let new = || new_engine(handle.clone(), broker, history, presence, mqtt, *now_us);
        let records: Vec<Vec<u8>> = engine.slots().filter_map(|slot| engine.export(slot)).collect();
        if let [position, bits, ..] = damage
            && *bits != 0
        {
            // This world shares nothing with the other one.
            let mut damaged = World::new();
            damaged.engine.import_engine(&engine.export_engine()).expect("an engine's own record");
            for record in &records {
                let mut record = record.clone();
                let position = usize::from(*position) % record.len();
                record[position] ^= bits;
                if let Ok(slot) = damaged.engine.import(&record) {
                    damaged.sockets.push((slot, false));
                }
            }
            damaged.engine.restart();
            damaged.perform();
            for (slot, _) in damaged.sockets.clone() {
                damaged.engine.on_received(slot, &mut damage.to_vec());
            }
            damaged.now_us = *now_us + 1_000_000;
            damaged.engine.set_now(damaged.now_us);
            damaged.turn();
            damaged.engine.end_all();
            damaged.perform();
            assert_eq!(
                damaged.engine.metrics().open_connections.get(),
                0,
                "connections that stay after damage"
            );
        }
        let mut next = new();
        next.import_engine(&engine.export_engine()).expect("an engine's own record");
        for record in records {
            next.import(&record).expect("a connection's own record");
        }
        self.engine = next;
        self.engine.restart();
        self.follow();
        self.perform();
    }

    fn perform(&mut self) {
        while self.engine.has_outputs() {
            let Outputs { list, .. } = self.engine.poll_outputs(Outputs::default());
            for output in list {
                match output {
                    Output::Send { slot, confirm, .. } => {
                        let full = self.sockets.contains(&(slot, true));
                        if full {
                            self.engine.on_blocked(slot);
                        } else if confirm {
                            self.confirmed.push(slot);
                        }
                    }
                    Output::Close { slot, linger: true } => self.engine.on_half_closed(slot),
                    Output::Close { slot, linger: false } => self.engine.on_ended(slot),
                    Output::Drop { slot } => self.sockets.retain(|it| it.0 != slot),
                    Output::Address { slot } => self.engine.on_address(slot, None),
                    Output::Describe(describe) => {
                        (describe.reply)((describe.members, describe.connections));
                    }
                    Output::Observed(_) => {}
                    Output::Slowest(slowest) => (slowest.reply)((0, Vec::new())),
                    Output::Traced(traced) => traced.sink.push(traced.event),
                    Output::Shared { .. } | Output::Delivered { .. } | Output::Resume { .. } => {}
                }
            }
        }
    }

    fn turn(&mut self) {
        self.engine.resume_waiters();
        self.perform();
        for slot in std::mem::take(&mut self.confirmed) {
            self.engine.on_drained(slot);
            self.perform();
        }
        self.engine.take_commands();
        self.engine.run_commands();
        self.perform();
        self.engine.release_pending();
        for _ in 0..20 {
            if self.engine.slice(true).is_none() {
                break;
            }
            self.perform();
        }
        self.engine.serve_due();
        self.engine.reply_woken();
        self.perform();
        if self.now_us >= self.engine.sweep_due_us() {
            self.engine.sweep();
            self.perform();
        }
    }

    fn step(&mut self, op: u8, bytes: &[u8]) {
        let index = usize::from(op) % self.sockets.len().max(1);
        let socket = self.sockets.get(index).map(|it| it.0);
        match (op >> 4, socket) {
            (0..=2, _) if self.sockets.len() < 20 => {
                let arrival = match op & 15 {
                    15 => Arrival::Reserved,
                    _ => Arrival::Direct(None),
                };
                let (listener, opening) = match op >> 4 {
                    0 => (Listener::Client, OPENINGS[usize::from(op) % OPENINGS.len()].to_vec()),
                    1 => (Listener::Client, MQTT_OPENINGS[usize::from(op & 7)].concat()),
                    _ => (Listener::Mqtt, MQTT_OPENINGS[usize::from(op & 7)].concat()),
                };
                let slot = self.engine.open(listener, arrival);
                self.sockets.push((slot, false));
                self.engine.on_received(slot, &mut [&*opening, bytes].concat());
            }
            (3..=7, Some(slot)) if self.engine.input_capacity(slot, bytes.len().max(1)) > 0 => {
                self.engine.on_received(slot, &mut bytes.to_vec());
            }
            (8, Some(slot)) => self.engine.on_peer_closed(slot),
            (9, Some(slot)) => self.engine.on_lost(slot),
            (10, Some(slot)) => {
                self.sockets[index].1 ^= true;
                if !self.sockets[index].1 {
                    self.engine.on_drained(slot);
                }
            }
            (11, Some(slot)) => self.engine.on_slow(slot),
            (12, _) => {
                let topic = ["h/1", "p", "*", "@u"][usize::from(op) % 4];
                let text = String::from_utf8_lossy(bytes).into_owned();
                let publication = Publication::new(topic, Data::Text(text.into()));
                let _ = self.broker.publish(publication, None);
            }
            (13, _) => {
                let (user, topic) = ("u".into(), "h/2".into());
                self.engine.handle().send(match op & 3 {
                    0 => Command::Subscribe { user, topic, reply: Box::new(|_| ()) },
                    1 => Command::Unsubscribe { user, topic, reply: Box::new(|_| ()) },
                    2 => Command::Members { topic: "@u".into(), limit: 9, reply: Box::new(|_| ()) },
                    _ => Command::Disconnect {
                        target: Target::User(user),
                        close: CloseReason::ByApplication,
                        reply: Box::new(|_| ()),
                    },
                });
            }
            (14, _) => {
                self.now_us += u64::from(op & 15) * 400_000;
                self.engine.set_now(self.now_us);
            }
            (15, _) if op & 3 == 3 => self.upgrade(bytes),
            _ => self.turn(),
        }
        self.perform();
    }
}

/// Runs an engine while peers send, sockets fill and close, commands come, time passes and upgrades replace it. At
/// the end no connection leaves anything behind. The input is a list of steps: a byte that chooses the step, the
/// number of its bytes, and these bytes.
pub fn engine(data: &[u8]) {
    let mut world = World::new();
    let mut rest = data;
    while let [op, length, tail @ ..] = rest {
        let length = usize::from(*length).min(tail.len());
        world.step(*op, &tail[..length]);
        rest = &tail[length..];
    }
    world.turn();
    world.engine.end_all();
    world.perform();
    assert!(world.sockets.is_empty(), "sockets of connections that have ended");
    assert_eq!(
        world.engine.metrics().open_connections.get(),
        0,
        "connections that have ended are counted"
    );
}
