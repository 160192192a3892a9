//! Orders to the thread `cluster` while another process may take over.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use cluster::Node;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::lock::lock;

/// An order to the thread.
pub(crate) enum Order {
    /// Let the closure read the node.
    Inspect(Box<dyn FnOnce(&Node) + Send>),
    /// Read no more packets, and reply when the broker has all messages that have come.
    Pause(Sender<()>),
    /// Send everything to NATS, then send nothing more, and reply.
    Rest(Sender<()>),
    /// Go on.
    Resume,
    /// End, without a goodbye.
    Abandon,
}

/// The queue of orders to the thread.
pub(crate) struct Orders {
    sender: UnboundedSender<Order>,
    receiver: Mutex<Option<UnboundedReceiver<Order>>>,
}

impl Orders {
    pub fn new() -> Self {
        let (sender, receiver) = unbounded_channel();
        Orders { sender, receiver: Mutex::new(Some(receiver)) }
    }

    /// Returns the orders, for the thread.
    pub fn take_receiver(&self) -> Option<UnboundedReceiver<Order>> {
        lock(&self.receiver).take()
    }

    /// Sends an order. A thread that has ended ignores it.
    pub fn send(&self, order: Order) {
        let _ = self.sender.send(order);
    }

    /// Sends an order. The caller polls the result until the thread has done it.
    pub fn send_with_reply(&self, order: fn(Sender<()>) -> Order) -> PendingOrder {
        let (sender, receiver) = channel();
        self.send(order(sender));
        PendingOrder(receiver)
    }
}

/// An order that the thread may not have done yet.
pub struct PendingOrder(Receiver<()>);

impl PendingOrder {
    /// Returns true if the order is done, or the thread has ended.
    pub fn is_done(&self) -> bool {
        self.0.try_recv() != Err(TryRecvError::Empty)
    }
}
