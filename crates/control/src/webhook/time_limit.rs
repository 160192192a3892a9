//! The time limit of each request of the senders of events and of forwarded messages.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::error::{ErrorKind, RequestError};

/// Waits for the reply to a request, at most for `timeout` and not beyond `end`, the end of the node.
pub(super) async fn within<T>(
    timeout: Duration,
    end: Option<Instant>,
    request: impl Future<Output = Result<T, RequestError>>,
) -> Result<T, RequestError> {
    let deadline = Instant::now() + timeout;
    let deadline = end.map_or(deadline, |end| end.min(deadline));
    timeout_at(deadline, request).await.unwrap_or_else(|_| {
        Err(RequestError::new(ErrorKind::Timeout, format!("no response within {timeout:?}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_request_outlives_its_time_or_the_end() {
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        for (end, want) in [(None, 3), (Some(1), 4), (Some(9), 7)] {
            let end = end.map(|seconds| Instant::now() + seconds * second);
            let error = within::<()>(3 * second, end, std::future::pending()).await.unwrap_err();
            assert_eq!((error.kind, &*error.cause), (ErrorKind::Timeout, "no response within 3s"));
            assert_eq!(began.elapsed(), want * second);
        }
        assert_eq!(within(second, None, async { Ok(7) }).await, Ok(7));
    }
}
