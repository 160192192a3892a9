//! The path of a message: published, fanned out, encoded, and written.

pub(crate) mod backpressure;
pub(crate) mod conflation;
pub(crate) mod costs;
pub(crate) mod encode;
pub(crate) mod fanout;
mod gap;
pub(crate) mod observed;
pub(crate) mod outbox;
pub(crate) mod publish;
#[cfg(test)]
mod support;
