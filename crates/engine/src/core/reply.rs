//! Where replies to commands go.

/// Where a reply goes: called once, on the shard's thread; must not block. A shard that has
/// ended drops it uncalled.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;
