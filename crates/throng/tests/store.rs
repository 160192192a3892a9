//! The store under the real server: kills at any time, a full disk, files that are no store, a
//! full queue, and restarts.

#[path = "store/damage.rs"]
mod damage;
#[path = "store/foreign.rs"]
mod foreign;
#[path = "store/full.rs"]
mod full;
#[path = "store/heard.rs"]
mod heard;
#[path = "store/kill.rs"]
mod kill;
#[path = "store/ledger.rs"]
mod ledger;
#[path = "store/load.rs"]
mod load;
#[path = "store/place.rs"]
mod place;
#[path = "store/queue.rs"]
mod queue;
#[path = "store/restart.rs"]
mod restart;
mod support;
