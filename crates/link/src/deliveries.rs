//! Messages of other nodes on their way to the broker.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use broker::{Local, PublishError};
use bytes::Bytes;
use cluster::{GroupMessage, Stream, number_of};
use handover::RecordError;
use handover::message::{decode_publication, decode_shared};
use model::NodeId;
use model::name::shown;
use throttle::Throttle;

use crate::Link;

/// The interval between log lines about the same problem, in microseconds.
const LINES_US: u64 = 1_000_000;

/// The interval between two gap notices to members, in microseconds: for each, every shard scans the names of all its
/// topics.
const NOTICE_US: u64 = 1_000_000;

/// A delivery to the broker; they are made in order.
pub(crate) enum Delivery {
    /// A message of another node.
    Message(NodeId, Bytes),
    /// A message that another node has passed to a member of a group here.
    ToGroup(NodeId, GroupMessage),
    /// Messages of a stream are lost.
    Gap(NodeId, Stream, Option<u64>),
}

/// Deliveries that wait for slow shards.
pub(crate) struct Deliveries {
    link: Arc<Link>,
    broker: Arc<Local>,
    waiting: VecDeque<Delivery>,
    /// Streams with gaps whose members have no notice yet.
    lost: BTreeSet<Stream>,
    /// The earliest time of the next notice.
    notice_due_us: u64,
    damaged: Throttle,
    rejected: Throttle,
    gaps: Throttle,
    untaken: Throttle,
}

impl Deliveries {
    pub fn new(link: Arc<Link>, broker: Arc<Local>) -> Self {
        let lines = || Throttle::new(1, LINES_US);
        Deliveries {
            link,
            broker,
            waiting: VecDeque::new(),
            lost: BTreeSet::new(),
            notice_due_us: 0,
            damaged: lines(),
            rejected: lines(),
            gaps: lines(),
            untaken: lines(),
        }
    }

    pub fn push(&mut self, delivery: Delivery) {
        self.waiting.push_back(delivery);
    }

    /// Delivers until a shard is behind. Returns true if no delivery waits any more.
    pub fn deliver(&mut self) -> bool {
        self.notify_gaps();
        while let Some(delivery) = self.waiting.front() {
            match delivery {
                Delivery::Message(node, bytes) => {
                    if !self.publish(*node, bytes) {
                        return false;
                    }
                }
                Delivery::ToGroup(node, message) => {
                    if !self.publish_to_group(*node, message) {
                        return false;
                    }
                }
                Delivery::Gap(node, stream, lost) => {
                    let (node, stream, lost) = (*node, *stream, *lost);
                    self.report_gap(node, stream, lost);
                    self.notify_gaps();
                }
            }
            self.waiting.pop_front();
        }
        true
    }

    /// Sends members notices of all known gaps now, because the next process does not know these gaps.
    pub fn notify_gaps_now(&mut self) {
        self.notice_due_us = 0;
        self.notify_gaps();
    }

    /// Sends members notices of gaps: of the first gap before the messages behind it, of later gaps within a second
    /// at its end.
    fn notify_gaps(&mut self) {
        let now_us = self.link.now_us();
        if self.lost.is_empty() || now_us < self.notice_due_us {
            return;
        }
        self.notice_due_us = now_us + NOTICE_US;
        let lost = std::mem::take(&mut self.lost);
        let is_everyone = lost.contains(&Stream::EVERYONE);
        self.broker.notify_gap(is_everyone, move |topic| lost.contains(&Stream::of(topic)));
    }

    /// Passes a message to the broker. Returns false if the message must wait.
    fn publish(&self, node: NodeId, bytes: &Bytes) -> bool {
        let (publication, choices) = match decode_shared(bytes) {
            Ok(message) => message,
            Err(error) => return self.report_damaged(node, &error),
        };
        let result = self.broker.publish_from_node(publication, &choices, number_of(bytes));
        self.is_done(node, result)
    }

    /// Passes a message to a member of a group. Returns false if the message must wait.
    fn publish_to_group(&self, node: NodeId, message: &GroupMessage) -> bool {
        let publication = match decode_publication(&message.publication) {
            Ok(publication) => publication,
            Err(error) => return self.report_damaged(node, &error),
        };
        let passed = message.passed.iter().map(|node| NodeId(*node)).collect();
        let result = self.broker.publish_to_group(publication, &message.group, passed);
        if let Ok(false) = result
            && let Some(suppressed) = self.untaken.pass(self.link.now_us(), 1)
        {
            let group = shown(&message.group);
            tracing::warn!(
                %node,
                group,
                suppressed,
                "a message to an MQTT group was lost: the last member of the group has left"
            );
        }
        self.is_done(node, result.map(drop))
    }

    /// Returns true if a delivery is finished. Otherwise a shard or the store is behind.
    fn is_done(&self, node: NodeId, result: Result<(), PublishError>) -> bool {
        match result {
            Ok(()) => true,
            Err(PublishError::Overloaded | PublishError::StoreBusy) => false,
            Err(error) => {
                if let Some(suppressed) = self.rejected.pass(self.link.now_us(), 1) {
                    tracing::warn!(
                        %node,
                        %error,
                        suppressed,
                        "a message from another node could not be delivered and was dropped"
                    );
                }
                true
            }
        }
    }

    fn report_damaged(&self, node: NodeId, error: &RecordError) -> bool {
        if let Some(suppressed) = self.damaged.pass(self.link.now_us(), 1) {
            tracing::warn!(
                %node,
                %error,
                suppressed,
                "a message from another node could not be read and was dropped"
            );
        }
        true
    }

    /// Records a gap. A poll that returns to a topic of the stream gets a gap, and other members a notice.
    fn report_gap(&mut self, node: NodeId, stream: Stream, lost: Option<u64>) {
        self.link.set_complete_after(stream, self.broker.skip_offset());
        self.lost.insert(stream);
        if let Some(suppressed) = self.gaps.pass(self.link.now_us(), 1) {
            tracing::warn!(
                %node,
                stream = stream.number(),
                lost,
                suppressed,
                "messages from another node were lost: that node did not retain them long enough"
            );
        }
    }
}
