//! The store with a real server: kills at any time, full disks, files that are no store, full queues,
//! and restarts.

#[path = "store/damage.rs"]
mod damage;
#[path = "store/folder.rs"]
mod folder;
#[path = "store/foreign.rs"]
mod foreign;
#[path = "store/full.rs"]
mod full;
#[path = "store/kill.rs"]
mod kill;
#[path = "store/ledger.rs"]
mod ledger;
#[path = "store/listener.rs"]
mod listener;
#[path = "store/load.rs"]
mod load;
#[path = "store/queue.rs"]
mod queue;
#[path = "store/restart.rs"]
mod restart;
mod support;
