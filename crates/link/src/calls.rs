//! Calls of the API between nodes.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use cluster::{Call, CallReply};
use model::NodeId;
use tokio::sync::{mpsc, oneshot};

use crate::lock::lock;

/// Calls of other nodes that wait to be performed. Further calls are dropped, so that the callers' deadlines end
/// them.
const WAITING_MAX: usize = 256;

/// Calls of this node that wait for a reply. Further calls get none.
const PENDING_MAX: usize = 1_024;

/// Calls from and to other nodes.
pub(crate) struct Calls {
    id: AtomicU64,
    /// Calls of this node, by id: the node that replies, and the receiver of the reply.
    pending: Mutex<HashMap<u64, (NodeId, oneshot::Sender<CallReply>)>>,
    sender: mpsc::Sender<Call>,
    receiver: Mutex<Option<mpsc::Receiver<Call>>>,
}

impl Calls {
    pub fn new() -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        Calls {
            id: AtomicU64::new(0),
            pending: Mutex::default(),
            sender,
            receiver: Mutex::new(Some(receiver)),
        }
    }

    /// Begins a call to a node. Returns its id, and the receiver of its reply. The id is `None` if too many are
    /// pending.
    pub fn begin(&self, node: NodeId) -> (Option<u64>, oneshot::Receiver<CallReply>) {
        let (sender, receiver) = oneshot::channel();
        let mut pending = lock(&self.pending);
        let has_capacity = pending.len() < PENDING_MAX;
        let id = has_capacity.then(|| self.id.fetch_add(1, Relaxed));
        let _ = id.map(|id| pending.insert(id, (node, sender)));
        (id, receiver)
    }

    /// Returns the id of the next call.
    pub fn next_id(&self) -> u64 {
        self.id.load(Relaxed)
    }

    /// Sets the id of the next call.
    pub fn go_on_from(&self, id: u64) {
        self.id.store(id, Relaxed);
    }

    /// Forgets a call that was not sent: it gets no reply.
    pub fn forget(&self, id: u64) {
        lock(&self.pending).remove(&id);
    }

    /// Returns the receiver of other nodes' calls, once.
    pub fn take_receiver(&self) -> Option<mpsc::Receiver<Call>> {
        lock(&self.receiver).take()
    }

    /// Takes a call of another node.
    pub fn on_call(&self, call: Call) {
        // If too many calls wait, or no thread performs them, the caller's deadline ends the call.
        let _ = self.sender.try_send(call);
    }

    /// Takes a reply.
    pub fn on_reply(&self, reply: CallReply) {
        let pending = lock(&self.pending).remove(&reply.id);
        // The caller may have given up.
        let _ = pending.map(|(_, sender)| sender.send(reply));
    }

    /// Ends calls to a node that is gone: they get no reply.
    pub fn on_down(&self, node: NodeId) {
        let gone: Vec<_> = lock(&self.pending).extract_if(|_, (of, _)| *of == node).collect();
        // Without the lock, because it wakes the callers.
        drop(gone);
    }

    /// Forgets calls whose callers have given up.
    pub fn sweep(&self) {
        lock(&self.pending).retain(|_, (_, sender)| !sender.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(7);

    #[test]
    fn a_call_gets_its_reply_or_ends_with_its_node_or_its_caller() {
        let calls = Calls::new();
        let [mut replied, mut gone, given_up] = [0, 1, 2].map(|id| {
            let (number, receiver) = calls.begin(NODE);
            assert_eq!(number, Some(id));
            receiver
        });
        let reply = CallReply { node: 7, id: 0, status: 200, body: b"{}".to_vec() };
        calls.on_reply(reply.clone());
        calls.on_reply(CallReply { id: 9, ..reply.clone() });
        assert_eq!(replied.try_recv(), Ok(reply));
        drop(given_up);
        calls.sweep();
        assert_eq!(lock(&calls.pending).len(), 1);
        calls.on_down(NodeId(8));
        assert_eq!(gone.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        calls.on_down(NODE);
        assert_eq!(gone.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let pending: Vec<_> = (0..PENDING_MAX).map(|_| calls.begin(NODE)).collect();
        assert!(pending.iter().all(|(id, _)| id.is_some()));
        let (id, mut receiver) = calls.begin(NODE);
        assert_eq!((id, receiver.try_recv()), (None, Err(oneshot::error::TryRecvError::Closed)));
    }

    #[test]
    fn calls_that_no_thread_takes_are_dropped_beyond_a_limit() {
        let calls = Calls::new();
        for id in 0..WAITING_MAX as u64 + 10 {
            calls.on_call(Call { id, ..Call::default() });
        }
        let mut receiver = calls.take_receiver().unwrap();
        let taken: Vec<u64> =
            std::iter::from_fn(|| receiver.try_recv().ok()).map(|it| it.id).collect();
        assert_eq!(taken, (0..WAITING_MAX as u64).collect::<Vec<_>>());
    }
}
