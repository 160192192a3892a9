//! Answers that come later, and whether anybody still waits for them.

use std::sync::{Arc, Weak};

use crate::HistoryError;

/// Somebody who waits for an answer: when the last clone is dropped, nobody does any more.
#[derive(Clone, Debug, Default)]
pub struct Asker(Arc<()>);

/// Takes an answer that comes later. It must not block.
pub struct Completion<T> {
    reply: Box<dyn FnOnce(Result<T, HistoryError>) + Send>,
    /// `None` where the answer is wanted in any case.
    asker: Option<Weak<()>>,
}

impl<T> Completion<T> {
    /// An answer that is wanted in any case.
    pub fn new(reply: impl FnOnce(Result<T, HistoryError>) + Send + 'static) -> Self {
        Completion { reply: Box::new(reply), asker: None }
    }

    /// An answer that is wanted as long as its asker is there.
    pub fn of(asker: &Asker, reply: impl FnOnce(Result<T, HistoryError>) + Send + 'static) -> Self {
        Completion { reply: Box::new(reply), asker: Some(Arc::downgrade(&asker.0)) }
    }

    /// Whether somebody waits for the answer. If not, an implementation should read nothing more for
    /// it, and may drop the completion uncalled.
    pub fn is_wanted(&self) -> bool {
        self.asker.as_ref().is_none_or(|asker| asker.strong_count() > 0)
    }

    /// Gives the answer.
    pub fn complete(self, reply: Result<T, HistoryError>) {
        (self.reply)(reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_reply_is_wanted_as_long_as_a_clone_of_its_asker_is_there() {
        let asker = Asker::default();
        let completion = Completion::<u8>::of(&asker, |_| ());
        let other = asker.clone();
        drop(asker);
        assert!(completion.is_wanted());
        drop(other);
        assert!(!completion.is_wanted());
        assert!(Completion::<u8>::new(|_| ()).is_wanted());
    }
}
