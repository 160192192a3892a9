//! What other threads ask for, in the order in which they asked.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use wire::message::{PERSONAL, personal};
use wire::{Close, ConnectionId, Name};

use crate::command::{Command, ConnectionInfo, Target, TopicInfo};
use crate::connection::Flag;
use crate::shard::Shard;

/// Messages that may wait in the shard's fan-outs. With more, the mailbox is left to fill up, and
/// publishers are told that the server is behind.
const QUEUED_MAX: usize = if cfg!(test) { 24 } else { 8_192 };

/// Commands that one turn does before sockets have theirs.
const COMMANDS: usize = if cfg!(test) { 3 } else { 1_024 };

impl Shard {
    /// Does what the mailbox holds, up to a turn's share.
    pub(crate) fn run_commands(&mut self) {
        for _ in 0..COMMANDS {
            if self.is_behind() {
                return;
            }
            let Some(command) = self.commands.pop_front() else {
                return;
            };
            self.run_command(command);
        }
    }

    /// True while as many messages wait as may.
    pub(crate) fn is_behind(&self) -> bool {
        self.hub.queued() >= QUEUED_MAX
    }

    fn run_command(&mut self, command: Command) {
        match command {
            Command::Deliver(delivery) => self.deliver(delivery),
            Command::Disconnect { target, close, reply } => {
                reply(self.disconnect(&target, close));
            }
            Command::Subscribe { user, topic, reply } => {
                let slots = self.slots_of(&user);
                let max = self.settings.session.topics_per_connection_max;
                let mut count = 0;
                for slot in slots {
                    let is_in = self.hub.topics_of(slot).any(|name| *name == topic);
                    if is_in {
                        count += 1;
                    } else if self.hub.count(slot) < max && self.join(slot, &topic) {
                        count += 1;
                        self.follow_now(slot, std::slice::from_ref(&topic));
                    }
                }
                reply(count);
            }
            Command::Unsubscribe { user, topic, reply } => {
                let mut count = 0;
                for slot in self.slots_of(&user) {
                    let mut last = Vec::new();
                    self.settle(slot, Some(&topic), &mut last);
                    count += u32::from(self.leave(slot, &topic));
                    self.phoenix_left(slot, &topic, &mut last);
                    if !last.is_empty() {
                        self.send(slot, &last, 0);
                    }
                }
                reply(count);
            }
            Command::Topics { prefix, after, limit, reply } => {
                reply(self.topics(&prefix, after.as_deref(), limit));
            }
            Command::Topic { topic, reply } => {
                reply(self.hub.members(self.broker.hash(&topic), &topic));
            }
            Command::Biggest { limit, reply } => reply(self.biggest(limit)),
            Command::Members { topic, limit, reply } => {
                let hash = self.broker.hash(&topic);
                let slots = self.hub.each_slot(hash, &topic);
                let described = slots.filter_map(|slot| self.describe(slot)).take(limit);
                reply((self.hub.members(hash, &topic), described.collect()));
            }
            Command::Verdict { slot, serial, question, heard, verdict } => {
                if self.is_same(slot, serial) {
                    self.verdict(slot, question, &heard, &verdict);
                }
            }
            Command::Session { session, request, from } => {
                self.session_request(session, request, from);
            }
            Command::SessionAnswer { session, to, answer } => {
                self.session_answered(session, to, answer);
            }
            Command::Pulled { slot, serial, numbers, piece } => {
                if self.is_same(slot, serial) {
                    match piece {
                        Some(piece) => self.was_read(slot, &numbers, piece),
                        None => self.come_back_later(slot),
                    }
                }
            }
            Command::Acknowledged { user, topic, offset } => {
                self.acknowledged(&user, &topic, offset);
            }
            Command::Published { slot, serial, answer, result } => {
                if self.is_same(slot, serial) {
                    self.published(slot, answer, result);
                }
            }
            Command::Settings(settings) => self.settings = settings,
            Command::Drain { seconds } => self.begin_drain(seconds),
        }
    }

    /// True while the connection in the slot is the one that is meant, and not about to end.
    fn is_same(&self, slot: u32, serial: u32) -> bool {
        self.table
            .get(slot)
            .is_some_and(|connection| connection.serial == serial && !connection.is(Flag::Closing))
    }

    fn deliver(&mut self, delivery: broker::Delivery) {
        let broker::Delivery { message, receipt } = delivery;
        self.metrics.messages_in.add(1);
        if message.kept != wire::Kept::No {
            self.took(message.id.offset);
        }
        let members = if message.is_broadcast() {
            self.hub.broadcast(message.clone())
        } else {
            self.hub.publish(message.topic_hash, &message.draft.topic, message.clone())
        };
        if members == 0 {
            // Nobody here waits for it.
            self.handle.inbox.waiting.leave(&message);
        }
        if let Some(receipt) = receipt {
            receipt.add(u64::from(members));
        }
    }

    fn slots_of(&self, user: &str) -> Vec<u32> {
        let topic = personal(user);
        self.hub.slots(self.broker.hash(&topic), &topic)
    }

    fn disconnect(&mut self, target: &Target, close: Close) -> u32 {
        let slots = match target {
            Target::User(user) => self.slots_of(user),
            Target::Connection(ConnectionId { slot, serial, .. }) => {
                let found = self
                    .table
                    .get(*slot)
                    .is_some_and(|found| found.serial == *serial && !found.is(Flag::Closing));
                if found { vec![*slot] } else { Vec::new() }
            }
        };
        for slot in &slots {
            let last = self.goodbye(*slot, close);
            self.close(*slot, close, &last);
        }
        slots.len() as u32
    }

    /// The first topics in byte order, without sorting all of them.
    fn topics(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<TopicInfo> {
        let mut first: BinaryHeap<(&Name, u32)> = BinaryHeap::new();
        for (name, members, _) in self.hub.all_topics() {
            let listed = name.starts_with(prefix)
                && after.is_none_or(|after| name.as_str() > after)
                && (prefix.starts_with('@') || !name.starts_with('@'));
            if listed {
                first.push((name, members));
                if first.len() > limit {
                    first.pop();
                }
            }
        }
        let sorted = first.into_sorted_vec().into_iter();
        sorted.map(|(topic, members)| TopicInfo { topic: topic.clone(), members }).collect()
    }

    /// The topics with the most members, without sorting all of them.
    fn biggest(&self, limit: usize) -> Vec<TopicInfo> {
        let all = || self.hub.all_topics().map(|(name, members, _)| (name, members));
        let sorted = biggest(all, limit).into_iter();
        sorted.map(|(topic, members)| TopicInfo { topic: topic.clone(), members }).collect()
    }

    fn describe(&self, slot: u32) -> Option<ConnectionInfo> {
        let connection = self.table.get(slot)?;
        let (mut users, mut topics) = (Vec::new(), Vec::new());
        for name in self.hub.topics_of(slot) {
            match name.strip_prefix(wire::message::PERSONAL) {
                Some(user) => users.push(user.into()),
                None => topics.push(name.clone()),
            }
        }
        let address = rustix::net::getpeername(&connection.fd).ok().flatten();
        let (bytes_sent, bytes_received) = traffic(&connection.fd);
        Some(ConnectionInfo {
            id: self.id(slot, connection.serial),
            transport: connection.variant.name(),
            age_seconds: self.now_s().saturating_sub(connection.opened_s),
            address: address.and_then(|address| SocketAddr::try_from(address).ok()),
            users,
            topics,
            bytes_sent,
            bytes_received,
            outbox_bytes: connection.outbox().map_or(0, |outbox| outbox.bytes()),
        })
    }
}

/// The first `limit` topics by members, then by name; of those with one member whichever come
/// first. Most topics are personal, with a member or two: they are passed over by their count, for
/// a name may lie elsewhere in memory.
fn biggest<'a, I: Iterator<Item = (&'a Name, u32)>>(
    topics: impl Fn() -> I,
    limit: usize,
) -> Vec<(&'a Name, u32)> {
    // Its top is the one to go first.
    let mut kept: BinaryHeap<(Reverse<u32>, &Name)> = BinaryHeap::new();
    let mut members_min = 2;
    for (name, members) in topics() {
        if limit == 0 || members < members_min || name.starts_with(PERSONAL) {
            continue;
        }
        kept.push((Reverse(members), name));
        if kept.len() > limit {
            kept.pop();
        }
        if kept.len() == limit {
            members_min = kept.peek().map_or(members_min, |(Reverse(members), _)| *members);
        }
    }
    if kept.len() < limit {
        let single =
            topics().filter(|(name, members)| *members == 1 && !name.starts_with(PERSONAL));
        let places = limit - kept.len();
        kept.extend(single.take(places).map(|(name, members)| (Reverse(members), name)));
    }
    kept.into_sorted_vec().into_iter().map(|(Reverse(members), name)| (name, members)).collect()
}

/// Bytes that the peer acknowledged and bytes that it sent. The kernel counts them anyway
/// (`tcp_info` in linux/tcp.h), so no connection has to.
fn traffic(socket: impl AsFd) -> (u64, u64) {
    use std::os::fd::AsRawFd;
    const ACKED: usize = 120;
    const RECEIVED: usize = 128;
    let mut info = [0u8; 136];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which is that long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&info[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    if result == 0 && length as usize >= info.len() {
        (word(ACKED), word(RECEIVED))
    } else {
        (0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_biggest_topics_come_first_and_personal_ones_not_at_all() {
        let topics: [(Name, u32); 7] =
            [("b", 2), ("@alice", 9), ("d", 1), ("@bob", 1), ("a", 2), ("c", 7), ("e", 1)]
                .map(|(name, members)| (name.into(), members));
        let first = |limit| {
            let all = || topics.iter().map(|(name, members)| (name, *members));
            let kept = biggest(all, limit).into_iter();
            kept.map(|(name, members)| (name.as_str(), members)).collect::<Vec<_>>()
        };
        assert_eq!(first(1), [("c", 7)]);
        assert_eq!(first(2), [("c", 7), ("a", 2)]);
        assert_eq!(first(3), [("c", 7), ("a", 2), ("b", 2)]);
        assert_eq!(first(4), [("c", 7), ("a", 2), ("b", 2), ("d", 1)]);
        assert_eq!(first(10), [("c", 7), ("a", 2), ("b", 2), ("d", 1), ("e", 1)]);
        assert!(first(0).is_empty());
    }
}
