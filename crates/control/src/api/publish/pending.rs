//! A message on its way: its result, and the number of its members.

use std::sync::Arc;
use std::time::Duration;

use broker::{DeliveryObserver, PublishError, Receipt};
use model::ErrorCode;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::Published;
use crate::http::Rejection;
use crate::node::SHARD_TIMEOUT;

/// The time limit of the disk. With [`SHARD_TIMEOUT`] for the members it is less than that of the whole request, so
/// that the caller learns what took so long.
pub(in crate::api) const DISK_TIMEOUT: Duration = Duration::from_secs(20);

/// The result of a message, and when it came.
type Outcome = (Result<broker::Published, PublishError>, Instant);

/// A message that is with the broker; its members are being counted.
pub(super) struct Pending {
    done: oneshot::Receiver<Outcome>,
    members: oneshot::Receiver<u64>,
    until: Instant,
}

/// Returns a pending message, and the broker's callbacks about it.
pub(super) fn pending(
    observer: Option<Arc<dyn DeliveryObserver>>,
) -> (Pending, Receipt, broker::Done) {
    let (count, members) = oneshot::channel();
    let (complete, done) = oneshot::channel();
    // Sending fails in both if the caller has gone away.
    let receipt = Receipt::with_observer(move |total| _ = count.send(total), observer);
    let on_done = Box::new(move |result| _ = complete.send((result, Instant::now())));
    (Pending { done, members, until: Instant::now() + DISK_TIMEOUT }, receipt, on_done)
}

impl Pending {
    /// Waits until the message is published, and for the count of its members, which may be missing.
    pub async fn published(self) -> Result<Published, Rejection> {
        let outcome = timeout_at(self.until, self.done).await.map_err(|_| unsure())?;
        let (result, at) = outcome.map_err(|_| Rejection::going_down())?;
        let broker::Published { id, repeated, queued } = result?;
        let members = timeout_at(at + SHARD_TIMEOUT, self.members).await;
        let members = members.ok().and_then(Result::ok);
        Ok(Published { id: id.to_string(), offset: id.offset, members, queued, repeated })
    }
}

/// The disk didn't reply in [`DISK_TIMEOUT`]; the message may still be written.
fn unsure() -> Rejection {
    let message = "the disk did not respond in 20 seconds: the message may or may not be \
                   published; repeat it with the same idempotency_key, which publishes it only \
                   once";
    Rejection::new(ErrorCode::Timeout, message)
}
