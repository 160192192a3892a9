//! The paths of the client port, with what a client needs for each. The server replies 404 for every other path.

/// A path of the client port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The methods that it takes, separated by commas; HEAD goes with GET.
    pub methods: &'static str,
    /// The path.
    pub path: &'static str,
    /// What a client needs for it.
    pub needs: Needs,
}

/// What a client needs for a request where tokens are used. The policy decides besides what the client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: the reply shows nothing that a client has published.
    Nothing,
    /// A token with the connection's first command; each command then needs what its action needs.
    TokenByCommand,
    /// A token with any grants; each topic that the client joins then needs the grant `subscribe`.
    Token,
    /// A token that grants all of these for each topic that the request names.
    Grants(&'static [Grant]),
    /// A token of the user in the request, which grants `subscribe` if the topic is not the user's own.
    User,
}

/// What a token grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// To enter a topic.
    Subscribe,
    /// To publish to it.
    Publish,
    /// To read the topic's presence.
    Presence,
    /// To read messages published earlier.
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
