//! Recovery: clients get the messages that they missed while their connection was gone. Tests over real sockets, with
//! the history in memory and in a store.

mod acknowledgements;
mod attributes;
mod history;
mod inbox;
mod listener;
mod node;
mod pages;
mod passing;
mod recovery_gap;
mod resume;
mod sender;
mod state;
mod subscriptions;
mod whole;
