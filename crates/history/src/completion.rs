//! Replies that come later, and requesters that may stop waiting for them.

use std::sync::{Arc, Weak};

use crate::HistoryError;

/// Waits for a reply. Dropping its last clone cancels the request.
#[derive(Clone, Debug, Default)]
pub struct Requester(Arc<()>);

/// Takes a reply that comes later. It must not block.
pub struct Completion<T> {
    reply: Box<dyn FnOnce(Result<T, HistoryError>) + Send>,
    /// `None` if the reply is always awaited.
    requester: Option<Weak<()>>,
}

impl<T> Completion<T> {
    /// Makes a completion whose reply is always awaited.
    pub fn new(reply: impl FnOnce(Result<T, HistoryError>) + Send + 'static) -> Self {
        Completion { reply: Box::new(reply), requester: None }
    }

    /// Makes a completion whose reply is awaited while a clone of its requester exists.
    pub fn of(
        requester: &Requester,
        reply: impl FnOnce(Result<T, HistoryError>) + Send + 'static,
    ) -> Self {
        Completion { reply: Box::new(reply), requester: Some(Arc::downgrade(&requester.0)) }
    }

    /// Returns true if the reply is still awaited. If not, an implementation should read nothing more for it, and may
    /// drop the completion without a call.
    pub fn is_awaited(&self) -> bool {
        self.requester.as_ref().is_none_or(|requester| requester.strong_count() > 0)
    }

    /// Calls the callback with the reply.
    pub fn complete(self, reply: Result<T, HistoryError>) {
        (self.reply)(reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_awaited_while_a_clone_of_its_requester_exists() {
        let requester = Requester::default();
        let completion = Completion::<u8>::of(&requester, |_| ());
        let other = requester.clone();
        drop(requester);
        assert!(completion.is_awaited());
        drop(other);
        assert!(!completion.is_awaited());
        assert!(Completion::<u8>::new(|_| ()).is_awaited());
    }
}
