//! The texts of levels, each once, however many filters have it.

use std::hash::{BuildHasher, RandomState};

use tables::{HashIndex, Slab};

use crate::Id;

/// The longest text that needs no allocation of its own, in bytes.
const SHORT: usize = 18;

/// A text, and how many nodes have it.
enum Text {
    Short { uses: u32, length: u8, bytes: [u8; SHORT] },
    Long { uses: u32, text: Box<[u8]> },
}

const _: () = assert!(Slab::<Text>::SLOT_BYTES == 24);

impl Text {
    fn new(text: &str) -> Self {
        let mut bytes = [0; SHORT];
        match bytes.get_mut(..text.len()) {
            Some(prefix) => {
                prefix.copy_from_slice(text.as_bytes());
                // It fits into `SHORT` bytes.
                Text::Short { uses: 1, length: text.len() as u8, bytes }
            }
            None => Text::Long { uses: 1, text: text.as_bytes().into() },
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Text::Short { length, bytes, .. } => &bytes[..usize::from(*length)],
            Text::Long { text, .. } => text,
        }
    }

    fn uses(&mut self) -> &mut u32 {
        match self {
            Text::Short { uses, .. } | Text::Long { uses, .. } => uses,
        }
    }
}

/// The table of texts.
#[derive(Default)]
pub(crate) struct Levels {
    texts: Slab<Text>,
    index: HashIndex,
    /// Clients choose texts, and must not be able to choose those that collide.
    keys: RandomState,
    /// Bytes of texts that are not short.
    long_bytes: usize,
}

impl Levels {
    /// Returns the text's number, if a filter has it.
    pub fn find(&self, text: &str) -> Option<Id> {
        self.find_hashed(self.hash(text.as_bytes()), text)
    }

    fn find_hashed(&self, hash: u32, text: &str) -> Option<Id> {
        let is = |number| self.texts[number].bytes() == text.as_bytes();
        self.index.find(hash, is).map(Id::of)
    }

    fn hash(&self, text: &[u8]) -> u32 {
        hash(&self.keys, text)
    }

    /// Returns the text's number, and counts one more use.
    pub fn take(&mut self, text: &str) -> Id {
        let hashed = self.hash(text.as_bytes());
        if let Some(id) = self.find_hashed(hashed, text) {
            *self.texts[id.number()].uses() += 1;
            return id;
        }
        let new = Text::new(text);
        if let Text::Long { text, .. } = &new {
            self.long_bytes += text.len();
        }
        let number = self.texts.insert(new);
        let (texts, keys) = (&self.texts, &self.keys);
        self.index.insert(hashed, number, |number| hash(keys, texts[number].bytes()));
        Id::of(number)
    }

    /// Ends one node's use of a text. After the last use its number is not valid any more.
    pub fn release(&mut self, id: Id) {
        let number = id.number();
        let uses = self.texts[number].uses();
        *uses -= 1;
        if *uses > 0 {
            return;
        }
        let hashed = self.hash(self.texts[number].bytes());
        let (texts, keys) = (&self.texts, &self.keys);
        self.index.remove(hashed, number, |number| hash(keys, texts[number].bytes()));
        if let Text::Long { text, .. } = self.texts.remove(number) {
            self.long_bytes -= text.len();
        }
    }

    pub fn shrink(&mut self) {
        self.texts.shrink();
    }

    pub fn bytes(&self) -> usize {
        self.texts.bytes() + self.index.bytes() + self.long_bytes
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.texts.count()
    }
}

/// The index uses 32 bits of a hash.
fn hash(keys: &RandomState, text: &[u8]) -> u32 {
    keys.hash_one(text) as u32
}

/// Levels of a topic that need no allocation.
const FEW: usize = 32;

/// The numbers of a topic's levels, each looked up at its first use.
pub(crate) struct TopicLevels<'a> {
    levels: &'a Levels,
    texts: std::str::Split<'a, char>,
    known: usize,
    few: [Option<Id>; FEW],
    more: Vec<Option<Id>>,
}

impl<'a> TopicLevels<'a> {
    pub fn new(levels: &'a Levels, topic: &'a str) -> Self {
        let texts = topic.split('/');
        TopicLevels { levels, texts, known: 0, few: [None; FEW], more: Vec::new() }
    }

    /// Returns the number of the level at `depth`, if a filter has its text.
    pub fn at(&mut self, depth: usize) -> Option<Id> {
        while self.known <= depth {
            let id = self.texts.next().and_then(|text| self.levels.find(text));
            match self.few.get_mut(self.known) {
                Some(slot) => *slot = id,
                None => self.more.push(id),
            }
            self.known += 1;
        }
        *self.few.get(depth).unwrap_or_else(|| &self.more[depth - FEW])
    }
}
