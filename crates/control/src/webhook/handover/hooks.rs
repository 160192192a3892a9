//! The export of requests to the application that have no response.

use std::sync::Arc;

use handover::{DataRecord, Part, PartError, encode};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use model::Name;
use protocol::request::{ConnectRequest, Credentials};
use shard::{Connecting, PendingHook, RequestDetails, WebhookKind, WebhookRequest};

use super::super::Dispatcher;
use super::super::queue::SentIn;
use super::super::request_queue::{PendingRequest, Restored};
use super::super::signature::RequestId;
use super::{
    Id, Staged, ToShard, connection, decode, hook, id_record, names, number, numbered, reply,
    texts, transport,
};

/// The limit on requests that are exported while the locks are held once.
const PIECE: usize = 128;

/// The kind of keys. It never changes.
const PENDING: u8 = b'q';

/// The name of the part. It never changes.
const HOOKS: &str = "hooks";

/// Requests that wait or are under way, for another process, which sends them all again. Those of one batch are sent in
/// one batch with the same id again, unless some of them have failed. Their time begins anew.
pub struct Hooks {
    dispatcher: Arc<Dispatcher>,
    to_shard: ToShard,
    staged: Staged,
}

impl Hooks {
    /// The requests of this dispatcher. Responses to requests of another process go to this process's shards.
    pub fn new(dispatcher: Arc<Dispatcher>, to_shard: ToShard) -> Self {
        Hooks { dispatcher, to_shard, staged: Staged::default() }
    }
}

/// A request.
#[derive(Encode, Decode)]
#[cbor(map)]
struct RequestDetailsRecord {
    #[n(0)]
    connection: Id,
    /// The URL of its topic's rule, if it has one.
    #[n(1)]
    url: Option<String>,
    /// The kind's name.
    #[n(2)]
    kind: String,
    #[n(3)]
    topic: Option<String>,
    #[n(4)]
    event: Option<String>,
    #[n(5)]
    payload: Option<DataRecord<'static>>,
    #[cbor(n(6), default)]
    tags: Vec<String>,
    #[n(7)]
    key: Option<String>,
    #[cbor(n(8), default)]
    users: Vec<String>,
    #[n(9)]
    transport: String,
    #[n(10)]
    connect: Option<ConnectRecord>,
    /// The shard's hook that waits for the response.
    #[n(11)]
    hook: ByteVec,
    /// The id of the batch in which it was sent, and how many requests that had.
    #[n(12)]
    sent_in: Option<(String, u64)>,
}

/// A client without a token.
#[derive(Encode, Decode)]
#[cbor(map)]
struct ConnectRecord {
    #[n(0)]
    address: Option<String>,
    #[n(1)]
    transport: String,
    #[cbor(n(2), default)]
    users: Vec<String>,
    #[n(3)]
    path: String,
    #[cbor(n(4), default)]
    query: Vec<(String, String)>,
    #[cbor(n(5), default)]
    headers: Vec<(String, String)>,
    #[n(6)]
    credentials: Option<CredentialsRecord>,
    #[n(7)]
    topics_max: u64,
}

/// The credentials of an MQTT client.
#[derive(Encode, Decode)]
#[cbor(map)]
struct CredentialsRecord {
    #[n(0)]
    client: String,
    #[n(1)]
    user: Option<String>,
    #[n(2)]
    password: Option<(String, bool)>,
}

/// All kinds.
const KINDS: [WebhookKind; 5] = [
    WebhookKind::Subscribe,
    WebhookKind::Message,
    WebhookKind::Publish,
    WebhookKind::Connect,
    WebhookKind::Refresh,
];

fn pairs(pairs: &[(Box<str>, Box<str>)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn boxed(pairs: Vec<(String, String)>) -> Vec<(Box<str>, Box<str>)> {
    pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

impl From<&Connecting> for ConnectRecord {
    fn from(Connecting { address, request, topics_max }: &Connecting) -> Self {
        let ConnectRequest { transport, users, path, query, headers, credentials } = request;
        let credentials = credentials.as_ref();
        ConnectRecord {
            address: address.as_ref().map(ToString::to_string),
            transport: (*transport).into(),
            users: texts(users),
            path: path.to_string(),
            query: pairs(query),
            headers: pairs(headers),
            credentials: credentials.map(|Credentials { client, user, password }| {
                let password = password.as_ref();
                CredentialsRecord {
                    client: client.to_string(),
                    user: user.as_ref().map(ToString::to_string),
                    password: password.map(|(text, is_base64)| (text.to_string(), *is_base64)),
                }
            }),
            topics_max: *topics_max as u64,
        }
    }
}

impl From<ConnectRecord> for Connecting {
    fn from(record: ConnectRecord) -> Self {
        let ConnectRecord { address, users, path, query, headers, credentials, .. } = record;
        let credentials = credentials.map(|CredentialsRecord { client, user, password }| {
            let password = password.map(|(text, is_base64)| (text.into(), is_base64));
            Credentials { client: client.into(), user: user.map(Into::into), password }
        });
        let request = ConnectRequest {
            transport: transport(&record.transport),
            users: names(users),
            path: path.into(),
            query: boxed(query),
            headers: boxed(headers),
            credentials,
        };
        let topics_max = usize::try_from(record.topics_max).unwrap_or(usize::MAX);
        // An invalid value counts as unknown.
        Connecting { address: address.and_then(|it| it.parse().ok()), request, topics_max }
    }
}

impl RequestDetailsRecord {
    /// Returns `None` if the connection does not wait any more.
    fn new(request: &PendingRequest, sent_in: SentIn<'_>) -> Option<Self> {
        let WebhookRequest { url, details, connection, hook, reply: _ } = &request.hook_request;
        let RequestDetails { kind, topic, event, payload, tags, key, users, transport, connect } =
            details;
        let text = |name: &Option<Name>| name.as_ref().map(Name::to_string);
        Some(RequestDetailsRecord {
            connection: id_record(*connection),
            url: url.as_deref().map(String::from),
            kind: kind.name().into(),
            topic: text(topic),
            event: text(event),
            payload: payload.clone().map(DataRecord::from),
            tags: texts(tags),
            key: text(key),
            users: texts(users),
            transport: (*transport).into(),
            connect: connect.as_deref().map(ConnectRecord::from),
            hook: hook.peek(PendingHook::encode)?.into(),
            sent_in: sent_in.map(|(id, count)| (id.as_str().into(), count as u64)),
        })
    }

    fn import(self, to_shard: &ToShard) -> Result<Restored, PartError> {
        let kind = KINDS.into_iter().find(|kind| kind.name() == self.kind);
        let kind = kind.ok_or_else(|| {
            PartError::new(HOOKS, format!("a request has the unknown kind {:?}", self.kind))
        })?;
        let (connection, hook) = (connection(self.connection), hook(HOOKS, &self.hook)?);
        let details = RequestDetails {
            event: self.event.map(Name::from),
            payload: self.payload.map(Into::into),
            tags: names(self.tags),
            key: self.key.map(Name::from),
            connect: self.connect.map(|connect| Box::new(connect.into())),
            ..RequestDetails::new(
                kind,
                self.topic.map(Name::from),
                names(self.users),
                transport(&self.transport),
            )
        };
        let sent_in = self.sent_in.map(|(id, count)| {
            (RequestId::of_text(id), usize::try_from(count).unwrap_or(usize::MAX))
        });
        let reply = reply(to_shard, connection, &hook);
        let url = self.url.map(Into::into);
        let hook_request = WebhookRequest { url, details, connection, hook, reply };
        Ok(Restored { url: hook_request.url.clone(), hook_request, sent_in })
    }
}

impl Dispatcher {
    /// Visits all requests without a response, in no order.
    fn each_pending(&self, visit: &mut dyn FnMut(&PendingRequest, SentIn<'_>)) {
        self.queues().values().for_each(|queue| queue.each(visit));
        self.request_queue.each(&mut |request| {
            let sent_in = request.sent_in.as_ref();
            visit(request, sent_in.map(|(id, count)| (id, *count)));
        });
    }
}

impl Part for Hooks {
    fn name(&self) -> &'static str {
        HOOKS
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let mut numbers = Vec::new();
        self.dispatcher.each_pending(&mut |request, _| numbers.push(request.number));
        numbers.sort_unstable();
        // A request may move from the request queue to a queue meanwhile, and be seen in both.
        numbers.dedup();
        for numbers in numbers.chunks(PIECE) {
            let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { continue };
            let mut records = std::collections::BTreeMap::new();
            self.dispatcher.each_pending(&mut |request, sent_in| {
                if (first..=last).contains(&&request.number)
                    && let Some(record) = RequestDetailsRecord::new(request, sent_in)
                {
                    records.insert(request.number, record);
                }
            });
            for (number, record) in records {
                each(&numbered(PENDING, number), &encode(&record));
            }
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        // A newer version may know more.
        if key.first() == Some(&PENDING) {
            number(HOOKS, key)?;
            self.staged.put(key, value);
        }
        Ok(())
    }

    /// Queues all requests in their order, before those of this process's shards.
    fn complete(&self) -> Result<(), PartError> {
        let settings = self.dispatcher.settings();
        let mut restored = Vec::new();
        for value in self.staged.take().into_values() {
            let record: RequestDetailsRecord = decode(HOOKS, &value)?;
            let Restored { hook_request, url, sent_in } = record.import(&self.to_shard)?;
            let url = url.or_else(|| settings.url.clone());
            restored.push(Restored { hook_request, url, sent_in });
        }
        self.dispatcher.request_queue.restore(restored);
        Ok(())
    }
}
