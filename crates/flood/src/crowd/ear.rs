//! What a connection hears: counts it, follows the sequences, takes the times.

use wire::Since;
use wire::client::{Event, Goodbye};

use super::connection::Trackers;
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
    /// The number of this run.
    pub run: u32,
    /// The user's number, its index among the users, and its topic's number.
    pub user: u32,
    pub index: u32,
    pub room: u32,
    pub now_ns: u64,
    pub trackers: Trackers,
    pub join: bool,
    pub opened: bool,
    pub ended: bool,
    pub again: Option<Since>,
    pub said: Option<Goodbye>,
}

impl Ear<'_> {
    pub fn hear(&mut self, event: Event<'_>) {
        match event {
            Event::Open => {
                self.opened = true;
                self.trackers = self.now();
            }
            // What comes before all is granted may come or not.
            Event::Join => {
                self.join = true;
                self.trackers = Trackers::anywhere();
            }
            Event::Message(bytes) => {
                self.add(Stat::Messages, 1);
                self.mark(bytes);
            }
            Event::Part(bytes) => self.mark(bytes),
            Event::Place(_) | Event::Recovered(_) => {}
            Event::Heartbeat => self.add(Stat::Heartbeats, 1),
            Event::Again(since) => {
                // Checked where it was read.
                self.again = since.parse().ok();
                self.answered();
            }
            Event::Goodbye(said) => self.said = Some(said),
            Event::End => self.ended = true,
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
    }

    fn mark(&mut self, bytes: &[u8]) {
        let Some(mark) = self.scanner.find(bytes) else {
            return;
        };
        let Mark { run, to, number, due_ns } = mark;
        // Of another run, or an earlier one that the server still remembers.
        if run != self.run {
            return;
        }
        let arrival = match to {
            To::User(user) if user == self.user => self.trackers.user.arrive(number),
            To::Topic(room) if room == self.room => self.trackers.topic.arrive(number),
            To::All => self.trackers.all.arrive(number),
            _ => return self.add(Stat::Strayed, 1),
        };
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
        let us = self.now_ns.saturating_sub(due_ns) / 1_000;
        let us = u32::try_from(us).unwrap_or(u32::MAX);
        self.times.push(us);
        if matches!(to, To::User(_)) {
            self.user_times.push(us);
        }
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
            join: false,
            opened: false,
            ended: false,
            again: None,
            said: None,
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
