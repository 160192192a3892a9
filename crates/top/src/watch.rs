//! The threads that poll the node while the screen is drawn: one for its samples, one for its topics.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use admin::{Admin, AdminError, Target, encoded};

use crate::AGENT;
use crate::live::Live;
use crate::sample::{History, Members, Messages, Noisiest, Sample, Top, TopTopic, Tops};

/// The time between two attempts to reach a node that is away.
const RETRY: Duration = Duration::from_secs(1);
/// The time between two polls of the top topics.
const TOPS_EVERY: Duration = Duration::from_secs(5);
/// The time between two polls of one topic or user.
const DETAILS_EVERY: Duration = Duration::from_secs(2);
/// Topics in a list.
const TOPICS: usize = 40;
/// Connections in the list of a topic or user.
pub const MEMBERS_MAX: usize = 100;
/// Messages in the list.
const MESSAGES: usize = 20;

/// The name of a topic or a user, with `@` before a user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject(pub String);

impl Subject {
    /// Returns the user, if the subject is a user.
    pub fn user(&self) -> Option<&str> {
        self.0.strip_prefix('@')
    }
}

/// The connections and messages of a topic or a user.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// The connections.
    pub members: Members,
    /// The newest messages.
    pub messages: Messages,
}

/// An update from the node.
#[derive(Debug)]
pub enum Update {
    /// The node responds; its last 15 minutes.
    History(Box<History>),
    /// One second of the node.
    Sample(Box<Sample>),
    /// The node can't be reached.
    Away(AdminError),
    /// The top topics.
    Tops(Result<Tops, AdminError>),
    /// The details of a topic or user.
    Details(Subject, Result<Details, AdminError>),
}

/// The polling threads. They end when the receiver of their updates is dropped.
pub struct Watch {
    /// Their updates.
    pub updates: Receiver<Update>,
    inspect: Sender<Option<Subject>>,
    threads: [JoinHandle<()>; 2],
}

impl Watch {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system can't start a thread.
    pub fn start(target: &Target) -> std::io::Result<Self> {
        let (sender, updates) = channel();
        let (inspect, inspected) = channel();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(run)
        };
        let (target, topics, poller) = (target.clone(), Admin::new(target, AGENT), sender.clone());
        let threads = [
            spawn("samples", Box::new(move || samples(&target, &sender)))?,
            spawn("topics", Box::new(move || poll_topics(topics, &inspected, &poller)))?,
        ];
        Ok(Watch { updates, inspect, threads })
    }

    /// Polls the details of this topic or user from now on, or of none.
    pub fn inspect(&self, subject: Option<Subject>) {
        // This fails only when the thread has ended, which `has_ended` shows.
        let _ = self.inspect.send(subject);
    }

    /// Returns true when a thread has ended by itself, which only a bug can cause.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }
}

/// Sends samples as long as the receiver exists, and reconnects when it must.
fn samples(target: &Target, updates: &Sender<Update>) {
    let mut admin = Admin::new(target, AGENT);
    loop {
        let error = match follow(target, &mut admin, updates) {
            Ok(()) => return,
            Err(error) => error,
        };
        if updates.send(Update::Away(error)).is_err() {
            return;
        }
        std::thread::sleep(RETRY);
    }
}

/// Sends the history and then each sample, until the node is away or the receiver is dropped.
fn follow(target: &Target, admin: &mut Admin, updates: &Sender<Update>) -> Result<(), AdminError> {
    let history = admin.get("/api/samples")?;
    if updates.send(Update::History(Box::new(history))).is_err() {
        return Ok(());
    }
    let mut live = Live::open(target)?;
    loop {
        let latest = live.next()?;
        if updates.send(Update::Sample(Box::new(latest.sample))).is_err() {
            return Ok(());
        }
    }
}

/// Polls the topics now and then, and at once when the user inspects another one.
fn poll_topics(mut admin: Admin, inspected: &Receiver<Option<Subject>>, updates: &Sender<Update>) {
    let mut subject: Option<Subject> = None;
    let now = Instant::now();
    let (mut tops_due, mut details_due) = (now, now);
    loop {
        if subject.is_some() && Instant::now() >= details_due {
            if let Some(subject) = &subject
                && updates
                    .send(Update::Details(subject.clone(), details(&mut admin, subject)))
                    .is_err()
            {
                return;
            }
            details_due = Instant::now() + DETAILS_EVERY;
        }
        if Instant::now() >= tops_due {
            if updates.send(Update::Tops(tops(&mut admin))).is_err() {
                return;
            }
            tops_due = Instant::now() + TOPS_EVERY;
        }
        let due = if subject.is_some() { tops_due.min(details_due) } else { tops_due };
        match inspected.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(other) => {
                subject = other;
                details_due = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Requests the top topics, the slowest connections, the noisiest users, addresses and keys, and the kernel's report.
///
/// # Errors
/// If the node can't be reached or does not respond as expected.
pub fn tops(admin: &mut Admin) -> Result<Tops, AdminError> {
    let mut by = |what: &str| -> Result<Vec<TopTopic>, AdminError> {
        let top: Top = admin.get(&format!("/api/top?by={what}&limit={TOPICS}"))?;
        Ok(top.topics)
    };
    let (biggest, busiest) = (by("members")?, by("messages")?);
    // An older node doesn't have these.
    let by_deliveries = by("deliveries").unwrap_or_default();
    let by_bytes = by("bytes").unwrap_or_default();
    let slowest = admin.get(&format!("/api/slowest?limit={TOPICS}")).ok();
    let noisiest = admin.get::<Noisiest>(&format!("/api/noisiest?limit={TOPICS}"));
    let noisiest = noisiest.map(|found| found.noisiest).unwrap_or_default();
    let kernel = admin.get("/api/kernel").ok().map(Box::new);
    Ok(Tops { biggest, busiest, by_deliveries, by_bytes, slowest, noisiest, kernel })
}

fn details(admin: &mut Admin, subject: &Subject) -> Result<Details, AdminError> {
    let name = encoded(&subject.0);
    let members = match subject.user() {
        Some(user) => admin.get(&format!("/api/users/{}?limit={MEMBERS_MAX}", encoded(user)))?,
        None => admin.get(&format!("/api/topics/{name}/members?limit={MEMBERS_MAX}"))?,
    };
    let messages = admin.get(&format!("/api/messages?topic={name}&limit={MESSAGES}"))?;
    Ok(Details { members, messages })
}
