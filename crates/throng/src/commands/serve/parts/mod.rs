//! The parts of a process's state that it passes to another process, besides its connections.

use std::sync::{Arc, PoisonError, RwLock};

use broker::Broker;
use control::webhook::{Dispatcher, EventsPart, Forwarded, Hooks, ToShard};
use handover::Part;
use history::TopicHash;

use super::certificates::{Certificates, NoTicketsPart, TicketsPart};
use super::mqtt::Mqtt;

/// The names of all parts, in the order in which they are passed on.
pub(super) const NAMES: [&str; 20] = [
    "recent",
    "history",
    "cursors",
    "tries",
    "idempotency",
    "presence",
    "subscriptions",
    "revocations",
    "jwks",
    "sessions",
    "retained",
    "hooks",
    "events",
    "forward",
    "sign-ins",
    "samples",
    "tls-tickets",
    "cluster",
    "history-postgres",
    "subscriptions-postgres",
];

/// The services whose state the parts pass on.
pub(super) struct Services<'a> {
    pub broker: &'a Arc<broker::Local>,
    pub history: &'a history_local::Local,
    pub presence: Arc<dyn Part>,
    pub subscriptions: &'a Arc<subscriptions::Subscriptions>,
    pub revocations: &'a Arc<token::Revocations>,
    pub live: &'a Arc<RwLock<control::Live>>,
    pub mqtt_state: &'a Mqtt,
    pub access: &'a Arc<control::Access>,
    pub samples: control::Samples,
    pub webhook: &'a Arc<Dispatcher>,
    pub handles: &'a [shard::Handle],
    pub certificates: Option<Arc<Certificates>>,
    pub cluster: Option<Arc<link::Link>>,
    pub postgres: Option<history_postgres::Postgres>,
    pub subscription_database: Option<subscriptions_postgres::Postgres>,
}

/// All parts of this process, in the order of [`NAMES`].
pub(super) fn all(services: Services<'_>) -> Vec<Arc<dyn Part>> {
    let Services { broker, history, presence, subscriptions, revocations, live, .. } = services;
    let Services { mqtt_state, access, samples, webhook, handles, certificates, .. } = services;
    let Services { cluster, postgres, subscription_database, .. } = services;
    let tickets: Arc<dyn Part> = match certificates {
        Some(certificates) => Arc::new(TicketsPart(certificates)),
        None => Arc::new(NoTicketsPart),
    };
    let hash: TopicHash = {
        let broker = broker.clone();
        Arc::new(move |topic: &str| broker.hash(topic))
    };
    let [windows, cursors, delivery_counts, keys] = history_local::parts(history, &hash);
    let live = live.clone();
    let jwks = move || live.read().unwrap_or_else(PoisonError::into_inner).jwks.clone();
    let shards = handles.to_vec();
    let to_shard: ToShard = Arc::new(move |shard, command| {
        // No client waits for a reply of a shard that this process doesn't have.
        if let Some(handle) = shards.get(usize::from(shard)) {
            handle.send(command);
        }
    });
    let parts: Vec<Arc<dyn Part>> = vec![
        Arc::new(broker::RecentPart::new(broker.clone())),
        windows,
        cursors,
        delivery_counts,
        keys,
        presence,
        Arc::new(subscriptions::SubscriptionsPart(subscriptions.clone())),
        Arc::new(token::RevocationsPart(revocations.clone())),
        Arc::new(token::JwksPart::new(jwks)),
        mqtt_state.sessions.clone(),
        Arc::new(sessions::RetainedPart::new(mqtt_state.retained.clone(), move |topic| {
            hash(topic)
        })),
        Arc::new(Hooks::new(webhook.clone(), to_shard.clone())),
        Arc::new(EventsPart::new(webhook.clone())),
        Arc::new(Forwarded::new(webhook.clone(), to_shard)),
        Arc::new(control::SignIns(access.clone())),
        Arc::new(samples),
        tickets,
        Arc::new(link::ClusterPart::new(cluster)),
        Arc::new(history_postgres::PostgresPart::new(postgres)),
        Arc::new(subscriptions_postgres::PostgresPart::new(subscription_database)),
    ];
    debug_assert!(parts.iter().map(|part| part.name()).eq(NAMES));
    parts
}

#[cfg(test)]
mod tests;
