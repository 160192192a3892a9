//! Who speaks on a connection.

use std::sync::Arc;

use auth::Principal;
use hub::Hub;
use model::{Envelope, Name, TopicKind};

use crate::auth::credentials::Credentials;
use crate::core::Core;
use crate::core::settings::Settings;
use crate::mqtt::Row;

impl Core {
    /// The users of a connection. Their own topics in the hub say who they are, so that nothing else
    /// has to be held for each connection.
    pub(crate) fn users(&self, slot: u32) -> impl Iterator<Item = &str> {
        users(&self.hub, slot)
    }

    /// Who speaks on a connection now: whoever it said it is, and whom it was logged in as since.
    pub(crate) fn principal(&self, slot: u32) -> Principal {
        let client = self.mqtt.row(slot).map(Row::client);
        let found = principal(&self.hub, &self.credentials, &self.settings, slot);
        Principal { client, ..found }
    }

    /// Who is named as the sender of what a connection publishes: its first user.
    pub(crate) fn sender(&self, slot: u32) -> Option<Name> {
        self.users(slot).next().map(Name::from)
    }

    /// Whether a connection is in the topic by itself: everyone's, or its users' own. To join it lets a
    /// Phoenix client hear what comes anyway.
    pub(crate) fn is_own(&self, slot: u32, topic: &str) -> bool {
        let kind = TopicKind::of(topic);
        !kind.is_ordinary() && self.principal(slot).owns(kind)
    }
}

fn users(hub: &Hub<Arc<Envelope>>, slot: u32) -> impl Iterator<Item = &str> {
    hub.topics_of(slot).filter_map(|name| TopicKind::of(name).user())
}

/// As [`Core::principal`], for while other parts of the core are borrowed. It looks at all of the
/// connection's topics.
pub(crate) fn principal(
    hub: &Hub<Arc<Envelope>>,
    credentials: &Credentials,
    settings: &Settings,
    slot: u32,
) -> Principal {
    let users = users(hub, slot).map(Name::from).collect();
    credentials.principal(slot, users).unwrap_or_else(|users| match &settings.session.auth {
        // It has no token, where tokens say who may do what: whoever it is was said by the application.
        Some(auth) => Principal { users, ..Principal::stranger(auth.anonymous_grants()) },
        None => Principal::anonymous(users),
    })
}
