//! What is to be read from the database, and who waits for it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use history::{Completion, HistoryError, Page, PageQuery, Piece, Pull, Start};
use model::{Name, ResumeRequest};
use tokio::sync::Notify;

/// A reply that somebody waits for: where it is dropped, it is an error.
pub(crate) struct Reply<T>(Option<Completion<T>>);

impl<T> Reply<T> {
    pub fn new(completion: Completion<T>) -> Self {
        Reply(Some(completion))
    }

    pub fn send(mut self, reply: Result<T, HistoryError>) {
        self.complete(reply);
    }

    /// Nobody is to get a reply: another one stands for it.
    fn discard(mut self) {
        self.0 = None;
    }

    fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(Completion::is_awaited)
    }

    fn complete(&mut self, reply: Result<T, HistoryError>) {
        if let Some(completion) = self.0.take() {
            completion.complete(reply);
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let why = "the connection to PostgreSQL broke before there was a reply; try again";
        self.complete(Err(HistoryError::Unavailable(why.into())));
    }
}

/// What is to be read, and who waits for it.
pub(crate) enum Job {
    Start { topics: Vec<(u64, Name)>, request: ResumeRequest, reply: Reply<Start> },
    Read { pull: Pull, reply: Reply<Piece> },
    Page { query: PageQuery, reply: Reply<Page> },
    Delete { topic: Name, reply: Reply<()> },
}

impl Job {
    /// It can't be done.
    pub fn fail(self, error: HistoryError) {
        match self {
            Job::Start { reply, .. } => reply.send(Err(error)),
            Job::Read { reply, .. } => reply.send(Err(error)),
            Job::Page { reply, .. } => reply.send(Err(error)),
            Job::Delete { reply, .. } => reply.send(Err(error)),
        }
    }

    /// Drops a job that was not taken: its requester has been notified.
    fn discard(self) {
        match self {
            Job::Start { reply, .. } => reply.discard(),
            Job::Read { reply, .. } => reply.discard(),
            Job::Page { reply, .. } => reply.discard(),
            Job::Delete { reply, .. } => reply.discard(),
        }
    }

    pub fn is_awaited(&self) -> bool {
        match self {
            Job::Start { reply, .. } => reply.is_awaited(),
            Job::Read { reply, .. } => reply.is_awaited(),
            Job::Page { reply, .. } => reply.is_awaited(),
            Job::Delete { .. } => true,
        }
    }
}

/// Jobs that wait for the reader. None is taken while there is no connection, so that none waits for the next one.
pub(crate) struct Jobs {
    waiting: Mutex<Waiting>,
    /// Wakes the reader.
    added: Notify,
    jobs_max: usize,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

/// Why a job was not taken. Its completion was not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    Full,
    Closed,
}

impl Jobs {
    /// A queue that takes nothing until it is opened.
    pub fn new(jobs_max: usize) -> Self {
        let waiting = Mutex::new(Waiting { is_closed: true, ..Waiting::default() });
        Jobs { waiting, added: Notify::new(), jobs_max }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing in here panics between two changes that belong together.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, job: Job) -> Result<(), NotTaken> {
        let mut waiting = self.lock();
        let not_taken = match (waiting.is_closed, waiting.jobs.len() >= self.jobs_max) {
            (true, _) => NotTaken::Closed,
            (false, true) => NotTaken::Full,
            (false, false) => {
                waiting.jobs.push_back(job);
                drop(waiting);
                self.added.notify_one();
                return Ok(());
            }
        };
        drop(waiting);
        job.discard();
        Err(not_taken)
    }

    /// The next job. The reader alone waits.
    pub async fn next(&self) -> Job {
        loop {
            let next = self.lock().jobs.pop_front();
            match next {
                Some(job) => return job,
                None => self.added.notified().await,
            }
        }
    }

    pub fn open(&self) {
        self.lock().is_closed = false;
    }

    /// Takes nothing more, and gives what waits.
    pub fn close(&self) -> VecDeque<Job> {
        let mut waiting = self.lock();
        waiting.is_closed = true;
        std::mem::take(&mut waiting.jobs)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    type Replies = Arc<Mutex<Vec<Result<(), HistoryError>>>>;

    fn delete(replies: &Replies) -> Job {
        let replies = replies.clone();
        let completion = Completion::new(move |reply| replies.lock().unwrap().push(reply));
        Job::Delete { topic: "a".into(), reply: Reply::new(completion) }
    }

    #[test]
    fn what_is_dropped_gets_one_reply_and_what_is_refused_none() {
        let (jobs, replies) = (Jobs::new(2), Replies::default());
        assert_eq!(jobs.push(delete(&replies)), Err(NotTaken::Closed));
        jobs.open();
        assert_eq!(jobs.push(delete(&replies)), Ok(()));
        assert_eq!(jobs.push(delete(&replies)), Ok(()));
        assert_eq!(jobs.push(delete(&replies)), Err(NotTaken::Full));
        assert!(replies.lock().unwrap().is_empty(), "an error of the call stands for the reply");
        let mut waiting = jobs.close();
        assert_eq!(
            jobs.push(delete(&replies)),
            Err(NotTaken::Closed),
            "it would wait for the next"
        );
        waiting.pop_front().unwrap().fail(HistoryError::Busy);
        assert_eq!(*replies.lock().unwrap(), [Err(HistoryError::Busy)]);
        // As where the task that reads is ended.
        drop(waiting);
        let replies = replies.lock().unwrap();
        assert!(matches!(replies[1], Err(HistoryError::Unavailable(_))) && replies.len() == 2);
    }
}
