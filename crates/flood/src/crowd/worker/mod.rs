//! One thread of a crowd: its poller, its connections and its counts.

#![expect(unsafe_code, reason = "a promise about the descriptors of a thread")]

mod cut;
mod heartbeat_wheel;
mod open;
mod read;
mod request;
mod resume;
mod silences;
mod targets;
mod tls;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use client::{Client, Feed, Goodbye};
use random::Random;
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::time::Timespec;

use self::cut::Pause;
use self::heartbeat_wheel::HeartbeatWheel;
use self::silences::Silences;
use self::targets::Targets;
use self::tls::Sessions;
use super::acker::Acker;
use super::connection::{Connection, Stage, Trackers};
use super::receiver::{ReadOutcome, Receiver, Stats};
use super::resume_state::ResumeState;
use super::{CloseReason, Common, Order, Shared, Stat, lock};
use crate::clock::now_ns;
use crate::payload::Scanner;

/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;
/// Events fetched at once.
const EVENTS_MAX: usize = 512;
/// Connections that are begun before the thread polls for events again.
const BEGUN_AT_ONCE: usize = 64;
/// Capacity for times that the thread records before it adds them to the run's.
const TIMES: usize = 4_096;
/// How long the thread waits for events when it is idle. An order may wait this long.
const IDLE_WAIT_MS: u64 = 200;
/// How long the thread waits for events while connections come and go.
const BUSY_WAIT_MS: u64 = 5;
/// How often the thread draws the connections that leave and return.
const DRAW_NS: u64 = 50_000_000;
/// If threads far outnumber the cores, a thread that found few events sleeps this long before it polls again.
/// Otherwise a server on the same host would pay for waking it for each message. The measured times are too long by
/// this much at most.
const FEW_EVENTS_SLEEP: Duration = Duration::from_millis(2);
const FEW_EVENTS: usize = 32;
const THREADS_PER_CORE_MAX: u32 = 8;
const SECOND_NS: u64 = 1_000_000_000;
/// The first bytes that a port with TLS sends to a client without TLS: an alert (RFC 8446, sections 5.1 and 6).
const TLS_ALERT: [u8; 2] = [21, 3];

pub(super) struct Worker<'a> {
    common: &'a Common,
    shared: &'a Shared,
    poller: OwnedFd,
    connections: Vec<Connection>,
    /// The index of the first connection here among all of this process.
    from: u32,
    targets: Targets,
    sessions: Sessions,
    /// Connections that were not tried yet.
    untried: Range<u32>,
    /// Connections to open now: the index, and the time since which it is due.
    due: VecDeque<(u32, u64)>,
    /// Connections with more input than the thread reads for one event.
    unread: Vec<u32>,
    /// The offset of this thread's arrivals between those of the other threads, in nanoseconds.
    phase_ns: u64,
    /// Connections that are away and will return.
    away: Vec<u32>,
    /// Connections that stay away until the storm ends.
    deferred: Vec<u32>,
    /// Connections that read nothing for a while.
    paused: HashMap<u32, Pause>,
    /// The resume states, by index. Empty if connections have none.
    resume_states: Vec<Option<Box<ResumeState>>>,
    acker: Option<Acker>,
    in_flight: usize,
    storms: u32,
    returns: u32,
    /// The turns of heartbeats, if clients send them.
    heartbeats: Option<HeartbeatWheel>,
    drawn_ns: u64,
    second_ns: u64,
    cut_ns: u64,
    cuts_ended: bool,
    random: Random,
    path: String,
    request: Vec<u8>,
    buffer: Box<[u8]>,
    /// Decrypted bytes of one read.
    plain: Vec<u8>,
    /// Incomplete input, by index. Empty most of the time.
    pending: HashMap<u32, Vec<u8>>,
    /// Where polls continue, by index, if an id alone can't express it.
    poll_positions: HashMap<u32, model::ResumeToken>,
    reply: Vec<u8>,
    scanner: Scanner,
    goodbyes: Vec<Goodbye>,
    /// Present if the run measures silences.
    silences: Option<Silences>,
    stats: Stats,
    times: Vec<u32>,
    user_times: Vec<u32>,
    connects: Vec<u32>,
    recoveries: Vec<u32>,
}

/// Opens the connections with these indexes and holds them until the owner orders a stop.
pub(super) fn run(common: &Common, shared: &Shared, thread: u32, range: Range<u32>) -> Result<()> {
    // SAFETY: this thread opens all its descriptors below, and hands none to another thread.
    unsafe { crate::descriptors::private_table() }.context("a private descriptor table")?;
    let count = range.len();
    let mut worker = Worker {
        common,
        shared,
        poller: epoll::create(CreateFlags::CLOEXEC).context("a poller")?,
        connections: std::iter::repeat_with(Connection::default).take(count).collect(),
        from: range.start,
        targets: Targets::new(&common.plan, range.map(|own| common.plan.part.index(own))),
        sessions: Sessions::default(),
        untried: 0..count as u32,
        due: VecDeque::new(),
        unread: Vec::new(),
        phase_ns: match common.plan.rate {
            rate if rate > 0.0 => (f64::from(thread) / rate * 1e9) as u64,
            _ => 0,
        },
        away: Vec::new(),
        deferred: Vec::new(),
        paused: HashMap::new(),
        resume_states: match common.plan.has_resume_states() {
            true => std::iter::repeat_with(|| None).take(count).collect(),
            false => Vec::new(),
        },
        acker: None,
        in_flight: 0,
        storms: 0,
        returns: 0,
        heartbeats: common.plan.clients_send_heartbeats().then(|| HeartbeatWheel::begin(now_ns())),
        drawn_ns: now_ns(),
        second_ns: now_ns(),
        cut_ns: now_ns(),
        cuts_ended: false,
        random: Random::of(
            common.plan.seed,
            u64::from(common.plan.part.number) << 32 | u64::from(thread),
        ),
        path: String::new(),
        request: Vec::with_capacity(512),
        buffer: vec![0; READ_BYTES].into_boxed_slice(),
        plain: Vec::new(),
        pending: HashMap::new(),
        poll_positions: HashMap::new(),
        reply: Vec::new(),
        scanner: Scanner::default(),
        goodbyes: Vec::new(),
        silences: common.plan.silences.then(|| Silences::new(count)),
        stats: [0; Stat::COUNT],
        times: Vec::with_capacity(TIMES),
        user_times: Vec::new(),
        connects: Vec::with_capacity(TIMES),
        recoveries: Vec::new(),
    };
    worker.work()
}

impl Worker<'_> {
    fn work(&mut self) -> Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let crowded = self.common.threads > cores * THREADS_PER_CORE_MAX;
        loop {
            let now = now_ns();
            let order = self.shared.order.load(Ordering::Relaxed);
            if order == Order::Stop as u8 {
                break;
            }
            if order == Order::OpenNoMore as u8 {
                self.untried.start = self.untried.end;
            }
            self.storm();
            self.open_due(now);
            self.draw_leaving_and_returning(now);
            self.cut_due(now);
            self.take_acknowledged(now);
            self.each_second(now);
            self.send_heartbeats(now);
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.poller, buffer, Some(&self.wait_timeout(now))) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for events"),
            }
            for index in std::mem::take(&mut self.unread) {
                self.read(index, EventFlags::RDHUP);
            }
            for event in &events {
                let (index, flags) = (event.data.u64() as u32, event.flags);
                self.process_event(index, flags);
            }
            self.publish_stats();
            self.scan_if_requested();
            if crowded && (1..FEW_EVENTS).contains(&events.len()) {
                std::thread::sleep(FEW_EVENTS_SLEEP);
            }
        }
        self.close_all();
        self.publish_stats();
        Ok(())
    }

    fn wait_timeout(&self, now: u64) -> Timespec {
        let lifetime = &self.common.plan.lifetime;
        let opening = !self.due.is_empty() || !self.untried.is_empty();
        let ms = match () {
            () if !self.unread.is_empty() => 0,
            () if opening && self.in_flight < self.common.in_flight_each => {
                if self.next_arrival_ns() <= now { 0 } else { BUSY_WAIT_MS }
            }
            () if self.cuts_now() => BUSY_WAIT_MS,
            () if lifetime.stay_seconds.is_some()
                || !self.away.is_empty()
                || self.targets.any_waits() =>
            {
                DRAW_NS / 1_000_000
            }
            () => IDLE_WAIT_MS,
        };
        Timespec { tv_sec: 0, tv_nsec: (ms * 1_000_000) as i64 }
    }

    /// Returns the time when the next untried connection is due. The threads take turns.
    fn next_arrival_ns(&self) -> u64 {
        let Common { plan, begin_ns, threads, .. } = self.common;
        if !self.due.is_empty() || plan.rate <= 0.0 {
            return *begin_ns;
        }
        let before = f64::from(self.untried.start) * f64::from(*threads);
        begin_ns + self.phase_ns + (before / plan.rate * 1e9) as u64
    }

    /// Begins to open the connections that are due.
    fn open_due(&mut self, now: u64) {
        for _ in 0..BEGUN_AT_ONCE {
            if self.in_flight >= self.common.in_flight_each {
                return;
            }
            if let Some((index, due)) = self.due.pop_front() {
                self.open(index, due);
                continue;
            }
            let due = self.next_arrival_ns();
            if due > now {
                return;
            }
            let Some(index) = self.untried.next() else {
                return;
            };
            let due = if self.common.plan.rate > 0.0 { due } else { now };
            self.stats[Stat::Begun as usize] += 1;
            self.open(index, due);
        }
    }

    /// Draws the connections that leave and those that return.
    fn draw_leaving_and_returning(&mut self, now: u64) {
        let passed = now.saturating_sub(self.drawn_ns);
        if passed < DRAW_NS {
            return;
        }
        self.drawn_ns = now;
        self.take_waiting(now, false);
        let seconds = passed as f64 / 1e9;
        let lifetime = self.common.plan.lifetime;
        if let Some(stay) = lifetime.stay_seconds {
            let open = self.stats[Stat::Open as usize] as f64;
            let leaving = self.random.round(open * seconds / stay);
            for _ in 0..leaving.min(open as usize) {
                self.leave_one();
            }
        }
        if let Some(away) = lifetime.away_seconds {
            let back = self.away.len() as f64 * (1.0 - (-seconds / away).exp());
            for _ in 0..self.random.round(back) {
                let at = self.random.below(self.away.len() as u32) as usize;
                if at < self.away.len() {
                    let index = self.away.swap_remove(at);
                    self.due.push_back((index, now));
                }
            }
        }
    }

    /// Makes a random open connection leave: with a close, or with a reset as if its network failed.
    fn leave_one(&mut self) {
        for _ in 0..100 {
            let index = self.random.below(self.connections.len() as u32);
            if self.connections[index as usize].stage == Stage::Open {
                let orderly = self.common.plan.lifetime.orderly;
                let gently = orderly || self.random.bits() & 1 == 0;
                if gently {
                    self.say_farewell(index);
                }
                self.disconnect(index, gently);
                self.away.push(index);
                return;
            }
        }
    }

    /// In a storm, drops all connections. They return at once, or when the storm ends if they must miss messages.
    fn storm(&mut self) {
        let now = now_ns();
        let storms = self.shared.storms.load(Ordering::Relaxed);
        if storms != self.storms {
            self.storms = storms;
            let mut dropped = std::mem::take(&mut self.away);
            for index in 0..self.connections.len() as u32 {
                if self.connections[index as usize].stage == Stage::Open {
                    self.disconnect(index, false);
                    dropped.push(index);
                }
            }
            if self.common.plan.missed > 0 {
                dropped.iter().for_each(|index| self.expect_missed(*index));
                self.deferred.append(&mut dropped);
            }
            self.due.extend(dropped.into_iter().map(|index| (index, now)));
        }
        let returns = self.shared.returns.load(Ordering::Relaxed);
        if returns != self.returns {
            self.returns = returns;
            self.due.extend(self.deferred.drain(..).map(|index| (index, now)));
        }
    }

    /// Once a second, closes the connections that have waited too long for a response or have
    /// received nothing for too long.
    fn each_second(&mut self, now: u64) {
        if now.saturating_sub(self.second_ns) < SECOND_NS {
            return;
        }
        self.second_ns = now;
        let plan = &self.common.plan;
        let (seconds, us) = (self.seconds(now), self.us(now));
        let silence = plan.silence_seconds_max;
        if self.in_flight == 0 && silence == 0 {
            return;
        }
        for index in 0..self.connections.len() as u32 {
            let connection = &self.connections[index as usize];
            let waited = us.wrapping_sub(connection.due_us) / 1_000_000;
            let silent = u32::from(seconds.wrapping_sub(connection.received_seconds));
            match connection.stage {
                // This thread may have begun the attempt late, so the due time alone may be long past.
                Stage::Connecting | Stage::Requested
                    if waited > plan.response_seconds_max && silent > plan.response_seconds_max =>
                {
                    self.end(index, CloseReason::ResponseTimeout);
                }
                Stage::Open if silence > 0 && silent > silence => {
                    self.end(index, CloseReason::Silent);
                }
                _ => {}
            }
        }
    }

    fn us(&self, at_ns: u64) -> u32 {
        (at_ns.saturating_sub(self.common.begin_ns) / 1_000) as u32
    }

    fn seconds(&self, at_ns: u64) -> u16 {
        (at_ns.saturating_sub(self.common.begin_ns) / SECOND_NS) as u16
    }

    fn client(&self, index: u32) -> &'static dyn Client {
        let transports = &self.common.plan.transports;
        transports[self.at(index) as usize % transports.len()]
    }

    /// Schedules the return of a connection, if connections return in this plan.
    fn schedule_return(&mut self, index: u32) {
        if self.common.plan.lifetime.away_seconds.is_some() {
            self.away.push(index);
        }
    }

    fn process_event(&mut self, index: u32, flags: EventFlags) {
        if self.connections[index as usize].stage == Stage::Connecting {
            match self.send_first_request(index) {
                Ok(true) => {}
                // The server's reply is part of the handshake, so the thread reads.
                Ok(false) if self.sessions.is_handshaking(index) => {}
                Ok(false) => return,
                Err(reason) => return self.end(index, reason),
            }
        } else if let Some(socket) = &self.connections[index as usize].socket {
            // If the connection has ended, the read reports why.
            let _ = self.sessions.flush(index, socket);
        }
        self.read(index, flags);
    }

    /// Processes bytes that a connection received.
    fn process_input(&mut self, index: u32, bytes: &[u8]) {
        let plan = &self.common.plan;
        let (now, client, all) = (now_ns(), self.client(index), self.at(index));
        let now_seconds = self.seconds(now);
        let number = plan.first + all;
        let mut resume_state = self.resume_states.get_mut(index as usize).and_then(Option::take);
        let names = resume_state
            .as_deref()
            .map_or(Vec::new(), |resume_state| self.common.names(resume_state));
        let subscribes = self.subscribes_by_command(index);
        let messages = self.stats[Stat::Messages as usize];
        let lost = self.stats[Stat::Lost as usize];
        let connection = &mut self.connections[index as usize];
        let mut receiver = Receiver {
            scanner: &self.scanner,
            published: &self.common.published,
            stats: &mut self.stats,
            times: &mut self.times,
            user_times: &mut self.user_times,
            anomalies: &self.common.anomalies,
            run: plan.run,
            user: number,
            index: all,
            room: plan.room(number),
            now_ns: now,
            run_now_ns: plan.clock.of_run(now),
            trackers: connection.trackers,
            resume_state: resume_state.as_deref_mut(),
            names: &names,
            subscribes,
            may_be_again: false,
            is_again: false,
            outcome: ReadOutcome::default(),
        };
        let mut pending = self.pending.remove(&index).unwrap_or_default();
        let mut state = connection.state;
        self.reply.clear();
        let mut feed =
            Feed { client, number: u64::from(number), pending: &mut pending, out: &mut self.reply };
        let fed = state.feed(&mut feed, bytes, &mut |event| receiver.receive(event));
        let Receiver { trackers, outcome, .. } = receiver;
        connection.state = state;
        connection.trackers = trackers;
        connection.received_seconds = now_seconds;
        self.stats[Stat::Bytes as usize] += bytes.len() as u64;
        let newly_lost = self.stats[Stat::Lost as usize] as i64 - lost as i64;
        if newly_lost != 0 {
            self.count_at_target(index, |tally| tally.lost += newly_lost);
        }
        if self.stats[Stat::Messages as usize] > messages {
            let us = self.us(now);
            if let Some(silences) = &mut self.silences {
                silences.on_message(index, us);
            }
        }
        if let Some(slot) = self.resume_states.get_mut(index as usize) {
            *slot = resume_state;
        }
        if !pending.is_empty() {
            self.pending.insert(index, pending);
        }
        let speaks_tls = bytes.starts_with(&TLS_ALERT) && !self.sessions.has(index);
        let fed = fed.map_err(|error| match speaks_tls {
            true => CloseReason::SpeaksTls,
            false => error.into(),
        });
        self.act_on(index, now, fed, outcome);
    }

    /// Acts on the outcome of one read.
    fn act_on(
        &mut self,
        index: u32,
        now: u64,
        fed: Result<(), CloseReason>,
        mut outcome: ReadOutcome,
    ) {
        if let Some(said) = outcome.said {
            self.note_goodbye(index, said);
        }
        if let Some(us) = outcome.recovered_us {
            self.recoveries.push(us);
            self.common.recovered_ns.fetch_max(now, Ordering::Relaxed);
        }
        if outcome.opened {
            self.opened(index, now);
        }
        if let Err(reason) = fed {
            return self.end(index, reason);
        }
        if outcome.ended {
            return self.end(index, CloseReason::Ended);
        }
        if outcome.opened {
            self.subscribe(index);
        }
        if let Some((number, id)) = outcome.user_message.take() {
            self.acknowledge(index, outcome.user_messages, number, id);
        }
        if !self.reply.is_empty()
            && let Some(socket) = &self.connections[index as usize].socket
        {
            let sent = self.sessions.send(index, socket, &self.reply);
            // Pongs that don't fit are dropped, as a slow network would; a lost confirmation is an error, since the
            // server waits for it.
            if !self.client(index).is_http() && sent != Ok(self.reply.len()) {
                return self.end(index, CloseReason::Unsent);
            }
        }
        if outcome.join {
            self.join(index);
        }
        if let Some(since) = outcome.again {
            self.poll_again(index, since);
        }
    }

    fn note_goodbye(&mut self, index: u32, said: Goodbye) {
        let at = self.goodbyes.iter().position(|known| *known == said).unwrap_or_else(|| {
            // The index is a byte: further reasons share the last one.
            self.goodbyes.truncate(usize::from(u8::MAX) - 1);
            self.goodbyes.push(said);
            self.goodbyes.len() - 1
        });
        self.connections[index as usize].goodbye = at as u8 + 1;
    }

    /// Counts the messages that were published and have not arrived, when the owner requested it.
    fn scan_if_requested(&mut self) {
        let requested = self.shared.scans_requested.load(Ordering::Relaxed);
        if requested == self.shared.scans_done.load(Ordering::Relaxed) {
            return;
        }
        let Common { plan, published, .. } = self.common;
        let describes = self.common.describes_missing.load(Ordering::Relaxed);
        let mut missing = 0;
        let mut missing_at = vec![0; self.targets.tallies.len()];
        for (at, connection) in self.connections.iter().enumerate() {
            if connection.stage != Stage::Open {
                continue;
            }
            let before = missing;
            let all = self.at(at as u32);
            let Trackers { user, topic, all: to_all } = &connection.trackers;
            missing += u64::from(to_all.missing(published.all()));
            if let Some(Some(resume_state)) = self.resume_states.get(at) {
                let client = self.client(at as u32);
                missing += self.common.missing(resume_state, all, client, describes);
            } else {
                missing += u64::from(user.missing(published.user(all)));
                missing += u64::from(topic.missing(published.topic(plan.room(plan.first + all))));
            }
            if let Some(missing_there) = missing_at.get_mut(self.server(at as u32)) {
                *missing_there += missing - before;
            }
        }
        for (tally, missing) in self.targets.tallies.iter_mut().zip(missing_at) {
            tally.missing = missing;
        }
        self.stats[Stat::Missing as usize] = missing;
        if let Some(silences) = &self.silences {
            *lock(&self.shared.silences) = silences.longest();
        }
        self.publish_stats();
        self.shared.scans_done.store(requested, Ordering::Release);
    }

    /// Publishes this thread's times and counts to the owner of the crowd.
    fn publish_stats(&mut self) {
        // The times come first: the owner that reads a count finds the time of each event that it counts.
        for (times, to) in [
            (&mut self.times, &self.common.delivery),
            (&mut self.user_times, &self.common.delivery_user),
            (&mut self.connects, &self.common.connect),
            (&mut self.recoveries, &self.common.recovery),
        ] {
            if !times.is_empty() {
                let mut all = lock(to);
                for us in times.drain(..) {
                    all.saturating_record(u64::from(us).max(1));
                }
            }
        }
        self.stats[Stat::InFlight as usize] = self.in_flight as u64;
        for (count, value) in self.shared.tally.0.iter().zip(self.stats) {
            count.store(value, Ordering::Release);
        }
        if !self.targets.tallies.is_empty() {
            lock(&self.shared.targets).clone_from(&self.targets.tallies);
        }
    }

    /// Resets every connection. A reset leaves no port in TIME_WAIT, so the next crowd can use them
    /// at once.
    fn close_all(&mut self) {
        for connection in self.connections.drain(..) {
            if let Some(socket) = connection.socket {
                reset(&socket);
            }
        }
    }
}

/// Makes the close of a socket a reset. If that fails the connection closes all the same, only more
/// slowly.
fn reset(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

impl From<Errno> for CloseReason {
    fn from(error: Errno) -> Self {
        CloseReason::System(error.raw_os_error())
    }
}
