//! Reads small files that the user names: regular files of a bounded size, opened without blocking. A pipe without a
//! writer would block the thread that handles signals, and a device like `/dev/zero` never ends. Errors name the file
//! and the remedy.

#![forbid(unsafe_code)]

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The largest file with a secret, in bytes.
pub const SECRET_BYTES_MAX: u64 = 4 << 10;

/// The mode bits that let all users of the host read or change a file: S_IROTH, S_IWOTH.
const OTHERS: u32 = 0o006;

/// The reason why a file can't be used. The texts begin with the file's name and end with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system can't open or read it.
    #[error("{}: can't be read: {error}{}", path.display(), who(error))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// It is a pipe, a directory or a device.
    #[error(
        "{}: it is {kind}, and must be a regular file: write the text to a file and name that file",
        path.display()
    )]
    NotRegular {
        /// The file.
        path: PathBuf,
        /// The kind of file, with its article: "a pipe".
        kind: &'static str,
    },
    /// It is larger than the caller allows.
    #[error(
        "{}: it has more than {bytes_max} bytes, which is the limit: name the right file, or make \
         it smaller",
        path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        bytes_max: u64,
    },
    /// It is not UTF-8.
    #[error("{}: can't be read: it is not UTF-8 text: name the right file", .0.display())]
    NotText(PathBuf),
    /// All users of the host can read or change the secret in it.
    #[error(
        "{}: all users of this host can read or change the secret in it (its mode is {mode:04o}): \
         chmod 600 {}, or mount it with mode 0440",
        path.display(),
        quoted(path)
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It should contain a secret and is empty.
    #[error(
        "{}: the file is empty: it must contain the key (openssl rand -hex 24 makes a new one)",
        .0.display()
    )]
    Empty(PathBuf),
}

/// Names the user that may not read a file, if that is the error: a service manager may run the server as another
/// user.
fn who(error: &std::io::Error) -> String {
    if error.kind() != std::io::ErrorKind::PermissionDenied {
        return String::new();
    }
    let process = std::fs::metadata("/proc/self");
    process.map_or_else(|_| String::new(), |own| format!(" for the user {} (uid)", own.uid()))
}

/// Reads the text of a file of at most `bytes_max` bytes.
///
/// # Errors
/// If it is no regular file, can't be read, is larger, or is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, FileError> {
    let (file, _) = open(path)?;
    text(path, file, bytes_max)
}

/// Reads the secret in a file, without the newline that editors and shells add.
///
/// The file's group may read it: that is how containers get secrets (they belong to root, and the
/// process is in their group).
///
/// # Errors
/// As [`read_text`], with [`SECRET_BYTES_MAX`]. Also if all users of the host can read or change the
/// file, or if it is empty: a user who names a file expects that a key protects the server.
pub fn read_secret(path: &Path) -> Result<String, FileError> {
    let (file, metadata) = open(path)?;
    if let Some(error) = exposed(path, &metadata) {
        return Err(error);
    }
    match text(path, file, SECRET_BYTES_MAX)?.trim() {
        "" => Err(FileError::Empty(path.to_owned())),
        secret => Ok(secret.to_string()),
    }
}

/// Returns an error if all users of the host can read or change this file.
pub fn open_secret(path: &Path) -> Option<FileError> {
    exposed(path, &path.metadata().ok()?)
}

fn exposed(path: &Path, metadata: &Metadata) -> Option<FileError> {
    let mode = metadata.mode();
    (mode & OTHERS != 0).then(|| FileError::Exposed { path: path.to_owned(), mode: mode & 0o7777 })
}

/// Opens a regular file, and nothing else.
fn open(path: &Path) -> Result<(File, Metadata), FileError> {
    let unreadable = |error| FileError::Unreadable { path: path.to_owned(), error };
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    // The metadata are those of the open file. By now the name may mean another one.
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.is_file() {
        return Ok((file, metadata));
    }
    Err(FileError::NotRegular { path: path.to_owned(), kind: kind(metadata.file_type()) })
}

fn kind(of: FileType) -> &'static str {
    match () {
        () if of.is_fifo() => "a pipe",
        () if of.is_dir() => "a directory",
        () if of.is_char_device() || of.is_block_device() => "a device",
        () => "not a regular file",
    }
}

fn text(path: &Path, file: File, bytes_max: u64) -> Result<String, FileError> {
    let mut bytes = Vec::new();
    // The length in the metadata may be outdated, or false as in /proc. So the limit applies to the
    // bytes that are read.
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| FileError::Unreadable { path: path.to_owned(), error })?;
    if bytes.len() as u64 > bytes_max {
        return Err(FileError::TooLarge { path: path.to_owned(), bytes_max });
    }
    String::from_utf8(bytes).map_err(|_| FileError::NotText(path.to_owned()))
}

/// Quotes a path for a shell where it must be.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    match !text.starts_with('-') && text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("-- '{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::*;

    /// Creates an empty folder for one test.
    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("throng-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn write(path: &Path, text: &[u8], mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = folder("kinds");
        let pipe = folder.join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for (path, want) in [
            (pipe.as_path(), "a pipe"),
            (&folder, "a directory"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            for result in [read_text(path, 100), read_secret(path)] {
                let text = result.unwrap_err().to_string();
                assert!(text.starts_with(&path.display().to_string()), "{text}");
                assert!(text.contains(want) && text.contains("write the text to a file"), "{text}");
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_limit_applies_to_the_bytes_read_and_not_to_the_reported_length() {
        let folder = folder("bounds");
        let path = folder.join("text");
        write(&path, b"12345", 0o644);
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        let text = |result: Result<String, FileError>| result.unwrap_err().to_string();
        assert!(text(read_text(&path, 4)).contains("more than 4 bytes"));
        // Its metadata report a length of 0.
        assert!(text(read_text(Path::new("/proc/self/status"), 100)).contains("more than"));
        write(&path, b"\xff", 0o644);
        assert!(text(read_text(&path, 5)).contains("not UTF-8 text"));
        assert!(text(read_text(&folder.join("none"), 5)).contains("can't be read"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_exposed_secret_is_an_error_that_names_the_remedy() {
        let folder = folder("modes");
        let path = folder.join("key");
        for (mode, good) in [
            (0o600, true),
            (0o400, true),
            (0o440, true),
            (0o640, true),
            (0o644, false),
            (0o604, false),
            (0o602, false),
            (0o777, false),
        ] {
            write(&path, b" secret\n", mode);
            match read_secret(&path) {
                Ok(secret) => assert!(good && secret == "secret", "{mode:o}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(!good, "{text}");
                    assert!(text.contains(&format!("chmod 600 {}", path.display())), "{text}");
                    assert!(text.contains(&format!("{mode:04o}")), "{text}");
                }
            }
        }
        write(&path, b"\n", 0o600);
        let error = |path: &Path| read_secret(path).unwrap_err().to_string();
        assert!(error(&path).contains("the file is empty"));
        write(&path, &[b'x'; 5000], 0o600);
        assert!(error(&path).contains("more than 4096 bytes"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_secret_behind_links_is_checked_by_its_own_mode() {
        // Kubelet mounts secrets like this: key -> ..data/key, ..data -> ..2026.
        let folder = folder("links");
        fs::create_dir(folder.join("..2026")).unwrap();
        symlink("..2026", folder.join("..data")).unwrap();
        symlink("..data/key", folder.join("key")).unwrap();
        write(&folder.join("..2026/key"), b"secret", 0o440);
        assert_eq!(read_secret(&folder.join("key")).unwrap(), "secret");
        write(&folder.join("..2026/key"), b"secret", 0o644);
        let error = read_secret(&folder.join("key")).unwrap_err();
        assert!(matches!(error, FileError::Exposed { mode: 0o644, .. }), "{error}");
        assert!(error.to_string().contains("mode 0440"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn paths_are_quoted_for_the_shell() {
        for (path, want) in [
            ("/etc/key", "/etc/key"),
            ("a b", "-- 'a b'"),
            ("it's", "-- 'it'\\''s'"),
            ("-rf", "-- '-rf'"),
        ] {
            assert_eq!(quoted(Path::new(path)), want);
        }
    }
}
