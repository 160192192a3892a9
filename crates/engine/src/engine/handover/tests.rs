//! Scenes in which new engines take the place of the old ones after any step: all clients must be sent
//! the same bytes as without.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use broker::Broker;
use history::History;
use history_local::{Begin, HistoryLimits};
use model::{
    AcknowledgeRule, CloseReason, Data, EventRule, HistoryRule, JoinRule, NodeId, Publication,
    Rule, Rules,
};
use protocol::Protocols;
use protocol::websocket::frame::{Opcode, encode_masked};
use subscriptions::Subscriptions;

use super::*;
use crate::command::{Command, Target};
use crate::connection::Phase;
use crate::handle::{Handle, Shared};
use crate::recovery::simulation::late::Late;
use crate::settings::Settings;
use crate::testing::{self, ClientEnd, Driver};
use crate::webhook::{Full, Webhook, WebhookRequest, WebhookResponse};

/// An application that answers when the scene says so.
#[derive(Default)]
struct App(Mutex<Vec<WebhookRequest>>);

impl Webhook for App {
    fn send(&self, request: WebhookRequest) -> Result<(), Full> {
        self.0.lock().unwrap().push(request);
        Ok(())
    }
}

fn rules() -> Rules {
    let history = |acknowledge| {
        let (messages_max, bytes_max, seconds_max) = (100, 1 << 20, 1_000);
        let (durable, compact) = (false, false);
        let rule =
            HistoryRule { messages_max, bytes_max, seconds_max, durable, compact, acknowledge };
        Some(Arc::new(rule))
    };
    let acknowledge = AcknowledgeRule {
        window_messages_max: 2,
        redelivery_seconds: 3,
        tries_max: 0,
        dead_letter: None,
    };
    let rule = |pattern: &str| Rule {
        pattern: pattern.into(),
        events: Some(EventRule::Broadcast),
        ..Rule::default()
    };
    let rules = vec![
        Rule { history: history(None), ..rule("big/*") },
        Rule { history: history(Some(acknowledge)), ..rule("ack/*") },
        Rule { presence: true, ..rule("seen/*") },
        Rule { join: JoinRule::Webhook, events: Some(EventRule::Webhook), ..rule("asked/*") },
    ];
    Rules { rules, publish_prefixes: vec!["".into()], ..Rules::default() }
}

fn settings() -> Settings {
    let simulated = crate::recovery::simulation::settings();
    Settings {
        session: protocol::Settings {
            policy: auth::Policy::new(rules(), auth::LoginRule::Allow),
            message_bytes_max: 64 << 10,
            frame_bytes_max: 64 << 10,
            ws_ping_seconds: 4,
            ws_silence_seconds: 30,
            compression: true,
            ws_echo: true,
            status_page: true,
            ..simulated.session
        },
        outbox_bytes_max: 64 << 10,
        head_seconds: 20,
        idle_seconds: 30,
        publishes_per_second_max: 4,
        longpoll_seconds: 5,
        presence_meta_bytes_max: 32 << 10,
        ..simulated
    }
}

/// One thing that happens in a scene.
#[derive(Clone, Debug)]
enum Step {
    /// A client connects to an engine, and sends this.
    Open(usize, usize, String),
    /// A client connects beyond the limit of its address.
    Beyond(usize, String),
    /// A client sends bytes.
    Send(usize, Vec<u8>),
    /// A client takes all that comes now.
    Read(usize),
    Cut(usize),
    Publish(&'static str, String),
    /// Time passes, in tenths of a second.
    Wait(u64),
    /// The application answers.
    Answer(bool),
    /// The history's answers come.
    History,
    /// The application ends all connections of a user.
    Disconnect(&'static str),
    Login(usize, &'static str),
    Logout(usize, &'static str),
}

use Step::*;

fn text(of: usize, text: &str) -> Step {
    let mut out = Vec::new();
    encode_masked(Opcode::Text, false, text.as_bytes(), [1, 2, 3, 4], &mut out);
    Send(of, out)
}

fn close_frame(of: usize) -> Step {
    let mut out = Vec::new();
    encode_masked(Opcode::Close, false, &1000u16.to_be_bytes(), [1, 2, 3, 4], &mut out);
    Send(of, out)
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")
}

fn post(target: &str, body: &str) -> String {
    format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn socket(target: &str, extensions: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{extensions}\r\n"
    )
}

/// Text that can't be compressed much.
fn fill(bytes: usize) -> String {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        char::from(b'a' + ((state >> 33) % 26) as u8)
    };
    (0..bytes).map(|_| next()).collect()
}

const CLIENTS: usize = 4;

struct Scene {
    drivers: Vec<Driver>,
    handles: Vec<Handle>,
    broker: Arc<broker::Local>,
    late: Option<Arc<Late>>,
    app: Arc<App>,
    clients: [Option<ClientEnd>; CLIENTS],
    /// Slots and engines of the clients' connections.
    places: [(usize, u32); CLIENTS],
    heard: [Vec<u8>; CLIENTS],
    now_us: u64,
    /// In which phases connections were when engines were replaced, by encoding.
    phases: BTreeSet<(u8, Phase)>,
}

impl Scene {
    fn new(is_late: bool) -> Self {
        let handles: Vec<Handle> = (0..2).map(|_| testing::handle(200)).collect();
        let inboxes: Vec<_> = handles.iter().map(Handle::inbox).collect();
        let limits = broker::Limits {
            recent_messages_max: 1_000,
            recent_bytes_max: 1 << 20,
            recent_seconds_max: 1_000,
        };
        let started = Instant::now();
        let begin = Begin::in_memory(model::Epoch(7));
        let held = HistoryLimits { cursors_max: 100, ..HistoryLimits::default() };
        let history =
            Arc::new(history_local::Local::new(inboxes.clone(), begin, started, held, limits));
        history.set_rules(Arc::new(rules()), 60);
        let broker =
            Arc::new(broker::Local::new(inboxes, [7; 20], started, limits, history.clone()));
        let late = is_late.then(|| Late::steady((*history).clone()));
        let asked: Arc<dyn History> = match &late {
            Some(late) => late.clone(),
            None => history,
        };
        let presence = presence::Limits {
            users_max: 100,
            list_bytes_max: 1 << 20,
            interval_us: 1_000,
            members_per_ms: 0,
        };
        let presence = Arc::new(presence::Local::new(presence, NodeId(1)));
        let subscriptions = Arc::new(Subscriptions::default());
        for user in ["u0", "w"] {
            subscriptions.edit(user, &["stored"], &[], 9).unwrap();
        }
        let protocols = protocol::standard();
        let shared = Arc::new(Shared::new(NodeId(1), protocols, presence, subscriptions));
        let mut drivers =
            testing::drivers(&handles, settings(), broker.clone(), asked, shared.clone());
        let app = Arc::new(App::default());
        drivers.iter_mut().for_each(|driver| driver.engine.webhook = Some(app.clone()));
        Scene {
            drivers,
            handles,
            broker,
            late,
            app,
            clients: [const { None }; CLIENTS],
            places: [(0, 0); CLIENTS],
            heard: [const { Vec::new() }; CLIENTS],
            now_us: 5_000_000,
            phases: BTreeSet::new(),
        }
    }

    fn protocols(&self) -> &'static Protocols {
        self.drivers[0].engine.shared().protocols
    }

    fn turn(&mut self) {
        for driver in &mut self.drivers {
            driver.engine.set_now(self.now_us);
            driver.resume();
            for slot in driver.events().0 {
                driver.ready(slot);
            }
            driver.work();
            driver.sweep();
        }
    }

    fn read(&mut self, client: usize) {
        for _ in 0..40 {
            if let Some(end) = &self.clients[client] {
                match end.read(1 << 20) {
                    Some(bytes) => self.heard[client].extend(bytes),
                    None => {
                        self.heard[client].extend_from_slice(b"<end>");
                        self.clients[client] = None;
                    }
                }
            }
            self.turn();
        }
    }

    fn open(&mut self, client: usize, at: usize, reserved: bool, bytes: &str) {
        let (ours, theirs) = testing::pair();
        ours.send(bytes.as_bytes());
        self.clients[client] = Some(ours);
        let slot = self.drivers[at].connect_as(theirs, reserved);
        self.places[client] = (at, slot);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Open(client, at, bytes) => self.open(*client, *at, false, bytes),
            Beyond(client, bytes) => self.open(*client, 0, true, bytes),
            Send(client, bytes) => {
                if let Some(end) = &self.clients[*client] {
                    end.send(bytes);
                }
            }
            Read(client) => self.read(*client),
            Cut(client) => self.clients[*client] = None,
            Publish(topic, data) => {
                let publication = Publication::new(*topic, Data::Text(data.as_str().into()));
                self.broker.publish(publication, None).unwrap();
            }
            Wait(tenths) => {
                for _ in 0..*tenths {
                    self.now_us += 100_000;
                    self.turn();
                }
            }
            Answer(ok) => {
                let requests = std::mem::take(&mut *self.app.0.lock().unwrap());
                for request in requests {
                    let response = WebhookResponse { ok: *ok, response: r#"{"by":"app"}"#.into() };
                    (request.reply)(response);
                }
            }
            History => self.late.iter().for_each(|late| late.turn()),
            Disconnect(user) => {
                for handle in &self.handles {
                    let (target, close) =
                        (Target::User((*user).into()), CloseReason::ByApplication);
                    handle.send(Command::Disconnect { target, close, reply: Box::new(|_| ()) });
                }
            }
            Login(client, user) => self.users(*client, user, true),
            Logout(client, user) => self.users(*client, user, false),
        }
        (0..12).for_each(|_| self.turn());
    }

    fn users(&mut self, client: usize, user: &str, login: bool) {
        let (at, slot) = self.places[client];
        let core = &self.drivers[at].engine.connections.core;
        let connection = core.id(slot, core.table.get(slot).unwrap().serial);
        let (user, reply) = (user.into(), Box::new(|done: Result<_, _>| assert!(done.is_ok())));
        self.handles[at].send(match login {
            true => Command::Login { connection, user, reply },
            false => Command::Logout { connection, user, reply },
        });
    }

    fn exports(&self) -> Vec<Vec<u8>> {
        let of = |driver: &Driver| -> Vec<Vec<u8>> {
            driver.engine.slots().filter_map(|slot| driver.engine.export(slot)).collect()
        };
        self.drivers.iter().flat_map(of).collect()
    }

    fn upgrade(&mut self) {
        testing::quiet(&mut self.drivers);
        let before = self.exports();
        for record in &before {
            let record: Record = unframe(record).unwrap();
            let phase = Phase::ALL.into_iter().find(|phase| *phase as u8 == record.phase);
            self.phases.insert((record.encoding, phase.unwrap()));
        }
        testing::upgrade(&mut self.drivers);
        if self.late.is_none() {
            assert_eq!(self.exports(), before);
        }
    }

    /// All of it, to the end of each connection that ends.
    fn play(steps: &[Step], is_late: bool, upgrades: impl Fn(usize) -> bool) -> Self {
        let mut scene = Scene::new(is_late);
        for (at, step) in steps.iter().enumerate() {
            scene.step(step);
            if upgrades(at) {
                scene.upgrade();
            }
        }
        (0..CLIENTS).for_each(|client| scene.read(client));
        scene
    }

    fn texts(&self) -> [String; CLIENTS] {
        self.heard.each_ref().map(|heard| heard.escape_ascii().to_string())
    }
}

/// Plays a scene without an upgrade, with one after each of its steps, and with one after every step.
fn check(name: &str, is_late: bool, steps: &[Step]) -> BTreeSet<(u8, Phase)> {
    let want = Scene::play(steps, is_late, |_| false).texts();
    let mut phases = BTreeSet::new();
    for upgrade in (0..steps.len()).map(Some).chain([None]) {
        let scene = Scene::play(steps, is_late, |at| upgrade.is_none_or(|only| only == at));
        let after = upgrade.map(|at| &steps[at]);
        assert_eq!(scene.texts(), want, "{name}: an upgrade after {upgrade:?}: {after:?}");
        phases.extend(scene.phases);
    }
    phases
}

/// How a lasting connection of each encoding is opened, and enters the topic `plain`.
fn openings() -> Vec<(&'static str, String, Option<Step>)> {
    let join = |text_of: &str| Some(text(0, text_of));
    let join_1 = r#"{"topic":"plain","event":"phx_join","payload":{},"ref":"1","join_ref":"1"}"#;
    let join_2 = r#"["1","1","plain","phx_join",{}]"#;
    let deflate = |bits: &str| format!("Sec-WebSocket-Extensions: permessage-deflate{bits}\r\n");
    let ws = "/ws?user=u0&topic=plain";
    vec![
        ("sse", get("/sse?user=u0&topic=plain"), None),
        ("sse as json", get("/sse?format=json&user=u0&topic=plain"), None),
        ("stream", get("/stream?user=u0&topic=plain"), None),
        ("ws", socket(ws, ""), None),
        ("ws, compressed", socket(ws, &deflate("")), None),
        ("ws, a small window", socket(ws, &deflate("; server_max_window_bits=9")), None),
        ("echo", socket("/echo", ""), None),
        ("echo, compressed", socket("/echo", &deflate("")), None),
        ("echo, a small window", socket("/echo", &deflate("; server_max_window_bits=9")), None),
        ("phoenix 1", socket("/socket/websocket?vsn=1.0.0&user=u0", ""), join(join_1)),
        ("phoenix 2", socket("/socket/websocket?vsn=2.0.0&user=u0", ""), join(join_2)),
    ]
}

/// From the first byte to the last, for each encoding: slow, closed by either side, cut.
fn lives() -> Vec<(&'static str, Vec<Step>)> {
    let mut all = Vec::new();
    for (name, request, join) in openings() {
        let (first, rest) = request.split_at(request.len() / 2);
        let mut steps = vec![Open(0, 0, first.into()), Send(0, rest.into())];
        steps.extend(join);
        let speaks = request.contains("Sec-WebSocket");
        steps.extend([Publish("plain", "one".into()), Read(0), Wait(25), Read(0)]);
        if name.starts_with("echo") {
            steps.extend([text(0, &format!("[\"{}\"]", fill(5_000))), Wait(1)]);
        }
        steps.extend([
            Publish("plain", fill(3_000)),
            Publish("*", fill(3_000)),
            Publish("plain", "behind".into()),
            Wait(40),
        ]);
        let mut by_peer = steps.clone();
        by_peer.extend([close_frame(0), Read(0), Cut(0)]);
        let mut broken = steps.clone();
        // There is no such opcode.
        broken.extend([Send(0, vec![0x8f, 0x80, 1, 2, 3, 4]), Read(0), Wait(10), Cut(0)]);
        if speaks {
            all.extend([(name, by_peer), (name, broken)]);
        }
        let mut cut = steps.clone();
        cut.push(Cut(0));
        all.push((name, cut));
        steps.extend([Disconnect("u0"), Wait(1), Read(0), Wait(30), Cut(0)]);
        all.push((name, steps));
    }
    all
}

#[test]
fn every_phase_of_every_protocol_goes_on_as_if_nothing_had_happened() {
    let mut phases = BTreeSet::new();
    let mut play = |name: &str, steps: &[Step]| phases.extend(check(name, false, steps));
    for (name, steps) in lives() {
        play(name, &steps);
    }
    play("http", &http());
    play(
        "http beyond the limit",
        &[Beyond(0, "GET /hea".into()), Send(0, "lthz".into()), Wait(30)],
    );
    play("poll", &poll());
    for vsn in ["1.0.0", "2.0.0"] {
        play("long-poll session", &session(vsn));
    }
    let has = |encoding: u8, phase| phases.contains(&(encoding, phase));
    use Phase::*;
    for protocol in Scene::new(false).protocols().all() {
        let encoding = protocol.encoding().0;
        let wanted: &[Phase] = match (protocol.name(), protocol.delivery()) {
            ("http", _) => &[Request, Idle, Waiting, Closing, HalfClosed],
            (_, protocol::Delivery::Woken) => &[Waiting],
            // It has no socket that could be half closed.
            (_, protocol::Delivery::Gathered) => &[Open, Closing],
            _ => &[Open, Closing, HalfClosed],
        };
        for phase in wanted {
            let name = protocol.name();
            assert!(has(encoding, *phase), "no {name} as encoding {encoding} was in {phase:?}");
        }
    }
}

fn http() -> Vec<Step> {
    let half = "POST /publish?topic=plain HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\
                Content-Length: 10\r\n\r\n";
    vec![
        Open(0, 0, "GET /hea".into()),
        Send(0, "lthz HTTP/1.1\r\nHost: h\r\n\r\n".into()),
        Read(0),
        Send(0, half.into()),
        Send(0, "01234".into()),
        Read(0),
        Send(0, "56789".into()),
        Read(0),
        // A pipeline, of which nobody reads the long answers.
        Send(0, [get("/status"), get("/status"), get("/presence?topic=seen/1")].concat().into()),
        Open(1, 1, get("/presence?topic=plain")),
        Read(1),
        Send(1, "NO SUCH\r\n\r\n".into()),
        Read(1),
        Read(0),
        Send(0, "GET /status HTTP/1.0\r\n\r\n".into()),
        Wait(1),
        Read(0),
        Open(2, 1, "POST /publish?topic=plain HTTP/1.1\r\n".into()),
        Wait(210),
        Read(2),
        Open(3, 0, get("/socket/longpoll?vsn=2.0.0&user=u0")),
        Read(3),
    ]
}

fn poll() -> Vec<Step> {
    vec![
        Open(0, 0, get("/poll?topic=plain&user=u0&timeout=20")),
        Publish("plain", "one".into()),
        Read(0),
        Send(0, get("/poll?topic=big/1&topic=plain&timeout=3").into()),
        Send(0, get("/healthz").into()),
        Wait(40),
        Read(0),
        Send(0, get("/poll?topic=big/1&timeout=3&tag=no").into()),
        Publish("big/1", "two".into()),
        Wait(40),
        Read(0),
        Open(1, 1, get("/poll?topic=ack/1&user=u1&timeout=9")),
        Publish("ack/1", "three".into()),
        Read(1),
        Open(2, 1, get("/poll?topic=plain&timeout=9")),
        Cut(2),
    ]
}

/// The session's token is always the same, for its key and its connection's name are.
fn session(vsn: &str) -> Vec<Step> {
    let mut opened = Scene::new(false);
    let path = format!("/socket/longpoll?vsn={vsn}&user=u0");
    opened.step(&Open(0, 0, get(&path)));
    opened.read(0);
    let answer = String::from_utf8(opened.heard[0].clone()).unwrap();
    let token = answer.split("\"token\":\"").nth(1).unwrap().split('"').next().unwrap();
    let path = format!("{path}&token={token}");
    let join = match vsn {
        "1.0.0" => r#"{"topic":"plain","event":"phx_join","payload":{},"ref":"1","join_ref":"1"}"#,
        _ => r#"["1","1","plain","phx_join",{}]"#,
    };
    vec![
        Open(0, 0, get(&format!("/socket/longpoll?vsn={vsn}&user=u0"))),
        Read(0),
        Open(1, 1, post(&path, join)),
        Read(1),
        // Answered with the reply to the join; the next one waits.
        Open(2, 1, get(&path)),
        Read(2),
        Send(2, get(&path).into()),
        Publish("plain", "one".into()),
        Publish("plain", "two".into()),
        Publish("*", "three".into()),
        Read(2),
        Send(2, get(&path).into()),
        Read(2),
        Send(2, get(&path).into()),
        Wait(70),
        Read(2),
        Publish("plain", "four".into()),
        Disconnect("u0"),
        Send(2, get(&path).into()),
        Read(2),
        Send(2, get(&path).into()),
        Read(2),
    ]
}

#[test]
fn whoever_catches_up_goes_on_at_the_same_place() {
    for is_late in [false, true] {
        for (name, path, ids) in
            [("sse", "/sse?", true), ("stream", "/stream?", false), ("ws", "/ws?", false)]
        {
            let target = format!("{path}user=u0&topic=big/1&topic=big/2&topic=plain");
            let since = |target: &str| {
                let target = format!("{target}&since:big/1=fffffff8:2&since:big/2=fffffff8:0");
                match name {
                    "ws" => socket(&target, ""),
                    _ => get(&target),
                }
            };
            let mut steps: Vec<Step> =
                (0..8).map(|n| Publish("big/1", format!("{n} {}", fill(500)))).collect();
            steps.extend((0..5).map(|n| Publish("big/2", format!("{n}"))));
            steps.extend([Open(0, 0, since(&target)), History, History]);
            steps.extend([Publish("big/1", fill(900)), Publish("plain", "live".into())]);
            for _ in 0..6 {
                steps.extend([History, Read(0)]);
            }
            steps.extend([Publish("big/2", "live".into()), Read(0), History, Read(0)]);
            if name == "ws" {
                // From another log: all of it is missed.
                let other = r#"{"type":"subscribe","id":9,"topic":"big/3","since":"00000001:5"}"#;
                steps.extend([Publish("big/3", "before".into()), text(0, other)]);
                steps.extend([History, History, Publish("big/3", "after".into()), Read(0)]);
            }
            if ids {
                steps.extend([Publish("big/1", fill(9)), Publish("big/2", fill(9)), Read(0)]);
            }
            check(name, is_late, &steps);
        }
    }
}

#[test]
fn polls_that_wait_for_the_history_get_its_answer() {
    let steps = [
        Publish("big/1", "one".into()),
        Open(0, 0, get("/poll?topic=big/1&topic=plain&since=fffffff8:0&timeout=9")),
        Publish("big/1", "two".into()),
        History,
        History,
        Read(0),
        Send(0, get("/poll?topic=big/1&timeout=9").into()),
        Publish("big/1", "three".into()),
        History,
        History,
        History,
        Read(0),
        Open(1, 1, get("/poll?topic=ack/1&topic=big/2&user=u1&timeout=2")),
        History,
        Wait(30),
        History,
        History,
        Read(1),
    ];
    for is_late in [false, true] {
        check("poll", is_late, &steps);
    }
}

#[test]
fn what_is_not_acknowledged_stays_so() {
    for is_late in [false, true] {
        let mut steps = vec![Open(0, 0, socket("/ws?user=u0&topic=ack/1&topic=ack/2", ""))];
        steps.extend((1..6).map(|n| Publish("ack/1", format!("{n}"))));
        steps.extend([History, History, Read(0)]);
        for offset in [1, 3] {
            let ack = format!(
                r#"{{"type":"ack","id":{offset},"topic":"ack/1","message":"fffffff8:{offset}"}}"#
            );
            steps.extend([text(0, &ack), History, History, Read(0)]);
        }
        // What is not acknowledged comes again.
        steps.extend([Wait(45), History, History, Read(0), Wait(40), History, Read(0)]);
        steps.extend([Login(0, "w"), History, Read(0), Logout(0, "u0"), History, Read(0)]);
        steps.extend([Publish("ack/2", "last".into()), History, History, Read(0)]);
        check("acknowledgements", is_late, &steps);
    }
}

#[test]
fn joins_lists_and_webhooks_wait_as_before() {
    let user = |n: usize| format!("/socket/websocket?vsn=2.0.0&user=u{n}");
    let meta = format!(r#"["1","1","seen/1","phx_join",{{"meta":{{"x":"{}"}}}}]"#, fill(20_000));
    let since = r#"["7","8","big/1","phx_join",{"since":"fffffff8:1"}]"#;
    let steps = [
        Publish("big/1", "one".into()),
        Publish("big/1", "two".into()),
        Open(0, 0, socket(&user(0), "")),
        Open(1, 1, socket(&user(1), "")),
        Read(0),
        Read(1),
        text(0, r#"["1","2","asked/1","phx_join",{}]"#),
        text(0, r#"["odd ref","3","asked/2","phx_join",{}]"#),
        Answer(true),
        text(0, r#"["1","4","asked/1","event",{"a":1}]"#),
        text(0, r#"["9","9","*","phx_join",{}]"#),
        text(0, r#"["10","10","@u0","phx_join",{"tags":["a"]}]"#),
        Answer(false),
        Publish("*", "all".into()),
        Publish("@u0", "own".into()),
        Read(0),
        text(0, since),
        History,
        text(0, r#"["7","9","big/1","phx_leave",{}]"#),
        History,
        History,
        Read(0),
        // Who is there is a long list, and its reader does not read.
        text(1, &meta),
        Wait(5),
        Read(1),
        text(0, r#"["2","11","seen/1","phx_join",{"meta":{}}]"#),
        text(0, r#"["3","12","seen/2","phx_join",{}]"#),
        text(0, r#"["4","13","seen/1","phx_join",{}]"#),
        text(0, r#"["4","14","seen/1","presence_update",{"meta":{"y":1}}]"#),
        Wait(5),
        Read(0),
        Read(1),
        Cut(1),
        Wait(5),
        Read(0),
    ];
    for is_late in [false, true] {
        check("phoenix", is_late, &steps);
    }
}

#[test]
fn what_clients_choose_and_how_much_they_ask_is_carried() {
    let mut steps = vec![
        Open(0, 0, socket("/ws?user=u0&topic=plain&topic=stored", "")),
        text(0, r#"{"type":"subscribe","id":1,"topic":"a","tags":["x"]}"#),
        text(0, r#"{"type":"login","id":2,"user":"w"}"#),
        text(0, r#"{"type":"subscribe","id":3,"topic":"seen/1"}"#),
        Read(0),
        Open(1, 0, get("/sse?topic=a&tag=x&tag=y")),
        Publish("a", "without a tag".into()),
        // The topic was entered by the client itself: it stays.
        text(0, r#"{"type":"logout","id":4,"user":"w"}"#),
        text(0, r#"{"type":"logout","id":5,"user":"u0"}"#),
        Publish("stored", "one".into()),
    ];
    // More than it may in a second: it is left unread for a while.
    for n in 0..8 {
        steps.push(text(0, &format!(r#"{{"type":"publish","id":{n},"topic":"p","data":{n}}}"#)));
    }
    steps.extend([Wait(3), Read(0), Wait(12), Read(0), Wait(12), Read(0), Read(1)]);
    check("choices", false, &steps);
}

#[test]
fn a_message_may_be_cut_anywhere() {
    let mut frames = Vec::new();
    encode_masked(Opcode::Ping, false, b"ping", [5, 6, 7, 8], &mut frames);
    let fragment = |head: u8, bytes: &[u8]| {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![head, 0x80 | bytes.len() as u8];
        frame.extend(mask);
        frame.extend(bytes.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        frame
    };
    // The first fragment ends in the middle of a character of three bytes.
    let whole = r#"{"type":"publish","id":1,"topic":"plain","data":"€uro"}"#;
    let (head, tail) = whole.as_bytes().split_at(whole.find('€').unwrap() + 1);
    frames.extend(fragment(0x01, head));
    frames.extend(fragment(0x89, b"between"));
    frames.extend(fragment(0x80, tail));
    for cut in 1..frames.len() {
        let open = Open(0, 0, socket("/ws?user=u0&topic=plain", ""));
        let (first, rest) = frames.split_at(cut);
        let steps = [open, Send(0, first.to_vec()), Send(0, rest.to_vec()), Read(0)];
        let want = Scene::play(&steps, false, |_| false);
        let with = Scene::play(&steps, false, |at| at == 1);
        assert_eq!(with.texts(), want.texts(), "cut after {cut} bytes");
        let heard = String::from_utf8_lossy(&want.heard[0]).into_owned();
        assert!(heard.contains("€uro") && heard.contains("between"), "{heard}");
    }
}
