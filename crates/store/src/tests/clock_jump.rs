//! Tests of jumps of the time of day, while the store is open and between two starts.

use model::Attributes;

use super::end_to_end::wait_until;
use super::*;

/// Ten years, in milliseconds.
const DECADE_MS: i64 = 10 * 365 * 24 * 3_600_000;

fn now_ms() -> u64 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_1970.unwrap().as_millis().try_into().unwrap()
}

/// Appends a message to a topic that retains messages for ten minutes.
fn append_for_minutes(store: &Store, publication: &Publication, offset: u64, at_ms: u64) {
    let (send, receive) = mpsc::channel();
    let rule = HistoryRule { seconds_max: 600, ..history() };
    let append =
        Append { publication, offset, at_ms, rule: &rule, idempotency_key: Some("k"), with: None };
    store.append(append, Box::new(move |result| send.send(result).unwrap())).unwrap();
    assert_eq!(receive.recv_timeout(WAIT).unwrap(), Ok(()));
}

fn expiring(topic: &str, expires_ms: u64) -> Publication {
    let attributes = Attributes { expires_ms: Some(expires_ms), ..Attributes::default() };
    Publication { attributes: Some(Box::new(attributes)), ..publication(topic, "x") }
}

/// Waits until the writer has swept: a message that expired in 1970 is gone.
fn wait_for_sweep(store: &Store, offset: u64) {
    append_for_minutes(store, &expiring("marker", 1), offset, now_ms());
    wait_until("a sweep", || offsets(store, "marker", 0).is_empty());
}

#[test]
fn a_jump_while_the_store_is_open_deletes_nothing() {
    let dir = Dir::new();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    let today_ms = now_ms();
    append_for_minutes(&store, &publication("t", "old"), 1, today_ms);
    append_for_minutes(&store, &expiring("t", today_ms + 600_000), 2, today_ms);
    store.move_wall(DECADE_MS);
    let later_ms = today_ms.saturating_add_signed(DECADE_MS);
    append_for_minutes(&store, &publication("t", "new"), 3, later_ms);
    append_for_minutes(&store, &publication("t", "new"), 4, today_ms);
    wait_for_sweep(&store, 5);
    assert_eq!(offsets(&store, "t", 0), [1, 2, 3, 4]);
    store.move_wall(0);
    wait_for_sweep(&store, 6);
    assert_eq!(offsets(&store, "t", 0), [1, 2, 3, 4]);
    // A message that is too old by the right time is deleted.
    append_for_minutes(&store, &publication("past", "old"), 7, today_ms - 601_000);
    assert_eq!(offsets(&store, "past", 0), [0; 0]);
    store.close().unwrap();
}

#[test]
fn a_start_with_a_wrong_time_of_day_deletes_nothing() {
    let dir = Dir::new();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    store.move_wall(-DECADE_MS);
    let then_ms = now_ms().saturating_add_signed(-DECADE_MS);
    append_for_minutes(&store, &publication("t", "old"), 1, then_ms);
    store.close().unwrap();
    // This store suddenly sees the time of day ten years ahead.
    for offset in [2, 4] {
        let (store, _, _) = Store::open(options(&dir.0)).unwrap();
        append_for_minutes(&store, &publication("t", "new"), offset, now_ms());
        wait_for_sweep(&store, offset + 1);
        assert_eq!(offsets(&store, "t", 0)[0], 1);
        store.close().unwrap();
    }
}

/// Returns for how long a store doubts the time of day, in milliseconds.
fn doubt_ms(store: &Store) -> u64 {
    store.age().unwrap().doubt_ms
}

/// Makes a store that has found the time of day ten years ahead, and has stored a message since.
fn doubting(dir: &Dir) -> Store {
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    store.move_wall(-DECADE_MS);
    let then_ms = now_ms().saturating_add_signed(-DECADE_MS);
    append_for_minutes(&store, &publication("t", "old"), 1, then_ms);
    store.move_wall(0);
    append_for_minutes(&store, &publication("t", "new"), 2, now_ms());
    store
}

#[test]
fn a_restart_within_the_day_of_doubt_goes_on_with_it() {
    const HOUR_MS: u64 = 3_600_000;
    let dir = Dir::new();
    let store = doubting(&dir);
    assert!(doubt_ms(&store) > 23 * HOUR_MS);
    store.close().unwrap();
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    assert!(doubt_ms(&store) > 23 * HOUR_MS);
    // The time of day returns, and the doubt ends.
    store.move_wall(-DECADE_MS);
    let then_ms = now_ms().saturating_add_signed(-DECADE_MS);
    append_for_minutes(&store, &publication("t", "new"), 3, then_ms);
    assert_eq!(doubt_ms(&store), 0);
    store.close().unwrap();
    // After a stop, the doubt lasts an hour.
    let (store, _, _) = Store::open(options(&dir.0)).unwrap();
    assert!((HOUR_MS / 2..=HOUR_MS).contains(&doubt_ms(&store)));
    store.close().unwrap();
}

#[test]
fn a_process_that_takes_the_file_over_goes_on_with_the_doubt() {
    let dir = Dir::new();
    let old = doubting(&dir);
    let passed = old.pass_on().unwrap();
    let new = Store::waiting(&options(&dir.0));
    assert_eq!(new.age(), None);
    new.open_now(&passed).unwrap();
    assert!(doubt_ms(&new) > 23 * 3_600_000);
    new.close().unwrap();
}
