//! HTTP before or between requests: nothing is ever pushed to it.

use super::{Tools, Transport};
use crate::{Close, Message};

pub(super) struct Http;

impl Transport for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn encode(&self, _message: &Message, _tools: &mut Tools, _out: &mut Vec<u8>) {}

    fn heartbeat(&self, _out: &mut Vec<u8>) {}

    fn goodbye(&self, _close: Close, _retry_ms: u32, _out: &mut Vec<u8>) {}
}
