//! Retries of the senders of events and of forwarded messages: each request has a time limit, and is sent again
//! after ever longer pauses until it is taken.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::error::{ErrorKind, RequestError};

/// The pauses after failures: each is twice as long as the one before.
pub(super) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// The pause after the first failure, and the longest one.
    pub const fn new(min: Duration, max: Duration) -> Self {
        Backoff { min, max, next: min }
    }

    /// Begins again with the shortest pause.
    pub fn reset(&mut self) {
        self.next = self.min;
    }

    /// Returns when a request that has just failed is sent again, and doubles the next pause.
    pub fn retry_at(&mut self) -> Instant {
        let at = Instant::now() + self.next;
        self.next = (self.next * 2).min(self.max);
        at
    }
}

/// Waits for the reply to a request, at most for `timeout` and not beyond `end`, the end of the node.
pub(super) async fn within<T>(
    timeout: Duration,
    end: Option<Instant>,
    request: impl Future<Output = Result<T, RequestError>>,
) -> Result<T, RequestError> {
    let deadline = Instant::now() + timeout;
    let deadline = end.map_or(deadline, |end| end.min(deadline));
    timeout_at(deadline, request).await.unwrap_or_else(|_| {
        Err(RequestError::new(ErrorKind::Timeout, format!("no answer within {timeout:?}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_something_is_taken() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 5 * second);
        let mut pause = || backoff.retry_at() - Instant::now();
        assert_eq!([pause(), pause(), pause(), pause()], [1, 2, 4, 5].map(|it| it * second));
        backoff.reset();
        assert_eq!(backoff.retry_at() - Instant::now(), second);
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_outlives_its_time_or_the_end() {
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        for (end, want) in [(None, 3), (Some(1), 4), (Some(9), 7)] {
            let end = end.map(|seconds| Instant::now() + seconds * second);
            let error = within::<()>(3 * second, end, std::future::pending()).await.unwrap_err();
            assert_eq!((error.kind, &*error.cause), (ErrorKind::Timeout, "no answer within 3s"));
            assert_eq!(began.elapsed(), want * second);
        }
        assert_eq!(within(second, None, async { Ok(7) }).await, Ok(7));
    }
}
