//! The task that gives NATS what a node sends, in its order.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use async_nats::connection::State;
use async_nats::{Client, Subject, Subscriber};
use bytes::Bytes;
use cluster::{Stream, Target};
use futures_util::Stream as _;
use model::NodeId;
use throttle::Throttle;
use tokio::sync::mpsc::{Sender, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::Link;

/// What the task has to do.
pub(crate) enum Command {
    Subscribe(Target),
    Unsubscribe(Stream),
    Publish(Target, Bytes),
    /// Everything before has been given to the server.
    Flush(oneshot::Sender<()>),
}

/// The task's state.
pub(crate) struct Writer {
    link: Arc<Link>,
    client: Client,
    /// Where packets go that come.
    packets: Sender<(Target, Bytes)>,
    subjects: Vec<Subject>,
    readers: HashMap<Stream, JoinHandle<()>>,
    failed: Throttle,
}

impl Writer {
    pub fn new(link: Arc<Link>, client: Client, packets: Sender<(Target, Bytes)>) -> Self {
        let subject = |stream| Subject::from(link.subjects.of(Target::Stream(stream)));
        Writer {
            subjects: Stream::all().map(subject).collect(),
            readers: HashMap::new(),
            failed: Throttle::new(1, 1_000_000),
            link,
            client,
            packets,
        }
    }

    pub async fn run(mut self, mut commands: UnboundedReceiver<Command>) {
        while let Some(command) = commands.recv().await {
            match command {
                Command::Subscribe(target) => self.subscribe(target).await,
                Command::Unsubscribe(stream) => {
                    // Its subscriber ends the subscription when it is dropped.
                    self.readers.remove(&stream).inspect(JoinHandle::abort);
                }
                Command::Publish(target, bytes) => {
                    self.publish(target, bytes.clone()).await;
                    self.link.release_bytes(bytes.len());
                }
                Command::Flush(done) => {
                    if self.is_connected() {
                        let _ = self.client.flush().await;
                    }
                    let _ = done.send(());
                }
            }
        }
    }

    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    fn subject(&self, target: Target) -> Subject {
        match target {
            Target::Stream(stream) => self.subjects[stream.index()].clone(),
            Target::Nodes | Target::Node(_) => self.link.subjects.of(target).into(),
        }
    }

    async fn subscribe(&mut self, target: Target) {
        match self.client.subscribe(self.subject(target)).await {
            Ok(subscriber) => {
                let reader = tokio::spawn(read(subscriber, target, self.packets.clone()));
                if let Target::Stream(stream) = target {
                    self.readers.insert(stream, reader);
                }
            }
            Err(error) => self.report(target, &error),
        }
    }

    /// Without NATS, nothing is sent: other nodes request later what they miss.
    async fn publish(&self, target: Target, bytes: Bytes) {
        if !self.is_connected() {
            return;
        }
        if let Err(error) = self.client.publish(self.subject(target), bytes).await {
            self.report(target, &error);
        }
    }

    fn report(&self, target: Target, error: &dyn std::error::Error) {
        if let Some(suppressed) = self.failed.pass(self.link.now_us(), 1) {
            let subject = self.link.subjects.of(target);
            tracing::warn!(
                subject,
                error = error.to_string(),
                suppressed,
                "NATS did not take a packet"
            );
        }
    }
}

/// Passes on what comes by a subscription, until it ends.
async fn read(mut subscriber: Subscriber, target: Target, packets: Sender<(Target, Bytes)>) {
    while let Some(message) =
        std::future::poll_fn(|context| Pin::new(&mut subscriber).poll_next(context)).await
    {
        if packets.send((target, message.payload)).await.is_err() {
            return;
        }
    }
}

/// The subscriptions that every node has, besides those of streams.
pub(crate) fn own_targets(node: NodeId) -> [Target; 2] {
    [Target::Nodes, Target::Node(node)]
}
