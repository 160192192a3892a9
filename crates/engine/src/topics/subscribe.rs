//! Topics that a client enters and leaves by commands with an id.

use auth::{Consent, Permit};
use model::{ErrorCode, Name, ResumeRequest};
use protocol::request::Subscribe;
use protocol::{ProtocolRef, ReplyError, data};

use crate::connection::Subscribing;
use crate::core::metrics::Limited;
use crate::core::responses::{NOT_SUBSCRIBED, named};
use crate::engine::Engine;
use crate::limits::quota::limit_message;
use crate::recovery::ReplyTo;
use crate::webhook::pending_hook::PendingHook;
use crate::webhook::request::{HookRequest, busy, send_requests};
use crate::webhook::{Refusal, WebhookResponse};

impl Engine {
    pub(crate) fn unsubscribe(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        id: &str,
        topic: &Name,
        out: &mut Vec<u8>,
    ) {
        let named = named("topic", topic);
        let given_up = self.give_up_subscribing(slot, topic, out);
        self.recover(|recovery, core| recovery.flush_owed(core, slot, Some(topic), out));
        let result = match self.leave(slot, topic) || given_up {
            true => Ok(named.as_str()),
            false => Err(ReplyError::new(ErrorCode::NotSubscribed, NOT_SUBSCRIBED)),
        };
        protocol.reply(id, result, &mut self.core.codecs, out);
    }

    pub(crate) fn subscribe(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        id: Box<str>,
        subscription: Subscribe,
        consent: Consent,
        out: &mut Vec<u8>,
    ) {
        let Engine { core, rates, .. } = self;
        rates.has_joined(core, slot);
        let meta = subscription.meta.as_deref().unwrap_or("{}");
        core.count_presence_payload(meta);
        if let Err(wrong) = data::meta(meta, core.settings.presence_meta_bytes_max) {
            let error = ReplyError::new(ErrorCode::BadMeta, &wrong);
            return protocol.reply(&id, Err(error), &mut core.codecs, out);
        }
        let max = core.settings.session.topics_per_connection_max;
        let is_in = core.hub.topics_of(slot).any(|name| *name == subscription.topic);
        let subscribing = core.table.cold(slot).map_or(0, |cold| cold.subscribing.len());
        if !is_in && core.hub.count(slot) + subscribing >= max {
            let full = data::too_many_topics(max);
            let full = ReplyError::new(ErrorCode::TooManyTopics, &full);
            core.metrics.limited[Limited::Topics as usize].add(1);
            return protocol.reply(&id, Err(full), &mut core.codecs, out);
        }
        let capacity_reached = || core.capacity_reached(&[], std::iter::once(&subscription.topic));
        if !is_in
            && let Some(limited) = rates.quota.topics_reached(core, slot).or_else(capacity_reached)
        {
            let full = limit_message(limited);
            let full = ReplyError::new(limited.code(), &full);
            return protocol.reply(&id, Err(full), &mut core.codecs, out);
        }
        match consent {
            Consent::Given(permit) => {
                self.subscribed(slot, protocol, id, subscription, permit, out);
            }
            Consent::Requested(_) => {
                self.request_subscribe_decision(slot, protocol, id, subscription, out)
            }
        }
    }

    fn request_subscribe_decision(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        id: Box<str>,
        subscription: Subscribe,
        out: &mut Vec<u8>,
    ) {
        let core = &mut self.core;
        let (number, topic) = (core.joins.number(), subscription.topic.clone());
        if let Some(cold) = core.table.cold_or_new(slot) {
            cold.subscribing.push(Subscribing { number, topic: topic.clone(), id });
        }
        let users = core.users(slot).map(Into::into).collect();
        let hook = PendingHook::Subscribe(number, Box::new(subscription));
        let requested = HookRequest::subscribe(topic, users, protocol.name(), hook);
        let Err(not_sent) = send_requests(core, slot, vec![requested]) else {
            return;
        };
        let result = if core.settings.silence_allows { Ok(None) } else { Err(busy()) };
        for hook in not_sent.hooks {
            if let PendingHook::Subscribe(number, subscription) = hook {
                return self.subscribe_decided(slot, number, *subscription, result, out);
            }
        }
    }

    /// The application's response has come.
    pub(crate) fn on_subscribe_reply(
        &mut self,
        slot: u32,
        number: u32,
        subscription: Subscribe,
        response: WebhookResponse,
    ) {
        let result = response.entered(&self.core.settings);
        let result = result.map(|(_, meta)| meta).map_err(|refusal| *refusal);
        let mut out = Vec::new();
        self.subscribe_decided(slot, number, subscription, result, &mut out);
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
    }

    /// Carries out the decision, with the application's payload, unless the client has cancelled its request.
    fn subscribe_decided(
        &mut self,
        slot: u32,
        number: u32,
        mut subscription: Subscribe,
        result: Result<Option<Box<str>>, Refusal>,
        out: &mut Vec<u8>,
    ) {
        let core = &mut self.core;
        let found = core.table.cold_mut(slot).and_then(|cold| {
            let at = cold.subscribing.iter().position(|it| it.number == number)?;
            Some(cold.subscribing.remove(at))
        });
        let (Some(found), Some(protocol)) = (found, core.protocol(slot)) else {
            return;
        };
        core.table.trim(slot);
        match result {
            Err(refusal) => {
                protocol.reply(&found.id, Err(refusal.error()), &mut core.codecs, out);
            }
            Ok(meta) => {
                subscription.meta = meta.or(subscription.meta);
                // The rule may have changed since the request to the application.
                let policy = core.settings.clone();
                let permit = Permit::of(&policy.session.policy.topic(&found.topic));
                self.subscribed(slot, protocol, found.id, subscription, permit, out);
            }
        }
    }
}

impl Engine {
    /// Enters a topic that the client may enter.
    fn subscribed(
        &mut self,
        slot: u32,
        protocol: ProtocolRef,
        id: Box<str>,
        subscription: Subscribe,
        permit: Permit,
        out: &mut Vec<u8>,
    ) {
        let Subscribe { topic, since, tags, meta } = subscription;
        let meta = meta.as_deref().unwrap_or("{}");
        let is_in = self.core.hub.topics_of(slot).any(|name| *name == topic);
        if is_in && since.is_some() {
            // The catch-up begins anew from there: it includes what the connection is still owed of the history.
            let hash = self.core.broker.hash(&topic);
            self.recover(|recovery, core| recovery.reply_waiting(core, slot, hash, out));
            self.recovery.end_topic(slot, hash);
            self.core.conflation.drop_retained(slot, hash, &self.core.metrics);
        }
        self.join_with(slot, &topic, permit.presence, meta);
        // The reply comes before the list of presence.
        self.core.forget_list(slot, &topic);
        if is_in {
            self.explicit.insert(slot, self.core.broker.hash(&topic));
        }
        self.recovery.catchups.choose(&mut self.core, slot, Some(&topic), &tags);
        if is_in && since.is_none() {
            let named = named("topic", &topic);
            protocol.reply(&id, Ok(&named), &mut self.core.codecs, out);
            return self.core.send_list_of(slot, protocol, &topic, out);
        }
        let all = None;
        let request = ResumeRequest {
            all,
            topics: since.map(|since| (topic.clone(), since)).into_iter().collect(),
        };
        self.recover(|recovery, core| {
            recovery.begin(
                core,
                slot,
                std::slice::from_ref(&topic),
                &request,
                ReplyTo::Id(id, topic.clone()),
                out,
            )
        });
    }
}
