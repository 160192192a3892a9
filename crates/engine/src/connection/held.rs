//! What a connection waits for until the application has answered, on this engine and on its way to
//! another.

use minicbor::{Decode, Encode};
use model::Name;
use protocol::http::Rejection;
use protocol::request::Verdict;

use crate::cbor::Text;

/// A request that is held: it is read again when the application has spoken of its topics.
pub(crate) struct Held {
    /// The number of the question.
    pub number: u32,
    /// The topics that it has not spoken of.
    pub waiting: Vec<Name>,
    /// What it has said.
    pub verdicts: Vec<Verdict>,
}

/// A subscription, by a command with an id, that the application has still to allow.
pub(crate) struct Subscribing {
    /// The number of the question.
    pub number: u32,
    pub topic: Name,
    /// The command's id.
    pub id: Box<str>,
}

/// A held request on its way to another engine.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct HeldRecord {
    #[n(0)]
    number: u32,
    #[n(1)]
    waiting: Vec<Text<Name>>,
    #[n(2)]
    verdicts: Vec<VerdictRecord>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct VerdictRecord {
    #[n(0)]
    topic: Text<Name>,
    #[n(1)]
    meta: Option<String>,
    /// Status, code and message.
    #[n(2)]
    refusal: Option<(u16, String, String)>,
}

/// A subscription on its way to another engine.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct SubscribingRecord {
    #[n(0)]
    number: u32,
    #[n(1)]
    topic: Text<Name>,
    #[n(2)]
    id: String,
}

impl Held {
    /// Writes out what is held.
    pub fn export(&self) -> HeldRecord {
        let Held { number, waiting, verdicts } = self;
        let verdict = |Verdict { topic, result }: &Verdict| VerdictRecord {
            topic: Text(topic.clone()),
            meta: result.as_ref().ok().and_then(|meta| Some(meta.as_ref()?.to_string())),
            refusal: result.as_ref().err().map(|refusal| {
                (refusal.status, refusal.code.to_string(), refusal.message.to_string())
            }),
        };
        HeldRecord {
            number: *number,
            waiting: Text::all(waiting),
            verdicts: verdicts.iter().map(verdict).collect(),
        }
    }
}

impl HeldRecord {
    /// What is held.
    pub fn import(self) -> Held {
        let HeldRecord { number, waiting, verdicts } = self;
        let verdict = |VerdictRecord { topic: Text(topic), meta, refusal }| Verdict {
            topic,
            result: match refusal {
                None => Ok(meta.map(Into::into)),
                Some((status, code, message)) => Err(Rejection::new(status, code, message)),
            },
        };
        Held {
            number,
            waiting: Text::values(waiting),
            verdicts: verdicts.into_iter().map(verdict).collect(),
        }
    }
}

impl Subscribing {
    /// Writes out the subscription.
    pub fn export(&self) -> SubscribingRecord {
        let Subscribing { number, topic, id } = self;
        SubscribingRecord { number: *number, topic: Text(topic.clone()), id: id.to_string() }
    }
}

impl SubscribingRecord {
    /// The subscription.
    pub fn import(self) -> Subscribing {
        let SubscribingRecord { number, topic: Text(topic), id } = self;
        Subscribing { number, topic, id: id.into() }
    }
}
