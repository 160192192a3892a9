//! Who may make which request of the client port: a row for each path. A path without a row is not there.

/// A path of the client port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The methods that it takes, with commas; HEAD goes with GET.
    pub methods: &'static str,
    /// The path.
    pub path: &'static str,
    /// What a client needs for it.
    pub needs: Needs,
}

/// What a client needs for a request where tokens are used. What it may do is for the rules to say, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: it shows nothing that anybody has published.
    Nothing,
    /// A token with the connection's first command; each command then needs what its action needs.
    TokenByCommand,
    /// A token, of whatever grants; each topic that is joined then needs the grant `subscribe`.
    Token,
    /// A token that grants all of these for each topic that is named.
    Grants(&'static [Grant]),
    /// A token of the user who is named, that grants `subscribe` where another topic than the user's own is.
    User,
}

/// What a token grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// To enter a topic.
    Subscribe,
    /// To publish to it.
    Publish,
    /// To see who is in it.
    Presence,
    /// To read what was published before.
    History,
}

impl Endpoint {
    /// A row.
    pub const fn new(methods: &'static str, path: &'static str, needs: Needs) -> Self {
        Endpoint { methods, path, needs }
    }
}

impl Grant {
    /// Its name in a token.
    pub fn name(self) -> &'static str {
        match self {
            Grant::Subscribe => "subscribe",
            Grant::Publish => "publish",
            Grant::Presence => "presence",
            Grant::History => "history",
        }
    }
}
