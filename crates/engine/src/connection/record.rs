//! The export of the cold state to another engine.

use std::sync::Arc;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use model::{CloseReason, Encoding};
use protocol::{Protocol, Protocols};

use super::ColdState;
use super::pending_request::{PendingRequestRecord, Subscribing, SubscribingRecord};
use super::poll::PollRecord;
use super::session::{PendingSessionRequestRecord, SessionRecord};
use super::token::PendingTokenRecord;
use crate::core::metrics::Metrics;
use crate::handover::value::ImportError;

/// The cold state of a connection.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct ColdRecord {
    #[n(0)]
    input: ByteVec,
    #[n(1)]
    needs: u32,
    #[n(2)]
    continued: bool,
    #[n(3)]
    paused: bool,
    #[n(4)]
    waits: bool,
    #[n(5)]
    reserved: bool,
    /// The exported state of the protocol in the middle of a frame or message.
    #[n(6)]
    decoder: Option<ByteVec>,
    #[n(7)]
    poll: Option<PollRecord>,
    #[n(8)]
    session: Option<SessionRecord>,
    #[n(9)]
    session_request: Option<PendingSessionRequestRecord>,
    #[n(10)]
    hooks_pending: u32,
    /// The number of the reason.
    #[n(11)]
    closing: Option<u8>,
    /// Since when it has to authenticate, in seconds of the node's clock.
    #[n(12)]
    stranger_since_s: Option<u32>,
    #[n(13)]
    token: Option<PendingTokenRecord>,
    #[n(14)]
    pending: Option<PendingRequestRecord>,
    /// Absent if there is none.
    #[n(15)]
    subscribing: Option<Vec<SubscribingRecord>>,
}

impl ColdRecord {
    /// Returns whether the query of a poll for a piece was pending.
    pub fn reads(&self) -> bool {
        self.poll.as_ref().is_some_and(PollRecord::reads)
    }
}

impl ColdState {
    /// Exports the cold state.
    pub fn export(&self, protocol: &dyn Protocol) -> ColdRecord {
        let ColdState {
            input,
            needs,
            continued,
            // Counted anew, because it depends on how memory is allocated.
            counted: _,
            paused,
            waits,
            stranger_since_s,
            token,
            reserved,
            decoder,
            poll,
            session,
            session_request,
            hooks_pending,
            pending,
            subscribing,
            closing,
        } = self;
        ColdRecord {
            input: input.clone().into(),
            needs: *needs,
            continued: *continued,
            paused: *paused,
            waits: *waits,
            reserved: *reserved,
            decoder: decoder.as_ref().map(|decoder| protocol.export(decoder).into()),
            poll: poll.as_ref().map(|poll| poll.export()),
            session: session.as_ref().map(|session| session.export()),
            session_request: session_request
                .as_ref()
                .map(|session_request| session_request.export()),
            hooks_pending: *hooks_pending,
            closing: closing.map(|close| close as u8),
            stranger_since_s: *stranger_since_s,
            token: token.as_ref().map(|token| token.export()),
            pending: pending.as_ref().map(|pending| pending.export()),
            subscribing: (!subscribing.is_empty())
                .then(|| subscribing.iter().map(Subscribing::export).collect()),
        }
    }

    /// Imports the cold state.
    pub fn import(
        record: ColdRecord,
        protocols: &Protocols,
        encoding: Encoding,
        hash: &dyn Fn(&str) -> u64,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, ImportError> {
        let protocol = protocols.of(encoding);
        let decoder = record.decoder.map(|bytes| {
            let unread = || ImportError::damaged("the state of its protocol can't be read");
            protocol.import(&bytes).map(Box::new).ok_or_else(unread)
        });
        let closing = record.closing.map(|close| {
            let found = CloseReason::ALL.get(usize::from(close)).copied();
            found.ok_or_else(|| ImportError::damaged("unknown close reason"))
        });
        Ok(ColdState {
            input: record.input.into(),
            needs: record.needs,
            continued: record.continued,
            counted: 0,
            paused: record.paused,
            waits: record.waits,
            reserved: record.reserved,
            decoder: decoder.transpose()?,
            poll: record.poll.map(|poll| poll.import(hash)).transpose()?.map(Box::new),
            session: record.session.map(|session| session.import(metrics).into()),
            session_request: record
                .session_request
                .map(|session_request| session_request.import(protocols))
                .transpose()?
                .map(Box::new),
            hooks_pending: record.hooks_pending,
            pending: record.pending.map(|pending| Box::new(pending.import())),
            subscribing: (record.subscribing.into_iter().flatten())
                .map(SubscribingRecord::import)
                .collect(),
            closing: closing.transpose()?,
            stranger_since_s: record.stranger_since_s,
            token: record.token.map(|token| Box::new(token.into())),
        })
    }
}
