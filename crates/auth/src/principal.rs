//! The principal of a connection or a request.

use std::sync::{Arc, LazyLock};

use model::{Name, TopicKind};

use crate::{Grants, Patterns, Scope};

/// Shared by all principals that no grants narrow.
static EVERYTHING: LazyLock<Arc<Grants>> = LazyLock::new(|| Arc::new(Grants::Everything));

/// The part of an open connection's token that later revocations need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenMark {
    /// When it was issued, in seconds since 1970; 0 when it doesn't say.
    pub issued_s: u32,
    /// A hash of its `jti`; 0 when it has none.
    pub id_hash: u32,
}

/// Where a principal comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The principal has proved nothing: it is the user that it names, and may do what the rules allow.
    Anonymous,
    /// The application, which the rules don't bind. Only the scopes of its key do.
    Application,
    /// The bearer of a token, which may do what both the rules and the grants allow.
    Token,
    /// A client whose user the application named in a response; it may do what the bearer of a token may.
    Hook,
}

/// The maker of a request, with its grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The users that it speaks for.
    pub users: Vec<Name>,
    /// The client identifier of an MQTT client, as the client chooses it.
    pub client: Option<Name>,
    /// What it may do at the most.
    pub grants: Arc<Grants>,
    /// The application's info about it for other members: the text of a JSON object.
    pub info: Option<Arc<str>>,
    /// When it ceases to be valid, in seconds since 1970; `None` is never.
    pub expires: Option<u64>,
    /// The mark by which revocations find its token.
    pub mark: TokenMark,
    /// Its source.
    pub source: Source,
}

impl Principal {
    /// Returns a client that names these users without proof.
    pub fn anonymous(users: Vec<Name>) -> Self {
        Self::everything(users, Source::Anonymous)
    }

    /// Returns a client without a token, on a server where tokens name the users.
    pub fn stranger(grants: Arc<Grants>) -> Self {
        Principal { grants, ..Self::anonymous(Vec::new()) }
    }

    /// Returns the application.
    pub fn application() -> Self {
        Self::everything(Vec::new(), Source::Application)
    }

    /// Returns the application with a key of these scopes.
    pub fn application_with<'s>(scopes: impl IntoIterator<Item = &'s Scope>) -> Self {
        let mut patterns = Patterns::default();
        for scope in scopes {
            match scope {
                Scope::Admin => return Self::application(),
                Scope::Publish(pattern) => patterns.publish.push(pattern.clone()),
                // This scope shows nothing that belongs to a topic.
                Scope::Read => {}
            }
        }
        let grants = Arc::new(Grants::Patterns(patterns));
        Principal { grants, ..Self::application() }
    }

    /// Returns the bearer of a token for these users.
    pub fn token(users: Vec<Name>, grants: Arc<Grants>, expires: Option<u64>) -> Self {
        let mark = TokenMark::default();
        let (client, info, source) = (None, None, Source::Token);
        Principal { users, client, grants, info, expires, mark, source }
    }

    fn everything(users: Vec<Name>, source: Source) -> Self {
        let (grants, mark) = (EVERYTHING.clone(), TokenMark::default());
        Principal { users, client: None, grants, info: None, expires: None, mark, source }
    }

    /// True if it speaks for this user.
    pub fn is(&self, user: &str) -> bool {
        self.users.iter().any(|own| own == user)
    }

    /// True if its connections are in a topic of this kind by themselves: broadcast, and its users' own.
    pub fn owns(&self, kind: TopicKind<'_>) -> bool {
        match kind {
            TopicKind::Ordinary | TopicKind::Filter(_) => false,
            TopicKind::Personal(user) => self.is(user),
            TopicKind::Broadcast => true,
        }
    }

    /// True if it is no longer valid at this time, in seconds since 1970.
    pub fn is_expired(&self, now_s: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now_s)
    }
}
