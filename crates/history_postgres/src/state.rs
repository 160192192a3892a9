//! The offset up to which this node has delivered the log, and the newest messages in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::Window;
use history_local::windows::{Limits, Windows};
use model::{Envelope, HistoryRule};

use crate::batch::{AppendOutcome, Appended, PendingMessage};
use crate::pages::{DroppedPages, Pages};

/// A batch of this process that is committed and not delivered.
pub(crate) struct OwnBatch {
    pub at_ms: u64,
    pub items: Vec<(PendingMessage, AppendOutcome)>,
}

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    pub messages: usize,
    pub bytes: usize,
}

/// The log as far as this node has delivered it.
pub(crate) struct State {
    /// The last offset that was delivered.
    pub delivered: u64,
    /// When the message of that offset was appended, by the database's clock, if this node knows. It distinguishes that
    /// message from another one that got the same offset after the log had lost commits.
    pub delivered_ms: Option<u64>,
    pub windows: Windows,
    /// What was read from the database a moment ago.
    pub pages: Pages,
    /// The newest messages of all topics, for operators.
    pub newest: Window,
    pause: Pause,
    /// The batches of this process that are not delivered, by the offset before each.
    own: BTreeMap<u64, OwnBatch>,
    /// The messages of these batches.
    backlog: Backlog,
}

/// Says whether the follower delivers messages that other processes have appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// The follower delivers them.
    None,
    /// The follower stops when it has finished its step.
    Requested,
    /// The follower has stopped.
    Reached,
}

/// The next step of the follower.
pub(crate) enum NextStep {
    /// The follower delivers this batch and replies to its publishers.
    Own(OwnBatch),
    /// The follower has read and delivered the messages of this batch already. It only replies to the publishers.
    Reply(OwnBatch),
    /// The follower reads the messages after the first offset, up to the second.
    Read(u64, u64),
    /// The follower waits: another process may take the place of this one.
    Pause,
}

impl State {
    /// Creates the state of a node that has just started: all messages up to `last` are in the database, and none in
    /// memory.
    pub fn new(windows: Limits, recent: broker::Limits, last: u64) -> Self {
        let (windows, newest) = (Windows::new(windows, last), Window::new(recent));
        State {
            delivered: last,
            delivered_ms: None,
            windows,
            pages: Pages::default(),
            newest,
            pause: Pause::None,
            own: BTreeMap::new(),
            backlog: Backlog::default(),
        }
    }

    /// Returns how much this process has committed and not begun to deliver.
    pub fn backlog(&self) -> Backlog {
        self.backlog
    }

    /// Stops the follower once it has finished its step and delivered what this process has committed.
    pub fn pause(&mut self) {
        if self.pause == Pause::None {
            self.pause = Pause::Requested;
        }
    }

    /// Returns true once the follower must stop.
    pub fn is_pausing(&self) -> bool {
        self.pause != Pause::None
    }

    /// Returns true if the follower has stopped and has delivered all that this process has committed.
    pub fn is_paused(&self) -> bool {
        self.pause == Pause::Reached && self.own.is_empty()
    }

    /// Lets the follower go on.
    pub fn resume(&mut self) {
        self.pause = Pause::None;
    }

    /// Marks everything up to an offset as delivered, even if no member got the message.
    pub fn pass(&mut self, offset: u64, at_ms: Option<u64>) {
        (self.delivered, self.delivered_ms) = (offset, at_ms);
    }

    /// Forgets all windows, which lack messages up to the last delivered offset, so that clients read the database.
    /// Returns the old windows and pages.
    pub fn forget(&mut self) -> (Windows, DroppedPages) {
        (self.windows.reset(self.delivered), self.pages.clear())
    }

    /// Removes the topic's messages up to an offset, where its history was deleted.
    pub fn delete(&mut self, hash: u64, topic: &str, offset: u64) -> DroppedPages {
        self.windows.delete(hash, topic, offset);
        self.pages.clear()
    }

    /// Adds a committed batch of this process.
    pub fn add_own(&mut self, appended: Appended, items: Vec<PendingMessage>) {
        let Appended { base, at_ms, outcomes, .. } = appended;
        self.backlog.messages += items.len();
        self.backlog.bytes += items.iter().map(PendingMessage::bytes).sum::<usize>();
        let items = items.into_iter().zip(outcomes).collect();
        // A batch without a new message has the same base as the next one.
        let former = self.own.insert(base, OwnBatch { at_ms, items });
        if let (Some(former), Some(now)) = (former, self.own.get_mut(&base)) {
            let items = std::mem::take(&mut now.items);
            now.items = former.items.into_iter().chain(items).collect();
        }
    }

    /// Returns the next step. A batch of this process is delivered if all messages before it were; otherwise the
    /// follower reads those first.
    pub fn next(&mut self) -> NextStep {
        let Some(first) = self.own.first_entry() else {
            if self.pause == Pause::None {
                return NextStep::Read(self.delivered, u64::MAX);
            }
            self.pause = Pause::Reached;
            return NextStep::Pause;
        };
        if self.pause == Pause::Reached {
            self.pause = Pause::Requested;
        }
        let base = *first.key();
        if base > self.delivered {
            return NextStep::Read(self.delivered, base);
        }
        let batch = first.remove();
        self.backlog.messages -= batch.items.len();
        self.backlog.bytes -= batch.items.iter().map(|(item, _)| item.bytes()).sum::<usize>();
        match base == self.delivered {
            true => NextStep::Own(batch),
            false => NextStep::Reply(batch),
        }
    }

    /// Takes all committed and undelivered batches of this process: the follower reads their messages later.
    pub fn take_own(&mut self) -> Vec<OwnBatch> {
        self.backlog = Backlog::default();
        std::mem::take(&mut self.own).into_values().collect()
    }

    /// Adds a delivered message to memory. Without a rule, memory only notes that it lacks the message: the broker has it
    /// among its recent ones.
    pub fn push(&mut self, message: &Arc<Envelope>, rule: Option<&HistoryRule>, now_ms: u64) {
        self.pass(message.id.offset, Some(message.at_ms));
        match rule {
            Some(rule) => {
                self.newest.push(message.clone());
                self.windows.push(message.clone(), rule, now_ms);
            }
            None => {
                let (hash, topic) = (message.topic_hash, &message.publication.topic);
                self.windows.pass(hash, topic, message.id.offset, now_ms);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Data, Epoch, Message, Position, Publication};

    use super::*;
    use crate::batch::tests::item;

    fn state(last: u64) -> State {
        let windows = Limits { bytes_max: 1 << 20, topics_max: 100 };
        let recent =
            broker::Limits { recent_messages_max: 9, recent_bytes_max: 99, recent_seconds_max: 9 };
        State::new(windows, recent, last)
    }

    fn appended(base: u64, outcomes: Vec<AppendOutcome>) -> (Appended, Vec<PendingMessage>) {
        let items = outcomes.iter().map(|_| item("a", None, None, 1)).collect();
        (Appended { base, at_ms: 0, outcomes }, items)
    }

    #[test]
    fn a_batch_of_this_process_waits_for_what_others_appended_before() {
        let mut state = state(5);
        assert!(matches!(state.next(), NextStep::Read(5, u64::MAX)));
        let (batch, items) = appended(7, vec![AppendOutcome::Appended(8)]);
        state.add_own(batch, items);
        assert!(matches!(state.next(), NextStep::Read(5, 7)));
        assert_eq!(state.backlog().messages, 1);
        state.delivered = 7;
        assert!(matches!(state.next(), NextStep::Own(batch) if batch.items.len() == 1));
        assert_eq!(state.backlog(), Backlog::default());
        state.delivered = 8;
        assert!(matches!(state.next(), NextStep::Read(8, u64::MAX)));
        let (batch, items) = appended(6, vec![AppendOutcome::Appended(7)]);
        state.add_own(batch, items);
        assert!(matches!(state.next(), NextStep::Reply(_)), "it was read meanwhile");
    }

    #[test]
    fn a_pause_begins_when_what_this_process_has_appended_is_delivered() {
        let mut state = state(5);
        let (batch, items) = appended(6, vec![AppendOutcome::Appended(7)]);
        state.add_own(batch, items);
        state.pause();
        assert!(matches!(state.next(), NextStep::Read(5, 6)), "what stands before it");
        state.delivered = 6;
        assert!(matches!(state.next(), NextStep::Own(_)) && !state.is_paused());
        state.delivered = 7;
        assert!(matches!(state.next(), NextStep::Pause) && state.is_paused());
        let (batch, items) = appended(7, vec![AppendOutcome::Appended(8)]);
        state.add_own(batch, items);
        assert!(!state.is_paused());
        assert!(matches!(state.next(), NextStep::Own(_)) && !state.is_paused(), "it is under way");
        state.delivered = 8;
        assert!(matches!(state.next(), NextStep::Pause) && state.is_paused());
        state.resume();
        assert!(matches!(state.next(), NextStep::Read(8, u64::MAX)) && !state.is_paused());
    }

    #[test]
    fn batches_without_a_new_message_stand_before_the_next_one() {
        let mut state = state(5);
        for outcomes in [
            vec![AppendOutcome::Repeated(3)],
            vec![AppendOutcome::Newer(5), AppendOutcome::Appended(6)],
        ] {
            let (batch, items) = appended(5, outcomes);
            state.add_own(batch, items);
        }
        let NextStep::Own(batch) = state.next() else { panic!("it is the next one") };
        let outcomes: Vec<AppendOutcome> =
            batch.items.iter().map(|(_, outcome)| *outcome).collect();
        assert_eq!(
            outcomes,
            [AppendOutcome::Repeated(3), AppendOutcome::Newer(5), AppendOutcome::Appended(6)]
        );
        assert_eq!((state.backlog(), state.take_own().len()), (Backlog::default(), 0));
        let (batch, items) = appended(9, vec![AppendOutcome::Appended(10)]);
        let bytes = items[0].bytes();
        state.add_own(batch, items);
        assert_eq!(state.backlog(), Backlog { messages: 1, bytes });
        assert_eq!((state.take_own().len(), state.backlog()), (1, Backlog::default()));
    }

    #[test]
    fn memory_that_lacks_messages_does_not_claim_to_reach_them() {
        let mut state = state(0);
        let message = |offset| {
            let id = Position { epoch: Epoch(1), offset };
            let publication = Publication::new("a", Data::Text("x".into()));
            Arc::new(Envelope::from(Message::new(publication, id, 1, offset)))
        };
        let rule = item("a", None, None, 1).rule;
        state.push(&message(6), Some(&rule), 0);
        assert!(state.windows.reaches(1, "a", 0));
        state.push(&message(7), None, 0);
        assert!(!state.windows.reaches(1, "a", 6) && state.windows.reaches(1, "a", 7));
        assert_eq!((state.windows.messages(), state.windows.last(1, "a")), (0, Some(7)));
        state.pass(9, Some(70));
        assert!(state.windows.reaches(1, "b", 0), "it knows of none");
        drop(state.forget());
        assert!(!state.windows.reaches(1, "a", 8) && state.windows.reaches(1, "a", 9));
    }
}
