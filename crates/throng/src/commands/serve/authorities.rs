//! The authorities whose servers the node trusts when it calls them.

use std::path::Path;

use control::Authorities;

use crate::error::CommandError;

/// The largest file of certificates, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the file that a setting names. Without one the node trusts the host's authorities.
///
/// # Errors
/// When the file can't be read, or has no certificate; the text names the setting and the file.
pub(super) fn read(setting: &str, file: &str) -> Result<Authorities, CommandError> {
    if file.is_empty() {
        return Ok(Authorities::SYSTEM);
    }
    let pem = files::read_text(Path::new(file), FILE_BYTES_MAX)
        .map_err(|error| CommandError::Usage(format!("{setting}: {error}")))?;
    Authorities::new(&pem)
        .map_err(|error| CommandError::Usage(format!("{setting}: {file}: {error}")))
}
