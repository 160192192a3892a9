//! Finds the topics that a filter matches.

use std::collections::BTreeMap;
use std::ops::Bound;

use model::Name;
use model::filter::has_wildcard;

/// Names without a match after which a page ends.
pub const SCANNED_MAX: usize = 1_024;

/// Values under topics' names, in the order of the names' bytes. All names below a level are neighbours in it, so a
/// lookup of a filter takes one seek for each run of names that it does not match.
pub struct NameMap<V> {
    names: BTreeMap<Name, V>,
}

/// Some of the names that a filter matches.
#[derive(Debug, PartialEq, Eq)]
pub struct Page<'a, V> {
    /// Names and their values, in the order of the names' bytes.
    pub found: Vec<(&'a str, &'a V)>,
    /// The next page begins behind this name, which need not match or exist any more. `None` for the last page.
    pub after: Option<&'a str>,
}

impl<V> Default for NameMap<V> {
    fn default() -> Self {
        NameMap { names: BTreeMap::new() }
    }
}

impl<V> NameMap<V> {
    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True without any name.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the value under a name.
    pub fn get(&self, name: &str) -> Option<&V> {
        self.names.get(name)
    }

    /// Returns the value under a name.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        self.names.get_mut(name)
    }

    /// Inserts a value. Returns the one that the name had.
    pub fn insert(&mut self, name: Name, value: V) -> Option<V> {
        self.names.insert(name, value)
    }

    /// Removes a name, and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<V> {
        self.names.remove(name)
    }

    /// Returns all names and their values, in the order of the names' bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.names.iter().map(|(name, value)| (&**name, value))
    }

    /// Returns the names behind one, with their values, in the order of the names' bytes.
    pub fn behind<'a>(&'a self, after: Option<&str>) -> impl Iterator<Item = (&'a str, &'a V)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.names.range::<str, _>((from, Bound::Unbounded));
        rest.map(|(name, value)| (&**name, value))
    }

    /// Returns names that a filter matches, from behind `after`: up to `limit` (at least 1), and fewer after
    /// [`SCANNED_MAX`] others. Names may come and go between two pages: those that stay are in one page each.
    ///
    /// ```
    /// let mut names = filters::NameMap::default();
    /// for (at, name) in ["a/1/x", "a/2/x", "a/2/y", "b/1/x"].into_iter().enumerate() {
    ///     names.insert(name.into(), at);
    /// }
    /// let page = names.matching("a/+/x", None, 1);
    /// assert_eq!((page.found, page.after), (vec![("a/1/x", &0)], Some("a/1/x")));
    /// let page = names.matching("a/+/x", page.after, 2);
    /// assert_eq!((page.found, page.after), (vec![("a/2/x", &1)], None));
    /// ```
    pub fn matching(&self, filter: &str, after: Option<&str>, limit: usize) -> Page<'_, V> {
        let mut page = Page { found: Vec::new(), after: None };
        if !has_wildcard(filter) {
            let one = self.names.get_key_value(filter);
            let one = one.filter(|(name, _)| after.is_none_or(|after| ***name > *after));
            page.found.extend(one.map(|(name, value)| (&**name, value)));
            return page;
        }
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut range = self.names.range::<str, _>((from, Bound::Unbounded));
        let (mut scanned, mut to) = (0, String::new());
        while let Some((name, value)) = range.next() {
            match judge(filter, name, &mut to) {
                MatchStep::Match => page.found.push((name, value)),
                MatchStep::Next => scanned += 1,
                MatchStep::Seek => {
                    scanned += 1;
                    range = self.names.range::<str, _>((Bound::Included(&*to), Bound::Unbounded));
                }
                MatchStep::End => break,
            }
            if page.found.len() >= limit.max(1) || scanned >= SCANNED_MAX {
                page.after = Some(name);
                break;
            }
        }
        page
    }
}

/// The result for one name, and where the scan continues.
#[derive(Debug, PartialEq, Eq)]
enum MatchStep {
    Match,
    /// The name doesn't match; the next one may.
    Next,
    /// The name doesn't match, nor does any before the text in `to`.
    Seek,
    /// Neither the name nor any behind it matches.
    End,
}

/// Compares a name with a filter that has a wildcard. To seek, it sets `to` to a text above the name.
fn judge(filter: &str, name: &str, to: &mut String) -> MatchStep {
    // What wildcards don't reach, as `model::filter::wildcards_reach` says.
    if filter.starts_with('@') {
        return MatchStep::End;
    }
    if name == "*" {
        return MatchStep::Next;
    }
    if filter.starts_with(['+', '#']) {
        // The characters behind these.
        match name.as_bytes().first() {
            Some(b'$') => return seek(to, "", "%"),
            Some(b'@') => return seek(to, "", "A"),
            _ => {}
        }
    }
    // The end of the name's last level that a `+` matched.
    let mut plus = None;
    let mut rest = Some(name);
    for level in filter.split('/') {
        if level == "#" {
            return MatchStep::Match;
        }
        let Some(here) = rest else { return MatchStep::Next };
        let at = name.len() - here.len();
        let (first, behind) = match here.split_once('/') {
            Some((first, behind)) => (first, Some(behind)),
            None => (here, None),
        };
        if level == "+" {
            plus = Some(at + first.len());
        } else if level != first {
            return match here.strip_prefix(level) {
                None if level > here => seek(to, &name[..at], level),
                // Like "a-" before "a/": what is below the level is still to come.
                Some(more) if more < "/" => seek(to, &name[..at + level.len()], "/"),
                _ => pass(to, name, plus),
            };
        }
        rest = behind;
    }
    match rest {
        None => MatchStep::Match,
        Some(_) => pass(to, name, plus),
    }
}

/// Skips all that is below the level that ends here, which a `+` matched. '0' comes behind '/'.
fn pass(to: &mut String, name: &str, plus: Option<usize>) -> MatchStep {
    plus.map_or(MatchStep::End, |end| seek(to, &name[..end], "0"))
}

fn seek(to: &mut String, begin: &str, end: &str) -> MatchStep {
    to.clear();
    to.push_str(begin);
    to.push_str(end);
    MatchStep::Seek
}
