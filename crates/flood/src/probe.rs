//! Ordinary requests beside the crowd: does the server still answer, and how soon?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::clock::now_ns;
use crate::crowd::histogram;
use crate::http::Http;
use crate::target::Url;

/// What the probes came to so far.
pub struct Probes {
    /// Answered with 2xx.
    pub good: AtomicU64,
    /// Anything else.
    pub bad: AtomicU64,
    /// Microseconds from due to answer.
    pub times: Mutex<Histogram<u64>>,
    /// Set to end them.
    pub stop: AtomicBool,
}

impl Default for Probes {
    fn default() -> Self {
        Self {
            good: AtomicU64::new(0),
            bad: AtomicU64::new(0),
            times: Mutex::new(histogram()),
            stop: AtomicBool::new(false),
        }
    }
}

/// Starts a thread that gets this URL so many times a second.
///
/// # Errors
/// If no thread can be had.
pub fn start(
    probes: &Arc<Probes>,
    url: Url,
    key: Option<String>,
    per_second: f64,
) -> Result<JoinHandle<()>> {
    let probes = probes.clone();
    std::thread::Builder::new()
        .name("probe".into())
        .spawn(move || run(&probes, &url, key.as_deref(), per_second))
        .context("starting a probe thread")
}

fn run(probes: &Probes, url: &Url, key: Option<&str>, per_second: f64) {
    let mut http = Http::new(url, key);
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
                probes.good.fetch_add(1, Ordering::Relaxed);
                let us = now_ns().saturating_sub(due) / 1_000;
                let mut times = probes.times.lock().unwrap_or_else(PoisonError::into_inner);
                times.saturating_record(us.max(1));
            }
            _ => {
                probes.bad.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
