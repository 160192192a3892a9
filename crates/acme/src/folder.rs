//! The files that outlive the process. They contain private keys, so only their owner may read them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::schedule::Schedule;

/// The largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The file with the state of orders.
const ORDERS_FILE: &str = "orders.json";

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

/// The state of orders, which outlives the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderState {
    /// The authority for which the schedule is.
    pub directory: String,
    /// The hosts for which the schedule is.
    pub hosts: Vec<String>,
    /// The directory of the authority that signed the certificate in the folder; `None` without a certificate.
    pub certificate_of: Option<String>,
    /// When the next order begins.
    pub schedule: Schedule,
}

impl OrderState {
    /// Continues with this authority and these hosts. If either is another than before, the next order has no delay.
    pub fn continue_with(&mut self, directory: &str, hosts: &[String]) {
        if self.directory != directory || self.hosts != hosts {
            self.directory = directory.to_owned();
            self.hosts = hosts.to_vec();
            self.schedule = Schedule::default();
        }
    }
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

    /// Reads the state of orders; the default if the file is missing or damaged.
    pub fn order_state(&self) -> OrderState {
        let text = files::read_text(&self.0.join(ORDERS_FILE), FILE_BYTES_MAX).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Stores the state of orders. Before an order this also checks that the folder can be written.
    ///
    /// # Errors
    /// When the folder can't be written.
    pub fn store_order_state(&self, state: &OrderState) -> Result<(), FolderError> {
        let path = self.0.join(ORDERS_FILE);
        let json = serde_json::to_string(state);
        let json =
            json.map_err(|error| FolderError { path: path.clone(), error: error.to_string() })?;
        self.store(&path, &json)
    }

    pub(crate) fn store_account(&self, json: &str) -> Result<(), FolderError> {
        self.store(&self.account_file(), json)
    }

    /// Removes the account, which the authority no longer knows.
    pub(crate) fn remove_account(&self) -> Result<(), FolderError> {
        let path = self.account_file();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FolderError { path, error: error.to_string() })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn store_certificate(&self, pem: &str) -> Result<(), FolderError> {
        self.store(&self.certificate_file(), pem)
    }

    /// Replaces a file as a whole: a reader gets the old text or the new one, also after a power cut.
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
            // A process that ended while it wrote has left this.
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
    fn other_hosts_and_another_authority_are_ordered_without_delay() {
        let dir = Scratch::new("state");
        let folder = Folder::new(dir.path());
        let mut state = folder.order_state();
        assert_eq!(state, OrderState::default());
        let hosts = ["a.example".to_owned()];
        state.continue_with("https://a", &hosts);
        state.schedule.on_begun(1_000);
        state.certificate_of = Some("https://a".into());
        folder.store_order_state(&state).unwrap();
        let mut state = folder.order_state();
        state.continue_with("https://a", &hosts);
        assert!(!state.schedule.is_due(None, 1_000), "the next process waits as well");
        for (directory, hosts) in [("https://b", &hosts[..]), ("https://a", &[])] {
            let mut state = state.clone();
            state.continue_with(directory, hosts);
            assert!(state.schedule.is_due(None, 1_000));
            assert_eq!(state.certificate_of.as_deref(), Some("https://a"));
        }
        fs::write(dir.path().join(ORDERS_FILE), "{").unwrap();
        assert_eq!(folder.order_state(), OrderState::default());
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
