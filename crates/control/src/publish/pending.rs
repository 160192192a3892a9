//! A message on its way: what the broker says of it, and how many members it has.

use std::time::Duration;

use axum::http::StatusCode;
use broker::{PublishError, Receipt};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::Published;
use crate::error::{Refused, refused};
use crate::shards::PATIENCE;

/// How long the disk is waited for. With [`PATIENCE`] for the members it is less than what the
/// whole request has, so that the caller learns what it is that took so long.
pub(crate) const DISK_PATIENCE: Duration = Duration::from_secs(20);

/// What the broker says, and when it said so.
type Said = (Result<broker::Published, PublishError>, Instant);

/// A message that is with the broker; its members are being counted.
pub(super) struct Pending {
    done: oneshot::Receiver<Said>,
    members: oneshot::Receiver<u64>,
    until: Instant,
}

/// What waits for a message, and what the broker is given to tell of it.
pub(super) fn pending() -> (Pending, Receipt, broker::Done) {
    let (count, members) = oneshot::channel();
    let (say, done) = oneshot::channel();
    // In both: if nobody waits any more, the caller went away.
    let receipt = Receipt::new(move |total| _ = count.send(total));
    let told = Box::new(move |result| _ = say.send((result, Instant::now())));
    (Pending { done, members, until: Instant::now() + DISK_PATIENCE }, receipt, told)
}

impl Pending {
    /// Waits until the message is published, and for the count of its members, which it is also
    /// without if that can't be had.
    pub async fn published(self) -> Result<Published, Refused> {
        let said = timeout_at(self.until, self.done).await.map_err(|_| unsure())?;
        let (result, at) = said.map_err(|_| Refused::gone())?;
        let broker::Published { id, repeated } = result?;
        let members = timeout_at(at + PATIENCE, self.members).await;
        let members = members.ok().and_then(Result::ok);
        Ok(Published { id: id.to_string(), offset: id.offset, members, repeated })
    }
}

/// The disk didn't answer in [`DISK_PATIENCE`]; the message may still be written.
fn unsure() -> Refused {
    let message = "the disk did not answer in 20 seconds: the message may or may not be published; \
                   repeat it with the same idempotency_key, which publishes it once";
    refused(StatusCode::GATEWAY_TIMEOUT, "timeout", message)
}
