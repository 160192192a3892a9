//! The history of topics: their messages stay for members that come back.
//!
//! [`History`] is what the rest of Throng knows of it; an implementation in this process stands in a
//! crate of its own. What an implementation would have to wait for is answered by completion
//! ([`HistoryReply`]); no call waits for a disk or a network.

#![forbid(unsafe_code)]

mod completion;
mod contract;
mod cursor;
mod error;

pub use completion::{Completion, Requester};
pub use contract::{
    DroppedBy, GivenUp, Gone, History, HistoryReply, HistoryStats, Implicit, Matching, Page,
    PageFrom, PageQuery, Piece, Pull, Start, TopicCursor, TopicHash,
};
pub use cursor::Cursor;
pub use error::{AcknowledgeError, HistoryError};
