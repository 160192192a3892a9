//! Reads the small files that somebody names: regular ones of a bounded size, opened without
//! waiting for anybody. A pipe that nobody writes to would hold up the thread that handles signals,
//! and a device like `/dev/zero` never ends. Errors name the file and the way out.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// The largest file with a secret, in bytes.
pub const SECRET_BYTES_MAX: u64 = 4 << 10;

/// What everybody on the host may do with a file that they can read or write: S_IROTH, S_IWOTH.
const OTHERS: u32 = 0o006;

/// The text of a file of at most so many bytes. The error says what is wrong with it, and begins
/// with its name.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, String> {
    let (file, _) = open(path)?;
    text(path, file, bytes_max)
}

/// The secret in a file, without the newline that editors and shells put after it.
///
/// A file that everybody on the host can read or change is refused. One for its group is not: that
/// is how containers are given secrets (root's, for the group that the process is in). An empty one
/// is refused too: whoever names a file means to be protected, or to be let in.
pub fn read_secret(path: &Path) -> Result<String, String> {
    let (file, metadata) = open(path)?;
    if let Some(why) = is_open(path, &metadata) {
        return Err(why);
    }
    match text(path, file, SECRET_BYTES_MAX)?.trim() {
        "" => Err(format!(
            "{}: the file is empty: it must hold the API key (openssl rand -hex 24 makes a new one)",
            path.display()
        )),
        secret => Ok(secret.to_string()),
    }
}

/// What to do about a file with a secret that everybody on the host can read or change, if it is
/// one.
pub fn open_secret(path: &Path) -> Option<String> {
    is_open(path, &path.metadata().ok()?)
}

fn is_open(path: &Path, metadata: &Metadata) -> Option<String> {
    (metadata.mode() & OTHERS != 0).then(|| {
        format!(
            "{}: everybody on this host can read or change the secret in it (its mode is {:04o}): \
             chmod 600 {}, or mount it with mode 0440",
            path.display(),
            metadata.mode() & 0o7777,
            quoted(path)
        )
    })
}

/// Opens a regular file, and nothing else.
fn open(path: &Path) -> Result<(File, Metadata), String> {
    let unreadable = |error: std::io::Error| format!("{}: can't be read: {error}", path.display());
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    // Of what was opened, not of the name: that may mean another file by then.
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.is_file() {
        return Ok((file, metadata));
    }
    Err(format!(
        "{}: it is {}, and only a regular file is read here: write the text to a file and name \
         that",
        path.display(),
        kind(metadata.file_type())
    ))
}

fn kind(of: FileType) -> &'static str {
    match () {
        () if of.is_fifo() => "a pipe",
        () if of.is_dir() => "a directory",
        () if of.is_char_device() || of.is_block_device() => "a device",
        () => "no regular file",
    }
}

fn text(path: &Path, file: File, bytes_max: u64) -> Result<String, String> {
    let mut bytes = Vec::new();
    // What a file says of its length may be old, or a lie as in /proc: what comes is counted.
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| format!("{}: can't be read: {error}", path.display()))?;
    if bytes.len() as u64 > bytes_max {
        return Err(format!(
            "{}: it has more than {bytes_max} bytes, the most that is read here: name the right \
             file, or make it smaller",
            path.display()
        ));
    }
    String::from_utf8(bytes).map_err(|_| {
        format!("{}: can't be read: it is no text in UTF-8: name the right file", path.display())
    })
}

/// The path as a shell takes it.
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

    /// A folder of its own for each test.
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
    fn what_is_no_regular_file_is_refused_at_once() {
        let folder = folder("kinds");
        let pipe = folder.join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for (path, want) in [
            (pipe.as_path(), "a pipe"),
            (&folder, "a directory"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            for told in [read_text(path, 100), read_secret(path)] {
                let told = told.unwrap_err();
                assert!(told.starts_with(&path.display().to_string()), "{told}");
                assert!(told.contains(want) && told.contains("write the text to a file"), "{told}");
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_is_read_up_to_its_bound_whatever_it_says_of_its_length() {
        let folder = folder("bounds");
        let path = folder.join("text");
        write(&path, b"12345", 0o644);
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        let told = read_text(&path, 4).unwrap_err();
        assert!(told.contains("more than 4 bytes"), "{told}");
        // It says that it has none.
        assert!(read_text(Path::new("/proc/self/status"), 100).unwrap_err().contains("more than"));
        write(&path, b"\xff", 0o644);
        assert!(read_text(&path, 5).unwrap_err().contains("no text in UTF-8"));
        assert!(read_text(&folder.join("none"), 5).unwrap_err().contains("can't be read"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_secret_that_everybody_can_read_is_refused_with_the_command_that_mends_it() {
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
                Err(told) => {
                    assert!(!good, "{told}");
                    assert!(told.contains(&format!("chmod 600 {}", path.display())), "{told}");
                    assert!(told.contains(&format!("{mode:04o}")), "{told}");
                }
            }
        }
        write(&path, b"\n", 0o600);
        assert!(read_secret(&path).unwrap_err().contains("the file is empty"));
        write(&path, &[b'x'; 5000], 0o600);
        assert!(read_secret(&path).unwrap_err().contains("more than 4096 bytes"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_mounted_secret_behind_links_is_judged_itself() {
        // As kubelet mounts it: key -> ..data/key, ..data -> ..2026.
        let folder = folder("links");
        fs::create_dir(folder.join("..2026")).unwrap();
        symlink("..2026", folder.join("..data")).unwrap();
        symlink("..data/key", folder.join("key")).unwrap();
        write(&folder.join("..2026/key"), b"secret", 0o440);
        assert_eq!(read_secret(&folder.join("key")).unwrap(), "secret");
        write(&folder.join("..2026/key"), b"secret", 0o644);
        assert!(read_secret(&folder.join("key")).unwrap_err().contains("mode 0440"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_path_stands_in_a_command_as_a_shell_takes_it() {
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
