//! The export of messages that back ends have not taken.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use handover::message::{decode_publication, encode_publication};
use handover::{Part, PartError, encode};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use model::Name;
use shard::{ForwardRequest, PendingHook, SharedHook};

use super::super::Dispatcher;
use super::super::error::ErrorKind;
use super::super::forward::{Restored, Waits};
use super::super::signature::RequestId;
use super::{
    Id, Staged, ToShard, connection, decode, hook, id_record, names, number, numbered, reply,
    texts, transport,
};

/// The limit on messages that are exported while a queue's lock is held once.
const PIECE: usize = 128;

/// The kinds of keys. They never change.
const MESSAGE: u8 = b'm';
const STATE: u8 = b's';

/// The name of the part. It never changes.
const FORWARD: &str = "forward";

/// Messages that wait for back ends or are under way, for another process, which sends them in their order. Those of
/// one request are sent in one request with the same id again. Their time begins anew.
///
/// A message fails if the other process does not have its rule, and its client gets an error.
pub struct Forwarded {
    dispatcher: Arc<Dispatcher>,
    to_shard: ToShard,
    staged: Staged,
}

impl Forwarded {
    /// The messages of this dispatcher. Results of another process's messages go to this process's shards.
    pub fn new(dispatcher: Arc<Dispatcher>, to_shard: ToShard) -> Self {
        Forwarded { dispatcher, to_shard, staged: Staged::default() }
    }
}

/// A message.
#[derive(Encode, Decode)]
#[cbor(map)]
struct MessageRecord {
    /// The filter of its rule.
    #[n(0)]
    filter: String,
    #[n(1)]
    id: String,
    /// The publication, as the crate `handover` encodes it.
    #[n(2)]
    publication: ByteVec,
    #[cbor(n(3), default)]
    users: Vec<String>,
    #[n(4)]
    connection: Option<Id>,
    #[n(5)]
    transport: String,
    #[n(6)]
    client: Option<String>,
    #[n(7)]
    at_ms: u64,
    /// The shard's hook that waits until the back end has taken the message.
    #[n(8)]
    hook: Option<ByteVec>,
    /// The id of the request in which it is under way.
    #[n(9)]
    sent_in: Option<String>,
}

/// The state besides the messages.
#[derive(Encode, Decode)]
#[cbor(map)]
struct StateRecord {
    /// The number of the next message.
    #[n(0)]
    next: u64,
}

impl MessageRecord {
    fn new(Waits { pending, sent_in }: Waits<'_>) -> Self {
        let ForwardRequest {
            filter,
            publication,
            users,
            connection,
            transport,
            client,
            at_ms,
            hook,
            reply: _,
        } = &pending.request;
        MessageRecord {
            filter: filter.to_string(),
            id: pending.id.clone(),
            publication: encode_publication(publication).into(),
            users: texts(users),
            connection: connection.map(id_record),
            transport: (*transport).into(),
            client: client.as_ref().map(Name::to_string),
            at_ms: *at_ms,
            hook: hook.peek(PendingHook::encode).map(Into::into),
            sent_in: sent_in.map(|id| id.as_str().into()),
        }
    }

    fn import(self, number: u64, to_shard: &ToShard) -> Result<Restored, PartError> {
        let publication = decode_publication(&self.publication)
            .map_err(|error| PartError::new(FORWARD, error))?;
        let connection = self.connection.map(connection);
        let hook = self.hook.map(|bytes| hook(FORWARD, &bytes)).transpose()?;
        // Only a message of a connection has a client that waits.
        let waits = connection.zip(hook.as_ref());
        let reply = waits.map(|(id, hook)| reply(to_shard, id, hook));
        let request = ForwardRequest {
            filter: self.filter.into(),
            publication,
            users: names(self.users),
            connection,
            transport: transport(&self.transport),
            client: self.client.map(Name::from),
            at_ms: self.at_ms,
            hook: hook.unwrap_or_else(SharedHook::default),
            reply,
        };
        let sent_in = self.sent_in.map(RequestId::of_text);
        Ok(Restored { request, id: self.id, number, sent_in })
    }
}

impl Part for Forwarded {
    fn name(&self) -> &'static str {
        FORWARD
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let forwards = &self.dispatcher.forwards;
        for queue in forwards.all_queues() {
            let mut numbers = Vec::new();
            queue.each(&mut |waits| numbers.push(waits.pending.number));
            numbers.sort_unstable();
            for numbers in numbers.chunks(PIECE) {
                let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { continue };
                let mut records = Vec::new();
                queue.each(&mut |waits| {
                    let number = waits.pending.number;
                    if (first..=last).contains(&&number) {
                        records.push((number, MessageRecord::new(waits)));
                    }
                });
                for (number, record) in records {
                    each(&numbered(MESSAGE, number), &encode(&record));
                }
            }
        }
        let next = forwards.next.load(Ordering::Relaxed);
        each(&[STATE], &encode(&StateRecord { next }));
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        match (key, value) {
            ([MESSAGE, ..], value) => {
                number(FORWARD, key)?;
                self.staged.put(key, value);
            }
            ([STATE], Some(value)) => {
                let StateRecord { next } = decode(FORWARD, value)?;
                self.dispatcher.forwards.next.store(next, Ordering::Relaxed);
            }
            // A newer version may know more.
            _ => {}
        }
        Ok(())
    }

    /// Queues all messages in their order. Shards must process commands by now.
    fn complete(&self) -> Result<(), PartError> {
        let mut restored = Vec::new();
        for (key, value) in self.staged.take() {
            let record: MessageRecord = decode(FORWARD, &value)?;
            restored.push(record.import(number(FORWARD, &key)?, &self.to_shard)?);
        }
        let without_rule = self.dispatcher.forwards.restore(restored);
        if !without_rule.is_empty() {
            let messages = without_rule.len();
            tracing::warn!(
                messages,
                "messages for back ends were dropped: the configuration no longer has their rules"
            );
        }
        for Restored { request, .. } in without_rule {
            request.reply.into_iter().for_each(|reply| reply(ErrorKind::Stopped.response()));
        }
        Ok(())
    }
}
