//! Messages that sessions leave to other members of their groups.
//!
//! After a crash, a restored session must not have messages that another member has. So a message waits until the
//! store has written that the session no longer has it.
//!
//! Then it goes to the group. While no member can take it, it waits, and messages of other groups go on. A group
//! whose members could not take a message gets one message a second until they take one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minicbor::{Decode, Encode};
use model::Name;

use crate::contract::RedispatchOutcome;
use crate::flow::Source;
use crate::interests::Interests;

/// Messages, at most. Further ones are dropped, and counted.
const MESSAGES_MAX: usize = 1 << 17;

/// How long a message waits for a member that can take it, in seconds. Then it is dropped, and counted.
const WAIT_SECONDS_MAX: u32 = 300;

/// The messages, by numbers in their order.
#[derive(Clone)]
pub(crate) struct Redispatch {
    messages: Arc<Mutex<Messages>>,
    /// The history retains their topics until other members have them.
    interests: Arc<Interests>,
}

#[derive(Default)]
struct Messages {
    next: u64,
    /// Messages that the store may still have in these sessions, by key.
    unsettled: BTreeMap<u64, (Name, Source)>,
    /// True while the store is to confirm some of `unsettled`.
    is_settling: bool,
    /// Messages that another member may have.
    settled: BTreeMap<u64, Settled>,
    /// When each of `settled` is dropped, by [`Messages::second`], with its number.
    deadlines: BTreeSet<(u64, u64)>,
    /// The groups of `settled`.
    groups: BTreeMap<Box<str>, Group>,
    /// The groups that may get a message, by the number of their first waiting message.
    due: BTreeMap<u64, Box<str>>,
    /// The message that the history reads now for a member.
    read: Option<u64>,
    /// The number of seconds that have passed.
    second: u64,
    dropped: u64,
}

struct Settled {
    source: Source,
    until: u64,
    stage: Stage,
}

/// The stage of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waits,
    /// The history reads it.
    Read,
    /// It is on its way to a member.
    Passed,
}

/// The messages of one group.
#[derive(Default)]
struct Group {
    /// The waiting messages, by number.
    waiting: BTreeSet<u64>,
    /// The number of its other messages.
    others: usize,
    /// True if no member could take the last message with a known outcome.
    is_blocked: bool,
    /// True if a blocked group may get one message all the same.
    may_retry: bool,
    /// Its key in `Messages::due`.
    due: Option<u64>,
}

/// The record of a message in a handover.
#[derive(Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub(crate) struct RedispatchRecord {
    /// The key of the session that may still have it in the store.
    #[n(0)]
    session: Option<String>,
    #[n(1)]
    source: Source,
    /// How many seconds it has waited for a member.
    #[cbor(n(2), default)]
    waited_s: u32,
}

fn group_of(source: &Source) -> &str {
    source.group.as_deref().unwrap_or_default()
}

impl Messages {
    fn len(&self) -> usize {
        self.unsettled.len() + self.settled.len()
    }

    /// Releases a message for other members. It has waited for one for `waited_s` seconds.
    fn settle(&mut self, number: u64, source: Source, waited_s: u32) {
        let left_s = WAIT_SECONDS_MAX.saturating_sub(waited_s);
        let until = self.second + u64::from(left_s);
        let group = Box::from(group_of(&source));
        self.groups.entry(group).or_default().waiting.insert(number);
        self.deadlines.insert((until, number));
        self.update(group_of(&source));
        self.settled.insert(number, Settled { source, until, stage: Stage::Waits });
    }

    /// Sets the stage of a message. Returns false if the message does not exist.
    fn set(&mut self, number: u64, stage: Stage) -> bool {
        let Some(settled) = self.settled.get_mut(&number) else { return false };
        let before = std::mem::replace(&mut settled.stage, stage);
        let name: Box<str> = group_of(&settled.source).into();
        if let Some(group) = self.groups.get_mut(&name) {
            group.count(number, before, false);
            group.count(number, stage, true);
        }
        self.update(&name);
        true
    }

    /// Removes a message that another member has, or that is gone.
    fn remove(&mut self, number: u64) -> Option<Source> {
        let Settled { source, until, stage } = self.settled.remove(&number)?;
        self.read.take_if(|read| *read == number);
        if let Some(group) = self.groups.get_mut(group_of(&source)) {
            group.count(number, stage, false);
        }
        self.deadlines.remove(&(until, number));
        self.update(group_of(&source));
        Some(source)
    }

    /// Changes the group of a message.
    fn change_group(&mut self, number: u64, change: impl FnOnce(&mut Group)) {
        let Some(settled) = self.settled.get(&number) else { return };
        let name: Box<str> = group_of(&settled.source).into();
        if let Some(group) = self.groups.get_mut(&name) {
            change(group);
        }
        self.update(&name);
    }

    /// Updates whether a group may get a message.
    fn update(&mut self, name: &str) {
        let Some(group) = self.groups.get_mut(name) else { return };
        group.due.take().into_iter().for_each(|number| drop(self.due.remove(&number)));
        let is_due = !group.is_blocked || group.may_retry;
        match group.waiting.first() {
            Some(first) if is_due => {
                group.due = Some(*first);
                self.due.insert(*first, name.into());
            }
            None if group.others == 0 => drop(self.groups.remove(name)),
            Some(_) | None => {}
        }
    }
}

impl Group {
    /// Adds a message at a stage, or removes it.
    fn count(&mut self, number: u64, stage: Stage, is_there: bool) {
        match (stage, is_there) {
            (Stage::Waits, true) => _ = self.waiting.insert(number),
            (Stage::Waits, false) => _ = self.waiting.remove(&number),
            (Stage::Read | Stage::Passed, true) => self.others += 1,
            (Stage::Read | Stage::Passed, false) => self.others = self.others.saturating_sub(1),
        }
    }
}

impl Redispatch {
    pub fn new(interests: Arc<Interests>) -> Self {
        Redispatch { messages: Arc::default(), interests }
    }

    fn messages(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the messages that a session leaves, in order. Without a session no stored one has them.
    pub fn insert(&self, session: Option<&str>, sources: impl IntoIterator<Item = Source>) {
        let messages = &mut *self.messages();
        for source in sources {
            if messages.len() >= MESSAGES_MAX {
                messages.dropped += 1;
                continue;
            }
            self.interests.add(&source.topic);
            let number = messages.next;
            messages.next += 1;
            match session {
                Some(session) => {
                    drop(messages.unsettled.insert(number, (session.into(), source)));
                }
                None => messages.settle(number, source, 0),
            }
        }
    }

    /// Returns the messages that the store must confirm: those whose sessions it was given. None while it confirms
    /// others.
    pub fn begin(&self, is_unstored: impl Fn(&str) -> bool) -> Vec<u64> {
        let messages = &mut *self.messages();
        if messages.is_settling {
            return Vec::new();
        }
        let unsettled = messages.unsettled.iter();
        let given = unsettled.filter(|(_, (session, _))| !is_unstored(session));
        let numbers: Vec<u64> = given.map(|(number, _)| *number).collect();
        messages.is_settling = !numbers.is_empty();
        numbers
    }

    /// Handles the confirmation that the store has written everything from before these messages, or that it can't
    /// write.
    pub fn on_settled(
        &self,
        numbers: &[u64],
        is_settled: bool,
        is_unstored: impl Fn(&str) -> bool,
    ) {
        let messages = &mut *self.messages();
        messages.is_settling = false;
        for number in numbers.iter().filter(|_| is_settled) {
            // The store may have rejected its session meanwhile.
            let Some((session, source)) = messages.unsettled.remove(number) else { continue };
            match is_unstored(&session) {
                true => drop(messages.unsettled.insert(*number, (session, source))),
                false => messages.settle(*number, source, 0),
            }
        }
    }

    /// Counts a second: blocked groups may retry, and messages that have waited for too long are dropped.
    pub fn on_second(&self) {
        let messages = &mut *self.messages();
        messages.second += 1;
        while let Some((until, number)) = messages.deadlines.first().copied()
            && until <= messages.second
        {
            // The outcome of a passed message is unknown.
            let is_here = |it: &Settled| it.stage != Stage::Passed;
            messages.dropped += u64::from(messages.settled.get(&number).is_some_and(is_here));
            let Some(source) = messages.remove(number) else { break };
            self.interests.remove(&source.topic);
        }
        let blocked = messages.groups.iter_mut().filter(|(_, group)| group.is_blocked);
        let names: Vec<Box<str>> = blocked
            .map(|(name, group)| {
                group.may_retry = true;
                name.clone()
            })
            .collect();
        names.iter().for_each(|name| messages.update(name));
    }

    /// Returns the first message that another member may have; `None` while one is read.
    pub fn poll(&self) -> Option<(u64, Source)> {
        let messages = &mut *self.messages();
        if messages.read.is_some() {
            return None;
        }
        let (number, name) = messages.due.first_key_value()?;
        let number = *number;
        if let Some(group) = messages.groups.get_mut(name) {
            group.may_retry = false;
        }
        messages.read = Some(number);
        messages.set(number, Stage::Read);
        Some((number, messages.settled.get(&number)?.source.clone()))
    }

    /// Sets the outcome of a message. Returns false if it has one already, or was not polled.
    pub fn on_done(&self, number: u64, outcome: RedispatchOutcome) -> bool {
        let messages = &mut *self.messages();
        let Some(Settled { stage, .. }) = messages.settled.get(&number) else { return false };
        let is_read = match (stage, outcome) {
            (
                Stage::Read,
                RedispatchOutcome::Unread | RedispatchOutcome::Passed | RedispatchOutcome::Gone,
            ) => true,
            (Stage::Passed, RedispatchOutcome::Taken | RedispatchOutcome::Untaken) => false,
            (Stage::Waits | Stage::Read | Stage::Passed, _) => return false,
        };
        if is_read {
            messages.read = None;
        }
        messages.change_group(number, |group| match outcome {
            RedispatchOutcome::Passed => {}
            // This outcome shows nothing about the members.
            RedispatchOutcome::Unread | RedispatchOutcome::Gone => group.may_retry = true,
            RedispatchOutcome::Taken => group.is_blocked = false,
            RedispatchOutcome::Untaken => (group.is_blocked, group.may_retry) = (true, false),
        });
        match outcome {
            RedispatchOutcome::Passed => messages.set(number, Stage::Passed),
            RedispatchOutcome::Unread | RedispatchOutcome::Untaken => {
                messages.set(number, Stage::Waits)
            }
            RedispatchOutcome::Taken | RedispatchOutcome::Gone => {
                let source = messages.remove(number);
                source.iter().for_each(|source| self.interests.remove(&source.topic));
                source.is_some()
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.messages().len() == 0
    }

    /// Returns how many were dropped since the last call.
    pub fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.messages().dropped)
    }

    /// Returns the records of all messages, by number.
    pub fn export(&self) -> Vec<(u64, RedispatchRecord)> {
        let messages = self.messages();
        let settled = messages.settled.iter().map(|(number, Settled { source, until, .. })| {
            let left_s = u32::try_from(until.saturating_sub(messages.second)).unwrap_or(u32::MAX);
            let waited_s = WAIT_SECONDS_MAX.saturating_sub(left_s);
            (*number, RedispatchRecord { session: None, source: source.clone(), waited_s })
        });
        let unsettled = messages.unsettled.iter().map(|(number, (session, source))| {
            let session = Some(session.to_string());
            (*number, RedispatchRecord { session, source: source.clone(), waited_s: 0 })
        });
        settled.chain(unsettled).collect()
    }

    /// Imports a record of another process; without a record it no longer has the message.
    pub fn import(&self, number: u64, record: Option<RedispatchRecord>) {
        let messages = &mut *self.messages();
        messages.next = messages.next.max(number.saturating_add(1));
        let unsettled = messages.unsettled.remove(&number).map(|(_, source)| source);
        let before = messages.remove(number).or(unsettled);
        if let Some(RedispatchRecord { session, source, waited_s }) = record {
            self.interests.add(&source.topic);
            match session {
                Some(session) => {
                    drop(messages.unsettled.insert(number, (session.into(), source)));
                }
                None => messages.settle(number, source, waited_s),
            }
        }
        before.iter().for_each(|source| self.interests.remove(&source.topic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(offset: u64) -> Source {
        source_of("g", offset)
    }

    fn source_of(group: &str, offset: u64) -> Source {
        let group = Some(format!("$share/{group}/t").into());
        Source { topic: "t".into(), offset, retained: false, group }
    }

    /// Passes a message that the history has read to a member. Returns its number and its offset.
    fn pass(all: &Redispatch) -> Option<(u64, u64)> {
        let (number, source) = all.poll()?;
        assert!(all.on_done(number, RedispatchOutcome::Passed));
        Some((number, source.offset))
    }

    /// Gives all ready messages to other members. Returns their offsets.
    fn rest(all: &Redispatch) -> Vec<u64> {
        let next = || {
            let (number, offset) = pass(all)?;
            assert!(all.on_done(number, RedispatchOutcome::Taken));
            assert!(!all.on_done(number, RedispatchOutcome::Taken));
            Some(offset)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn what_the_store_has_not_forgotten_is_for_no_other_member() {
        let all = Redispatch::new(Arc::default());
        all.insert(Some("a"), [source(1), source(2)]);
        all.insert(Some("b"), [source(3)]);
        assert_eq!(all.poll(), None);
        let of_b = all.begin(|session| session == "a");
        all.insert(Some("b"), [source(4)]);
        assert_eq!((of_b.len(), all.begin(|_| false)), (1, Vec::new()), "it is asked already");
        all.on_settled(&of_b, true, |_| false);
        assert_eq!(rest(&all), [3]);
        let others = all.begin(|_| false);
        // The store can't write, then it rejects one of them.
        all.on_settled(&others, false, |_| false);
        assert_eq!(rest(&all), []);
        let others = all.begin(|_| false);
        all.on_settled(&others, true, |session| session == "b");
        assert_eq!(rest(&all), [1, 2]);
        let last = all.begin(|_| false);
        all.on_settled(&last, true, |_| false);
        assert_eq!(rest(&all), [4]);
    }

    #[test]
    fn one_is_on_its_way_and_comes_again_if_it_does_not_arrive() {
        let all = Redispatch::new(Arc::default());
        all.insert(Some("a"), [source(1), source(2)]);
        let numbers = all.begin(|_| false);
        all.on_settled(&numbers, true, |_| false);
        assert_eq!((all.poll(), all.poll()), (Some((0, source(1))), None));
        assert!(all.on_done(0, RedispatchOutcome::Unread));
        assert_eq!(rest(&all), [1, 2]);
    }

    #[test]
    fn beyond_the_limit_messages_are_dropped_and_counted() {
        let all = Redispatch::new(Arc::default());
        all.insert(Some("a"), (0..).map(source).take(MESSAGES_MAX + 3));
        assert_eq!((all.take_dropped(), all.take_dropped()), (3, 0));
    }

    #[test]
    fn a_group_that_can_take_nothing_holds_up_no_other_group() {
        let interests = Arc::new(Interests::default());
        let all = Redispatch::new(interests.clone());
        all.insert(None, [source(1), source(2), source_of("h", 3), source(4), source_of("h", 5)]);
        // Two were passed when the first one came back.
        let (first, second) = (pass(&all).unwrap(), pass(&all).unwrap());
        assert_eq!((first.1, second.1), (1, 2));
        assert!(all.on_done(first.0, RedispatchOutcome::Untaken));
        assert!(all.on_done(second.0, RedispatchOutcome::Untaken));
        assert!(!all.on_done(second.0, RedispatchOutcome::Untaken), "that is known");
        assert_eq!(rest(&all), [3, 5]);
        // One message a second shows whether the members have capacity.
        for _ in 0..3 {
            all.on_second();
            let (number, offset) = pass(&all).unwrap();
            assert_eq!((offset, all.poll()), (1, None));
            assert!(all.on_done(number, RedispatchOutcome::Untaken));
            assert_eq!(all.poll(), None);
        }
        all.on_second();
        let (number, _) = pass(&all).unwrap();
        assert!(all.on_done(number, RedispatchOutcome::Taken));
        assert_eq!(rest(&all), [2, 4]);
        assert!(all.is_empty() && !interests.holds("t"));
    }

    #[test]
    fn a_message_that_the_history_cannot_read_now_is_the_next_one_again() {
        let all = Redispatch::new(Arc::default());
        all.insert(None, [source(1), source(2)]);
        let (number, _) = pass(&all).unwrap();
        assert!(all.on_done(number, RedispatchOutcome::Untaken));
        all.on_second();
        let (number, found) = all.poll().unwrap();
        assert!(all.on_done(number, RedispatchOutcome::Unread));
        assert_eq!((all.poll(), found), (Some((0, source(1))), source(1)));
        assert!(!all.on_done(number, RedispatchOutcome::Taken), "it is on its way to no member");
        assert!(all.on_done(number, RedispatchOutcome::Gone));
    }

    #[test]
    fn a_message_waits_for_a_member_for_five_minutes() {
        let (interests, new_interests) = (Arc::new(Interests::default()), Arc::default());
        let all = Redispatch::new(interests.clone());
        all.insert(None, [source(1)]);
        (0..100).for_each(|_| all.on_second());
        all.insert(None, [source(2), source_of("h", 3)]);
        let (number, _) = pass(&all).unwrap();
        assert!(all.on_done(number, RedispatchOutcome::Untaken));
        (100..WAIT_SECONDS_MAX - 1).for_each(|_| all.on_second());
        let new = Redispatch::new(Arc::clone(&new_interests));
        all.export().into_iter().for_each(|(number, record)| new.import(number, Some(record)));
        for (all, interests) in [(all, interests), (new, new_interests)] {
            assert_eq!(all.take_dropped(), 0);
            all.on_second();
            assert_eq!((all.take_dropped(), interests.holds("t")), (1, true));
            assert!(!all.on_done(number, RedispatchOutcome::Taken));
            // One of the others was passed to a member when its time is over.
            let (taken, _) = pass(&all).unwrap();
            (0..100).for_each(|_| all.on_second());
            assert_eq!((all.take_dropped(), all.is_empty()), (1, true));
            assert!(!all.on_done(taken, RedispatchOutcome::Untaken) && !interests.holds("t"));
        }
    }

    #[test]
    fn a_message_that_expires_while_it_is_read_holds_up_no_other() {
        let all = Redispatch::new(Arc::default());
        all.insert(None, [source(1)]);
        let (number, _) = all.poll().unwrap();
        (0..WAIT_SECONDS_MAX).for_each(|_| all.on_second());
        assert_eq!(all.take_dropped(), 1);
        all.insert(None, [source(2)]);
        assert!(!all.on_done(number, RedispatchOutcome::Passed), "it is for no member");
        assert_eq!(rest(&all), [2]);
    }
}
