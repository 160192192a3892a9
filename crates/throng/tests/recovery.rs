//! Nothing is lost when a connection is: what clients missed, over real sockets, with what is kept
//! in memory and with a store.

#[path = "recovery/acknowledgements.rs"]
mod acknowledgements;
#[path = "recovery/again.rs"]
mod again;
#[path = "recovery/history.rs"]
mod history;
#[path = "recovery/home.rs"]
mod home;
#[path = "recovery/inbox.rs"]
mod inbox;
#[path = "recovery/listener.rs"]
mod listener;
#[path = "recovery/lost.rs"]
mod lost;
#[path = "recovery/marks.rs"]
mod marks;
#[path = "recovery/subscriptions.rs"]
mod subscriptions;
mod support;
