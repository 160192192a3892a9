//! Forwards clients' messages to back ends. A client that waits for a confirmation gets it when the back end has
//! accepted the message. So the client repeats messages that the back end has not accepted.

use auth::Action;
use model::filter::matches;
use model::name::check_topic;
use model::{ErrorCode, Name, Publication, TopicKind};
use protocol::mqtt::ReasonCode;

use crate::core::Core;
use crate::core::command::Command;
use crate::core::reply_target::ReplyTarget;
use crate::delivery::publish::{PublishOutcome, is_exactly_once};
use crate::engine::Engine;
use crate::mqtt::{MqttAck, Row};
use crate::webhook::forward_rule::{ForwardRequest, ForwardRule};
use crate::webhook::pending_hook::PendingHook;
use crate::webhook::request::{HOOKS_PENDING_MAX, busy};
use crate::webhook::{QueueFull, Refusal, SharedHook, WebhookResponse};

impl Engine {
    /// Sends a message to the back end of a rule. The engine publishes and confirms the message when the back end has
    /// accepted it, or at once if the client does not wait for a confirmation.
    pub(crate) fn forward(
        &mut self,
        slot: Option<u32>,
        rule: ForwardRule,
        publication: Publication,
        to: ReplyTarget,
        out: &mut Vec<u8>,
    ) {
        let mut request = self.core.forward_request(slot, &rule, &publication, &to);
        let Some(slot) = slot.filter(|_| waits(&to)) else {
            if let Some(webhook) = &self.core.webhook {
                // The webhook sender counts messages for which its queue has no capacity.
                let _ = webhook.forward(request);
            }
            return self.forward_taken(slot, rule.deliver, publication, to, out);
        };
        let core = &mut self.core;
        let Some(serial) = core.table.get(slot).map(|connection| connection.serial) else {
            return;
        };
        // An MQTT client has a limit of its own on messages in flight.
        let counts = !matches!(to, ReplyTarget::Mqtt(_));
        let pending = core.table.cold(slot).map_or(0, |cold| cold.hooks_pending);
        let may_wait = !counts || pending < HOOKS_PENDING_MAX;
        let Some(webhook) = core.webhook.clone().filter(|_| may_wait) else {
            return self.reply_published(slot, to, queue_full(), out);
        };
        // The queue may reject the request. The hook is then taken back.
        let hook = SharedHook::new(PendingHook::Forward(publication.into(), rule.deliver, to));
        let (shared, handle) = (hook.clone(), core.handle.clone());
        request.hook = hook.clone();
        request.reply = Some(Box::new(move |response| {
            if let Some(hook) = shared.take() {
                handle.send(Command::WebhookResponded { slot, serial, hook, response });
            }
        }));
        if let Err(QueueFull) = webhook.forward(request) {
            if let Some(PendingHook::Forward(_, _, to)) = hook.take() {
                self.reply_published(slot, to, queue_full(), out);
            }
        } else if counts && let Some(cold) = core.table.cold_or_new(slot) {
            cold.hooks_pending += 1;
        }
    }

    /// The back end has accepted or rejected a message. `slot` is `None` if the connection has ended.
    pub(crate) fn on_forwarded(
        &mut self,
        slot: Option<u32>,
        deliver: bool,
        publication: Publication,
        to: ReplyTarget,
        response: WebhookResponse,
    ) {
        let mut out = Vec::new();
        match (response, slot) {
            (WebhookResponse::Ok { .. }, slot) => {
                self.forward_taken(slot, deliver, publication, to, &mut out);
            }
            (WebhookResponse::Error(refusal), Some(slot)) => {
                let outcome = PublishOutcome::Unforwarded(refusal, ReasonCode::UnspecifiedError);
                self.reply_published(slot, to, outcome, &mut out);
            }
            (WebhookResponse::Silent(reason), Some(slot)) => {
                let refusal = Refusal::silent(ErrorCode::NoApplicationReply, reason).into();
                let outcome = PublishOutcome::Unforwarded(refusal, ReasonCode::UnspecifiedError);
                self.reply_published(slot, to, outcome, &mut out);
            }
            (WebhookResponse::Error(_) | WebhookResponse::Silent(_), None) => {}
        }
        if let Some(slot) = slot.filter(|_| !out.is_empty()) {
            self.send(slot, &out, 0);
        }
    }

    /// Publishes and confirms a message that the back end has accepted.
    fn forward_taken(
        &mut self,
        slot: Option<u32>,
        deliver: bool,
        publication: Publication,
        to: ReplyTarget,
        out: &mut Vec<u8>,
    ) {
        match (slot, to) {
            // The session did not store the message, so the client sends it again. Publishing it now would make it
            // arrive twice.
            (None, to) if is_exactly_once(&to) => {}
            (slot, to) if deliver => self.publish_now(slot, publication, to, out),
            (Some(slot), ReplyTarget::Mqtt(ack)) => {
                // The session's progress is not stored with the message, because the message is not published.
                let to = ReplyTarget::Mqtt(MqttAck { with: false, retain: false, ..ack });
                self.reply_published(slot, to, PublishOutcome::Replied("{}".into()), out);
            }
            (Some(slot), to) => {
                self.reply_published(slot, to, PublishOutcome::Replied("{}".into()), out)
            }
            (None, _) => {}
        }
    }
}

impl Core {
    fn forward_request(
        &self,
        slot: Option<u32>,
        rule: &ForwardRule,
        publication: &Publication,
        to: &ReplyTarget,
    ) -> ForwardRequest {
        let mut publication = publication.clone();
        if let Some(attributes) = &mut publication.attributes
            && let Some(properties) = &mut attributes.properties
            && let Some(topic) = &properties.response_topic
            && !slot.is_some_and(|slot| self.may_be_replied(slot, rule, topic))
        {
            properties.response_topic = None;
        }
        let found = slot.and_then(|slot| Some((slot, self.table.get(slot)?)));
        let (users, transport): (Vec<Name>, _) = match (to, found) {
            (
                ReplyTarget::Id(_) | ReplyTarget::Phoenix(_) | ReplyTarget::Mqtt(_),
                Some((slot, found)),
            ) => {
                let protocol = self.shared.protocols.of(found.encoding);
                (self.users(slot).map(Into::into).collect(), protocol.name())
            }
            (ReplyTarget::Mqtt(_), None) => {
                (publication.sender().cloned().into_iter().collect(), "mqtt")
            }
            (ReplyTarget::Id(_), None) => {
                (publication.sender().cloned().into_iter().collect(), "ws")
            }
            (ReplyTarget::Phoenix(_), None) => {
                (publication.sender().cloned().into_iter().collect(), "phoenix")
            }
            (ReplyTarget::Http(_) | ReplyTarget::MqttAuth(_), _) => {
                (publication.sender().cloned().into_iter().collect(), "http")
            }
        };
        ForwardRequest {
            filter: rule.filter.clone(),
            publication,
            users,
            connection: found.map(|(slot, found)| self.id(slot, found.serial)),
            transport,
            client: slot.and_then(|slot| self.mqtt.row(slot)).map(Row::client),
            at_ms: self.unix_ms(),
            hook: SharedHook::default(),
            reply: None,
        }
    }

    /// Returns whether a client may name a response topic. The back end publishes to that topic with its own rights,
    /// and the payload may come from the client. So the client must be allowed to subscribe to the topic. It must also
    /// be allowed to publish to it, unless the rule lists the topic for replies. No request goes to the application: a
    /// client that it has allowed to subscribe is a member.
    fn may_be_replied(&self, slot: u32, rule: &ForwardRule, name: &Name) -> bool {
        let (policy, principal) = (&self.settings.session.policy, self.principal(slot));
        let topic = self.mqtt_topic(name);
        let may = |action| policy.decide(&principal, action, &topic).without_webhook().is_ok();
        match topic.kind {
            TopicKind::Personal(_) => may(Action::Subscribe),
            TopicKind::Ordinary if check_topic(name).is_ok() && !name.starts_with('$') => {
                let is_member = || self.hub.topics_of(slot).any(|it| it == name);
                let is_for_replies = || rule.answer_filters.iter().any(|it| matches(it, name));
                (may(Action::Subscribe) || is_member())
                    && (is_for_replies() || may(Action::Publish))
            }
            TopicKind::Ordinary | TopicKind::Broadcast | TopicKind::Filter(_) => false,
        }
    }
}

/// Returns true if the client waits for the outcome of its message.
fn waits(to: &ReplyTarget) -> bool {
    match to {
        ReplyTarget::Http(_) | ReplyTarget::Id(_) | ReplyTarget::Phoenix(_) => true,
        ReplyTarget::Mqtt(ack) => ack.qos.is_confirmed(),
        ReplyTarget::MqttAuth(_) => false,
    }
}

fn queue_full() -> PublishOutcome {
    PublishOutcome::Unforwarded(busy().into(), ReasonCode::QuotaExceeded)
}
