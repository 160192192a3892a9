//! Publishes the messages with which back ends reply to messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::{ErrorCode, Publication};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Publish, Reply, Send, check_rules, checked};
use crate::http::{Rejection, parse};
use crate::node::Node;
use crate::webhook::{PublishReplies, ReplyCounts, ReplyTo};

/// Messages of one response, at most.
const MESSAGES_MAX: usize = 10_000;

/// Publishes on this node.
pub(crate) struct ReplyPublisher(pub Arc<Node>);

/// A response of a back end. Other fields are ignored.
#[derive(Deserialize)]
struct ReplyBody {
    #[serde(default)]
    messages: Vec<Box<RawValue>>,
}

/// The fields that decide of what kind a message is.
#[derive(Deserialize)]
struct Kind {
    user: Option<Box<RawValue>>,
    reply_to: Option<String>,
}

impl PublishReplies for ReplyPublisher {
    fn publish(
        &self,
        body: &[u8],
        reply_to: &dyn Fn(&str) -> Option<ReplyTo>,
        counts: &Arc<ReplyCounts>,
    ) -> Result<(), String> {
        if body.trim_ascii().is_empty() {
            return Ok(());
        }
        let ReplyBody { messages } = parse(body).map_err(|Rejection { message, .. }| {
            counts.rejected.fetch_add(1, Ordering::Relaxed);
            format!("the reply is not {{\"messages\":[…]}}: {message}")
        })?;
        let mut first = Ok(());
        for (at, message) in messages.iter().enumerate() {
            match message_of(&self.0, message, reply_to).and_then(|it| in_bounds(at, it)) {
                Ok(publish) => {
                    let counts = counts.clone();
                    let done = move |result: Result<_, _>| {
                        let count =
                            if result.is_ok() { &counts.published } else { &counts.rejected };
                        count.fetch_add(1, Ordering::Relaxed);
                    };
                    self.0.broker.submit(publish, None, Box::new(done));
                }
                Err(Rejection { message, .. }) => {
                    counts.rejected.fetch_add(1, Ordering::Relaxed);
                    if first.is_ok() {
                        first = Err(format!("message {at} of the reply: {message}"));
                    }
                }
            }
        }
        first
    }
}

fn in_bounds(at: usize, publish: broker::Publish) -> Result<broker::Publish, Rejection> {
    if at < MESSAGES_MAX {
        return Ok(publish);
    }
    let message = format!("a reply has at most {MESSAGES_MAX} messages");
    Err(Rejection::new(ErrorCode::BatchTooLong, message))
}

/// Checks a message of a response as that of a caller with all scopes.
fn message_of(
    node: &Node,
    raw: &RawValue,
    reply_to: &dyn Fn(&str) -> Option<ReplyTo>,
) -> Result<broker::Publish, Rejection> {
    let body = raw.get().as_bytes();
    match parse(body)? {
        Kind { reply_to: Some(id), user: None } => {
            let Some(to) = reply_to(&id) else {
                let message = format!(
                    "reply_to: {id:?} is not the id of a message in the request, or that message \
                     has neither a response topic nor a user"
                );
                return Err(Rejection::new(ErrorCode::BadTopic, message));
            };
            check_rules(node, &to.topic)?;
            let reply: Reply = parse(body)?;
            let mut publish = checked(node, &reply.0, to.topic.clone())?;
            correlate(&mut publish.publication, to);
            Ok(publish)
        }
        Kind { user: Some(_), reply_to: None } => {
            let send: Send = parse(body)?;
            checked(node, &send.0, send.topic()?)
        }
        Kind { user: None, reply_to: None } => {
            let publish: Publish = parse(body)?;
            let topic = publish.topic()?;
            check_rules(node, &topic)?;
            checked(node, &publish.0, topic)
        }
        Kind { user: Some(_), reply_to: Some(_) } => {
            let message = "a message must have exactly one of topic, user and reply_to";
            Err(Rejection::new(ErrorCode::BadRequest, message))
        }
    }
}

/// Adds the correlation data of the client's message, unless the back end sets its own.
fn correlate(publication: &mut Publication, to: ReplyTo) {
    if let Some(data) = to.correlation_data {
        let attributes = publication.attributes.get_or_insert_default();
        let properties = attributes.properties.get_or_insert_default();
        properties.correlation_data.get_or_insert(data);
    }
}
