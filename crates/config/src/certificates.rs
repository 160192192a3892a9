//! The keys of a table of `[[tls.certificates]]`, a certificate beside `tls.certificate_file`.

use crate::setting::Kind;
use crate::tables::Absent::Required;
use crate::tables::table_keys;

use Kind::Text;

// A line is: key, type, values, and the effect of a missing key.
table_keys! {
    /// All keys of a table of `[[tls.certificates]]`.
    CERTIFICATE_KEYS;
    /// A certificate for further hosts. A client gets the one that names the host it asks for, and otherwise that of tls.certificate_file.
    CertificateRule;
    /// File with the certificate and those that signed it, in PEM, the server's own first; relative to the configuration file's folder, as key_file is.
    certificate_file: String = Text, Required(r#""/etc/letsencrypt/live/chat.example.com/fullchain.pem""#);
    /// File with the certificate's private key, in PEM.
    key_file: String = Text, Required(r#""/etc/letsencrypt/live/chat.example.com/privkey.pem""#);
}
