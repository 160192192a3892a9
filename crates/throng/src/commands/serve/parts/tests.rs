//! Records of all parts: what another process imports from them, records of released versions, and damaged records.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use broker::{Broker as _, Options, Publish};
use config::{Loaded, Sources};
use history::History as _;
use model::{ConnectionId, Data, Name, NodeId, Publication, Qos, Rules};
use presence::Presence as _;
use proptest::prelude::*;
use sessions::{Claim, Ended, Now, Retained as _, Session, Sessions as _, Subscription};
use shard::{
    EventSource, ForwardRequest, HookEvent, PendingHook, RequestDetails, SharedHook, Webhook as _,
    WebhookKind, WebhookRequest,
};
use token::{AddOutcome, Revocation, Revoked};

use super::super::settings::{self, Fixed};
use super::super::storage;
use super::super::upgrade::wire::{push, take_parts};
use super::*;

/// Records that released versions wrote. Each line has the name of a part, and the body of a frame in hexadecimal.
const RELEASED: [(&str, &str); 1] = [("0.3.0", include_str!("0.3.0.txt"))];

/// The variable that makes a test write the records of a version: `HANDOVER_PARTS=0.4.0`.
const WRITE: &str = "HANDOVER_PARTS";

const NODE: NodeId = NodeId(7);

const CONFIG: &str = r#"
[inbox]
enabled = true

[history]
idempotency_seconds_max = 600

[presence]
users_max = 1

[auth]
jwks_urls = ["https://a/keys"]

[webhook]
url = "http://127.0.0.1:9/"
events = ["joined", "left"]

[[topics]]
pattern = "orders:*"
history_messages_max = 100
acknowledge = true
ack_tries_max = 9
events = true

[[forward]]
filter = "up/#"
url = "http://127.0.0.1:9/up"
"#;

/// The services of a process that has just begun.
struct Process {
    broker: Arc<broker::Local>,
    history: history_local::Local,
    presence: Arc<presence::Local>,
    subscriptions: Arc<subscriptions::Subscriptions>,
    revocations: Arc<token::Revocations>,
    jwks: Arc<token::Jwks>,
    mqtt_state: Mqtt,
    webhook: Arc<Dispatcher>,
    rules: Arc<Rules>,
    parts: Vec<Arc<dyn Part>>,
    /// The dispatcher accepts requests and events as long as the workers exist. No test runs the workers.
    _workers: control::webhook::Workers,
    _folder: Folder,
}

/// A folder with a certificate, removed at the end.
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Certificates, for the keys of tickets, and the folder that they are read from.
fn certificates() -> (Arc<Certificates>, Folder) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = format!("throng-parts-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("cert.pem"), tls::testing::CERTIFICATE).unwrap();
    std::fs::write(folder.join("key.pem"), tls::testing::KEY).unwrap();
    let file = "[client]\nlisten_tls = \"127.0.0.1:1\"\n\
                [tls]\ncertificate_file = \"cert.pem\"\nkey_file = \"key.pem\"\n";
    let name = folder.join("throng.toml").display().to_string();
    let sources = Sources { file: Some((&name, file)), ..Sources::default() };
    let config = Loaded::load(&sources).unwrap().config;
    let certificates = Certificates::new(&config, 1);
    let certificates = certificates.unwrap_or_else(|error| panic!("{}", error.text()));
    (certificates.unwrap(), Folder(folder))
}

impl Process {
    fn new() -> Process {
        let loaded = Sources { file: Some(("parts.toml", CONFIG)), ..Sources::default() };
        let loaded = Loaded::load(&loaded).unwrap();
        let config = &loaded.config;
        let key = protocol::phoenix::token::Key([0; 32]);
        let fixed = Fixed { ws_echo: false, demo: false, longpoll_key: key };
        let jwks = &config.auth.jwks_urls;
        let jwks = Arc::new(token::Jwks::new(jwks, &[], 600));
        let live = settings::live(&loaded, &fixed, jwks.clone());
        let rules = Arc::new(live.policy.rules().clone());
        let live = Arc::new(RwLock::new(live));
        let mqtt_state = Mqtt::new(NODE, None);
        let (certificates, folder) = certificates();
        let started = Instant::now();
        let (recent, history_limits) = (settings::broker(config), storage::limits(config));
        let secret = [3; broker::SECRET_BYTES];
        let router = mqtt_state.router(Vec::new());
        let begin = history_local::Begin::in_memory(broker::epoch(&secret));
        let history =
            history_local::Local::new(router.clone(), begin, started, history_limits, recent);
        let log = Arc::new(history.clone());
        let broker = Arc::new(broker::Local::new(router, secret, started, recent, log));
        history.set_rules(rules.clone(), config.history.idempotency_seconds_max);
        mqtt_state.set_rules(rules.clone());
        let presence = Arc::new(presence::Local::new(settings::presence(config), NODE));
        let subscriptions = Arc::new(subscriptions::Subscriptions::new(false));
        let revocations = Arc::<token::Revocations>::default();
        let access = control::Access::new(settings::access(config));
        let cluster = super::super::cluster::settings(config, NODE);
        let cluster = link::Link::new(cluster, link::Login::Anonymous, started);
        let start = control::webhook::EventStart { node: NODE.to_string(), ..Default::default() };
        let (webhook, workers) = Dispatcher::new(
            settings::webhook_fixed(config, control::Authorities::SYSTEM, None),
            settings::webhook(config),
            start,
        );
        let parts = all(Services {
            broker: &broker,
            history: &history,
            presence: presence.clone(),
            subscriptions: &subscriptions,
            revocations: &revocations,
            live: &live,
            mqtt_state: &mqtt_state,
            access: &access,
            samples: control::Samples::default(),
            webhook: &webhook,
            handles: &[],
            certificates: Some(certificates),
            cluster: Some(cluster),
            postgres: None,
            subscription_database: None,
        });
        Process {
            broker,
            history,
            presence,
            subscriptions,
            revocations,
            jwks,
            mqtt_state,
            webhook,
            rules,
            parts,
            _workers: workers,
            _folder: folder,
        }
    }

    fn part(&self, name: &str) -> &dyn Part {
        &**self.parts.iter().find(|part| part.name() == name).unwrap()
    }

    /// Exports all parts: the body of a frame for each record, by part.
    fn records(&self) -> Records {
        let mut records = Records::new();
        for part in &self.parts {
            let of_part: &mut Vec<Vec<u8>> = records.entry(part.name().into()).or_default();
            part.export(&mut |key, value| {
                let mut body = Vec::new();
                push(&mut body, part.name(), key, Some(value));
                of_part.push(body);
            });
        }
        records
    }

    /// Imports all records, as a process that takes over does.
    fn take(&self, records: &Records) {
        self.webhook.stand_still();
        let bodies = NAMES.iter().filter_map(|name| records.get(*name)).flatten();
        bodies.for_each(|body| take_parts(&self.parts, body).unwrap());
        self.parts.iter().for_each(|part| part.complete().unwrap());
    }

    fn publish(&self, publication: Publication, options: Options) -> model::Position {
        let (done, published) = std::sync::mpsc::channel();
        let done = Box::new(move |result| done.send(result).unwrap());
        self.broker.submit(Publish { publication, options }, None, done);
        published.recv().unwrap().unwrap().id
    }
}

type Records = BTreeMap<String, Vec<Vec<u8>>>;

fn connection(slot: u32) -> ConnectionId {
    ConnectionId { node: NODE, shard: 0, slot, serial: 3 }
}

fn text(topic: &str, text: &str) -> Publication {
    Publication::new(topic, Data::Text(text.into()))
}

/// Returns a process with state in every part.
fn filled() -> Process {
    let process = Process::new();
    process.publish(text("plain", "recent"), Options::default());
    let keyed = Options { idempotency_key: Some("k1".into()), ..Options::default() };
    let first = process.publish(text("orders:1", "first"), keyed);
    let second = process.publish(text("orders:1", "second"), Options::default());
    process.history.acknowledge("al", "orders:1", first).unwrap();
    process.history.acknowledge("bo", "orders:1", first).unwrap();
    let rule = process.rules.of("orders:1").unwrap();
    let rule = rule.history.as_ref().unwrap().acknowledge.clone().unwrap();
    assert_eq!(process.history.delivered("bo", "orders:1", second.offset, 5, &rule), 1);
    process.publish(
        Publication { retain: true, qos: Qos::AtLeastOnce, ..text("state/1", "on") },
        Options::default(),
    );
    process.presence.enter("room", "al", r#"{"a":1}"#, 5);
    process.subscriptions.edit("al", &["news", "feed"], &[], 10).unwrap();
    for revoked in [Revoked::Jti("t1".into()), Revoked::IssuedBefore(3)] {
        let added = process.revocations.add(&Revocation { revoked, until: u64::MAX >> 2 }, 9);
        assert_eq!(added, AddOutcome::New);
    }
    let keys = br#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","use":"sig",
        "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    process.jwks.begin(1_000);
    process.jwks.fetched("https://a/keys", keys).unwrap();
    process.jwks.end(1_001);
    process.mqtt_state.sessions.claim(Claim { key: "dev", by: connection(1), clean: true });
    let session = Session {
        seconds: 60,
        subscriptions: vec![Subscription::new("a/#".into(), None, Default::default(), 3, 8)],
        ..Session::default()
    };
    let ended = Ended { session: Some(session), will: None };
    let _ = process.mqtt_state.sessions.release("dev", connection(1), ended, Now::at(1_000));
    let users: Vec<Name> = vec!["al".into()];
    process
        .webhook
        .send(vec![WebhookRequest {
            url: None,
            details: RequestDetails::new(
                WebhookKind::Subscribe,
                Some("q".into()),
                users.clone(),
                "ws",
            ),
            connection: connection(2),
            hook: SharedHook::new(PendingHook::Connect(4)),
            reply: Box::new(|_| ()),
        }])
        .unwrap();
    let source = EventSource { connection: connection(2), users: users.clone(), transport: "ws" };
    let events =
        vec![HookEvent::Joined(source, "orders:1".into()), HookEvent::Occupied("orders:1".into())];
    process.webhook.notify(0, events);
    // The part `events` exports events that have no number yet only while the dispatcher stands still.
    process.webhook.stand_still();
    process
        .webhook
        .forward(ForwardRequest {
            filter: "up/#".into(),
            publication: text("up/1", "forward"),
            users,
            connection: Some(connection(2)),
            transport: "mqtt",
            client: Some("dev".into()),
            at_ms: 1_000,
            hook: SharedHook::default(),
            reply: None,
        })
        .unwrap();
    // A sign-in with a time in the far future, which counts as now.
    let signed_in = [&b"\xa2\x00\x58\x20"[..], &[5; 32], b"\x01\x1b\x00\x00\x00\xff\0\0\0\0"];
    process.part("sign-ins").import(&[4; 32], Some(&signed_in.concat())).unwrap();
    fill_cluster(process.part("cluster"));
    let sample = b"\xa5\x00\x82\x07\x08\x01\x80\x02\xf6\x03\x80\x04\x80";
    process.part("samples").import(&9_u64.to_be_bytes(), Some(sample)).unwrap();
    process
}

/// Imports the state of a cluster node that knows one other node and retains one message. The records have the form of
/// crates/cluster/src/node/handover.rs.
fn fill_cluster(part: &dyn Part) {
    let numbers = b"\xa6\x00\x07\x01\x08\x02\x09\x03\xf4\x05\x00\x06\x00";
    let stream = b"\xa5\x00\x05\x01\x00\x02\x04\x03\xf5\x04\x00";
    let peer = b"\xae\x00\x61b\x01\x611\x02\x03\x03\xf4\x04\xf5\x05\xf5\x06\xf4\x07\x00\x08\x09\x09\x01\x0a\xf4\
        \x0b\x81\x82\x19\x04\x00\x07\x0c\x80\x0d\x81\x19\x04\x01";
    let records: [(&[u8], &[u8]); 7] = [
        (b"l", b"\xa1\x00\x03"),
        (b"n", numbers),
        (b"s\x04\x00", stream),
        (b"s\x04\x01", b"\xa5\x00\x00\x01\x00\x02\x00\x03\xf4\x04\x00"),
        (b"i\x04\x00", b"\xa2\x00\x00\x01\x02"),
        (b"p\0\0\0\x02", peer),
        (b"m\x04\x00\0\0\0\0\0\0\0\x05", b"\xa2\x00\x00\x01\x42ab"),
    ];
    for (key, value) in records {
        part.import(key, Some(value)).unwrap();
    }
    part.complete().unwrap();
}

/// Checks that a process has the state of [`filled`]. `is_fresh` is false if a released version wrote the state long
/// ago.
fn check(process: &Process, is_fresh: bool) {
    let latest = process.broker.latest(None, 10);
    let text = format!("{latest:?}");
    assert!(text.contains("recent") && text.contains("state/1"), "{text}");
    let cursor = |user: &str| process.history.progress(user, "orders:1");
    assert_eq!(cursor("al"), cursor("bo"));
    assert_ne!(cursor("al"), history::Cursor::default());
    let again = Options { idempotency_key: Some("k1".into()), ..Options::default() };
    let (done, published) = std::sync::mpsc::channel();
    let publication = self::text("orders:1", "again");
    let done = Box::new(move |result| done.send(result).unwrap());
    process.broker.submit(Publish { publication, options: again }, None, done);
    // An idempotency key expires, so the check holds for fresh state only.
    assert!(!is_fresh || published.recv().unwrap().unwrap().repeated, "the key is known");
    assert!(process.mqtt_state.retained.get("state/1").is_some());
    let mut topics = process.subscriptions.of("al");
    topics.sort();
    assert_eq!(topics, ["feed", "news"]);
    assert_eq!(process.revocations.count(), 2);
    assert_eq!(process.records()["jwks"].len(), 2);
    assert!(process.mqtt_state.sessions.find("dev").is_some());
    assert_eq!(process.webhook.stats().waiting, 1);
}

/// Returns the records that another process must export unchanged, sorted.
fn lasting(mut records: Records) -> Records {
    // The importing process ends the session, because its configuration doesn't have the session's key.
    records.remove("sign-ins");
    records.values_mut().for_each(|records| records.sort());
    records
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(file: &str) -> Records {
    let mut records = Records::new();
    for line in file.lines() {
        let (part, hex) = line.split_once(' ').unwrap();
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let body = (0..hex.len()).step_by(2).map(byte).collect();
        records.entry(part.into()).or_default().push(body);
    }
    records
}

#[test]
fn every_part_comes_whole_in_another_process() {
    let old = filled();
    let records = old.records();
    if let Some(version) = std::env::var_os(WRITE) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/commands/serve/parts");
        let path = std::path::Path::new(folder).join(version).with_added_extension("txt");
        let line = |(part, body): (&String, &Vec<u8>)| format!("{part} {}\n", hex(body));
        let all = records.iter().flat_map(|(part, bodies)| bodies.iter().map(move |it| (part, it)));
        std::fs::write(path, all.map(line).collect::<String>()).unwrap();
    }
    // This process has no database.
    let of_databases = [history_postgres::PART, subscriptions_postgres::PART];
    for name in NAMES.into_iter().filter(|name| !of_databases.contains(name)) {
        assert!(records.get(name).is_some_and(|records| !records.is_empty()), "{name} is empty");
    }
    let new = Process::new();
    new.take(&records);
    let again = lasting(new.records());
    for (part, records) in lasting(records) {
        if part == "events" {
            // Only the times of due events differ: the importing process counts them from its own clock.
            assert_eq!(again[&part].len(), records.len());
        } else {
            assert_eq!(again[&part], records, "{part}");
        }
    }
    check(&new, true);
}

#[test]
fn records_of_released_versions_are_read() {
    for (version, file) in RELEASED {
        let records = read(file);
        let new = Process::new();
        new.take(&records);
        let again = lasting(new.records());
        for (part, records) in lasting(records) {
            assert_eq!(again[&part].len(), records.len(), "{version}: {part}");
        }
        check(&new, false);
    }
}

#[test]
fn there_are_records_of_every_released_version() {
    let changelog = include_str!("../../../../../../CHANGELOG.md");
    let versions =
        changelog.lines().filter_map(|line| line.strip_prefix("## [")?.split(']').next());
    let number = |version: &str| -> Option<Vec<u32>> {
        version.split('.').map(|part| part.parse().ok()).collect()
    };
    let mut count = 0;
    for version in versions.filter(|version| number(version).is_some()) {
        count += 1;
        // Versions before 0.3.0 pass on no parts.
        let is_here = RELEASED.iter().any(|(it, _)| *it == version);
        let is_early = number(version) < number("0.3.0");
        assert!(
            is_here || is_early,
            "write the records of {version}: {WRITE}={version} cargo test -p throng every_part, and \
             name the file in RELEASED"
        );
    }
    assert!(count > 0);
}

/// Completes the import, and exports the part again.
fn finish(part: &dyn Part) {
    let _ = part.complete();
    // The export of subscriptions scans all topic numbers up to the highest. Damage can make that so high that the scan
    // takes too long.
    if part.name() != "subscriptions" {
        part.export(&mut |_, _| ());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// A part imports or rejects any record, and never panics.
    #[test]
    fn garbage_harms_no_part(
        records in prop::collection::vec((
            prop::sample::select(b"abcdefghijklmnopqrstuvwxyz\0\xff".to_vec()),
            prop::collection::vec(any::<u8>(), 0..12),
            prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
        ), 1..40),
    ) {
        let process = filled();
        for part in &process.parts {
            for (kind, key, value) in &records {
                let key = [&[*kind], &key[..]].concat();
                let _ = part.import(&key, value.as_deref());
            }
            finish(&**part);
        }
    }

    /// A part imports or rejects released records that have a flipped bit, and never panics.
    #[test]
    fn damaged_records_harm_no_part(
        damages in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..8), NAMES.len()),
    ) {
        let (_, file) = RELEASED[0];
        let process = Process::new();
        for ((_, bodies), (at, bit)) in read(file).iter().zip(damages) {
            for body in bodies {
                let mut body = body.clone();
                let at = at.index(body.len());
                body[at] ^= 1_u8 << bit;
                let _ = take_parts(&process.parts, &body);
            }
        }
        for part in &process.parts {
            finish(&**part);
        }
    }
}
