//! The kinds of tables that a file may repeat.

use crate::certificates::CERTIFICATE_KEYS;
use crate::forwards::FORWARD_KEYS;
use crate::keys::KEY_KEYS;
use crate::tables::TableKey;
use crate::topics::TOPIC_KEYS;

/// The contents of a kind of table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableContent {
    /// Rules by topic.
    Topics,
    /// Rules that send messages to a back end.
    Forwards,
    /// Keys of the API.
    Keys,
    /// Certificates for further hosts.
    Certificates,
}

/// One kind of table.
pub(crate) struct TableKind {
    /// Its name between double brackets.
    pub name: &'static str,
    /// All keys that it may have.
    pub keys: &'static [TableKey],
    /// The word for one of them.
    pub one: &'static str,
    /// Their contents.
    pub content: TableContent,
}

/// All kinds.
pub(crate) const TABLES: [TableKind; 4] = [
    TableKind { name: "topics", keys: TOPIC_KEYS, one: "rule", content: TableContent::Topics },
    TableKind { name: "forward", keys: FORWARD_KEYS, one: "rule", content: TableContent::Forwards },
    TableKind { name: "keys", keys: KEY_KEYS, one: "key", content: TableContent::Keys },
    TableKind {
        name: "tls.certificates",
        keys: CERTIFICATE_KEYS,
        one: "certificate",
        content: TableContent::Certificates,
    },
];

impl TableKind {
    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<&'static TableKind> {
        TABLES.iter().find(|table| table.name == name)
    }

    /// Returns true for the rules by topic, some of whose keys are renamed.
    pub fn is_topics(&self) -> bool {
        self.content == TableContent::Topics
    }

    /// Returns true if a variable has the name of these tables, alone or with one of their keys behind it.
    pub fn is_variable(&self, variable: &str) -> bool {
        let key = variable.strip_prefix("THRONG_").map(str::to_lowercase);
        let name = self.name.replace('.', "_");
        let key = key.as_deref().and_then(|key| key.strip_prefix(name.as_str()));
        key.is_some_and(|key| {
            key.is_empty() || self.keys.iter().any(|known| key.strip_prefix('_') == Some(known.key))
        })
    }
}
