//! The export of pending hooks to another process.
//!
//! The record is a CBOR value. Its numbers never change.

use handover::message::{decode_publication, encode_publication};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use model::Name;
use protocol::request::Subscribe;

use crate::handover::value::{ImportError, Message, ReplyTargetRecord, Text};
use crate::webhook::pending_hook::PendingHook;

#[derive(Encode, Decode)]
enum HookRecord {
    #[n(0)]
    Join(#[n(0)] u32, #[n(1)] Message),
    #[n(1)]
    HttpSubscribe(#[n(0)] u32, #[n(1)] Text<Name>),
    #[n(2)]
    Connect(#[n(0)] u32),
    #[n(3)]
    Refresh(#[n(0)] u32),
    #[n(4)]
    Subscribe(#[n(0)] u32, #[n(1)] SubscribeRecord),
    #[n(5)]
    Mqtt(#[n(0)] u32, #[n(1)] u64),
    #[n(6)]
    Message(#[n(0)] ReplyTargetRecord),
    /// A message as the crate `handover` writes it.
    #[n(7)]
    Publish(#[n(0)] ByteVec, #[n(1)] ReplyTargetRecord),
    #[n(8)]
    Forward(#[n(0)] ByteVec, #[n(1)] bool, #[n(2)] ReplyTargetRecord),
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct SubscribeRecord {
    #[n(0)]
    topic: Text<Name>,
    /// As a client writes it.
    #[n(1)]
    since: Option<String>,
    #[n(2)]
    tags: Vec<Text<Name>>,
    #[n(3)]
    meta: Option<String>,
}

impl From<&Subscribe> for SubscribeRecord {
    fn from(Subscribe { topic, since, tags, meta }: &Subscribe) -> Self {
        SubscribeRecord {
            topic: Text(topic.clone()),
            since: since.as_ref().map(ToString::to_string),
            tags: Text::all(tags),
            meta: meta.as_deref().map(String::from),
        }
    }
}

impl SubscribeRecord {
    fn import(self) -> Result<Subscribe, ImportError> {
        let since = self.since.map(|since| since.parse().map_err(ImportError::damaged));
        Ok(Subscribe {
            topic: self.topic.0,
            since: since.transpose()?,
            tags: Text::values(self.tags),
            meta: self.meta.map(String::into_boxed_str),
        })
    }
}

impl PendingHook {
    /// Encodes the hook for another process.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = |publication| encode_publication(publication).into();
        let record = match self {
            PendingHook::Join(number, message) => HookRecord::Join(*number, (&**message).into()),
            PendingHook::HttpSubscribe(number, topic) => {
                HookRecord::HttpSubscribe(*number, Text(topic.clone()))
            }
            PendingHook::Connect(number) => HookRecord::Connect(*number),
            PendingHook::Refresh(expires_s) => HookRecord::Refresh(*expires_s),
            PendingHook::Subscribe(number, subscription) => {
                HookRecord::Subscribe(*number, (&**subscription).into())
            }
            PendingHook::Mqtt(number, at) => HookRecord::Mqtt(*number, *at as u64),
            PendingHook::Message(to) => HookRecord::Message(to.into()),
            PendingHook::Publish(publication, to) => {
                HookRecord::Publish(bytes(publication), to.into())
            }
            PendingHook::Forward(publication, deliver, to) => {
                HookRecord::Forward(bytes(publication), *deliver, to.into())
            }
        };
        handover::encode(record)
    }

    /// Decodes what [`PendingHook::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, ImportError> {
        let publication =
            |bytes: ByteVec| decode_publication(&bytes).map(Box::new).map_err(ImportError::damaged);
        Ok(match handover::decode(bytes).map_err(ImportError::damaged)? {
            HookRecord::Join(number, message) => {
                PendingHook::Join(number, Box::new(message.into()))
            }
            HookRecord::HttpSubscribe(number, Text(topic)) => {
                PendingHook::HttpSubscribe(number, topic)
            }
            HookRecord::Connect(number) => PendingHook::Connect(number),
            HookRecord::Refresh(expires_s) => PendingHook::Refresh(expires_s),
            HookRecord::Subscribe(number, subscription) => {
                PendingHook::Subscribe(number, Box::new(subscription.import()?))
            }
            HookRecord::Mqtt(number, at) => {
                PendingHook::Mqtt(number, usize::try_from(at).map_err(ImportError::damaged)?)
            }
            HookRecord::Message(to) => PendingHook::Message(to.into()),
            HookRecord::Publish(bytes, to) => PendingHook::Publish(publication(bytes)?, to.into()),
            HookRecord::Forward(bytes, deliver, to) => {
                PendingHook::Forward(publication(bytes)?, deliver, to.into())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use model::{Data, Publication, Qos, Since};
    use protocol::phoenix::ClientMessage;
    use protocol::request::Respond;

    use super::*;
    use crate::core::reply_target::ReplyTarget;
    use crate::mqtt::MqttAck;

    fn message() -> ClientMessage {
        ClientMessage {
            join_ref: Some("1".into()),
            ref_: None,
            topic: "room:1".into(),
            event: "phx_join".into(),
            payload: Data::Json("{\"a\":1}".into()),
        }
    }

    fn replies() -> Vec<ReplyTarget> {
        let ack = MqttAck { id: 7, qos: Qos::AtLeastOnce, with: true, retain: true };
        vec![
            ReplyTarget::Http(Respond {
                cors: "Vary: Origin\r\n".into(),
                keep_alive: true,
                head_only: false,
            }),
            ReplyTarget::Id("12".into()),
            ReplyTarget::Phoenix(Box::new(message())),
            ReplyTarget::Mqtt(ack),
            ReplyTarget::MqttAuth("SCRAM".into()),
        ]
    }

    fn publication() -> Box<Publication> {
        let mut publication = Publication::new("news", Data::Binary([0, 255].into()));
        publication.change(Some(vec!["tag".into()]), Some("key".into()));
        publication.sent_by(Some("alice".into())).into()
    }

    #[test]
    fn what_waits_for_a_reply_is_read_as_it_was_written() {
        let subscription = Subscribe {
            topic: "room".into(),
            since: Some(Since::Last(3)),
            tags: vec!["a".into(), "b".into()],
            meta: Some("{}".into()),
        };
        let mut hooks = vec![
            PendingHook::Join(1, message().into()),
            PendingHook::HttpSubscribe(2, "topic".into()),
            PendingHook::Connect(3),
            PendingHook::Refresh(4),
            PendingHook::Subscribe(5, subscription.into()),
            PendingHook::Subscribe(5, Subscribe::default().into()),
            PendingHook::Mqtt(6, 70_000),
        ];
        hooks.extend(replies().into_iter().map(PendingHook::Message));
        hooks.extend(replies().into_iter().map(|to| PendingHook::Publish(publication(), to)));
        hooks.extend(replies().into_iter().map(|to| PendingHook::Forward(publication(), true, to)));
        hooks.push(PendingHook::Forward(publication(), false, ReplyTarget::Id("1".into())));
        for hook in hooks {
            let bytes = hook.encode();
            let read = PendingHook::decode(&bytes).unwrap();
            // The derived `Debug` shows all fields.
            assert_eq!(format!("{read:?}"), format!("{hook:?}"));
            assert!((0..bytes.len()).all(|cut| PendingHook::decode(&bytes[..cut]).is_err()));
        }
    }
}
