//! Messages that sessions leave to other members of their groups.
//!
//! A crash must not bring a session back with messages that another member has. So a message waits until the store
//! has written that the session has it no longer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minicbor::{Decode, Encode};
use model::Name;

use crate::flow::Source;
use crate::interests::Interests;

/// The most messages that are noted. More are dropped, and counted.
const MESSAGES_MAX: usize = 1 << 17;

/// The messages, by numbers in their order.
#[derive(Clone)]
pub(crate) struct Redispatch {
    messages: Arc<Mutex<Messages>>,
    /// The history retains their topics until they are with other members.
    interests: Arc<Interests>,
}

#[derive(Default)]
struct Messages {
    next: u64,
    /// The store may still have them in these sessions, by key.
    unsettled: BTreeMap<u64, (Name, Source)>,
    /// The store has been asked to confirm some of those.
    is_settling: bool,
    /// Another member may have these.
    ready: BTreeMap<u64, Source>,
    /// The one of those that the history reads now, to give it to a member.
    taken: Option<u64>,
    dropped: u64,
}

/// A message on its way to another process.
#[derive(Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub(crate) struct RedispatchRecord {
    /// The key of the session in which the store may have it.
    #[n(0)]
    session: Option<String>,
    #[n(1)]
    source: Source,
}

impl Redispatch {
    pub fn new(interests: Arc<Interests>) -> Self {
        Redispatch { messages: Arc::default(), interests }
    }

    fn messages(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a session leaves, in order.
    pub fn insert(&self, session: &str, sources: impl IntoIterator<Item = Source>) {
        let messages = &mut *self.messages();
        for source in sources {
            if messages.unsettled.len() + messages.ready.len() >= MESSAGES_MAX {
                messages.dropped += 1;
                continue;
            }
            self.interests.add(&source.topic);
            messages.unsettled.insert(messages.next, (session.into(), source));
            messages.next += 1;
        }
    }

    /// Returns the messages that the store is asked to confirm: those whose sessions it was given. None while it is
    /// asked about others.
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

    /// The store has written what it was given before these messages, or can't write.
    pub fn on_settled(
        &self,
        numbers: &[u64],
        is_settled: bool,
        is_unstored: impl Fn(&str) -> bool,
    ) {
        let messages = &mut *self.messages();
        messages.is_settling = false;
        for number in numbers.iter().filter(|_| is_settled) {
            // The store may have refused it meanwhile.
            let Some((session, source)) = messages.unsettled.remove(number) else { continue };
            match is_unstored(&session) {
                true => drop(messages.unsettled.insert(*number, (session, source))),
                false => drop(messages.ready.insert(*number, source)),
            }
        }
    }

    /// The first message that another member may have; nothing while one is on its way.
    pub fn poll(&self) -> Option<(u64, Source)> {
        let messages = &mut *self.messages();
        if messages.taken.is_some() {
            return None;
        }
        let (number, source) = messages.ready.first_key_value()?;
        messages.taken = Some(*number);
        Some((*number, source.clone()))
    }

    /// The message of this number is about to be with another member, or is gone. Else it is the next one again. False
    /// where it is not the one that was polled.
    pub fn on_done(&self, number: u64, is_done: bool) -> bool {
        let messages = &mut *self.messages();
        let is_taken = messages.taken.take_if(|taken| *taken == number).is_some();
        if is_taken
            && is_done
            && let Some(source) = messages.ready.remove(&number)
        {
            self.interests.remove(&source.topic);
        }
        is_taken
    }

    pub fn is_empty(&self) -> bool {
        let messages = self.messages();
        messages.unsettled.is_empty() && messages.ready.is_empty()
    }

    /// How many were dropped since the last call.
    pub fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.messages().dropped)
    }

    /// All messages, by number.
    pub fn export(&self) -> Vec<(u64, RedispatchRecord)> {
        let messages = self.messages();
        let ready = messages.ready.iter().map(|(number, source)| {
            (*number, RedispatchRecord { session: None, source: source.clone() })
        });
        let unsettled = messages.unsettled.iter().map(|(number, (session, source))| {
            let session = Some(session.to_string());
            (*number, RedispatchRecord { session, source: source.clone() })
        });
        ready.chain(unsettled).collect()
    }

    /// Takes in what another process has exported; without a record it has the message no longer.
    pub fn import(&self, number: u64, record: Option<RedispatchRecord>) {
        let messages = &mut *self.messages();
        messages.next = messages.next.max(number.saturating_add(1));
        let unsettled = messages.unsettled.remove(&number).map(|(_, source)| source);
        let before = messages.ready.remove(&number).or(unsettled);
        if let Some(RedispatchRecord { session, source }) = record {
            self.interests.add(&source.topic);
            match session {
                Some(session) => {
                    drop(messages.unsettled.insert(number, (session.into(), source)));
                }
                None => drop(messages.ready.insert(number, source)),
            }
        }
        before.iter().for_each(|source| self.interests.remove(&source.topic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(offset: u64) -> Source {
        Source { topic: "t".into(), offset, retained: false, group: Some("$share/g/t".into()) }
    }

    /// Gives all that is ready to other members.
    fn rest(all: &Redispatch) -> Vec<u64> {
        let next = || {
            let (number, source) = all.poll()?;
            assert!(all.on_done(number, true) && !all.on_done(number, true));
            Some(source.offset)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn what_the_store_has_not_forgotten_is_for_no_other_member() {
        let all = Redispatch::new(Arc::default());
        all.insert("a", [source(1), source(2)]);
        all.insert("b", [source(3)]);
        assert_eq!(all.poll(), None);
        let of_b = all.begin(|session| session == "a");
        all.insert("b", [source(4)]);
        assert_eq!((of_b.len(), all.begin(|_| false)), (1, Vec::new()), "it is asked already");
        all.on_settled(&of_b, true, |_| false);
        assert_eq!(rest(&all), [3]);
        let others = all.begin(|_| false);
        // The store can't write, then it refuses one of them.
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
        all.insert("a", [source(1), source(2)]);
        let numbers = all.begin(|_| false);
        all.on_settled(&numbers, true, |_| false);
        assert_eq!((all.poll(), all.poll()), (Some((0, source(1))), None));
        assert!(all.on_done(0, false));
        assert_eq!(rest(&all), [1, 2]);
    }

    #[test]
    fn beyond_the_limit_messages_are_dropped_and_counted() {
        let all = Redispatch::new(Arc::default());
        all.insert("a", (0..).map(source).take(MESSAGES_MAX + 3));
        assert_eq!((all.take_dropped(), all.take_dropped()), (3, 0));
    }
}
