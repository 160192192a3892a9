//! Certificates from an authority, by ACME (RFC 8555) with the challenge TLS-ALPN-01 (RFC 8737): the authority
//! connects to port 443 of each host and finds there a certificate that only the owner of the account can make.
//!
//! - [`Schedule`]: when a certificate is ordered, and how long a failed order waits. It knows no clock and no
//!   files.
//! - [`Folder`]: the files that outlive the process: the account with its key, the certificate with its key, and
//!   the schedule.
//! - [`obtain`]: orders a certificate and stores it.
//! - [`self_signed`]: the certificate that a server uses until an authority has signed one.
//!
//! The caller has the port and the threads. It passes the replies to challenges on to handshakes ([`Challenges`]).

#![forbid(unsafe_code)]

mod certificate;
mod folder;
mod http;
mod order;
mod schedule;

pub use certificate::{CertificateError, self_signed};
pub use folder::{Folder, FolderError, OrderState};
pub use order::{AcmeError, Challenges, EabKey, Order, obtain};
pub use schedule::{Schedule, Validity};
