//! The contents of a certificate (RFC 5280).

use std::fmt;
use std::net::IpAddr;

use aws_lc_rs::digest::{SHA256, digest};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The statements of a certificate about its owner. They are true only if an authority that the reader trusts has
/// signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The first common name of the subject.
    pub common_name: Option<String>,
    /// The alternative names of the subject, in their order. Kinds that [`Name`] does not have are left out.
    pub names: Vec<Name>,
    /// SHA-256 of the DER, as `openssl x509 -fingerprint -sha256` prints it.
    pub fingerprint: [u8; 32],
    /// When it becomes valid, in seconds since 1970.
    pub not_before: u64,
    /// The last second in which it is valid, since 1970.
    pub not_after: u64,
}

/// An alternative name. A URI that looks like a host is still a URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// A host in lower case, possibly with a `*` as its first label.
    Host(String),
    /// An IP address.
    Address(IpAddr),
    /// A mail address.
    Email(String),
    /// A URI, such as one of SPIFFE.
    Uri(String),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Host(text) | Name::Email(text) | Name::Uri(text) => f.write_str(text),
            Name::Address(address) => address.fmt(f),
        }
    }
}

impl Certificate {
    /// Parses DER; `None` if it is no certificate.
    pub(crate) fn parse(der: &[u8]) -> Option<Self> {
        let (rest, parsed) = X509Certificate::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let common_name = parsed.subject().iter_common_name().next();
        let names = match parsed.subject_alternative_name() {
            Ok(Some(names)) => names.value.general_names.iter().filter_map(name).collect(),
            Ok(None) => Vec::new(),
            Err(_) => return None,
        };
        let validity = parsed.validity();
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest(&SHA256, der).as_ref());
        Some(Certificate {
            common_name: common_name.and_then(|name| name.as_str().ok()).map(str::to_owned),
            names,
            fingerprint,
            not_before: u64::try_from(validity.not_before.timestamp()).unwrap_or(0),
            not_after: u64::try_from(validity.not_after.timestamp()).unwrap_or(0),
        })
    }

    /// The hosts among the alternative names.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter_map(|name| match name {
            Name::Host(host) => Some(host.as_str()),
            Name::Address(_) | Name::Email(_) | Name::Uri(_) => None,
        })
    }

    /// Returns true if it has expired at this time, in seconds since 1970.
    pub fn is_expired(&self, now: u64) -> bool {
        now > self.not_after
    }
}

fn name(name: &GeneralName) -> Option<Name> {
    match name {
        GeneralName::DNSName(host) => Some(Name::Host(host.to_ascii_lowercase())),
        GeneralName::RFC822Name(mailbox) => Some(Name::Email((*mailbox).to_owned())),
        GeneralName::URI(uri) => Some(Name::Uri((*uri).to_owned())),
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok().map(Name::Address)
        }
        _ => None,
    }
}
