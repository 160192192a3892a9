//! The server's TLS certificates, and how long they are valid.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::monitor::process::unix_us;
use crate::node::Node;

const DAY: u64 = 86_400;

/// The server's TLS certificates. Empty if no port has TLS.
#[derive(Serialize, ToSchema)]
pub(crate) struct CertificateList {
    /// In the order of the configuration.
    certificates: Vec<CertificateState>,
}

/// A certificate of the server.
#[derive(Serialize, ToSchema)]
struct CertificateState {
    /// Its first alternative name, or its common name.
    name: String,
    /// The last second in which it is valid, since 1970; 0 for a certificate that the server has signed itself until an
    /// authority signs one.
    not_after: u64,
    /// Whole days until then; 0 in its last day, and when it has expired.
    days_left: u64,
    /// Whether to renew it: it ends within 14 days, or within a quarter of its lifetime if that is less.
    ends_soon: bool,
}

/// The TLS certificates of this node as it uses them now, and the days that they are still valid.
#[utoipa::path(get, path = "/api/certificates", tag = "operate", responses(
    (status = 200, body = CertificateList)))]
pub(crate) async fn certificates(State(node): State<Arc<Node>>) -> Json<CertificateList> {
    let now = unix_us() / 1_000_000;
    let state = |certificate: crate::Certificate| CertificateState {
        ends_soon: now >= certificate.renew_at,
        days_left: certificate.not_after.saturating_sub(now) / DAY,
        name: certificate.name,
        not_after: certificate.not_after,
    };
    Json(CertificateList { certificates: node.certificates.get().into_iter().map(state).collect() })
}
