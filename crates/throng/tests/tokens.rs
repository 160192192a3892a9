//! Tokens of clients against a real server: where they come from, what they are good for, how they end; on
//! every transport.

mod application;
#[path = "tokens/attacks.rs"]
mod attacks;
#[path = "tokens/clients.rs"]
mod clients;
#[path = "tokens/evasion.rs"]
mod evasion;
#[path = "tokens/expiry.rs"]
mod expiry;
#[path = "tokens/grants.rs"]
mod grants;
#[path = "tokens/jwks.rs"]
mod jwks;
#[path = "tokens/killed.rs"]
mod killed;
#[path = "tokens/kit.rs"]
mod kit;
#[path = "tokens/reload.rs"]
mod reload;
#[path = "tokens/revoked.rs"]
mod revoked;
#[path = "tokens/secrecy.rs"]
mod secrecy;
#[path = "tokens/sources.rs"]
mod sources;
mod support;
