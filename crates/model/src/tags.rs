//! The attributes that a client may give a message: tags, which members filter by, and a key.

use crate::name::has_control;
use crate::{Attributes, Name};

/// The most tags that a message may have, and that a member may filter by.
pub const TAGS_MAX: usize = 16;

/// A tag's length in bytes.
pub const TAG_BYTES_MAX: usize = 64;

/// Adds a tag to a list, unless it is there. The error says why the tag is invalid.
pub fn add(tags: &mut Vec<Name>, tag: &str) -> Result<(), String> {
    if tag.is_empty() || tag.len() > TAG_BYTES_MAX {
        return Err(format!(
            "a tag must have 1 to {TAG_BYTES_MAX} bytes, and this one has {}",
            tag.len()
        ));
    }
    if has_control(tag) {
        return Err("a tag may not contain control characters".into());
    }
    if tags.iter().any(|known| known == tag) {
        return Ok(());
    }
    if tags.len() == TAGS_MAX {
        return Err(format!("there may be at most {TAGS_MAX} tags"));
    }
    tags.push(tag.into());
    Ok(())
}

/// A list of tags, each once. The error says why a tag is invalid.
pub fn list<T: AsRef<str>>(tags: impl IntoIterator<Item = T>) -> Result<Vec<Name>, String> {
    let mut list = Vec::new();
    tags.into_iter().try_for_each(|tag| add(&mut list, tag.as_ref()))?;
    Ok(list)
}

impl Attributes {
    /// Returns attributes with only these; `None` when there are none.
    pub fn of(tags: Vec<Name>, key: Option<Name>) -> Option<Box<Attributes>> {
        let some = !tags.is_empty() || key.is_some();
        some.then(|| Box::new(Attributes { tags, key, ..Attributes::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_few_short_and_each_is_there_once() {
        assert_eq!(list(["a", "b", "a"]).unwrap(), ["a", "b"]);
        let (fits, too_long) = ("x".repeat(TAG_BYTES_MAX), "x".repeat(TAG_BYTES_MAX + 1));
        assert!(list([fits]).is_ok());
        assert!(list([too_long.as_str()]).is_err() && list([""]).is_err());
        for bad in ["a\nb", "\0", "\u{1b}[2J", "\u{85}"] {
            assert!(list([bad]).unwrap_err().contains("control characters"), "{bad:?}");
        }
        let numbers = |count: usize| (0..count).map(|number| number.to_string());
        assert_eq!(list(numbers(TAGS_MAX)).unwrap().len(), TAGS_MAX);
        assert!(list(numbers(TAGS_MAX + 1)).is_err());
        assert!(list(numbers(TAGS_MAX).chain(["0".to_string()])).is_ok());
    }
}
