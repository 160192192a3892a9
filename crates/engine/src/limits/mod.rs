//! What a client, a user and the node may have: rates, quotas, capacity, and how more is rejected.

pub(crate) mod capacity;
pub(crate) mod quota;
pub(crate) mod rates;
pub(crate) mod reject;
pub(crate) mod user_counts;
