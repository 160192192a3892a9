//! Tokens of clients against a real server: their sources, their grants, and their end, on every transport.

mod attacks;
mod clients;
mod evasion;
mod expiry;
mod filters;
mod grants;
mod jwks;
mod killed;
mod reload;
mod revoked;
mod secrecy;
mod sources;
pub(crate) mod support;
