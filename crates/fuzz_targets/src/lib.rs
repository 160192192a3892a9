//! The fuzz targets: one function per parser that reads bytes of peers, and one for a whole engine.
//!
//! Each takes any bytes. libFuzzer calls them from the programs in `fuzz/fuzz_targets` (`scripts/fuzz TARGET`), and
//! `tests/replay.rs` calls them with the seeds in `fuzz/seeds/TARGET` and with mutations of these. A new target is a
//! module and a row of [`ALL`] here, a program in `fuzz/`, and at least one seed.

#![forbid(unsafe_code)]

mod answer;
mod command;
mod config;
mod engine;
mod mqtt;
mod phoenix;
mod proxies;
mod request_head;
mod tls;
mod token;
mod websocket;

pub use self::answer::answer;
pub use self::command::command;
pub use self::config::config;
pub use self::engine::engine;
pub use self::mqtt::mqtt;
pub use self::phoenix::phoenix;
pub use self::proxies::proxies;
pub use self::request_head::request_head;
pub use self::tls::tls;
pub use self::token::token;
pub use self::websocket::websocket;

/// A target: it panics when it finds a defect.
pub type Target = fn(&[u8]);

/// All targets with their names, by name.
pub const ALL: &[(&str, Target)] = &[
    ("answer", answer),
    ("command", command),
    ("config", config),
    ("engine", engine),
    ("mqtt", mqtt),
    ("phoenix", phoenix),
    ("proxies", proxies),
    ("request_head", request_head),
    ("tls", tls),
    ("token", token),
    ("websocket", websocket),
];
