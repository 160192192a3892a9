//! What a connection hears: counts it, follows the sequences, takes the times.

use wire::Since;
use wire::client::{Event, Goodbye};

use super::connection::Trackers;
use super::faults::Faults;
use super::memory::{Memory, Which};
use super::{Published, Stat};
use crate::payload::{Mark, Scanner, To};
use crate::sequence::{Arrival, Tracker};

/// Counts that only one thread touches, until it publishes them. `lost` may fall again.
pub(super) type Numbers = [u64; Stat::COUNT];

/// One connection's ear, for the length of one read.
pub(super) struct Ear<'a> {
    pub scanner: &'a Scanner,
    pub published: &'a Published,
    pub numbers: &'a mut Numbers,
    /// Times from due to now, in microseconds.
    pub times: &'a mut Vec<u32>,
    /// Those of messages to one user.
    pub user_times: &'a mut Vec<u32>,
    pub faults: &'a Faults,
    /// The number of this run.
    pub run: u32,
    /// The user's number, its index among the users, and its topic's number.
    pub user: u32,
    pub index: u32,
    pub room: u32,
    pub now_ns: u64,
    pub trackers: Trackers,
    /// Where the connection remembers: the sequences of its user and its topics stand there.
    pub memory: Option<&'a mut Memory>,
    /// The connection's topics as they are named, where it remembers.
    pub names: &'a [String],
    /// It subscribes when it is open: what it enters begins when that is granted.
    pub subscribes: bool,
    pub heard: Heard,
}

/// What there is to be done about what was heard.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub join: bool,
    pub opened: bool,
    pub ended: bool,
    pub again: Option<Since>,
    pub said: Option<Goodbye>,
    /// The last message to the user: its number, and its id once that has come.
    pub user_message: Option<(u32, String)>,
    /// How many came.
    pub user_messages: u32,
    /// The last of what it missed in a storm has come, so long after it began to come back.
    pub recovered_us: Option<u32>,
}

impl Ear<'_> {
    pub fn hear(&mut self, event: Event<'_>) {
        match event {
            Event::Open => {
                self.heard.opened = true;
                self.trackers = self.now();
                if !self.subscribes {
                    self.begin();
                }
            }
            // What comes before all is granted may come or not.
            Event::Join => {
                self.heard.join = true;
                self.trackers = Trackers::anywhere();
            }
            Event::Message(bytes) => {
                self.add(Stat::Messages, 1);
                self.mark(bytes);
            }
            Event::Part(bytes) => self.mark(bytes),
            Event::Place(place) => self.place(place),
            Event::Recovered(recovered) => self.recovered(recovered),
            Event::Entered(topic) => {
                let at = self.names.iter().position(|name| name == topic);
                if let Some(memory) = &mut self.memory {
                    memory.enters(at.map_or(Which::Other, Which::Topic));
                }
            }
            Event::Acknowledged(id) => {
                let memory = self.memory.as_mut();
                let acks = memory.and_then(|memory| memory.acks.as_mut());
                if let (Some(acks), Ok(id)) = (acks, id.parse()) {
                    let done = acks.confirm(id, self.now_ns);
                    self.add(Stat::Acked, u64::from(done));
                }
            }
            Event::Heartbeat => self.add(Stat::Heartbeats, 1),
            Event::Again(since) => {
                // Checked where it was read.
                self.heard.again = since.parse().ok();
                self.answered();
                if let Some(memory) = &mut self.memory {
                    memory.place(since);
                }
            }
            Event::Goodbye(said) => self.heard.said = Some(said),
            Event::End => self.heard.ended = true,
        }
    }

    /// The sequences begin where they stand now.
    fn now(&self) -> Trackers {
        Trackers {
            user: Tracker::begin(self.published.user(self.index)),
            topic: Tracker::begin(self.published.topic(self.room)),
            all: Tracker::begin(self.published.all()),
        }
    }

    /// The same for those that are remembered.
    fn begin(&mut self) {
        let (now, published) = (self.now(), self.published);
        if let Some(memory) = &mut self.memory {
            memory.opened(&now, |room| Tracker::begin(published.topic(room)));
        }
    }

    /// A poll is answered: from now on the server listens for it. Sequences of which nothing has
    /// come begin here.
    fn answered(&mut self) {
        let now = self.now();
        let Trackers { user, topic, all } = &mut self.trackers;
        for (tracker, now) in [(user, now.user), (topic, now.topic), (all, now.all)] {
            if tracker.is_anywhere() {
                *tracker = now;
            }
        }
        self.begin();
    }

    /// What to come back with.
    fn place(&mut self, text: &str) {
        let Some(memory) = &mut self.memory else {
            return;
        };
        if memory.place(text) == Some(Which::User)
            && let Some((_, id)) = &mut self.heard.user_message
        {
            id.clear();
            id.push_str(text);
        }
    }

    fn recovered(&mut self, recovered: bool) {
        if let Some(memory) = self.memory.as_mut().filter(|_| !recovered) {
            memory.lost();
            self.add(Stat::NotRecovered, 1);
        }
    }

    fn mark(&mut self, bytes: &[u8]) {
        // Whatever it is, the place behind it is its own.
        if let Some(memory) = &mut self.memory {
            memory.heard(Which::Other);
        }
        let Some(mark) = self.scanner.find(bytes) else {
            return;
        };
        // Of another run, or an earlier one that the server still remembers.
        if mark.run != self.run {
            return;
        }
        let remembered = match (&self.memory, mark.to) {
            (Some(_), To::User(user)) if user == self.user => Some(Which::User),
            (Some(memory), To::Topic(room)) => memory.topic(room),
            _ => None,
        };
        match (remembered, mark.to) {
            (Some(which), _) => self.mark_remembered(which, mark),
            (None, To::User(user)) if user == self.user => {
                let arrival = self.trackers.user.arrive(mark.number);
                self.count(arrival, mark, true);
            }
            (None, To::Topic(room)) if room == self.room && self.memory.is_none() => {
                let arrival = self.trackers.topic.arrive(mark.number);
                self.count(arrival, mark, true);
            }
            (None, To::All) => {
                let arrival = self.trackers.all.arrive(mark.number);
                self.count(arrival, mark, true);
            }
            (None, _) => {
                self.tell("a stray", mark, None);
                self.add(Stat::Strayed, 1);
            }
        }
    }

    fn mark_remembered(&mut self, which: Which, mark: Mark) {
        let now_ns = self.now_ns;
        let Some(memory) = &mut self.memory else {
            return;
        };
        let is_late = mark.due_ns < memory.begun_ns;
        let Some(followed) = memory.heard(which) else {
            return;
        };
        let before = followed.tracker;
        let arrival = followed.tracker.arrive(mark.number);
        let is_again = arrival == Arrival::Again;
        let mut may_again = false;
        if which == Which::User
            && let Some(acks) = &mut memory.acks
        {
            may_again = is_again && acks.may_come_again(mark.number, now_ns);
            self.heard.user_message = Some((mark.number, String::new()));
            self.heard.user_messages += 1;
        }
        if matches!(which, Which::Topic(_)) && !is_again && memory.owed > 0 {
            memory.owed -= 1;
            if memory.owed == 0 {
                let us = now_ns.saturating_sub(memory.begun_ns) / 1_000;
                self.heard.recovered_us = Some(u32::try_from(us).unwrap_or(u32::MAX));
                self.numbers[Stat::Recovered as usize] += 1;
            }
        }
        if may_again {
            return self.add(Stat::Redelivered, 1);
        }
        let arrival = self.judged(arrival, mark);
        match arrival {
            Arrival::Next => {}
            Arrival::Gap(_) => self.tell("a gap", mark, Some(before)),
            Arrival::Late => self.tell("a late one", mark, Some(before)),
            Arrival::Again => self.tell("a repeat", mark, Some(before)),
        }
        if is_late && !is_again {
            self.add(Stat::CaughtUp, 1);
        }
        self.count(arrival, mark, !is_late);
    }

    /// A message of which it isn't known that it was published leaves no gap.
    fn judged(&self, arrival: Arrival, mark: Mark) -> Arrival {
        match arrival {
            Arrival::Gap(missing) => match self.published.sure(mark.to, mark.number - 1, missing) {
                0 => Arrival::Next,
                sure => Arrival::Gap(sure),
            },
            other => other,
        }
    }

    /// Counts a message, and takes its time unless it was published while nobody was here.
    fn count(&mut self, arrival: Arrival, mark: Mark, timed: bool) {
        match arrival {
            Arrival::Next => {}
            Arrival::Gap(missing) => self.add(Stat::Lost, u64::from(missing)),
            Arrival::Late => {
                self.add(Stat::OutOfOrder, 1);
                let lost = &mut self.numbers[Stat::Lost as usize];
                *lost = lost.saturating_sub(1);
            }
            Arrival::Again => return self.add(Stat::Duplicated, 1),
        }
        if !timed {
            return;
        }
        let us = self.now_ns.saturating_sub(mark.due_ns) / 1_000;
        let us = u32::try_from(us).unwrap_or(u32::MAX);
        self.times.push(us);
        if matches!(mark.to, To::User(_)) {
            self.user_times.push(us);
        }
    }

    fn tell(&self, what: &str, mark: Mark, before: Option<Tracker>) {
        let Some(memory) = &self.memory else {
            return;
        };
        self.faults.tell(|| {
            let last = before.map_or(String::new(), |before| format!(" after {before:?}"));
            format!(
                "{what}: user {} heard number {} to {:?}{last}; its attempt {}, begun {} ms ago, \
                 published {} ms ago; it comes back with {}",
                self.user,
                mark.number,
                mark.to,
                memory.attempts,
                self.now_ns.saturating_sub(memory.begun_ns) / 1_000_000,
                self.now_ns.saturating_sub(mark.due_ns) / 1_000_000,
                memory.places(),
            )
        });
    }

    fn add(&mut self, stat: Stat, count: u64) {
        self.numbers[stat as usize] += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::Stat;
    use std::sync::atomic::Ordering;

    fn heard(published: &Published, events: &[Event<'_>]) -> (Trackers, Numbers) {
        let (mut numbers, mut times, mut user_times) = ([0; Stat::COUNT], Vec::new(), Vec::new());
        let mut ear = Ear {
            scanner: &Scanner::default(),
            published,
            numbers: &mut numbers,
            times: &mut times,
            user_times: &mut user_times,
            run: 1,
            user: 1,
            index: 0,
            room: 0,
            now_ns: 5,
            trackers: Trackers::anywhere(),
            faults: &Faults::default(),
            memory: None,
            names: &[],
            subscribes: false,
            heard: Heard::default(),
        };
        events.iter().for_each(|event| ear.hear(*event));
        (ear.trackers, numbers)
    }

    fn message(run: u32, to: To, number: u32) -> Vec<u8> {
        Mark { run, to, number, due_ns: 1 }.payload(0).into_bytes()
    }

    #[test]
    fn a_poll_that_is_answered_with_nothing_is_owed_what_comes_after() {
        let published = Published::new(1, 1);
        published.topics[0].store(7, Ordering::Relaxed);
        let again = Event::Again("00000001:2");
        assert_eq!(heard(&published, &[]).0.topic.missing(9), 0);
        assert_eq!(heard(&published, &[again]).0.topic.missing(9), 2);
    }

    #[test]
    fn what_comes_before_the_joins_are_granted_is_in_the_middle_of_its_sequence() {
        let published = Published::new(1, 1);
        published.all.store(8, Ordering::Relaxed);
        let [seventh, eighth, tenth] = [7, 8, 10].map(|number| message(1, To::All, number));
        let events = [Event::Join, Event::Message(&seventh), Event::Open, Event::Message(&eighth)];
        let (trackers, numbers) = heard(&published, &events);
        assert_eq!((trackers.all.missing(9), numbers[Stat::Lost as usize]), (1, 0));
        let events = [Event::Join, Event::Open, Event::Message(&tenth)];
        assert_eq!(heard(&published, &events).1[Stat::Lost as usize], 1);
    }

    #[test]
    fn messages_of_other_runs_are_no_fault_and_those_for_others_are_strays() {
        let published = Published::new(1, 1);
        let (other, stray) = (message(2, To::Topic(0), 9), message(1, To::User(2), 1));
        let good = message(1, To::Topic(0), 1);
        let events =
            [Event::Open, Event::Message(&other), Event::Message(&stray), Event::Message(&good)];
        let (trackers, numbers) = heard(&published, &events);
        assert_eq!(trackers.topic.missing(1), 0);
        let counted =
            [Stat::Messages, Stat::Strayed, Stat::Lost].map(|stat| numbers[stat as usize]);
        assert_eq!(counted, [3, 1, 0]);
    }
}
