//! Checks of the state at the end of a run.

use std::collections::{BTreeMap, BTreeSet};

use model::NodeId;

use super::registry::{self, Registry};
use super::{Process, Published, SECOND_US, World, stream};

impl World {
    /// Verifies what the members of each process got, the nodes that it knows, and presence.
    pub fn verify(&mut self) {
        let seed = self.seed;
        let alive: Vec<NodeId> = self.nats.ids.clone();
        let mut expected = 0;
        for process in self.processes.iter().flatten() {
            let me = process.node.id();
            expected += self.verify_messages(process);
            self.verify_deaths(process);
            let up = process.node.peers().filter(|it| it.is_up);
            let up: BTreeSet<_> = up.map(|it| it.node).collect();
            let others: BTreeSet<_> = alive.iter().copied().filter(|id| *id != me).collect();
            assert_eq!(up, others, "seed {seed}: {me}");
            let has_all = others.iter().all(|id| process.node.has_entries_of(*id));
            assert!(has_all && process.registry.updates.is_empty(), "seed {seed}: {me}");
        }
        assert!(expected > 200, "seed {seed}: only {expected}");
        self.verify_groups();
        self.verify_clients();
        let registries: Vec<&Registry> =
            self.processes.iter().flatten().map(|process| &process.registry).collect();
        let present = registry::verify(&registries, seed);
        assert!(present > 5, "seed {seed}: only {present} are present");
    }

    /// Verifies that a process got each message once, in the order of its node, or a gap. Returns their number.
    fn verify_messages(&self, process: &Process) -> usize {
        let (seed, me, mut expected) = (self.seed, process.node.id(), 0);
        let mut got = BTreeMap::<usize, BTreeSet<u64>>::new();
        for (topic, ids) in &process.got {
            let distinct = got.entry(*topic).or_default();
            let mut last = BTreeMap::new();
            for id in ids {
                assert!(distinct.insert(*id), "seed {seed}: {me} got {id} twice");
                let by = self.published[*id as usize].by;
                assert!(last.insert(by, *id) < Some(*id), "seed {seed}: {me}, order of {id}");
            }
        }
        for (id, Published { by, topic, at_us }) in self.published.iter().enumerate() {
            let joined = process.members.get(topic);
            let is_member = joined.is_some_and(|(joined_us, _)| joined_us <= at_us);
            let gap_us = process.gaps.get(&(*by, stream(*topic))).copied().unwrap_or_default();
            let has_left = process.left.contains(by) && !process.was_cut_off;
            let is_certain = self.nats.ids.contains(by) || has_left;
            if *by == me || !is_certain || !is_member || gap_us >= *at_us {
                continue;
            }
            expected += 1;
            let got = got.get(topic).is_some_and(|ids| ids.contains(&(id as u64)));
            assert!(got, "seed {seed}: {me} has not got {id} of {by}, topic {topic}, {at_us} us");
        }
        expected
    }

    /// Verifies that a process that had no fault of its own has noticed each death in time.
    fn verify_deaths(&self, process: &Process) {
        let (seed, me) = (self.seed, process.node.id());
        for (dead, at_us) in &self.deaths {
            let knew = process.node.peers().any(|peer| peer.node == *dead);
            if let (true, false) = (knew, process.is_disturbed) {
                let down_us = process.down.get(dead).copied().unwrap_or(u64::MAX);
                let after_us = down_us.saturating_sub(*at_us);
                assert!(after_us < 5 * SECOND_US, "seed {seed}: {me} saw {dead} after {after_us}");
            }
        }
    }
}
