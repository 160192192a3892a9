//! Limits of a client, a user and the node: rates, quotas, capacity, and the rejections.

pub(crate) mod capacity;
pub(crate) mod quota;
pub(crate) mod rates;
pub(crate) mod reject;
pub(crate) mod user_counts;
