//! What is published to the members of a topic.

use std::sync::Arc;

/// What is published: the event and the JSON text of its data.
pub type Notice = (&'static str, Arc<str>);

/// Publishes a notice: topic, event and JSON text. False when it could not be.
pub type Emit<'a> = dyn FnMut(&str, &'static str, &str) -> bool + 'a;

/// Notices of a topic that are on their way out, for [`crate::Presence::confirm`] in the end: until
/// then the topic composes nothing more.
#[must_use]
pub struct Batch {
    topic: Arc<str>,
    notices: Vec<Notice>,
    published: usize,
}

impl Batch {
    /// Notices that have not been published, in their order.
    pub fn new(topic: Arc<str>, notices: Vec<Notice>) -> Batch {
        Batch { topic, notices, published: 0 }
    }

    /// The topic whose members they are for.
    pub fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// Publishes what has not been published, in order, up to the first that cannot be.
    pub fn publish(&mut self, emit: &mut Emit) {
        for (event, json) in &self.notices[self.published..] {
            if !emit(&self.topic, event, json) {
                return;
            }
            self.published += 1;
        }
    }

    /// How many were published, and the others.
    pub fn into_outcome(mut self) -> (usize, Vec<Notice>) {
        let rest = self.notices.split_off(self.published);
        (self.published, rest)
    }
}
