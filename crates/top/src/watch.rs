//! What asks the node while the terminal is drawn: one thread for its samples, one for its topics.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::admin::{Admin, Target, Trouble, encoded};
use crate::live::Live;
use crate::sample::{Members, Messages, Past, Sample, Top, TopTopic, Tops};

/// Between two tries to reach a node that is away.
const RETRY: Duration = Duration::from_secs(1);
/// Between two looks at the topics on top.
const TOPS_EVERY: Duration = Duration::from_secs(5);
/// Between two looks at one topic or user.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Topics in a list.
const TOPICS: usize = 40;
/// Connections of a topic or user that are listed.
pub const MEMBERS_MAX: usize = 100;
/// Messages that are listed.
const MESSAGES: usize = 20;

/// A topic or a user to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject(pub String);

impl Subject {
    /// The user, if it is one.
    pub fn user(&self) -> Option<&str> {
        self.0.strip_prefix('@')
    }
}

/// Who is in a topic (or a user's connections), and what was published there.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Who is there.
    pub members: Members,
    /// The newest messages.
    pub messages: Messages,
}

/// What came from the node.
#[derive(Debug)]
pub enum News {
    /// It is there; what it says of itself and of the time before.
    Past(Box<Past>),
    /// A second of it.
    Sample(Box<Sample>),
    /// It is not there any more.
    Away(Trouble),
    /// The topics on top.
    Tops(Result<Tops, Trouble>),
    /// What was asked about a topic or user.
    Look(Subject, Result<Look, Trouble>),
}

/// The threads that ask. They end when what they say is no longer heard, and with the process.
pub struct Watch {
    /// What they found.
    pub news: Receiver<News>,
    look_at: Sender<Option<Subject>>,
    threads: [JoinHandle<()>; 2],
}

impl Watch {
    /// Starts them.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn start(target: &Target) -> std::io::Result<Self> {
        let (sender, news) = channel();
        let (look_at, asked) = channel();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(run)
        };
        let (target, topics, heard) = (target.clone(), Admin::new(target), sender.clone());
        let threads = [
            spawn("samples", Box::new(move || samples(&target, &sender)))?,
            spawn("topics", Box::new(move || ask_topics(topics, &asked, &heard)))?,
        ];
        Ok(Watch { news, look_at, threads })
    }

    /// Asks about this topic or user from now on, or about none.
    pub fn look_at(&self, subject: Option<Subject>) {
        // Fails only when the thread is gone, which `is_broken` tells.
        let _ = self.look_at.send(subject);
    }

    /// True when a thread ended by itself, which only a bug can bring about.
    pub fn is_broken(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }
}

/// Tells samples as long as anybody hears, over as many connections as it takes.
fn samples(target: &Target, news: &Sender<News>) {
    let mut admin = Admin::new(target);
    loop {
        let trouble = match follow(target, &mut admin, news) {
            Ok(()) => return,
            Err(trouble) => trouble,
        };
        if news.send(News::Away(trouble)).is_err() {
            return;
        }
        std::thread::sleep(RETRY);
    }
}

/// Tells the past and then each sample, until the node is away or nobody hears.
fn follow(target: &Target, admin: &mut Admin, news: &Sender<News>) -> Result<(), Trouble> {
    let past = admin.past()?;
    if news.send(News::Past(Box::new(past))).is_err() {
        return Ok(());
    }
    let mut live = Live::open(target)?;
    loop {
        let told = live.next()?;
        if news.send(News::Sample(Box::new(told.sample))).is_err() {
            return Ok(());
        }
    }
}

/// Asks about topics now and then, and at once when another is to be looked at.
fn ask_topics(mut admin: Admin, asked: &Receiver<Option<Subject>>, news: &Sender<News>) {
    let mut subject: Option<Subject> = None;
    let now = Instant::now();
    let (mut tops_due, mut look_due) = (now, now);
    loop {
        if subject.is_some() && Instant::now() >= look_due {
            if let Some(subject) = &subject
                && news.send(News::Look(subject.clone(), look(&mut admin, subject))).is_err()
            {
                return;
            }
            look_due = Instant::now() + LOOK_EVERY;
        }
        if Instant::now() >= tops_due {
            if news.send(News::Tops(tops(&mut admin))).is_err() {
                return;
            }
            tops_due = Instant::now() + TOPS_EVERY;
        }
        let due = if subject.is_some() { tops_due.min(look_due) } else { tops_due };
        match asked.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(other) => {
                subject = other;
                look_due = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The biggest and the busiest topics.
///
/// # Errors
/// What is wrong.
pub fn tops(admin: &mut Admin) -> Result<Tops, Trouble> {
    let mut by = |what: &str| -> Result<Vec<TopTopic>, Trouble> {
        let top: Top = admin.get(&format!("/api/top?by={what}&limit={TOPICS}"))?;
        Ok(top.topics)
    };
    Ok(Tops { biggest: by("members")?, busiest: by("messages")? })
}

fn look(admin: &mut Admin, subject: &Subject) -> Result<Look, Trouble> {
    let name = encoded(&subject.0);
    let members = match subject.user() {
        Some(user) => admin.get(&format!("/api/users/{}?limit={MEMBERS_MAX}", encoded(user)))?,
        None => admin.get(&format!("/api/topics/{name}/members?limit={MEMBERS_MAX}"))?,
    };
    let messages = admin.get(&format!("/api/messages?topic={name}&limit={MESSAGES}"))?;
    Ok(Look { members, messages })
}
