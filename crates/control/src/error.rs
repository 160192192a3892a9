//! Every error as `{"error":{"code":…,"message":…}}` with its status.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use broker::PublishError;
use serde::Serialize;
use utoipa::ToSchema;
use wire::{Epoch, Id};

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    pub place: Option<Place>,
}

/// What a program needs to try again in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The topic's newest message.
    Last(Id),
    /// The life of the numbering now.
    Epoch(Epoch),
}

/// An error's body.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What went wrong.
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
    /// With `epoch_changed`: the epoch of the ids that count now.
    #[schema(example = "5f3a91c2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
}

pub(crate) fn refused(
    status: StatusCode,
    code: &'static str,
    message: impl Into<String>,
) -> Refused {
    Refused { status, code, message: message.into(), place: None }
}

pub(crate) fn bad(code: &'static str, message: impl Into<String>) -> Refused {
    refused(StatusCode::BAD_REQUEST, code, message)
}

impl Refused {
    /// The shards have ended, or don't answer.
    pub fn gone() -> Self {
        let message = "the server is going down: nothing was done; ask another node or try later";
        refused(StatusCode::SERVICE_UNAVAILABLE, "going_down", message)
    }

    /// New connections are refused for memory.
    pub fn memory() -> Self {
        let message = "the server is at its memory limit (limits.memory_bytes_max) and refuses new \
                       connections until it is below it again; those that it has are served";
        refused(StatusCode::SERVICE_UNAVAILABLE, "memory_full", message)
    }

    /// A shard doesn't answer in time.
    pub fn silent() -> Self {
        let message = "a shard is so busy that it did not answer in 5 seconds: what was asked may \
                       still be done; try again later";
        refused(StatusCode::SERVICE_UNAVAILABLE, "no_answer", message)
    }

    /// An id is of another numbering than this one.
    pub fn epoch(now: Epoch) -> Self {
        let message = "this id is of another numbering, from before the server's restart or of a \
                       topic without history: begin anew with what is kept now";
        let refused = refused(StatusCode::CONFLICT, "epoch_changed", message);
        Refused { place: Some(Place::Epoch(now)), ..refused }
    }

    pub fn body(&self) -> ErrorBody {
        let (last, epoch) = match self.place {
            Some(Place::Last(id)) => (Some(id.to_string()), None),
            Some(Place::Epoch(epoch)) => (None, Some(epoch.to_string())),
            None => (None, None),
        };
        ErrorBody {
            error: ErrorText { code: self.code, message: self.message.clone(), last, epoch },
        }
    }
}

impl From<PublishError> for Refused {
    fn from(error: PublishError) -> Self {
        let message = error.to_string();
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        match error {
            PublishError::Overloaded => refused(unavailable, "overloaded", message),
            PublishError::StoreBusy => refused(unavailable, "store_busy", message),
            PublishError::StoreFailed(_) => refused(unavailable, "store_failed", message),
            PublishError::StoreDamaged(_) => refused(unavailable, "store_damaged", message),
            PublishError::NoHistory => bad("no_history", message),
            PublishError::Newer(id) => {
                let refused = refused(StatusCode::CONFLICT, "newer_message", message);
                Refused { place: Some(Place::Last(id)), ..refused }
            }
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
