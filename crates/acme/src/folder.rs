//! The files that outlive the process. They hold private keys, so only their owner may read them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A folder with an account and a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

/// A file or the folder can't be read or written: the folder is damaged, full, or another's.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct FolderError {
    path: PathBuf,
    error: String,
}

impl Folder {
    /// The folder at this path. It is made when something is stored.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Folder(path.into())
    }

    /// The file with the certificate, those that signed it, and its key, in PEM.
    pub fn certificate_file(&self) -> PathBuf {
        self.0.join("certificate.pem")
    }

    fn account_file(&self) -> PathBuf {
        self.0.join("account.json")
    }

    /// The account as JSON; `None` if there is none.
    pub(crate) fn account(&self) -> Result<Option<String>, FolderError> {
        let path = self.account_file();
        match path.try_exists() {
            Ok(false) => Ok(None),
            Ok(true) | Err(_) => files::read_text(&path, FILE_BYTES_MAX)
                .map(Some)
                .map_err(|error| FolderError { path, error: error.to_string() }),
        }
    }

    pub(crate) fn store_account(&self, json: &str) -> Result<(), FolderError> {
        self.store(&self.account_file(), json)
    }

    pub(crate) fn store_certificate(&self, pem: &str) -> Result<(), FolderError> {
        self.store(&self.certificate_file(), pem)
    }

    /// Replaces a file as a whole: a reader finds the old one or the new one, also after a power cut.
    fn store(&self, path: &Path, text: &str) -> Result<(), FolderError> {
        let store = || -> io::Result<()> {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
            let staged = path.with_extension("new");
            match fs::remove_file(&staged) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staged)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&staged, path)?;
            File::open(&self.0)?.sync_all()
        };
        store().map_err(|error| FolderError { path: path.to_owned(), error: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder of this test, which ends with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("throng-acme-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_are_replaced_as_a_whole_and_are_secret() {
        let dir = Scratch::new("replaced");
        let folder = Folder::new(dir.path().join("a/b"));
        assert!(folder.account().unwrap().is_none());
        for text in ["{}", "{\"a\":1}"] {
            // What a process left that ended while it wrote.
            let _ = fs::write(dir.path().join("a/b/account.new"), "half");
            folder.store_account(text).unwrap();
            assert_eq!(folder.account().unwrap().as_deref(), Some(text));
        }
        folder.store_certificate("pem").unwrap();
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(folder.certificate_file()), 0o600);
        assert_eq!(mode(folder.account_file()), 0o600);
        assert_eq!(mode(dir.path().join("a/b")), 0o700);
        assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 2);
    }

    #[test]
    fn an_error_names_the_file() {
        let dir = Scratch::new("error");
        fs::write(dir.path().join("file"), "").unwrap();
        let folder = Folder::new(dir.path().join("file"));
        let error = folder.store_account("{}").unwrap_err().to_string();
        assert!(error.contains("file/account.json: "), "{error}");
    }
}
