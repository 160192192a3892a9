//! A JSON object a line, for programs.

use serde_json::json;

use super::{Phase, Show, print};
use crate::record::{Sample, Summary};

/// Prints each sample and the result as JSON.
#[derive(Debug, Default)]
pub struct Json;

impl Show for Json {
    fn sample(&mut self, phase: Phase, _before: &Sample, now: &Sample, _planned: u32) {
        print(&format!("{}\n", json!({"phase": phase.word(), "sample": now})));
    }

    fn end(&mut self, summary: &Summary) {
        print(&format!("{}\n", json!({"summary": summary})));
    }
}
