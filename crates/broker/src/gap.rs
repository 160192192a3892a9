//! Lost messages of other nodes.

use std::fmt;

use model::Position;

/// Messages that other nodes have published, and that did not arrive here.
pub struct Gap {
    /// The position after which all messages arrive again; no message has it.
    pub position: Position,
    is_everyone: bool,
    is_lost: Box<dyn Fn(&str) -> bool + Send + Sync>,
}

impl Gap {
    /// Makes a gap in the topics for which `is_lost` returns true; `is_everyone` if broadcasts may be lost as well.
    pub fn new(
        position: Position,
        is_everyone: bool,
        is_lost: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        Gap { position, is_everyone, is_lost: Box::new(is_lost) }
    }

    /// Returns true if broadcasts may be lost: they concern each connection.
    pub fn is_everyone(&self) -> bool {
        self.is_everyone
    }

    /// Returns true if messages of this topic may be lost.
    pub fn has(&self, topic: &str) -> bool {
        (self.is_lost)(topic)
    }
}

impl fmt::Debug for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gap { position, is_everyone, .. } = self;
        f.debug_struct("Gap")
            .field("position", position)
            .field("is_everyone", is_everyone)
            .finish_non_exhaustive()
    }
}
