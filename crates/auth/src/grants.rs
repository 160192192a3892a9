//! What a token grants.

/// Stands for the name of the principal's user in a pattern.
pub(crate) const SUBJECT: &str = "{sub}";

/// Stands for the principal's client identifier in a pattern.
pub(crate) const CLIENT: &str = "{client}";

/// What a principal may do at the most. A grant never allows what the rules deny.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Grants {
    /// All that the rules allow.
    Everything,
    /// Only what these patterns name.
    Patterns(Patterns),
}

impl Default for Grants {
    /// Grants nothing.
    fn default() -> Self {
        Grants::Patterns(Patterns::default())
    }
}

/// The topics of each action: `*` matches any run of characters, `{sub}` the name of one of the
/// principal's users, `{client}` the client identifier of an MQTT client (one of several levels, or with
/// wildcards, matches nothing), all else itself. A `*` in a user's name is a character like any other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Patterns {
    /// Topics to subscribe to.
    pub subscribe: Vec<Box<str>>,
    /// Topics to publish to.
    pub publish: Vec<Box<str>>,
    /// Topics whose members it may see.
    pub presence: Vec<Box<str>>,
    /// Topics whose history it may read.
    pub history: Vec<Box<str>>,
}
