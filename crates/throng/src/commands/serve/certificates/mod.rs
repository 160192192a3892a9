//! TLS certificates: read at the start, and again when their files or the configuration change.

mod files;
mod part;
mod renewal;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use config::Config;
use control::Certificate;
use shard::TlsContext;
use tls::{AlpnChallenges, TicketKeys};

use crate::error::CommandError;

use super::settings;

use self::files::{LoadedCertificates, Stamp, TlsConfig};
use self::renewal::AcmeState;

pub(super) use self::part::{NoTicketsPart, TicketsPart};

/// The largest file with certificates or a key, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How often the server checks whether the files have changed.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// A certificate that ends within this time is logged as a warning, once a day. For one that is valid for less than
/// four times as long, the time is a quarter of its validity.
const WARN_SECONDS: u64 = 14 * DAY;

const DAY: u64 = 86_400;

struct State {
    tls_config: TlsConfig,
    /// The stamps of the files when they were read.
    stamps: Vec<Stamp>,
    ticket_keys: TicketKeys,
    /// Why the files could not be read the last time, so that it is logged once.
    error: Option<String>,
    /// When a certificate that ends soon was logged, in seconds since 1970.
    warned_s: u64,
    acme: AcmeState,
}

/// The context of a load, besides the files of the configuration.
struct LoadContext<'a> {
    ticket_keys: &'a TicketKeys,
    challenges: &'a AlpnChallenges,
    /// The self-signed certificate and its key, in PEM, which clients of the hosts of ACME get until an authority has
    /// signed one; `None` without ACME.
    placeholder: Option<&'a str>,
    /// The certificates that the server uses now; none at the start. One of them that has expired since is no reason to
    /// reject new ones of other hosts.
    in_use: &'a [tls::Certificate],
    /// True if one of them is of ACME.
    has_ordered: bool,
}

/// The certificates of a server.
pub(super) struct Certificates {
    context: TlsContext,
    /// `control` reports these, and accepts connections of the admin port with them.
    control: Arc<control::Certificates>,
    challenges: AlpnChallenges,
    state: Mutex<State>,
}

impl Certificates {
    /// Reads the files. Returns `None` if no port has TLS.
    ///
    /// # Errors
    /// When a certificate or its key can't be read or used.
    pub fn new(config: &Config, shards: usize) -> Result<Option<Arc<Self>>, CommandError> {
        let ports = [config.client.listen_tls, config.mqtt.listen_tls, config.admin.listen_tls];
        if ports.iter().all(Option::is_none) {
            return Ok(None);
        }
        let ticket_keys = TicketKeys::new(unix_s())
            .map_err(|error| CommandError::Runtime(format!("TLS can't be set up: {error}")))?;
        let tls_config = TlsConfig::of(config);
        let stamps = tls_config.stamps();
        let (challenges, mut acme) = (AlpnChallenges::default(), AcmeState::default());
        acme.prepare_placeholder(tls_config.acme.as_ref()).map_err(CommandError::Usage)?;
        let context = LoadContext {
            ticket_keys: &ticket_keys,
            challenges: &challenges,
            placeholder: acme.placeholder(),
            in_use: &[],
            has_ordered: false,
        };
        let first = tls_config.load(&context).map_err(CommandError::Usage)?;
        acme.current = first.ordered.clone();
        let control = Arc::new(control::Certificates::default());
        set_control(&control, &first).map_err(CommandError::Usage)?;
        let handshakes_max = settings::handshakes(config);
        let context = TlsContext::new(first.settings, handshakes_max.div_ceil(shards.max(1)));
        let state = State { tls_config, stamps, ticket_keys, error: None, warned_s: 0, acme };
        let state = Mutex::new(state);
        Ok(Some(Arc::new(Certificates { context, control, challenges, state })))
    }

    /// Returns the context with which shards accept connections.
    pub fn context(&self) -> TlsContext {
        self.context.clone()
    }

    /// Returns the certificates that `control` reports, and with which it accepts connections of the admin port.
    pub fn control(&self) -> Arc<control::Certificates> {
        self.control.clone()
    }

    /// Reads the files that this configuration names.
    ///
    /// # Errors
    /// When a certificate or its key can't be read or used. The former ones stay in use.
    pub fn reload(&self, config: &Config) -> Result<(), CommandError> {
        self.read(&mut self.state(), TlsConfig::of(config)).map_err(CommandError::Usage)
    }

    /// Begins to watch the files and to order certificates, on threads that end with the process.
    pub fn watch(self: &Arc<Self>) -> std::io::Result<()> {
        renewal::spawn(self)?;
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
            tracing::warn!(%error, "the key of TLS tickets was not rotated");
        }
        if state.stamps != state.tls_config.stamps() || state.error.is_some() {
            let tls_config = state.tls_config.clone();
            match self.read(&mut state, tls_config) {
                Ok(()) => tracing::info!("the certificates were read again"),
                Err(error) => {
                    if state.error.as_ref() != Some(&error) {
                        tracing::error!(error, "the previous certificates stay in use");
                    }
                    state.error = Some(error);
                }
            }
        }
        if now >= state.warned_s + DAY {
            for certificate in self.control.get() {
                // A placeholder has 0: an order that fails logs its own error.
                if certificate.not_after > 0 && now >= certificate.renew_at {
                    state.warned_s = now;
                    let days = certificate.not_after.saturating_sub(now) / DAY;
                    let name = certificate.name;
                    tracing::warn!(name, days, "a certificate expires soon: renew it");
                }
            }
        }
    }

    fn read(&self, state: &mut State, tls_config: TlsConfig) -> Result<(), String> {
        // A change after this line differs from the stamps, so that the next check reads it.
        let stamps = tls_config.stamps();
        state.acme.prepare_placeholder(tls_config.acme.as_ref())?;
        let in_use: Vec<tls::Certificate> =
            self.context.settings().acceptor.certificates().cloned().collect();
        // A certificate may be missing from a folder that was not in use before.
        let folder =
            |config: &TlsConfig| config.acme.as_ref().map(|acme| acme.order.folder.clone());
        let is_same_folder = folder(&tls_config) == folder(&state.tls_config);
        let context = LoadContext {
            ticket_keys: &state.ticket_keys,
            challenges: &self.challenges,
            placeholder: state.acme.placeholder(),
            in_use: &in_use,
            has_ordered: is_same_folder && state.acme.current.is_some(),
        };
        let loaded = tls_config.load(&context)?;
        set_control(&self.control, &loaded)?;
        self.context.set(loaded.settings);
        state.acme.current = loaded.ordered;
        (state.tls_config, state.stamps, state.error, state.warned_s) =
            (tls_config, stamps, None, 0);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes loaded certificates to `control`, which reports them and accepts connections of the admin port by them.
fn set_control(control: &control::Certificates, loaded: &LoadedCertificates) -> Result<(), String> {
    let acceptor = &loaded.settings.acceptor;
    let config = acceptor.stream_config(&[b"http/1.1"]).map_err(|error| format!("tls: {error}"))?;
    let summary = |(position, certificate): (usize, &tls::Certificate)| {
        let names = certificate.names.iter().map(ToString::to_string);
        let name = names.chain(certificate.common_name.clone()).next().unwrap_or_default();
        if loaded.placeholder == Some(position) {
            return Certificate { name, not_after: 0, renew_at: 0 };
        }
        let not_after = certificate.not_after;
        let seconds = not_after.saturating_sub(certificate.not_before);
        let renew_at = not_after.saturating_sub(WARN_SECONDS.min(seconds / 4));
        Certificate { name, not_after, renew_at }
    };
    let certificates = acceptor.certificates().enumerate().map(summary).collect();
    control.set(certificates, Arc::new(config));
    Ok(())
}

fn unix_s() -> u64 {
    control::unix_us() / 1_000_000
}
