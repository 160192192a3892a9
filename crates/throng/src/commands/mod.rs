//! The commands, one file each.

pub mod config;
pub mod flood;
pub mod serve;
pub mod store;
pub mod subscriptions;
pub mod top;
pub mod tune;
