//! Occupied topics, and numbers of events.

use proptest::prelude::*;

use super::*;

fn inbox(occupancy_ms: u64) -> Inbox {
    Inbox {
        open: true,
        events: Vec::new(),
        topics: BTreeMap::new(),
        due: VecDeque::new(),
        occupancy: Duration::from_millis(occupancy_ms),
    }
}

proptest! {
    /// In whatever order shards report, the application gets occupied and vacated events in turn. Each is about a state
    /// that has lasted for 100 ms, and the last one has the final state.
    #[test]
    fn a_topic_is_reported_as_it_is(
        steps in prop::collection::vec((0u16..3, any::<bool>(), 0u64..150), 0..60),
    ) {
        let mut inbox = inbox(100);
        let begin = Instant::now();
        let (mut now_ms, mut notified) = (0, Vec::new());
        let mut shards = [false; 3];
        // When the topic last became occupied or vacated.
        let mut since_ms = 0;
        for (shard, occupied, pause_ms) in steps {
            let before = shards.contains(&true);
            shards[usize::from(shard)] = occupied;
            let now = begin + Duration::from_millis(now_ms);
            match occupied {
                true => inbox.occupied("t".into(), shard, now),
                false => inbox.vacated("t".into(), shard, now),
            }
            if shards.contains(&true) != before {
                since_ms = now_ms;
            }
            now_ms += pause_ms;
            for (_, is_occupied) in inbox.take_due(begin + Duration::from_millis(now_ms)) {
                prop_assert_eq!(is_occupied, shards.contains(&true));
                prop_assert!(now_ms >= since_ms + 100, "it has stayed so");
                notified.push(is_occupied);
            }
        }
        notified.extend(
            inbox.take_due(begin + Duration::from_secs(3_600)).into_iter().map(|(_, is)| is),
        );
        prop_assert!(notified.iter().enumerate().all(|(at, is)| *is == (at % 2 == 0)), "{notified:?}");
        prop_assert_eq!(notified.last().copied().unwrap_or(false), shards.contains(&true));
        prop_assert!(inbox.due.is_empty());
        prop_assert_eq!(inbox.topics.is_empty(), !shards.contains(&true), "nothing is held");
    }
}

#[test]
fn what_was_left_is_first_and_numbers_go_on() {
    let limits = EventLimits { events_max: 4, bytes_max: 1 << 20 };
    let row = |at_ms: u64| [&at_ms.to_le_bytes()[..], b"{}"].concat().into_boxed_slice();
    let far = u64::MAX - 10;
    let left = vec![(7, row(now_ms())), (far, row(now_ms())), (9, Box::from(*b"short"))];
    let mut queue = Queue::new(Arc::new(Events::new(limits)), None, left, "node".into());
    assert_eq!((queue.waiting.len(), queue.next), (2, far + 1));
    let hour = Duration::from_secs(3_600);
    let batch = queue.batch(1, hour).unwrap();
    assert_eq!((batch.first, batch.last, batch.events), (7, 7, 1));
    queue.failed();
    queue.begin();
    let again = queue.batch(9, hour).unwrap();
    assert_eq!(again.body, batch.body, "it is sent again as it was");
    queue.taken(&again);
    let rest = queue.batch(9, hour).unwrap();
    assert_eq!((rest.first, rest.last, rest.events), (far, far + 1, 2));
    std::thread::sleep(Duration::from_millis(5));
    assert!(queue.batch(9, Duration::ZERO).is_none());
    assert_eq!((queue.bytes, queue.events.stats().expired), (0, 2));
}
