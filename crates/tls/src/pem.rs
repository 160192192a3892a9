//! Certificates and keys in PEM, the format of files (RFC 7468).

use rustls::pki_types::pem::{self, PemObject, SectionKind};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};

/// Why bytes are no usable PEM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    /// There is no certificate.
    #[error(
        "there is no certificate in it: it needs a part that begins with -----BEGIN CERTIFICATE-----"
    )]
    NoCertificate,
    /// There is no private key.
    #[error(
        "there is no private key in it: it needs a part that begins with -----BEGIN PRIVATE KEY----- \
         (or RSA PRIVATE KEY, or EC PRIVATE KEY)"
    )]
    NoKey,
    /// The key is encrypted.
    #[error(
        "the key is encrypted with a pass phrase, which the server does not know: decrypt it \
         (`openssl pkey -in FILE -out PLAIN`), and let only the server read it"
    )]
    Encrypted,
    /// The bytes are DER.
    #[error(
        "this is DER, and PEM is needed: convert it with `openssl x509 -inform DER` or `openssl \
         pkey -inform DER`"
    )]
    Der,
    /// The PEM can't be decoded.
    #[error("this is damaged PEM: {0}")]
    Damaged(String),
}

/// The certificates, in their order; at least one.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let certificates: Vec<_> = sections(pem)?
        .into_iter()
        .filter(|(kind, _)| *kind == SectionKind::Certificate)
        .map(|(_, der)| CertificateDer::from(der))
        .collect();
    if certificates.is_empty() { Err(PemError::NoCertificate) } else { Ok(certificates) }
}

/// The first private key.
pub(crate) fn key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    let has = |words: &str| pem.windows(words.len()).any(|window| window == words.as_bytes());
    // OpenSSL wrote the second form before PKCS #8 (RFC 1421, 4.6.1.1).
    if has("-----BEGIN ENCRYPTED PRIVATE KEY-----") || has("Proc-Type: 4,ENCRYPTED") {
        return Err(PemError::Encrypted);
    }
    let mut keys = sections(pem)?.into_iter().filter_map(|(kind, der)| match kind {
        SectionKind::PrivateKey => Some(PrivatePkcs8KeyDer::from(der).into()),
        SectionKind::RsaPrivateKey => Some(PrivatePkcs1KeyDer::from(der).into()),
        SectionKind::EcPrivateKey => Some(PrivateSec1KeyDer::from(der).into()),
        _ => None,
    });
    keys.next().ok_or(PemError::NoKey)
}

fn sections(pem: &[u8]) -> Result<Vec<(SectionKind, Vec<u8>)>, PemError> {
    // DER begins with a SEQUENCE and its length, which no text begins with.
    if let [0x30, 0x80..=0xff, ..] = pem {
        return Err(PemError::Der);
    }
    let sections: Result<_, pem::Error> = PemObject::pem_slice_iter(pem).collect();
    sections.map_err(|error| {
        PemError::Damaged(match error {
            pem::Error::MissingSectionEnd { .. } => "a part has no -----END line".into(),
            pem::Error::IllegalSectionStart { .. } => "a -----BEGIN line is incomplete".into(),
            pem::Error::Base64Decode(_) => "a part is not Base64".into(),
            other => other.to_string(),
        })
    })
}
