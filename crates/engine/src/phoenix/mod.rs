//! Requests of Phoenix clients: joins, leaves, and events for their topics.

pub(crate) mod joins;
pub(crate) mod longpoll;

use auth::{Action, Consent, Decision, Hook, Permit, Principal};
use model::ResumeRequest;
use model::event::check_event;
use model::filter::has_wildcard;
use model::name::{check_name, check_topic, filter, of_filter};
use model::{Attributes, Data, Name, Publication, Topic, TopicKind};
use protocol::history::NO_HISTORY;
use protocol::phoenix::{self, ClientMessage, Content, Event, Join, JoinFields, ReplyStatus};
use protocol::request::{Acknowledgement, TokenPurpose};
use protocol::{Delivery, ProtocolRef, wildcards};

use crate::connection::PendingToken;
use crate::core::metrics::Limited;
use crate::core::reply_target::ReplyTarget;
use crate::core::responses::{NO_USER, NOTHING, acknowledged_json, refuse, reply, say};
use crate::engine::Engine;
use crate::limits::quota::limit_message;
use crate::recovery::ReplyTo;
use crate::webhook::WebhookResponse;
use crate::webhook::pending_hook::PendingHook;
use crate::webhook::request::{HookRequest, busy, send_requests};

impl Engine {
    /// Carries out the message. Replies go to `out`, which for a long-poll session are the elements of its next
    /// reply.
    pub(crate) fn on_phoenix_message(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        mut message: ClientMessage,
        out: &mut Vec<u8>,
    ) {
        if self.charge_phoenix(slot, protocol, &message, out) {
            return;
        }
        let kind = message.kind();
        if kind != Event::Join
            && let Some(filter) = self.joined_filter(slot, &message.topic)
        {
            message.topic = filter;
        }
        match kind {
            Event::Heartbeat => reply(protocol, &message, ReplyStatus::Ok, NOTHING, out),
            Event::Join => self.phoenix_join(slot, protocol, message, out),
            Event::Leave => self.phoenix_leave(slot, protocol, &message, out),
            Event::Other => self.phoenix_event(slot, protocol, message, out),
        }
    }

    /// Returns the name of the filter that the client has joined as this channel, if it has.
    fn joined_filter(&self, slot: u32, topic: &str) -> Option<Name> {
        if !has_wildcard(topic) {
            return None;
        }
        let (name, core) = (filter(None, topic), &self.core);
        let is_joined = core.joins.get(slot, core.broker.hash(&name)).is_some();
        is_joined.then_some(name)
    }

    /// Returns the name of the filter that a join requests, if it requests one. The error says why the client may not
    /// join it.
    fn requested_filter(&self, topic: &str, join: &Join<'_>) -> Result<Option<Name>, String> {
        if !join.is_filter {
            return Ok(None);
        }
        let name =
            wildcards::subscription_name(topic).map_err(|error| error.message.into_owned())?;
        let settings = &self.core.settings.session;
        wildcards::check_allowed(&name, settings).map_err(|error| error.message.into_owned())?;
        let since = join.since.as_ref().map_err(String::clone)?;
        wildcards::check_since(&name, since.as_ref())
            .map_err(|error| error.message.into_owned())?;
        if of_filter(&name).is_some() && join.has_tags_or_meta() {
            return Err("a filter with a wildcard has no tags and no meta".into());
        }
        Ok(Some(name))
    }

    fn phoenix_join(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        mut message: ClientMessage,
        out: &mut Vec<u8>,
    ) {
        let payload = take_payload(&mut message);
        let join = match Join::parse(&payload) {
            Ok(join) => join,
            Err(wrong) => return refuse(protocol, &message, &wrong, out),
        };
        match self.requested_filter(&message.topic, &join) {
            Ok(None) => {}
            Ok(Some(filter)) => message.topic = filter,
            Err(wrong) => return refuse(protocol, &message, &wrong, out),
        }
        if message.topic == phoenix::TOPIC_PHOENIX {
            return refuse(protocol, &message, "unmatched topic", out);
        }
        if protocol.delivery() == Delivery::Gathered
            && let Some(why) = self.rates.join_refusal(&mut self.core, slot)
        {
            return refuse(protocol, &message, why, out);
        }
        self.rates.has_joined(&mut self.core, slot);
        let settings = self.core.settings.clone();
        let (policy, name) = (&settings.session.policy, message.topic.clone());
        let (topic, principal) = (policy.topic(&name), self.core.principal(slot));
        let own = principal.owns(topic.kind);
        // The filter has been checked.
        let is_filter = matches!(topic.kind, TopicKind::Filter(_));
        if !own
            && !is_filter
            && let Err(wrong) = check_topic(&message.topic)
        {
            return refuse(protocol, &message, wrong, out);
        }
        let hash = self.core.broker.hash(&message.topic);
        // A client that joins again has lost its first join: the old one ends.
        let recovers = !own && topic.history().is_some() && matches!(join.since, Ok(Some(_)));
        if recovers && self.core.joins.get(slot, hash).is_some() {
            // The new catch-up includes what the client is still owed.
            self.recover(|recovery, core| recovery.reply_waiting(core, slot, hash, out));
            self.leave(slot, &message.topic);
        }
        let end = self.phoenix_end_join(slot, protocol, &message.topic, hash, out);
        out.extend_from_slice(&end);
        if !self.core.is_open(slot) {
            return;
        }
        let fields = match self.join_fields(slot, &name, own, payload.bytes(), join) {
            Ok(fields) => fields,
            Err(why) => return refuse(protocol, &message, &why, out),
        };
        match self.decide_join(&principal, &topic, &fields) {
            Decision::Deny(deny) => refuse(protocol, &message, &deny.phoenix_reason(), out),
            Decision::Allow(permit) => {
                self.core.joins.insert(slot, hash, join_ref(&message));
                self.phoenix_joined(slot, message, fields, permit, "{}".into(), out);
            }
            Decision::Webhook(_) => {
                self.core.joins.insert(slot, hash, join_ref(&message));
                self.request_join(slot, protocol, hash, ClientMessage { payload, ..message }, out);
            }
        }
    }

    /// Returns the fields of a join that is within all limits. The error says which limit is reached, or which field
    /// is invalid.
    fn join_fields<'a>(
        &mut self,
        slot: u32,
        topic: &Name,
        own: bool,
        payload_bytes: usize,
        join: Join<'a>,
    ) -> Result<JoinFields<'a>, String> {
        let Engine { core, rates, .. } = self;
        let max = core.settings.session.topics_per_connection_max;
        let is_in = own || core.hub.topics_of(slot).any(|name| name == topic);
        if !is_in && core.hub.count(slot) + core.joins.pending(slot) >= max {
            core.metrics.limited[Limited::Topics as usize].add(1);
            return Err("too many channels joined".into());
        }
        let capacity_reached = || core.capacity_reached(&[], std::iter::once(topic));
        if !is_in
            && let Some(limited) = rates.quota.topics_reached(core, slot).or_else(capacity_reached)
        {
            return Err(limit_message(limited));
        }
        match self.too_large(payload_bytes) {
            Some(why) => Err(why),
            None => join.fields(self.core.settings.presence_meta_bytes_max),
        }
    }

    /// Decides whether a client may join, by its own token or by one for the topic that comes with the join. To
    /// request earlier messages is to read history, unless the client resumes.
    fn decide_join(
        &self,
        principal: &Principal,
        topic: &Topic<'_, '_>,
        fields: &JoinFields<'_>,
    ) -> Decision {
        let core = &self.core;
        let (settings, now_s) = (&core.settings.session, core.unix_s());
        let verify = |token: &str| settings.auth.as_ref()?.verify_topic(token, now_s).ok();
        let token = fields.token.as_deref().and_then(verify);
        let policy = &settings.policy;
        let decide = |action| policy.decide_with(principal, action, topic, &token);
        let decision = decide(Action::Subscribe);
        let reads = fields.since.as_ref().is_some_and(|since| since.token().is_none());
        if !matches!(decision, Decision::Deny(_))
            && reads
            && let Decision::Deny(deny) = decide(Action::History)
        {
            return Decision::Deny(deny);
        }
        decision
    }

    /// The join is allowed: the connection enters the topic, and gets the reply when its start position is known.
    fn phoenix_joined(
        &mut self,
        slot: u32,
        message: ClientMessage,
        fields: JoinFields<'_>,
        permit: Permit,
        response: Box<str>,
        out: &mut Vec<u8>,
    ) {
        let JoinFields { meta, since, tags, token: _ } = fields;
        let topic = message.topic.clone();
        if !self.core.is_own(slot, &topic) {
            self.join_with(slot, &topic, permit.presence, meta.unwrap_or("{}"));
        }
        self.recovery.catchups.choose(&mut self.core, slot, Some(&topic), &tags);
        let topics = since.map(|since| (topic.clone(), since)).into_iter().collect();
        let request = ResumeRequest { all: None, topics };
        let to = ReplyTo::Phoenix(message.into(), response);
        self.recover(|recovery, core| {
            recovery.begin(core, slot, std::slice::from_ref(&topic), &request, to, out)
        });
    }

    fn phoenix_leave(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        message: &ClientMessage,
        out: &mut Vec<u8>,
    ) {
        let hash = self.core.broker.hash(&message.topic);
        if let Some(join) = self.core.joins.get(slot, hash)
            && message.join_ref.as_deref().is_some_and(|of| of != join.join_ref)
        {
            return;
        }
        // The client still gets earlier messages, before the reply; after the reply comes the end of the join.
        let end = self.phoenix_end_join(slot, protocol, &message.topic, hash, out);
        reply(protocol, message, ReplyStatus::Ok, NOTHING, out);
        out.extend_from_slice(&end);
    }

    /// Returns the error of a message that is too large.
    fn too_large(&self, payload_bytes: usize) -> Option<String> {
        let max = self.core.settings.session.message_bytes_max;
        (payload_bytes > max).then(|| {
            let limited = &self.core.metrics.limited;
            limited[Limited::MessageBytes as usize].add(1);
            protocol::data::too_large(max)
        })
    }

    fn phoenix_event(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        message: ClientMessage,
        out: &mut Vec<u8>,
    ) {
        if message.event == phoenix::EVENT_ACCESS_TOKEN && self.core.settings.session.auth.is_some()
        {
            return self.phoenix_refresh(slot, protocol, message, out);
        }
        let hash = self.core.broker.hash(&message.topic);
        let join = self.core.joins.get(slot, hash).filter(|join| !join.pending);
        let Some(join) = join else {
            let unmatched = ClientMessage { join_ref: None, ..message };
            return refuse(protocol, &unmatched, "unmatched topic", out);
        };
        if message.join_ref.as_deref().is_some_and(|of| of != join.join_ref) {
            // It belongs to an earlier join.
            return refuse(protocol, &message, "unmatched topic", out);
        }
        if let Some(why) = self.too_large(message.payload.bytes()) {
            return refuse(protocol, &message, &why, out);
        }
        if let Err(wrong) = check_name(&message.event) {
            return refuse(protocol, &message, wrong, out);
        }
        let settings = self.core.settings.clone();
        let (policy, name) = (&settings.session.policy, message.topic.clone());
        let topic = policy.topic(&name);
        if message.event == phoenix::EVENT_PRESENCE_UPDATE && topic.presence() {
            return self.phoenix_presence_update(slot, protocol, &message, hash, out);
        }
        let is_acknowledged = topic.history().is_some_and(|history| history.acknowledge.is_some());
        if message.event == phoenix::EVENT_ACK && is_acknowledged {
            return self.phoenix_ack(slot, protocol, &message, out);
        }
        let is_history = message.event == phoenix::EVENT_HISTORY;
        if is_history && topic.history().is_some() {
            return self.phoenix_history(slot, protocol, message, out);
        }
        match policy.decide(&self.core.principal(slot), Action::Publish, &topic) {
            Decision::Deny(_) if is_history => refuse(protocol, &message, NO_HISTORY, out),
            Decision::Deny(deny) => refuse(protocol, &message, &deny.phoenix_reason(), out),
            // An event for the application alone may have any name: no member gets it.
            Decision::Webhook(Hook::Message) => {
                let consent = Consent::Requested(Hook::Message);
                self.phoenix_publish(slot, protocol, message, consent, out);
            }
            Decision::Webhook(hook) => {
                self.phoenix_say(slot, protocol, message, Consent::Requested(hook), out)
            }
            Decision::Allow(permit) => {
                self.phoenix_say(slot, protocol, message, Consent::Given(permit), out);
            }
        }
    }

    /// Publishes an event to members.
    fn phoenix_say(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        message: ClientMessage,
        consent: Consent,
        out: &mut Vec<u8>,
    ) {
        match check_event(&message.event) {
            Ok(()) => self.phoenix_publish(slot, protocol, message, consent, out),
            Err(error) => refuse(protocol, &message, &error.phoenix_reason(), out),
        }
    }

    /// The client sends a new token in place of the one that expires.
    fn phoenix_refresh(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        message: ClientMessage,
        out: &mut Vec<u8>,
    ) {
        match phoenix::access_token(&message.payload) {
            Ok(token) => {
                let reply = ReplyTarget::Phoenix(message.into());
                let pending = PendingToken { token, purpose: TokenPurpose::Refresh, reply };
                self.authenticate(slot, pending, out);
            }
            Err(wrong) => refuse(protocol, &message, wrong, out),
        }
    }

    fn phoenix_publish(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        mut message: ClientMessage,
        consent: Consent,
        out: &mut Vec<u8>,
    ) {
        // The payload is the application's, the key included.
        let key = match consent {
            Consent::Requested(Hook::Message) => Ok(None),
            Consent::Given(_) | Consent::Requested(_) => phoenix::take_key(&mut message.payload),
        };
        let key = match key {
            Ok(key) => key,
            Err(wrong) => return refuse(protocol, &message, &wrong, out),
        };
        let topic = &message.topic;
        if protocol.delivery() == Delivery::Gathered
            && let Some(why) = self.rates.publish_refusal(&mut self.core, slot, topic)
        {
            return refuse(protocol, &message, why, out);
        }
        let data = take_payload(&mut message);
        let publication = Publication {
            event: Some(message.event.clone()).filter(|event| event != "message"),
            attributes: Attributes::of(Vec::new(), key),
            ..Publication::new(message.topic.clone(), data)
        };
        let to = ReplyTarget::Phoenix(message.into());
        self.client_publish(slot, publication, consent, to, out);
    }

    fn phoenix_ack(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        message: &ClientMessage,
        out: &mut Vec<u8>,
    ) {
        let id = match phoenix::ack_id(&message.payload) {
            Ok(id) => id,
            Err(wrong) => return refuse(protocol, message, &wrong, out),
        };
        let acknowledged = Acknowledgement { user: None, topic: Some(message.topic.clone()), id };
        let core = &mut self.core;
        match core.acknowledge(Some(slot), &core.principal(slot), acknowledged) {
            Ok((topic, position)) => {
                let response = acknowledged_json(&topic, position);
                reply(protocol, message, ReplyStatus::Ok, Content::Json(&response), out);
            }
            Err(error) => refuse(protocol, message, &error.to_string(), out),
        }
    }

    /// Sends a page of the topic's history. Each client that has joined may read it, even if the application has
    /// decided about the join.
    fn phoenix_history(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        mut message: ClientMessage,
        out: &mut Vec<u8>,
    ) {
        let core = &mut self.core;
        let (settings, principal) = (core.settings.clone(), core.principal(slot));
        let policy = &settings.session.policy;
        let decision = policy.decide(&principal, Action::History, &policy.topic(&message.topic));
        if let Decision::Deny(deny) = decision {
            return refuse(protocol, &message, &deny.phoenix_reason(), out);
        }
        if protocol.delivery() == Delivery::Gathered
            && let Some(why) = self.rates.join_refusal(core, slot)
        {
            return refuse(protocol, &message, why, out);
        }
        match phoenix::history_page(&message.topic, &message.payload) {
            Ok(page) => {
                // The waiting message is small: no limit counts it.
                drop(take_payload(&mut message));
                let (to, from) = (ReplyTarget::Phoenix(message.into()), out.len());
                self.read_page(slot, page, to, from, out);
            }
            Err(wrong) => refuse(protocol, &message, &wrong, out),
        }
    }

    fn phoenix_presence_update(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        message: &ClientMessage,
        hash: u64,
        out: &mut Vec<u8>,
    ) {
        let meta_bytes_max = self.core.settings.presence_meta_bytes_max;
        if protocol.delivery() == Delivery::Gathered
            && let Some(why) = self.rates.join_refusal(&mut self.core, slot)
        {
            return refuse(protocol, message, why, out);
        }
        self.rates.has_joined(&mut self.core, slot);
        let core = &mut self.core;
        match phoenix::meta(&message.payload, meta_bytes_max) {
            Ok(meta)
                if {
                    let meta = core.presence_meta(slot, meta);
                    core.entries.update(slot, hash, &meta, core.now_us)
                } =>
            {
                reply(protocol, message, ReplyStatus::Ok, NOTHING, out);
            }
            Ok(_) => {
                refuse(protocol, message, NO_USER, out);
            }
            Err(wrong) => refuse(protocol, message, &wrong, out),
        }
    }

    /// Requests the application's decision whether the client may join.
    fn request_join(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        hash: u64,
        message: ClientMessage,
        out: &mut Vec<u8>,
    ) {
        let core = &mut self.core;
        let number = core.joins.begin(slot, hash, &message.topic);
        let users = core.users(slot).map(Into::into).collect();
        // The payload is needed again when the join is allowed.
        let (topic, payload) = (message.topic.clone(), Some(message.payload.clone()));
        let hook = PendingHook::Join(number, message.into());
        let mut requested = HookRequest::subscribe(topic, users, protocol.name(), hook);
        requested.details.payload = payload;
        let Err(not_sent) = send_requests(core, slot, vec![requested]) else {
            return;
        };
        let response = match core.settings.silence_allows {
            true => WebhookResponse::yes(),
            false => WebhookResponse::Error(busy().into()),
        };
        for hook in not_sent.hooks {
            if let PendingHook::Join(number, message) = hook {
                return self.join_decided(slot, protocol, number, *message, response, out);
            }
        }
    }

    /// The application has decided whether a client may join.
    pub(crate) fn on_join_response(
        &mut self,
        slot: u32,
        number: u32,
        message: ClientMessage,
        response: WebhookResponse,
    ) {
        let Some(protocol) = self.core.protocol(slot) else {
            return;
        };
        let mut out = Vec::new();
        self.join_decided(slot, protocol, number, message, response, &mut out);
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
    }

    fn join_decided(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        number: u32,
        mut message: ClientMessage,
        response: WebhookResponse,
        out: &mut Vec<u8>,
    ) {
        let core = &mut self.core;
        let hash = core.broker.hash(&message.topic);
        if !core.joins.on_response(slot, hash, number) {
            return;
        }
        match response.entered(&core.settings) {
            Ok((response, meta)) => {
                // The rule may have changed since the request to the application.
                let settings = core.settings.clone();
                let permit = Permit::of(&settings.session.policy.topic(&message.topic));
                let payload = take_payload(&mut message);
                // The fields were valid at the request to the application. The limit may be lower now.
                let fields = Join::parse(&payload).and_then(|join| join.fields(usize::MAX));
                let mut fields = fields.unwrap_or_default();
                let own = fields.meta.filter(|meta| meta.len() <= settings.presence_meta_bytes_max);
                fields.meta = meta.as_deref().or(own);
                self.phoenix_joined(slot, message, fields, permit, response, out);
            }
            Err(refusal) => {
                core.joins.remove(slot, hash);
                let response = Content::Json(&refusal.response);
                reply(protocol, &message, ReplyStatus::Error, response, out);
            }
        }
    }
}

impl Engine {
    /// The connection has left a topic without a `phx_leave`: ends its join, if it has one.
    pub(crate) fn phoenix_left(&mut self, slot: u32, topic: &str, out: &mut Vec<u8>) {
        let Some(protocol) = self.core.protocol(slot) else {
            return;
        };
        if protocol.capabilities().joins {
            let hash = self.core.broker.hash(topic);
            let end = self.phoenix_end_join(slot, protocol, topic, hash, out);
            out.extend_from_slice(&end);
        }
    }

    /// Ends a join, if the connection has one, and appends the messages that it is still owed to `out`. Returns the
    /// message that the join has ended.
    fn phoenix_end_join(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        topic: &str,
        hash: u64,
        out: &mut Vec<u8>,
    ) -> Vec<u8> {
        let mut end = Vec::new();
        let Some(join) = self.core.joins.get(slot, hash) else {
            return end;
        };
        let join_ref = join.join_ref.into_owned();
        self.core.joins.remove(slot, hash);
        if self.core.is_own(slot, topic) {
            self.recover(|recovery, core| recovery.reply_waiting(core, slot, hash, out));
            self.recovery.end_topic(slot, hash);
        } else {
            self.recover(|recovery, core| recovery.flush_owed(core, slot, Some(topic), out));
            self.leave(slot, topic);
        }
        say(protocol, &mut end, |serializer, end| serializer.close(&join_ref, topic, end));
        end
    }
}

/// Takes the payload out of a message that only waits for its reply and needs none.
fn take_payload(message: &mut ClientMessage) -> Data {
    std::mem::replace(&mut message.payload, Data::Binary([].into()))
}

/// Returns the join's ref, as the client knows it; clients of old versions have only the message's.
fn join_ref(message: &ClientMessage) -> &str {
    message.join_ref.as_deref().or(message.ref_.as_deref()).unwrap_or_default()
}
