//! The key of a session, and its position in lists.

use std::fmt;

use model::Name;

/// Separates the owner and the client in a key. Neither has control characters.
const IN_KEY: char = '\0';

/// Separates the client and the owner in a position. It sorts before all characters that names may have, so positions
/// are in the order of the keys.
const IN_POSITION: char = '\t';

/// The client and the owner of a session. Lists are in this order: by client, then by owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionKey<'a> {
    /// The client identifier.
    pub client: &'a str,
    /// The user to whom the client identifier belongs, if users are authenticated.
    pub owner: Option<&'a str>,
}

impl<'a> SessionKey<'a> {
    /// Parses the key of a stored [`Session`](crate::Session).
    pub fn parse(key: &'a str) -> Self {
        match key.split_once(IN_KEY) {
            Some((owner, client)) => SessionKey { client, owner: Some(owner) },
            None => SessionKey { client: key, owner: None },
        }
    }

    /// Parses a position in a list, as [`Display`](fmt::Display) writes it. Any other text is a position between
    /// two sessions.
    pub fn parse_position(text: &'a str) -> Self {
        match text.split_once(IN_POSITION) {
            Some((client, owner)) => SessionKey { client, owner: Some(owner) },
            None => SessionKey { client: text, owner: None },
        }
    }

    /// Returns the key of the stored session.
    pub fn encode(self) -> Name {
        match self.owner {
            Some(owner) => format!("{owner}{IN_KEY}{}", self.client).into(),
            None => self.client.into(),
        }
    }
}

impl fmt::Display for SessionKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.client)?;
        self.owner.map_or(Ok(()), |owner| write!(f, "{IN_POSITION}{owner}"))
    }
}

/// A page of a list of sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Only sessions of clients whose identifiers begin with this.
    pub prefix: String,
    /// Only sessions behind this position: [`SessionKey::parse_position`].
    pub after: Option<String>,
    /// The limit on sessions of the page.
    pub limit: usize,
}

impl Listing {
    /// Returns true if a session belongs to the list, apart from the limit.
    pub fn has(&self, key: SessionKey<'_>) -> bool {
        key.client.starts_with(&self.prefix)
            && self.after.as_deref().is_none_or(|after| key > SessionKey::parse_position(after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_parsed_as_it_was_encoded_and_positions_are_in_order() {
        let key = |client, owner| SessionKey { client, owner };
        let keys = [
            key("a", None),
            key("a", Some("bob")),
            key("a", Some("carl")),
            key("a b", None),
            key("a/1", Some("al")),
            key("ä", None),
        ];
        for key in keys {
            assert_eq!(SessionKey::parse(&key.encode()), key);
            assert_eq!(SessionKey::parse_position(&key.to_string()), key);
        }
        assert!(keys.is_sorted() && keys.map(|it| it.to_string()).is_sorted());
        let listing = Listing { prefix: "a".into(), after: Some(keys[1].to_string()), limit: 9 };
        assert_eq!(keys.map(|it| listing.has(it)), [false, false, true, true, true, false]);
    }
}
