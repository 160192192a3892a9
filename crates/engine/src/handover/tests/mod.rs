//! Scenes in which new engines replace the old ones after any step: all clients must receive the same bytes as
//! without.

mod connect;
mod evict;
mod lifetimes;
mod mqtt;
mod records;
mod still;
mod tokens;
mod waiting;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use broker::Broker;
use history::History;
use history_local::{Begin, HistoryLimits};
use model::{
    AcknowledgeRule, Attributes, CloseReason, Data, HistoryRule, JoinRule, NodeId, Publication,
    PublishRule, Rule, Rules,
};
use protocol::Protocols;
use protocol::websocket::frame::{Opcode, encode_masked};
use random::Random;

use super::*;
use crate::connection::Phase;
use crate::core::command::{Command, Revocation, Target};
use crate::core::handle::Handle;
use crate::core::settings::Settings;
use crate::recovery::simulation::late::Late;
use crate::testing::{self, ClientEnd, Driver, Services, Upgrade};
use crate::webhook::forward_rule::{ForwardRequest, ForwardRule, Forwards};
use crate::webhook::{QueueFull, Refusal, Webhook, WebhookRequest, WebhookResponse};

/// An application that responds when the scene says so.
#[derive(Default)]
struct App(Mutex<Vec<WebhookRequest>>, Mutex<Vec<ForwardRequest>>);

impl Webhook for App {
    fn send(&self, requests: Vec<WebhookRequest>) -> Result<(), QueueFull> {
        self.0.lock().unwrap().extend(requests);
        Ok(())
    }

    fn forward(&self, request: ForwardRequest) -> Result<(), QueueFull> {
        self.1.lock().unwrap().push(request);
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
    let compact = || {
        let rule = history(None)?;
        Some(Arc::new(HistoryRule { compact: true, messages_max: 4, ..(*rule).clone() }))
    };
    let acknowledge = AcknowledgeRule {
        window_messages_max: 2,
        redelivery_seconds: 3,
        delivery_count_max: 0,
        dead_letter: None,
    };
    let rule = |pattern: &str| Rule {
        pattern: pattern.into(),
        publish: Some(PublishRule::Allow),
        ..Rule::default()
    };
    let rules = vec![
        Rule { history: history(None), ..rule("big/*") },
        Rule { history: history(Some(acknowledge)), ..rule("ack/*") },
        Rule { history: compact(), ..rule("state/*") },
        Rule { presence: true, ..rule("seen/*") },
        Rule { join: JoinRule::Webhook, publish: Some(PublishRule::Webhook), ..rule("asked/*") },
        Rule { join: JoinRule::Webhook, publish: Some(PublishRule::Ask), ..rule("both/*") },
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
            wildcards: true,
            ..simulated.session
        },
        outbox_bytes_max: 64 << 10,
        head_seconds: 20,
        idle_seconds: 30,
        publishes_per_second_max: 4,
        longpoll_seconds: 5,
        presence_meta_bytes_max: 32 << 10,
        forwards: Forwards::new(vec![ForwardRule {
            filter: "sent/#".into(),
            deliver: true,
            answer_filters: [].into(),
        }]),
        ..simulated
    }
}

/// A step of a scene.
#[derive(Clone, Debug)]
enum Step {
    /// A client connects to an engine, and sends this.
    Open(usize, usize, String),
    /// A client connects beyond the limit of its address.
    Beyond(usize, String),
    /// A client sends bytes.
    Send(usize, Vec<u8>),
    /// A client reads all that comes now.
    Read(usize),
    Cut(usize),
    Publish(&'static str, String),
    /// Sets the state of a key of this topic.
    Set(&'static str, &'static str, String),
    /// Time passes, in tenths of a second.
    Wait(u64),
    /// The application responds.
    ReplyTarget(bool),
    /// The history replies.
    History,
    /// The application ends all connections of a user.
    Disconnect(&'static str),
    Revoke(&'static str),
    /// The keys that tokens wait for have come.
    Keys,
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

/// Returns text that can't be compressed much.
fn fill(bytes: usize) -> String {
    let mut random = Random::new(7);
    (0..bytes).map(|_| char::from(b'a' + random.below(26_u8))).collect()
}

const CLIENTS: usize = 6;

struct Scene {
    drivers: Vec<Driver>,
    services: Services,
    /// New engines with copies of the connections.
    upgrading: Option<Upgrade>,
    handles: Vec<Handle>,
    broker: Arc<broker::Local>,
    late: Option<Arc<Late>>,
    issuer: Arc<tokens::Issuer>,
    app: Arc<App>,
    clients: [Option<ClientEnd>; CLIENTS],
    /// Engines and slots of the clients' connections.
    connections: [(usize, u32); CLIENTS],
    received: [Vec<u8>; CLIENTS],
    now_us: u64,
    /// The phases of connections when engines were replaced, by encoding.
    phases: BTreeSet<(u8, Phase)>,
}

/// When new engines replace the old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Never,
    /// After a step, with connections that were copied before it.
    After,
    /// While the engines are busy with the step.
    Within,
}

/// The end of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    TakeOver,
    /// The old engines go on. They have only stood still, and have published presence changes earlier than otherwise.
    GiveUp,
}

impl Scene {
    fn new(is_late: bool) -> Self {
        Scene::with(is_late, settings(), Arc::default())
    }

    fn with(is_late: bool, settings: Settings, issuer: Arc<tokens::Issuer>) -> Self {
        let handles: Vec<Handle> = (0..2).map(|_| testing::handle(200)).collect();
        let inboxes = handles.iter().map(Handle::inbox).collect();
        let router = Arc::new(broker::Router::new(inboxes));
        let limits = broker::Limits {
            recent_messages_max: 1_000,
            recent_bytes_max: 1 << 20,
            recent_seconds_max: 1_000,
        };
        let started = Instant::now();
        let begin = Begin::in_memory(model::Epoch(7));
        let history_limits = HistoryLimits { cursors_max: 100, ..HistoryLimits::default() };
        let history = Arc::new(history_local::Local::new(
            router.clone(),
            begin,
            started,
            history_limits,
            limits,
        ));
        history.set_rules(Arc::new(rules()), 60);
        let broker =
            Arc::new(broker::Local::new(router, [7; 20], started, limits, history.clone()));
        let late = is_late.then(|| Late::steady((*history).clone()));
        let history_in_use: Arc<dyn History> = match &late {
            Some(late) => late.clone(),
            None => history,
        };
        let presence = presence::Limits {
            users_max: 100,
            list_bytes_max: 1 << 20,
            interval_us: 1_000,
            members_per_ms: 0,
        };
        let services = Services::new(NodeId(1), presence);
        for user in ["u0", "w"] {
            services.subscriptions().edit(user, &["stored"], &[], 9).unwrap();
        }
        let shared = Arc::new(services.shared());
        let mut drivers =
            testing::drivers(&handles, settings, broker.clone(), history_in_use, shared.clone());
        let app = Arc::new(App::default());
        drivers.iter_mut().for_each(|driver| driver.engine.core.webhook = Some(app.clone()));
        Scene {
            drivers,
            services,
            upgrading: None,
            handles,
            broker,
            late,
            issuer,
            app,
            clients: [const { None }; CLIENTS],
            connections: [(0, 0); CLIENTS],
            received: [const { Vec::new() }; CLIENTS],
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
                    Some(bytes) => self.received[client].extend(bytes),
                    None => {
                        self.received[client].extend_from_slice(b"<end>");
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
        self.connections[client] = (at, slot);
    }

    fn step(&mut self, step: &Step) {
        self.act(step);
        (0..12).for_each(|_| self.turn());
    }

    fn act(&mut self, step: &Step) {
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
            Set(topic, key, data) => {
                let data = Data::Text(data.as_str().into());
                let attributes = Attributes::of(Vec::new(), Some((*key).into()));
                let publication = Publication { attributes, ..Publication::new(*topic, data) };
                self.broker.publish(publication, None).unwrap();
            }
            Wait(tenths) => {
                for _ in 0..*tenths {
                    self.now_us += 100_000;
                    self.turn();
                }
            }
            ReplyTarget(ok) => {
                for request in std::mem::take(&mut *self.app.1.lock().unwrap()) {
                    let silent = WebhookResponse::Silent("the back end is away");
                    let reply = request.reply.into_iter();
                    reply.for_each(|reply| {
                        reply(if *ok { WebhookResponse::yes() } else { silent.clone() })
                    });
                }
                let requests = std::mem::take(&mut *self.app.0.lock().unwrap());
                for request in requests {
                    let response: Box<str> = r#"{"by":"app"}"#.into();
                    let changes = Box::new(connect::said(&request.details));
                    let response = match ok {
                        true => WebhookResponse::Ok { response, changes },
                        false => WebhookResponse::Error(Box::new(Refusal {
                            status: 403,
                            code: model::ReplyCode::parse("no"),
                            message: "the app says no".into(),
                            response,
                        })),
                    };
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
            Revoke(user) => {
                let user = Some((*user).into());
                for handle in &self.handles {
                    let revocation = Revocation { user: user.clone(), ..Revocation::default() };
                    handle.send(Command::Revoke { revocation, reply: Box::new(|_| ()) });
                }
            }
            Keys => self.issuer.come(),
            Login(client, user) => self.users(*client, user, true),
            Logout(client, user) => self.users(*client, user, false),
        }
    }

    fn users(&mut self, client: usize, user: &str, login: bool) {
        let (at, slot) = self.connections[client];
        let core = &self.drivers[at].engine.core;
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

    /// Copies the connections as they are now.
    fn copy(&mut self) {
        let (drivers, services) = (&self.drivers, &self.services);
        let upgrade = self.upgrading.get_or_insert_with(|| Upgrade::begin(drivers, services));
        upgrade.copy(drivers, services, |_| true);
    }

    fn upgrade(&mut self, what: What) {
        for record in &self.exports() {
            let record: Record = unframe(record).unwrap();
            let phase = Phase::ALL.into_iter().find(|phase| *phase as u8 == record.phase);
            self.phases.insert((record.encoding, phase.unwrap()));
        }
        let (drivers, services) = (&mut self.drivers, &mut self.services);
        let upgrade = self.upgrading.take();
        let upgrade = upgrade.unwrap_or_else(|| Upgrade::begin(drivers, services));
        match what {
            What::TakeOver => upgrade.finish(drivers, services, self.late.is_none(), || ()),
            What::GiveUp => upgrade.give_up(drivers, || ()),
        }
    }

    /// Plays all steps, to the end of each connection that ends.
    fn play(steps: &[Step], is_late: bool, upgrades: impl Fn(usize) -> When) -> Self {
        Scene::new(is_late).played(steps, upgrades)
    }

    fn played(self, steps: &[Step], upgrades: impl Fn(usize) -> When) -> Self {
        self.played_with(steps, What::TakeOver, upgrades)
    }

    fn played_with(self, steps: &[Step], what: What, upgrades: impl Fn(usize) -> When) -> Self {
        let mut scene = self;
        for (at, step) in steps.iter().enumerate() {
            let when = upgrades(at);
            if when == When::After {
                scene.copy();
            }
            scene.act(step);
            if when == When::Within {
                scene.copy();
                scene.turn();
                scene.upgrade(what);
            }
            (0..12).for_each(|_| scene.turn());
            if when == When::After {
                scene.upgrade(what);
            }
        }
        (0..CLIENTS).for_each(|client| scene.read(client));
        scene
    }

    /// Returns what each client received, without times of day: they differ between scenes.
    fn texts(&self) -> [String; CLIENTS] {
        self.received.each_ref().map(|received| {
            let text = received.escape_ascii().to_string();
            let mut parts = text.split("published_at");
            let mut all = parts.next().unwrap_or_default().to_string();
            for part in parts {
                let digits = |c: char| c.is_ascii_digit();
                all.push_str("published_at");
                all.extend(part.split_inclusive('}').enumerate().map(|(at, piece)| match at {
                    0 => piece.replace(digits, ""),
                    _ => piece.to_string(),
                }));
            }
            all
        })
    }
}

/// Plays a scene without an upgrade, with one at each of its steps, and with one at every step. Returns what each
/// client received, and the phases in which connections were moved.
fn compare(
    name: &str,
    scene: impl Fn() -> Scene,
    steps: &[Step],
) -> ([String; CLIENTS], BTreeSet<(u8, Phase)>) {
    let want = scene().played(steps, |_| When::Never).texts();
    let mut phases = BTreeSet::new();
    for when in [When::After, When::Within] {
        for upgrade in (0..steps.len()).map(Some).chain([None]) {
            let upgrades =
                |at| if upgrade.is_none_or(|only| only == at) { when } else { When::Never };
            let with = scene().played(steps, upgrades);
            phases.extend(&with.phases);
            let (found, is_notified) =
                (with.texts(), want.iter().any(|it| it.contains("presence_")));
            if found == want {
                continue;
            }
            let without = match is_notified {
                true => scene().played_with(steps, What::GiveUp, upgrades).texts(),
                false => want.clone(),
            };
            let step = upgrade.map(|at| &steps[at]);
            assert_eq!(found, without, "{name}: an upgrade {when:?} {upgrade:?}: {step:?}");
        }
    }
    (want, phases)
}

fn check(name: &str, is_late: bool, steps: &[Step]) -> BTreeSet<(u8, Phase)> {
    compare(name, || Scene::new(is_late), steps).1
}
