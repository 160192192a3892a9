//! One command a file.

pub mod config;
pub mod serve;
