//! The state that does not come with the connections when another process takes over.

use std::ops::Bound;
use std::sync::Arc;

use minicbor::{Decode, Encode};

use crate::local::ENTRIES_PER_LOCK;
use crate::registry::{Registry, shared_entry};
use crate::topic::Listing;
use crate::{Limits, Local, NodeId, PassedEntry, Ref, SharedEntry};
use handover::{Again, Part, PartError, encode};

/// The most topics that are scanned in one hold of the lock. `NUMBERS_PER_LOCK` is that of numbers of other nodes'
/// entries.
const TOPICS: usize = 4_096;
const NUMBERS_PER_LOCK: usize = 1_024;

/// Kinds of keys. They never change.
const NUMBERS: u8 = b'n';
const UNLISTED: u8 = b'u';
const OTHER: u8 = b'o';

/// The number of the next ref, and the caps on users and on bytes of a list.
#[derive(Encode, Decode)]
#[cbor(map)]
struct Numbers {
    #[n(0)]
    next: u64,
    #[n(1)]
    users_max: u64,
    #[n(2)]
    list_bytes_max: u64,
}

/// A topic whose users are not listed.
#[derive(Encode, Decode)]
#[cbor(map)]
struct Unlisted {
    /// The time of its last notice, in microseconds of the node's clock.
    #[n(0)]
    last_us: Option<u64>,
}

/// An entry of another node. Its key has the node and the number, and it never changes.
#[derive(Encode, Decode)]
#[cbor(map)]
struct OtherEntry {
    #[n(0)]
    entry: SharedEntry,
    /// The node and the number of the ref that it has replaced, if any.
    #[n(1)]
    prev: Option<(u32, u64)>,
    /// True when the topic was created for it, and so counts for its memory.
    #[cbor(n(2), default)]
    is_first: bool,
}

/// A topic, and the time of its last notice.
type LastNotice = (Arc<str>, Option<u64>);

fn decoded<T: for<'b> Decode<'b, ()>>(bytes: &[u8]) -> Result<T, PartError> {
    handover::decode(bytes).map_err(|error| PartError::new("presence", error))
}

/// A number that does not fit this process's `usize` becomes the largest.
fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn other_key(of: Ref) -> Vec<u8> {
    let (node, number) = (of.node().0.to_be_bytes(), of.number().to_be_bytes());
    [&[OTHER][..], &node, &number].concat()
}

fn other_ref(key: &[u8]) -> Result<Ref, PartError> {
    let damaged = || PartError::new("presence", "the key of an entry has the wrong length");
    let (node, number) = key.split_first_chunk::<4>().ok_or_else(damaged)?;
    let number = <[u8; 8]>::try_from(number).map_err(|_| damaged())?;
    Ok(Ref::new(NodeId(u32::from_be_bytes(*node)), u64::from_be_bytes(number)))
}

/// Own connections come as connections: [`Presence::restore`](crate::Presence::restore). Entries of other nodes are
/// records. Before, all notices must have been sent ([`Presence::is_settled`](crate::Presence::is_settled)), and
/// other nodes must have got all changes ([`Local::take_changes`]).
impl Part for Local {
    fn name(&self) -> &'static str {
        "presence"
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        handover::export_all(self, each);
    }

    fn export_again(&self, each: &mut Again<'_>) {
        let numbers = {
            let Registry { next, limits: Limits { users_max, list_bytes_max, .. }, .. } =
                &*self.lock();
            let (users_max, list_bytes_max) = (*users_max as u64, *list_bytes_max as u64);
            Numbers { next: next.number(), users_max, list_bytes_max }
        };
        each(&[NUMBERS], Some(&encode(&numbers)));
        self.export_others(each);
        let mut after = None;
        loop {
            let (unlisted, last) = self.lock().unlisted_after(after.as_deref(), TOPICS);
            for (name, last_us) in unlisted {
                let key = [&[UNLISTED], name.as_bytes()].concat();
                each(&key, Some(&encode(&Unlisted { last_us })));
            }
            after = last;
            if after.is_none() {
                return;
            }
        }
    }

    fn import(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let mut registry = self.lock();
        match key.split_first() {
            Some((&NUMBERS, [])) => {
                let Some(value) = value else { return Ok(()) };
                let numbers: Numbers = decoded(value)?;
                let next = numbers.next.max(registry.next.number());
                registry.next = Ref::new(registry.next.node(), next);
                registry.caps_before = (size(numbers.users_max), size(numbers.list_bytes_max));
            }
            Some((&UNLISTED, name)) => {
                let name =
                    std::str::from_utf8(name).map_err(|error| PartError::new("presence", error))?;
                let unlisted = value.map(decoded::<Unlisted>).transpose()?;
                registry.set_unlisted(name, unlisted.map(|it| it.last_us));
            }
            Some((&OTHER, of)) => {
                let of = other_ref(of)?;
                match value.map(decoded::<OtherEntry>).transpose()? {
                    Some(OtherEntry { entry, prev, is_first }) => {
                        let prev = prev.map(|(node, number)| Ref::new(NodeId(node), number));
                        registry.restore_other(of, &entry, prev, is_first);
                    }
                    None => registry.unrestore_other(of),
                }
            }
            // A newer version may have more kinds.
            _ => {}
        }
        Ok(())
    }

    /// Called when the connections have come, too.
    fn complete(&self) -> Result<(), PartError> {
        self.lock().restored();
        Ok(())
    }
}

impl Local {
    /// Passes the entries of other nodes to `each`.
    fn export_others(&self, each: &mut Again<'_>) {
        let nodes = self.lock().other_nodes();
        for node in nodes {
            let mut from = Some(0);
            while let Some(first) = from.take() {
                let mut numbers = self.lock().other_numbers(node, first, NUMBERS_PER_LOCK);
                if numbers.len() == NUMBERS_PER_LOCK {
                    from = numbers.last().and_then(|last| last.checked_add(1));
                }
                numbers.retain(|number| !each(&other_key(Ref::new(node, *number)), None));
                for part in numbers.chunks(ENTRIES_PER_LOCK) {
                    let registry = self.lock();
                    let refs = part.iter().map(|number| Ref::new(node, *number));
                    let entries = refs.filter_map(|of| Some((of, registry.other_entry(of)?)));
                    let entries: Vec<_> = entries.collect();
                    drop(registry);
                    for (of, entry) in entries {
                        each(&other_key(of), Some(&encode(&entry)));
                    }
                }
            }
        }
    }
}

impl Registry {
    fn other_numbers(&self, node: NodeId, from: u64, numbers_max: usize) -> Vec<u64> {
        let others = self.sharing.iter().map(|sharing| &sharing.others);
        others.flat_map(|others| others.numbers(node, from)).take(numbers_max).collect()
    }

    fn other_entry(&self, of: Ref) -> Option<OtherEntry> {
        let located = self.sharing.as_ref()?.others.get(of.node(), of.number())?;
        let PassedEntry { meta, prev } = self.passed(&located.topic, &located.user, of)?;
        let entry = shared_entry(of, &located.topic, &located.user, &meta);
        let prev = prev.map(|prev| (prev.node().0, prev.number()));
        Some(OtherEntry { entry, prev, is_first: located.is_first })
    }

    /// Scans at most so many topics after this one. Returns those whose users are not listed, and the last scanned
    /// topic if more may follow.
    fn unlisted_after(
        &self,
        after: Option<&str>,
        topics_max: usize,
    ) -> (Vec<LastNotice>, Option<Arc<str>>) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut unlisted, mut seen, mut last) = (Vec::new(), 0, None);
        for (name, topic) in self.topics.range::<str, _>((from, Bound::Unbounded)).take(topics_max)
        {
            seen += 1;
            last = Some(name);
            if topic.listing != Listing::Listed && self.limits.list() {
                unlisted.push((name.clone(), topic.last_us));
            }
        }
        (unlisted, last.filter(|_| seen == topics_max).cloned())
    }

    /// Sets whether another process lists the users of a topic. `unlisted` has the time of the last notice there, if
    /// it does not.
    fn set_unlisted(&mut self, name: &str, unlisted: Option<Option<u64>>) {
        match unlisted {
            Some(last_us) => {
                self.unlisted.insert(name.into(), last_us);
                if let Some(topic) = self.topics.get_mut(name) {
                    topic.set_unlisted(last_us);
                }
            }
            None => {
                self.unlisted.remove(name);
                if let Some(topic) = self.topics.get_mut(name)
                    && self.limits.list()
                {
                    topic.listing = Listing::Listed;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use handover::Sent;
    use handover::testing::pass;

    use super::*;
    use crate::{List, NodeId, Presence, PresenceReply, Snapshot};

    fn limits(users_max: usize) -> Limits {
        Limits { users_max, list_bytes_max: 10_000, interval_us: 1_000, members_per_ms: 1 }
    }

    fn local(users_max: usize) -> Local {
        Local::new(limits(users_max), NodeId(7))
    }

    fn list(presence: &Local, topic: &str) -> (usize, Option<String>) {
        let PresenceReply::Now(List { counts, users }) =
            presence.list(topic, None, Box::new(|_| ()))
        else {
            panic!("it answers at once");
        };
        (counts.connections, users.map(Snapshot::into_json))
    }

    /// Publishes all notices, and returns their number.
    fn notify(presence: &Local, now_us: u64) -> usize {
        presence.hasten(now_us);
        let mut count = 0;
        let mut batches = presence.take(now_us, 64);
        for batch in &mut batches {
            batch.publish(&mut |_, _, _| {
                count += 1;
                true
            });
        }
        presence.confirm(batches, now_us);
        count
    }

    #[test]
    fn another_process_has_the_lists_as_they_were_and_says_nothing() {
        let (old, new) = (local(3), local(3));
        let enter = |topic: &str, user: &str, meta: &str| old.enter(topic, user, meta, 5);
        let al = enter("few", "al", r#"{"a":1}"#);
        let bo = enter("few", "bo", "{}");
        let crowd: Vec<(String, Ref)> = (0..5)
            .map(|n| (n.to_string(), enter("crowd", &n.to_string(), r#"{"x":"y"}"#)))
            .collect();
        assert!(!old.is_settled());
        assert!(notify(&old, 10) > 0 && old.is_settled());
        let al = old.update("few", "al", al, r#"{"a":2}"#, 20).unwrap();
        assert!(notify(&old, 30) > 0 && old.is_settled());
        let mut sent = Sent::new();
        pass(&old, &new, &mut sent);
        let restore = |topic: &str, user: &str, of: Ref| {
            new.restore(topic, user, of, &old.passed(topic, user, of).unwrap());
        };
        restore("few", "al", al);
        restore("few", "bo", bo);
        crowd.iter().for_each(|(user, of)| restore("crowd", user, *of));
        // A connection that is here already is restored once.
        restore("few", "al", al);
        // One is unrestored, and its record comes again.
        new.unrestore("few", "bo", bo);
        assert_eq!(list(&new, "few").0, 1);
        restore("few", "bo", bo);
        pass(&old, &new, &mut sent);
        new.complete().unwrap();
        assert!(new.is_settled() && notify(&new, 40) == 0, "members know all");
        for topic in ["few", "crowd", "nobody"] {
            assert_eq!(list(&new, topic), list(&old, topic), "{topic}");
        }
        assert!(list(&new, "few").1.unwrap().contains("phx_ref_prev"));
        assert_eq!(new.stats().connections, old.stats().connections);
        // Both continue alike: refs, and the list that comes back when the crowd has left.
        for presence in [&old, &new] {
            assert_eq!(presence.enter("few", "cy", "{}", 50), Ref::new(NodeId(7), 8));
            crowd[1..].iter().for_each(|(user, of)| presence.leave("crowd", user, *of, 60));
        }
        assert_eq!(notify(&new, 70), notify(&old, 70));
        for topic in ["few", "crowd"] {
            assert_eq!(list(&new, topic), list(&old, topic), "{topic}");
        }
        // A process that has not gone on leaves nothing.
        new.unrestore("crowd", &crowd[0].0, crowd[0].1);
        assert_eq!(list(&new, "crowd").0, 0);
    }

    #[test]
    fn a_topic_is_listed_or_not_as_it_is_at_last() {
        let (old, new) = (local(3), local(3));
        let crowd: Vec<(String, Ref)> =
            (0..4).map(|n| (n.to_string(), old.enter("crowd", &n.to_string(), "{}", 5))).collect();
        notify(&old, 10);
        let mut sent = Sent::new();
        pass(&old, &new, &mut sent);
        for (user, of) in &crowd {
            new.restore("crowd", user, *of, &old.passed("crowd", user, *of).unwrap());
        }
        assert_eq!(list(&new, "crowd"), (4, None));
        for (user, of) in &crowd[2..] {
            old.leave("crowd", user, *of, 20);
            new.unrestore("crowd", user, *of);
        }
        notify(&old, 30);
        pass(&old, &new, &mut sent);
        new.complete().unwrap();
        assert!(list(&old, "crowd").1.is_some());
        assert_eq!(list(&new, "crowd"), list(&old, "crowd"));
        assert!(new.is_settled());
    }

    #[test]
    fn members_learn_of_other_caps() {
        let (old, new) = (local(3), local(1));
        let refs = ["al", "bo"].map(|user| (user, old.enter("few", user, "{}", 5)));
        notify(&old, 10);
        pass(&old, &new, &mut Sent::new());
        for (user, of) in refs {
            new.restore("few", user, of, &old.passed("few", user, of).unwrap());
        }
        new.complete().unwrap();
        assert!(!new.is_settled());
        assert_eq!((notify(&new, 5_000), list(&new, "few")), (2, (2, None)));
    }

    #[test]
    fn damaged_records_are_reported() {
        let presence = local(3);
        for (key, value) in [(&b"n"[..], &b"\xff"[..]), (b"u\xff", b""), (b"ua", b"\xff")] {
            assert!(presence.import(key, Some(value)).is_err());
        }
        assert!(presence.import(b"zlater", Some(b"?")).is_ok());
        assert!(presence.import(b"", Some(b"?")).is_ok());
    }
}
