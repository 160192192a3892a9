//! Where replies to commands go.

/// Where a reply goes. Called at most once, and must not block. The reply to a command is called on the shard's
/// thread; a shard that has ended drops it without a call. The reply to a webhook request may be called on any thread.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;
