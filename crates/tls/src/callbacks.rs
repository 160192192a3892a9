//! The callbacks of rustls during a handshake.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::KeyLog;
use rustls::pki_types::UnixTime;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use zeroize::Zeroizing;

use crate::identity::Identities;

/// The callbacks of one handshake: its clock, the choice of its certificate, and the recorder of its secrets. Only the
/// handshake reads what they record.
pub(crate) struct Callbacks {
    now: UnixTime,
    identities: Arc<Identities>,
    recorded: Mutex<Recorded>,
}

/// Values that rustls reports and has no getter for.
#[derive(Default)]
pub(crate) struct Recorded {
    /// The host that the client named.
    pub(crate) server_name: Option<String>,
    /// The first traffic secrets of TLS 1.3 (RFC 8446, 7.1). Updated keys are derived from them.
    pub(crate) client_secret: Zeroizing<Vec<u8>>,
    pub(crate) server_secret: Zeroizing<Vec<u8>>,
}

impl Callbacks {
    pub(crate) fn new(now: u64, identities: Arc<Identities>) -> Self {
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        Callbacks { now, identities, recorded: Mutex::default() }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now.as_secs()
    }

    /// Moves the recorded values out.
    pub(crate) fn take_recorded(&self) -> Recorded {
        std::mem::take(&mut *self.recorded())
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Callbacks {
    /// Prints no secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl TimeProvider for Callbacks {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.now)
    }
}

impl ResolvesServerCert for Callbacks {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.recorded().server_name = hello.server_name().map(str::to_owned);
        self.identities.choose_certificate(&hello)
    }
}

const CLIENT_SECRET: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER_SECRET: &str = "SERVER_TRAFFIC_SECRET_0";

impl KeyLog for Callbacks {
    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT_SECRET | SERVER_SECRET)
    }

    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let secret = Zeroizing::new(secret.to_vec());
        match label {
            CLIENT_SECRET => self.recorded().client_secret = secret,
            SERVER_SECRET => self.recorded().server_secret = secret,
            _ => {}
        }
    }
}
