//! HTTP on the admin port, below the calls: who may connect, who may call, how a request is read,
//! and what a caller gets instead of a result.
//!
//! Nothing here knows a call of the API. What it needs of the node comes through [`Served`].

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
use quotas::Quotas;

/// What this port needs of the node that it serves.
pub(crate) trait Served: Send + Sync + 'static {
    /// Who may call.
    fn access(&self) -> &Access;

    /// The largest body of a request, in bytes.
    fn body_bytes_max(&self) -> usize;

    /// Who is connected to the port.
    fn connections(&self) -> &Connections;

    /// What keys have used lately.
    fn quotas(&self) -> &Quotas;

    /// The time of the node's clock, in microseconds.
    fn now_us(&self) -> u64;
}
