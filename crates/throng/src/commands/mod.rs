//! One command a file.

pub mod config;
pub mod flood;
pub mod serve;
pub mod tune;
