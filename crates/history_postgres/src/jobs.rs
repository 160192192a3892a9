//! The queue of requests that need the database.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use history::{Completion, HistoryError, Matching, Page, PageQuery, Piece, Pull, Start};
use history_local::TopicSearch;
use model::{Name, ResumeRequest};
use tokio::sync::Notify;

/// A reply that a requester waits for. If it is dropped unsent, the requester gets an error.
pub(crate) struct Reply<T>(Option<Completion<T>>);

impl<T> Reply<T> {
    pub fn new(completion: Completion<T>) -> Self {
        Reply(Some(completion))
    }

    pub fn send(mut self, reply: Result<T, HistoryError>) {
        self.complete(reply);
    }

    /// Drops the completion without a reply: the requester gets an error in another way.
    fn discard(mut self) {
        self.0 = None;
    }

    /// Returns true while the requester waits for the reply.
    pub fn is_awaited(&self) -> bool {
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

/// A request that needs the database, and its reply.
pub(crate) enum Job {
    Start { topics: Vec<(u64, Name)>, request: ResumeRequest, reply: Reply<Start> },
    Read { pull: Pull, reply: Reply<Piece> },
    Matching { search: Box<TopicSearch>, reply: Reply<Matching> },
    Page { query: PageQuery, reply: Reply<Page> },
    Delete { topic: Name, reply: Reply<()> },
}

impl Job {
    /// Replies with an error.
    pub fn fail(self, error: HistoryError) {
        match self {
            Job::Start { reply, .. } => reply.send(Err(error)),
            Job::Read { reply, .. } => reply.send(Err(error)),
            Job::Matching { reply, .. } => reply.send(Err(error)),
            Job::Page { reply, .. } => reply.send(Err(error)),
            Job::Delete { reply, .. } => reply.send(Err(error)),
        }
    }

    /// Drops a job that the queue rejected, without a reply: the requester gets the error of `push`.
    fn discard(self) {
        match self {
            Job::Start { reply, .. } => reply.discard(),
            Job::Read { reply, .. } => reply.discard(),
            Job::Matching { reply, .. } => reply.discard(),
            Job::Page { reply, .. } => reply.discard(),
            Job::Delete { reply, .. } => reply.discard(),
        }
    }

    pub fn is_awaited(&self) -> bool {
        match self {
            Job::Start { reply, .. } => reply.is_awaited(),
            Job::Read { reply, .. } => reply.is_awaited(),
            Job::Matching { reply, .. } => reply.is_awaited(),
            Job::Page { reply, .. } => reply.is_awaited(),
            Job::Delete { .. } => true,
        }
    }
}

/// Jobs that wait for the reader. While there is no connection the queue rejects jobs, so that none waits for the
/// next connection.
pub(crate) struct Jobs {
    pending: Mutex<PendingJobs>,
    /// Wakes the reader.
    added: Notify,
    jobs_max: usize,
}

#[derive(Default)]
struct PendingJobs {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

/// Why the queue rejected a job, whose completion was not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    Full,
    Closed,
}

impl Jobs {
    /// Creates a queue that rejects all jobs until it is opened.
    pub fn new(jobs_max: usize) -> Self {
        let pending = Mutex::new(PendingJobs { is_closed: true, ..PendingJobs::default() });
        Jobs { pending, added: Notify::new(), jobs_max }
    }

    fn lock(&self) -> MutexGuard<'_, PendingJobs> {
        // A poisoned lock has consistent content: no code panics between two changes that belong together.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, job: Job) -> Result<(), NotTaken> {
        let mut pending = self.lock();
        let not_taken = match (pending.is_closed, pending.jobs.len() >= self.jobs_max) {
            (true, _) => NotTaken::Closed,
            (false, true) => NotTaken::Full,
            (false, false) => {
                pending.jobs.push_back(job);
                drop(pending);
                self.added.notify_one();
                return Ok(());
            }
        };
        drop(pending);
        job.discard();
        Err(not_taken)
    }

    /// Returns the next job. Only the reader calls this.
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

    /// Rejects all jobs from now on, and returns those that wait.
    pub fn close(&self) -> VecDeque<Job> {
        let mut pending = self.lock();
        pending.is_closed = true;
        std::mem::take(&mut pending.jobs)
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
        let mut pending = jobs.close();
        assert_eq!(
            jobs.push(delete(&replies)),
            Err(NotTaken::Closed),
            "it would wait for the next"
        );
        pending.pop_front().unwrap().fail(HistoryError::Busy);
        assert_eq!(*replies.lock().unwrap(), [Err(HistoryError::Busy)]);
        // The reader's tasks drop their jobs like this when they are aborted.
        drop(pending);
        let replies = replies.lock().unwrap();
        assert!(matches!(replies[1], Err(HistoryError::Unavailable(_))) && replies.len() == 2);
    }
}
