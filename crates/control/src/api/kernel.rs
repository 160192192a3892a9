//! What the kernel dropped, and which of its resources run short.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use kernel::{Finding, KernelStats};
use serde::Serialize;
use utoipa::ToSchema;

use crate::monitor::Monitor;

/// What went wrong in the last 15 minutes, and the kernel's stats.
#[derive(Serialize, ToSchema)]
pub(crate) struct KernelReport {
    /// An id of the running kernel and the network namespace. Processes with the same id see the same counters.
    kernel_id: Option<String>,
    /// How many seconds the findings cover: at most 900, and not more than the server runs.
    seconds: u64,
    /// What went wrong in this time, or is wrong now, the gravest first. Empty on a healthy host.
    findings: Vec<Finding>,
    /// The kernel's counters and tables at this moment; null is what this kernel does not report.
    stats: KernelStats,
}

/// What the kernel of this node's host dropped in the last 15 minutes, what runs short, and what to do.
/// Its counters count for all programs of the host, or of the container.
#[utoipa::path(get, path = "/api/kernel", tag = "operate", responses(
    (status = 200, body = KernelReport)))]
pub(crate) async fn kernel(State(monitor): State<Arc<Monitor>>) -> Json<KernelReport> {
    let window = monitor.kernel();
    Json(KernelReport {
        kernel_id: kernel::kernel_id(),
        seconds: window.seconds(),
        findings: window.findings(),
        stats: window.newest(),
    })
}
