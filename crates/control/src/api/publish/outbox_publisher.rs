//! Publishes rows of the outbox, which applications write in their own transactions, as commands of a batch.

use std::sync::Arc;

use broker::PublishError;
use model::ErrorCode;
use outbox::{Done, Outcome, Publisher, Reason, Row};
use serde_json::value::RawValue;

use super::batch::Command;
use super::{check_rules, checked};
use crate::http::Rejection;
use crate::node::Node;

/// Publishes on this node, as for a caller with all scopes.
pub(crate) struct OutboxPublisher(pub Arc<Node>);

impl Publisher for OutboxPublisher {
    fn publish(&self, row: &Row, done: Done) {
        // Another process takes over in an upgrade, and publishes the row, too.
        let Some(_working) = self.0.upgrades.gate.work() else {
            return done(Outcome::Wait("the server is being upgraded".into()));
        };
        match publish_of(&self.0, row) {
            Ok(publish) => {
                let done = Box::new(move |result| done(outcome(result)));
                self.0.broker.submit(publish, None, done);
            }
            Err(rejection) => done(Outcome::Refused(reason(rejection))),
        }
    }
}

/// The message of a row.
fn publish_of(node: &Node, row: &Row) -> Result<broker::Publish, Rejection> {
    let message = row.message.as_deref().ok_or_else(|| {
        let (bytes, max) = (row.bytes, node.body_bytes_max);
        let message = format!(
            "the message has {bytes} bytes of JSON, and a request may have at most {max} \
             (admin.body_bytes_max)"
        );
        Rejection::new(ErrorCode::BodyTooLarge, message)
    })?;
    let command: &RawValue = serde_json::from_str(message)
        .map_err(|error| Rejection::new(ErrorCode::BadRequest, error.to_string()))?;
    let (topic, message) = match Command::parse(command)? {
        Command::Publish(publish) => (publish.topic()?, publish.0),
        Command::Send(send) => (send.topic()?, send.0),
        Command::Broadcast(broadcast) => (broadcast.topic(), broadcast.0),
        Command::Disconnect(_) | Command::Subscribe(_) | Command::Unsubscribe(_) => {
            let message = "a row of the outbox must be a publish, send or broadcast";
            return Err(Rejection::new(ErrorCode::BadRequest, message));
        }
    };
    check_rules(node, &topic)?;
    let mut publish = checked(node, &message, topic)?;
    let options = &mut publish.options;
    options.wait_for_disk = true;
    let has_history = node.history().rule(&publish.publication.topic).is_some();
    if has_history && !options.no_history && options.idempotency_key.is_none() {
        // If a crash leaves the row of a published message, it is not published again.
        options.idempotency_key = Some(format!("outbox:{}", row.uid).as_str().into());
    }
    Ok(publish)
}

fn outcome(result: Result<broker::Published, PublishError>) -> Outcome {
    match result {
        Ok(_) => Outcome::Published,
        Err(
            error @ (PublishError::Overloaded
            | PublishError::StoreBusy
            | PublishError::StoreFailed(_)
            | PublishError::Unconfirmed(_)),
        ) => Outcome::Wait(error.to_string().into()),
        Err(
            error @ (PublishError::StoreDamaged(_)
            | PublishError::Newer(_)
            | PublishError::NoHistory
            | PublishError::KeyRequired),
        ) => Outcome::Refused(reason(error.into())),
    }
}

fn reason(Rejection { code, message, .. }: Rejection) -> Reason {
    Reason { code: code.text().into(), text: message.into() }
}
