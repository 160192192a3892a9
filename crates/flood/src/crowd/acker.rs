//! Acknowledgements that need a request of their own, `POST /ack`. Each thread of the crowd has one
//! connection to each server for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use admin::{Http, Layer, Url};
use anyhow::{Context, Result};
use serde_json::json;

use super::anomalies::Anomalies;
use super::lock;
use crate::AGENT;

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

/// The results, which both threads share.
#[derive(Default)]
struct Results {
    /// Accepted acknowledgements: the connection's index and the message's number.
    accepted: Mutex<Vec<(u32, u32)>>,
    failed: AtomicU64,
}

/// Makes the requests on a thread of its own.
pub(super) struct Acker {
    jobs: Sender<Job>,
    results: Arc<Results>,
}

impl Acker {
    /// Starts the thread, for these servers and their TLS. It ends when the `Acker` is dropped.
    pub fn start(servers: Vec<(Url, Option<Layer>)>, anomalies: &Arc<Anomalies>) -> Result<Self> {
        let (jobs, waiting) = channel();
        let results = Arc::new(Results::default());
        let (shared, anomalies) = (results.clone(), anomalies.clone());
        std::thread::Builder::new()
            .name("acker".into())
            .spawn(move || work(&servers, &waiting, &shared, &anomalies))
            .context("starting a thread for acknowledgements")?;
        Ok(Self { jobs, results })
    }

    /// Queues an acknowledgement. It counts as failed if the thread has ended.
    pub fn send(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            self.results.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the acknowledgements that were accepted since the last call, each with its connection's
    /// index and its message's number. Also returns how many failed since the start.
    pub fn take(&self) -> (Vec<(u32, u32)>, u64) {
        let accepted = std::mem::take(&mut *lock(&self.results.accepted));
        (accepted, self.results.failed.load(Ordering::Relaxed))
    }
}

fn work(
    servers: &[(Url, Option<Layer>)],
    jobs: &Receiver<Job>,
    results: &Results,
    anomalies: &Anomalies,
) {
    let mut clients: HashMap<usize, Http> = HashMap::new();
    while let Ok(Job { server, index, number, user, id }) = jobs.recv() {
        let Some((url, layer)) = servers.get(server) else {
            continue;
        };
        let connect = || Http::new(url, None, AGENT).with_layer(layer.clone());
        let http = clients.entry(server).or_insert_with(connect);
        let body = json!({"user": user, "id": id}).to_string();
        match http.request("POST", "/ack", "application/json", &body) {
            Ok((200..300, _)) => {
                lock(&results.accepted).push((index, number));
            }
            refused => {
                let why = match refused {
                    Ok((status, body)) => admin::refusal(status, &body),
                    Err(error) => format!("{error:#}"),
                };
                anomalies.cause(format!("acknowledgement: {why}"));
                results.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
