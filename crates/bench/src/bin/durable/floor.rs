//! Measures the disk itself: appends messages to a bare file, and syncs each before the next.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::report::latency_histogram;
use flood::clock::{now_ns, process_cpu};

use crate::PAYLOAD;
use crate::load::{Measured, Span, Usage};
use crate::server::written_bytes;

/// Appends for the span. This thread is both server and client; the server's figures are its own.
///
/// # Errors
/// If the file can't be written.
pub(crate) fn run(dir: &Path, span: Span) -> Result<Measured> {
    let path = dir.join("floor");
    let mut file = File::create(&path).with_context(|| path.display().to_string())?;
    let usage = || -> Result<Usage> {
        let pid = std::process::id();
        Ok(Usage { cpu: process_cpu(pid)?, written_bytes: written_bytes(pid)? })
    };
    let (mut total, mut published) = (0, 0);
    let mut latency = latency_histogram();
    let warm_ns = now_ns() + span.warm_up.as_nanos() as u64;
    let mut append = || -> Result<u64> {
        let begin = now_ns();
        file.write_all(PAYLOAD.as_bytes()).context("appending")?;
        file.sync_data().context("fdatasync")?;
        Ok(now_ns() - begin)
    };
    while now_ns() < warm_ns {
        append()?;
        total += 1;
    }
    let (start_ns, before) = (now_ns(), usage()?);
    let end_ns = start_ns + span.measured.as_nanos() as u64;
    while now_ns() < end_ns {
        latency.saturating_record(append()?);
        published += 1;
    }
    let (time, after) = (Duration::from_nanos(now_ns() - start_ns), usage()?);
    std::fs::remove_file(&path).context("the bare file")?;
    Ok(Measured {
        time,
        published,
        refused: 0,
        total: total + published,
        latency,
        server: Usage {
            cpu: after.cpu.saturating_sub(before.cpu),
            written_bytes: after.written_bytes - before.written_bytes,
        },
        client_cpu: Duration::ZERO,
    })
}
