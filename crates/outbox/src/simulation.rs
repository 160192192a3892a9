//! Nodes that drain one outbox, in virtual time: compares the published rows with the committed transactions.
//!
//! The database, the lock and the broker are models. Sessions break and nodes crash between any two actions, a commit
//! may succeed without its reply, and the broker is overloaded (everywhere, or at one node), slow, or refuses rows
//! for good. `OUTBOX_SEED=7 cargo test -p outbox simulation` repeats one seed, and `OUTBOX_SEEDS=1000` runs so many.

use std::collections::{BTreeMap, BTreeSet};

use random::Random;

use crate::drain::{Action, Drain, Finished, Unfinished};
use crate::row::{Outcome, Reason, Row};

const TOPICS: u64 = 6;
const ROWS_MAX: usize = 7;
/// Transactions begin and faults happen before this step.
const STEPS: u64 = 2_000;
/// All rows must be done before this step.
const END_STEPS: u64 = 4_000;
const STEP_MS: u64 = 5;
/// The first node can't publish in these steps: longer than a node retains its turn.
const STUCK_STEPS: std::ops::Range<u64> = 500..3_000;

/// A row that an application has inserted.
#[derive(Clone, Debug)]
struct Inserted {
    id: i64,
    topic: u64,
    is_bad: bool,
    /// The number of transactions that had committed when this one began.
    after: usize,
    /// The position of its transaction in the order of commits.
    position: usize,
}

/// A transaction of an application.
struct Transaction {
    number: i64,
    after: usize,
    rows: Vec<Inserted>,
}

/// The database: the committed rows, and the running transactions.
#[derive(Default)]
struct Database {
    next_id: i64,
    next_transaction: i64,
    running: Vec<Transaction>,
    /// Rows that are not deleted.
    outbox: BTreeMap<i64, Inserted>,
    refused: BTreeSet<i64>,
    /// All rows that were ever committed.
    committed: Vec<Inserted>,
    commits: usize,
    lock: Option<usize>,
}

impl Database {
    fn draw(next: &mut i64) -> i64 {
        *next += 1;
        *next
    }

    fn oldest(&self) -> i64 {
        let running = self.running.iter().map(|it| it.number).min();
        running.unwrap_or(self.next_transaction + 1)
    }

    fn begin(&mut self) {
        let number = Database::draw(&mut self.next_transaction);
        self.running.push(Transaction { number, after: self.commits, rows: Vec::new() });
    }

    fn insert(&mut self, at: usize, topic: u64, is_bad: bool) {
        let id = Database::draw(&mut self.next_id);
        let transaction = &mut self.running[at];
        let after = transaction.after;
        transaction.rows.push(Inserted { id, topic, is_bad, after, position: 0 });
    }

    fn end(&mut self, at: usize, commits: bool) {
        let transaction = self.running.swap_remove(at);
        if !commits {
            return;
        }
        self.commits += 1;
        for row in transaction.rows {
            let row = Inserted { position: self.commits, ..row };
            self.committed.push(row.clone());
            self.outbox.insert(row.id, row);
        }
    }

    fn fetch(&self, above: i64) -> (i64, Vec<Row>) {
        assert!(
            self.outbox.range(..=above).next().is_none(),
            "rows below the floor {above}: {:?}",
            self.outbox.range(..=above).next()
        );
        let rows = self.outbox.values().take(ROWS_MAX);
        let rows = rows.map(|row| Row {
            id: row.id,
            uid: row.id.to_string().into(),
            message: Some("{}".into()),
            bytes: 2,
        });
        (self.oldest(), rows.collect())
    }

    fn finish(&mut self, finished: &Finished) -> i64 {
        for id in &finished.published {
            self.outbox.remove(id);
        }
        for (id, _) in &finished.refused {
            self.outbox.remove(id);
            self.refused.insert(*id);
        }
        Database::draw(&mut self.next_transaction)
    }
}

/// The broker: what members get. Keyed topics have a history in a store, which knows the keys.
#[derive(Default)]
struct Broker {
    published: Vec<i64>,
    keys: BTreeSet<i64>,
    is_overloaded: bool,
}

/// Topics with an odd number have a history.
fn is_keyed(topic: u64) -> bool {
    topic % 2 == 1
}

/// A node: it drains while it has a session with the lock.
#[derive(Default)]
struct Node {
    drain: Option<Drain>,
    /// Rows that its earlier sessions have published, and perhaps not deleted.
    unfinished: Unfinished,
    /// Outcomes on their way.
    outcomes: Vec<(i64, Outcome)>,
}

struct Simulation {
    random: Random,
    step: u64,
    database: Database,
    broker: Broker,
    nodes: Vec<Node>,
    /// True if processes die, besides sessions that break.
    has_deaths: bool,
    crashes: u64,
    /// How often a node has given its turn to others.
    releases: u64,
}

impl Simulation {
    fn new(seed: u64, nodes: usize, has_deaths: bool) -> Self {
        Simulation {
            random: Random::new(seed),
            step: 0,
            database: Database::default(),
            broker: Broker::default(),
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            has_deaths,
            crashes: 0,
            releases: 0,
        }
    }

    fn now_ms(&self) -> u64 {
        self.step * STEP_MS
    }

    fn happens(&mut self, one_in: u64) -> bool {
        self.random.below(one_in) == 0
    }

    /// Performs a step of an application's transaction.
    fn act(&mut self) {
        let running = self.database.running.len();
        let begins = self.step < STEPS && running < 5 && self.happens(6);
        if begins {
            self.database.begin();
        } else if running > 0 {
            let at = self.random.below(running);
            match self.random.below(8) {
                // Some transactions run for long.
                _ if at == 0 && self.step < STEPS && !self.happens(20) => {}
                0..4 => {
                    let (topic, is_bad) = (self.random.below(TOPICS), self.happens(15));
                    self.database.insert(at, topic, is_bad);
                }
                4..7 => self.database.end(at, true),
                _ => self.database.end(at, false),
            }
        }
    }

    /// Ends the session of a node, or its process.
    fn crash(&mut self, at: usize) {
        let dies = self.has_deaths && self.happens(2);
        let node = std::mem::take(&mut self.nodes[at]);
        if let Some(mut drain) = node.drain.filter(|_| !dies) {
            // Messages without history are published at once: their outcomes are known.
            for (id, outcome) in node.outcomes {
                drain.on_outcome(id, outcome);
            }
            self.nodes[at].unfinished = drain.into_unfinished();
        }
        if self.database.lock == Some(at) {
            self.database.lock = None;
        }
        self.crashes += 1;
    }

    /// Performs one action of a node.
    fn drive(&mut self, at: usize) {
        let now_ms = self.now_ms();
        let faults = self.step < STEPS;
        if self.nodes[at].drain.is_none() {
            if self.database.lock.is_none() {
                self.database.lock = Some(at);
                let node = &mut self.nodes[at];
                node.drain = Some(Drain::new(std::mem::take(&mut node.unfinished)));
            }
            return;
        }
        if !self.nodes[at].outcomes.is_empty() && self.happens(2) {
            // Outcomes come in any order.
            let which = self.random.below(self.nodes[at].outcomes.len());
            let (id, outcome) = self.nodes[at].outcomes.swap_remove(which);
            self.nodes[at].drain.as_mut().unwrap().on_outcome(id, outcome);
        }
        match self.nodes[at].drain.as_mut().unwrap().poll(now_ms) {
            Action::Fetch(above) => {
                let (oldest, rows) = self.database.fetch(above);
                self.nodes[at].drain.as_mut().unwrap().on_rows(now_ms, oldest, rows);
            }
            Action::Publish(row) => {
                let outcome = self.publish(at, &row);
                let node = &mut self.nodes[at];
                match outcome {
                    // The broker reports this at once.
                    Outcome::Wait(_) => node.drain.as_mut().unwrap().on_outcome(row.id, outcome),
                    Outcome::Published | Outcome::Refused(_) => {
                        node.outcomes.push((row.id, outcome));
                    }
                }
            }
            Action::Await | Action::Sleep(_) => {}
            Action::Release => {
                let node = &mut self.nodes[at];
                assert!(node.outcomes.is_empty(), "something is under way");
                node.unfinished = node.drain.take().unwrap().into_unfinished();
                self.database.lock = None;
                self.releases += 1;
            }
            Action::Finish(finished) => {
                if faults && self.happens(6) {
                    // The crash is before the commit, or after it, without a reply.
                    if self.happens(2) {
                        self.database.finish(&finished);
                    }
                    return self.crash(at);
                }
                let transaction = self.database.finish(&finished);
                self.nodes[at].drain.as_mut().unwrap().on_finished(now_ms, transaction);
            }
        }
        if faults && !self.is_stuck(at) && self.happens(150) {
            self.crash(at);
        }
    }

    fn publish(&mut self, at: usize, row: &Row) -> Outcome {
        let inserted = &self.database.outbox[&row.id];
        if inserted.is_bad {
            let reason = Reason { code: "bad".into(), text: "bad".into() };
            return Outcome::Refused(reason);
        }
        if self.broker.is_overloaded || self.is_stuck(at) {
            return Outcome::Wait("behind".into());
        }
        if !is_keyed(inserted.topic) || self.broker.keys.insert(row.id) {
            self.broker.published.push(row.id);
        }
        Outcome::Published
    }

    /// Returns true while the first node can't publish. Its session lasts then.
    fn is_stuck(&self, at: usize) -> bool {
        at == 0 && STUCK_STEPS.contains(&self.step)
    }

    fn run(mut self) -> Self {
        while self.step < END_STEPS {
            self.act();
            let faults = self.step < STEPS;
            if self.happens(100) {
                self.broker.is_overloaded = faults && self.happens(2);
            }
            if !faults {
                self.broker.is_overloaded = false;
            }
            for at in 0..self.nodes.len() {
                for _ in 0..3 {
                    self.drive(at);
                }
            }
            self.step += 1;
        }
        self
    }

    fn check(&self) {
        let Simulation { database, broker, .. } = self;
        assert!(database.outbox.is_empty(), "{} rows are left", database.outbox.len());
        assert!(database.running.is_empty());
        let committed: BTreeMap<i64, &Inserted> =
            database.committed.iter().map(|row| (row.id, row)).collect();
        let mut first = BTreeMap::new();
        for (at, id) in broker.published.iter().enumerate() {
            let row = committed.get(id).expect("only what was committed is published");
            assert!(!row.is_bad);
            let is_again = first.contains_key(id);
            assert!(!is_again || !is_keyed(row.topic), "{row:?} is published twice");
            first.entry(*id).or_insert(at);
        }
        for row in &database.committed {
            assert_eq!(database.refused.contains(&row.id), row.is_bad, "{row:?}");
            assert_eq!(first.contains_key(&row.id), !row.is_bad, "{row:?}");
        }
        self.check_order(&first);
    }

    /// Checks that a topic's rows of one transaction are in their order, and transactions too if one began after the
    /// other's end.
    fn check_order(&self, first: &BTreeMap<i64, usize>) {
        let good = self.database.committed.iter().filter(|row| !row.is_bad);
        let good: Vec<&Inserted> = good.collect();
        for (at, earlier) in good.iter().enumerate() {
            for later in &good[at + 1..] {
                let is_ordered = match earlier.position == later.position {
                    true => earlier.id < later.id,
                    false => later.after >= earlier.position,
                };
                if is_ordered && earlier.topic == later.topic {
                    assert!(first[&earlier.id] < first[&later.id], "{earlier:?} {later:?}");
                }
            }
        }
    }
}

/// Runs and checks simulations of all seeds. Returns the numbers of rows that were published again, crashes, refused
/// rows, and turns that nodes gave to others.
fn simulate(nodes: usize, has_deaths: bool) -> [u64; 4] {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let seeds: std::ops::Range<u64> = match (number("OUTBOX_SEED"), number("OUTBOX_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(30),
    };
    let mut sums = [0; 4];
    for seed in seeds {
        println!("OUTBOX_SEED={seed}");
        let simulation = Simulation::new(seed, nodes, has_deaths).run();
        simulation.check();
        let Simulation { broker, database, crashes, releases, .. } = &simulation;
        let distinct: BTreeSet<i64> = broker.published.iter().copied().collect();
        let again = broker.published.len() - distinct.len();
        let counts = [again as u64, *crashes, database.refused.len() as u64, *releases];
        sums = std::array::from_fn(|at| sums[at] + counts[at]);
    }
    sums
}

#[test]
fn what_is_committed_is_published_in_order_and_keyed_rows_once() {
    let [again, crashes, refused, releases] = simulate(3, true);
    // The simulation must cause each fault.
    assert!(again > 0 && crashes > 0 && refused > 0, "{again} {crashes} {refused}");
    assert!(releases > 0);
}

#[test]
fn a_node_publishes_each_row_once_however_often_its_session_breaks() {
    let [again, crashes, ..] = simulate(1, false);
    assert!(again == 0 && crashes > 0, "{again} {crashes}");
}
