//! Tables in pages of 1,024 places: growing copies nothing, and a page that nobody lives in goes back.
//!
//! [`Places`] is for numbers that somebody else gives, as the kernel does with descriptors;
//! [`Slab`] gives numbers itself, from the lowest page that has room, so that the others empty out.
//!
//! Both keep one empty page in hand until [`Places::tidy`] or [`Slab::tidy`], so that one value that
//! comes and goes at the edge of a page costs no allocation each time.

use std::ops::{Index, IndexMut};

/// Places in a page.
const PAGE: usize = if cfg!(test) { 16 } else { 1_024 };

type Page<T> = Box<[Option<T>; PAGE]>;

/// Values under numbers that somebody else gives, small ones first.
pub struct Places<T> {
    pages: Vec<Option<Page<T>>>,
    /// Values in each page.
    lives: Vec<u32>,
    spare: Option<Page<T>>,
    count: usize,
    end: u32,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places { pages: Vec::new(), lives: Vec::new(), spare: None, count: 0, end: 0 }
    }
}

impl<T> Places<T> {
    /// The value under this number.
    pub fn get(&self, at: u32) -> Option<&T> {
        let (page, place) = split(at);
        self.pages.get(page)?.as_ref()?[place].as_ref()
    }

    /// The value under this number.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        let (page, place) = split(at);
        self.pages.get_mut(page)?.as_mut()?[place].as_mut()
    }

    /// Puts a value under a number; gives the one that was there.
    pub fn insert(&mut self, at: u32, value: T) -> Option<T> {
        let (page, place) = split(at);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
            self.lives.resize(page + 1, 0);
        }
        let spare = &mut self.spare;
        let items =
            self.pages[page].get_or_insert_with(|| spare.take().unwrap_or_else(|| array(|| None)));
        let before = items[place].replace(value);
        if before.is_none() {
            self.lives[page] += 1;
            self.count += 1;
            self.end = self.end.max(at + 1);
        }
        before
    }

    /// Takes the value under this number out.
    pub fn remove(&mut self, at: u32) -> Option<T> {
        let (page, place) = split(at);
        let removed = self.pages.get_mut(page)?.as_mut()?[place].take()?;
        self.count -= 1;
        self.lives[page] -= 1;
        if self.lives[page] == 0 {
            // Every place of it is `None` again.
            let empty = self.pages[page].take();
            self.spare = self.spare.take().or(empty);
            self.drop_end();
        }
        Some(removed)
    }

    /// Forgets the pages at the end that nobody lives in.
    fn drop_end(&mut self) {
        while self.pages.pop_if(|page| page.is_none()).is_some() {}
        self.lives.truncate(self.pages.len());
        self.end = self.end.min((self.pages.len() * PAGE) as u32);
    }

    /// Values that are held.
    pub fn count(&self) -> usize {
        self.count
    }

    /// All numbers in use are below this.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Gives back what is kept in hand. To be called now and then.
    pub fn tidy(&mut self) {
        self.spare = None;
        tidy(&mut self.pages);
        tidy(&mut self.lives);
    }

    /// Bytes that the table takes, without what its values hold elsewhere.
    pub fn bytes(&self) -> usize {
        let pages = self.pages.iter().flatten().chain(&self.spare).count();
        pages * size_of::<[Option<T>; PAGE]>()
            + self.pages.capacity() * size_of::<Option<Page<T>>>()
            + self.lives.capacity() * size_of::<u32>()
    }
}

/// The end of a page's list of free places.
const NONE: u16 = u16::MAX;

/// Values under numbers that the slab gives and that stay theirs until they are removed.
pub struct Slab<T> {
    pages: Vec<SlabPage<T>>,
    /// A bit for each page: set while it has room.
    room: Vec<u64>,
    spare: Vec<Entry<T>>,
    count: usize,
}

struct SlabPage<T> {
    /// Grows to a page's length; without any while nobody lives here.
    entries: Vec<Entry<T>>,
    /// The first free place among them.
    free: u16,
    live: u16,
}

enum Entry<T> {
    Taken(T),
    /// The next free place.
    Free(u16),
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { pages: Vec::new(), room: Vec::new(), spare: Vec::new(), count: 0 }
    }
}

impl<T> Slab<T> {
    /// What a value takes in its page.
    pub const PLACE_BYTES: usize = size_of::<Entry<T>>();

    /// Gives the value a number: one in the lowest page that has room.
    pub fn insert(&mut self, value: T) -> u32 {
        let at = self.page_with_room();
        let page = &mut self.pages[at];
        let entry = Entry::Taken(value);
        let place = match page.free {
            NONE => {
                if page.entries.capacity() == 0 && at > 0 {
                    page.entries = std::mem::take(&mut self.spare);
                    page.entries.reserve_exact(PAGE);
                } else if page.entries.len() == page.entries.capacity() {
                    // The first page grows by doubling, so that a small table stays small.
                    page.entries.reserve_exact(page.entries.len().clamp(2, PAGE / 2));
                }
                page.entries.push(entry);
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
        page.live += 1;
        self.count += 1;
        if page.live as usize == PAGE {
            self.room[at / 64] &= !(1 << (at % 64));
        }
        (at * PAGE + place) as u32
    }

    fn page_with_room(&mut self) -> usize {
        for (word, bits) in self.room.iter().enumerate() {
            if *bits != 0 {
                return word * 64 + bits.trailing_zeros() as usize;
            }
        }
        let at = self.pages.len();
        assert!(at < u32::MAX as usize / PAGE, "a slab holds less than 2^32 values");
        self.pages.push(SlabPage { entries: Vec::new(), free: NONE, live: 0 });
        if at.is_multiple_of(64) {
            self.room.push(0);
        }
        self.room[at / 64] |= 1 << (at % 64);
        at
    }

    /// Takes a value out.
    ///
    /// # Panics
    /// If the number is nobody's.
    pub fn remove(&mut self, at: u32) -> T {
        let (number, place) = split(at);
        let page = &mut self.pages[number];
        let removed = match std::mem::replace(&mut page.entries[place], Entry::Free(page.free)) {
            Entry::Taken(value) => value,
            Entry::Free(_) => panic!("number {at} is free"),
        };
        page.free = place as u16;
        page.live -= 1;
        self.count -= 1;
        self.room[number / 64] |= 1 << (number % 64);
        if page.live == 0 {
            self.release(number);
        }
        removed
    }

    /// Nobody lives in this page: it is kept in hand, or goes back.
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
            self.room[gone / 64] &= !(1 << (gone % 64));
        }
        self.room.truncate(self.pages.len().div_ceil(64));
    }

    /// The value under this number, if it has one.
    pub fn get(&self, at: u32) -> Option<&T> {
        let (page, place) = split(at);
        match self.pages.get(page)?.entries.get(place)? {
            Entry::Taken(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    /// All numbers in use are below this.
    pub fn end(&self) -> u32 {
        (self.pages.len() * PAGE) as u32
    }

    /// All values with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let pages = self.pages.iter().enumerate();
        let places = pages.flat_map(|(number, page)| {
            page.entries
                .iter()
                .enumerate()
                .map(move |(place, entry)| (number * PAGE + place, entry))
        });
        places.filter_map(|(at, entry)| match entry {
            Entry::Taken(value) => Some((at as u32, value)),
            Entry::Free(_) => None,
        })
    }

    /// Values that are held.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Gives back what is kept in hand. To be called now and then.
    pub fn tidy(&mut self) {
        self.spare = Vec::new();
        tidy(&mut self.pages);
        tidy(&mut self.room);
    }

    /// Bytes that the table takes, without what its values hold elsewhere.
    pub fn bytes(&self) -> usize {
        let entries: usize = self.pages.iter().map(|page| page.entries.capacity()).sum();
        (entries + self.spare.capacity()) * size_of::<Entry<T>>()
            + self.pages.capacity() * size_of::<SlabPage<T>>()
            + self.room.capacity() * size_of::<u64>()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        let (page, place) = split(at);
        match &self.pages[page].entries[place] {
            Entry::Taken(value) => value,
            Entry::Free(_) => panic!("number {at} is free"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        let (page, place) = split(at);
        match &mut self.pages[page].entries[place] {
            Entry::Taken(value) => value,
            Entry::Free(_) => panic!("number {at} is free"),
        }
    }
}

/// Gives back most of the room of a vector that has become far too large for what it holds.
pub fn tidy<T>(vec: &mut Vec<T>) {
    if vec.len() < vec.capacity() / 8 {
        vec.shrink_to(vec.len() * 2);
    }
}

fn split(at: u32) -> (usize, usize) {
    (at as usize / PAGE, at as usize % PAGE)
}

/// Made on the heap: a page is too large for a stack.
fn array<T>(make: impl Fn() -> T) -> Box<[T; PAGE]> {
    let items: Box<[T]> = (0..PAGE).map(|_| make()).collect();
    match items.try_into() {
        Ok(page) => page,
        Err(_) => unreachable!("so many were made"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn places_hold_what_a_map_holds_and_no_page_without_a_value(
            steps in prop::collection::vec((0_u32..200, any::<bool>()), 0..600),
        ) {
            let (mut places, mut model) = (Places::default(), BTreeMap::new());
            for (value, (at, comes)) in steps.into_iter().enumerate() {
                if comes {
                    prop_assert_eq!(places.insert(at, value), model.insert(at, value));
                } else {
                    prop_assert_eq!(places.remove(at), model.remove(&at));
                }
                prop_assert_eq!(places.count(), model.len());
                prop_assert!(model.keys().all(|at| *at < places.end()));
                prop_assert!((0..200).all(|at| places.get(at) == model.get(&at)));
                let mut lived: Vec<u32> = model.keys().map(|at| at / PAGE as u32).collect();
                lived.dedup();
                prop_assert_eq!(places.pages.iter().flatten().count(), lived.len());
            }
        }

        #[test]
        fn a_slab_keeps_numbers_and_no_page_without_a_value(
            steps in prop::collection::vec((any::<bool>(), 0_usize..1_000), 0..600),
        ) {
            let (mut slab, mut model) = (Slab::default(), BTreeMap::new());
            for (value, (comes, which)) in steps.into_iter().enumerate() {
                if comes || model.is_empty() {
                    let at = slab.insert(value);
                    prop_assert!(model.insert(at, value).is_none());
                    let lower = (0..at / PAGE as u32 * PAGE as u32).find(|at| !model.contains_key(at));
                    prop_assert_eq!(lower, None, "a lower page had room");
                } else {
                    let at = *model.keys().nth(which % model.len()).unwrap();
                    prop_assert_eq!(slab.remove(at), model.remove(&at).unwrap());
                }
                prop_assert_eq!(slab.count(), model.len());
                prop_assert!(model.iter().all(|(at, value)| slab[*at] == *value));
                let all: Vec<_> = slab.iter().map(|(at, value)| (at, *value)).collect();
                prop_assert_eq!(all, model.iter().map(|it| (*it.0, *it.1)).collect::<Vec<_>>());
                let with_memory = slab.pages.iter().filter(|page| page.entries.capacity() > 0);
                let mut lived: Vec<u32> = model.keys().map(|at| at / PAGE as u32).collect();
                lived.dedup();
                prop_assert_eq!(with_memory.count(), lived.len());
            }
        }
    }

    #[test]
    fn a_crowd_gives_all_pages_back() {
        let (mut places, mut slab) = (Places::default(), Slab::default());
        for _ in 0..3 {
            let numbers: Vec<u32> = (0..5_000).map(|n| slab.insert(n)).collect();
            numbers.iter().for_each(|at| assert_eq!(places.insert(*at, *at), None));
            assert_eq!((slab.count(), places.count(), places.end()), (5_000, 5_000, 5_000));
            for at in numbers {
                slab.remove(at);
                places.remove(at);
            }
            slab.tidy();
            places.tidy();
            assert_eq!((slab.pages.len(), places.pages.len(), places.end()), (0, 0, 0));
            assert!(slab.bytes() < 16 << 10 && places.bytes() < 16 << 10);
        }
    }

    #[test]
    fn one_that_comes_and_goes_at_the_edge_of_a_page_allocates_nothing() {
        let (mut places, mut slab) = (Places::default(), Slab::default());
        (0..PAGE as u32).for_each(|n| assert_eq!(slab.insert(n), n));
        let (at, first) = (slab.insert(7), PAGE as u32);
        assert_eq!(at, first);
        places.insert(first, 7);
        let page = |slab: &Slab<u32>| slab.pages[1].entries.as_ptr();
        let place = |places: &Places<u32>| places.pages[1].as_ref().map(|page| page.as_ptr());
        let (before, place_before) = (page(&slab), place(&places));
        for _ in 0..3 {
            slab.remove(first);
            assert_eq!(slab.insert(8), first);
            assert_eq!(page(&slab), before);
            places.remove(first);
            places.insert(first, 8);
            assert_eq!(place(&places), place_before);
        }
    }
}
