//! Tokens of clients against a real server: where they come from, what they are good for, how they end; on
//! every transport.

#[path = "tokens/grants.rs"]
mod grants;
#[path = "tokens/kit.rs"]
mod kit;
#[path = "tokens/sources.rs"]
mod sources;
mod support;
