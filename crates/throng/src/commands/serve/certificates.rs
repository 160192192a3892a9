//! TLS certificates: read at the start, and again when their files or the configuration change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use config::{ClientUser, Config, TlsVersion};
use control::Certificate;
use handover::{Part, PartError};
use shard::{CertificateUser, TlsContext, TlsSettings};
use tls::{Acceptor, ClientCertificates, Identity, TicketKeys, Version};

use crate::error::CommandError;

use super::settings;

/// The largest file with certificates or a key, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How often the files are compared with what was read.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// A certificate that ends within this time is logged as a warning, once a day.
const WARN_SECONDS: u64 = 14 * DAY;

const DAY: u64 = 86_400;

/// The name of what a process passes on.
const TICKETS: &str = "tls-tickets";

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
    /// How they are called in the configuration.
    setting: String,
}

/// What the configuration says of TLS.
#[derive(Clone, PartialEq, Eq)]
struct TlsConfig {
    pairs: Vec<CertificateFiles>,
    version_min: Version,
    /// The authorities of clients' certificates; `None` where none are requested.
    client_ca: Option<PathBuf>,
    client_certificates: config::ClientCertificates,
    certificate_user: CertificateUser,
}

/// When a file was changed, and its size; `None` if it is not there.
type Stamp = Option<(SystemTime, u64)>;

struct State {
    tls_config: TlsConfig,
    /// The files, as they were when they were read.
    stamps: Vec<Stamp>,
    ticket_keys: TicketKeys,
    /// Why the files could not be read the last time, so that it is logged once.
    error: Option<String>,
    /// When a certificate that ends soon was logged, in seconds since 1970.
    warned_s: u64,
}

/// The certificates of a server.
pub(super) struct Certificates {
    context: TlsContext,
    /// What the metrics report.
    shown: Arc<control::Certificates>,
    state: Mutex<State>,
}

impl Certificates {
    /// Reads the files. `None` where no port has TLS.
    ///
    /// # Errors
    /// When a certificate or its key can't be read or used.
    pub fn new(config: &Config, shards: usize) -> Result<Option<Arc<Self>>, CommandError> {
        if config.client.listen_tls.is_none() && config.mqtt.listen_tls.is_none() {
            return Ok(None);
        }
        let ticket_keys = TicketKeys::new(unix_s())
            .map_err(|error| CommandError::Runtime(format!("TLS can't be set up: {error}")))?;
        let tls_config = TlsConfig::of(config);
        let stamps = tls_config.stamps();
        let first = tls_config.settings(&ticket_keys).map_err(CommandError::Usage)?;
        let shown = Arc::new(control::Certificates::default());
        shown.set(certificates(&first.acceptor));
        let handshakes_max = settings::handshakes(config);
        let context = TlsContext::new(first, handshakes_max.div_ceil(shards.max(1)));
        let state = State { tls_config, stamps, ticket_keys, error: None, warned_s: 0 };
        Ok(Some(Arc::new(Certificates { context, shown, state: Mutex::new(state) })))
    }

    /// What shards accept connections by.
    pub fn context(&self) -> TlsContext {
        self.context.clone()
    }

    /// What the certificates say, for people.
    pub fn shown(&self) -> Arc<control::Certificates> {
        self.shown.clone()
    }

    /// Reads the files that this configuration names.
    ///
    /// # Errors
    /// When a certificate or its key can't be read or used. The ones before stay.
    pub fn reload(&self, config: &Config) -> Result<(), CommandError> {
        self.read(&mut self.state(), TlsConfig::of(config)).map_err(CommandError::Usage)
    }

    /// Begins to watch the files, on a thread that ends with the process.
    pub fn watch(self: &Arc<Self>) -> std::io::Result<()> {
        let certificates = self.clone();
        let thread = std::thread::Builder::new().name("certificates".into());
        thread.spawn(move || {
            loop {
                certificates.check(unix_s());
                std::thread::sleep(CHECK_EVERY);
            }
        })?;
        Ok(())
    }

    /// Reads the files again if they have changed, and rotates the keys of tickets when it is time.
    fn check(&self, now: u64) {
        let mut state = self.state();
        if let Err(error) = state.ticket_keys.rotate(now) {
            tracing::warn!(%error, "the key of TLS tickets stays as it is");
        }
        if state.stamps != state.tls_config.stamps() || state.error.is_some() {
            let tls_config = state.tls_config.clone();
            match self.read(&mut state, tls_config) {
                Ok(()) => tracing::info!("the certificates were read again"),
                Err(error) => {
                    if state.error.as_ref() != Some(&error) {
                        tracing::error!(error, "the certificates stay as they were");
                    }
                    state.error = Some(error);
                }
            }
        }
        if now >= state.warned_s + DAY {
            for certificate in self.shown.get() {
                if certificate.not_after <= now + WARN_SECONDS {
                    state.warned_s = now;
                    let seconds = certificate.not_after.saturating_sub(now);
                    let days = seconds / DAY;
                    let name = certificate.name;
                    tracing::warn!(name, days, "a certificate ends soon: renew it");
                }
            }
        }
    }

    fn read(&self, state: &mut State, tls_config: TlsConfig) -> Result<(), String> {
        // Before the files are read: a change in between is read the next time.
        let stamps = tls_config.stamps();
        let settings = tls_config.settings(&state.ticket_keys)?;
        self.shown.set(certificates(&settings.acceptor));
        self.context.set(settings);
        (state.tls_config, state.stamps, state.error, state.warned_s) =
            (tls_config, stamps, None, 0);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TlsConfig {
    fn of(config: &Config) -> Self {
        let first = CertificateFiles {
            certificate: PathBuf::from(&config.tls.certificate_file),
            key: PathBuf::from(&config.tls.key_file),
            setting: "tls".into(),
        };
        let more = config.certificates.iter().enumerate().map(|(index, rule)| CertificateFiles {
            certificate: PathBuf::from(&rule.certificate_file),
            key: PathBuf::from(&rule.key_file),
            setting: format!("tls.certificates[{index}]"),
        });
        let version_min = match config.tls.version_min {
            TlsVersion::Tls12 => Version::Tls12,
            TlsVersion::Tls13 => Version::Tls13,
        };
        let tls = &config.tls;
        TlsConfig {
            pairs: [first].into_iter().chain(more).collect(),
            version_min,
            client_ca: Some(PathBuf::from(&tls.client_ca_file)).filter(|it| *it != PathBuf::new()),
            client_certificates: tls.client_certificates,
            certificate_user: match tls.client_user {
                ClientUser::None => CertificateUser::None,
                ClientUser::CommonName => CertificateUser::CommonName,
                ClientUser::Host => CertificateUser::Host,
                ClientUser::Email => CertificateUser::Email,
                ClientUser::Uri => CertificateUser::Uri,
            },
        }
    }

    fn stamps(&self) -> Vec<Stamp> {
        let files = self.pairs.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
        let files = files.chain(&self.client_ca);
        let stamp = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        files.map(stamp).collect()
    }

    /// Reads the authorities of clients' certificates.
    fn client_certificates(&self) -> Result<ClientCertificates, String> {
        let Some(path) = &self.client_ca else { return Ok(ClientCertificates::None) };
        let text = files::read_text(path, FILE_BYTES_MAX);
        let authorities =
            text.map_err(|error| format!("tls.client_ca_file: {error}"))?.into_bytes();
        Ok(match self.client_certificates {
            config::ClientCertificates::Optional => ClientCertificates::Optional { authorities },
            config::ClientCertificates::Required => ClientCertificates::Required { authorities },
        })
    }

    /// Reads the files, and makes what shards accept connections by.
    fn settings(&self, ticket_keys: &TicketKeys) -> Result<TlsSettings, String> {
        let acceptor = self.acceptor(ticket_keys)?;
        Ok(TlsSettings { acceptor, certificate_user: self.certificate_user })
    }

    /// Reads the files.
    fn acceptor(&self, ticket_keys: &TicketKeys) -> Result<Acceptor, String> {
        let mut identities = Vec::with_capacity(self.pairs.len());
        for CertificateFiles { certificate, key, setting } in &self.pairs {
            let read = |field: &str, path: &Path| {
                let text = files::read_text(path, FILE_BYTES_MAX);
                text.map_err(|error| format!("{setting}.{field}: {error}"))
            };
            let chain = read("certificate_file", certificate)?;
            let key_text = zeroize::Zeroizing::new(read("key_file", key)?);
            let identity = Identity::from_pem(chain.as_bytes(), key_text.as_bytes());
            identities.push(identity.map_err(|error| {
                let (certificate, key) = (certificate.display(), key.display());
                format!("{setting}: {certificate} and {key}: {error}")
            })?);
        }
        let settings = tls::Settings {
            identities,
            version_min: self.version_min,
            client_certificates: self.client_certificates()?,
            ticket_keys: ticket_keys.clone(),
        };
        let acceptor = Acceptor::new(settings).map_err(|error| format!("tls: {error}"))?;
        let now = unix_s();
        let certificates = acceptor.certificates().cloned().collect::<Vec<_>>();
        let mut pairs = self.pairs.iter().zip(certificates);
        if let Some((pair, certificate)) = pairs.find(|(_, it)| it.not_after < now) {
            let path = pair.certificate.display();
            let days = (now - certificate.not_after) / DAY;
            return Err(format!(
                "{}.certificate_file: {path}: the certificate has expired, {days} days ago: renew it",
                pair.setting
            ));
        }
        Ok(acceptor)
    }
}

/// What the certificates say, for people.
fn certificates(acceptor: &Acceptor) -> Vec<Certificate> {
    let shown = |certificate: &tls::Certificate| {
        let names = certificate.names.iter().map(ToString::to_string);
        let name = names.chain(certificate.common_name.clone()).next().unwrap_or_default();
        Certificate { name, not_after: certificate.not_after }
    };
    acceptor.certificates().map(shown).collect()
}

/// The keys of tickets, for another process: clients resume their sessions there.
pub(super) struct TicketsPart(pub Arc<Certificates>);

impl Part for TicketsPart {
    fn name(&self) -> &'static str {
        TICKETS
    }

    fn export(&self, each: &mut dyn FnMut(&[u8], &[u8])) {
        let keys = self.0.state().ticket_keys.export();
        each(b"keys", &keys);
    }

    fn import(&self, _: &[u8], value: Option<&[u8]>) -> Result<(), PartError> {
        let Some(value) = value else { return Ok(()) };
        let mut state = self.0.state();
        let keys = TicketKeys::import(value).map_err(|error| PartError::new(TICKETS, error))?;
        // They may have been on their way for a long time.
        keys.rotate(unix_s()).map_err(|error| PartError::new(TICKETS, error))?;
        let before = std::mem::replace(&mut state.ticket_keys, keys);
        let tls_config = state.tls_config.clone();
        self.0.read(&mut state, tls_config).map_err(|error| {
            state.ticket_keys = before;
            PartError::new(TICKETS, error)
        })
    }
}

/// Takes the keys of a process with TLS where this one has none.
pub(super) struct NoTicketsPart;

impl Part for NoTicketsPart {
    fn name(&self) -> &'static str {
        TICKETS
    }

    fn export(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn import(&self, _: &[u8], _: Option<&[u8]>) -> Result<(), PartError> {
        Ok(())
    }
}

fn unix_s() -> u64 {
    control::unix_us() / 1_000_000
}
