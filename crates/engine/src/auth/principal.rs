//! The principal of a connection.

use std::sync::Arc;

use auth::Principal;
use hub::Hub;
use model::{Envelope, Name, TopicKind};

use crate::auth::credentials::Credentials;
use crate::core::Core;
use crate::core::settings::Settings;
use crate::mqtt::Row;

impl Core {
    /// Returns the users of a connection. The hub has their own topics, so no connection stores its users a second
    /// time.
    pub(crate) fn users(&self, slot: u32) -> impl Iterator<Item = &str> {
        users(&self.hub, slot)
    }

    /// Returns the present principal of a connection: the user it connected as, and those it has logged in since.
    pub(crate) fn principal(&self, slot: u32) -> Principal {
        let client = self.mqtt.row(slot).map(Row::client);
        let found = principal(&self.hub, &self.credentials, &self.settings, slot);
        Principal { client, ..found }
    }

    /// Returns the sender of what a connection publishes: its first user.
    pub(crate) fn sender(&self, slot: u32) -> Option<Name> {
        self.users(slot).next().map(Name::from)
    }

    /// True when a connection is in the topic by itself: it is everyone's, or a user's own. A Phoenix client joins
    /// such a topic to see messages that it gets anyway.
    pub(crate) fn is_own(&self, slot: u32, topic: &str) -> bool {
        let kind = TopicKind::of(topic);
        !kind.is_ordinary() && self.principal(slot).owns(kind)
    }
}

fn users(hub: &Hub<Arc<Envelope>>, slot: u32) -> impl Iterator<Item = &str> {
    hub.topics_of(slot).filter_map(|name| TopicKind::of(name).user())
}

/// As [`Core::principal`], while other parts of the core are borrowed. It scans all of the connection's topics.
pub(crate) fn principal(
    hub: &Hub<Arc<Envelope>>,
    credentials: &Credentials,
    settings: &Settings,
    slot: u32,
) -> Principal {
    let users = users(hub, slot).map(Name::from).collect();
    credentials.principal(slot, users).unwrap_or_else(|users| match &settings.session.auth {
        // Tokens are configured, but this connection has none: its users come from the application.
        Some(auth) => Principal { users, ..Principal::stranger(auth.anonymous_grants()) },
        None => Principal::anonymous(users),
    })
}
