//! Where replies to commands go.

/// Where a reply goes. Called once on the shard's thread, so it must not block. A shard that has ended drops it without
/// a call.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;
