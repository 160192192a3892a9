//! Tables in pages of 1,024 slots. Growing copies no values, and empty pages are freed.
//!
//! [`PageTable`] is for numbers that the caller has, like the descriptors of the kernel. [`Slab`] assigns the numbers
//! itself, from the lowest page with a free slot, so that higher pages empty out. A [`List`] has no free slots, and a
//! [`HashIndex`] finds numbers by hash. [`Heaviest`] counts the heaviest of many values. [`Prehashed`] is the hasher of
//! maps whose keys are hashes.
//!
//! The first two retain one empty page until [`PageTable::shrink`] or [`Slab::shrink`]. So a value that comes and
//! goes at the edge of a page does not allocate each time.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

mod hash_index;
mod heaviest;
mod list;
mod prehashed;

use std::ops::{Index, IndexMut};

pub use hash_index::{HashIndex, Hashed, fold};
pub use heaviest::{Heaviest, Heavy};
pub use list::List;
pub use prehashed::Prehashed;

/// Slots in a page.
const PAGE: usize = if cfg!(test) { 16 } else { 1_024 };

/// The slots of a page up to the highest one that was in use. A page with values has the capacity for all its slots,
/// so that it never moves; an empty one has no memory. The kernel assigns memory at the first write, so slots that were
/// never in use take none.
type Page<T> = Vec<Option<T>>;

/// Values under numbers of the caller's choice, below `u32::MAX`. It suits numbers that are dense
/// from 0 on.
pub struct PageTable<T> {
    pages: Vec<Page<T>>,
    /// The number of values in each page.
    counts: Vec<u32>,
    spare: Page<T>,
    count: usize,
    end: u32,
}

impl<T> Default for PageTable<T> {
    fn default() -> Self {
        PageTable { pages: Vec::new(), counts: Vec::new(), spare: Vec::new(), count: 0, end: 0 }
    }
}

impl<T> PageTable<T> {
    /// Returns the value under this number.
    pub fn get(&self, at: u32) -> Option<&T> {
        let (page, index) = split(at);
        self.pages.get(page)?.get(index)?.as_ref()
    }

    /// Returns the value under this number.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.entry(at)?.as_mut()
    }

    /// Inserts a value under a number. Returns the value that it replaces.
    ///
    /// # Panics
    /// If the number is `u32::MAX`: no number is above it.
    pub fn insert(&mut self, at: u32, value: T) -> Option<T> {
        assert!(at < u32::MAX, "numbers are below 2^32 - 1");
        let (page, index) = split(at);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, Vec::new);
            self.counts.resize(page + 1, 0);
        }
        let items = &mut self.pages[page];
        if items.len() <= index {
            if items.capacity() == 0 {
                *items = std::mem::take(&mut self.spare);
                items.reserve_exact(PAGE);
            }
            items.resize_with(index + 1, || None);
        }
        let before = items[index].replace(value);
        if before.is_none() {
            self.counts[page] += 1;
            self.count += 1;
            self.end = self.end.max(at + 1);
        }
        before
    }

    /// Removes and returns the value under this number.
    pub fn remove(&mut self, at: u32) -> Option<T> {
        let removed = self.entry(at)?.take()?;
        self.vacated(at);
        Some(removed)
    }

    /// Drops the value under this number, if it has one. The value is not moved first, so a value that wipes its
    /// memory on drop leaves no copy behind.
    pub fn drop_in_place(&mut self, at: u32) {
        if let Some(entry) = self.entry(at).filter(|entry| entry.is_some()) {
            *entry = None;
            self.vacated(at);
        }
    }

    fn entry(&mut self, at: u32) -> Option<&mut Option<T>> {
        let (page, index) = split(at);
        self.pages.get_mut(page)?.get_mut(index)
    }

    /// Counts a value that has left its page.
    fn vacated(&mut self, at: u32) {
        let (page, _) = split(at);
        self.count -= 1;
        self.counts[page] -= 1;
        if self.counts[page] == 0 {
            let mut empty = std::mem::take(&mut self.pages[page]);
            if self.spare.capacity() == 0 {
                empty.clear();
                self.spare = empty;
            }
            self.drop_end();
        }
    }

    /// Drops the empty pages at the end.
    fn drop_end(&mut self) {
        while self.pages.pop_if(|page| page.is_empty()).is_some() {}
        self.counts.truncate(self.pages.len());
        self.end = self.end.min((self.pages.len() * PAGE) as u32);
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns true if there is no value.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns a bound: all numbers in use are below it.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Frees the spare page and shrinks the table. The owner should call this now and then.
    pub fn shrink(&mut self) {
        self.spare = Vec::new();
        shrink(&mut self.pages);
        shrink(&mut self.counts);
    }

    /// Returns the bytes that the table uses, without the heap memory of its values.
    pub fn bytes(&self) -> usize {
        let slots: usize = self.pages.iter().map(Vec::capacity).sum();
        (slots + self.spare.capacity()) * size_of::<Option<T>>()
            + self.pages.capacity() * size_of::<Page<T>>()
            + self.counts.capacity() * size_of::<u32>()
    }
}

/// The end of a page's list of free slots.
const NONE: u16 = u16::MAX;

/// Values under numbers that the slab assigns. A value has its number until it is removed.
pub struct Slab<T> {
    pages: Vec<SlabPage<T>>,
    /// A bit for each page, set while it has a free slot.
    vacant: Vec<u64>,
    spare: Vec<Entry<T>>,
    count: usize,
}

struct SlabPage<T> {
    /// Grows to the length of a page. Has no memory while the page is empty.
    entries: Vec<Entry<T>>,
    /// The first free slot.
    free: u16,
    live: u16,
}

enum Entry<T> {
    Taken(T),
    /// The next free slot.
    Free(u16),
}

impl<T> SlabPage<T> {
    /// Appends an entry to the page of this number, with the spare memory if the page has none yet.
    fn push(&mut self, number: usize, spare: &mut Vec<Entry<T>>, entry: Entry<T>) {
        if self.entries.capacity() == 0 && number > 0 {
            self.entries = std::mem::take(spare);
            self.entries.reserve_exact(PAGE);
        } else if self.entries.len() == self.entries.capacity() {
            // The first page grows by doubling, so that a small table stays small.
            self.entries.reserve_exact(self.entries.len().clamp(2, PAGE / 2));
        }
        self.entries.push(entry);
    }

    /// Takes a free slot out of the list of free slots.
    fn unlink(&mut self, index: u16) {
        let Entry::Free(next) = self.entries[index as usize] else { return };
        if self.free == index {
            self.free = next;
            return;
        }
        let mut at = self.free;
        while at != NONE {
            match &mut self.entries[at as usize] {
                Entry::Free(after) if *after == index => {
                    *after = next;
                    return;
                }
                Entry::Free(after) => at = *after,
                Entry::Taken(_) => return,
            }
        }
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { pages: Vec::new(), vacant: Vec::new(), spare: Vec::new(), count: 0 }
    }
}

impl<T> Slab<T> {
    /// The bytes of a value's slot.
    pub const SLOT_BYTES: usize = size_of::<Entry<T>>();

    /// Inserts a value and returns its number, from the lowest page with a free slot.
    pub fn insert(&mut self, value: T) -> u32 {
        let at = self.page_with_free_slot();
        let page = &mut self.pages[at];
        let entry = Entry::Taken(value);
        let index = match page.free {
            NONE => {
                page.push(at, &mut self.spare, entry);
                page.entries.len() - 1
            }
            free => {
                let free = free as usize;
                if let Entry::Free(next) = std::mem::replace(&mut page.entries[free], entry) {
                    page.free = next;
                }
                free
            }
        };
        self.entered(at);
        (at * PAGE + index) as u32
    }

    /// Counts a value that has entered a page.
    fn entered(&mut self, number: usize) {
        let page = &mut self.pages[number];
        page.live += 1;
        self.count += 1;
        if page.live as usize == PAGE {
            self.vacant[number / 64] &= !(1 << (number % 64));
        }
    }

    /// Inserts a value under a number of the caller's choice, for a table that is restored. Takes time linear in the
    /// free slots of one page.
    ///
    /// # Errors
    /// The value, when the number is taken.
    pub fn insert_at(&mut self, at: u32, value: T) -> Result<(), T> {
        let (number, index) = split(at);
        if self.get(at).is_some() {
            return Err(value);
        }
        while self.pages.len() <= number {
            self.push_page();
        }
        let page = &mut self.pages[number];
        while page.entries.len() <= index {
            let last = page.entries.len() as u16;
            let free = Entry::Free(std::mem::replace(&mut page.free, last));
            page.push(number, &mut self.spare, free);
        }
        page.unlink(index as u16);
        page.entries[index] = Entry::Taken(value);
        self.entered(number);
        Ok(())
    }

    fn page_with_free_slot(&mut self) -> usize {
        for (word, bits) in self.vacant.iter().enumerate() {
            if *bits != 0 {
                return word * 64 + bits.trailing_zeros() as usize;
            }
        }
        self.push_page()
    }

    fn push_page(&mut self) -> usize {
        let at = self.pages.len();
        assert!(at < u32::MAX as usize / PAGE, "a slab holds less than 2^32 values");
        self.pages.push(SlabPage { entries: Vec::new(), free: NONE, live: 0 });
        if at.is_multiple_of(64) {
            self.vacant.push(0);
        }
        self.vacant[at / 64] |= 1 << (at % 64);
        at
    }

    /// Removes and returns a value.
    ///
    /// # Panics
    /// If the number is free.
    pub fn remove(&mut self, at: u32) -> T {
        let (number, index) = split(at);
        let page = &mut self.pages[number];
        let removed = match std::mem::replace(&mut page.entries[index], Entry::Free(page.free)) {
            Entry::Taken(value) => value,
            Entry::Free(_) => panic!("number {at} is free"),
        };
        page.free = index as u16;
        page.live -= 1;
        self.count -= 1;
        self.vacant[number / 64] |= 1 << (number % 64);
        if page.live == 0 {
            self.release(number);
        }
        removed
    }

    /// Frees the memory of an empty page, or retains it as the spare one.
    fn release(&mut self, number: usize) {
        let page = &mut self.pages[number];
        page.free = NONE;
        let mut entries = std::mem::take(&mut page.entries);
        entries.clear();
        if self.spare.capacity() == 0 && entries.capacity() >= PAGE {
            self.spare = entries;
        }
        while self.pages.pop_if(|page| page.live == 0).is_some() {
            let gone = self.pages.len();
            self.vacant[gone / 64] &= !(1 << (gone % 64));
        }
        self.vacant.truncate(self.pages.len().div_ceil(64));
    }

    /// Returns the value under this number, if it has one.
    pub fn get(&self, at: u32) -> Option<&T> {
        let (page, index) = split(at);
        match self.pages.get(page)?.entries.get(index)? {
            Entry::Taken(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    /// Returns the value under this number, if it has one.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        let (page, index) = split(at);
        match self.pages.get_mut(page)?.entries.get_mut(index)? {
            Entry::Taken(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    /// Returns a bound: all numbers in use are below it.
    pub fn end(&self) -> u32 {
        (self.pages.len() * PAGE) as u32
    }

    /// Returns all values with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let pages = self.pages.iter().enumerate();
        let entries = pages.flat_map(|(number, page)| {
            page.entries
                .iter()
                .enumerate()
                .map(move |(index, entry)| (number * PAGE + index, entry))
        });
        entries.filter_map(|(at, entry)| match entry {
            Entry::Taken(value) => Some((at as u32, value)),
            Entry::Free(_) => None,
        })
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Frees the spare page and shrinks the table. The owner should call this now and then.
    pub fn shrink(&mut self) {
        self.spare = Vec::new();
        shrink(&mut self.pages);
        shrink(&mut self.vacant);
    }

    /// Returns the bytes that the table uses, without the heap memory of its values.
    pub fn bytes(&self) -> usize {
        let entries: usize = self.pages.iter().map(|page| page.entries.capacity()).sum();
        (entries + self.spare.capacity()) * size_of::<Entry<T>>()
            + self.pages.capacity() * size_of::<SlabPage<T>>()
            + self.vacant.capacity() * size_of::<u64>()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        let (page, index) = split(at);
        match &self.pages[page].entries[index] {
            Entry::Taken(value) => value,
            Entry::Free(_) => panic!("number {at} is free"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        let (page, index) = split(at);
        match &mut self.pages[page].entries[index] {
            Entry::Taken(value) => value,
            Entry::Free(_) => panic!("number {at} is free"),
        }
    }
}

/// Shrinks a vector whose capacity is more than eight times its length.
pub fn shrink<T>(vec: &mut Vec<T>) {
    if vec.len() < vec.capacity() / 8 {
        vec.shrink_to(vec.len() * 2);
    }
}

fn split(at: u32) -> (usize, usize) {
    (at as usize / PAGE, at as usize % PAGE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_page_table_equals_a_map_and_has_no_empty_page(
            steps in prop::collection::vec((0_u32..200, any::<bool>()), 0..600),
        ) {
            let (mut table, mut model) = (PageTable::default(), BTreeMap::new());
            for (value, (at, comes)) in steps.into_iter().enumerate() {
                if comes {
                    prop_assert_eq!(table.insert(at, value), model.insert(at, value));
                } else {
                    prop_assert_eq!(table.remove(at), model.remove(&at));
                }
                prop_assert_eq!(table.count(), model.len());
                prop_assert!(model.keys().all(|at| *at < table.end()));
                prop_assert!((0..200).all(|at| table.get(at) == model.get(&at)));
                let mut in_use: Vec<u32> = model.keys().map(|at| at / PAGE as u32).collect();
                in_use.dedup();
                let with_memory = table.pages.iter().filter(|page| page.capacity() > 0);
                prop_assert_eq!(with_memory.count(), in_use.len());
            }
        }

        #[test]
        fn a_slab_has_stable_numbers_and_no_empty_page(
            steps in prop::collection::vec((any::<bool>(), 0_usize..1_000), 0..600),
        ) {
            let (mut slab, mut model) = (Slab::default(), BTreeMap::new());
            walk(&mut slab, &mut model, steps)?;
        }

        #[test]
        fn a_restored_slab_goes_on_as_the_one_before(
            numbers in prop::collection::vec(0_u32..100, 0..60),
            steps in prop::collection::vec((any::<bool>(), 0_usize..1_000), 0..200),
        ) {
            let (mut slab, mut model) = (Slab::default(), BTreeMap::new());
            for at in numbers {
                match slab.insert_at(at, at as usize) {
                    Ok(()) => prop_assert!(model.insert(at, at as usize).is_none()),
                    Err(value) => prop_assert_eq!(model.get(&at), Some(&value)),
                }
            }
            walk(&mut slab, &mut model, steps)?;
        }
    }

    /// Inserts and removes values in a slab and in its model, which must stay equal.
    fn walk(
        slab: &mut Slab<usize>,
        model: &mut BTreeMap<u32, usize>,
        steps: Vec<(bool, usize)>,
    ) -> Result<(), TestCaseError> {
        for (value, (comes, which)) in steps.into_iter().enumerate() {
            if comes || model.is_empty() {
                let at = slab.insert(value);
                prop_assert!(model.insert(at, value).is_none());
                let lower = (0..at / PAGE as u32 * PAGE as u32).find(|at| !model.contains_key(at));
                prop_assert_eq!(lower, None, "a lower page had a free slot");
            } else {
                let at = *model.keys().nth(which % model.len()).unwrap();
                prop_assert_eq!(slab.remove(at), model.remove(&at).unwrap());
            }
            prop_assert_eq!(slab.count(), model.len());
            prop_assert!(model.iter().all(|(at, value)| slab[*at] == *value));
            let all: Vec<_> = slab.iter().map(|(at, value)| (at, *value)).collect();
            prop_assert_eq!(all, model.iter().map(|it| (*it.0, *it.1)).collect::<Vec<_>>());
            let with_memory = slab.pages.iter().filter(|page| page.entries.capacity() > 0);
            let mut in_use: Vec<u32> = model.keys().map(|at| at / PAGE as u32).collect();
            in_use.dedup();
            prop_assert_eq!(with_memory.count(), in_use.len());
        }
        Ok(())
    }

    #[test]
    fn tables_free_all_pages_when_they_are_empty() {
        let (mut table, mut slab) = (PageTable::default(), Slab::default());
        for _ in 0..3 {
            let numbers: Vec<u32> = (0..5_000).map(|n| slab.insert(n)).collect();
            numbers.iter().for_each(|at| assert_eq!(table.insert(*at, *at), None));
            assert_eq!((slab.count(), table.count(), table.end()), (5_000, 5_000, 5_000));
            for at in numbers {
                slab.remove(at);
                table.remove(at);
            }
            slab.shrink();
            table.shrink();
            assert_eq!((slab.pages.len(), table.pages.len(), table.end()), (0, 0, 0));
            assert!(slab.bytes() < 16 << 10 && table.bytes() < 16 << 10);
        }
    }

    /// Records the address at which it is dropped.
    struct Wiped<'a>(&'a std::cell::Cell<usize>);

    impl Drop for Wiped<'_> {
        fn drop(&mut self) {
            self.0.set(std::ptr::from_ref(self).addr());
        }
    }

    #[test]
    fn a_value_is_dropped_where_it_lies() {
        let dropped_at = std::cell::Cell::new(0);
        let mut table = PageTable::default();
        for at in [0, 5, PAGE as u32] {
            table.insert(at, Wiped(&dropped_at));
            let lies_at = std::ptr::from_ref(table.get(at).unwrap()).addr();
            table.drop_in_place(at);
            assert_eq!(dropped_at.replace(0), lies_at);
            assert!(table.get(at).is_none() && table.is_empty() && table.pages.is_empty());
            table.drop_in_place(at);
            assert_eq!((dropped_at.get(), table.count()), (0, 0));
        }
    }

    /// A page has slots up to its highest number, and a spare page has none.
    #[test]
    fn a_page_is_written_up_to_its_highest_number() {
        let mut table = PageTable::default();
        let first = PAGE as u32;
        for (at, length) in [(first + 2, 3), (first, 3), (first + 4, 5)] {
            table.insert(at, at);
            assert_eq!((table.pages[0].len(), table.pages[1].len()), (0, length));
            assert_eq!(table.pages[1].capacity(), PAGE);
        }
        assert_eq!((table.get(first + 1), table.get(first + 9)), (None, None));
        for at in [first, first + 2, first + 4] {
            assert_eq!(table.remove(at), Some(at));
        }
        table.insert(0, 1);
        assert_eq!((table.pages[0].len(), table.spare.len()), (1, 0));
    }

    #[test]
    fn a_value_that_comes_and_goes_at_the_edge_of_a_page_does_not_allocate() {
        let (mut table, mut slab) = (PageTable::default(), Slab::default());
        (0..PAGE as u32).for_each(|n| assert_eq!(slab.insert(n), n));
        let (at, first) = (slab.insert(7), PAGE as u32);
        assert_eq!(at, first);
        table.insert(first, 7);
        let page = |slab: &Slab<u32>| slab.pages[1].entries.as_ptr();
        let table_page = |table: &PageTable<u32>| table.pages[1].as_ptr();
        let (before, table_before) = (page(&slab), table_page(&table));
        for _ in 0..3 {
            slab.remove(first);
            assert_eq!(slab.insert(8), first);
            assert_eq!(page(&slab), before);
            table.remove(first);
            table.insert(first, 8);
            assert_eq!(table_page(&table), table_before);
        }
    }
}
