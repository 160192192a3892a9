//! The span of a call that publishes.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;

use crate::http::Rejection;
use crate::node::Node;
use crate::spans::{ActiveSpan, SpanContext};

/// The trace context of the caller. `None` also if the node makes no spans: it does not read the header then.
pub(crate) struct CallerContext(Option<SpanContext>);

impl FromRequestParts<Arc<Node>> for CallerContext {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, node: &Arc<Node>) -> Result<Self, Rejection> {
        let makes_spans = node.tracer.is_some();
        Ok(CallerContext(makes_spans.then(|| SpanContext::from_headers(&parts.headers)).flatten()))
    }
}

/// Begins the span of a call, if it is recorded.
pub(super) fn begin_span(
    node: &Node,
    name: &'static str,
    CallerContext(caller): CallerContext,
) -> Option<ActiveSpan> {
    let mut span = node.tracer.as_ref()?.serve(name, caller)?;
    span.set_text("messaging.system", "throng");
    span.set_text("http.request.method", "POST");
    Some(span)
}

/// Ends the span of a call that has this result. By OpenTelemetry's conventions for HTTP, a status of 4xx is the
/// caller's error, and not the span's.
pub(super) fn end_span<T>(span: Option<ActiveSpan>, result: &Result<T, Rejection>) {
    let Some(mut span) = span else { return };
    let status = result.as_ref().map_or_else(|rejection| rejection.status, |_| StatusCode::OK);
    span.set_number("http.response.status_code", status.as_u16().into());
    if let Err(rejection) = result {
        span.set_text("error.type", rejection.code.text());
        if status.is_server_error() {
            span.set_error(&*rejection.message);
        }
    }
    span.end();
}
