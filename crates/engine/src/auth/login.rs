//! Users that come and go on an open connection.
//!
//! A login does what the connect does for a user that it names: the user's own topic with its inbox,
//! the topics of the user's stored subscriptions, presence. A logout takes that back, but for topics
//! that another user of the connection has stored as well, and those that the client entered itself. A
//! topic that becomes a stored one while the connection is in it counts as the user's.

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
    /// The client logs another user in, and may do so.
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
                // What comes with the user counts as well.
                topics.iter().skip(1).for_each(|_| self.rates.has_joined(&mut self.core, slot));
                let object = logged_in_json(user, state);
                protocol.reply(id, Ok(&object), &mut self.core.codecs, out);
                topics
            }
            Err(error) => return login_error(protocol, id, error, &mut self.core, out),
        };
        self.catch_up_user(slot, &entered, out);
    }

    /// The client logs a user out, and may do so.
    pub(crate) fn logout_request(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        id: &str,
        user: &str,
        out: &mut Vec<u8>,
    ) {
        // A client whose users come and go all the time is slowed.
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

    /// Gives the topics that the connection has entered, the user's own first; none if it was in
    /// them already.
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
        // As at the connect, these are not refused; but they count for what is entered later.
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

    /// What the user's topics had before comes now, as at the connect. A Phoenix client follows what
    /// it joins.
    pub(crate) fn catch_up_user(&mut self, slot: u32, topics: &[Name], out: &mut Vec<u8>) {
        let joins = self.core.protocol(slot).is_none_or(|protocol| protocol.capabilities().joins);
        if !joins && !topics.is_empty() && self.core.history().retains_any() {
            self.recover(|recovery, core| {
                recovery.begin(core, slot, topics, &ResumeRequest::default(), ReplyTo::Line, out)
            });
        }
        self.core.send_due_lists(slot, out);
    }

    /// Appends what the connection is owed of the topics that it leaves with the user.
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

    /// Takes a connection out of a topic; what it is owed of it goes to `out`.
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
    // Only the object's own end: a name may end with a brace, behind which comes its quotation mark.
    format!("{},\"users\":{}}}", named.trim_end_matches('}'), state.users)
}

/// The topics that any of the users has stored.
fn stored_by(core: &Core, users: &[Name]) -> HashSet<Name> {
    users.iter().flat_map(|user| core.shared.subscriptions.of(user)).collect()
}

/// The slot of a connection that has users: a poll is a request, and comes again with its own.
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
