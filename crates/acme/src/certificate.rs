//! Certificates that this server signs itself.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use zeroize::Zeroizing;

/// No certificate can be made: one of the hosts is no DNS name.
#[derive(Debug, thiserror::Error)]
#[error("a certificate for {hosts}: {error}")]
pub struct CertificateError {
    hosts: String,
    error: rcgen::Error,
}

/// Makes a self-signed certificate for these hosts, and returns it with its key in one PEM. A server uses it until an
/// authority has signed another one.
///
/// # Errors
/// When a host is no DNS name.
pub fn self_signed(hosts: &[String]) -> Result<Zeroizing<String>, CertificateError> {
    sign(hosts, None)
}

/// Makes the reply to a challenge: a certificate for this host with the digest of the key authorization (RFC 8737, 3).
pub(crate) fn challenge_reply(
    host: &str,
    digest: &[u8],
) -> Result<Zeroizing<String>, CertificateError> {
    sign(&[host.to_owned()], Some(digest))
}

fn sign(hosts: &[String], challenge: Option<&[u8]>) -> Result<Zeroizing<String>, CertificateError> {
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

/// Makes a new key in PEM, and a request for a certificate for these hosts in DER (PKCS #10).
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

/// Encodes DER as text (RFC 7468).
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
