//! The queue of events for the application.

use super::*;
use crate::{check, salvage};

fn events(store: &Store) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    let each =
        |number, event: &[u8]| all.push((number, String::from_utf8_lossy(event).into_owned()));
    store.reader().each_event(each).unwrap();
    all
}

fn put(numbers: std::ops::Range<u64>) -> Vec<(u64, Box<[u8]>)> {
    numbers.map(|number| (number, format!("event {number}").into_bytes().into())).collect()
}

#[test]
fn events_stay_until_they_are_taken_and_survive() {
    let dir = Dir::new();
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    assert_eq!(events(&store), [], "a file without the table has none");
    store.put_events(put(5..9), None).unwrap();
    store.put_events(put(9..11), Some(6)).unwrap();
    store.close().unwrap();
    let (store, ..) = Store::open(options(&dir.0)).unwrap();
    let want: Vec<_> = (7..11).map(|number| (number, format!("event {number}"))).collect();
    assert_eq!(events(&store), want);
    // These are more than one transaction takes.
    store.put_events(put(11..20_000), None).unwrap();
    store.put_events(Vec::new(), Some(19_990)).unwrap();
    store.close().unwrap();
    let report = check(&dir.0).unwrap();
    assert!(report.damages.is_empty(), "{report:?}");
    assert_eq!(report.others, 9);
    // A salvaged store has them, too.
    let copy = Dir::new();
    salvage(&dir.0, &copy.0, 7).unwrap();
    let (store, ..) = Store::open(options(&copy.0)).unwrap();
    assert_eq!(events(&store).len(), 9);
    store.put_events(Vec::new(), Some(u64::MAX)).unwrap();
    store.close().unwrap();
    let (store, ..) = Store::open(options(&copy.0)).unwrap();
    assert_eq!(events(&store), []);
    store.close().unwrap();
}
