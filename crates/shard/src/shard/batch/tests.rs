use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use broker::DeliveryObserver;

use super::*;
use crate::shard::support::shard;

fn connect(shard: &mut Shard) -> (u32, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let slot = shard.engine.open(engine::Listener::Client, engine::Arrival::Direct(None));
    shard.sockets.insert(slot, OwnedFd::from(ours));
    (slot, theirs)
}

fn read(socket: &mut UnixStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    all
}

/// A connection leaves while a batch is gathered, and another one gets its slot.
#[test]
fn a_connection_gets_nothing_that_was_meant_for_the_one_before_it() {
    for full in [false, true] {
        let mut shard = shard();
        let mut members: Vec<_> = (0..4).map(|_| connect(&mut shard)).collect();
        if full {
            // The kernel then takes nothing whole, and the rest goes to the outboxes.
            for (slot, _) in &members {
                let socket = shard.sockets.get(*slot).unwrap();
                while rustix::io::write(socket, &[b'.'; 4096]).is_ok() {}
            }
        }
        for (n, (slot, _)) in members.iter().enumerate() {
            let bytes = |text: String| text.into_bytes().into();
            shard.gather(bytes(format!("for {n}")), &[*slot], 1, None);
            shard.gather(bytes(format!(" and {n}")), &[*slot], 1, None);
        }
        let gone = members[1].0;
        shard.engine.on_lost(gone);
        shard.perform();
        let (slot, mut stranger) = connect(&mut shard);
        assert_eq!(slot, gone, "it has the slot");
        shard.gather(Arc::from(*b"stranger's own"), &[slot], 1, None);
        shard.send_batch();
        let received = |shard: &mut Shard, slot: u32, socket: &mut UnixStream| {
            let mut all = Vec::new();
            for _ in 0..3 {
                all.extend(read(socket));
                shard.flush(slot);
            }
            String::from_utf8(all).unwrap().trim_matches('.').to_string()
        };
        assert_eq!(received(&mut shard, slot, &mut stranger), "stranger's own");
        for (n, (slot, socket)) in members.iter_mut().enumerate().filter(|(n, _)| *n != 1) {
            assert_eq!(received(&mut shard, *slot, socket), format!("for {n} and {n}"));
        }
        let last = String::from_utf8(read(&mut members[1].1)).unwrap();
        let want = if full { "" } else { "for 1 and 1" };
        assert_eq!(last.trim_matches('.'), want);
        assert!(members[1].1.write(b"?").is_err(), "it has gone");
    }
}

/// Reads what each member has when its shard calls the observer.
struct Observer(Mutex<(Vec<UnixStream>, Vec<Vec<u8>>)>);

impl DeliveryObserver for Observer {
    fn on_delivered(&self, _: ShardDelivery) {
        let (members, seen) = &mut *self.0.lock().unwrap();
        seen.extend(members.iter_mut().map(read));
    }

    fn on_unobserved(&self) {
        panic!("the shard observes it");
    }
}

#[test]
fn the_observer_of_a_message_is_called_when_the_last_member_has_its_bytes() {
    // Its members are in the batch, or got their bytes one by one.
    for is_batched in [true, false] {
        let mut shard = shard();
        let (slots, members): (Vec<_>, Vec<_>) = (0..3).map(|_| connect(&mut shard)).unzip();
        let observer = Arc::new(Observer(Mutex::new((members, Vec::new()))));
        match is_batched {
            true => shard.gather(Arc::from(*b"message"), &slots, 1, None),
            false => slots.iter().for_each(|slot| shard.send(*slot, b"message", 1, false)),
        }
        let delivery = ShardDelivery { shard: 0, members: 3, received_us: 0, sent_us: 0 };
        shard.batch.observe(ObservedDelivery { observer: observer.clone(), delivery });
        assert!(observer.0.lock().unwrap().1.is_empty(), "the batch is not sent");
        shard.send_batch();
        assert_eq!(observer.0.lock().unwrap().1, [b"message"; 3]);
        shard.send_batch();
        assert_eq!(observer.0.lock().unwrap().1.len(), 3, "once");
    }
}
