//! The commands, one file each.

pub mod bundle;
pub mod completions;
pub mod config;
pub mod drain;
#[cfg(feature = "flood")]
pub mod flood;
pub mod health;
pub mod history;
pub mod key;
pub mod man;
mod migrate;
pub mod outbox;
pub mod parent;
pub mod rebalance;
pub mod serve;
pub mod store;
pub mod subscriptions;
pub mod token;
#[cfg(feature = "top")]
pub mod top;
pub mod trace;
#[cfg(feature = "tune")]
pub mod tune;
pub mod upgrade;
