//! What clients publish and acknowledge.

use auth::Permit;
use broker::{Options, Publish, PublishError};
use model::{Name, Position, Publication};
use protocol::ProtocolRef;
use protocol::http;
use protocol::request::Respond;

use crate::actions::Actions;
use crate::answers::acknowledged_json;
use crate::command::{Answer, Command};
use crate::connection::Phase;
use crate::connections::Connections;
use crate::core::Core;
use crate::metrics::Limited;

impl Actions<'_> {
    /// What a client published is on disk, or is not.
    pub(crate) fn published(
        &mut self,
        slot: u32,
        answer: Answer,
        result: Result<Position, PublishError>,
    ) {
        let Some(protocol) = self.connections.core.protocol(slot) else {
            return;
        };
        let mut out = Vec::new();
        match answer {
            Answer::Id(id) => self.connections.reply_published(protocol, &id, &result, &mut out),
            Answer::Phoenix(message) => {
                crate::phoenix::phoenix_published(protocol, &message, &result, &mut out)
            }
            Answer::Http(respond) => {
                let result = result.map_err(refused);
                return self.connections.answer_late(slot, respond.keep_alive, |out| {
                    http::publish_answer(&respond, result, out);
                });
            }
        }
        self.connections.send(slot, &out, 0);
    }
}

impl Connections {
    /// Lets a request wait for [`Connections::answer_late`]. False when its connection has ended.
    pub(crate) fn wait_for_answer(&mut self, slot: u32, out: &mut Vec<u8>) -> bool {
        if !self.send_earlier(slot, out) {
            return false;
        }
        let now_s = self.core.now_wrapping_s();
        self.core.enter(slot, Phase::Waiting);
        if let Some(connection) = self.core.table.get_mut(slot) {
            connection.heard_s = now_s;
        }
        true
    }

    /// Answers a request that has waited, and goes on with what its connection sent meanwhile.
    pub(crate) fn answer_late(
        &mut self,
        slot: u32,
        keep_alive: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        self.core.await_request(slot);
        let mut out = Vec::new();
        write(&mut out);
        self.answered(slot, 0, keep_alive, &mut out);
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
        self.core.resumed.push(slot);
    }

    /// `POST /publish`. A durable one waits until what it publishes is on disk.
    pub(crate) fn publish_request(
        &mut self,
        slot: u32,
        publication: Publication,
        permit: Permit,
        respond: Respond,
        from: usize,
        out: &mut Vec<u8>,
    ) {
        let topic = publication.topic.clone();
        if let Some(why) = self.rates.publish_refusal(&mut self.core, slot, &topic) {
            http::publish_answer(&respond, Err((503, "overloaded", why.into())), out);
            return self.answered(slot, from, respond.keep_alive, out);
        }
        if !permit.durable {
            let published = self.core.publish(publication).map_err(refused);
            http::publish_answer(&respond, published, out);
            self.answered(slot, from, respond.keep_alive, out);
            return self.rates.has_published(&mut self.core, slot, &topic);
        }
        if !self.wait_for_answer(slot, out) {
            return;
        }
        self.core.publish_durable(slot, publication, Answer::Http(respond));
        self.rates.has_published(&mut self.core, slot, &topic);
    }

    pub(crate) fn reply_published(
        &mut self,
        protocol: ProtocolRef,
        id: &str,
        published: &Result<Position, PublishError>,
        out: &mut Vec<u8>,
    ) {
        let answer = match published {
            Ok(id) => Ok(protocol::json::published(*id)),
            Err(error) => Err((error.code(), error.to_string())),
        };
        let result = answer.as_deref().map_err(|(code, message)| (*code, message.as_str()));
        protocol.reply(id, result, &mut self.core.codecs, out);
    }

    /// Answers `POST /ack`.
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
                http::json_answer(respond, body.as_bytes(), out);
            }
            Err(error) => {
                let conflict = error == history::AcknowledgeError::Epoch;
                let status = if conflict { 409 } else { 400 };
                let refused = http::Rejection::new(status, error.code(), error.to_string());
                http::reject(&refused, &respond.cors, respond.keep_alive, false, out);
            }
        }
        self.answered(slot, from, respond.keep_alive, out);
    }

    /// Replies to an acknowledgement with an id of the client's own.
    pub(crate) fn reply_acknowledged(
        &mut self,
        protocol: ProtocolRef,
        id: &str,
        done: Result<(Name, Position), history::AcknowledgeError>,
        out: &mut Vec<u8>,
    ) {
        let answer = match done {
            Ok((topic, position)) => Ok(acknowledged_json(&topic, position)),
            Err(error) => Err((error.code(), error.to_string())),
        };
        let result = answer.as_deref().map_err(|(code, message)| (*code, message.as_str()));
        protocol.reply(id, result, &mut self.core.codecs, out);
    }
}

impl Core {
    pub(crate) fn publish(&mut self, publication: Publication) -> Result<Position, PublishError> {
        let published = self.broker.publish(publication, None);
        if published == Err(PublishError::Overloaded) {
            self.metrics.limited[Limited::Mailbox as usize].add(1);
        }
        published
    }

    /// Publishes; the answer comes when the message is on disk.
    pub(crate) fn publish_durable(&mut self, slot: u32, publication: Publication, answer: Answer) {
        let Some(serial) = self.table.get(slot).map(|connection| connection.serial) else {
            return;
        };
        let handle = self.handle.clone();
        let done = Box::new(move |result: Result<broker::Published, _>| {
            let result = result.map(|published| published.id);
            handle.send(Command::Published { slot, serial, answer, result });
        });
        let options = Options::default();
        self.broker.submit(Publish { publication, options }, None, done);
    }

    /// True for a request that is answered soon: when what it publishes is on disk, or when a list
    /// of presence is there.
    pub(crate) fn is_answered_soon(&self, slot: u32) -> bool {
        self.table.get(slot).is_some_and(|connection| {
            let cold = self.table.cold(slot);
            let longer = cold.is_some_and(|cold| cold.asking.is_some() || cold.poll.is_some());
            connection.phase() == Phase::Waiting && !longer
        })
    }
}

/// Why a publish by HTTP was refused: status, code and message.
fn refused(error: PublishError) -> (u16, &'static str, String) {
    let status = if error == PublishError::KeyRequired { 400 } else { 503 };
    (status, error.code(), error.to_string())
}
