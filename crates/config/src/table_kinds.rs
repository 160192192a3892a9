//! The kinds of tables of which a file may have any number.

use crate::certificates::CERTIFICATE_KEYS;
use crate::forwards::FORWARD_KEYS;
use crate::keys::KEY_KEYS;
use crate::tables::TableKey;
use crate::topics::TOPIC_KEYS;

/// What the tables of a kind hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
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
    /// As it stands between double brackets.
    pub name: &'static str,
    /// All keys that it may have.
    pub keys: &'static [TableKey],
    /// What one of them is called.
    pub one: &'static str,
    /// What they hold.
    pub holds: Holds,
}

/// All kinds.
pub(crate) const TABLES: [TableKind; 4] = [
    TableKind { name: "topics", keys: TOPIC_KEYS, one: "rule", holds: Holds::Topics },
    TableKind { name: "forward", keys: FORWARD_KEYS, one: "rule", holds: Holds::Forwards },
    TableKind { name: "keys", keys: KEY_KEYS, one: "key", holds: Holds::Keys },
    TableKind {
        name: "tls.certificates",
        keys: CERTIFICATE_KEYS,
        one: "certificate",
        holds: Holds::Certificates,
    },
];

impl TableKind {
    /// The kind of this name.
    pub fn named(name: &str) -> Option<&'static TableKind> {
        TABLES.iter().find(|table| table.name == name)
    }

    /// Whether it is the tables of rules by topic, some of whose keys had other names.
    pub fn is_topics(&self) -> bool {
        self.holds == Holds::Topics
    }

    /// Whether a variable is called like these tables, alone or with one of their keys behind it.
    pub fn is_variable(&self, variable: &str) -> bool {
        let key = variable.strip_prefix("THRONG_").map(str::to_lowercase);
        let name = self.name.replace('.', "_");
        let key = key.as_deref().and_then(|key| key.strip_prefix(name.as_str()));
        key.is_some_and(|key| {
            key.is_empty() || self.keys.iter().any(|known| key.strip_prefix('_') == Some(known.key))
        })
    }
}
