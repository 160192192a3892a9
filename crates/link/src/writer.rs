//! The task that passes a node's packets to NATS, in their order.

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
use tokio::task::{AbortHandle, JoinError, JoinSet};

use crate::Link;

/// A command to the task.
pub(crate) enum Command {
    Subscribe(Target),
    Unsubscribe(Stream),
    Publish(Target, Bytes),
    /// Reply when the server has got everything before.
    Flush(oneshot::Sender<()>),
}

/// The task's state.
pub(crate) struct Writer {
    link: Arc<Link>,
    client: Client,
    /// The queue for incoming packets.
    packets: Sender<(Target, Bytes)>,
    subjects: Vec<Subject>,
    /// The tasks that forward incoming packets.
    readers: JoinSet<()>,
    /// The tasks of streams.
    by_stream: HashMap<Stream, AbortHandle>,
    failed: Throttle,
}

impl Writer {
    pub fn new(link: Arc<Link>, client: Client, packets: Sender<(Target, Bytes)>) -> Self {
        let subject = |stream| Subject::from(link.subjects.of(Target::Stream(stream)));
        Writer {
            subjects: Stream::all().map(subject).collect(),
            readers: JoinSet::new(),
            by_stream: HashMap::new(),
            failed: Throttle::new(1, 1_000_000),
            link,
            client,
            packets,
        }
    }

    /// Performs commands until no sender is left. Panics if one of its readers does: the node would go on without
    /// some packets of other nodes.
    pub async fn run(mut self, mut commands: UnboundedReceiver<Command>) {
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.perform(command).await,
                    None => return,
                },
                Some(ended) = self.readers.join_next() => continue_panic(ended),
            }
        }
    }

    async fn perform(&mut self, command: Command) {
        match command {
            Command::Subscribe(target) => self.subscribe(target).await,
            Command::Unsubscribe(stream) => {
                // Dropping its subscriber ends the subscription.
                self.by_stream.remove(&stream).inspect(AbortHandle::abort);
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
                let reader = self.readers.spawn(read(subscriber, target, self.packets.clone()));
                if let Target::Stream(stream) = target {
                    self.by_stream.insert(stream, reader);
                }
            }
            Err(error) => self.report(target, &error),
        }
    }

    /// Publishes a packet. Without NATS it drops the packet: other nodes request later what they miss.
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
                "NATS did not accept a packet"
            );
        }
    }
}

/// Panics if a task has. Its panic is in the log.
pub(crate) fn continue_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

/// Forwards the packets of a subscription until it ends.
async fn read(mut subscriber: Subscriber, target: Target, packets: Sender<(Target, Bytes)>) {
    while let Some(message) =
        std::future::poll_fn(|context| Pin::new(&mut subscriber).poll_next(context)).await
    {
        if packets.send((target, message.payload)).await.is_err() {
            return;
        }
    }
}

/// Returns the subscriptions that every node has, besides those of streams.
pub(crate) fn own_targets(node: NodeId) -> [Target; 2] {
    [Target::Nodes, Target::Node(node)]
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::sync::mpsc;

    use super::*;
    use crate::{Login, Settings};

    #[tokio::test]
    async fn a_panic_of_a_reader_is_one_of_the_writer() {
        let options = async_nats::ConnectOptions::new().retry_on_initial_connect();
        // No NATS server listens at this address.
        let client = options.connect("nats://127.0.0.1:1").await.unwrap();
        let link = Link::new(Settings::for_tests(), Login::Anonymous, Instant::now());
        let (packets, _receiver) = mpsc::channel(1);
        let mut writer = Writer::new(link, client, packets);
        writer.readers.spawn(async {});
        writer.readers.spawn(async { panic!("on purpose") });
        writer.readers.spawn(std::future::pending());
        let (_commands, receiver) = mpsc::unbounded_channel();
        let ended = tokio::spawn(writer.run(receiver)).await;
        let panic = std::panic::AssertUnwindSafe(|| continue_panic(ended));
        assert!(std::panic::catch_unwind(panic).is_err());
    }

    #[tokio::test]
    async fn a_task_that_is_aborted_or_ends_is_no_panic() {
        let task = tokio::spawn(std::future::pending::<()>());
        task.abort();
        continue_panic(task.await);
        continue_panic(Ok(()));
    }
}
