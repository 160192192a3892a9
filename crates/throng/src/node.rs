//! The flags with which commands call a node: its API key, and the certificates to trust.

use std::path::PathBuf;

use admin::Target;
use admin::tls::Trust;
use clap::Args;

use crate::error::CommandError;
use crate::sources;

/// The largest file of `--ca`, in bytes.
const CA_BYTES_MAX: u64 = 1 << 20;

/// How a command proves who it is to a node, and which certificates of the node it trusts.
#[derive(Args, Default)]
pub struct Access {
    /// Read the API key from this file instead of the variables THRONG_ADMIN_API_KEY and
    /// THRONG_ADMIN_API_KEY_FILE.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// For an https:// URL: trust the certificates in this file and those that they have signed, instead of the
    /// authorities that this machine trusts.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

impl Access {
    /// Returns the node at this URL.
    ///
    /// # Errors
    /// If the URL, the key or the file of `--ca` can't be used; the text says which.
    pub fn target(&self, url: &str) -> Result<Target, CommandError> {
        let key = sources::api_key(self.api_key_file.as_deref())?;
        let pem = self.ca.as_deref().map(|path| files::read_text(path, CA_BYTES_MAX));
        let pem = pem.transpose().map_err(|error| CommandError::Usage(format!("--ca {error}")))?;
        if pem.is_some() && !url.starts_with("https://") {
            let message = "--ca is for TLS: write https:// in the node's URL, or leave --ca out";
            return Err(CommandError::Usage(message.into()));
        }
        let trust = pem.as_deref().map_or(Trust::System, Trust::Pem);
        Target::parse(url, key, trust).map_err(|error| {
            let file = self.ca.as_deref().map(|path| format!("--ca {}: ", path.display()));
            CommandError::Usage(format!("{}{error:#}", file.unwrap_or_default()))
        })
    }
}
