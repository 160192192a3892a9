//! Publications and acknowledgements of clients.

use auth::{Consent, Hook, Permit};
use broker::{Options, Publish, PublishError};
use model::{CodedError, ErrorCode, Name, Position, Publication, Qos};
use protocol::mqtt::ReasonCode;
use protocol::phoenix::{Content, ReplyStatus};
use protocol::request::Respond;
use protocol::{ProtocolRef, ReplyError, data, http};

use crate::connection::Phase;
use crate::core::Core;
use crate::core::command::Command;
use crate::core::metrics::Limited;
use crate::core::reply_target::ReplyTarget;
use crate::core::responses::{acknowledged_json, phoenix_published, reply};
use crate::engine::Engine;
use crate::mqtt::MqttAck;
use crate::webhook::pending_hook::PendingHook;
use crate::webhook::request::{HookRequest, busy, kind, send_requests};
use crate::webhook::{Changes, Refusal, RequestDetails, WebhookResponse};

/// The outcome of a client's publication.
pub(crate) enum PublishOutcome {
    /// It was published, or publishing failed.
    Published(Result<Position, PublishError>),
    /// The application has replied with the text of a JSON value.
    Replied(Box<str>),
    /// The application has rejected it.
    Rejected(Box<Refusal>),
    /// The back end has not taken it. The reason code is for MQTT clients.
    Unforwarded(Box<Refusal>, ReasonCode),
}

impl Engine {
    /// `POST /publish`. The request waits until a durable message is on disk, or until the application has decided.
    pub(crate) fn publish_request(
        &mut self,
        slot: u32,
        publication: Publication,
        consent: Consent,
        respond: Respond,
        from: usize,
        out: &mut Vec<u8>,
    ) {
        let topic = &publication.topic;
        self.core.trace_published(slot, &publication);
        if let Some(why) = self.rates.publish_refusal(&mut self.core, slot, topic) {
            let error = CodedError::new(ErrorCode::Overloaded, why);
            http::publish_reply(&respond, Err(error), out);
            return self.on_replied(slot, from, respond.keep_alive, out);
        }
        match consent {
            Consent::Given(permit)
                if !self.core.is_reply_deferred(permit, &publication)
                    && self.core.settings.forwards.of(topic).is_none() =>
            {
                let topic = publication.topic.clone();
                let published = self.core.publish(publication).map_err(CodedError::from);
                http::publish_reply(&respond, published, out);
                self.on_replied(slot, from, respond.keep_alive, out);
                self.rates.has_published(&mut self.core, slot, &topic);
            }
            Consent::Given(_) | Consent::Requested(_) => {
                if self.wait_for_reply(slot, out) {
                    self.client_publish(
                        slot,
                        publication,
                        consent,
                        ReplyTarget::Http(respond),
                        out,
                    );
                }
            }
        }
    }

    /// Publishes for a command with an id.
    pub(crate) fn publish_by_id(
        &mut self,
        slot: u32,
        id: Box<str>,
        publication: Publication,
        consent: Consent,
        out: &mut Vec<u8>,
    ) {
        self.client_publish(slot, publication, consent, ReplyTarget::Id(id), out);
    }

    /// Publishes, or requests the application's decision first. An immediate reply goes to `out`, except that to an
    /// HTTP request, which is always sent.
    pub(crate) fn client_publish(
        &mut self,
        slot: u32,
        publication: Publication,
        consent: Consent,
        to: ReplyTarget,
        out: &mut Vec<u8>,
    ) {
        let core = &mut self.core;
        let topic = publication.topic.clone();
        // An HTTP request names its sender itself.
        let publication = match to {
            ReplyTarget::Http(_) => publication,
            ReplyTarget::Id(_)
            | ReplyTarget::Phoenix(_)
            | ReplyTarget::Mqtt(_)
            | ReplyTarget::MqttAuth(_) => {
                let publication = publication.sent_by(core.sender(slot));
                core.trace_published(slot, &publication);
                publication
            }
        };
        match consent {
            Consent::Given(permit) => {
                let publication = core.without_sender(slot, publication, permit, &to);
                if let Some(rule) = core.settings.forwards.of(&topic).cloned() {
                    self.forward(Some(slot), rule, publication, to, out);
                } else if core.is_reply_deferred(permit, &publication) {
                    core.publish_durable(slot, publication, to);
                } else {
                    let published = core.publish(publication);
                    self.reply_published(slot, to, PublishOutcome::Published(published), out);
                }
            }
            Consent::Requested(hook) => {
                self.request_publish_decision(slot, hook, publication, to, out)
            }
        }
        self.rates.has_published(&mut self.core, slot, &topic);
    }

    fn request_publish_decision(
        &mut self,
        slot: u32,
        hook: Hook,
        publication: Publication,
        to: ReplyTarget,
        out: &mut Vec<u8>,
    ) {
        let core = &mut self.core;
        let Some(protocol) = core.protocol(slot) else {
            return;
        };
        let (users, transport): (Vec<Name>, _) = match to {
            ReplyTarget::Http(_) => (publication.sender().cloned().into_iter().collect(), "http"),
            ReplyTarget::Id(_)
            | ReplyTarget::Phoenix(_)
            | ReplyTarget::Mqtt(_)
            | ReplyTarget::MqttAuth(_) => {
                (core.users(slot).map(Into::into).collect(), protocol.name())
            }
        };
        let attributes = publication.attributes.as_deref();
        let tags = attributes.map(|it| it.tags.clone()).unwrap_or_default();
        let key = attributes.and_then(|it| it.key.clone());
        let (topic, event) = (publication.topic.clone(), publication.event.clone());
        // Phoenix applications know each event by its name, the default one as well.
        let event = match &to {
            ReplyTarget::Phoenix(message) => Some(message.event.clone()),
            ReplyTarget::Http(_)
            | ReplyTarget::Id(_)
            | ReplyTarget::Mqtt(_)
            | ReplyTarget::MqttAuth(_) => event,
        };
        let (payload, hook, kind) = match hook {
            Hook::Message => (publication.data, PendingHook::Message(to), kind(hook)),
            Hook::Publish | Hook::Subscribe => {
                let payload = publication.data.clone();
                let hook_pending = PendingHook::Publish(Box::new(publication), to);
                (payload, hook_pending, kind(hook))
            }
        };
        let details = RequestDetails::new(kind, Some(topic), users, transport);
        let details = RequestDetails { event, payload: Some(payload), tags, key, ..details };
        let requested = HookRequest { details, hook };
        let Err(not_sent) = send_requests(core, slot, vec![requested]) else {
            return;
        };
        // A later message must not overtake one that still waits for a decision.
        let allowed = core.settings.silence_allows && !not_sent.behind_others;
        for hook in not_sent.hooks {
            match hook {
                PendingHook::Publish(publication, to) if allowed => {
                    self.publish_allowed(Some(slot), *publication, to, out);
                }
                PendingHook::Publish(_, to) | PendingHook::Message(to) => {
                    self.reply_published(slot, to, PublishOutcome::Rejected(busy().into()), out);
                }
                PendingHook::Join(..)
                | PendingHook::HttpSubscribe(..)
                | PendingHook::Connect(_)
                | PendingHook::Refresh(_)
                | PendingHook::Subscribe(..)
                | PendingHook::Forward(..)
                | PendingHook::Mqtt(..) => {}
            }
        }
    }

    /// The application has replied to a message.
    pub(crate) fn on_publish_reply(
        &mut self,
        slot: u32,
        to: ReplyTarget,
        response: WebhookResponse,
    ) {
        let outcome = match response.decided(false) {
            Ok((response, _)) => PublishOutcome::Replied(response),
            Err(refusal) => PublishOutcome::Rejected(refusal),
        };
        self.send_publication(slot, to, outcome);
    }

    /// The application has decided about a message. Without a slot its connection has ended: the message may have
    /// been the client's last one.
    pub(crate) fn on_publish_decided(
        &mut self,
        slot: Option<u32>,
        mut publication: Publication,
        to: ReplyTarget,
        response: WebhookResponse,
    ) {
        let settings = &self.core.settings;
        let bytes_max = settings.session.message_bytes_max;
        let refusal = match response.decided(settings.silence_allows) {
            Ok((_, changes)) => {
                let Changes { payload, tags, key, .. } = *changes;
                publication.data = payload.unwrap_or(publication.data);
                publication.change(tags, key);
                if publication.data.bytes() <= bytes_max {
                    let mut out = Vec::new();
                    self.publish_allowed(slot, publication, to, &mut out);
                    if let Some(slot) = slot.filter(|_| !out.is_empty()) {
                        self.send(slot, &out, 0);
                    }
                    return;
                }
                let too_large = data::too_large(bytes_max);
                let why = format!("the application's response has no valid message: {too_large}");
                Box::new(Refusal::silent(ErrorCode::NoApplicationReply, &why))
            }
            Err(refusal) => refusal,
        };
        if let Some(slot) = slot {
            self.send_publication(slot, to, PublishOutcome::Rejected(refusal));
        }
    }

    /// Publishes a message that the application has allowed.
    fn publish_allowed(
        &mut self,
        slot: Option<u32>,
        publication: Publication,
        to: ReplyTarget,
        out: &mut Vec<u8>,
    ) {
        if slot.is_none() && is_exactly_once(&to) {
            // No acknowledgement was sent: the client sends it again, and it must not arrive twice.
            return;
        }
        let forwards = self.core.settings.forwards.clone();
        match forwards.of(&publication.topic) {
            Some(rule) => self.forward(slot, rule.clone(), publication, to, out),
            None => self.publish_now(slot, publication, to, out),
        }
    }

    /// Publishes a message that the application or the back end has accepted. The topic's rule may have changed since
    /// the request.
    pub(crate) fn publish_now(
        &mut self,
        slot: Option<u32>,
        publication: Publication,
        to: ReplyTarget,
        out: &mut Vec<u8>,
    ) {
        let core = &mut self.core;
        let Some(slot) = slot else {
            let options = Options::default();
            return core.broker.submit(Publish { publication, options }, None, Box::new(|_| ()));
        };
        let (to, durable) = match to {
            ReplyTarget::Mqtt(ack) => {
                let (ack, durable) = core.mqtt_arrived(slot, &publication, ack);
                (ReplyTarget::Mqtt(ack), durable)
            }
            ReplyTarget::Http(_)
            | ReplyTarget::Id(_)
            | ReplyTarget::Phoenix(_)
            | ReplyTarget::MqttAuth(_) => {
                let topic = core.settings.session.policy.topic(&publication.topic);
                (to, core.is_reply_deferred(Permit::of(&topic), &publication))
            }
        };
        if durable {
            core.publish_durable(slot, publication, to);
        } else {
            let published = core.publish(publication);
            self.reply_published(slot, to, PublishOutcome::Published(published), out);
        }
    }

    /// A client's publication is on disk, or has failed.
    pub(crate) fn on_published(
        &mut self,
        slot: u32,
        to: ReplyTarget,
        result: Result<Position, PublishError>,
    ) {
        self.send_publication(slot, to, PublishOutcome::Published(result));
    }

    /// Sends a client the delayed outcome of its publication.
    fn send_publication(&mut self, slot: u32, to: ReplyTarget, outcome: PublishOutcome) {
        let mut out = Vec::new();
        self.reply_published(slot, to, outcome, &mut out);
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
    }

    /// Writes the outcome of a client's publication to `out`; for an HTTP request, which has waited, sends the reply.
    pub(crate) fn reply_published(
        &mut self,
        slot: u32,
        to: ReplyTarget,
        outcome: PublishOutcome,
        out: &mut Vec<u8>,
    ) {
        let Some(protocol) = self.core.protocol(slot) else {
            return;
        };
        match to {
            ReplyTarget::Id(id) => self.reply_with_id(protocol, &id, &outcome, out),
            ReplyTarget::Phoenix(message) => match &outcome {
                PublishOutcome::Published(result) => {
                    phoenix_published(protocol, &message, result, out)
                }
                PublishOutcome::Replied(response) => {
                    reply(protocol, &message, ReplyStatus::Ok, Content::Json(response), out);
                }
                PublishOutcome::Rejected(refusal) | PublishOutcome::Unforwarded(refusal, _) => {
                    let response = Content::Json(&refusal.response);
                    reply(protocol, &message, ReplyStatus::Error, response, out);
                }
            },
            ReplyTarget::Mqtt(ack) => {
                let result = match &outcome {
                    PublishOutcome::Published(Ok(_)) | PublishOutcome::Replied(_) => Ok(()),
                    PublishOutcome::Published(Err(error)) => Err(error.code().into()),
                    PublishOutcome::Rejected(_) => Err(ReasonCode::NotAuthorized),
                    PublishOutcome::Unforwarded(_, reason) => Err(*reason),
                };
                self.mqtt_published(slot, ack, result, out);
            }
            // AUTH packets publish nothing.
            ReplyTarget::MqttAuth(_) => {}
            ReplyTarget::Http(respond) => {
                let keep_alive = respond.keep_alive;
                self.reply_late(slot, keep_alive, |out| match outcome {
                    PublishOutcome::Published(result) => {
                        http::publish_reply(&respond, result.map_err(CodedError::from), out);
                    }
                    PublishOutcome::Replied(response) => {
                        http::json_reply(&respond, response.as_bytes(), out);
                    }
                    PublishOutcome::Rejected(refusal) | PublishOutcome::Unforwarded(refusal, _) => {
                        let Refusal { status, code, message, .. } = *refusal;
                        let message = message.into();
                        let rejection = http::Rejection::by_application(status, code, message);
                        http::reject_to(&respond, &rejection, out);
                    }
                });
            }
        }
    }
}

/// True for an MQTT client's message with QoS 2: the client repeats it until it is acknowledged, but it must arrive
/// once.
pub(crate) fn is_exactly_once(to: &ReplyTarget) -> bool {
    matches!(to, ReplyTarget::Mqtt(ack) if ack.qos == Qos::ExactlyOnce)
}

impl Engine {
    /// Lets a request wait for [`Engine::reply_late`]. False when its connection has ended.
    pub(crate) fn wait_for_reply(&mut self, slot: u32, out: &mut Vec<u8>) -> bool {
        if !self.send_earlier(slot, out) {
            return false;
        }
        let now_s = self.core.now_wrapping_s();
        self.core.enter(slot, Phase::Waiting);
        if let Some(connection) = self.core.table.get_mut(slot) {
            connection.last_received_s = now_s;
        }
        true
    }

    /// Replies to a request that has waited, and goes on with what its connection sent meanwhile.
    pub(crate) fn reply_late(
        &mut self,
        slot: u32,
        keep_alive: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        self.core.await_request(slot);
        let mut out = Vec::new();
        write(&mut out);
        self.on_replied(slot, 0, keep_alive, &mut out);
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
        self.core.resumed.push(slot);
    }

    fn reply_with_id(
        &mut self,
        protocol: ProtocolRef,
        id: &str,
        outcome: &PublishOutcome,
        out: &mut Vec<u8>,
    ) {
        let published;
        let failed;
        let result = match outcome {
            PublishOutcome::Published(Ok(id)) => {
                published = protocol::json::published(*id);
                Ok(published.as_str())
            }
            PublishOutcome::Published(Err(error)) => {
                failed = CodedError::from(error.clone());
                Err((&failed).into())
            }
            PublishOutcome::Replied(response) => Ok(&**response),
            PublishOutcome::Rejected(refusal) | PublishOutcome::Unforwarded(refusal, _) => {
                Err(refusal.error())
            }
        };
        protocol.reply(id, result, &mut self.core.codecs, out);
    }

    /// Replies to `POST /ack`.
    pub(crate) fn respond_acknowledged(
        &mut self,
        slot: u32,
        done: Result<(Name, Position), history::AcknowledgeError>,
        respond: &Respond,
        from: usize,
        out: &mut Vec<u8>,
    ) {
        match done {
            Ok((topic, position)) => {
                let body = acknowledged_json(&topic, position);
                http::json_reply(respond, body.as_bytes(), out);
            }
            Err(error) => {
                http::reject_to(respond, &CodedError::from(error).into(), out);
            }
        }
        self.on_replied(slot, from, respond.keep_alive, out);
    }

    /// Replies to an acknowledgement with an id of the client's own.
    pub(crate) fn reply_acknowledged(
        &mut self,
        protocol: ProtocolRef,
        id: &str,
        done: Result<(Name, Position), history::AcknowledgeError>,
        out: &mut Vec<u8>,
    ) {
        let reply = done.map(|(topic, position)| acknowledged_json(&topic, position));
        let reply = reply.map_err(CodedError::from);
        let result = reply.as_deref().map_err(ReplyError::from);
        protocol.reply(id, result, &mut self.core.codecs, out);
    }
}

impl Core {
    /// Leaves out a Phoenix client that publishes to all others.
    fn without_sender(
        &self,
        slot: u32,
        publication: Publication,
        permit: Permit,
        to: &ReplyTarget,
    ) -> Publication {
        let leaves_out =
            permit.audience.leaves_sender_out() && matches!(to, ReplyTarget::Phoenix(_));
        let connection = self.table.get(slot).filter(|_| leaves_out);
        let except = connection.map(|connection| self.id(slot, connection.serial));
        Publication { except: except.or(publication.except), ..publication }
    }

    /// Returns true if a publisher gets its reply later: when the message is on disk, or has its position in a log that
    /// nodes share. Messages in such a log may be of topics without a rule that MQTT sessions subscribe to.
    fn is_reply_deferred(&self, permit: Permit, publication: &Publication) -> bool {
        permit.durable || self.history.is_shared() && self.history.rule_for(publication).is_some()
    }

    pub(crate) fn publish(&mut self, publication: Publication) -> Result<Position, PublishError> {
        let published = self.broker.publish(publication, None);
        if published == Err(PublishError::Overloaded) {
            self.metrics.limited[Limited::Mailbox as usize].add(1);
        }
        published
    }

    /// Publishes a message; the reply is sent when the message is on disk.
    pub(crate) fn publish_durable(
        &mut self,
        slot: u32,
        publication: Publication,
        reply: ReplyTarget,
    ) {
        let Some(serial) = self.table.get(slot).map(|connection| connection.serial) else {
            return;
        };
        let (handle, under_way) = (self.handle.clone(), self.under_way.clone());
        let with = match &reply {
            ReplyTarget::Mqtt(ack) => self.mqtt_stored_with(slot, *ack),
            ReplyTarget::Http(_)
            | ReplyTarget::Id(_)
            | ReplyTarget::Phoenix(_)
            | ReplyTarget::MqttAuth(_) => None,
        };
        if let ReplyTarget::Mqtt(MqttAck { id, qos: Qos::ExactlyOnce, .. }) = &reply
            && let Some(details) = self.mqtt.details_mut(slot)
        {
            details.writing.push(*id);
        }
        let options = Options { with, ..Options::default() };
        let done = Box::new(move |result: Result<broker::Published, _>| {
            let _under_way = under_way;
            let result = result.map(|published| published.id);
            handle.send(Command::Published { slot, serial, reply, result });
        });
        self.broker.submit(Publish { publication, options }, None, done);
    }

    /// True for a request whose reply comes soon: when its message is on disk, or when a snapshot of presence is
    /// complete.
    pub(crate) fn has_reply_soon(&self, slot: u32) -> bool {
        self.table.get(slot).is_some_and(|connection| {
            let cold = self.table.cold(slot);
            let longer =
                cold.is_some_and(|cold| cold.session_request.is_some() || cold.poll.is_some());
            connection.phase() == Phase::Waiting && !longer
        })
    }
}
