//! Tables that a file may repeat: `[[topics]]`, `[[forward]]` and `[[keys]]`. The code that reads, prints and checks
//! them is derived from their keys.

use crate::setting::{Kind, Limit};

/// The effect of a missing key on a table. All values are TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The key has this default.
    Default(&'static str),
    /// The key stays unset, which has a meaning of its own. The value is an example.
    Unset(&'static str),
    /// The table is invalid. The value is an example.
    Required(&'static str),
}

/// A key of such a table. Its name ends with its unit, if it has one.
#[derive(Clone, Copy, Debug)]
pub struct TableKey {
    /// The name within its table.
    pub key: &'static str,
    /// The values that it takes.
    pub kind: Kind,
    /// The effect if it is missing.
    pub absent: Absent,
    /// One sentence about what it does.
    pub doc: &'static str,
    /// The effect of exceeding it, if it is a limit.
    pub limit: Option<Limit>,
}

impl TableKey {
    /// Describes the valid values, for people.
    pub fn valid_values(&self) -> String {
        self.kind.valid_values()
    }
}

/// Generates the list of a table's keys, the struct of its typed values, and the conversion.
macro_rules! table_keys {
    (
        $(#[doc = $keys_doc:literal])* $KEYS:ident;
        $(#[doc = $struct_doc:literal])* $Struct:ident;
        $(
            #[doc = $doc:literal]
            $key:ident: $type:ty = $kind:expr, $absent:expr
                $(, beyond $beyond:literal, shows $metrics:literal)?;
        )*
    ) => {
        $(#[doc = $keys_doc])*
        pub const $KEYS: &[$crate::tables::TableKey] = &[$($crate::tables::TableKey {
            key: stringify!($key),
            kind: $kind,
            absent: $absent,
            doc: $doc.trim_ascii(),
            limit: $crate::setting::limit!($($beyond, $metrics)?),
        },)*];

        $(#[doc = $struct_doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $Struct {$(
            #[doc = $doc]
            pub $key: $type,
        )*}

        /// Converts the values of one table.
        pub(crate) fn typed(values: &$crate::values::Values) -> $Struct {
            $Struct {$(
                $key: $crate::typed::Typed::typed(
                    values.get(stringify!($key)).map(|(value, _)| value)
                ),
            )*}
        }
    };
}

pub(crate) use table_keys;
