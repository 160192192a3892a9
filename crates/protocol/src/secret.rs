//! A type for secrets, which logs must not contain.

/// A token or another secret. Its debug output omits it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Box<str>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}
