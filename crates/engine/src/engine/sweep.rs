//! Heartbeats, time-outs and the drain. The sweep passes over the table in stripes: no connection has a timer.

use model::{CloseReason, Encoding};
use protocol::{Delivery, Liveness};

use super::second::each_second;
use crate::auth::credentials::TokenDue;
use crate::connection::{ColdState, Connection, Flag, Phase};
use crate::core::Core;
use crate::core::settings::SILENCE_SECONDS_MAX;
use crate::engine::Engine;

/// The sweep passes over the table once a second, in so many stripes.
pub(crate) const STRIPES: u32 = 16;

const STRIPE_US: u64 = 1_000_000 / STRIPES as u64;

/// The least number of slots passed over at once. Heartbeats of many connections in one go cost far less than in many
/// small batches: a client's process then wakes up once for several.
const STRIPE_SLOTS_MIN: u64 = 32 * 1024;

/// How long a connection whose last bytes are sent may keep its side open, in seconds.
const LINGER_SECONDS: u32 = 2;

/// How long a closing connection may take to read its last bytes, in seconds.
const CLOSING_SECONDS: u32 = 10;

/// How long a client beyond the limit of its address has for its request, in seconds.
const RESERVED_SECONDS: u32 = 2;

/// The position of the sweep.
#[derive(Default)]
pub(crate) struct Sweep {
    /// Stripes passed since the node's start: the clock of the sweep.
    passed: u64,
    /// The second that is being swept, and the table's end and the stripes' size in it: they stay for a second, so
    /// that the sweep meets each slot exactly once while the table grows.
    second: u64,
    end: u64,
    together: u64,
    /// The second in which each stripe was last passed over.
    last: [u64; STRIPES as usize],
}

impl Sweep {
    /// Begins at this time, in microseconds of the node's clock.
    pub fn at(now_us: u64) -> Self {
        let passed = now_us / STRIPE_US;
        let second = passed / u64::from(STRIPES);
        Sweep { passed, second, end: 0, together: 1, last: [second; STRIPES as usize] }
    }

    /// Exports the position for another engine: the stripes passed, the second of each one's last pass, and what
    /// stays for a second.
    pub fn export(&self) -> (u64, [u64; STRIPES as usize], (u64, u64, u64)) {
        let Sweep { passed, second, end, together, last } = self;
        (*passed, *last, (*second, *end, *together))
    }

    /// Resumes at the position of another engine.
    pub fn import(
        &mut self,
        passed: u64,
        last: [u64; STRIPES as usize],
        swept: Option<(u64, u64, u64)>,
        now_us: u64,
    ) {
        let passed = passed.min(now_us / STRIPE_US);
        // Begins anew with the next stripe if the other engine's values are invalid.
        let (second, end, together) = swept
            .filter(|(_, end, together)| {
                let fits = (1..=u64::from(STRIPES)).contains(together);
                *end <= u64::from(u32::MAX) && fits && together.is_power_of_two()
            })
            .unwrap_or((passed / u64::from(STRIPES), 0, 1));
        *self = Sweep { passed, second, end, together, last };
    }
}

/// The seconds that a pass over a slot covers: the present one, and earlier ones without a pass, because the shard
/// was delayed.
#[derive(Clone, Copy)]
struct Seconds {
    now: u64,
    span: u64,
}

impl Seconds {
    /// True when one of them is at this position of the slot's interval. Each slot has its own second of the
    /// interval, so that the work is spread evenly.
    fn hit(self, slot: u32, interval: u64, position: u64) -> bool {
        let at = (self.now + u64::from(slot) + interval - position) % interval;
        at < self.span
    }
}

/// Returns how many stripes of a second are passed over together in a table of so many slots, and which: shards take
/// turns, so that they do not all work at the same moment.
fn together(slots: u64, shard: u16) -> (u64, u64) {
    let apart = (slots / STRIPE_SLOTS_MIN).clamp(1, u64::from(STRIPES)).next_power_of_two();
    let together = u64::from(STRIPES) / apart.min(u64::from(STRIPES));
    (together, u64::from(shard) % together)
}

/// The slot at a part of the table: a table's end has 32 bits.
fn slot_at(part: u64) -> u32 {
    u32::try_from(part).unwrap_or(u32::MAX)
}

/// A running drain.
pub(crate) struct Drain {
    deadline_us: u64,
    started_us: u64,
    /// The time at which the last connection gets its notice to leave.
    last_due_us: u64,
    next: u32,
}

impl Drain {
    /// Begins to drain: ends the connections over half of the time, so that their clients don't all reconnect at
    /// once; few connections end at once.
    pub fn begin(engine: &mut Engine, seconds: u32) -> Self {
        let core = &mut engine.core;
        core.draining = true;
        let whole_us = u64::from(seconds) * 1_000_000;
        let pace_us = core.table.count() as u64 * 500;
        let mut drain = Drain {
            deadline_us: core.now_us + whole_us,
            started_us: core.now_us,
            last_due_us: core.now_us + pace_us.min(whole_us / 2),
            next: 0,
        };
        drain.end_some(engine);
        drain
    }

    /// Ends the connections that are due.
    fn end_some(&mut self, engine: &mut Engine) {
        let now_us = engine.core.now_us;
        let span_us = (self.last_due_us - self.started_us).max(1);
        let passed_us = (now_us - self.started_us + STRIPE_US).min(span_us);
        let end = u64::from(engine.core.table.end());
        let is_last = now_us + STRIPE_US >= self.last_due_us;
        let to = slot_at(if is_last { end } else { end * passed_us / span_us });
        for slot in self.next..to {
            // A request whose reply comes soon ends with its reply, and so does a pending MQTT CONNECT.
            let core = &engine.core;
            if !core.has_reply_soon(slot) && !core.mqtt_awaits_connect(slot) {
                engine.say_goodbye(slot, CloseReason::Drain);
            }
        }
        // The table may have become shorter meanwhile.
        self.next = self.next.max(to);
    }

    fn is_finished(&self, core: &Core) -> bool {
        core.table.count() == 0 || self.deadline_us <= core.now_us
    }
}

/// What is due for a connection.
enum Due {
    Nothing,
    Heartbeat,
    /// Bytes were sent since the last pass: proxies on the way know that the connection is alive.
    NoHeartbeat,
    PollTimeout,
    /// A long-poll session is checked.
    Session,
    RequestTimeout,
    Token(TokenDue),
    Close(CloseReason),
    End,
}

impl Engine {
    /// Passes over the stripes that are due. A delayed shard makes up for it with one pass: no client needs two
    /// heartbeats at once.
    pub fn sweep(&mut self) {
        if self.core.now_us < self.sweep_due_us() {
            return;
        }
        let due = (self.core.now_us / STRIPE_US).saturating_sub(self.sweep.passed);
        for _ in 0..due.min(u64::from(STRIPES)) {
            self.sweep.passed += 1;
            stripe(self, self.sweep.passed);
        }
        self.sweep.passed = self.core.now_us / STRIPE_US;
        self.rates.forget_idle(&mut self.core);
        self.relieve_input();
        self.core.metrics.topics.set(u64::from(self.core.hub.topics()));
        forget_topics(&mut self.core);
        self.recover(|recovery, core| recovery.deliver_again(core));
        self.core.publish_presence();
        each_second(self);
        if let Some(mut drain) = self.drain.take() {
            drain.end_some(self);
            self.drain = Some(drain);
        }
    }

    /// Returns when the next pass is due, in microseconds of the node's clock.
    pub fn sweep_due_us(&self) -> u64 {
        let (together, turn) = match self.drain {
            // The first shard also balances new connections, so it passes over each stripe on its own.
            None if self.core.number > 0 => {
                together(u64::from(self.core.table.end()), self.core.number)
            }
            _ => (1, 0),
        };
        let next = self.sweep.passed + 1;
        (next + (turn + together - next % together) % together) * STRIPE_US
    }

    /// Returns when the next work is due, in microseconds of the node's clock.
    pub fn poll_due_us(&self) -> u64 {
        self.sweep_due_us().min(self.rates.waiters_due_us())
    }

    /// True while work is due now; fan-outs over long lists count only with `bulk`.
    pub fn is_busy(&self, bulk: bool) -> bool {
        let fanouts = match bulk {
            true => self.core.hub.fanouts(),
            false => self.core.hub.fanouts() - self.core.hub.bulk_fanouts(),
        };
        // Commands that wait for capacity in the fan-outs can go on only after these.
        let commands = !self.core.commands.is_empty() && !self.core.is_behind();
        fanouts > 0
            || commands
            || !self.recovery.due.is_empty()
            || !self.core.mqtt.due.is_empty()
            || !self.core.woken.is_empty()
    }

    /// True when a drain has come to its end.
    pub fn is_finished(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.is_finished(&self.core))
    }
}

/// Topics that ended leave their bit in the interest set; when they are many, it is rebuilt.
fn forget_topics(core: &mut Core) {
    let filter = &core.handle.inbox.filter;
    if core.topics_ended > filter.slack() {
        core.topics_ended = 0;
        filter.rebuild(core.hub.all_topics().map(|(_, _, hash)| u64::from(hash)));
    }
}

/// A pass over some slots.
struct Pass {
    seconds: Seconds,
    /// By encoding, the side that must show that it is alive. A call of each connection's protocol would take longer
    /// than all else.
    liveness: [Liveness; Encoding::MAX],
    /// True when some connections have tokens.
    tokens: bool,
    /// See [`Core::input_wait_s`].
    input_wait_s: u32,
}

/// Returns what is due for a connection in a pass.
fn due(core: &Core, slot: u32, pass: &Pass) -> Due {
    let Some(connection) = core.table.get(slot) else {
        return Due::Nothing;
    };
    let silence_s = connection.silence_s(core.now_s()).saturating_sub(pass.input_wait_s);
    let cold = core.table.cold(slot);
    // The socket is not read, so the peer can't show that it is alive. But the connection's token and its time to
    // authenticate still expire.
    let is_unread = cold.is_some_and(|cold| cold.waits) && !connection.is_closing();
    if let Some(cold) = cold.filter(|_| !connection.is_closing()) {
        if cold.reserved && silence_s > RESERVED_SECONDS && !is_unread {
            return Due::RequestTimeout;
        }
        // The message by which it authenticates may wait to be read, too.
        let age_s = |since_s: u32| core.now_s().saturating_sub(since_s);
        let limit_s = core.settings.head_seconds.saturating_add(pass.input_wait_s);
        if cold.stranger_since_s.is_some_and(|since| age_s(since) > limit_s) {
            return Due::Close(CloseReason::Unauthorized);
        }
    }
    // A waiting poll is in its topics, too.
    if pass.tokens
        && matches!(connection.phase(), Phase::Open | Phase::Waiting)
        && let Some(due) = core.credentials.due(slot, core.unix_s(), core.settings.token_expiry)
    {
        let by_hook = core.credentials.is_by_hook(slot);
        match (due, by_hook && core.delivery(connection) == Delivery::Woken) {
            (due, false) => return Due::Token(due),
            // The next poll is a new request to the application anyway.
            (TokenDue::Expired, true) => return Due::PollTimeout,
            (TokenDue::Refresh(expires_s), true) if u64::from(expires_s) <= core.unix_s() => {
                return Due::PollTimeout;
            }
            (TokenDue::Refresh(_) | TokenDue::Warn(_), true) => {}
        }
    }
    if is_unread {
        return Due::Nothing;
    }
    match connection.phase() {
        Phase::Request => request_due(core, connection, cold, silence_s),
        Phase::Idle => idle_due(core, silence_s),
        Phase::Waiting => reply_due(core, cold, silence_s),
        Phase::Open if core.delivery(connection) == Delivery::Gathered => Due::Session,
        Phase::Open => {
            let keep_alive_s = core.mqtt.row(slot).map_or(0, |row| row.keep_alive_s);
            open_due(slot, connection, (silence_s, keep_alive_s), pass)
        }
        Phase::Closing if silence_s > CLOSING_SECONDS => Due::End,
        Phase::HalfClosed if silence_s > LINGER_SECONDS => Due::End,
        Phase::Closing | Phase::HalfClosed => Due::Nothing,
    }
}

/// Returns what is due for a connection whose request is being read.
fn request_due(
    core: &Core,
    connection: &Connection,
    cold: Option<&ColdState>,
    silence_s: u32,
) -> Due {
    match (silence_s <= core.settings.head_seconds, connection.is(Flag::Blocked)) {
        (true, _) => Due::Nothing,
        // The peer may still be reading the previous reply.
        (false, true) => idle_due(core, silence_s),
        // The peer sent no request, so it gets no reply.
        (false, false) if cold.is_none() => Due::Close(CloseReason::RequestTimeout),
        (false, false) => Due::RequestTimeout,
    }
}

fn idle_due(core: &Core, silence_s: u32) -> Due {
    let idle = silence_s > core.settings.idle_seconds;
    if idle { Due::Close(CloseReason::Idle) } else { Due::Nothing }
}

/// Returns what is due for a connection that waits for a reply.
fn reply_due(core: &Core, cold: Option<&ColdState>, silence_s: u32) -> Due {
    match cold.and_then(|cold| cold.poll.as_ref()) {
        // The second in which it began is not counted.
        Some(poll) if poll.deadline_s < core.now_s() => Due::PollTimeout,
        Some(_) => Due::Nothing,
        // Responses of the application have a time limit of their own.
        None if cold.is_some_and(|cold| cold.hooks_pending > 0) => Due::Nothing,
        None if silence_s > core.session_request_seconds_max() => Due::Close(CloseReason::Internal),
        None => Due::Nothing,
    }
}

/// Returns what is due for a connection with an open transport.
fn open_due(
    slot: u32,
    connection: &Connection,
    (silence_s, keep_alive_s): (u32, u16),
    pass: &Pass,
) -> Due {
    let (blocked, seconds) = (connection.is(Flag::Blocked), pass.seconds);
    let liveness = pass.liveness.get(usize::from(connection.encoding.0));
    match liveness.copied().unwrap_or(Liveness::Unchecked) {
        Liveness::Unchecked => Due::Nothing,
        Liveness::Client { silence_seconds } | Liveness::Server { silence_seconds, .. }
            if silence_s > silence_seconds =>
        {
            Due::Close(CloseReason::Silent)
        }
        Liveness::Client { .. } => Due::Nothing,
        // The client counts as gone after one and a half times its keep-alive without a packet (MQTT 5.0, section
        // 3.1.2.10).
        Liveness::ClientItself => {
            let seconds = (u32::from(keep_alive_s) * 3).div_ceil(2);
            // A longer silence can't be measured.
            let is_measured = (1..=SILENCE_SECONDS_MAX).contains(&seconds);
            let is_silent = is_measured && silence_s > seconds;
            if is_silent { Due::Close(CloseReason::Silent) } else { Due::Nothing }
        }
        Liveness::Server { seconds: interval, .. } => {
            let due = seconds.hit(slot, u64::from(interval.max(1)), 0);
            if due && !blocked { Due::Heartbeat } else { Due::Nothing }
        }
        // A connection is passed over twice in an interval, and gets a heartbeat if no bytes were sent since the pass
        // before. So silence is never longer than the interval, and after a broadcast no connection needs heartbeats.
        Liveness::ServerInSilence { seconds: interval } => {
            let interval = u64::from(interval.max(1));
            let half = interval / 2;
            if !seconds.hit(slot, interval, 0) && !seconds.hit(slot, interval, half) || blocked {
                return Due::Nothing;
            }
            // The flag counts only if this pass comes less than half an interval after the one before. After a longer
            // pause of the shard, the connection has been silent for as long.
            let scanned = half > 0 && seconds.span < half;
            if scanned && connection.is(Flag::WroteRecently) {
                Due::NoHeartbeat
            } else {
                Due::Heartbeat
            }
        }
    }
}

fn send_heartbeats(engine: &mut Engine) {
    for encoding in Encoding::ALL {
        let number = usize::from(encoding.0);
        let group = &mut engine.groups[number];
        if group.is_empty() {
            continue;
        }
        // Some connections may have ended meanwhile.
        group.retain(|slot| {
            engine
                .core
                .table
                .get(*slot)
                .is_some_and(|found| found.encoding == encoding && !found.is_closing())
        });
        let heartbeat = engine.heartbeats[number].clone();
        engine.core.outputs.share(heartbeat, group, 0, None);
        group.clear();
    }
}

/// Passes over a stripe, or over several together.
fn stripe(engine: &mut Engine, number: u64) {
    let (second, stripe) = (number / u64::from(STRIPES), number % u64::from(STRIPES));
    if second != engine.sweep.second || engine.sweep.end == 0 {
        let end = u64::from(engine.core.table.end());
        let (together, _) = together(end, engine.core.number);
        (engine.sweep.second, engine.sweep.end, engine.sweep.together) = (second, end, together);
    }
    let Sweep { end, together, .. } = engine.sweep;
    let turn = u64::from(engine.core.number) % together;
    if stripe % together != turn {
        return;
    }
    let first = stripe - turn;
    #[expect(clippy::cast_possible_truncation, reason = "both are at most STRIPES")]
    let last = &mut engine.sweep.last[first as usize..(first + together) as usize];
    let since = last.iter().copied().min().unwrap_or(second);
    last.fill(second);
    let seconds = Seconds { now: second, span: second.saturating_sub(since).max(1) };
    let from = slot_at(end * first / u64::from(STRIPES));
    let to = slot_at(end * (first + together) / u64::from(STRIPES));
    let core = &engine.core;
    let liveness = core.shared.protocols.liveness(&core.settings.session);
    let tokens = core.credentials.count() > 0;
    let input_wait_s = core.input_wait_s();
    let pass = Pass { seconds, liveness, tokens, input_wait_s };
    for slot in from..to {
        match due(&engine.core, slot, &pass) {
            Due::Nothing => {}
            Due::NoHeartbeat => {
                if let Some(connection) = engine.core.table.get_mut(slot) {
                    connection.set(Flag::WroteRecently, false);
                }
            }
            Due::Heartbeat => {
                if let Some(connection) = engine.core.table.get_mut(slot) {
                    connection.set(Flag::WroteRecently, true);
                    engine.groups[usize::from(connection.encoding.0)].push(slot);
                }
            }
            Due::PollTimeout => {
                engine.poll_again(slot, true);
                engine.resume_inputs();
            }
            Due::Session => engine.check_session(slot),
            Due::RequestTimeout => engine.request_timeout(slot),
            Due::Token(TokenDue::Refresh(expires_s)) => {
                engine.request_refresh(slot, expires_s);
            }
            Due::Token(due) => engine.token_due(slot, due),
            Due::Close(close) => engine.say_goodbye(slot, close),
            Due::End => engine.end(slot, CloseReason::Lost),
        }
    }
    send_heartbeats(engine);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_pass_makes_up_for_the_seconds_before() {
        for interval in [1u64, 2, 3, 15, 25] {
            for slot in 0..40 {
                // Passes after pauses of all lengths: as many hits as without a pause, except for hits that fall
                // together in one pass.
                let (mut now, mut hits, mut expected) = (100u64, 0, 0);
                for span in [1u64, 1, 1, 3, 1, 2, 1, 1, 7, 1, 1, 1] {
                    now += span;
                    hits += u64::from(Seconds { now, span }.hit(slot, interval, 0));
                    let each = |now| u64::from(Seconds { now, span: 1 }.hit(slot, interval, 0));
                    expected += (now - span + 1..=now).map(each).max().unwrap_or(0);
                }
                assert_eq!(hits, expected, "interval {interval}, slot {slot}");
            }
        }
    }

    #[test]
    fn stripes_together_cover_the_second_once() {
        for slots in [0, 1_000, 40_000, 70_000, 200_000, 5_000_000] {
            for shard in 0..20 {
                let (together, turn) = together(slots, shard);
                let stripes: Vec<u64> =
                    (0..u64::from(STRIPES)).filter(|stripe| stripe % together == turn).collect();
                assert_eq!(stripes.len() as u64 * together, u64::from(STRIPES));
            }
        }
    }
}
