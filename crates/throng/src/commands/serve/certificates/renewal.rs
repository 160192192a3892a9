//! The certificate that the server orders itself, by ACME.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use acme::{Challenges, Folder, Order, Schedule, Validity};
use config::Config;
use tls::{AlpnChallenges, Identity};

use super::{Certificates, FILE_BYTES_MAX, unix_s};

/// How often the schedule is consulted.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// What the configuration says of ACME.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct AcmeConfig {
    /// Without the certificates to trust, which stand in a file.
    pub order: Order,
    ca_file: Option<PathBuf>,
}

/// What the process knows of its orders.
#[derive(Default)]
pub(super) struct AcmeState {
    pub schedule: Schedule,
    /// The certificate that is there for all hosts.
    pub current: Option<Validity>,
    /// Hosts, and the PEM that they show until they have a certificate.
    placeholder: Option<(Vec<String>, String)>,
}

impl AcmeConfig {
    /// `None` where the server orders no certificate.
    pub fn of(config: &Config) -> Option<Self> {
        let tls = &config.tls;
        if tls.acme_hosts.is_empty() {
            return None;
        }
        let dir = match tls.acme_dir.as_str() {
            "" => Path::new(&config.store.data).join("acme"),
            dir => PathBuf::from(dir),
        };
        let order = Order {
            directory: tls.acme_directory.clone(),
            hosts: tls.acme_hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            contacts: tls.acme_contacts.clone(),
            trusted: None,
            folder: Folder::new(dir),
        };
        let ca_file = Some(PathBuf::from(&tls.acme_ca_file)).filter(|it| *it != PathBuf::new());
        Some(AcmeConfig { order, ca_file })
    }

    /// What is ordered, with the certificates to trust.
    fn order(&self) -> Result<Order, String> {
        let trusted = self.ca_file.as_ref().map(|path| files::read_text(path, FILE_BYTES_MAX));
        let trusted = trusted.transpose().map_err(|error| format!("tls.acme_ca_file: {error}"))?;
        Ok(Order { trusted, ..self.order.clone() })
    }

    /// The certificate in the folder, and until when it is valid if it is for all hosts. Without one, the placeholder.
    pub fn identity(
        &self,
        placeholder: Option<&str>,
    ) -> Result<(Identity, Option<Validity>), String> {
        let path = self.order.folder.certificate_file();
        match files::read_text(&path, FILE_BYTES_MAX) {
            Ok(pem) => match Identity::from_pem(pem.as_bytes(), pem.as_bytes()) {
                Ok(identity) => {
                    let validity = self.validity(identity.certificate());
                    return Ok((identity, validity));
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a new certificate is ordered");
                }
            },
            Err(_) if !path.exists() => {}
            Err(error) => tracing::warn!(%error, "a new certificate is ordered"),
        }
        let pem = placeholder.ok_or("tls.acme_hosts: there is no certificate yet")?;
        let identity = Identity::from_pem(pem.as_bytes(), pem.as_bytes());
        Ok((identity.map_err(|error| format!("tls.acme_hosts: {error}"))?, None))
    }

    fn validity(&self, certificate: &tls::Certificate) -> Option<Validity> {
        let has_all = self.order.hosts.iter().all(|host| certificate.hosts().any(|it| it == host));
        let (not_before, not_after) = (certificate.not_before, certificate.not_after);
        has_all.then_some(Validity { not_before, not_after })
    }
}

impl AcmeState {
    /// Makes the placeholder of these hosts, unless it is there.
    pub fn prepare(&mut self, acme: Option<&AcmeConfig>) -> Result<(), String> {
        let Some(AcmeConfig { order, .. }) = acme else { return Ok(()) };
        if self.placeholder.as_ref().is_none_or(|(hosts, _)| *hosts != order.hosts) {
            let pem = acme::self_signed(&order.hosts);
            let pem = pem.map_err(|error| format!("tls.acme_hosts: {error}"))?;
            self.placeholder = Some((order.hosts.clone(), pem));
            self.schedule.reset();
        }
        Ok(())
    }

    pub fn placeholder(&self) -> Option<&str> {
        self.placeholder.as_ref().map(|(_, pem)| pem.as_str())
    }
}

/// Shows the replies to challenges at the ports with TLS.
struct Replies<'a>(&'a AlpnChallenges);

impl Challenges for Replies<'_> {
    fn set(&self, host: &str, pem: &str) -> Result<(), String> {
        let identity = Identity::from_pem(pem.as_bytes(), pem.as_bytes());
        self.0.set(host, &identity.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn clear(&self) {
        self.0.clear();
    }
}

/// Begins to order certificates when it is time, on a thread that ends with the process.
pub(super) fn watch(certificates: &Arc<Certificates>) -> std::io::Result<()> {
    let certificates = certificates.clone();
    let thread = std::thread::Builder::new().name("acme".into());
    thread.spawn(move || {
        loop {
            renew(&certificates);
            std::thread::sleep(CHECK_EVERY);
        }
    })?;
    Ok(())
}

/// Orders a certificate if it is time.
fn renew(certificates: &Certificates) {
    let state = certificates.state();
    let Some(acme) = state.tls_config.acme.clone() else { return };
    let is_due = state.acme.schedule.is_due(state.acme.current, unix_s());
    drop(state);
    if !is_due {
        return;
    }
    let hosts = acme.order.hosts.join(", ");
    tracing::info!(hosts, directory = acme.order.directory, "a certificate is ordered");
    let result = order(&acme, &certificates.challenges);
    let mut state = certificates.state();
    match result {
        Ok(()) => {
            state.acme.schedule.reset();
            let tls_config = state.tls_config.clone();
            match certificates.read(&mut state, tls_config) {
                Ok(()) => tracing::info!(hosts, "the new certificate is in use"),
                Err(error) => tracing::error!(error, "the new certificate can't be used"),
            }
        }
        Err(error) => {
            let retry_seconds = state.acme.schedule.on_failed(unix_s());
            tracing::error!(hosts, error, retry_seconds, "there is no new certificate");
        }
    }
}

fn order(acme: &AcmeConfig, challenges: &AlpnChallenges) -> Result<(), String> {
    let order = acme.order()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let obtained = runtime.block_on(::acme::obtain(&order, &Replies(challenges)));
    obtained.map_err(|error| error.to_string())
}
