//! What no log may have.

/// What lets its bearer in: it stands in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Box<str>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}
