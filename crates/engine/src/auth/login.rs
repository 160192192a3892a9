//! Logins and logouts of users on an open connection.
//!
//! A login does what the connect does for a user that it names: it enters the user's own topic with its inbox, the
//! topics of the user's stored subscriptions, and presence. A logout takes that back, but not topics that another
//! user of the connection has stored as well, nor those that the client entered itself. A topic that becomes a stored
//! one while the connection is in it counts as the user's.

use std::collections::HashSet;

use model::name::personal;
use model::{CodedError, ConnectionId, Name, ResumeRequest};
use protocol::{Delivery, ProtocolRef};

use crate::core::Core;
use crate::core::command::{LoggedIn, LoginError};
use crate::core::count::count;
use crate::engine::Engine;
use crate::recovery::ReplyTo;

impl Engine {
    /// The client logs another user in. It has permission.
    pub(crate) fn login_request(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        id: &str,
        user: &str,
        out: &mut Vec<u8>,
    ) {
        self.rates.has_joined(&mut self.core, slot);
        let entered = match self.enter_user(slot, user) {
            Ok((state, topics)) => {
                // The user's stored topics count as joins as well.
                topics.iter().skip(1).for_each(|_| self.rates.has_joined(&mut self.core, slot));
                let object = logged_in_json(user, state);
                protocol.reply(id, Ok(&object), &mut self.core.codecs, out);
                topics
            }
            Err(error) => return login_error(protocol, id, error, &mut self.core, out),
        };
        self.catch_up_user(slot, &entered, out);
    }

    /// The client logs a user out. It has permission.
    pub(crate) fn logout_request(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        id: &str,
        user: &str,
        out: &mut Vec<u8>,
    ) {
        // A client that logs users in and out all the time is slowed down.
        self.rates.has_joined(&mut self.core, slot);
        match self.leave_user(slot, user, out) {
            Ok(state) => {
                let object = logged_out_json(user, state);
                protocol.reply(id, Ok(&object), &mut self.core.codecs, out);
            }
            Err(error) => login_error(protocol, id, error, &mut self.core, out),
        }
    }

    /// The application logs a user in.
    pub(crate) fn login(
        &mut self,
        connection: ConnectionId,
        user: &str,
    ) -> Result<LoggedIn, LoginError> {
        let slot = lasting(&self.core, connection)?;
        let (state, topics) = self.enter_user(slot, user)?;
        let mut out = Vec::new();
        self.catch_up_user(slot, &topics, &mut out);
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
        Ok(state)
    }

    /// The application logs a user out.
    pub(crate) fn logout(
        &mut self,
        connection: ConnectionId,
        user: &str,
    ) -> Result<LoggedIn, LoginError> {
        let slot = lasting(&self.core, connection)?;
        let mut out = Vec::new();
        let state = self.leave_user(slot, user, &mut out)?;
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
        Ok(state)
    }

    /// Returns the topics that the connection has entered, the user's own first; none if the user was logged in
    /// already.
    fn enter_user(&mut self, slot: u32, user: &str) -> Result<(LoggedIn, Vec<Name>), LoginError> {
        if self.core.users(slot).any(|known| known == user) {
            let users = count(self.core.users(slot).count());
            return Ok((LoggedIn { users, already: true }, Vec::new()));
        }
        let max = self.core.settings.session.topics_per_connection_max;
        let subscribing = self.core.table.cold(slot).map_or(0, |cold| cold.subscribing.len());
        if self.core.hub.count(slot) + self.core.joins.pending(slot) + subscribing >= max {
            return Err(LoginError::TooManyTopics);
        }
        self.rates.quota.forget(slot);
        let others: Vec<Name> = self.core.users(slot).map(Name::from).collect();
        self.core.credentials.users_change(slot, others.clone());
        self.core.mqtt_pin(slot);
        let own = personal(user);
        self.join(slot, &own, false);
        self.enter_presence_as(slot, user);
        let (mut entered, mut stored) = (vec![own], None);
        // As at the connect, no limit rejects these topics; but they count against what the client enters later.
        for topic in self.core.shared.subscriptions.of(user) {
            let presence = self.core.settings.session.policy.topic(&topic).presence();
            if self.join(slot, &topic, presence) {
                entered.push(topic);
            } else if !stored.get_or_insert_with(|| stored_by(&self.core, &others)).contains(&topic)
            {
                self.explicit.insert(slot, self.core.broker.hash(&topic));
            }
        }
        Ok((LoggedIn { users: count(others.len() + 1), already: false }, entered))
    }

    /// Sends what the user's topics had before, as at the connect. A Phoenix client gets none: it recovers the topics
    /// that it joins.
    pub(crate) fn catch_up_user(&mut self, slot: u32, topics: &[Name], out: &mut Vec<u8>) {
        let joins = self.core.protocol(slot).is_none_or(|protocol| protocol.capabilities().joins);
        if !joins && !topics.is_empty() && self.core.history().retains_any() {
            self.recover(|recovery, core| {
                recovery.begin(core, slot, topics, &ResumeRequest::default(), ReplyTo::Line, out)
            });
        }
        self.core.send_due_lists(slot, out);
    }

    /// Takes the user's topics away and appends the messages of theirs that are still due to the connection.
    fn leave_user(
        &mut self,
        slot: u32,
        user: &str,
        out: &mut Vec<u8>,
    ) -> Result<LoggedIn, LoginError> {
        let (own, others): (Vec<Name>, Vec<Name>) =
            self.core.users(slot).map(Name::from).partition(|known| known == user);
        if own.is_empty() {
            return Err(LoginError::NotLoggedIn);
        }
        self.rates.quota.forget(slot);
        let before = self.core.users(slot).map(Name::from).collect();
        self.core.credentials.users_change(slot, before);
        self.core.entries.leave_as(slot, user, self.core.now_us);
        self.leave_topic(slot, &personal(user), out);
        let mut stored = None;
        for topic in self.core.shared.subscriptions.of(user) {
            let hash = self.core.broker.hash(&topic);
            if self.core.joins.get(slot, hash).is_some() || self.explicit.holds(slot, hash) {
                continue;
            }
            if !stored.get_or_insert_with(|| stored_by(&self.core, &others)).contains(&topic) {
                self.leave_topic(slot, &topic, out);
            }
        }
        self.recover(|recovery, core| recovery.begin_as_others(core, slot, user, out));
        Ok(LoggedIn { users: count(others.len()), already: false })
    }

    /// Takes a connection out of a topic; the topic's messages that are due to it go to `out`.
    pub(crate) fn leave_topic(&mut self, slot: u32, topic: &str, out: &mut Vec<u8>) -> bool {
        self.give_up_subscribing(slot, topic, out);
        self.recover(|recovery, core| recovery.flush_owed(core, slot, Some(topic), out));
        self.mqtt_left(slot, topic);
        let left = self.leave(slot, topic);
        self.phoenix_left(slot, topic, out);
        left
    }
}

/// `{"user":"…","users":2,"already":false}`
fn logged_in_json(user: &str, state: LoggedIn) -> String {
    let named = logged_out_json(user, state);
    format!("{},\"already\":{}}}", named.trim_end_matches('}'), state.already)
}

/// `{"user":"…","users":1}`
fn logged_out_json(user: &str, state: LoggedIn) -> String {
    let named = crate::core::responses::named("user", user);
    // Trims only the object's own end: a name may end with a brace, but its quotation mark follows it.
    format!("{},\"users\":{}}}", named.trim_end_matches('}'), state.users)
}

/// Returns the topics that any of the users has stored.
fn stored_by(core: &Core, users: &[Name]) -> HashSet<Name> {
    users.iter().flat_map(|user| core.shared.subscriptions.of(user)).collect()
}

/// Returns the slot of a connection that can have users. A poll can't: it is one request, and the next one names its
/// own users.
fn lasting(core: &Core, connection: ConnectionId) -> Result<u32, LoginError> {
    let ConnectionId { slot, serial, .. } = connection;
    let found = core.table.get(slot).filter(|found| {
        found.serial == serial && !found.is_closing() && core.delivery(found) != Delivery::Woken
    });
    match found {
        Some(_) if core.hub.is_here(slot) => Ok(slot),
        _ => Err(LoginError::NoConnection),
    }
}

fn login_error(
    protocol: ProtocolRef,
    id: &str,
    error: LoginError,
    core: &mut Core,
    out: &mut Vec<u8>,
) {
    let error = CodedError::from(error);
    protocol.reply(id, Err((&error).into()), &mut core.codecs, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_objects_whatever_the_user_is_called() {
        for user in ["alice", "a}", "\"}}", "é\\"] {
            let state = LoggedIn { users: 3, already: true };
            let read = |json: String| serde_json::from_str::<serde_json::Value>(&json).unwrap();
            let want = serde_json::json!({"user": user, "users": 3, "already": true});
            assert_eq!(read(logged_in_json(user, state)), want);
            let want = serde_json::json!({"user": user, "users": 3});
            assert_eq!(read(logged_out_json(user, state)), want);
        }
    }
}
