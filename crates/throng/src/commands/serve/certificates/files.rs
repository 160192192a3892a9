//! The files that the configuration names, and the certificates in them.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use auth::CertificateUser;
use config::{Config, TlsVersion};
use shard::TlsSettings;
use tls::{Acceptor, ClientCertificates, Identity, Version};

use super::renewal::AcmeConfig;
use super::{DAY, FILE_BYTES_MAX, LoadContext, unix_s};

/// The table with the certificate for clients that name none of the hosts.
const FIRST: &str = "tls";

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
    /// The configuration's table that names them.
    setting: String,
}

/// The settings of TLS.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TlsConfig {
    pairs: Vec<CertificateFiles>,
    version_min: Version,
    /// The authorities of clients' certificates; `None` if the server requests none.
    client_ca: Option<PathBuf>,
    client_certificates: config::ClientCertificates,
    certificate_user: CertificateUser,
    /// The certificate that the server orders itself; `None` if it orders none.
    pub(super) acme: Option<AcmeConfig>,
}

/// Certificates that were read.
pub(super) struct LoadedCertificates {
    pub settings: TlsSettings,
    /// The certificate of ACME; `None` if no authority has signed one yet.
    pub ordered: Option<tls::Certificate>,
    /// The position of the placeholder, which the server has signed itself, among all certificates.
    pub placeholder: Option<usize>,
}

/// When a file was changed, and its size in bytes; `None` if it does not exist.
pub(super) type Stamp = Option<(SystemTime, u64)>;

impl TlsConfig {
    pub(super) fn of(config: &Config) -> Self {
        let has_first = !config.tls.certificate_file.is_empty();
        let first = has_first.then(|| CertificateFiles {
            certificate: PathBuf::from(&config.tls.certificate_file),
            key: PathBuf::from(&config.tls.key_file),
            setting: FIRST.into(),
        });
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
            pairs: first.into_iter().chain(more).collect(),
            version_min,
            client_ca: Some(PathBuf::from(&tls.client_ca_file)).filter(|it| *it != PathBuf::new()),
            client_certificates: tls.client_certificates,
            certificate_user: tls.client_user,
            acme: AcmeConfig::of(config),
        }
    }

    pub(super) fn stamps(&self) -> Vec<Stamp> {
        let ordered = self.acme.as_ref().map(|acme| acme.order.folder.certificate_file());
        let files = self.pairs.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
        let files = files.chain(&self.client_ca).chain(&ordered);
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

    /// Reads the files, and returns how shards accept connections from now on.
    pub(super) fn load(&self, context: &LoadContext<'_>) -> Result<LoadedCertificates, String> {
        let mut identities = Vec::with_capacity(self.pairs.len() + 1);
        for pair in &self.pairs {
            let identity = pair.read()?;
            pair.check_time(identity.certificate(), context.in_use)?;
            identities.push(identity);
        }
        let (mut ordered, mut placeholder) = (None, None);
        if let Some(acme) = &self.acme {
            // The certificate of ACME stands after that of `tls.certificate_file`, before those of further hosts.
            let has_first = self.pairs.first().is_some_and(|pair| pair.setting == FIRST);
            let position = usize::from(has_first);
            let identity = match acme.stored(context)? {
                Some(identity) => {
                    ordered = Some(identity.certificate().clone());
                    identity
                }
                None => {
                    placeholder = Some(position);
                    acme.placeholder(context)?
                }
            };
            identities.insert(position, identity);
        }
        let settings = tls::Settings {
            identities,
            version_min: self.version_min,
            client_certificates: self.client_certificates()?,
            ticket_keys: context.ticket_keys.clone(),
            challenges: context.challenges.clone(),
        };
        let acceptor = Acceptor::new(settings).map_err(|error| format!("tls: {error}"))?;
        let settings = TlsSettings { acceptor, certificate_user: self.certificate_user };
        Ok(LoadedCertificates { settings, ordered, placeholder })
    }
}

impl CertificateFiles {
    fn read(&self) -> Result<Identity, String> {
        let CertificateFiles { certificate, key, setting } = self;
        let read = |field: &str, path: &Path| {
            let text = files::read_text(path, FILE_BYTES_MAX);
            text.map_err(|error| format!("{setting}.{field}: {error}"))
        };
        let chain = read("certificate_file", certificate)?;
        let key_text = zeroize::Zeroizing::new(read("key_file", key)?);
        let identity = Identity::from_pem(chain.as_bytes(), key_text.as_bytes());
        identity.map_err(|error| {
            let (certificate, key) = (certificate.display(), key.display());
            format!("{setting}: {certificate} and {key}: {error}")
        })
    }

    /// Rejects a certificate that has expired, unless the server uses it already.
    fn check_time(
        &self,
        certificate: &tls::Certificate,
        in_use: &[tls::Certificate],
    ) -> Result<(), String> {
        let now = unix_s();
        if !certificate.is_expired(now) || in_use.contains(certificate) {
            return Ok(());
        }
        let path = self.certificate.display();
        let days = (now - certificate.not_after) / DAY;
        Err(format!(
            "{}.certificate_file: {path}: the certificate has expired, {days} days ago: renew it",
            self.setting
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_certificate_is_rejected_unless_it_is_in_use() {
        let mut params = rcgen::CertificateParams::new(vec!["a.example".into()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let pem = |label: &str, der: &[u8]| {
            use base64::Engine;
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
        };
        let pem = pem("CERTIFICATE", certificate.der()) + &pem("PRIVATE KEY", &key.serialize_der());
        let identity = Identity::from_pem(pem.as_bytes(), pem.as_bytes()).unwrap();
        let files = CertificateFiles {
            certificate: "a.pem".into(),
            key: "a.key".into(),
            setting: FIRST.into(),
        };
        let certificate = identity.certificate();
        let error = files.check_time(certificate, &[]).unwrap_err();
        assert!(error.starts_with("tls.certificate_file: a.pem: the certificate has expired, "));
        files.check_time(certificate, std::slice::from_ref(certificate)).unwrap();
    }
}
