//! The certificate that the server orders itself, by ACME.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use acme::{Challenges, EabKey, Folder, Order, OrderState, Validity};
use config::Config;
use control::OrderResult;
use tls::{AlpnChallenges, Certificate, Identity};
use zeroize::Zeroizing;

use super::{CHECK_EVERY, Certificates, FILE_BYTES_MAX, LoadContext, unix_s};

/// The settings of ACME.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct AcmeConfig {
    /// The order. `trusted` is `None`: each order reads it from `ca_file`.
    pub order: Order,
    ca_file: Option<PathBuf>,
}

/// The state of orders in this process.
#[derive(Default)]
pub(super) struct AcmeState {
    /// The certificate from the folder that is in use, whichever authority signed it.
    pub current: Option<Certificate>,
    /// Hosts, and their self-signed certificate and its key in PEM, which clients get until an authority has signed
    /// one.
    placeholder: Option<(Vec<String>, Zeroizing<String>)>,
}

impl AcmeConfig {
    /// Returns `None` if the server orders no certificate.
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
            eab_key: config::parse_eab_key(&tls.acme_eab_key)
                .map(|key| EabKey { id: tls.acme_eab_key_id.clone(), key: Zeroizing::new(key) }),
            trusted: None,
            folder: Folder::new(dir),
        };
        let ca_file = Some(PathBuf::from(&tls.acme_ca_file)).filter(|it| *it != PathBuf::new());
        Some(AcmeConfig { order, ca_file })
    }

    /// Returns the order, with the certificates to trust.
    fn order(&self) -> Result<Order, String> {
        let trusted = self.ca_file.as_ref().map(|path| files::read_text(path, FILE_BYTES_MAX));
        let trusted = trusted.transpose().map_err(|error| format!("tls.acme_ca_file: {error}"))?;
        Ok(Order { trusted, ..self.order.clone() })
    }

    /// Returns the certificate in the folder; `None` if there is none, or the server starts and can't read it.
    ///
    /// # Errors
    /// When the running server can't read the certificate, or uses one that is gone from the folder.
    pub fn stored(&self, context: &LoadContext<'_>) -> Result<Option<Identity>, String> {
        let path = self.order.folder.certificate_file();
        let read = || -> Result<Option<Identity>, String> {
            let found = std::fs::metadata(&path);
            if found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                return match context.has_ordered {
                    true => Err(format!("{}: the certificate is missing", path.display())),
                    false => Ok(None),
                };
            }
            let pem = files::read_text(&path, FILE_BYTES_MAX).map_err(|error| error.to_string())?;
            let pem = Zeroizing::new(pem);
            let identity = Identity::from_pem(pem.as_bytes(), pem.as_bytes());
            identity.map(Some).map_err(|error| format!("{}: {error}", path.display()))
        };
        match read() {
            Err(error) if context.in_use.is_empty() => {
                tracing::warn!(error, "the stored certificate can't be read: ordering a new one");
                Ok(None)
            }
            result => result,
        }
    }

    /// Returns the self-signed certificate that clients get until an authority has signed one.
    pub fn placeholder(&self, context: &LoadContext<'_>) -> Result<Identity, String> {
        let pem = context.placeholder.unwrap_or_default().as_bytes();
        Identity::from_pem(pem, pem).map_err(|error| format!("tls.acme_hosts: {error}"))
    }

    /// Returns the validity of a certificate that is of this authority and has all hosts. Returns `None` for any
    /// other, which a new order replaces.
    fn validity(&self, certificate: &Certificate, orders: &OrderState) -> Option<Validity> {
        let is_of_authority = orders.certificate_of.as_ref() == Some(&self.order.directory);
        let has_all = self.order.hosts.iter().all(|host| certificate.hosts().any(|it| it == host));
        let (not_before, not_after) = (certificate.not_before, certificate.not_after);
        (is_of_authority && has_all).then_some(Validity { not_before, not_after })
    }
}

impl AcmeState {
    /// Creates the placeholder of these hosts, unless it exists.
    pub fn prepare_placeholder(&mut self, acme: Option<&AcmeConfig>) -> Result<(), String> {
        let Some(AcmeConfig { order, .. }) = acme else { return Ok(()) };
        if self.placeholder.as_ref().is_none_or(|(hosts, _)| *hosts != order.hosts) {
            let pem = acme::self_signed(&order.hosts);
            let pem = pem.map_err(|error| format!("tls.acme_hosts: {error}"))?;
            self.placeholder = Some((order.hosts.clone(), pem));
        }
        Ok(())
    }

    /// Returns the placeholder in PEM; `None` without ACME.
    pub fn placeholder(&self) -> Option<&str> {
        self.placeholder.as_ref().map(|(_, pem)| pem.as_str())
    }
}

/// Passes replies to challenges to the handshakes of the ports with TLS.
struct Replies<'a>(&'a AlpnChallenges);

impl Challenges for Replies<'_> {
    fn set(&self, host: &str, pem: &str) -> Result<(), String> {
        self.0.set(host, pem.as_bytes()).map_err(|error| error.to_string())
    }

    fn clear(&self) {
        self.0.clear();
    }
}

/// Starts the thread that orders certificates when they are due. It ends with the process.
pub(super) fn spawn(certificates: &Arc<Certificates>) -> io::Result<()> {
    let certificates = certificates.clone();
    let thread = std::thread::Builder::new().name("acme".into());
    thread.spawn(move || {
        // The folder's state is read once for each folder: only this thread changes it.
        let mut orders = None;
        loop {
            renew(&certificates, &mut orders);
            std::thread::sleep(CHECK_EVERY);
        }
    })?;
    Ok(())
}

/// Orders a certificate if one is due.
fn renew(certificates: &Certificates, orders: &mut Option<(Folder, OrderState)>) {
    let state = certificates.state();
    let Some(acme) = state.tls_config.acme.clone() else { return };
    let current = state.acme.current.clone();
    drop(state);
    let folder = &acme.order.folder;
    if orders.as_ref().is_none_or(|(of, _)| of != folder) {
        *orders = Some((folder.clone(), folder.order_state()));
    }
    let Some((_, orders)) = orders else { return };
    orders.continue_with(&acme.order.directory, &acme.order.hosts);
    let current = current.and_then(|certificate| acme.validity(&certificate, orders));
    if !orders.schedule.is_due(current, unix_s()) {
        return;
    }
    let retry_seconds = orders.schedule.on_begun(unix_s());
    let hosts = acme.order.hosts.join(", ");
    tracing::info!(hosts, directory = acme.order.directory, "ordering a certificate");
    match obtain(&acme, certificates, orders) {
        Ok(()) => {
            certificates.control.count_order(OrderResult::Signed);
            use_ordered(certificates, &hosts);
        }
        Err(error) => {
            certificates.control.count_order(OrderResult::Failed);
            tracing::error!(hosts, error, retry_seconds, "the certificate could not be obtained");
        }
    }
}

/// Orders a certificate. The state of orders is stored before and after, so that the next process respects the
/// schedule.
fn obtain(
    acme: &AcmeConfig,
    certificates: &Certificates,
    orders: &mut OrderState,
) -> Result<(), String> {
    let folder = &acme.order.folder;
    folder.store_order_state(orders).map_err(|error| error.to_string())?;
    let order = acme.order()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let obtained = runtime.block_on(::acme::obtain(&order, &Replies(&certificates.challenges)));
    obtained.map_err(|error| error.to_string())?;
    let pem = files::read_text(&folder.certificate_file(), FILE_BYTES_MAX).map(Zeroizing::new);
    let pem = pem.map_err(|error| error.to_string())?;
    let identity = Identity::from_pem(pem.as_bytes(), pem.as_bytes());
    let identity =
        identity.map_err(|error| format!("the certificate of the authority: {error}"))?;
    let certificate = identity.certificate();
    let seconds = certificate.not_after.saturating_sub(certificate.not_before);
    orders.schedule.on_succeeded(unix_s(), seconds);
    orders.certificate_of = Some(acme.order.directory.clone());
    folder.store_order_state(orders).map_err(|error| error.to_string())
}

/// Reads the new certificate, for new connections.
fn use_ordered(certificates: &Certificates, hosts: &str) {
    let mut state = certificates.state();
    let tls_config = state.tls_config.clone();
    match certificates.read(&mut state, tls_config) {
        Ok(()) => tracing::info!(hosts, "the new certificate is in use"),
        Err(error) => {
            tracing::error!(error, "the new certificate can't be used yet");
            // The thread `certificates` tries again.
            state.error = Some(error);
        }
    }
}
