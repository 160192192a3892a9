//! What a connection remembers over its reconnects: how far it heard each of its topics, and with
//! what it comes back. Only those that recover or acknowledge have one.

use std::collections::VecDeque;

use wire::Id;

use super::connection::Trackers;
use crate::sequence::Tracker;

/// How long an acknowledgement may take to be known everywhere: what is on its way to the
/// connection at that time may still be a delivery of before.
const CONFIRMED_AFTER_NS: u64 = 2_000_000_000;

/// One of a connection's sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Its user's.
    User,
    /// The topic at this place of [`Memory::topics`].
    Topic(usize),
    /// Nothing that is followed.
    Other,
}

/// A topic, and how far it was heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Followed {
    /// The topic's number; of no meaning for the user's own.
    pub room: u32,
    pub tracker: Tracker,
    /// The last message's id, where each topic has its own.
    pub place: Option<Id>,
}

impl Followed {
    fn new(room: u32, tracker: Tracker) -> Self {
        Self { room, tracker, place: None }
    }
}

/// How a connection's transport says where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idiom {
    /// It comes back with nothing.
    Nothing,
    /// One place, as it came, says all.
    One,
    /// One for all, and one for each topic of which something came.
    Each,
    /// One for each topic that it enters, and none for the user's own, which comes along.
    Joins,
}

#[derive(Debug)]
pub(super) struct Memory {
    pub idiom: Idiom,
    /// The place that came last, as it was written.
    pub last: Option<Box<str>>,
    /// The place of all topics that have none of their own.
    pub base: Option<Id>,
    pub user: Followed,
    pub topics: Box<[Followed]>,
    /// What the last message was of, until its place has come.
    current: Option<Which>,
    /// What was entered, and what it is told of.
    entered: Option<Which>,
    /// When the attempt under way began.
    pub begun_ns: u64,
    /// Messages that it has yet to get in a storm.
    pub owed: u32,
    /// Attempts that were begun.
    pub attempts: u32,
    pub acks: Option<Box<Acks>>,
}

impl Memory {
    /// Of a connection that was never open. One that acknowledges is owed its user's messages from
    /// the first on.
    pub fn new(idiom: Idiom, rooms: impl Iterator<Item = u32>, acknowledges: bool) -> Self {
        let any = Tracker::anywhere();
        let user = if acknowledges { Tracker::begin(0) } else { any };
        Self {
            idiom,
            last: None,
            base: None,
            user: Followed::new(0, user),
            topics: rooms.map(|room| Followed::new(room, any)).collect(),
            current: None,
            entered: None,
            begun_ns: 0,
            owed: 0,
            attempts: 0,
            acks: acknowledges.then(Box::default),
        }
    }

    /// An attempt begins: sequences for which there is no place to come back to begin anywhere. False
    /// when something was heard of a topic and there is none, although there should be.
    pub fn begin(&mut self, now_ns: u64) -> bool {
        self.begun_ns = now_ns;
        self.attempts += 1;
        (self.current, self.entered) = (None, None);
        let (idiom, base, last) = (self.idiom, self.base.is_some(), self.last.is_some());
        let returns = |followed: &Followed| match idiom {
            Idiom::Nothing => false,
            Idiom::One => last,
            Idiom::Each => base || followed.place.is_some(),
            Idiom::Joins => followed.place.is_some(),
        };
        let mut all = true;
        for followed in &mut self.topics {
            if !returns(followed) {
                all &= idiom == Idiom::Nothing || !followed.tracker.has_any();
                followed.tracker = Tracker::anywhere();
            }
        }
        if self.acks.is_none() && (idiom == Idiom::Joins || !returns(&self.user)) {
            self.user.tracker = Tracker::anywhere();
        }
        if let Some(acks) = &mut self.acks {
            acks.cut();
        }
        all
    }

    /// The server listens for it now: sequences that begin anywhere, and of which nothing has come,
    /// begin here.
    pub fn opened(&mut self, now: &Trackers, topic_now: impl Fn(u32) -> Tracker) {
        let begin = |tracker: &mut Tracker, now: Tracker| {
            if tracker.is_anywhere() {
                *tracker = now;
            }
        };
        begin(&mut self.user.tracker, now.user);
        for followed in &mut self.topics {
            begin(&mut followed.tracker, topic_now(followed.room));
        }
    }

    /// A message came, of this sequence.
    pub fn heard(&mut self, which: Which) -> Option<&mut Followed> {
        self.current = Some(which);
        self.entered = None;
        match which {
            Which::User => Some(&mut self.user),
            Which::Topic(at) => self.topics.get_mut(at),
            Which::Other => None,
        }
    }

    /// What is told next is of this topic.
    pub fn enters(&mut self, which: Which) {
        (self.current, self.entered) = (None, Some(which));
    }

    /// The sequence of the topic with this number.
    pub fn topic(&self, room: u32) -> Option<Which> {
        self.topics.iter().position(|followed| followed.room == room).map(Which::Topic)
    }

    /// The server says that what was missed is lost: what comes next may come from anywhere.
    pub fn lost(&mut self) {
        match self.entered {
            Some(Which::Topic(at)) => self.topics[at].tracker = Tracker::anywhere(),
            Some(_) => {}
            None => {
                let any = |followed: &mut Followed| followed.tracker = Tracker::anywhere();
                self.topics.iter_mut().for_each(any);
                if self.acks.is_none() {
                    self.user.tracker = Tracker::anywhere();
                }
            }
        }
    }

    /// What it comes back with, in words.
    pub fn places(&self) -> String {
        let id = |place: Option<Id>| place.map_or("-".to_string(), |place| place.to_string());
        let last = self.last.as_deref().unwrap_or("-");
        let mut text = format!("{:?}: {last}, base {}", self.idiom, id(self.base));
        for followed in &self.topics {
            let place = id(followed.place);
            text.push_str(&format!(", topic {} at {place}, {:?}", followed.room, followed.tracker));
        }
        text
    }

    /// A place came, behind a message or by itself. Gives what it is of when it was a message.
    pub fn place(&mut self, text: &str) -> Option<Which> {
        let (behind, entered) = (self.current.take(), self.entered.take());
        match self.idiom {
            Idiom::Nothing => {}
            // An empty id says to come back with none.
            Idiom::One => self.last = Some(text).filter(|text| !text.is_empty()).map(Box::from),
            Idiom::Each | Idiom::Joins => {
                if let Ok(id) = text.parse::<Id>() {
                    self.place_each(behind, entered, id);
                }
            }
        }
        behind
    }

    fn place_each(&mut self, behind: Option<Which>, entered: Option<Which>, id: Id) {
        let known = self.base.map(|base| base.epoch);
        let (which, is_message) = (behind.or(entered), behind.is_some());
        let followed = match which {
            Some(Which::User) => &mut self.user,
            Some(Which::Topic(at)) => &mut self.topics[at],
            Some(Which::Other) => return,
            None => {
                if known != Some(id.epoch) {
                    // Places of another numbering are of no use.
                    self.base = Some(id);
                    let all = self.topics.iter_mut().chain([&mut self.user]);
                    all.for_each(|followed| followed.place = None);
                }
                return;
            }
        };
        let epoch = followed.place.map(|place| place.epoch).or(known);
        match followed.place {
            // Of a topic that nothing keeps: there is no coming back to it.
            _ if is_message && epoch != Some(id.epoch) => {}
            Some(place) if place.epoch == id.epoch && place.offset >= id.offset => {}
            _ => followed.place = Some(id),
        }
    }
}

/// What was acknowledged, and what will be.
#[derive(Debug, Default)]
pub(super) struct Acks {
    /// Messages since the last acknowledgement.
    pub waiting: u32,
    /// On their way: id, and the message's number.
    sent: VecDeque<(Id, u32)>,
    /// The server has taken all up to this number, and knew it at that time.
    confirmed: (u32, u64),
    /// The last one before it.
    settled: u32,
}

impl Acks {
    /// An acknowledgement is on its way.
    pub fn send(&mut self, id: Id, number: u32) {
        self.sent.push_back((id, number));
    }

    /// The server has taken what was sent up to this id. Gives how many messages are done by it.
    pub fn confirm(&mut self, id: Id, now_ns: u64) -> u32 {
        let mut done = 0;
        while let Some((_, number)) =
            self.sent.pop_front_if(|(of, _)| of.epoch == id.epoch && of.offset <= id.offset)
        {
            done += self.done(number, now_ns);
        }
        done
    }

    /// The server has taken all up to this number. Gives how many messages are done by it.
    pub fn done(&mut self, number: u32, now_ns: u64) -> u32 {
        let before = self.confirmed.0;
        if number <= before {
            return 0;
        }
        self.settle(now_ns);
        self.confirmed = (number, now_ns);
        number - before
    }

    fn settle(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.confirmed.1) >= CONFIRMED_AFTER_NS {
            self.settled = self.confirmed.0;
        }
    }

    /// Whether a message that comes once more may do so: not when it was acknowledged for long.
    pub fn may_come_again(&mut self, number: u32, now_ns: u64) -> bool {
        self.settle(now_ns);
        number > self.settled
    }

    /// The connection is gone, and what was on its way with it.
    fn cut(&mut self) {
        self.sent.clear();
        self.waiting = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Epoch;

    fn id(text: &str) -> Option<Id> {
        text.parse().ok()
    }

    #[test]
    fn one_place_is_kept_as_it_came() {
        let mut memory = Memory::new(Idiom::One, [3].into_iter(), false);
        memory.begin(1);
        assert!(memory.topics[0].tracker.is_anywhere());
        assert_eq!(memory.place("0000000a:7/9-0000000b.8"), None);
        memory.topics[0].tracker = Tracker::begin(4);
        memory.begin(2);
        assert_eq!(memory.last.as_deref(), Some("0000000a:7/9-0000000b.8"));
        assert_eq!(memory.topics[0].tracker, Tracker::begin(4));
        memory.place("");
        memory.begin(3);
        assert!(memory.last.is_none() && memory.topics[0].tracker.is_anywhere());
    }

    #[test]
    fn each_topic_has_its_place_beside_that_of_all() {
        let mut memory = Memory::new(Idiom::Each, [3, 5].into_iter(), false);
        memory.begin(1);
        memory.place("0000000a:7");
        let five = memory.topic(5).unwrap();
        memory.heard(five).unwrap().tracker = Tracker::begin(2);
        assert_eq!(memory.place("0000000a:9"), Some(five));
        // Of nothing that is kept, and of nothing that is followed.
        memory.heard(Which::Topic(0));
        memory.place("0000000b:1");
        memory.heard(Which::Other);
        memory.place("0000000a:12");
        // Where it would have to ask again, after it has asked.
        memory.place("0000000a:8");
        let places = |memory: &Memory| [memory.topics[0].place, memory.topics[1].place];
        assert_eq!((memory.base, places(&memory)), (id("0000000a:7"), [None, id("0000000a:9")]));
        memory.begin(2);
        assert_eq!(memory.topics[1].tracker, Tracker::begin(2));
        // The server began anew.
        memory.lost();
        memory.place("0000000c:1");
        assert_eq!((memory.base, places(&memory)), (id("0000000c:1"), [None, None]));
        assert!(memory.topics[1].tracker.is_anywhere());
    }

    #[test]
    fn what_is_said_of_one_topic_is_of_that_alone() {
        let mut memory = Memory::new(Idiom::Joins, [3, 5].into_iter(), false);
        memory.begin(1);
        memory.enters(Which::Topic(1));
        memory.place("0000000a:7");
        memory.topics[0].tracker = Tracker::begin(1);
        memory.topics[1].tracker = Tracker::begin(1);
        memory.user.tracker = Tracker::begin(1);
        assert_eq!((memory.base, memory.topics[0].place), (None, None));
        assert_eq!(memory.topics[1].place, id("0000000a:7"));
        assert!(memory.begin(2));
        assert!(memory.topics[0].tracker.is_anywhere() && memory.user.tracker.is_anywhere());
        assert_eq!(memory.topics[1].tracker, Tracker::begin(1));
        memory.enters(Which::Topic(1));
        memory.lost();
        assert!(memory.topics[1].tracker.is_anywhere());
        // A message without a place.
        memory.topics[0].tracker.arrive(1);
        assert!(!memory.begin(3) && memory.begin(4));
    }

    #[test]
    fn what_was_acknowledged_for_long_may_not_come_again() {
        let mut memory = Memory::new(Idiom::Nothing, [].into_iter(), true);
        memory.begin(1);
        assert_eq!(memory.user.tracker, Tracker::begin(0));
        let mut acks = memory.acks.take().unwrap();
        let at = |offset| Id { epoch: Epoch(1), offset };
        acks.send(at(10), 3);
        acks.send(at(20), 5);
        assert!(acks.may_come_again(1, 5));
        assert_eq!((acks.confirm(at(15), 6), acks.confirm(at(15), 6)), (3, 0));
        assert!(acks.may_come_again(3, 7));
        let later = 6 + CONFIRMED_AFTER_NS;
        assert!(!acks.may_come_again(3, later) && acks.may_come_again(4, later));
        assert_eq!((acks.done(5, later), acks.done(4, later)), (2, 0));
        assert!(acks.may_come_again(5, later) && !acks.may_come_again(3, later));
    }
}
