//! Numbers as samples have them.

use serde::ser::{Serialize, Serializer};

/// A number for a chart: seven digits, and written without a fraction if it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(crate) struct Figure(pub f32);

impl Figure {
    /// Rounds to three digits after the point; more would only be noise.
    pub fn new(value: f64) -> Self {
        Figure(((value * 1e3).round() / 1e3) as f32)
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && self.0.abs() < 1e9 {
            serializer.serialize_i64(self.0 as i64)
        } else {
            serializer.serialize_f32(self.0)
        }
    }
}
