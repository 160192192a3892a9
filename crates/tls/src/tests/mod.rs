//! Handshakes and records against rustls as the client, in memory.

mod challenges;
mod client_certificates;
mod handshake;
mod handshake_errors;
mod identity;
mod records;
mod support;
mod tickets;
