//! HTTP: requests in, answers out, and what is asked by a request alone.

mod acknowledge;
mod admission;
mod answer;
mod endpoint;
mod history;
mod identity;
pub mod media;
mod near_miss;
mod pages;
mod parameters;
mod parse;
mod protocol;
mod publish;
mod rejection;
mod route;

pub use answer::UNAUTHORIZED;
pub use answer::{
    ANY_ORIGIN, Answer, HEALTH, error_body, json_answer, publish_answer, reason, reject, reject_to,
    status_line,
};
pub use endpoint::{Endpoint, Grant, Needs};
pub use identity::TOKEN_PARAMETER;
pub use parse::{ACK, HEADERS_MAX, HttpRequest, LONGPOLL, Limits, Method, Parsed, parse};
pub use protocol::{Http, reject_connection, reject_unread};
pub use rejection::Rejection;
pub use route::Route;

pub(crate) use answer::NOT_YOUR_USER;
pub(crate) use answer::short_answer;
pub(crate) use parameters::{Listener, Query, not_utf8};
pub(crate) use route::endless_head;
