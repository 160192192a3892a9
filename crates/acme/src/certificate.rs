//! Certificates that this server signs itself.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use zeroize::Zeroizing;

/// A certificate can't be made, for a host is no name that certificates have.
#[derive(Debug, thiserror::Error)]
#[error("a certificate for {hosts}: {error}")]
pub struct CertificateError {
    hosts: String,
    error: rcgen::Error,
}

/// A certificate for these hosts and its key, in one PEM, signed by itself: what a server shows until it has one that
/// clients trust.
///
/// # Errors
/// When a host is no DNS name.
pub fn self_signed(hosts: &[String]) -> Result<Zeroizing<String>, CertificateError> {
    signed(hosts, None)
}

/// The reply to a challenge: a certificate for this host with the digest of the key authorization (RFC 8737, 3).
pub(crate) fn of_challenge(
    host: &str,
    digest: &[u8],
) -> Result<Zeroizing<String>, CertificateError> {
    signed(&[host.to_owned()], Some(digest))
}

fn signed(
    hosts: &[String],
    challenge: Option<&[u8]>,
) -> Result<Zeroizing<String>, CertificateError> {
    let make = || {
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name = DistinguishedName::new();
        if let Some(digest) = challenge {
            params.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
        }
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        Ok(Zeroizing::new(pem("CERTIFICATE", certificate.der()) + &key_pem(&key)))
    };
    make().map_err(|error| CertificateError { hosts: hosts.join(", "), error })
}

/// A new key in PEM, and a request for a certificate for these hosts in DER.
pub(crate) fn request(hosts: &[String]) -> Result<(Zeroizing<String>, Vec<u8>), CertificateError> {
    let make = || {
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name = DistinguishedName::new();
        let key = KeyPair::generate()?;
        let request = params.serialize_request(&key)?;
        Ok((key_pem(&key), request.der().to_vec()))
    };
    make().map_err(|error| CertificateError { hosts: hosts.join(", "), error })
}

fn key_pem(key: &KeyPair) -> Zeroizing<String> {
    Zeroizing::new(pem("PRIVATE KEY", &Zeroizing::new(key.serialize_der())))
}

/// DER as text (RFC 7468).
fn pem(label: &str, der: &[u8]) -> String {
    let text = Zeroizing::new(STANDARD.encode(der));
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().copied().map(char::from));
        pem.push('\n');
    }
    pem + &format!("-----END {label}-----\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pem_has_a_certificate_and_its_key() {
        let pem = self_signed(&["a.example".into(), "b.example".into()]).unwrap();
        assert!(pem.contains("BEGIN CERTIFICATE") && pem.contains("BEGIN PRIVATE KEY"));
        let error = self_signed(&["ä".into()]).unwrap_err();
        assert!(error.to_string().starts_with("a certificate for ä: "), "{error}");
    }
}
