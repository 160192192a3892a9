//! HTTP: parses requests, writes replies, and serves the paths that need no open connection.

mod acknowledge;
mod admission;
mod endpoint;
mod history;
mod identity;
pub mod media;
mod pages;
mod parameter_typo;
mod parameters;
mod parse;
mod protocol;
mod publish;
mod rejection;
mod reply;
mod route;

pub use endpoint::{Endpoint, Grant, Needs};
pub use identity::TOKEN_PARAMETER;
pub use parse::{ACK, HEADERS_MAX, HttpRequest, LONGPOLL, Limits, Method, Parsed, parse};
pub use protocol::{Http, reject_connection, reject_unread};
pub use rejection::Rejection;
pub use reply::{
    ANY_ORIGIN, HEALTH, HttpReply, error_body, json_reply, publish_reply, reason, reject,
    reject_to, status_line,
};
pub use route::Route;

pub(crate) use parameters::{Listener, Query, not_utf8};
pub(crate) use reply::short_reply;
pub(crate) use route::endless_head;
