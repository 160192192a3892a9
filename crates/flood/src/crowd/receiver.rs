//! Processes the input of a connection: counts it, tracks the sequences, and measures the times.

use client::{Event, Goodbye};
use model::{ErrorCode, ResumeToken};

use super::anomalies::Anomalies;
use super::connection::Trackers;
use super::resume_state::{ResumeState, ResumeStyle, Sequence};
use super::{Published, Stat};
use crate::payload::{Scanner, Stamp, To};
use crate::sequence::{Arrival, Tracker};

/// Counts that only one thread touches, until it publishes them. `lost` may fall again.
pub(super) type Stats = [u64; Stat::COUNT];

/// The receiver of one connection, for the length of one read.
pub(super) struct Receiver<'a> {
    pub scanner: &'a Scanner,
    pub published: &'a Published,
    pub stats: &'a mut Stats,
    /// Times from the intended publish to now, in microseconds.
    pub times: &'a mut Vec<u32>,
    /// As `times`, for messages to single users only.
    pub user_times: &'a mut Vec<u32>,
    pub anomalies: &'a Anomalies,
    /// The number of this run.
    pub run: u32,
    /// The user's number, its index among the users, and its topic's number.
    pub user: u32,
    pub index: u32,
    pub room: u32,
    pub now_ns: u64,
    /// `now_ns` on the clock of the messages' stamps.
    pub run_now_ns: u64,
    pub trackers: Trackers,
    /// The resume state, if the connection has one. It then has the sequences of the user and the topics.
    pub resume_state: Option<&'a mut ResumeState>,
    /// The names of the connection's topics, if the server names them in its messages.
    pub names: &'a [String],
    /// The connection subscribes by commands once it is open. Its sequences begin when the server
    /// confirms a subscription.
    pub subscribes: bool,
    /// The next message may be a repeated message, and that is no fault.
    pub may_be_again: bool,
    /// The next message is a repeated message.
    pub is_again: bool,
    pub outcome: ReadOutcome,
}

/// The outcome of a read, which the worker acts on.
#[derive(Debug, Default)]
pub(super) struct ReadOutcome {
    pub join: bool,
    pub opened: bool,
    pub ended: bool,
    pub again: Option<ResumeToken>,
    pub said: Option<Goodbye>,
    /// The last message to the user: its number, and its id once that has arrived.
    pub user_message: Option<(u32, String)>,
    /// How many messages to the user arrived.
    pub user_messages: u32,
    /// The time from the begin of the attempt until the connection had received all messages that it missed in a
    /// storm.
    pub recovered_us: Option<u32>,
}

impl Receiver<'_> {
    pub fn receive(&mut self, event: Event<'_>) {
        match event {
            Event::Open => {
                self.outcome.opened = true;
                self.opened();
            }
            Event::Session => {
                if let Some(resume_state) = &mut self.resume_state {
                    resume_state.has_session = true;
                }
            }
            Event::Delivery { id, again, exactly } => self.delivery(id, again, exactly),
            Event::Released(id) => {
                if let Some(resume_state) = &mut self.resume_state {
                    resume_state.unreleased.retain(|known| *known != id);
                }
            }
            // Messages may arrive before the server has granted all joins.
            Event::Join => {
                self.outcome.join = true;
                self.trackers = Trackers::anywhere();
            }
            Event::Message(_) if std::mem::take(&mut self.is_again) => {
                self.add(Stat::Redelivered, 1);
            }
            Event::Message(bytes) => {
                self.add(Stat::Messages, 1);
                self.read_stamp(bytes);
            }
            Event::Part(bytes) => self.read_stamp(bytes),
            Event::Token(position) => self.position(position),
            Event::Recovered(recovered) => self.recovered(recovered),
            // Without a position to resume from, no message had to be recovered.
            Event::Gap(reason) if self.resume_state.is_some() => {
                self.anomalies.cause(format!("recovery: {reason}: {}", meaning(reason)));
            }
            Event::Gap(_) => {}
            Event::Entered(topic) => {
                let at = self.names.iter().position(|name| name == topic);
                if let Some(resume_state) = &mut self.resume_state {
                    resume_state.topic_announced(at.map_or(Sequence::Other, Sequence::Topic));
                }
            }
            Event::Acknowledged(id) => {
                let resume_state = self.resume_state.as_mut();
                let acks = resume_state.and_then(|resume_state| resume_state.acks.as_mut());
                if let (Some(acks), Ok(id)) = (acks, id.parse()) {
                    let done = acks.confirm(id, self.now_ns);
                    self.add(Stat::Acked, u64::from(done));
                }
            }
            Event::Heartbeat => self.add(Stat::Heartbeats, 1),
            Event::Again(since) => {
                // The crate `client` has parsed the token already.
                self.outcome.again = since.parse().ok();
                self.on_poll_reply();
                if let Some(resume_state) = &mut self.resume_state {
                    resume_state.set_position(since);
                }
            }
            Event::Goodbye(said) => self.outcome.said = Some(said),
            Event::End => self.outcome.ended = true,
        }
    }

    fn opened(&mut self) {
        self.trackers = self.now();
        if let Some(resume_state) =
            self.resume_state.as_deref_mut().filter(|it| it.style == ResumeStyle::Session)
        {
            let was_open = std::mem::replace(&mut resume_state.was_open, true);
            if resume_state.has_session {
                // Its sequences go on. Any first message to all is right: the client may or may not have missed some.
                self.trackers = Trackers::anywhere();
                return;
            }
            resume_state.unreleased.clear();
            if was_open {
                self.anomalies.cause("recovery: the server no longer has the session".into());
                self.recovered(false);
            }
        }
        if !self.subscribes {
            self.begin();
        }
    }

    /// Called when the server announces a message that needs a confirmation.
    fn delivery(&mut self, id: u16, again: bool, exactly: bool) {
        self.may_be_again = again && !exactly;
        let Some(resume_state) = self.resume_state.as_mut().filter(|_| exactly) else { return };
        self.is_again = resume_state.unreleased.contains(&id);
        if !self.is_again {
            resume_state.unreleased.push(id);
        }
    }

    /// Returns trackers that begin with the next messages to be published.
    fn now(&self) -> Trackers {
        Trackers {
            user: self.published.user_tracker(self.index),
            topic: self.published.topic_tracker(self.room),
            all: self.published.all_tracker(),
        }
    }

    /// Begins the sequences of the resume state.
    fn begin(&mut self) {
        let (now, published) = (self.now(), self.published);
        if let Some(resume_state) = &mut self.resume_state {
            resume_state.opened(&now, |room| published.topic_tracker(room));
        }
    }

    /// Called when the server has replied to a poll: the connection has a position from now on. Sequences without a
    /// message begin here.
    fn on_poll_reply(&mut self) {
        let now = self.now();
        let Trackers { user, topic, all } = &mut self.trackers;
        for (tracker, now) in [(user, now.user), (topic, now.topic), (all, now.all)] {
            if tracker.is_anywhere() {
                *tracker = now;
            }
        }
        self.begin();
    }

    /// Processes a position to resume from.
    fn position(&mut self, text: &str) {
        let Some(resume_state) = &mut self.resume_state else {
            return;
        };
        if resume_state.set_position(text) == Some(Sequence::User)
            && let Some((_, id)) = &mut self.outcome.user_message
        {
            id.clear();
            id.push_str(text);
        }
    }

    fn recovered(&mut self, recovered: bool) {
        if let Some(resume_state) = self.resume_state.as_mut().filter(|_| !recovered) {
            resume_state.recovery_gap();
            self.add(Stat::NotRecovered, 1);
        }
    }

    fn read_stamp(&mut self, bytes: &[u8]) {
        // The next position belongs to this message, even if the message is not of this run.
        if let Some(resume_state) = &mut self.resume_state {
            resume_state.message_of(Sequence::Other);
        }
        let Some(stamp) = self.scanner.find(bytes) else {
            return;
        };
        // The message belongs to another run, perhaps to an earlier one in the server's history.
        if stamp.run != self.run {
            return;
        }
        let sequence = match (&self.resume_state, stamp.to) {
            (Some(_), To::User(user)) if user == self.user => Some(Sequence::User),
            (Some(resume_state), To::Topic(room)) => resume_state.topic(room),
            _ => None,
        };
        match (sequence, stamp.to) {
            (Some(sequence), _) => self.process_stamp_of(sequence, stamp),
            (None, To::User(user)) if user == self.user => {
                let arrival = self.trackers.user.arrive(stamp.number);
                let tracker = self.trackers.user;
                self.count(arrival, stamp, true, tracker);
            }
            (None, To::Topic(room)) if room == self.room && self.resume_state.is_none() => {
                let arrival = self.trackers.topic.arrive(stamp.number);
                let tracker = self.trackers.topic;
                self.count(arrival, stamp, true, tracker);
            }
            (None, To::All) => {
                let arrival = self.trackers.all.arrive(stamp.number);
                let tracker = self.trackers.all;
                self.count(arrival, stamp, true, tracker);
            }
            (None, _) => {
                self.describe("a message for another connection", stamp, None);
                self.add(Stat::Strayed, 1);
            }
        }
    }

    fn process_stamp_of(&mut self, sequence: Sequence, stamp: Stamp) {
        let now_ns = self.now_ns;
        let Some(resume_state) = &mut self.resume_state else {
            return;
        };
        // A message is late if it was due before this connection began, by the same clock.
        let since_begun_ns = now_ns.saturating_sub(resume_state.begun_ns);
        let is_late = stamp.due_ns < self.run_now_ns.saturating_sub(since_begun_ns);
        let Some(progress) = resume_state.message_of(sequence) else {
            return;
        };
        let before = progress.tracker;
        let arrival = progress.tracker.arrive(stamp.number);
        let tracker = progress.tracker;
        let is_again = arrival == Arrival::Again;
        let mut may_again = is_again && self.may_be_again;
        if sequence == Sequence::User
            && let Some(acks) = &mut resume_state.acks
        {
            may_again |= is_again && acks.may_be_redelivered(stamp.number, now_ns);
            self.outcome.user_message = Some((stamp.number, String::new()));
            self.outcome.user_messages += 1;
        }
        if matches!(sequence, Sequence::Topic(_)) && !is_again && resume_state.missed_left > 0 {
            resume_state.missed_left -= 1;
            if resume_state.missed_left == 0 {
                let us = now_ns.saturating_sub(resume_state.begun_ns) / 1_000;
                self.outcome.recovered_us = Some(u32::try_from(us).unwrap_or(u32::MAX));
                self.stats[Stat::Recovered as usize] += 1;
            }
        }
        if may_again {
            return self.add(Stat::Redelivered, 1);
        }
        let arrival = self.without_unsure(arrival, stamp);
        match arrival {
            Arrival::Next => {}
            // Messages that other nodes publish in turn may arrive a little later.
            Arrival::Gap(missing) if missing < self.published.nodes => {}
            Arrival::Gap(_) => self.describe("a gap", stamp, Some(before)),
            Arrival::Late if self.published.may_be_overtaken(stamp.to, stamp.number, &tracker) => {}
            Arrival::Late => self.describe("a late message", stamp, Some(before)),
            Arrival::Again => self.describe("a repeated message", stamp, Some(before)),
        }
        if is_late && !is_again {
            self.add(Stat::CaughtUp, 1);
        }
        self.count(arrival, stamp, !is_late, tracker);
    }

    /// Removes from a gap the messages whose publish was never confirmed.
    fn without_unsure(&self, arrival: Arrival, stamp: Stamp) -> Arrival {
        match arrival {
            Arrival::Gap(missing) => {
                match self.published.count_sure(stamp.to, stamp.number - 1, missing) {
                    0 => Arrival::Next,
                    sure => Arrival::Gap(sure),
                }
            }
            other => other,
        }
    }

    /// Counts a message, and records its time if `timed`. A message that was published while the
    /// connection was away has no meaningful time.
    fn count(&mut self, arrival: Arrival, stamp: Stamp, timed: bool, tracker: Tracker) {
        match arrival {
            Arrival::Next => {}
            Arrival::Gap(missing) => self.add(Stat::Lost, u64::from(missing)),
            Arrival::Late => {
                if !self.published.may_be_overtaken(stamp.to, stamp.number, &tracker) {
                    self.add(Stat::OutOfOrder, 1);
                }
                let lost = &mut self.stats[Stat::Lost as usize];
                *lost = lost.saturating_sub(1);
            }
            Arrival::Again => return self.add(Stat::Duplicated, 1),
        }
        if !timed {
            return;
        }
        let us = self.run_now_ns.saturating_sub(stamp.due_ns) / 1_000;
        let us = u32::try_from(us).unwrap_or(u32::MAX);
        self.times.push(us);
        if matches!(stamp.to, To::User(_)) {
            self.user_times.push(us);
        }
    }

    fn describe(&self, what: &str, stamp: Stamp, before: Option<Tracker>) {
        let Some(resume_state) = &self.resume_state else {
            return;
        };
        self.anomalies.add(|| {
            let last = before.map_or(String::new(), |before| format!(" after {before:?}"));
            format!(
                "{what}: user {} received number {} to {:?}{last}, on attempt {}, begun {} ms ago; \
                 it was published {} ms ago; the connection resumes from {}",
                self.user,
                stamp.number,
                stamp.to,
                resume_state.attempts,
                self.now_ns.saturating_sub(resume_state.begun_ns) / 1_000_000,
                self.run_now_ns.saturating_sub(stamp.due_ns) / 1_000_000,
                resume_state.describe(),
            )
        });
    }

    fn add(&mut self, stat: Stat, count: u64) {
        self.stats[stat as usize] += count;
    }
}

/// Returns what one of Throng's reasons for a recovery gap means, and what helps.
fn meaning(reason: &str) -> &'static str {
    match reason {
        _ if ErrorCode::NoHistory == reason => {
            "the topic has no history: give it history_messages_max"
        }
        "too_old" => {
            "the history is too short: raise the topic's history_messages_max or its other limits; polls of a topic \
             without history need limits.recent_messages_max and recent_bytes_max"
        }
        _ if ErrorCode::EpochChanged == reason => {
            "the server started with a new epoch, without the earlier messages"
        }
        _ => "not all missed messages arrived",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::Stat;
    use std::sync::atomic::Ordering;

    fn receive_all(published: &Published, events: &[Event<'_>]) -> (Trackers, Stats) {
        let (mut numbers, mut times, mut user_times) = ([0; Stat::COUNT], Vec::new(), Vec::new());
        let mut receiver = Receiver {
            scanner: &Scanner::default(),
            published,
            stats: &mut numbers,
            times: &mut times,
            user_times: &mut user_times,
            run: 1,
            user: 1,
            index: 0,
            room: 0,
            now_ns: 5,
            run_now_ns: 5,
            trackers: Trackers::anywhere(),
            anomalies: &Anomalies::default(),
            resume_state: None,
            names: &[],
            subscribes: false,
            may_be_again: false,
            is_again: false,
            outcome: ReadOutcome::default(),
        };
        events.iter().for_each(|event| receiver.receive(*event));
        (receiver.trackers, numbers)
    }

    fn message(run: u32, to: To, number: u32) -> Vec<u8> {
        Stamp { run, to, number, due_ns: 1 }.payload(0).into_bytes()
    }

    #[test]
    fn a_poll_reply_without_messages_expects_the_next_ones() {
        let published = Published::new(1, 1);
        published.topics[0].store(7, Ordering::Relaxed);
        let again = Event::Again("00000001:2");
        assert_eq!(receive_all(&published, &[]).0.topic.missing(9), 0);
        assert_eq!(receive_all(&published, &[again]).0.topic.missing(9), 2);
    }

    #[test]
    fn messages_before_the_joins_are_granted_may_begin_anywhere() {
        let published = Published::new(1, 1);
        published.all.store(8, Ordering::Relaxed);
        let [seventh, eighth, tenth] = [7, 8, 10].map(|number| message(1, To::All, number));
        let events = [Event::Join, Event::Message(&seventh), Event::Open, Event::Message(&eighth)];
        let (trackers, numbers) = receive_all(&published, &events);
        assert_eq!((trackers.all.missing(9), numbers[Stat::Lost as usize]), (1, 0));
        let events = [Event::Join, Event::Open, Event::Message(&tenth)];
        assert_eq!(receive_all(&published, &events).1[Stat::Lost as usize], 1);
    }

    #[test]
    fn messages_of_other_runs_are_ignored_and_those_for_other_users_are_strays() {
        let published = Published::new(1, 1);
        let (other, stray) = (message(2, To::Topic(0), 9), message(1, To::User(2), 1));
        let good = message(1, To::Topic(0), 1);
        let events =
            [Event::Open, Event::Message(&other), Event::Message(&stray), Event::Message(&good)];
        let (trackers, numbers) = receive_all(&published, &events);
        assert_eq!(trackers.topic.missing(1), 0);
        let counted =
            [Stat::Messages, Stat::Strayed, Stat::Lost].map(|stat| numbers[stat as usize]);
        assert_eq!(counted, [3, 1, 0]);
    }
}
