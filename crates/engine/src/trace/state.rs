//! The traces, and the connections that they follow.

use std::collections::HashMap;
use std::sync::Arc;

use crate::core::command::Target;
use crate::trace::event::TraceSink;

/// The most traces at a time.
pub const TRACES_MAX: usize = 8;

/// The most events of a trace in a second, on one shard. Further ones are left out and counted.
pub const EVENTS_PER_SECOND_MAX: u32 = if cfg!(test) { 20 } else { 1_000 };

/// The part of them that only rarer and more important events may use: that a connection ends, or is slow.
pub const RESERVED: u32 = EVENTS_PER_SECOND_MAX / 4;

/// The traces of an engine.
#[derive(Default)]
pub(crate) struct Traces {
    /// By index; `None` where the index is free.
    list: Vec<Option<Trace>>,
    /// The traces that follow a connection, by slot: a bit for each index of the list.
    slots: HashMap<u32, u8>,
    /// The number of traces.
    count: usize,
}

/// One trace.
struct Trace {
    number: u64,
    target: Target,
    sink: Arc<dyn TraceSink>,
    /// The present second of the node's clock, whose events are counted.
    second: u64,
    events: u32,
    left_out: u64,
}

/// An event that may go to a sink.
pub(crate) struct Admitted {
    pub sink: Arc<dyn TraceSink>,
    /// So many events were left out before it.
    pub left_out: u64,
}

impl Traces {
    /// True while no trace is open.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Begins a trace. Returns its index, or `None` if there are [`TRACES_MAX`].
    pub fn begin(
        &mut self,
        number: u64,
        target: Target,
        sink: Arc<dyn TraceSink>,
    ) -> Option<usize> {
        let index = match self.list.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.list.len() < TRACES_MAX => {
                self.list.push(None);
                self.list.len() - 1
            }
            None => return None,
        };
        let (second, events, left_out) = (0, 0, 0);
        self.list[index] = Some(Trace { number, target, sink, second, events, left_out });
        self.count += 1;
        Some(index)
    }

    /// Ends a trace. An unknown number is one that has ended.
    pub fn end(&mut self, number: u64) {
        let is_it = |trace: &Option<Trace>| trace.as_ref().is_some_and(|it| it.number == number);
        let Some(index) = self.list.iter().position(is_it) else { return };
        self.list[index] = None;
        self.count -= 1;
        for followers in self.slots.values_mut() {
            *followers &= !(1 << index);
        }
        self.slots.retain(|_, followers| *followers != 0);
        if self.count == 0 {
            *self = Traces::default();
        }
    }

    /// The trace at this index follows a connection from now on. False if it did so before.
    pub fn follow(&mut self, index: usize, slot: u32) -> bool {
        let followers = self.slots.entry(slot).or_default();
        let is_new = *followers & (1 << index) == 0;
        *followers |= 1 << index;
        is_new
    }

    /// The trace at this index stops following a connection.
    pub fn leave(&mut self, index: usize, slot: u32) {
        if let Some(followers) = self.slots.get_mut(&slot) {
            *followers &= !(1 << index);
            if *followers == 0 {
                self.slots.remove(&slot);
            }
        }
    }

    /// All traces stop following the connection; if it stays open, only those of users do.
    pub fn forget(&mut self, slot: u32, stays_open: bool) {
        if self.slots.is_empty() {
            return;
        }
        for index in self.followers(slot) {
            let is_of_user = matches!(self.target(index), Some(Target::User(_)));
            if is_of_user || !stays_open {
                self.leave(index, slot);
            }
        }
    }

    /// True while a trace follows the connection.
    #[inline]
    pub fn has(&self, slot: u32) -> bool {
        !self.slots.is_empty() && self.slots.contains_key(&slot)
    }

    /// Returns those of the connections that a trace follows.
    #[inline]
    pub fn among<'a>(&'a self, slots: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        let slots = if self.slots.is_empty() { &[] } else { slots };
        slots.iter().copied().filter(|slot| self.slots.contains_key(slot))
    }

    /// Returns the indexes of the traces that follow the connection.
    pub fn followers(&self, slot: u32) -> impl Iterator<Item = usize> + use<> {
        let followers = self.slots.get(&slot).copied().unwrap_or_default();
        (0..TRACES_MAX).filter(move |index| followers & (1 << index) != 0)
    }

    /// Returns the indexes of the traces of this user.
    pub fn of_user(&self, user: &str) -> Vec<usize> {
        let is_of = |index: &usize| matches!(self.target(*index), Some(Target::User(traced)) if *traced == *user);
        (0..self.list.len()).filter(is_of).collect()
    }

    fn target(&self, index: usize) -> Option<&Target> {
        Some(&self.list.get(index)?.as_ref()?.target)
    }

    /// Counts an event of a trace, at a time in microseconds of the node's clock. `None` if the event is left out.
    pub fn admit(&mut self, index: usize, now_us: u64, is_of_message: bool) -> Option<Admitted> {
        let trace = self.list.get_mut(index)?.as_mut()?;
        let second = now_us / 1_000_000;
        if trace.second != second {
            (trace.second, trace.events) = (second, 0);
        }
        let reserved = if is_of_message { RESERVED } else { 0 };
        if trace.events >= EVENTS_PER_SECOND_MAX - reserved {
            trace.left_out += 1;
            return None;
        }
        trace.events += 1;
        let left_out = std::mem::take(&mut trace.left_out);
        Some(Admitted { sink: trace.sink.clone(), left_out })
    }

    /// Returns the traces with too many events in a second that is over, and how many were left out.
    pub fn take_left_out(&mut self, now_us: u64) -> Vec<Admitted> {
        let second = now_us / 1_000_000;
        let traces = self.list.iter_mut().flatten();
        let traces = traces.filter(|trace| trace.left_out > 0 && trace.second != second);
        traces
            .map(|trace| {
                let left_out = std::mem::take(&mut trace.left_out);
                Admitted { sink: trace.sink.clone(), left_out }
            })
            .collect()
    }
}
