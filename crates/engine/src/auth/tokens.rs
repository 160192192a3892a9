//! Tokens on open connections: a token names the connection's user, replaces one that expires, expires, or is
//! revoked.

use auth::{Authenticator, Principal, TokenError, Verified};
use model::name::personal;
use model::{CloseReason, CodedError, ErrorCode, Name};
use protocol::mqtt::ReasonCode;
use protocol::phoenix::{Content, ReplyStatus};
use protocol::request::TokenPurpose;
use protocol::{ReplyError, json};

use crate::auth::credentials::TokenDue;
use crate::connection::PendingToken;
use crate::core::Core;
use crate::core::command::Revocation;
use crate::core::reply_target::ReplyTarget;
use crate::core::responses::{refuse, reply};
use crate::engine::Engine;
use crate::limits::quota::limit_message;
use crate::mqtt::author;

impl Engine {
    /// The client sends a token.
    pub(crate) fn authenticate(&mut self, slot: u32, pending: PendingToken, out: &mut Vec<u8>) {
        let Some(protocol) = self.core.protocol(slot) else {
            return;
        };
        let done = match self.core.settings.session.auth.clone() {
            None => Err(CodedError::new(
                ErrorCode::NoTokens,
                "this server does not use tokens (configure them in [auth])",
            )),
            Some(auth) => match self.take_token(slot, &*auth, &pending) {
                Err(TokenRefused::KeysComing) => return self.wait_with(slot, pending, &*auth),
                Err(TokenRefused::Error(why)) => Err(why),
                Ok(ok) => Ok(ok),
            },
        };
        let entered = done.as_ref().map_or(&[][..], |(_, topics)| topics);
        match &pending.reply {
            ReplyTarget::Id(id) => {
                let result = done.as_ref().map(|(object, _)| object.as_str());
                let result = result.map_err(ReplyError::from);
                protocol.reply(id, result, &mut self.core.codecs, out);
            }
            ReplyTarget::Phoenix(message) => match &done {
                Ok((object, _)) => {
                    reply(protocol, message, ReplyStatus::Ok, Content::Json(object), out)
                }
                Err(error) => refuse(protocol, message, &error.phoenix_reason(), out),
            },
            ReplyTarget::MqttAuth(method) => {
                if let Some(mqtt) = self.core.mqtt_protocol(slot) {
                    if done.is_err() {
                        mqtt.disconnect(
                            ReasonCode::NotAuthorized,
                            &self.core.mqtt_limits(slot),
                            out,
                        );
                        return self.close_after(slot, CloseReason::Unauthorized, out);
                    }
                    mqtt.authenticated(method, out);
                }
            }
            // No request brings a token this way, and no message does.
            ReplyTarget::Http(_) | ReplyTarget::Mqtt(_) => {}
        }
        self.catch_up_user(slot, entered, out);
    }

    /// Does what the token is for. Returns the object of the reply, and the topics that the connection has entered.
    fn take_token(
        &mut self,
        slot: u32,
        auth: &dyn Authenticator,
        pending: &PendingToken,
    ) -> Result<(String, Vec<Name>), TokenRefused> {
        let verified = auth.verify(&pending.token, self.core.unix_s())?;
        let topics = match pending.purpose {
            TokenPurpose::Connect => self.connect_as(slot, verified)?,
            TokenPurpose::Refresh => {
                self.refresh(slot, verified)?;
                Vec::new()
            }
        };
        let principal = self.core.principal(slot);
        Ok((json::authenticated(&principal.users, principal.expires), topics))
    }

    /// Makes the token's users the users of the connection, as if the connect had named them. Where no token is
    /// required, the connection may be in topics already. Returns the topics that it has entered.
    fn connect_as(&mut self, slot: u32, verified: Verified) -> Result<Vec<Name>, CodedError> {
        let named = self.core.users(slot).next().is_some();
        // A connection that the application has admitted without a user may still name one.
        let credentials = &self.core.credentials;
        if named || credentials.has(slot) && !credentials.is_by_hook(slot) {
            let message = "this connection is already identified: send refresh with a new token";
            return Err(CodedError::new(ErrorCode::AlreadyConnected, message));
        }
        let max = self.core.settings.session.topics_per_connection_max;
        let topics = self.core.hub.count(slot) + self.core.joins.pending(slot);
        if topics + verified.users.len() > max {
            return Err(CodedError::new(
                ErrorCode::TooManyTopics,
                protocol::data::too_many_topics(max),
            ));
        }
        let (users, quota) = (&verified.users, &mut self.rates.quota);
        let capacity_reached = self.core.capacity_reached(users, [].iter());
        let rejection =
            capacity_reached.or_else(|| quota.open(&self.core, slot, users, topics + users.len()));
        if let Some(limited) = rejection {
            return Err(CodedError::new(limited.code(), limit_message(limited)));
        }
        if let Some(cold) = self.core.table.cold_mut(slot) {
            cold.stranger_since_s = None;
        }
        self.core.table.trim(slot);
        let principal = Principal::from(verified);
        if !self.core.hub.is_here(slot) {
            self.enter_hub(slot, &principal, &[]);
            return Ok(self.core.hub.topics_of(slot).cloned().collect());
        }
        let before: Vec<Name> = self.core.hub.topics_of(slot).cloned().collect();
        self.core.credentials.insert(slot, &principal);
        for user in &principal.users {
            self.join(slot, &personal(user), false);
            self.enter_presence_as(slot, user);
        }
        for user in &principal.users {
            for topic in self.core.shared.subscriptions.of(user) {
                let presence = self.core.settings.session.policy.topic(&topic).presence();
                if !self.join(slot, &topic, presence) && before.contains(&topic) {
                    self.explicit.insert(slot, self.core.broker.hash(&topic));
                }
            }
        }
        Ok(self.core.hub.topics_of(slot).filter(|topic| !before.contains(topic)).cloned().collect())
    }

    /// Replaces the token of a connection. The connection stays in its topics: the engine checks grants only when a
    /// request needs them.
    fn refresh(&mut self, slot: u32, verified: Verified) -> Result<(), CodedError> {
        if !self.core.credentials.has(slot) {
            let message = "this connection has no token to refresh: identify it with connect";
            return Err(CodedError::new(ErrorCode::NotConnected, message));
        }
        if !self.core.users(slot).all(|user| verified.users.iter().any(|it| it == user)) {
            let message = "the new token does not name all users of this connection: open a new connection \
                 for other users";
            return Err(CodedError::new(ErrorCode::NotYourUser, message));
        }
        // The connection goes on with the users that it has, though the token may be for more.
        let users = self.core.users(slot).map(Name::from).collect();
        let principal = Principal { users, ..verified.into() };
        self.core.credentials.insert(slot, &principal);
        let details = self.core.mqtt.details_mut(slot);
        if let Some(will) = details.and_then(|details| details.will.as_mut()) {
            will.author = author(&principal);
        }
        Ok(())
    }

    /// Verifies the token again when the keys have come. The engine reads nothing else from the client before.
    fn wait_with(&mut self, slot: u32, pending: PendingToken, auth: &dyn Authenticator) {
        if let Some(cold) = self.core.table.cold_or_new(slot) {
            cold.token = Some(Box::new(pending));
        }
        self.rates.wait_for_keys(&mut self.core, slot, auth.keys_version());
    }

    /// Verifies a token that has waited for keys.
    pub(crate) fn retry_token(&mut self, slot: u32) {
        let waiting = self.core.table.cold_mut(slot).and_then(|cold| cold.token.take());
        if let Some(pending) = waiting {
            let mut out = Vec::new();
            self.authenticate(slot, *pending, &mut out);
            if !out.is_empty() {
                self.send(slot, &out, 0);
            }
        }
    }

    /// A request can't be decided before keys have come.
    pub(crate) fn wait_for_keys(&mut self, slot: u32) {
        let version = self.core.settings.session.auth.as_ref().map_or(0, |it| it.keys_version());
        self.rates.wait_for_keys(&mut self.core, slot, version);
    }

    /// Does what is due because of a connection's token.
    pub(crate) fn token_due(&mut self, slot: u32, due: TokenDue) {
        match due {
            TokenDue::Expired => self.say_goodbye(slot, CloseReason::TokenExpired),
            // The client can do nothing about it.
            TokenDue::Refresh(_) => {}
            TokenDue::Warn(expires_s) => {
                self.core.credentials.set_warned(slot);
                let Some(protocol) = self.core.protocol(slot) else {
                    return;
                };
                let object = json::token_expiring(expires_s.into(), self.core.unix_s());
                let mut out = Vec::new();
                protocol.token_expiring(&object, &mut self.core.codecs, &mut out);
                if !out.is_empty() {
                    self.send(slot, &out, 0);
                }
            }
        }
    }

    /// Closes the connections whose tokens are revoked; returns their number.
    pub(crate) fn revoke(&mut self, revocation: &Revocation) -> u32 {
        let slots: Vec<u32> = match &revocation.user {
            Some(user) => {
                let topic = personal(user);
                self.core.hub.slots(self.core.broker.hash(&topic), &topic)
            }
            None => {
                (0..self.core.table.end()).filter(|it| self.core.credentials.has(*it)).collect()
            }
        };
        let mut closed = 0;
        for slot in slots {
            let mark = self.core.credentials.mark(slot).unwrap_or_default();
            if self.core.is_open(slot) && revocation.counts_for(mark) {
                // The will would be published with the authority of the revoked token.
                self.core.mqtt.details_mut(slot).into_iter().for_each(|it| it.will = None);
                self.say_goodbye(slot, CloseReason::TokenRevoked);
                closed += 1;
            }
        }
        closed
    }
}

/// Why a token is not accepted.
enum TokenRefused {
    /// Its keys are being fetched.
    KeysComing,
    /// The token is invalid here, or this connection takes none.
    Error(CodedError),
}

impl From<TokenError> for TokenRefused {
    fn from(error: TokenError) -> Self {
        if error == TokenError::KeysComing {
            return TokenRefused::KeysComing;
        }
        TokenRefused::Error(error.into())
    }
}

impl From<CodedError> for TokenRefused {
    fn from(error: CodedError) -> Self {
        TokenRefused::Error(error)
    }
}

impl Core {
    /// Returns what a connection shows in presence: its own payload, and its token's info under `info`.
    pub(crate) fn presence_meta<'m>(&self, slot: u32, meta: &'m str) -> std::borrow::Cow<'m, str> {
        let users: Vec<Name> = self.users(slot).map(Name::from).collect();
        match self.credentials.info(slot, &users) {
            Some(info) => json::with_info(meta, &info).into(),
            None => meta.into(),
        }
    }
}
