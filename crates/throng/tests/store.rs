//! The store with a real server: kills at any time, full disks, files that are no store, full queues, and restarts.

mod copies;
mod damage;
pub mod folder;
mod foreign;
pub mod full;
mod kill;
mod ledger;
mod listener;
mod load;
mod queue;
mod restart;
