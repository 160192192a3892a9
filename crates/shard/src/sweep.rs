//! What time brings: heartbeats, time-outs and the drain, by passing over the table in stripes.
//! No connection has a timer.

use wire::{Close, Variant};

use crate::batch::{BATCH, Outboxes, Room};
use crate::connection::Flag;
use crate::shard::{STRIPES, Shard};

const STRIPE_US: u64 = 1_000_000 / STRIPES as u64;

/// Slots that are passed over at once at the least. Heartbeats of many connections in one go cost
/// far less than the same in many small batches: the other ends are woken once for several.
const STRIPE_SLOTS_MIN: u64 = 32 * 1024;

/// How long a connection whose last bytes are sent may keep its side open, in seconds.
const LINGER_SECONDS: u32 = 2;

/// How long somebody beyond the limit of its address has for its request, in seconds.
const RESERVED_SECONDS: u32 = 2;

/// Where the sweep is.
#[derive(Default)]
pub(crate) struct Sweep {
    /// Stripes passed since the node's start: the clock of the sweep.
    passed: u64,
    /// The second that is being swept, and the table's end and the stripes' size in it: they stay
    /// for a second, so that no slot is left out or met twice while the table grows.
    second: u64,
    end: u64,
    together: u64,
    /// In which second each stripe was last passed over.
    last: [u64; STRIPES as usize],
}

impl Sweep {
    /// Begins at this time, in microseconds of the node's clock.
    pub fn at(now_us: u64) -> Self {
        let passed = now_us / STRIPE_US;
        let second = passed / u64::from(STRIPES);
        Sweep { passed, second, end: 0, together: 1, last: [second; STRIPES as usize] }
    }
}

/// The seconds that a pass over a slot makes up for: the one that it is, and those before in which
/// there was none, because the shard was held up.
#[derive(Clone, Copy)]
struct Seconds {
    now: u64,
    span: u64,
}

impl Seconds {
    /// True when one of them is this place in the slot's interval. Each slot has its own second of
    /// the interval, so that what is done is spread evenly.
    fn hit(self, slot: u32, interval: u64, place: u64) -> bool {
        let at = (self.now + u64::from(slot) + interval - place) % interval;
        at < self.span
    }
}

/// How many stripes of a second are passed over together in a table of so many slots, and which of
/// them are: shards take turns, so that not all of them work at the same moment.
fn together(slots: u64, shard: u16) -> (u64, u64) {
    let apart = (slots / STRIPE_SLOTS_MIN).clamp(1, u64::from(STRIPES)).next_power_of_two();
    let together = u64::from(STRIPES) / apart.min(u64::from(STRIPES));
    (together, u64::from(shard) % together)
}

/// A drain that is under way.
pub(crate) struct Drain {
    pub deadline_us: u64,
    started_us: u64,
    /// All connections have been told to go by then.
    told_us: u64,
    next: u32,
}

/// What a connection is due.
enum Due {
    Nothing,
    Heartbeat,
    /// It was spoken to since the last look: whoever is between knows that it is alive.
    NoHeartbeat,
    PollOver,
    /// A long-poll session is looked after.
    Session,
    RequestTimeout,
    Close(Close),
    End,
}

impl Shard {
    /// Passes over the stripes that are due. A shard that was held up makes up for it with one pass:
    /// nobody needs two heartbeats at once.
    pub(crate) fn sweep(&mut self) {
        if self.now_us < self.sweep_due_us() {
            return;
        }
        let due = (self.now_us / STRIPE_US).saturating_sub(self.sweep.passed);
        for _ in 0..due.min(u64::from(STRIPES)) {
            self.sweep.passed += 1;
            self.stripe(self.sweep.passed);
        }
        self.sweep.passed = self.now_us / STRIPE_US;
        self.forget_askers();
        self.relieve_input();
        self.metrics.topics.set(u64::from(self.hub.topics()));
        self.forget_topics();
        self.deliver_again();
        self.tell_presence();
        self.tidy();
        if self.number == 0
            && let Some(listener) = &self.listener
        {
            self.balance.adjust(listener);
        }
        self.drain_some();
    }

    /// When something is to be done next, in microseconds of the node's clock.
    pub(crate) fn sweep_due_us(&self) -> u64 {
        let (together, turn) = match self.drain {
            // The first shard also keeps the balance of new connections, always.
            None if self.number > 0 => together(u64::from(self.table.end()), self.number),
            _ => (1, 0),
        };
        let next = self.sweep.passed + 1;
        (next + (turn + together - next % together) % together) * STRIPE_US
    }

    /// Passes over a stripe, or over several together.
    fn stripe(&mut self, number: u64) {
        let (second, stripe) = (number / u64::from(STRIPES), number % u64::from(STRIPES));
        if second != self.sweep.second || self.sweep.end == 0 {
            let end = u64::from(self.table.end());
            let (together, _) = together(end, self.number);
            (self.sweep.second, self.sweep.end, self.sweep.together) = (second, end, together);
        }
        let Sweep { end, together, .. } = self.sweep;
        let turn = u64::from(self.number) % together;
        if stripe % together != turn {
            return;
        }
        let first = stripe - turn;
        let last = &mut self.sweep.last[first as usize..(first + together) as usize];
        let since = last.iter().copied().min().unwrap_or(second);
        last.fill(second);
        let seconds = Seconds { now: second, span: second.saturating_sub(since).max(1) };
        let from = (end * first / u64::from(STRIPES)) as u32;
        let to = (end * (first + together) / u64::from(STRIPES)) as u32;
        let mut pieces = [None; Variant::COUNT];
        for slot in from..to {
            match self.due(slot, seconds) {
                Due::Nothing => {}
                Due::NoHeartbeat => {
                    if let Some(connection) = self.table.get_mut(slot) {
                        connection.set(Flag::Spoken, false);
                    }
                }
                Due::Heartbeat => {
                    let Some(connection) = self.table.get_mut(slot) else {
                        continue;
                    };
                    let variant = connection.variant as usize;
                    let piece = *pieces[variant].get_or_insert_with(|| {
                        self.batch.piece(self.heartbeats[variant].clone(), 0)
                    });
                    let now_us = self.now_us;
                    let limits =
                        Outboxes { settings: &self.settings, metrics: &self.metrics, now_us };
                    // Never too slow for it: one with an outbox gets none.
                    self.batch.gather(connection, slot, piece, limits);
                    if self.batch.len() >= BATCH {
                        self.send_batch();
                        pieces = [None; Variant::COUNT];
                    }
                }
                Due::PollOver => self.look_after_poll(slot, true),
                Due::Session => self.look_after_session(slot),
                Due::RequestTimeout => self.request_timeout(slot),
                Due::Close(close) => {
                    let last = self.goodbye(slot, close);
                    self.close(slot, close, &last);
                }
                Due::End => self.end(slot, Close::Lost),
            }
        }
        self.send_batch();
    }

    fn due(&self, slot: u32, seconds: Seconds) -> Due {
        let Some(connection) = self.table.get(slot) else {
            return Due::Nothing;
        };
        let settings = &self.settings;
        let silence_s = connection.silence_s(self.now_s());
        if connection.is(Flag::Closing) {
            let patience = if connection.is(Flag::Lingering) { LINGER_SECONDS } else { 10 };
            return if silence_s > patience { Due::End } else { Due::Nothing };
        }
        if let Some(extra) = &connection.extra {
            let (metrics, now_us) = (&self.metrics, self.now_us);
            let limits = Outboxes { settings, metrics, now_us };
            if limits.room(connection) == Room::None {
                return Due::Close(Close::SlowConsumer);
            }
            if extra.waits {
                // It is not read, so that nothing can be heard from it.
                return Due::Nothing;
            }
            if extra.reserved && silence_s > RESERVED_SECONDS {
                return Due::RequestTimeout;
            }
        }
        let beat = |interval: u32| {
            let due = seconds.hit(slot, u64::from(interval.max(1)), 0);
            if due && connection.outbox().is_none() { Due::Heartbeat } else { Due::Nothing }
        };
        // Where a heartbeat only breaks silence, a connection is looked at twice in an interval,
        // and gets one if nothing was sent since the look before. So silence is never longer than
        // the interval, and after a broadcast nobody needs heartbeats.
        let beat_in_silence = |interval: u32| {
            let interval = u64::from(interval.max(1));
            let half = interval / 2;
            if !seconds.hit(slot, interval, 0) && !seconds.hit(slot, interval, half)
                || connection.outbox().is_some()
            {
                return Due::Nothing;
            }
            // After a pause of the shard as long as that it has been silent.
            let looked = half > 0 && seconds.span < half;
            if looked && connection.is(Flag::Spoken) { Due::NoHeartbeat } else { Due::Heartbeat }
        };
        match connection.variant {
            Variant::Http if connection.is(Flag::Resting) => {
                let idle = silence_s > settings.idle_seconds;
                if idle { Due::Close(Close::Idle) } else { Due::Nothing }
            }
            Variant::Http if silence_s <= settings.head_seconds => Due::Nothing,
            // Nothing was asked: there is nothing to answer.
            Variant::Http if connection.extra.is_none() => Due::Close(Close::RequestTimeout),
            Variant::Http if connection.outbox().is_some() => {
                let idle = silence_s > settings.idle_seconds;
                if idle { Due::Close(Close::Idle) } else { Due::Nothing }
            }
            Variant::Http => Due::RequestTimeout,
            Variant::Poll => {
                let poll = connection.extra.as_ref().and_then(|extra| extra.poll.as_ref());
                let over = poll.is_some_and(|poll| poll.deadline_s <= self.now_s());
                if over { Due::PollOver } else { Due::Nothing }
            }
            variant if variant.sse_json().is_some() => {
                beat_in_silence(settings.sse_heartbeat_seconds)
            }
            Variant::Stream => beat_in_silence(settings.stream_heartbeat_seconds),
            Variant::Polled1 | Variant::Polled2 => Due::Session,
            Variant::Asking if silence_s > self.asking_seconds_max() => Due::Close(Close::Internal),
            Variant::Asking => Due::Nothing,
            Variant::Phoenix1 | Variant::Phoenix2 => {
                // The client beats; nothing is sent to it.
                let silent = silence_s > settings.phoenix_silence_seconds;
                if silent { Due::Close(Close::Silent) } else { Due::Nothing }
            }
            _ if silence_s > settings.ws_silence_seconds => Due::Close(Close::Silent),
            _ => beat(settings.ws_ping_seconds),
        }
    }

    /// The last words to a connection: what was published to it before, and why it ends.
    pub(crate) fn goodbye(&mut self, slot: u32, close: Close) -> Vec<u8> {
        let mut out = Vec::new();
        self.settle(slot, None, &mut out);
        if let Some(connection) = self.table.get(slot) {
            // Each its own, so that those who are cut off together don't come back together.
            let set_ms = self.settings.session.sse_retry_ms;
            let retry_ms = wire::transport::retry_ms(set_ms, self.id(slot, connection.serial));
            connection.variant.transport().goodbye(close, retry_ms, &mut out);
        }
        self.asking_goodbye(slot, &mut out);
        out
    }

    /// Topics that ended leave their bit in the filter; when they are many it is made anew.
    fn forget_topics(&mut self) {
        let filter = &self.handle.inbox.filter;
        if self.topics_ended > filter.slack() {
            self.topics_ended = 0;
            filter.rebuild(self.hub.all_topics().map(|(_, _, hash)| u64::from(hash)));
        }
    }

    /// Begins to drain: closes the listener, and ends the connections over half of the time, so
    /// that their clients don't all come back at once; few connections end at once.
    pub(crate) fn begin_drain(&mut self, seconds: u32) {
        if self.drain.is_some() {
            return;
        }
        self.listener = None;
        let whole_us = u64::from(seconds) * 1_000_000;
        let pace_us = self.table.count() as u64 * 500;
        self.drain = Some(Drain {
            deadline_us: self.now_us + whole_us,
            started_us: self.now_us,
            told_us: self.now_us + pace_us.min(whole_us / 2),
            next: 0,
        });
        self.drain_some();
    }

    fn drain_some(&mut self) {
        let Some(drain) = &self.drain else { return };
        let span_us = (drain.told_us - drain.started_us).max(1);
        let passed_us = (self.now_us - drain.started_us + STRIPE_US).min(span_us);
        let end = u64::from(self.table.end());
        let to =
            if self.now_us + STRIPE_US >= drain.told_us { end } else { end * passed_us / span_us };
        for slot in drain.next..to as u32 {
            if self.is_publishing(slot) {
                // It ends with its answer.
                continue;
            }
            let last = self.goodbye(slot, Close::Drain);
            self.close(slot, Close::Drain, &last);
        }
        if let Some(drain) = &mut self.drain {
            // The table may have become shorter meanwhile.
            drain.next = drain.next.max(to as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_pass_makes_up_for_the_seconds_before() {
        for interval in [1u64, 2, 3, 15, 25] {
            for slot in 0..40 {
                // Passes after pauses of all lengths: as many hits as if there had been no pause,
                // but for those that fall together in one pass.
                let (mut now, mut hits, mut wanted) = (100u64, 0, 0);
                for span in [1u64, 1, 1, 3, 1, 2, 1, 1, 7, 1, 1, 1] {
                    now += span;
                    hits += u64::from(Seconds { now, span }.hit(slot, interval, 0));
                    let each = |now| u64::from(Seconds { now, span: 1 }.hit(slot, interval, 0));
                    wanted += (now - span + 1..=now).map(each).max().unwrap_or(0);
                }
                assert_eq!(hits, wanted, "interval {interval}, slot {slot}");
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
