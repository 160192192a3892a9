//! The interface for applications and operators: the HTTP API, the metrics, the page.
//!
//! - `http`: the admin port below the calls: its connections, access, requests, rejections.
//! - `api`: the calls, one file a subject, and their OpenAPI document.
//! - `monitor`: the node's figures: metrics, samples, top topics, the memory limit.
//! - `certificates`: the server's TLS certificates.
//! - `dashboard`: the operator's page, which shows responses of the API.
//! - `keys`: fetches the keys that issuers of clients' tokens publish.
//! - [`webhook`]: sends clients' events to the application, and its responses back.
//! - `outgoing`: what outgoing requests share.
//! - `eviction`: the state and the pace of a drain or a rebalance; `api/drain` carries them out.
//! - `upgrade`: a live upgrade, for callers that begin and follow it.
//! - `node`: the state that all of these share, and the requests to the shards.
//! - `thread`: the thread that runs it all.
//!
//! Modules use each other in one direction: `thread` → `api` → `dashboard`, `monitor` → `node` →
//! `eviction`, `upgrade`, `webhook` → `spans` → `http`.
//!
//! Limits, besides those of the configuration: 60 seconds from a request's head to the start of its response; 30
//! seconds for a request whose head has arrived; 32 KiB for a head; 5 seconds for a shard's reply, and 20 for the
//! disk's; after an upgrade 10 seconds until silent connections are closed, and 40 until all are; 64 sessions of a
//! key, 10 failed sign-ins of an address in a minute; 1,000 commands a batch; 64 readers of the live figures, 900
//! samples of a second each; 100 topics or messages, 1,000 members, and 1,000 messages or 4 MiB of a history in a
//! response about them.
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
pub use http::gate::{Gate, Patience, PauseSteps};
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
