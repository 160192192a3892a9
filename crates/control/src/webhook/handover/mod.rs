//! The export of work with the application to another process: requests without a response, events, and messages for
//! back ends.
//!
//! While the process serves, this work changes all the time. An export is complete and in order only while the
//! dispatcher [stands still](super::Dispatcher::stand_still).

mod events;
mod forwarded;
mod hooks;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use minicbor::Decode;
use model::{ConnectionId, Name, NodeId};
use shard::{Command, PendingHook, Reply, WebhookResponse};

use handover::PartError;

pub use events::EventsPart;
pub use forwarded::Forwarded;
pub use hooks::Hooks;

/// Sends a command to a shard's mailbox.
pub type ToShard = Arc<dyn Fn(u16, Command) + Send + Sync>;

/// Records by their keys.
type Records = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Records that are imported together once all have come, because their order and removed records matter.
#[derive(Default)]
struct Staged(Mutex<Records>);

impl Staged {
    fn put(&self, key: &[u8], value: Option<&[u8]>) {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match value {
            Some(value) => _ = records.insert(key.into(), value.into()),
            None => _ = records.remove(key),
        }
    }

    /// Removes and returns all records, by their keys.
    fn take(&self) -> Records {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn decode<'b, T: Decode<'b, ()>>(part: &'static str, bytes: &'b [u8]) -> Result<T, PartError> {
    handover::decode(bytes).map_err(|error| PartError::new(part, error))
}

/// A key that sorts by its number.
fn numbered(kind: u8, number: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The number of a key.
fn number(part: &'static str, key: &[u8]) -> Result<u64, PartError> {
    let number = key.get(1..).and_then(|number| number.try_into().ok());
    number
        .map(u64::from_be_bytes)
        .ok_or_else(|| PartError::new(part, "a number does not have 8 bytes"))
}

/// Node, shard, slot and serial.
type Id = (u32, u16, u32, u32);

fn id_record(ConnectionId { node: NodeId(node), shard, slot, serial }: ConnectionId) -> Id {
    (node, shard, slot, serial)
}

fn connection((node, shard, slot, serial): Id) -> ConnectionId {
    ConnectionId { node: NodeId(node), shard, slot, serial }
}

fn texts(names: &[Name]) -> Vec<String> {
    names.iter().map(Name::to_string).collect()
}

fn names(texts: Vec<String>) -> Vec<Name> {
    texts.into_iter().map(Name::from).collect()
}

/// A transport by its name.
fn transport(name: &str) -> &'static str {
    let known = protocol::standard().names().map(|protocol| protocol.name());
    // Requests without a transport of their own, and transports of a newer version.
    known.chain(["http"]).find(|known| *known == name).unwrap_or("unknown")
}

/// Sends a response to the shard of a connection.
fn reply(to_shard: &ToShard, id: ConnectionId, hook: &shard::SharedHook) -> Reply<WebhookResponse> {
    let (to_shard, hook) = (to_shard.clone(), hook.clone());
    let ConnectionId { shard, slot, serial, .. } = id;
    Box::new(move |response| {
        if let Some(hook) = hook.take() {
            to_shard(shard, Command::WebhookResponded { slot, serial, hook, response });
        }
    })
}

fn hook(part: &'static str, bytes: &[u8]) -> Result<shard::SharedHook, PartError> {
    let hook = PendingHook::decode(bytes).map_err(|error| PartError::new(part, error))?;
    Ok(shard::SharedHook::new(hook))
}
