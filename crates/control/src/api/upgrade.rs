//! Begins an upgrade to another binary, and reports its progress.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body as Streamed, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::stream;
use model::ErrorCode;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::http::listener::On;
use crate::http::{Body, ErrorBody, Rejection, stream_headers};
use crate::node::Node;
use crate::upgrade::{UpgradeProgress, UpgradeRejection, UpgradeRequest, UpgradeState};

/// Time between two lines while much changes.
const LINE_REST: Duration = Duration::from_millis(100);

/// Time between two lines while nothing changes: the reader sees that the response continues.
const LINE_MAX: Duration = Duration::from_secs(5);

impl From<UpgradeRejection> for Rejection {
    fn from(error: UpgradeRejection) -> Self {
        let code = match error {
            UpgradeRejection::UnderWay => ErrorCode::UpgradeUnderWay,
            UpgradeRejection::Draining => ErrorCode::DrainUnderWay,
            UpgradeRejection::Ending(_) => ErrorCode::GoingDown,
            UpgradeRejection::Bad(_) => ErrorCode::BadUpgrade,
        };
        Rejection::new(code, error.to_string())
    }
}

/// How far an upgrade is, or the result of the last one. The process that it started reports this, too.
#[utoipa::path(get, path = "/api/upgrade", tag = "operate", responses(
    (status = 200, body = UpgradeState)))]
pub(crate) async fn progress(State(node): State<Arc<Node>>) -> Json<UpgradeState> {
    Json(node.upgrades.progress().into())
}

/// Go on with another binary, and keep every connection. The response is a line of JSON for each step, and the last
/// line has a `result`. Until the new process serves, the old one serves on after every failure. A caller that closes
/// the response doesn't end the upgrade.
#[utoipa::path(post, path = "/api/upgrade", tag = "operate", request_body = UpgradeRequest, responses(
    (status = 200, body = UpgradeState, content_type = "application/x-ndjson"),
    (status = 400, body = ErrorBody, description = "The binary does not exist, or other users can write to it"),
    (status = 409, body = ErrorBody, description = "An upgrade is under way, or the node drains"),
    (status = 501, body = ErrorBody, description = "This server can't be upgraded while it runs")))]
pub(crate) async fn begin(
    State(node): State<Arc<Node>>,
    on: Option<Extension<ConnectInfo<On>>>,
    Body(request): Body<UpgradeRequest>,
) -> Result<Response, Rejection> {
    let Some(upgrader) = &node.upgrades.upgrader else {
        let message = "this server can't be upgraded while it runs: restart it";
        return Err(Rejection::new(ErrorCode::NoUpgrade, message));
    };
    upgrader.begin(request)?;
    if let Some(Extension(ConnectInfo(On(peer, ..)))) = on {
        peer.set_stream();
    }
    let reader = Reader { progress: upgrader.progress(), last_sent: None, is_finished: false };
    let lines = stream::unfold(reader, Reader::next);
    Ok((stream_headers("application/x-ndjson"), Streamed::from_stream(lines)).into_response())
}

/// The body of the response, up to the end of the upgrade.
struct Reader {
    progress: watch::Receiver<UpgradeProgress>,
    /// The content of the last line.
    last_sent: Option<UpgradeProgress>,
    is_finished: bool,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if self.is_finished {
            return None;
        }
        if let Some(last_sent) = &self.last_sent {
            // The last line comes at once.
            let end = self.progress.wait_for(|now| now.stage.is_rest());
            let _ = timeout(LINE_REST, end).await;
            // After this time, or when the upgrader is gone, the same line comes again.
            let _ = timeout(LINE_MAX, self.progress.wait_for(|now| now != last_sent)).await;
        }
        let now = self.progress.borrow().clone();
        self.last_sent = Some(now.clone());
        let state = UpgradeState::from(now);
        self.is_finished = state.result.is_some() || self.progress.has_changed().is_err();
        let mut line = serde_json::to_vec(&state).unwrap_or_default();
        line.push(b'\n');
        Some((Ok(line.into()), self))
    }
}
