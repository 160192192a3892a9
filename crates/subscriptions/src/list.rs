//! A sorted list of numbers, packed as [`row`](crate::row)s are: in one piece while it is short, and in blocks when
//! it is long, so that a change moves only a block's bytes.

use std::iter;

use crate::names::allocated;
use crate::row;

/// Bytes of a piece or a block, at most.
const BLOCK_BYTES: usize = 512;
/// A block with fewer bytes is joined to its neighbour, and a list with fewer becomes one piece again.
const BLOCK_BYTES_MIN: usize = BLOCK_BYTES / 4;

/// A list in blocks.
#[derive(Default)]
pub(crate) struct Long {
    blocks: Vec<Block>,
    count: u64,
    /// The bytes of the blocks' allocations.
    bytes: usize,
}

/// A part of a list's numbers; at least one.
struct Block {
    first: u32,
    last: u32,
    packed: Box<[u8]>,
}

impl Block {
    fn new(numbers: &[u32]) -> Self {
        let (first, last) = (numbers.first().copied(), numbers.last().copied());
        let (first, last) = (first.unwrap_or_default(), last.unwrap_or_default());
        Block { first, last, packed: row::pack(numbers).into_boxed_slice() }
    }
}

/// A list in one piece: the last number, in four bytes, so that a larger one is appended without reading those
/// before; and all numbers, packed.
#[derive(Default)]
pub(crate) struct Short(Box<[u8]>);

const LAST_BYTES: usize = 4;

impl Short {
    /// Makes a list of these sorted numbers.
    pub fn new(numbers: &[u32]) -> Self {
        Short::of(numbers.last().copied().unwrap_or_default(), &row::pack(numbers))
    }

    fn of(last: u32, packed: &[u8]) -> Self {
        Short([&last.to_le_bytes(), packed].concat().into_boxed_slice())
    }

    fn parts(&self) -> (u32, &[u8]) {
        let (last, packed) = self.0.split_first_chunk::<LAST_BYTES>().unwrap_or((&[0; 4], &[]));
        (u32::from_le_bytes(*last), packed)
    }

    /// Returns the last number, if the list is not empty.
    pub fn last(&self) -> Option<u32> {
        let (last, packed) = self.parts();
        (!packed.is_empty()).then_some(last)
    }

    pub fn count(&self) -> u64 {
        row::count(self.parts().1) as u64
    }

    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        row::unpack(self.parts().1)
    }

    /// Appends sorted numbers above all numbers of the list.
    pub fn append(&mut self, numbers: &[u32]) {
        let Some(new) = numbers.last() else { return };
        match self.last() {
            None => *self = Short::new(numbers),
            Some(last) => {
                append(&mut self.0, last, numbers);
                if let Some(first) = self.0.first_chunk_mut() {
                    *first = new.to_le_bytes();
                }
            }
        }
    }

    /// Adds a number.
    pub fn insert(&mut self, number: u32) {
        match self.last() {
            Some(last) if last >= number => {
                if let Some(packed) = row::with(self.parts().1, number) {
                    *self = Short::of(last, &packed);
                }
            }
            _ => self.append(&[number]),
        }
    }

    /// Removes a number.
    pub fn remove(&mut self, number: u32) {
        let (last, packed) = self.parts();
        if let Some(packed) = row::without(packed, number) {
            let last = if last == number { row::unpack(&packed).last() } else { Some(last) };
            *self = last.map_or(Short::default(), |last| Short::of(last, &packed));
        }
    }

    /// Returns true if the list is too long for one piece.
    pub fn is_long(&self) -> bool {
        self.0.len() > BLOCK_BYTES
    }

    /// Returns the bytes of its allocation.
    pub fn memory_bytes(&self) -> usize {
        allocated(self.0.len())
    }
}

impl Long {
    /// Makes a list of these sorted numbers.
    pub fn new(numbers: &[u32]) -> Self {
        let mut list = Long::default();
        list.append(numbers);
        list
    }

    /// Returns the list in one piece, if it is short enough for that.
    pub fn as_short(&self) -> Option<Short> {
        let [block] = &self.blocks[..] else { return None };
        (block.packed.len() < BLOCK_BYTES_MIN).then(|| Short::of(block.last, &block.packed))
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn last(&self) -> Option<u32> {
        self.blocks.last().map(|block| block.last)
    }

    /// Appends sorted numbers above all numbers of the list.
    pub fn append(&mut self, numbers: &[u32]) {
        /// The numbers that always fit into an empty block.
        const NUMBERS: usize = BLOCK_BYTES / row::NUMBER_BYTES_MAX;
        /// A block up to this size has capacity for `SPARE` more numbers.
        const BYTES: usize = BLOCK_BYTES - SPARE * row::NUMBER_BYTES_MAX;
        const SPARE: usize = 8;
        let mut rest = numbers;
        while !rest.is_empty() {
            let Some(block) = self.blocks.last_mut().filter(|it| it.packed.len() <= BYTES) else {
                let (first, more) = rest.split_at(rest.len().min(NUMBERS));
                self.push(Block::new(first));
                self.count += first.len() as u64;
                rest = more;
                continue;
            };
            let (first, more) = rest.split_at(rest.len().min(SPARE));
            self.bytes -= allocated(block.packed.len());
            append(&mut block.packed, block.last, first);
            self.bytes += allocated(block.packed.len());
            block.last = first.last().copied().unwrap_or(block.last);
            self.count += first.len() as u64;
            rest = more;
        }
    }

    fn push(&mut self, block: Block) {
        self.bytes += allocated(block.packed.len());
        self.blocks.push(block);
    }

    /// Returns the index of the block for a number, which may not contain it.
    fn at(&self, number: u32) -> usize {
        self.blocks.partition_point(|block| block.first <= number).saturating_sub(1)
    }

    /// Adds a number. Returns false if the list has it already.
    pub fn insert(&mut self, number: u32) -> bool {
        if self.blocks.last().is_none_or(|block| block.last < number) {
            self.append(&[number]);
            return true;
        }
        let at = self.at(number);
        let block = &mut self.blocks[at];
        let Some(packed) = row::with(&block.packed, number) else { return false };
        self.bytes -= allocated(block.packed.len());
        (block.first, block.last) = (block.first.min(number), block.last.max(number));
        block.packed = packed;
        self.bytes += allocated(block.packed.len());
        self.count += 1;
        if block.packed.len() > BLOCK_BYTES {
            let numbers: Vec<u32> = row::unpack(&block.packed).collect();
            let (low, high) = numbers.split_at(numbers.len() / 2);
            self.replace(at, 1, vec![Block::new(low), Block::new(high)]);
        }
        true
    }

    /// Removes a number. Returns false if the list does not have it.
    pub fn remove(&mut self, number: u32) -> bool {
        let at = self.at(number);
        let Some(block) = self.blocks.get_mut(at) else { return false };
        let Some(packed) = row::without(&block.packed, number) else { return false };
        self.count -= 1;
        if packed.is_empty() {
            self.replace(at, 1, Vec::new());
            return true;
        }
        self.bytes -= allocated(block.packed.len());
        block.packed = packed;
        self.bytes += allocated(block.packed.len());
        // The number may have been the first or the last of the block.
        if number == block.first {
            block.first = row::unpack(&block.packed).next().unwrap_or(number);
        }
        if number == block.last {
            block.last = row::unpack(&block.packed).last().unwrap_or(number);
        }
        self.join(at);
        true
    }

    /// Joins a small block and a neighbour that has capacity for it.
    fn join(&mut self, at: usize) {
        let length = |at: usize| self.blocks.get(at).map(|block| block.packed.len());
        if length(at).is_none_or(|bytes| bytes >= BLOCK_BYTES_MIN) {
            return;
        }
        for at in [at.wrapping_sub(1), at] {
            let (Some(one), Some(next)) = (length(at), length(at.wrapping_add(1))) else {
                continue;
            };
            if one + next <= BLOCK_BYTES / 2 {
                let both = &self.blocks[at..at + 2];
                let numbers = both.iter().flat_map(|block| row::unpack(&block.packed));
                let joined = Block::new(&numbers.collect::<Vec<_>>());
                self.replace(at, 2, vec![joined]);
                return;
            }
        }
    }

    /// Replaces blocks by others.
    fn replace(&mut self, at: usize, count: usize, blocks: Vec<Block>) {
        let bytes = |blocks: &[Block]| -> usize {
            blocks.iter().map(|block| allocated(block.packed.len())).sum()
        };
        self.bytes = self.bytes + bytes(&blocks) - bytes(&self.blocks[at..at + count]);
        self.blocks.splice(at..at + count, blocks);
        tables::shrink(&mut self.blocks);
    }

    /// Returns the numbers from this one on.
    pub fn from(&self, number: u32) -> impl Iterator<Item = u32> + '_ {
        let mut blocks = self.blocks[self.at(number).min(self.blocks.len())..].iter();
        let mut numbers = None;
        let all = iter::from_fn(move || {
            loop {
                if let Some(number) = numbers.as_mut().and_then(Iterator::next) {
                    return Some(number);
                }
                numbers = Some(row::unpack(&blocks.next()?.packed));
            }
        });
        all.skip_while(move |other| *other < number)
    }

    /// Returns the memory of the list in bytes, with the list of blocks.
    pub fn memory_bytes(&self) -> usize {
        self.bytes + allocated(self.blocks.capacity() * size_of::<Block>())
    }
}

/// Appends numbers to a piece whose last number is `last`.
fn append(piece: &mut Box<[u8]>, last: u32, numbers: &[u32]) {
    let mut bytes = std::mem::take(piece).into_vec();
    // The exact capacity spares the boxing a second copy.
    bytes.reserve_exact(row::bytes_after(last, numbers));
    row::pack_after(&mut bytes, last, numbers);
    *piece = bytes.into_boxed_slice();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn check(list: &Long, model: &BTreeSet<u32>) -> Result<(), TestCaseError> {
        prop_assert_eq!(list.count(), model.len() as u64);
        prop_assert!(list.from(0).eq(model.iter().copied()));
        let bytes = list.blocks.iter().map(|block| allocated(block.packed.len())).sum::<usize>();
        prop_assert_eq!(list.bytes, bytes);
        for block in &list.blocks {
            let numbers: Vec<u32> = row::unpack(&block.packed).collect();
            prop_assert_eq!(numbers.first(), Some(&block.first));
            prop_assert_eq!(numbers.last(), Some(&block.last));
            prop_assert!(block.packed.len() <= BLOCK_BYTES);
        }
        // Bounds the blocks: the last change beside two neighbours joined them if they made one half-empty block.
        prop_assert!(list.blocks.len() <= 2 + model.len() / 8);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_list_equals_a_set(
            spread in prop_oneof![Just(4_000_u32), Just(1_000_000), Just(u32::MAX)],
            steps in prop::collection::vec((any::<u32>(), 0..10_u8), 0..2_000),
            shrinks: bool,
        ) {
            let (mut list, mut model) = (Long::default(), BTreeSet::new());
            for (at, (number, kind)) in steps.into_iter().enumerate() {
                let number = number % spread;
                match kind {
                    0..7 => prop_assert_eq!(list.insert(number), model.insert(number)),
                    7 => prop_assert_eq!(list.remove(number), model.remove(&number)),
                    8 => {
                        let next = model.range(number..).next().copied().unwrap_or(number);
                        prop_assert_eq!(list.remove(next), model.remove(&next));
                    }
                    _ => {
                        let last = model.last().copied().unwrap_or(0);
                        let more: Vec<u32> =
                            (1..100).filter_map(|n| last.checked_add(n * 7)).collect();
                        list.append(&more);
                        model.extend(more);
                    }
                }
                if at % 100 == 0 {
                    check(&list, &model)?;
                    let from = number / 2;
                    prop_assert!(list.from(from).eq(model.range(from..).copied()));
                }
            }
            check(&list, &model)?;
            if shrinks {
                let all: Vec<u32> = model.iter().copied().collect();
                for number in all {
                    prop_assert!(list.remove(number));
                    model.remove(&number);
                }
                check(&list, &model)?;
                prop_assert_eq!((list.bytes, list.blocks.len()), (0, 0));
            }
        }
    }

    #[test]
    fn a_list_in_order_fills_its_blocks() {
        let numbers: Vec<u32> = (0..100_000).map(|n| n * 300).collect();
        let list = Long::new(&numbers);
        let payload = row::pack(&numbers).len();
        assert!(list.memory_bytes() < payload * 13 / 10, "{} {payload}", list.memory_bytes());
        assert!(list.from(0).eq(numbers.iter().copied()));
        assert_eq!(list.from(301).next(), Some(600));
    }

    #[test]
    fn half_of_a_list_that_is_taken_out_leaves_no_small_blocks() {
        let numbers: Vec<u32> = (0..50_000).collect();
        let mut list = Long::new(&numbers);
        let blocks = list.blocks.len();
        for number in numbers.iter().filter(|number| *number % 10 > 0) {
            assert!(list.remove(*number));
        }
        assert!(list.blocks.len() <= blocks / 3, "{} of {blocks}", list.blocks.len());
        assert_eq!(list.count(), 5_000);
    }
}
