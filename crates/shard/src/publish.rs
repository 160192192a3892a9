//! What clients publish and acknowledge.

use broker::{Options, Publish};
use wire::session::{self, Acknowledged, Respond};
use wire::{Draft, Id, Name, Variant};

use crate::command::{Answer, Command};
use crate::shard::Shard;

impl Shard {
    pub(crate) fn publish(&mut self, draft: Draft) -> Result<Id, broker::PublishError> {
        self.broker.publish(draft, None)
    }

    /// Whether whoever publishes to the topic is answered when the message is on disk.
    pub(crate) fn is_durable(&self, topic: &str) -> bool {
        self.kept().rule(topic).is_some_and(|keep| keep.durable)
    }

    /// Publishes; the answer comes when the message is on disk.
    pub(crate) fn publish_durable(&mut self, slot: u32, draft: Draft, answer: Answer) {
        let Some(serial) = self.table.get(slot).map(|connection| connection.serial) else {
            return;
        };
        let handle = self.handle.clone();
        let done = Box::new(move |result: Result<broker::Published, _>| {
            let result = result.map(|published| published.id);
            handle.send(Command::Published { slot, serial, answer, result });
        });
        let options = Options::default();
        self.broker.submit(Publish { draft, options }, None, done);
    }

    /// True for a request that waits until what it publishes is on disk.
    pub(crate) fn is_publishing(&self, slot: u32) -> bool {
        self.table.get(slot).is_some_and(|connection| {
            let asks = connection.extra.as_ref().is_some_and(|extra| extra.asking.is_some());
            connection.variant == Variant::Asking && !asks
        })
    }

    /// `POST /publish`. A durable one waits until what it publishes is on disk.
    pub(crate) fn publish_request(
        &mut self,
        slot: u32,
        draft: Draft,
        respond: Respond,
        from: usize,
        out: &mut Vec<u8>,
    ) {
        let topic = draft.topic.clone();
        if let Some(why) = self.publish_refusal(slot, &topic) {
            session::publish_answer(&respond, Err(("overloaded", why.into())), out);
            return self.answered(slot, from, respond.keep_alive, out);
        }
        if !self.is_durable(&topic) {
            let published = self.publish(draft).map_err(|error| (error.code(), error.to_string()));
            session::publish_answer(&respond, published, out);
            self.answered(slot, from, respond.keep_alive, out);
            return self.has_published(slot, &topic);
        }
        if !self.send_earlier(slot, out) {
            return;
        }
        let now_s = self.now_s() as u16;
        self.become_variant(slot, Variant::Asking);
        if let Some(connection) = self.table.get_mut(slot) {
            connection.heard_s = now_s;
        }
        self.publish_durable(slot, draft, Answer::Http(respond));
        self.has_published(slot, &topic);
    }

    /// What a client published is on disk, or is not.
    pub(crate) fn published(
        &mut self,
        slot: u32,
        answer: Answer,
        result: Result<Id, broker::PublishError>,
    ) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        let mut out = Vec::new();
        match answer {
            Answer::Ws(id) => self.ws_published(variant, &id, &result, &mut out),
            Answer::Phoenix(heard) => self.phoenix_published(variant, &heard, &result, &mut out),
            Answer::Http(respond) => return self.http_published(slot, &respond, result),
        }
        self.send(slot, &out, 0);
    }

    fn http_published(
        &mut self,
        slot: u32,
        respond: &Respond,
        result: Result<Id, broker::PublishError>,
    ) {
        self.become_http(slot);
        let extra = self.table.get_mut(slot).and_then(|connection| connection.extra.as_mut());
        let mut rest = extra.map(|extra| std::mem::take(&mut extra.input)).unwrap_or_default();
        let mut out = Vec::new();
        let result = result.map_err(|error| (error.code(), error.to_string()));
        session::publish_answer(respond, result, &mut out);
        self.answered(slot, 0, respond.keep_alive, &mut out);
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
        self.understand(slot, &mut rest);
    }

    pub(crate) fn ws_published(
        &mut self,
        variant: Variant,
        id: &str,
        published: &Result<Id, broker::PublishError>,
        out: &mut Vec<u8>,
    ) {
        let answer = match published {
            Ok(id) => Ok(wire::command::published(*id)),
            Err(error) => Err((error.code(), error.to_string())),
        };
        let result = answer.as_deref().map_err(|(code, message)| (*code, message.as_str()));
        session::ws_reply(variant, &mut self.tools, id, result, out);
    }

    /// `POST /ack`.
    pub(crate) fn acknowledge_request(
        &mut self,
        slot: u32,
        acknowledged: Acknowledged,
        respond: &Respond,
        from: usize,
        out: &mut Vec<u8>,
    ) {
        match self.acknowledge(None, acknowledged) {
            Ok((topic, place)) => {
                let body = acknowledged_json(&topic, place);
                session::json_answer(respond, body.as_bytes(), out);
            }
            Err(error) => {
                let conflict = error == broker::AcknowledgeError::Epoch;
                let status = if conflict { 409 } else { 400 };
                let refused = wire::http::refused(status, error.code(), error.to_string());
                session::refuse(&refused, &respond.cors, respond.keep_alive, false, out);
            }
        }
        self.answered(slot, from, respond.keep_alive, out);
    }
}

/// `{"topic":"…","acknowledged":"…"}`
pub(crate) fn acknowledged_json(topic: &Name, place: Id) -> String {
    let named = crate::receive::named("topic", topic);
    let named = named.trim_end_matches('}');
    format!("{named},\"acknowledged\":\"{place}\"}}")
}
