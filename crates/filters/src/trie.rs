//! Finds the filters that match a topic.

use std::hash::{BuildHasher, RandomState};

use model::filter::wildcards_reach;
use tables::{HashIndex, Slab};

use crate::Id;
use crate::levels::{Levels, TopicLevels};

/// What a node has in place of a text if it is a `+` or the root.
const NO_TEXT: Id = Id::NONE;

/// A node of the tree: all filters that begin with the same levels.
struct Node {
    /// `None` for the root.
    parent: Option<Id>,
    /// The text of its level.
    text: Id,
    /// The child for a `+`.
    plus: Option<Id>,
    /// How many children with a text it has. They are found by [`FilterTrie::children`].
    texts: u32,
    /// The value of the filter that ends here.
    value: Option<Id>,
    /// The value of the filter that continues with a `#` alone.
    rest: Option<Id>,
}

const _: () = assert!(Slab::<Node>::SLOT_BYTES == 24);

impl Node {
    fn new(parent: Option<Id>, text: Id) -> Self {
        Node { parent, text, plus: None, texts: 0, value: None, rest: None }
    }

    fn is_empty(&self) -> bool {
        let Node { plus, texts, value, rest, .. } = self;
        plus.is_none() && *texts == 0 && value.is_none() && rest.is_none()
    }

    fn end(&mut self, end: End) -> &mut Option<Id> {
        match end {
            End::Here => &mut self.value,
            End::Rest => &mut self.rest,
        }
    }
}

/// How a filter ends at its node.
#[derive(Clone, Copy)]
enum End {
    Here,
    Rest,
}

/// Returns a filter's levels, and its end.
fn parts(filter: &str) -> (impl Iterator<Item = &str>, End) {
    let (path, end) = match filter.strip_suffix('#') {
        None => (Some(filter), End::Here),
        Some(path) => (path.strip_suffix('/'), End::Rest),
    };
    (path.into_iter().flat_map(|path| path.split('/')), end)
}

/// Values under topic filters, one under each, with wildcards or without.
///
/// Levels are nodes of a tree, which filters share as far as they begin alike. A node takes 24 bytes and about
/// seven of index, a text of a level about 31 where it first appears, and a value about 4 more than its own size.
/// All of it is freed, by pages ([`Slab`]), with the last filter that needs it.
///
/// [`FilterTrie::matching`] visits the nodes whose levels match the topic's first ones. One path leads to each
/// node, so none is visited twice: a match costs no more than there are nodes, which is no more than the levels of
/// all filters. A topic of L levels has up to 2^L such nodes only if that many filters were inserted.
pub struct FilterTrie<V> {
    root: Option<Id>,
    nodes: Slab<Node>,
    /// Nodes with a text, by parent and text.
    children: HashIndex,
    levels: Levels,
    values: Slab<V>,
    /// Clients choose neighbours, and must not be able to choose collisions in the index.
    key: u64,
}

impl<V> Default for FilterTrie<V> {
    fn default() -> Self {
        FilterTrie {
            root: None,
            nodes: Slab::default(),
            children: HashIndex::default(),
            levels: Levels::default(),
            values: Slab::default(),
            key: RandomState::new().hash_one(()),
        }
    }
}

impl<V> FilterTrie<V> {
    /// Returns the number of filters.
    pub fn len(&self) -> usize {
        self.values.count()
    }

    /// True without any filter.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Returns the filter's value.
    pub fn get(&self, filter: &str) -> Option<&V> {
        let (node, end) = self.find(filter)?;
        let node = &self.nodes[node.number()];
        let value = match end {
            End::Here => node.value,
            End::Rest => node.rest,
        };
        Some(&self.values[value?.number()])
    }

    /// Returns the filter's value.
    pub fn get_mut(&mut self, filter: &str) -> Option<&mut V> {
        let (node, end) = self.find(filter)?;
        let value = *self.nodes[node.number()].end(end);
        Some(&mut self.values[value?.number()])
    }

    /// Finds a filter's node.
    fn find(&self, filter: &str) -> Option<(Id, End)> {
        let (levels, end) = parts(filter);
        let mut at = self.root?;
        for level in levels {
            at = match level {
                "+" => self.nodes[at.number()].plus?,
                _ => self.child(at, self.levels.find(level)?)?,
            };
        }
        Some((at, end))
    }

    /// Finds the node below another one that has this text.
    fn child(&self, parent: Id, text: Id) -> Option<Id> {
        let is = |number| {
            let node = &self.nodes[number];
            node.text == text && node.parent == Some(parent)
        };
        self.children.find(hash(self.key, parent, text), is).map(Id::of)
    }

    /// Inserts a value. Returns the one that the filter had.
    pub fn insert(&mut self, filter: &str, value: V) -> Option<V> {
        let (levels, end) = parts(filter);
        let mut at = match self.root {
            Some(root) => root,
            None => *self.root.insert(Id::of(self.nodes.insert(Node::new(None, NO_TEXT)))),
        };
        for level in levels {
            at = match level {
                "+" => self.add_plus(at),
                _ => self.add_child(at, level),
            };
        }
        let slot = self.nodes[at.number()].end(end);
        if let Some(old) = *slot {
            return Some(std::mem::replace(&mut self.values[old.number()], value));
        }
        *slot = Some(Id::of(self.values.insert(value)));
        None
    }

    fn add_plus(&mut self, parent: Id) -> Id {
        if let Some(plus) = self.nodes[parent.number()].plus {
            return plus;
        }
        let plus = Id::of(self.nodes.insert(Node::new(Some(parent), NO_TEXT)));
        self.nodes[parent.number()].plus = Some(plus);
        plus
    }

    fn add_child(&mut self, parent: Id, level: &str) -> Id {
        let text = self.levels.take(level);
        if let Some(child) = self.child(parent, text) {
            self.levels.release(text);
            return child;
        }
        let child = self.nodes.insert(Node::new(Some(parent), text));
        self.nodes[parent.number()].texts += 1;
        let (nodes, key) = (&self.nodes, self.key);
        let hash_of = |number| hash_of(nodes, key, number);
        self.children.insert(hash(key, parent, text), child, hash_of);
        Id::of(child)
    }

    /// Removes a filter, and returns its value.
    pub fn remove(&mut self, filter: &str) -> Option<V> {
        let (mut at, end) = self.find(filter)?;
        let value = self.nodes[at.number()].end(end).take()?;
        while self.nodes[at.number()].is_empty() {
            let Some(parent) = self.remove_node(at) else {
                self.root = None;
                break;
            };
            at = parent;
        }
        Some(self.values.remove(value.number()))
    }

    /// Removes a node that has nothing below it. Returns its parent.
    fn remove_node(&mut self, id: Id) -> Option<Id> {
        let Node { parent, text, .. } = self.nodes[id.number()];
        if let Some(parent) = parent
            && text != NO_TEXT
        {
            let (nodes, key) = (&self.nodes, self.key);
            let hash_of = |number| hash_of(nodes, key, number);
            self.children.remove(hash(key, parent, text), id.number(), hash_of);
            self.nodes[parent.number()].texts -= 1;
            self.levels.release(text);
        } else if let Some(parent) = parent {
            self.nodes[parent.number()].plus = None;
        }
        self.nodes.remove(id.number());
        parent
    }

    /// Calls `found` with the value of each filter that matches the topic, once each, in no particular order.
    /// Allocates only for topics of more than 32 levels.
    pub fn matching(&self, topic: &str, found: &mut impl FnMut(&V)) {
        let Some(mut at) = self.root else { return };
        let (anywhere, at_first) = wildcards_reach(topic);
        let wild = |depth: usize| if depth == 0 { at_first } else { anywhere };
        let length = topic.bytes().filter(|byte| *byte == b'/').count() + 1;
        let mut levels = TopicLevels::new(&self.levels, topic);
        let mut depth = 0;
        let mut give = |value: Option<Id>| {
            if let Some(value) = value {
                found(&self.values[value.number()]);
            }
        };
        // The walk goes down by the topic's own levels as far as there are nodes, and back up to the last `+` that
        // it passed. A node knows its parent, so the walk notes nothing on the way.
        loop {
            let node = &self.nodes[at.number()];
            let wild_here = wild(depth);
            if wild_here {
                give(node.rest);
            }
            let mut next = None;
            if depth == length {
                give(node.value);
            } else {
                if node.texts > 0 {
                    next = levels.at(depth).and_then(|text| self.child(at, text));
                }
                if wild_here {
                    next = next.or(node.plus);
                }
            }
            while next.is_none() {
                let node = &self.nodes[at.number()];
                let Some(parent) = node.parent else { return };
                depth -= 1;
                at = parent;
                if node.text != NO_TEXT && wild(depth) {
                    next = self.nodes[parent.number()].plus;
                }
            }
            if let Some(next) = next {
                (at, depth) = (next, depth + 1);
            }
        }
    }

    /// Frees memory that is reserved for later filters. The owner should call this now and then.
    pub fn shrink(&mut self) {
        self.nodes.shrink();
        self.values.shrink();
        self.levels.shrink();
    }

    /// Returns the bytes of memory in use, without the heap memory of the values.
    pub fn bytes(&self) -> usize {
        self.nodes.bytes() + self.children.bytes() + self.levels.bytes() + self.values.bytes()
    }

    /// Returns how many nodes, texts and values there are.
    #[cfg(test)]
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.nodes.count(), self.levels.count(), self.values.count())
    }
}

fn hash_of(nodes: &Slab<Node>, key: u64, number: u32) -> u32 {
    let Node { parent, text, .. } = nodes[number];
    // All nodes in the index have a parent.
    parent.map_or(0, |parent| hash(key, parent, text))
}

/// Multiplies 64 by 64 bits, with a secret key, and uses both halves of the product.
fn hash(key: u64, parent: Id, text: Id) -> u32 {
    let pair = u64::from(parent.number()) << 32 | u64::from(text.number());
    let product = u128::from(pair ^ key) * u128::from(key.rotate_left(32) | 1);
    ((product >> 64) as u64 ^ product as u64) as u32
}
