//! The files in the store's directory that several modules open, and who may read them.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// The name of the store's file in its directory.
pub const FILE: &str = "throng.redb";

/// The file that a process locks while it uses the directory.
pub(crate) const LOCK: &str = "throng.lock";

/// Only the owner may read the files, because they contain all clients' messages.
const FILE_MODE: u32 = 0o600;

/// Only the owner may enter the directory.
pub(crate) const DIR_MODE: u32 = 0o700;

/// Options that open a file or create it, readable by its owner only.
pub(crate) fn owner_only() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
    options
}

/// Removes the access of other users to a file that was created with wider permissions.
pub(crate) fn restrict_to_owner(path: &Path) {
    let Ok(metadata) = std::fs::metadata(path) else { return };
    if metadata.permissions().mode() & 0o077 == 0 {
        return;
    }
    let mode = format!("{:o}", metadata.mode() & 0o777);
    let restricted = std::fs::set_permissions(path, Permissions::from_mode(FILE_MODE));
    let path = path.display();
    match restricted {
        Ok(()) => tracing::warn!(
            %path,
            mode,
            "other users could read this file: now only its owner can"
        ),
        Err(error) => tracing::warn!(
            %path,
            mode,
            %error,
            "other users can read this file, which holds the messages of all users: chmod 600 it \
             as its owner"
        ),
    }
}

/// Gives these paths to the owner of the file `like`, so that root may copy or rewrite a server's store, and the
/// server can open it.
pub(crate) fn copy_owner(
    like: &Path,
    paths: impl IntoIterator<Item = PathBuf>,
) -> std::io::Result<()> {
    let owner = std::fs::metadata(like)?;
    for path in paths {
        if std::fs::metadata(&path)?.uid() != owner.uid() {
            chown(&path, Some(owner.uid()), Some(owner.gid()))?;
        }
    }
    Ok(())
}
