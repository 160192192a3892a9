//! Whose session it is: the key under which a session is known, and its place in lists.

use std::fmt;

use model::Name;

/// Stands between the owner and the client in a key. Neither has control characters.
const IN_KEY: char = '\0';

/// Stands between the client and the owner where a list goes on. It comes before all that names may have, so
/// texts are in the order of the places.
const IN_TEXT: char = '\t';

/// Whose session it is. Lists are in this order: by client, then by owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place<'a> {
    /// The client identifier.
    pub client: &'a str,
    /// The user to whom the client identifier belongs, where users are proved.
    pub owner: Option<&'a str>,
}

impl<'a> Place<'a> {
    /// The place that a key names.
    pub fn of_key(key: &'a str) -> Self {
        match key.split_once(IN_KEY) {
            Some((owner, client)) => Place { client, owner: Some(owner) },
            None => Place { client: key, owner: None },
        }
    }

    /// What has been written of one by [`Display`](fmt::Display). Any other text is a place between others.
    pub fn of_text(text: &'a str) -> Self {
        match text.split_once(IN_TEXT) {
            Some((client, owner)) => Place { client, owner: Some(owner) },
            None => Place { client: text, owner: None },
        }
    }

    /// The key of its session.
    pub fn key(self) -> Name {
        match self.owner {
            Some(owner) => format!("{owner}{IN_KEY}{}", self.client).into(),
            None => self.client.into(),
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.client)?;
        self.owner.map_or(Ok(()), |owner| write!(f, "{IN_TEXT}{owner}"))
    }
}

/// Which places a list has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Those of clients whose identifiers begin so.
    pub prefix: String,
    /// Those behind this one: [`Place::of_text`].
    pub after: Option<String>,
    /// The first so many.
    pub limit: usize,
}

impl Listing {
    /// Whether it has the place, but for the limit.
    pub fn has(&self, place: Place<'_>) -> bool {
        place.client.starts_with(&self.prefix)
            && self.after.as_deref().is_none_or(|after| place > Place::of_text(after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written_and_texts_are_in_order() {
        let place = |client, owner| Place { client, owner };
        let places = [
            place("a", None),
            place("a", Some("bob")),
            place("a", Some("carl")),
            place("a b", None),
            place("a/1", Some("al")),
            place("ä", None),
        ];
        for place in places {
            assert_eq!(Place::of_key(&place.key()), place);
            assert_eq!(Place::of_text(&place.to_string()), place);
        }
        assert!(places.is_sorted() && places.map(|it| it.to_string()).is_sorted());
        let listing = Listing { prefix: "a".into(), after: Some(places[1].to_string()), limit: 9 };
        assert_eq!(places.map(|it| listing.has(it)), [false, false, true, true, true, false]);
    }
}
