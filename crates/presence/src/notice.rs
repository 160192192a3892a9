//! Notices to the members of a topic.

use std::sync::Arc;

/// A notice: the event and the JSON text of its data.
pub type Notice = (&'static str, Arc<str>);

/// Publishes a notice: topic, event and JSON text. False when that failed.
pub type Emit<'a> = dyn FnMut(&str, &'static str, &str) -> bool + 'a;

/// Notices of a topic that are being published. In the end they go to [`crate::Presence::confirm`]: until then the
/// topic composes no other.
#[must_use]
pub struct Batch {
    topic: Arc<str>,
    notices: Vec<Notice>,
    published: usize,
}

impl Batch {
    /// Creates a batch of unpublished notices, in their order.
    pub fn new(topic: Arc<str>, notices: Vec<Notice>) -> Batch {
        Batch { topic, notices, published: 0 }
    }

    /// Returns the topic of the members.
    pub fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// Publishes the unpublished notices, in order, up to the first that fails.
    pub fn publish(&mut self, emit: &mut Emit) {
        for (event, json) in &self.notices[self.published..] {
            if !emit(&self.topic, event, json) {
                return;
            }
            self.published += 1;
        }
    }

    /// Returns how many were published, and the other notices.
    pub fn into_outcome(mut self) -> (usize, Vec<Notice>) {
        let rest = self.notices.split_off(self.published);
        (self.published, rest)
    }
}
