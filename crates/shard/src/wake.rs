//! The mailbox of a shard's engine. Its wake-up ends the shard's wait.

use std::sync::Arc;

use engine::{Command, Queue};
use mailbox::{Mailbox, Wake};
use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;

/// The commands of one shard.
pub(crate) type Commands = Mailbox<Command, EventWake>;

/// Makes a mailbox for at most `items_max` commands, which wakes by an event descriptor.
pub(crate) fn commands(items_max: usize) -> rustix::io::Result<Arc<Commands>> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wake = EventWake(rustix::event::eventfd(0, flags)?);
    Ok(Arc::new(Mailbox::new(items_max, wake)))
}

/// An event descriptor that makes a shard's poll return.
///
/// It is made before the shards take private descriptor tables, so that its number means the same
/// in all of them.
pub(crate) struct EventWake(pub OwnedFd);

impl Wake for EventWake {
    fn wake(&self) {
        // The only failure is a full counter (2^64 - 2 wake-ups unread), and then it is awake.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// The engine's end of the mailbox.
pub(crate) struct CommandQueue(pub Arc<Commands>);

impl Queue for CommandQueue {
    fn push(&self, command: Command) {
        self.0.push(command);
    }

    fn has_capacity(&self) -> bool {
        self.0.has_capacity()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn take(&self, empty: Vec<Command>) -> Vec<Command> {
        self.0.take(empty)
    }
}
