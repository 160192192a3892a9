//! HTTP on the admin port, below the calls: connections, access, how a request is read, and rejections.
//!
//! This module knows no call of the API. It reaches the node through [`Served`].

pub(crate) mod access;
pub(crate) mod admission;
mod cookie;
pub(crate) mod gate;
pub(crate) mod guard;
pub(crate) mod host;
pub(crate) mod listener;
pub(crate) mod middleware;
pub(crate) mod origin;
mod rejection;
mod request;
mod socket;
pub(crate) mod trace;

pub(crate) use rejection::{ErrorBody, Rejection};
pub(crate) use request::{
    Body, OpenBody, QueryParams, check_media, checked_limit, parse, path_name, whole_body,
};

use access::Access;
use admission::Connections;
use axum::http::{HeaderName, header};
use quotas::Quotas;

/// Tells an nginx in front whether to buffer the response.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Returns the headers of a response that is a stream: no proxy may delay or compress it.
pub(crate) fn stream_headers(media_type: &'static str) -> [(HeaderName, &'static str); 3] {
    [
        (header::CONTENT_TYPE, media_type),
        (header::CACHE_CONTROL, "no-store, no-transform"),
        (X_ACCEL_BUFFERING, "no"),
    ]
}

/// The node, as far as this port needs it.
pub(crate) trait Served: Send + Sync + 'static {
    /// The keys and sessions that may call.
    fn access(&self) -> &Access;

    /// The largest body of a request, in bytes.
    fn body_bytes_max(&self) -> usize;

    /// The connections to the port.
    fn connections(&self) -> &Connections;

    /// The recent use of keys.
    fn quotas(&self) -> &Quotas;

    /// The time of the node's clock, in microseconds.
    fn now_us(&self) -> u64;
}
