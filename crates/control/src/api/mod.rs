//! The calls of the API, one file a subject. To add a call: a function in its file, a line in [`calls`] with its
//! required scope, and a line in `openapi.rs`.

mod backup;
mod calls;
mod certificates;
mod cluster;
mod cluster_nodes;
mod connections;
mod cursors;
mod drain;
mod history;
mod kernel;
mod login;
mod members;
mod messages;
mod mqtt;
mod noisiest;
mod openapi;
mod operate;
mod outbox;
mod presence;
#[cfg(test)]
pub(crate) use presence::list as list_presence;
mod publish;
mod samples;
mod session;
mod slowest;
mod spread;
mod stats;
mod subscriptions;
mod tokens;
mod top;
mod topics;
mod trace;
mod upgrade;

pub use openapi::openapi;
pub(crate) use publish::{OutboxPublisher, ReplyPublisher};
pub(crate) use spread::{serve as serve_nodes, sync_retained, sync_revocations};
pub(crate) use subscriptions::database::NodeConnections;
pub(crate) use tokens::forget as forget_revocations;
pub use tokens::{REVOCATIONS, of_shards};
#[cfg(test)]
pub(crate) use trace::EVENTS_MAX as TRACE_EVENTS_MAX;

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::middleware::from_fn_with_state;
use calls::Calls;
use model::ErrorCode;
use tower::layer::layer_fn;

use crate::dashboard;
use crate::http::Rejection;
use crate::http::access::{RequiredScope, Row, Table};
use crate::http::guard::{Guard, OPEN_FOLDER};
use crate::http::middleware::{Middleware, MiddlewareService};
use crate::http::trace::RequestIds;
use crate::monitor::Monitor;
use crate::node::{Node, ShardRequestError};

/// The routes of the node's calls. Only this table says which scope each call requires.
fn calls() -> Calls<Arc<Node>> {
    use RequiredScope::{Admin, Key, Nothing, Publish, Read};
    let calls = Calls::new()
        .get("/healthz", Nothing, operate::healthz)
        .get("/readyz", Nothing, operate::readyz)
        .get("/metrics", Read, operate::metrics)
        .get("/api/openapi.json", Key, openapi::document)
        .post("/api/session", Nothing, session::sign_in)
        .get("/api/session", Key, session::session)
        .delete("/api/session", Key, session::sign_out)
        .post("/api/publish", Publish, publish::publish)
        .post("/api/send", Publish, publish::send)
        .post("/api/broadcast", Publish, publish::broadcast)
        .post("/api/batch", Publish, publish::batch::batch)
        .post("/api/disconnect", Admin, connections::disconnect)
        .post("/api/subscribe", Admin, connections::subscribe)
        .post("/api/unsubscribe", Admin, connections::unsubscribe)
        .post("/api/login", Admin, login::login)
        .post("/api/logout", Admin, login::logout)
        .post("/api/revoke", Admin, tokens::revoke)
        .get("/api/revocations", Read, tokens::revocations)
        .get("/api/topics", Read, topics::topics)
        .get("/api/topics/{topic}", Read, topics::topic)
        .get("/api/topics/{topic}/members", Read, members::members)
        .get("/api/topics/{topic}/subscribers", Read, subscriptions::subscribers::subscribers)
        .get("/api/history", Read, history::without_topic)
        .get("/api/history/{topic}", Read, history::page)
        .delete("/api/history/{topic}", Admin, history::delete)
        .post("/api/ack", Admin, cursors::acknowledge)
        .get("/api/cursors/{user}", Read, cursors::cursor)
        .get("/api/messages", Read, messages::messages)
        .get("/api/presence/{topic}", Read, presence::presence)
        .get("/api/users/{user}", Read, members::user)
        .post("/api/subscriptions", Admin, subscriptions::change)
        .post("/api/subscriptions/import", Admin, subscriptions::import)
        // The other methods of this path are about a user with the name `import`.
        .get("/api/subscriptions/import", Read, async |node| {
            subscriptions::list(node, Ok(Path(subscriptions::IMPORT.into()))).await
        })
        .delete("/api/subscriptions/import", Admin, async |node| {
            subscriptions::clear(node, Ok(Path(subscriptions::IMPORT.into()))).await
        })
        .get("/api/subscriptions/{user}", Read, subscriptions::list)
        .delete("/api/subscriptions/{user}", Admin, subscriptions::clear)
        .get("/api/mqtt/sessions", Read, mqtt::sessions::list)
        .get("/api/mqtt/sessions/{client}", Read, mqtt::sessions::one)
        .delete("/api/mqtt/sessions/{client}", Admin, mqtt::sessions::end)
        .get("/api/mqtt/retained", Read, mqtt::retained::list)
        .get("/api/mqtt/retained/{topic}", Read, mqtt::retained::one)
        .delete("/api/mqtt/retained/{topic}", Admin, mqtt::retained::delete)
        .get("/api/stats", Read, stats::stats)
        .get("/api/cluster", Read, cluster::cluster)
        .get("/api/cluster/nodes", Read, cluster_nodes::cluster_nodes)
        .get("/api/outbox", Read, outbox::outbox)
        .get("/api/config", Read, operate::config)
        .get("/api/certificates", Read, certificates::certificates)
        .get("/api/drain", Read, drain::drain)
        .post("/api/drain", Admin, drain::begin_drain)
        .delete("/api/drain", Admin, drain::cancel_drain)
        .get("/api/rebalance", Read, drain::rebalance)
        .post("/api/rebalance", Admin, drain::begin_rebalance)
        .delete("/api/rebalance", Admin, drain::cancel_rebalance)
        .get("/api/upgrade", Read, upgrade::progress)
        .post("/api/upgrade", Admin, upgrade::begin)
        .get("/api/backup", Read, backup::progress)
        .post("/api/backup", Admin, backup::begin)
        .get("/", Nothing, dashboard::page);
    // No file below that folder requires a key.
    dashboard::FILES.iter().fold(calls, |calls, &(path, kind, text)| {
        calls.get(path, Nothing, async move || dashboard::file(kind, text))
    })
}

/// The routes of the calls that show the node's figures.
fn monitor_calls() -> Calls<Arc<Monitor>> {
    Calls::new()
        .get("/api/live", RequiredScope::Read, samples::live)
        .get("/api/trace", RequiredScope::Read, trace::trace)
        .get("/api/samples", RequiredScope::Read, samples::samples)
        .get("/api/top", RequiredScope::Read, top::top)
        .get("/api/noisiest", RequiredScope::Read, noisiest::noisiest)
        .get("/api/slowest", RequiredScope::Read, slowest::slowest)
        .get("/api/kernel", RequiredScope::Read, kernel::kernel)
}

/// A row for each call.
fn rows() -> Vec<Row> {
    [calls().rows(), monitor_calls().rows()].concat()
}

/// The required scope of each call of the admin port, for the documentation: method, path, and `nothing`, `any` (key)
/// or the scope. The dashboard's files are one row.
pub fn access() -> Vec<[&'static str; 3]> {
    let is_file = |row: &&Row| row.path.starts_with(OPEN_FOLDER);
    let rows = rows();
    let required_scope = |row: &Row| {
        if row.required_scope == RequiredScope::Nothing {
            "nothing"
        } else {
            row.required_scope.scope()
        }
    };
    let calls = rows.iter().filter(|row| !is_file(row));
    let mut all: Vec<_> = calls.map(|row| [row.method, row.path, required_scope(row)]).collect();
    if let Some(file) = rows.iter().find(is_file) {
        all.push([file.method, "/dashboard/{file}", required_scope(file)]);
    }
    all
}

/// The router of the admin port.
pub(crate) fn router(monitor: Arc<Monitor>) -> Router {
    let node = monitor.node.clone();
    let middleware = Arc::new(Middleware {
        ids: RequestIds::new(),
        gate: node.upgrades.gate.clone(),
        guard: Guard { served: node.clone(), table: Table::new(&rows()) },
    });
    let router = calls()
        .into_router()
        .merge(monitor_calls().into_router().with_state(monitor))
        .fallback(async || {
            let message = "there is no such path: see /api/openapi.json";
            Rejection::new(ErrorCode::NotFound, message)
        })
        .method_not_allowed_fallback(async || {
            let message = "this path does not support this method: see /api/openapi.json";
            Rejection::new(ErrorCode::MethodNotAllowed, message)
        });
    let router = match node.cluster.clone() {
        Some(link) => {
            let shares_retained = node.shared.retained.is_shared();
            let cluster = spread::Cluster { link, shares_retained };
            router.layer(from_fn_with_state(cluster, spread::spread))
        }
        None => router,
    };
    let service = move |route| MiddlewareService { middleware: middleware.clone(), route };
    router.layer(layer_fn(service)).with_state(node)
}

impl From<ShardRequestError> for Rejection {
    fn from(error: ShardRequestError) -> Self {
        match error {
            ShardRequestError::Ended => Rejection::going_down(),
            ShardRequestError::Timeout => Rejection::no_reply(),
        }
    }
}
