//! The parsed values, before their conversion to types.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Origin, Value};

/// The values by key, and the source of each.
pub(crate) type Values = BTreeMap<&'static str, (Value, Origin)>;

/// A table of `[[topics]]`, `[[forward]]` or `[[keys]]`: its values by key, including defaults. A key that is unset
/// or invalid has no value.
#[derive(Clone, Default)]
pub(crate) struct Rule {
    pub values: Values,
    /// Keys with an invalid value: their real value is unknown.
    pub invalid: BTreeSet<&'static str>,
}
