//! The calls of the API, one file a subject. To add a call: a function in its file, a line in
//! [`router`], and a line in `openapi.rs`.

mod connections;
mod cursors;
mod history;
mod login;
mod members;
mod messages;
mod openapi;
mod operate;
mod presence;
#[cfg(test)]
pub(crate) use presence::list as list_presence;
mod publish;
mod samples;
mod stats;
mod subscriptions;
mod tokens;
mod top;
mod topics;

pub use openapi::openapi;
pub use tokens::REVOCATIONS;
pub(crate) use tokens::forget as forget_revocations;

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::middleware;
use axum::routing::{get, post};

use crate::dashboard;
use crate::http::middleware::surround;
use crate::http::trace::RequestIds;
use crate::http::{Rejection, guard};
use crate::monitor::Monitor;
use crate::node::{AskError, Node};

/// All that the admin port answers.
pub(crate) fn router(monitor: Arc<Monitor>) -> Router {
    let node = monitor.node.clone();
    let ids = Arc::new(RequestIds::new());
    let monitored = Router::new()
        .route("/api/live", get(samples::live))
        .route("/api/samples", get(samples::samples))
        .route("/api/top", get(top::top))
        .with_state(monitor);
    Router::new()
        .route("/healthz", get(operate::healthz))
        .route("/readyz", get(operate::readyz))
        .route("/metrics", get(operate::metrics))
        .route("/api/openapi.json", get(openapi::document))
        .route("/api/publish", post(publish::publish))
        .route("/api/send", post(publish::send))
        .route("/api/broadcast", post(publish::broadcast))
        .route("/api/batch", post(publish::batch::batch))
        .route("/api/disconnect", post(connections::disconnect))
        .route("/api/subscribe", post(connections::subscribe))
        .route("/api/unsubscribe", post(connections::unsubscribe))
        .route("/api/login", post(login::login))
        .route("/api/logout", post(login::logout))
        .route("/api/revoke", post(tokens::revoke))
        .route("/api/revocations", get(tokens::revocations))
        .route("/api/topics", get(topics::topics))
        .route("/api/topics/{topic}", get(topics::topic))
        .route("/api/topics/{topic}/members", get(members::members))
        .route("/api/topics/{topic}/subscribers", get(subscriptions::subscribers::subscribers))
        .route("/api/history", get(history::without_topic))
        .route("/api/history/{topic}", get(history::page).delete(history::delete))
        .route("/api/ack", post(cursors::acknowledge))
        .route("/api/cursors/{user}", get(cursors::cursor))
        .route("/api/messages", get(messages::messages))
        .route("/api/presence/{topic}", get(presence::presence))
        .route("/api/users/{user}", get(members::user))
        .route("/api/subscriptions", post(subscriptions::change))
        .route(
            "/api/subscriptions/import",
            // The user of that name has the other methods.
            post(subscriptions::import)
                .get(async |node| {
                    subscriptions::list(node, Ok(Path(subscriptions::IMPORT.into()))).await
                })
                .delete(async |node| {
                    subscriptions::clear(node, Ok(Path(subscriptions::IMPORT.into()))).await
                }),
        )
        .route("/api/subscriptions/{user}", get(subscriptions::list).delete(subscriptions::clear))
        .route("/api/stats", get(stats::stats))
        .route("/api/config", get(operate::config))
        .merge(monitored)
        .merge(dashboard::router())
        .fallback(async || {
            let message = "there is nothing here: see /api/openapi.json";
            Rejection::new(StatusCode::NOT_FOUND, "not_found", message)
        })
        .method_not_allowed_fallback(async || {
            let message = "this path takes another method: see /api/openapi.json";
            Rejection::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        })
        .layer(middleware::from_fn_with_state(node.clone(), guard::guard::<Node>))
        .layer(middleware::from_fn_with_state(ids, surround))
        .with_state(node)
}

impl From<AskError> for Rejection {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Ended => Rejection::going_down(),
            AskError::Timeout => Rejection::no_answer(),
        }
    }
}
