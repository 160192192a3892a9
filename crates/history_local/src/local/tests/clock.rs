//! The time by which ages are counted, while the time of day is doubted.

use std::fs::File;
use std::time::{SystemTime, UNIX_EPOCH};

use ::handover::testing::pass_all;
use ::handover::{Part, Sent};

use super::*;
use crate::local::parts;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Makes a store whose process last counted ages a day ago.
fn stopped_for_a_day(dir: &Dir) -> (Store, Begin) {
    dir.open().0.close().unwrap();
    let mark = File::options().write(true).open(dir.0.join("throng.mark")).unwrap();
    mark.set_modified(SystemTime::now() - DAY).unwrap();
    dir.open()
}

/// Returns how far the time of a history's ages is behind the time of day.
fn behind(history: &Local) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.saturating_sub(Duration::from_millis(history.age_ms()))
}

#[test]
fn the_clock_of_a_history_begins_with_that_of_its_store() {
    let dir = Dir::new("clock-begins");
    let (store, begin) = stopped_for_a_day(&dir);
    let (_, node) = node_of(Some(begin));
    assert!(behind(&node.history) > DAY / 2);
    store.close().unwrap();
}

#[test]
fn another_process_goes_on_with_the_doubt() {
    let dir = Dir::new("clock-goes-on");
    let (store, begin) = stopped_for_a_day(&dir);
    let ((_, old), (_, new)) = (node_of(Some(begin)), node_of(None));
    let hash: history::TopicHash = Arc::new(|_| 7);
    let parts = |node: &Node| -> [Arc<dyn Part>; 4] { parts(&node.history, &hash) };
    for (old, new) in parts(&old).iter().zip(&parts(&new)) {
        pass_all(&**old, &**new, &mut Sent::new());
    }
    assert!(behind(&new.history) > DAY / 2);
    store.close().unwrap();
}
