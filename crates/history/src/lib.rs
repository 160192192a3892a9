//! The history of topics: it retains their messages for members that come back.
//!
//! [`History`] is the interface that the rest of Throng uses; the implementation in this process has a crate of its
//! own. No call waits for a disk or a network: a call that needs one replies by completion ([`HistoryReply`]).

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
