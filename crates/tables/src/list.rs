//! A list in pages.

use crate::PAGE;

/// A list that grows and shrinks at its end by whole pages: a large list copies nothing, and has at most one unused
/// page. The first page grows and shrinks by itself, so that a short list stays small.
pub struct List<T> {
    pages: Vec<Vec<T>>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        List { pages: Vec::new() }
    }
}

impl<T> List<T> {
    /// Returns the number of items.
    #[expect(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> usize {
        match self.pages.last() {
            Some(last) => (self.pages.len() - 1) * PAGE + last.len(),
            None => 0,
        }
    }

    /// Returns an item.
    ///
    /// # Panics
    /// When out of bounds, as a slice does.
    pub fn get(&self, at: usize) -> &T {
        &self.pages[at / PAGE][at % PAGE]
    }

    /// Returns an item.
    ///
    /// # Panics
    /// When out of bounds, as a slice does.
    pub fn get_mut(&mut self, at: usize) -> &mut T {
        &mut self.pages[at / PAGE][at % PAGE]
    }

    /// Appends an item.
    pub fn push(&mut self, item: T) {
        if self.pages.last().is_none_or(|last| last.len() == PAGE) {
            let capacity = if self.pages.is_empty() { 2 } else { PAGE };
            self.pages.push(Vec::with_capacity(capacity));
        }
        if let Some(last) = self.pages.last_mut() {
            if last.len() == last.capacity() {
                last.reserve_exact(last.len());
            }
            last.push(item);
        }
    }

    /// Removes and returns the last item.
    pub fn pop(&mut self) -> Option<T> {
        let is_first = self.pages.len() == 1;
        let last = self.pages.last_mut()?;
        let item = last.pop();
        if last.is_empty() {
            self.pages.pop();
        } else if is_first && last.len() < last.capacity() / 4 {
            last.shrink_to(last.len() * 2);
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_vector() {
        let mut list = List::default();
        let n = PAGE * 3 + 7;
        (0..n).for_each(|item| list.push(item));
        assert_eq!(list.len(), n);
        *list.get_mut(PAGE) = 1;
        assert_eq!((*list.get(PAGE), *list.get(n - 1), *list.get(PAGE - 1)), (1, n - 1, PAGE - 1));
        for item in (0..n).rev() {
            assert_eq!(list.pop(), Some(if item == PAGE { 1 } else { item }));
            assert_eq!(list.len(), item);
        }
        assert_eq!(list.pop(), None);
        assert!(list.pages.is_empty());
    }
}
