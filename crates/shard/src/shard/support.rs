//! A shard that a test drives by hand.

use std::sync::Arc;

use engine::Settings;

use super::Shard;

/// A shard without a listener, whose clients may do everything.
pub fn shard() -> Shard {
    let limits =
        presence::Limits { users_max: 0, list_bytes_max: 0, interval_us: 1_000, members_per_ms: 0 };
    let presence = presence::Local::new(limits, model::NodeId(1));
    let shared = engine::Shared::new(
        model::NodeId(1),
        protocol::standard(),
        Arc::new(presence),
        Arc::default(),
        sessions::in_memory(model::NodeId(1)),
    );
    let policy = auth::Policy::new(model::Rules::default(), auth::LoginRule::Allow);
    crate::start::for_tests(Settings::for_tests(policy), Arc::new(shared))
}
