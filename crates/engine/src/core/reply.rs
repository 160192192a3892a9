//! Where answers go.

/// Where an answer goes: called once, on the shard's thread; must not block. A shard that has
/// ended drops it uncalled.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;
