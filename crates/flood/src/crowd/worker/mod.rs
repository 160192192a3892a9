//! One thread of a crowd: its poller, its connections, its counts.

mod ask;
mod cut;
mod open;
mod remember;
mod round;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use rustix::time::Timespec;
use wire::client::{Client, Fault, Feed, Goodbye};

use self::cut::Pause;
use self::round::Round;
use super::acker::Acker;
use super::connection::{Connection, Stage, Trackers};
use super::ear::{Ear, Heard, Numbers};
use super::memory::Memory;
use super::{Common, Order, Reason, Shared, Stat, lock};
use crate::clock::now_ns;
use crate::payload::Scanner;
use crate::random::Random;

/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;
/// Reads of one connection before the next one's turn.
const READS: usize = 32;
/// Events taken at once.
const EVENTS: usize = 512;
/// Connections begun before the events of those before are looked at.
const BEGUN_AT_ONCE: usize = 64;
/// Times kept before they are added to the run's.
const TIMES: usize = 4_096;
/// How long an order may wait while nothing comes, and while connections come and go.
const CALM_MS: u64 = 200;
const BUSY_MS: u64 = 5;
/// How often those who leave and return are drawn.
const TURN_NS: u64 = 50_000_000;
/// With many more threads than cores, a thread that found few events sleeps so long before it looks
/// again: else the server, which is on this host too, would pay for waking it for each message.
/// Times are measured that much too long at most.
const REST: Duration = Duration::from_millis(2);
const FEW_EVENTS: usize = 32;
const THREADS_PER_CORE_MAX: u32 = 8;
const SECOND_NS: u64 = 1_000_000_000;

pub(super) struct Worker<'a> {
    common: &'a Common,
    shared: &'a Shared,
    poller: OwnedFd,
    connections: Vec<Connection>,
    /// The index in the whole crowd of the first connection here.
    from: u32,
    /// Not tried yet.
    fresh: Range<u32>,
    /// To be opened now: which, and since when that is due.
    due: VecDeque<(u32, u64)>,
    /// Connections with more input than one event may take.
    unread: Vec<u32>,
    /// This thread's place between the arrivals of the others, in nanoseconds.
    phase_ns: u64,
    /// Away, and to return some time.
    away: Vec<u32>,
    /// Away until they are told to come back.
    held: Vec<u32>,
    /// They read nothing for a while.
    paused: HashMap<u32, Pause>,
    /// What connections remember, by index; empty where they don't.
    memories: Vec<Option<Box<Memory>>>,
    acker: Option<Acker>,
    in_flight: usize,
    storms: u32,
    returns: u32,
    /// Of heartbeats, where clients send them.
    round: Option<Round>,
    turn_ns: u64,
    second_ns: u64,
    cut_ns: u64,
    calmed: bool,
    random: Random,
    path: String,
    request: Vec<u8>,
    buffer: Box<[u8]>,
    /// What is incomplete, by index; empty most of the time.
    pending: HashMap<u32, Vec<u8>>,
    /// Where polls go on, by index, as far as an id can't say it.
    places: HashMap<u32, wire::Since>,
    reply: Vec<u8>,
    scanner: Scanner,
    said: Vec<Goodbye>,
    numbers: Numbers,
    times: Vec<u32>,
    user_times: Vec<u32>,
    connects: Vec<u32>,
    recoveries: Vec<u32>,
}

/// Opens the connections with these indexes and holds them until told to stop.
pub(super) fn run(common: &Common, shared: &Shared, thread: u32, range: Range<u32>) -> Result<()> {
    // SAFETY: this thread opens all its descriptors below, and keeps them.
    unsafe { crate::descriptors::private_table() }.context("a private descriptor table")?;
    let count = range.len();
    let mut worker = Worker {
        common,
        shared,
        poller: epoll::create(CreateFlags::CLOEXEC).context("a poller")?,
        connections: std::iter::repeat_with(Connection::default).take(count).collect(),
        from: range.start,
        fresh: 0..count as u32,
        due: VecDeque::new(),
        unread: Vec::new(),
        phase_ns: match common.plan.rate {
            rate if rate > 0.0 => (f64::from(thread) / rate * 1e9) as u64,
            _ => 0,
        },
        away: Vec::new(),
        held: Vec::new(),
        paused: HashMap::new(),
        memories: match common.plan.remembers() {
            true => std::iter::repeat_with(|| None).take(count).collect(),
            false => Vec::new(),
        },
        acker: None,
        in_flight: 0,
        storms: 0,
        returns: 0,
        round: common.plan.clients_beat().then(|| Round::begin(now_ns())),
        turn_ns: now_ns(),
        second_ns: now_ns(),
        cut_ns: now_ns(),
        calmed: false,
        random: Random::new(common.plan.seed ^ (u64::from(thread) << 32)),
        path: String::new(),
        request: Vec::with_capacity(512),
        buffer: vec![0; READ_BYTES].into_boxed_slice(),
        pending: HashMap::new(),
        places: HashMap::new(),
        reply: Vec::new(),
        scanner: Scanner::default(),
        said: Vec::new(),
        numbers: [0; Stat::COUNT],
        times: Vec::with_capacity(TIMES),
        user_times: Vec::new(),
        connects: Vec::with_capacity(TIMES),
        recoveries: Vec::new(),
    };
    worker.work()
}

impl Worker<'_> {
    fn work(&mut self) -> Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let crowded = self.common.threads > cores * THREADS_PER_CORE_MAX;
        loop {
            let now = now_ns();
            let order = self.shared.order.load(Ordering::Relaxed);
            if order == Order::Stop as u8 {
                break;
            }
            if order == Order::Full as u8 {
                self.fresh.start = self.fresh.end;
            }
            self.storm();
            self.arrive(now);
            self.turn(now);
            self.cut_some(now);
            self.take_acknowledged(now);
            self.each_second(now);
            self.beat(now);
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.poller, room, Some(&self.patience(now))) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for events"),
            }
            for index in std::mem::take(&mut self.unread) {
                self.read(index, EventFlags::RDHUP);
            }
            for event in &events {
                let (index, flags) = (event.data.u64() as u32, event.flags);
                self.ready(index, flags);
            }
            self.publish();
            self.look();
            if crowded && (1..FEW_EVENTS).contains(&events.len()) {
                std::thread::sleep(REST);
            }
        }
        self.close_all();
        self.publish();
        Ok(())
    }

    fn patience(&self, now: u64) -> Timespec {
        let life = &self.common.plan.life;
        let opening = !self.due.is_empty() || !self.fresh.is_empty();
        let ms = match () {
            () if !self.unread.is_empty() => 0,
            () if opening && self.in_flight < self.common.in_flight_each => {
                if self.next_arrival_ns() <= now { 0 } else { BUSY_MS }
            }
            () if self.cuts_now() => BUSY_MS,
            () if life.stay_seconds.is_some() || !self.away.is_empty() => TURN_NS / 1_000_000,
            () => CALM_MS,
        };
        Timespec { tv_sec: 0, tv_nsec: (ms * 1_000_000) as i64 }
    }

    /// When the next connection that was never tried is due. Each thread takes its turn.
    fn next_arrival_ns(&self) -> u64 {
        let Common { plan, begin_ns, threads, .. } = self.common;
        if !self.due.is_empty() || plan.rate <= 0.0 {
            return *begin_ns;
        }
        let before = f64::from(self.fresh.start) * f64::from(*threads);
        begin_ns + self.phase_ns + (before / plan.rate * 1e9) as u64
    }

    /// Begins to open those that are due.
    fn arrive(&mut self, now: u64) {
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
            let Some(index) = self.fresh.next() else {
                return;
            };
            let due = if self.common.plan.rate > 0.0 { due } else { now };
            self.numbers[Stat::Begun as usize] += 1;
            self.open(index, due);
        }
    }

    /// Draws who leaves and who returns.
    fn turn(&mut self, now: u64) {
        let passed = now.saturating_sub(self.turn_ns);
        if passed < TURN_NS {
            return;
        }
        self.turn_ns = now;
        let seconds = passed as f64 / 1e9;
        let life = self.common.plan.life;
        if let Some(stay) = life.stay_seconds {
            let open = self.numbers[Stat::Open as usize] as f64;
            let leaving = self.random.round(open * seconds / stay);
            for _ in 0..leaving.min(open as usize) {
                self.leave();
            }
        }
        if let Some(away) = life.away_seconds {
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

    /// Somebody who is there leaves: in order, or as if the network were gone.
    fn leave(&mut self) {
        for _ in 0..100 {
            let index = self.random.below(self.connections.len() as u32);
            if self.connections[index as usize].stage == Stage::Open {
                let gently = self.random.bits() & 1 == 0;
                self.depart(index, gently);
                self.away.push(index);
                return;
            }
        }
    }

    /// Closes an open connection from our side.
    fn depart(&mut self, index: u32, gently: bool) {
        let connection = &mut self.connections[index as usize];
        if let Some(socket) = connection.socket.take()
            && !gently
        {
            reset(&socket);
        }
        let was = std::mem::replace(&mut connection.stage, Stage::Away);
        connection.forget_place();
        self.pending.remove(&index);
        self.places.remove(&index);
        self.paused.remove(&index);
        match was {
            Stage::Open => {
                self.numbers[Stat::Open as usize] -= 1;
                self.numbers[Stat::Left as usize] += 1;
            }
            Stage::Connecting | Stage::Asked => self.in_flight -= 1,
            Stage::Away => {}
        }
    }

    /// Everyone drops, and comes back at once, or when told to where something is to be missed.
    fn storm(&mut self) {
        let now = now_ns();
        let storms = self.shared.storms.load(Ordering::Relaxed);
        if storms != self.storms {
            self.storms = storms;
            let mut dropped = std::mem::take(&mut self.away);
            for index in 0..self.connections.len() as u32 {
                if self.connections[index as usize].stage == Stage::Open {
                    self.depart(index, false);
                    dropped.push(index);
                }
            }
            if self.common.plan.missed > 0 {
                dropped.iter().for_each(|index| self.owe(*index));
                self.held.append(&mut dropped);
            }
            self.due.extend(dropped.into_iter().map(|index| (index, now)));
        }
        let returns = self.shared.returns.load(Ordering::Relaxed);
        if returns != self.returns {
            self.returns = returns;
            self.due.extend(self.held.drain(..).map(|index| (index, now)));
        }
    }

    /// Once a second: who waits too long for an answer, and who has heard nothing for too long.
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
            let heard = u32::from(seconds.wrapping_sub(connection.heard_seconds));
            match connection.stage {
                // A delay of our own begin may have made the due time long past.
                Stage::Connecting | Stage::Asked
                    if waited > plan.answer_seconds_max && heard > plan.answer_seconds_max =>
                {
                    self.end(index, Reason::NoAnswer);
                }
                Stage::Open if silence > 0 && heard > silence => self.end(index, Reason::Silent),
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
        transports[(self.from + index) as usize % transports.len()]
    }

    fn later(&mut self, index: u32) {
        if self.common.plan.life.away_seconds.is_some() {
            self.away.push(index);
        }
    }

    fn ready(&mut self, index: u32, flags: EventFlags) {
        if self.connections[index as usize].stage == Stage::Connecting {
            self.prepare(index);
            let Some(socket) = &self.connections[index as usize].socket else {
                return;
            };
            match self.write_request(socket) {
                Ok(true) => self.asked(index),
                Ok(false) => return,
                Err(reason) => return self.end(index, reason),
            }
        }
        self.read(index, flags);
    }

    /// Reads what is there. A short read of a stream socket has taken all (epoll(7)), unless the
    /// peer is gone too.
    fn read(&mut self, index: u32, flags: EventFlags) {
        if self.paused.contains_key(&index) {
            return;
        }
        let gone = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut reads = 0;
        while let Some(socket) = &self.connections[index as usize].socket {
            match recv(socket, &mut *buffer, RecvFlags::empty()) {
                Ok((0, _)) => self.end(index, Reason::Closed),
                Ok((bytes, _)) => {
                    self.taken(index, &buffer[..bytes]);
                    reads += 1;
                    if reads == READS {
                        self.unread.push(index);
                        break;
                    }
                    if bytes < buffer.len() && !gone {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => self.end(index, error.into()),
            }
        }
        self.buffer = buffer;
    }

    /// Takes in bytes that came.
    fn taken(&mut self, index: u32, bytes: &[u8]) {
        let plan = &self.common.plan;
        let (now, client, all) = (now_ns(), self.client(index), self.from + index);
        let heard = self.seconds(now);
        let number = plan.first + all;
        let mut memory = self.memories.get_mut(index as usize).and_then(Option::take);
        let names = memory.as_deref().map_or(Vec::new(), |memory| self.common.names(memory));
        let subscribes = self.subscribes(index);
        let connection = &mut self.connections[index as usize];
        let mut ear = Ear {
            scanner: &self.scanner,
            published: &self.common.published,
            numbers: &mut self.numbers,
            times: &mut self.times,
            user_times: &mut self.user_times,
            faults: &self.common.faults,
            run: plan.run,
            user: number,
            index: all,
            room: plan.room(number),
            now_ns: now,
            trackers: connection.trackers,
            memory: memory.as_deref_mut(),
            names: &names,
            subscribes,
            heard: Heard::default(),
        };
        let mut pending = self.pending.remove(&index).unwrap_or_default();
        let mut state = connection.state;
        self.reply.clear();
        let mut feed =
            Feed { client, number: u64::from(number), pending: &mut pending, out: &mut self.reply };
        let fed = state.feed(&mut feed, bytes, &mut |event| ear.hear(event));
        let Ear { trackers, heard: after, .. } = ear;
        connection.state = state;
        connection.trackers = trackers;
        connection.heard_seconds = heard;
        self.numbers[Stat::Bytes as usize] += bytes.len() as u64;
        if let Some(place) = self.memories.get_mut(index as usize) {
            *place = memory;
        }
        if !pending.is_empty() {
            self.pending.insert(index, pending);
        }
        self.follow_up(index, now, fed, after);
    }

    /// Does what is to be done about what was heard.
    fn follow_up(&mut self, index: u32, now: u64, fed: Result<(), Fault>, mut heard: Heard) {
        if let Some(said) = heard.said {
            self.remember(index, said);
        }
        if let Some(us) = heard.recovered_us {
            self.recoveries.push(us);
            self.common.recovered_ns.fetch_max(now, Ordering::Relaxed);
        }
        if heard.opened {
            self.opened(index, now);
        }
        if let Err(fault) = fed {
            return self.end(index, fault.into());
        }
        if heard.ended {
            return self.end(index, Reason::Ended);
        }
        if heard.opened {
            self.subscribe(index);
        }
        if let Some((number, id)) = heard.user_message.take() {
            self.acknowledge(index, heard.user_messages, number, id);
        }
        if !self.reply.is_empty()
            && let Some(socket) = &self.connections[index as usize].socket
        {
            // What doesn't fit is lost, as on a network that is slow.
            let _ = send(socket, &self.reply, SendFlags::NOSIGNAL);
        }
        if heard.join {
            self.join(index);
        }
        if let Some(since) = heard.again {
            self.ask_again(index, since);
        }
    }

    fn remember(&mut self, index: u32, said: Goodbye) {
        let at = self.said.iter().position(|known| *known == said).unwrap_or_else(|| {
            // Codes beyond what a byte can name are told as the last one.
            self.said.truncate(usize::from(u8::MAX) - 1);
            self.said.push(said);
            self.said.len() - 1
        });
        self.connections[index as usize].said = at as u8 + 1;
    }

    /// Counts what was published and hasn't come, when asked.
    fn look(&mut self) {
        let looks = self.shared.looks.load(Ordering::Relaxed);
        if looks == self.shared.looked.load(Ordering::Relaxed) {
            return;
        }
        let Common { plan, published, .. } = self.common;
        let tells = self.common.tells.load(Ordering::Relaxed);
        let mut missing = 0;
        for (at, connection) in self.connections.iter().enumerate() {
            if connection.stage != Stage::Open {
                continue;
            }
            let all = self.from + at as u32;
            let Trackers { user, topic, all: everyone } = &connection.trackers;
            missing += u64::from(everyone.missing(published.all()));
            if let Some(Some(memory)) = self.memories.get(at) {
                missing += self.common.missing(memory, all, self.client(at as u32), tells);
                continue;
            }
            missing += u64::from(user.missing(published.user(all)));
            missing += u64::from(topic.missing(published.topic(plan.room(plan.first + all))));
        }
        self.numbers[Stat::Missing as usize] = missing;
        self.publish();
        self.shared.looked.store(looks, Ordering::Release);
    }

    fn publish(&mut self) {
        self.numbers[Stat::InFlight as usize] = self.in_flight as u64;
        for (count, value) in self.shared.tally.0.iter().zip(self.numbers) {
            count.store(value, Ordering::Relaxed);
        }
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
    }

    /// Resets every connection: no port waits for stragglers (TIME_WAIT), and the next crowd may
    /// have it at once.
    fn close_all(&mut self) {
        for connection in self.connections.drain(..) {
            if let Some(socket) = connection.socket {
                reset(&socket);
            }
        }
    }
}

/// Makes the close of a socket a reset. Without it the connection closes all the same, only more
/// slowly.
fn reset(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

impl From<Errno> for Reason {
    fn from(error: Errno) -> Self {
        Reason::System(error.raw_os_error())
    }
}
