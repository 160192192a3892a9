//! The user that a certificate names.

/// The field of a client's certificate that names the user of its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CertificateUser {
    /// No field: a certificate admits its client, and names no user.
    #[default]
    None,
    /// The common name of the subject.
    CommonName,
    /// The first alternative name that is a host.
    Host,
    /// The first that is a mail address.
    Email,
    /// The first that is a URI.
    Uri,
}
