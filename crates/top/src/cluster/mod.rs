//! Shows all nodes of a cluster in one table.
//!
//! Any node can supply the table: it knows the other nodes, and requests the numbers of each. `table` makes the rows
//! from two polls, and `view` has the user's view of them; both use no socket, clock or terminal.

mod draw;
mod poll;
mod print;
mod screen;
mod table;
mod view;

use std::time::Duration;

pub use print::{print_json, print_once};
pub use screen::run;
pub use table::{Column, Sort};

/// The time between two polls.
const EVERY: Duration = Duration::from_secs(2);
