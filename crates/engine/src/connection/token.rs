//! A token of a connection that waits for keys.

use minicbor::{Decode, Encode};
use protocol::request::TokenPurpose;

use crate::core::reply_target::ReplyTarget;
use crate::handover::value::ReplyTargetRecord;

/// A token that waits for the keys of its issuer.
pub(crate) struct PendingToken {
    pub token: Box<str>,
    pub purpose: TokenPurpose,
    pub reply: ReplyTarget,
}

/// The export to another engine.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct PendingTokenRecord {
    #[n(0)]
    token: String,
    #[n(1)]
    refreshes: bool,
    #[n(2)]
    reply: ReplyTargetRecord,
}

impl PendingToken {
    /// Exports the token.
    pub fn export(&self) -> PendingTokenRecord {
        let PendingToken { token, purpose, reply } = self;
        let refreshes = *purpose == TokenPurpose::Refresh;
        PendingTokenRecord { token: token.to_string(), refreshes, reply: reply.into() }
    }
}

impl From<PendingTokenRecord> for PendingToken {
    fn from(record: PendingTokenRecord) -> Self {
        let PendingTokenRecord { token, refreshes, reply } = record;
        let purpose = if refreshes { TokenPurpose::Refresh } else { TokenPurpose::Connect };
        PendingToken { token: token.into(), purpose, reply: reply.into() }
    }
}
