//! Tables of which a file may have any number: `[[topics]]` and `[[keys]]`. The code that reads,
//! prints and checks them is derived from their keys.

use crate::keys::KEY_KEYS;
use crate::setting::Kind;
use crate::topics::TOPIC_KEYS;

/// What happens to a table without this key. All values are TOML.
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
    /// What happens to a table without it.
    pub absent: Absent,
    /// One sentence about what it does.
    pub doc: &'static str,
}

impl TableKey {
    /// A description of valid values, for people.
    pub fn wants(&self) -> String {
        self.kind.wants()
    }
}

/// One kind of table.
pub(crate) struct TableKind {
    /// As it stands between double brackets.
    pub name: &'static str,
    /// All keys that it may have.
    pub keys: &'static [TableKey],
    /// What one of them is called.
    pub one: &'static str,
}

/// All kinds.
pub(crate) const TABLES: [TableKind; 2] = [
    TableKind { name: "topics", keys: TOPIC_KEYS, one: "rule" },
    TableKind { name: "keys", keys: KEY_KEYS, one: "key" },
];

impl TableKind {
    /// The kind of this name.
    pub fn named(name: &str) -> Option<&'static TableKind> {
        TABLES.iter().find(|table| table.name == name)
    }

    /// Whether it is the tables of rules by topic, some of whose keys had other names.
    pub fn is_topics(&self) -> bool {
        self.name == TABLES[0].name
    }

    /// Whether a variable is called like these tables, alone or with one of their keys behind it.
    pub fn is_variable(&self, variable: &str) -> bool {
        let key = variable.strip_prefix("THRONG_").map(str::to_lowercase);
        let key = key.as_deref().and_then(|name| name.strip_prefix(self.name));
        key.is_some_and(|key| {
            key.is_empty() || self.keys.iter().any(|known| key.strip_prefix('_') == Some(known.key))
        })
    }
}

/// Generates the list of a table's keys, the struct of its typed values, and the conversion.
macro_rules! table_keys {
    (
        $(#[doc = $keys_doc:literal])* $KEYS:ident;
        $(#[doc = $struct_doc:literal])* $Struct:ident;
        $(
            #[doc = $doc:literal]
            $key:ident: $type:ty = $kind:expr, $absent:expr;
        )*
    ) => {
        $(#[doc = $keys_doc])*
        pub const $KEYS: &[$crate::tables::TableKey] = &[$($crate::tables::TableKey {
            key: stringify!($key),
            kind: $kind,
            absent: $absent,
            doc: $doc.trim_ascii(),
        },)*];

        $(#[doc = $struct_doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $Struct {$(
            #[doc = $doc]
            pub $key: $type,
        )*}

        /// The typed values of one table.
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
