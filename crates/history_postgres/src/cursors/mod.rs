//! Users' cursors: those last used are in memory, and the database has all of them for all nodes.
//!
//! A cursor moves in memory first, and its move waits to be written. The driver of cursors has a session of its own: it
//! writes moves, and follows those of other nodes. If a move is lost, its user gets messages once more.

mod driver;
mod session;
mod table;

pub(crate) use driver::{OnMoved, catch_up, run};
pub use table::CursorMove;
pub(crate) use table::SharedCursors;
