//! Acknowledgements that take a request of their own, `POST /ack`, one connection to each server
//! for each thread of the crowd.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use serde_json::json;

use crate::http::Http;
use crate::target::Url;

/// One acknowledgement.
pub(super) struct Job {
    /// The server's index.
    pub server: usize,
    /// The connection's index, and the number of the message.
    pub index: u32,
    pub number: u32,
    pub user: String,
    pub id: String,
}

/// What both ends share.
#[derive(Default)]
struct Done {
    /// Connections' indexes and messages' numbers.
    taken: Mutex<Vec<(u32, u32)>>,
    failed: AtomicU64,
}

/// Makes the requests on a thread of its own.
pub(super) struct Acker {
    jobs: Sender<Job>,
    done: Arc<Done>,
}

impl Acker {
    /// Starts the thread; it ends with this.
    pub fn start(servers: &[Url]) -> Result<Self> {
        let (jobs, waiting) = channel();
        let done = Arc::new(Done::default());
        let (servers, theirs) = (servers.to_vec(), done.clone());
        std::thread::Builder::new()
            .name("acker".into())
            .spawn(move || work(&servers, &waiting, &theirs))
            .context("starting a thread for acknowledgements")?;
        Ok(Self { jobs, done })
    }

    /// Queues one. It counts as failed when the thread is gone.
    pub fn send(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            self.done.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Those that were taken since this was last asked, and how many failed in all.
    pub fn take(&self) -> (Vec<(u32, u32)>, u64) {
        let mut taken = self.done.taken.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut *taken), self.done.failed.load(Ordering::Relaxed))
    }
}

fn work(servers: &[Url], jobs: &Receiver<Job>, done: &Done) {
    let mut clients: HashMap<usize, Http> = HashMap::new();
    while let Ok(Job { server, index, number, user, id }) = jobs.recv() {
        let Some(url) = servers.get(server) else {
            continue;
        };
        let http = clients.entry(server).or_insert_with(|| Http::new(url, None));
        let body = json!({"user": user, "id": id}).to_string();
        match http.request("POST", "/ack", "application/json", &body) {
            Ok((200..300, _)) => {
                done.taken.lock().unwrap_or_else(PoisonError::into_inner).push((index, number));
            }
            Ok(_) | Err(_) => {
                done.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
