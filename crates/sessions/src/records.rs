//! Keys of records for another process.

/// Returns a key: the kind of record, and the name that it is about.
pub(crate) fn key(kind: u8, name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + name.len());
    key.push(kind);
    key.extend_from_slice(name.as_bytes());
    key
}

/// Splits a [`key`] into its parts.
///
/// # Errors
/// If it is not a key.
pub(crate) fn parts(key: &[u8]) -> Result<(u8, &str), &'static str> {
    let (kind, name) = key.split_first().ok_or("a key is empty")?;
    let name = std::str::from_utf8(name).map_err(|_| "a key's name is not text")?;
    Ok((*kind, name))
}
