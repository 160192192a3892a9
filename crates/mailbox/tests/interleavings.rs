//! Runs the mailbox and the filter under every interleaving that loom can find. This test compiles the files of both
//! with loom's locks and atomics, so it needs no flag of the compiler.

#[allow(dead_code, reason = "a part of the crate is enough here")]
#[path = "../src/filter.rs"]
mod filter;
#[allow(dead_code, reason = "a part of the crate is enough here")]
#[path = "../src/queue.rs"]
mod queue;

/// loom's locks and atomics, where the crate has the standard library's.
mod sync {
    pub use loom::sync::{Mutex, atomic};
    pub use std::sync::PoisonError;
}

use filter::Filter;
use loom::sync::{Arc, Mutex};
use loom::thread;
use queue::{Mailbox, Wake};

/// An event descriptor: a wake sets it, and the owner clears it before it takes. The kernel serialises its reads and
/// writes, as the lock does here.
struct Event(Arc<Mutex<bool>>);

/// Clears the event, and returns whether it was set.
fn clear(event: &Mutex<bool>) -> bool {
    std::mem::take(&mut *event.lock().unwrap())
}

impl Wake for Event {
    fn wake(&self) {
        *self.0.lock().unwrap() = true;
    }
}

#[test]
fn no_wake_up_is_lost_and_each_sender_keeps_its_order() {
    loom::model(|| {
        let event = Arc::new(Mutex::new(false));
        let mailbox = Arc::new(Mailbox::new(10, Event(event.clone())));
        let senders: Vec<_> = [10, 20]
            .map(|from| {
                let mailbox = mailbox.clone();
                thread::spawn(move || {
                    mailbox.push(from);
                    mailbox.push(from + 1);
                })
            })
            .into();
        let mut got = Vec::new();
        // The owner takes once while the senders push.
        if clear(&event) {
            got.extend(mailbox.take(Vec::new()));
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        // Items that are left must have set the event: an owner that waits for it gets everything.
        if clear(&event) {
            got.extend(mailbox.take(Vec::new()));
        }
        assert!(mailbox.take(Vec::new()).is_empty(), "items without a wake-up");
        for from in [10, 20] {
            let own: Vec<_> = got.iter().filter(|item| **item / 10 == from / 10).collect();
            assert_eq!(own, [&from, &(from + 1)]);
        }
    });
}

#[test]
fn a_hash_that_stays_is_seen_at_every_moment_of_a_rebuild() {
    loom::model(|| {
        let filter = Arc::new(Filter::new(1));
        filter.insert(7);
        filter.insert(9);
        let owner = filter.clone();
        let rebuild = thread::spawn(move || owner.rebuild([7].into_iter()));
        assert!(filter.holds(7));
        rebuild.join().unwrap();
        assert!(filter.holds(7) && !filter.holds(9));
    });
}
