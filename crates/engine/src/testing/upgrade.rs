//! New engines replace old ones, as in another process: connections are copied while the old engines serve, then
//! these stand still, and the differences are passed on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use broker::{Activity, Broker, Done, Latest, Passed, Publish, PublishError, Receipt, Recent};
use handover::{Part, Sent};
use model::{Envelope, Epoch, FilterKey, NodeId, Position, Publication};
use sessions::{Interests, LocalRetained, Retained, Storage};
use subscriptions::Subscriptions;

use super::{Driver, another};
use crate::engine::Engine;
use crate::{Counter, Handle, Owed, Shared};

/// The most turns that engines may need until they are still.
const TURNS: usize = 10_000;

/// The services that engines share, and that another process begins without.
pub(crate) struct Services {
    node: NodeId,
    limits: presence::Limits,
    presence: Arc<presence::Local>,
    sessions: Arc<sessions::Local>,
    /// These two, and the retained messages, stay in these tests.
    interests: Arc<Interests>,
    storage: Option<Arc<dyn Storage>>,
    retained: Arc<dyn Retained>,
    subscriptions: Arc<Subscriptions>,
}

impl Services {
    /// Creates services in memory.
    pub fn new(node: NodeId, limits: presence::Limits) -> Self {
        Services::with(node, limits, Arc::default(), None, Arc::new(LocalRetained::new(None)))
    }

    /// Creates services with sessions in this storage.
    pub fn with(
        node: NodeId,
        limits: presence::Limits,
        interests: Arc<Interests>,
        storage: Option<Arc<dyn Storage>>,
        retained: Arc<dyn Retained>,
    ) -> Self {
        Services {
            node,
            limits,
            presence: Arc::new(presence::Local::new(limits, node)),
            sessions: Arc::new(sessions::Local::new(node, interests.clone(), storage.clone())),
            interests,
            storage,
            retained,
            subscriptions: Arc::default(),
        }
    }

    pub fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    pub fn sessions(&self) -> &sessions::Local {
        &self.sessions
    }

    /// Returns the engines' view of the services.
    pub fn shared(&self) -> Shared {
        let services = (self.sessions.clone() as _, self.retained.clone());
        let (presence, subscriptions) = (self.presence.clone(), self.subscriptions.clone());
        Shared::new(self.node, protocol::standard(), presence, subscriptions, services)
    }

    /// Creates the services of another process.
    fn another(&self) -> Services {
        let (interests, storage) = (self.interests.clone(), self.storage.clone());
        let other =
            Services::with(self.node, self.limits, interests, storage, self.retained.clone());
        Services { subscriptions: self.subscriptions.clone(), ..other }
    }
}

/// The broker of a process that has not gone on yet: it only takes filters.
struct Passive {
    inner: Arc<dyn Broker>,
    is_live: AtomicBool,
    /// By shard and name: the hash, and the number of connections with it.
    filters: Mutex<BTreeMap<(u16, String), (u64, usize)>>,
}

impl Passive {
    fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Relaxed)
    }

    fn go_live(&self, shards: u16) {
        (0..shards).for_each(|shard| self.inner.leave_filters(shard));
        for ((shard, name), (hash, count)) in &*self.filters.lock().unwrap() {
            (0..*count).for_each(|_| self.inner.enter_filter(*shard, *hash, name));
        }
        self.is_live.store(true, Ordering::Relaxed);
    }
}

impl Broker for Passive {
    fn publish(&self, it: Publication, to: Option<Receipt>) -> Result<Position, PublishError> {
        assert!(self.is_live(), "it publishes before it has gone on");
        self.inner.publish(it, to)
    }

    fn submit(&self, publish: Publish, receipt: Option<Receipt>, done: Done) {
        assert!(self.is_live(), "it publishes before it has gone on");
        self.inner.submit(publish, receipt, done);
    }

    fn recent(&self, topics: &[(u64, &str)], after: Option<Position>) -> Recent {
        self.inner.recent(topics, after)
    }

    fn latest(&self, topic: Option<(u64, &str)>, limit: usize) -> Latest {
        self.inner.latest(topic, limit)
    }

    fn activity(&self, seconds_max: u64) -> Activity {
        self.inner.activity(seconds_max)
    }

    fn hash(&self, topic: &str) -> u64 {
        self.inner.hash(topic)
    }

    fn epoch(&self) -> Epoch {
        self.inner.epoch()
    }

    fn enter_filter(&self, shard: u16, hash: u64, name: &str) {
        if self.is_live() {
            return self.inner.enter_filter(shard, hash, name);
        }
        let mut filters = self.filters.lock().unwrap();
        filters.entry((shard, name.into())).or_insert((hash, 0)).1 += 1;
    }

    fn leave_filter(&self, shard: u16, name: &str) {
        if self.is_live() {
            return self.inner.leave_filter(shard, name);
        }
        let mut filters = self.filters.lock().unwrap();
        filters.get_mut(&(shard, name.into())).expect("nobody had the filter").1 -= 1;
    }

    fn leave_filters(&self, shard: u16) {
        match self.is_live() {
            true => self.inner.leave_filters(shard),
            false => self.filters.lock().unwrap().retain(|(of, _), _| *of != shard),
        }
    }

    fn pass_to_group(&self, message: &Arc<Envelope>, key: &Arc<FilterKey>, to: Passed) -> bool {
        self.inner.pass_to_group(message, key, to)
    }
}

/// Engines that will replace others.
pub(crate) struct Upgrade {
    engines: Vec<Engine>,
    services: Services,
    shared: Arc<Shared>,
    broker: Arc<Passive>,
    /// The record that each engine has been given, by slot.
    passed: Vec<HashMap<u32, Vec<u8>>>,
    parts: [Sent; 2],
}

impl Upgrade {
    /// Begins with only the engines' own records.
    pub fn begin(drivers: &[Driver], services: &Services) -> Self {
        let before = &drivers[0].engine.core;
        let services = services.another();
        let shared = services.shared();
        let began_us = before.shared.unix_ms(0) * 1_000;
        shared.set_time(0, began_us, began_us);
        let shared = Arc::new(shared);
        let broker = Arc::new(Passive {
            inner: before.broker.clone(),
            is_live: AtomicBool::new(false),
            filters: Mutex::default(),
        });
        // Other threads reach the new engines as the services do; metrics begin anew.
        let handles: Arc<[Handle]> =
            drivers.iter().map(|driver| driver.engine.handle().successor()).collect();
        let engines = drivers.iter().map(|driver| {
            let mut engine = another(&driver.engine, handles.clone(), shared.clone());
            engine.core.broker = broker.clone();
            engine.import_engine(&driver.engine.export_engine()).unwrap();
            engine
        });
        Upgrade {
            engines: engines.collect(),
            services,
            shared,
            broker,
            passed: vec![HashMap::new(); drivers.len()],
            parts: [Sent::new(), Sent::new()],
        }
    }

    /// Copies those connections that `wants` accepts, as they are now.
    pub fn copy(
        &mut self,
        drivers: &[Driver],
        before: &Services,
        mut wants: impl FnMut(u32) -> bool,
    ) {
        for (at, driver) in drivers.iter().enumerate() {
            for slot in driver.engine.slots().filter(|slot| wants(*slot)) {
                self.pass(&driver.engine, at, slot);
            }
        }
        self.pass_parts(before);
    }

    /// Passes a connection on if its record has changed.
    fn pass(&mut self, from: &Engine, at: usize, slot: u32) {
        let record = from.export(slot).unwrap();
        assert_eq!(from.export(slot).as_ref(), Some(&record), "an export changes something");
        let passed = self.passed[at].get(&slot);
        if passed == Some(&record) {
            return;
        }
        assert_eq!(self.engines[at].forget_imported(slot), passed.is_some());
        assert_eq!(self.engines[at].import(&record), Ok(slot));
        self.passed[at].insert(slot, record);
    }

    fn pass_parts(&mut self, before: &Services) {
        let parts: [(&dyn Part, &dyn Part); 2] = [
            (&*before.presence, &*self.services.presence),
            (&*before.sessions, &*self.services.sessions),
        ];
        for ((from, to), sent) in parts.into_iter().zip(&mut self.parts) {
            handover::testing::pass(from, to, sent);
        }
    }

    /// The old engines stand still. `around` does the work of other services meanwhile.
    fn stand_still(drivers: &mut [Driver], mut around: impl FnMut()) {
        drivers.iter_mut().for_each(|driver| driver.engine.stand_still());
        for turns in 0.. {
            if drivers.iter().all(|driver| driver.engine.is_still()) {
                return;
            }
            assert!(turns < TURNS, "engines do not come to rest");
            for driver in drivers.iter_mut() {
                driver.engine.take_commands();
                driver.engine.run_commands();
                driver.perform();
            }
            around();
        }
    }

    /// The old engines stand still, and then go on: the upgrade has failed.
    pub fn give_up(self, drivers: &mut [Driver], around: impl FnMut()) {
        Self::stand_still(drivers, around);
        for driver in drivers {
            let owed = driver.engine.take_owed();
            driver.engine.give_owed(owed);
            driver.engine.go_on();
        }
    }

    /// The new engines replace the old ones. With `is_exact` they must equal them, which they don't when queries to
    /// the history are repeated.
    pub fn finish(
        mut self,
        drivers: &mut [Driver],
        services: &mut Services,
        is_exact: bool,
        around: impl FnMut(),
    ) {
        Self::stand_still(drivers, around);
        let owed: Vec<Vec<Owed>> = drivers.iter_mut().map(|it| it.engine.take_owed()).collect();
        for (at, driver) in drivers.iter().enumerate() {
            self.pass_engine(&driver.engine, at);
        }
        self.pass_parts(services);
        self.services.presence.complete().unwrap();
        self.services.sessions.complete().unwrap();
        self.compare(drivers, services, is_exact);
        self.broker.go_live(u16::try_from(drivers.len()).unwrap());
        for (engine, owed) in self.engines.iter_mut().zip(&owed) {
            owed.iter().for_each(|owed| engine.give_owed_record(&owed.encode()).unwrap());
        }
        *services = self.services;
        for (driver, engine) in drivers.iter_mut().zip(self.engines) {
            driver.engine = engine;
        }
        drivers.iter_mut().for_each(|driver| driver.engine.restart());
        drivers.iter_mut().for_each(Driver::perform);
    }

    /// Passes on the differences of an engine and its connections.
    fn pass_engine(&mut self, from: &Engine, at: usize) {
        let core = &mut self.engines[at].core;
        (core.now_us, core.settings) = (from.now_us(), from.settings().clone());
        let slots: BTreeSet<u32> = from.slots().collect();
        let gone: Vec<u32> =
            self.passed[at].keys().copied().filter(|slot| !slots.contains(slot)).collect();
        for slot in gone {
            self.passed[at].remove(&slot);
            assert!(self.engines[at].forget_imported(slot));
        }
        // The interest set has the copied topics, and needs the rest.
        let core = &self.engines[at].core;
        core.handle.inbox.filter.rebuild(core.hub.all_topics().map(|(.., hash)| hash.into()));
        slots.into_iter().for_each(|slot| self.pass(from, at, slot));
        self.engines[at].import_engine(&from.export_engine()).unwrap();
    }

    fn compare(&self, drivers: &[Driver], services: &Services, is_exact: bool) {
        for (driver, engine) in drivers.iter().zip(&self.engines) {
            let counts = |engine: &Engine| {
                let Engine { core, reserved, .. } = &engine;
                let connections = core.metrics.connections.each_ref().map(Counter::get);
                let metrics = &core.metrics;
                let open_connections = (
                    metrics.open_connections.get(),
                    metrics.closing_connections.get(),
                    metrics.outbox_bytes.get(),
                );
                // The capacity of a vector depends on how it grew.
                let input = core.metrics.input_bytes.get() > 0;
                (connections, open_connections, core.hub.topics(), input, *reserved)
            };
            assert_eq!(counts(engine), counts(&driver.engine));
            assert!(!engine.has_outputs() && engine.core.hook_events.is_empty());
            if is_exact {
                for slot in driver.engine.slots() {
                    assert_eq!(engine.export(slot), driver.engine.export(slot), "slot {slot}");
                }
            }
        }
        let counts = |shared: &Shared| {
            let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
            (count(&shared.connections), count(&shared.sessions), shared.presence.connections())
        };
        assert_eq!(counts(&self.shared), counts(drivers[0].engine.shared()));
        use sessions::Sessions as _;
        let persistent = |services: &Services| {
            (services.sessions.stats().away, services.sessions.stats().persistent)
        };
        assert_eq!(persistent(&self.services), persistent(services));
    }
}
