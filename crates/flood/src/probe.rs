//! Ordinary requests beside the crowd. They show whether the server still responds, and how soon.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use admin::{Http, Layer, Url};
use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::AGENT;
use crate::clock::now_ns;
use crate::crowd::{histogram, lock};

/// The results of the probes so far.
pub struct Probes {
    /// Requests with a 2xx response.
    pub succeeded: AtomicU64,
    /// All other requests.
    pub failed: AtomicU64,
    /// Microseconds from the time when a request was due to its response.
    pub times: Mutex<Histogram<u64>>,
    /// Set to end all probes.
    pub stop: AtomicBool,
}

impl Default for Probes {
    fn default() -> Self {
        Self {
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            times: Mutex::new(histogram()),
            stop: AtomicBool::new(false),
        }
    }
}

/// Starts a thread that requests this URL `per_second` times a second, with a layer on its connection if it has one.
///
/// # Errors
/// If the system can't start the thread.
pub fn start(
    probes: &Arc<Probes>,
    (url, layer): (Url, Option<Layer>),
    key: Option<String>,
    per_second: f64,
) -> Result<JoinHandle<()>> {
    let probes = probes.clone();
    std::thread::Builder::new()
        .name("probe".into())
        .spawn(move || {
            let http = Http::new(&url, key.as_deref(), AGENT).with_layer(layer);
            run(&probes, http, &url, per_second);
        })
        .context("starting a probe thread")
}

fn run(probes: &Probes, mut http: Http, url: &Url, per_second: f64) {
    let path = if url.path.is_empty() { "/" } else { &url.path };
    let begin = now_ns();
    let period_ns = 1e9 / per_second;
    let mut at = 0u64;
    while !probes.stop.load(Ordering::Relaxed) {
        let due = begin + (period_ns * at as f64) as u64;
        let now = now_ns();
        if due > now {
            std::thread::sleep(Duration::from_nanos(due - now).min(Duration::from_millis(100)));
            continue;
        }
        at += 1;
        match http.request("GET", path, "text/plain", "") {
            Ok((200..300, _)) => {
                probes.succeeded.fetch_add(1, Ordering::Relaxed);
                let us = now_ns().saturating_sub(due) / 1_000;
                lock(&probes.times).saturating_record(us.max(1));
            }
            _ => {
                probes.failed.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
