//! A server that begins with what the disk has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use broker::{Append, Broker, HistoryLog, Router};
use history::{History, Implicit};
use history_local::{Begin, HistoryLimits};
use model::{Envelope, Epoch, HistoryRule, MessageSource, NodeId, Rules};
use sessions::{Interests, LocalRetained, Now, Part, RETAINED, Storage};

use super::disk::{Disk, OnDisk, Written};
use crate::Handle;
use crate::recovery::simulation::late::Late;
use crate::testing::{self, Driver, Services};

/// When the node's clock began, in microseconds since 1970. The history has the real clock; the engines decide what
/// has expired.
const BEGAN_US: u64 = 4_000_000_000_000_000;

/// The common setup of all servers of a run.
pub(super) struct Setup {
    pub seed: u64,
    pub engines: usize,
    pub inflight_max: u16,
    /// Messages that may wait for a client.
    pub queue_max: usize,
    /// The history replies later.
    pub is_late: bool,
    /// The server confirms messages with history when they are on disk.
    pub is_durable: bool,
    /// The disk of sessions and retained messages.
    pub disk: Option<Arc<Disk>>,
    /// The disk also has the history.
    pub keeps_history: bool,
}

/// A server.
pub(super) struct Node {
    pub drivers: Vec<Driver>,
    pub services: Services,
    pub history: Arc<history_local::Local>,
    pub late: Option<Arc<Late>>,
}

/// Returns what the history retains for sessions.
fn implicit(interests: Arc<Interests>, durable: bool) -> Implicit {
    let (any, wants) = (interests.clone(), interests);
    Implicit {
        rule: Arc::new(HistoryRule {
            messages_max: 1_000_000,
            bytes_max: 1 << 30,
            seconds_max: 1_000_000,
            durable,
            compact: false,
            acknowledge: None,
        }),
        any: Arc::new(move || any.count() > 0),
        wants: Arc::new(move |topic| wants.holds(topic)),
    }
}

/// Returns sessions and retained messages that go to the disk.
fn session_services(setup: &Setup, interests: Arc<Interests>) -> (Services, Arc<LocalRetained>) {
    let storage = setup.disk.clone().map(|disk| disk as Arc<dyn Storage>);
    let writer = setup.disk.clone().map(|disk| -> sessions::RetainedWriter {
        Box::new(move |topic, value, done| disk.put_record(RETAINED, topic, value, Some(done)))
    });
    let presence =
        presence::Limits { users_max: 0, list_bytes_max: 0, interval_us: 1_000, members_per_ms: 0 };
    let retained = Arc::new(LocalRetained::new(writer));
    (Services::with(NodeId(1), presence, interests, storage, retained.clone()), retained)
}

impl Node {
    /// Starts a server, after so many crashes, with what the disk had.
    pub fn start(setup: &Setup, crashes: usize, written: Written, now_us: u64) -> Self {
        let handles: Vec<Handle> = (0..setup.engines).map(|_| testing::handle(1_000_000)).collect();
        let interests = Arc::new(Interests::default());
        let (services, retained) = session_services(setup, interests.clone());
        // Messages read from the disk were retained before.
        let is_begun = Arc::new(AtomicBool::new(false));
        let (keeper, begun) = (retained.clone(), is_begun.clone());
        let retain = move |message: &Arc<Envelope>, _: MessageSource| {
            if begun.load(Ordering::Relaxed) {
                keeper.retain(message);
            }
        };
        let router = Router::new(handles.iter().map(Handle::inbox).collect());
        let router = Arc::new(router.retaining(Arc::new(retain)));
        let limits = broker::Limits {
            recent_messages_max: 10,
            recent_bytes_max: 1 << 20,
            recent_seconds_max: 1_000,
        };
        let started = Instant::now();
        // The log is the store's; all else is new at each start.
        let begin = Begin::in_memory(Epoch(7));
        let history_limits =
            HistoryLimits { history_bytes_max: 1 << 30, ..HistoryLimits::default() };
        let local =
            history_local::Local::new(router.clone(), begin, started, history_limits, limits);
        local.set_rules(Arc::new(Rules::default()), 60);
        local.set_implicit(Some(implicit(interests, setup.is_durable)));
        let history = Arc::new(local.clone());
        let log: Arc<dyn HistoryLog> = match setup.disk.as_ref().filter(|_| setup.keeps_history) {
            Some(disk) => Arc::new(OnDisk { local, disk: disk.clone() }),
            None => history.clone(),
        };
        let secret = [u8::try_from(crashes).unwrap(); broker::SECRET_BYTES];
        let broker = Arc::new(broker::Local::new(router, secret, started, limits, log));
        read(&written, &*broker, &history, (services.sessions(), &retained), BEGAN_US + now_us);
        is_begun.store(true, Ordering::Relaxed);
        let late = setup.is_late.then(|| Late::new((*history).clone(), setup.seed));
        let last_packet_id: Arc<dyn History> = match &late {
            Some(late) => late.clone(),
            None => history.clone(),
        };
        let shared = services.shared();
        shared.set_time(0, BEGAN_US, BEGAN_US);
        let rules = Rules { publish_prefixes: vec![String::new()], ..Rules::default() };
        let policy = auth::Policy::new(rules, auth::LoginRule::Allow);
        let mut settings = crate::Settings::for_tests(policy);
        if let Some(mqtt) = &mut settings.session.mqtt {
            mqtt.inflight_max = setup.inflight_max;
            mqtt.queue_messages_max = setup.queue_max;
        }
        let mut drivers =
            testing::drivers(&handles, settings, broker, last_packet_id, Arc::new(shared));
        drivers.iter_mut().for_each(|driver| driver.engine.set_now(now_us));
        Node { drivers, services, history, late }
    }
}

/// Loads what the disk had.
fn read(
    written: &Written,
    broker: &dyn Broker,
    history: &history_local::Local,
    (sessions, retained): (&sessions::Local, &LocalRetained),
    unix_us: u64,
) {
    for (publication, rule) in &written.messages {
        let (publication, rule) = (publication.clone(), rule.clone());
        let (hash, options) = (broker.hash(&publication.topic), broker::Options::default());
        let routes = broker::Routes::default();
        let append = Append { hash, publication, rule, options, receipt: None, routes };
        history.append(append, Box::new(|published| assert!(published.is_ok())));
    }
    let records = written.records.iter();
    let of_sessions = records.clone().filter_map(|((name, key), value)| {
        let part = Part::ALL.into_iter().find(|part| part.name() == *name)?;
        Some((part, key.clone(), value.clone()))
    });
    let of_topics = records.filter(|((name, _), _)| *name == RETAINED);
    let of_topics = of_topics.map(|((_, topic), value)| (topic.clone(), value.clone()));
    let unread = sessions.load(of_sessions, Now::at(unix_us / 1_000_000))
        + retained.load(of_topics, |topic| broker.hash(topic));
    assert_eq!(unread, 0, "records that can't be read");
}
