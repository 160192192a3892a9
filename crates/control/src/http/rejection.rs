//! What a caller gets instead of a result: `{"error":{"code":…,"message":…}}` with a status.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::{CodedError, Epoch, ErrorCode, Position};
use serde::Serialize;
use utoipa::ToSchema;

/// Why a call is not done, or not known to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub status: StatusCode,
    pub code: ErrorCode,
    pub message: String,
    pub detail: Option<Detail>,
}

/// The code of a response's rejection, for the log.
#[derive(Clone, Copy)]
pub(crate) struct RejectedWith(pub ErrorCode);

/// What a program needs for another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The topic's newest message.
    Last(Position),
    /// The current epoch of ids.
    Epoch(Epoch),
    /// The scope that the caller's key lacks.
    Scope(&'static str),
    /// Seconds until it is worth trying again.
    Wait(u64),
}

/// An error's body.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// Why the call is not done.
    pub error: ErrorText,
}

/// An error, for programs and for people.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorText {
    /// A name that doesn't change.
    #[schema(example = "bad_topic")]
    pub code: &'static str,
    /// What happened, whose fault it is, and what to do.
    pub message: String,
    /// With `newer_message`: the id of the topic's newest message.
    #[schema(example = "5f3a91c2:1042")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// With `epoch_changed`: the current epoch of ids.
    #[schema(example = "5f3a91c2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
}

impl Rejection {
    /// A rejection with the usual status of this code, and a message for people.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::BAD_REQUEST);
        Rejection { status, code, message: message.into(), detail: None }
    }

    /// A rejection with another status than the usual one.
    pub fn with_status(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        let is_known = code.row().statuses.contains(&status.as_u16());
        debug_assert!(is_known, "{code} has no status {status}");
        Rejection { status, code, message: message.into(), detail: None }
    }

    /// The shards have ended.
    pub fn going_down() -> Self {
        let message =
            "the server is going down and did nothing: call another node, or try again later";
        Rejection::new(ErrorCode::GoingDown, message)
    }

    /// The node takes no new connections, for it is at its memory limit.
    pub fn memory_full() -> Self {
        let message = "the server is at its memory limit (limits.memory_bytes_max) and refuses \
                       new connections until it is below the limit again; it serves the open ones";
        Rejection::new(ErrorCode::MemoryFull, message)
    }

    /// The node's store can't write. Callers need no key to see this, so it has no path.
    pub fn store_failed() -> Self {
        let message = "the store can't write, and clients that need it are refused until it can; \
                       the log and GET /api/stats have the reason; open connections are still \
                       served";
        Rejection::new(ErrorCode::StoreFailed, message)
    }

    /// The call requires a key.
    pub fn no_key() -> Self {
        let message = "send an API key: Authorization: Bearer KEY";
        Rejection::new(ErrorCode::NoKey, message)
    }

    /// The caller's key lacks this scope.
    pub fn insufficient_scope(scope: &'static str, message: impl Into<String>) -> Self {
        let rejection = Rejection::new(ErrorCode::InsufficientScope, message);
        Rejection { detail: Some(Detail::Scope(scope)), ..rejection }
    }

    /// Too many sign-ins of this address have failed.
    pub fn too_many_attempts(wait: Duration) -> Self {
        let seconds = wait.as_secs() + 1;
        let message =
            format!("too many sign-ins from this address have failed: try again in {seconds} s");
        let rejection = Rejection::new(ErrorCode::TooManyAttempts, message);
        Rejection { detail: Some(Detail::Wait(seconds)), ..rejection }
    }

    /// The caller's key is above its rate.
    pub fn rate_limited(wait: Duration, message: impl Into<String>) -> Self {
        let rejection = Rejection::new(ErrorCode::RateLimited, message);
        Rejection { detail: Some(Detail::Wait(wait.as_secs() + 1)), ..rejection }
    }

    /// A shard did not reply in time.
    pub fn no_reply() -> Self {
        let message = "a shard is overloaded and did not reply in 5 seconds: it may still carry \
                       out the request; try again later";
        Rejection::new(ErrorCode::NoShardReply, message)
    }

    /// An id has another epoch than this one.
    pub fn epoch_changed(now: Epoch) -> Self {
        let message = "this id has another epoch: it is from before a restart of the server, or \
                       from a topic without history; start again from the messages that are \
                       retained now";
        let rejection = Rejection::new(ErrorCode::EpochChanged, message);
        Rejection { detail: Some(Detail::Epoch(now)), ..rejection }
    }

    /// The topic has a newer message than the caller knew.
    pub fn newer_message(last: Position, message: impl Into<String>) -> Self {
        let rejection = Rejection::new(ErrorCode::NewerMessage, message);
        Rejection { detail: Some(Detail::Last(last)), ..rejection }
    }

    /// Returns the body, for responses that contain several.
    pub fn body(&self) -> ErrorBody {
        let (last, epoch) = match self.detail {
            Some(Detail::Last(id)) => (Some(id.to_string()), None),
            Some(Detail::Epoch(epoch)) => (None, Some(epoch.to_string())),
            Some(Detail::Scope(_) | Detail::Wait(_)) | None => (None, None),
        };
        ErrorBody {
            error: ErrorText { code: self.code.text(), message: self.message.clone(), last, epoch },
        }
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        response.extensions_mut().insert(RejectedWith(self.code));
        let headers = response.headers_mut();
        let authenticate = match (self.status, self.detail) {
            // RFC 6750, 3.1: without an error if there was no key.
            (StatusCode::UNAUTHORIZED, _) if self.code == ErrorCode::NoKey => {
                Some("Bearer".to_owned())
            }
            (StatusCode::UNAUTHORIZED, _) => Some("Bearer error=\"invalid_token\"".to_owned()),
            (_, Some(Detail::Scope(scope))) => {
                Some(format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\""))
            }
            _ => None,
        };
        if let Some(value) = authenticate.and_then(|value| HeaderValue::try_from(value).ok()) {
            headers.insert(header::WWW_AUTHENTICATE, value);
        }
        let wait = match (self.status, self.detail) {
            (_, Some(Detail::Wait(seconds))) => Some(HeaderValue::from(seconds)),
            (StatusCode::SERVICE_UNAVAILABLE, _) => Some(HeaderValue::from_static("1")),
            _ => None,
        };
        if let Some(wait) = wait {
            headers.insert(header::RETRY_AFTER, wait);
        }
        response
    }
}

impl From<CodedError> for Rejection {
    fn from(CodedError { code, message }: CodedError) -> Self {
        Rejection::new(code, message)
    }
}
