//! Recovery: clients get what they missed while their connection was gone. Tests over real sockets,
//! with the history in memory and in a store.

#[path = "recovery/acknowledgements.rs"]
mod acknowledgements;
#[path = "recovery/attributes.rs"]
mod attributes;
#[path = "recovery/history.rs"]
mod history;
#[path = "recovery/inbox.rs"]
mod inbox;
#[path = "recovery/listener.rs"]
mod listener;
#[path = "recovery/node.rs"]
mod node;
#[path = "recovery/pages.rs"]
mod pages;
#[path = "recovery/passing.rs"]
mod passing;
#[path = "recovery/recovery_gap.rs"]
mod recovery_gap;
#[path = "recovery/resume.rs"]
mod resume;
#[path = "recovery/sender.rs"]
mod sender;
#[path = "recovery/state.rs"]
mod state;
#[path = "recovery/subscriptions.rs"]
mod subscriptions;
mod support;
#[path = "recovery/whole.rs"]
mod whole;
