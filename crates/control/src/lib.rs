//! What applications and operators meet: the HTTP API, the metrics, the page.
//!
//! - `http`: the admin port below the calls: its connections, who may call, requests, rejections.
//! - `api`: the calls, one file a subject, and their OpenAPI document.
//! - `monitor`: the node's figures: metrics, samples, topics on top, the memory watch.
//! - `certificates`: what the server's TLS certificates say.
//! - `dashboard`: the operator's page, which draws what the API answers.
//! - `keys`: fetches the keys that issuers of clients' tokens publish.
//! - [`webhook`]: sends clients' events to the application, and its responses back.
//! - `outgoing`: what requests to others have in common.
//! - `eviction`: which drain or rebalance is under way, and how fast; `api/drain` closes the connections.
//! - `upgrade`: how a live upgrade is begun and watched.
//! - `node`: what all of these share, and the way to the shards.
//! - `thread`: the thread that runs it all.
//!
//! Modules use each other in one direction: `thread` → `api` → `dashboard`, `monitor` → `node` →
//! `eviction`, `upgrade`, `webhook` → `spans` → `http`.
//!
//! Bounds, besides those of the configuration: 60 seconds after a request's head until its answer
//! begins; 30 seconds for a request whose head has arrived; 32 KiB for a head; 5 seconds for a
//! shard's answer, and 20 for the disk's; after an upgrade 10 seconds until connections that say
//! nothing are closed, and 40 until all are; 64 sessions of a key, 10 sign-ins of an address that fail in a
//! minute; 1,000 commands a batch; 64 readers of the live figures, 900
//! samples of a second each; 100 topics or messages, 1,000 members, and 1,000 messages or 4 MiB of a
//! history in an answer about them.
//!
//! One thread with its own single-threaded runtime reaches the shards by their mailboxes. No message
//! passes through it on its way from a shard to its members.

#![forbid(unsafe_code)]

mod api;
mod certificates;
mod dashboard;
mod eviction;
mod http;
mod key_fetcher;
mod keys;
mod monitor;
mod node;
mod outgoing;
mod spans;
#[cfg(test)]
mod tests;
mod thread;
mod upgrade;
pub mod webhook;

pub use api::{REVOCATIONS, access, of_shards, openapi};
pub use certificates::{Certificate, Certificates, OrderResult};
pub use eviction::Evictions;
pub use http::access::{Access, AccessSettings, ApiKey, SignIns};
pub use http::admission::{ConnectionLimits, Connections};
pub use http::gate::{Gate, Patience};
pub use key_fetcher::KeyFetcher;
pub use monitor::process::unix_us;
pub use monitor::{Samples, anonymous_bytes};
pub use node::{Live, Node, Shards, UserLocks};
pub use outgoing::Authorities;
pub use spans::{SpanExporter, Tracer, TracingSettings};
pub use thread::{Listeners, Running, Runtime, spawn};
pub use upgrade::{
    UpgradeProgress, UpgradeRejection, UpgradeRequest, UpgradeStage, Upgrader, Upgrades,
};
