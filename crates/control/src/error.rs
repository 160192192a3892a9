//! Every error as `{"error":{"code":…,"message":…}}` with its status.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
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
}

pub(crate) fn refused(
    status: StatusCode,
    code: &'static str,
    message: impl Into<String>,
) -> Refused {
    Refused { status, code, message: message.into() }
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

    /// A shard doesn't answer in time.
    pub fn silent() -> Self {
        let message = "a shard is so busy that it did not answer in 5 seconds: what was asked may \
                       still be done; try again later";
        refused(StatusCode::SERVICE_UNAVAILABLE, "no_answer", message)
    }

    pub fn body(&self) -> ErrorBody {
        ErrorBody { error: ErrorText { code: self.code, message: self.message.clone() } }
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
