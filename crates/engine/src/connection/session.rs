//! The state of a Phoenix long-poll session, and of a request that waits for one.

use std::net::IpAddr;
use std::sync::Arc;

use auth::Principal;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use model::{ConnectionId, Encoding, Name};

use crate::core::metrics::Metrics;
use crate::delivery::outbox::{Chunk, Outbox, Piece};
use crate::handover::value::{ImportError, RespondRecord, Text, Who};
use protocol::request::Respond;
use protocol::{Delivery, Protocols};

/// A session. Its messages wait for the next poll.
#[derive(Default)]
pub(crate) struct Session {
    pub outbox: Outbox,
    pub waiter: Option<Waiter>,
    /// A client has come back with its token.
    pub polled: bool,
    /// The address for which it counts, while sessions of an address are limited.
    pub address: Option<IpAddr>,
    /// The address for which the session counts as a connection, while connections of an address are limited.
    pub peer: Option<IpAddr>,
}

/// A poll that waits for messages.
pub(crate) struct Waiter {
    pub request: ConnectionId,
    /// In seconds of the node's clock.
    pub deadline_s: u32,
}

/// A long-poll request that waits for the reply of its session.
pub(crate) struct PendingSessionRequest {
    pub session: ConnectionId,
    pub respond: Respond,
    /// A poll whose session has ended gets a new one, if its principal may have one.
    pub anew: Option<(Encoding, Option<Principal>)>,
    /// The topics of a new session.
    pub topics: Vec<Name>,
    /// True for a new session, while the engine waits for the driver to report the peer's address.
    pub opens: bool,
}

/// The export of a session to another engine.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct SessionRecord {
    /// The pieces that wait for the next poll, with the number of messages in each.
    #[n(0)]
    outbox: Vec<(ByteVec, u32)>,
    /// The request that waits, and until when, in seconds of the node's clock.
    #[n(1)]
    waiter: Option<(Text<ConnectionId>, u32)>,
    #[n(2)]
    polled: bool,
    #[n(3)]
    address: Option<Text<IpAddr>>,
    #[n(4)]
    peer: Option<Text<IpAddr>>,
}

/// The export to another engine.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct PendingSessionRequestRecord {
    #[n(0)]
    session: Text<ConnectionId>,
    #[n(1)]
    respond: RespondRecord,
    #[n(2)]
    anew: Option<(u8, Option<Who>)>,
    #[n(3)]
    opens: bool,
    /// Absent if there are none.
    #[n(4)]
    topics: Option<Vec<Text<Name>>>,
}

impl Session {
    /// Exports the session.
    pub fn export(&self) -> SessionRecord {
        let Session { outbox, waiter, polled, address, peer } = self;
        SessionRecord {
            outbox: outbox
                .export()
                .map(|(bytes, messages)| (bytes.to_vec().into(), messages))
                .collect(),
            waiter: waiter.as_ref().map(|it| (Text(it.request), it.deadline_s)),
            polled: *polled,
            address: address.map(Text),
            peer: peer.map(Text),
        }
    }
}

impl SessionRecord {
    /// Imports the session.
    pub fn import(self, metrics: &Arc<Metrics>) -> Session {
        let mut outbox = Outbox::default();
        for (bytes, messages) in self.outbox {
            let piece = Piece::new(Vec::from(bytes).into(), metrics);
            outbox.push(Chunk::new(piece, messages), 0);
        }
        let waiter =
            self.waiter.map(|(request, deadline_s)| Waiter { request: request.0, deadline_s });
        let (address, peer) = (self.address.map(|it| it.0), self.peer.map(|it| it.0));
        Session { outbox, waiter, polled: self.polled, address, peer }
    }
}

impl PendingSessionRequest {
    /// Exports the request.
    pub fn export(&self) -> PendingSessionRequestRecord {
        let PendingSessionRequest { session, respond, anew, topics, opens } = self;
        PendingSessionRequestRecord {
            session: Text(*session),
            respond: respond.into(),
            anew: anew
                .as_ref()
                .map(|(encoding, principal)| (encoding.0, principal.as_ref().map(Who::from))),
            opens: *opens,
            topics: (!topics.is_empty()).then(|| Text::all(topics)),
        }
    }
}

impl PendingSessionRequestRecord {
    /// Imports the request.
    pub fn import(self, protocols: &Protocols) -> Result<PendingSessionRequest, ImportError> {
        let anew = self.anew.map(|(number, who)| {
            let (encoding, protocol) = (Encoding(number), protocols.of(Encoding(number)));
            match protocol.encoding() == encoding && protocol.delivery() == Delivery::Gathered {
                true => Ok((encoding, who.map(Principal::from))),
                false => Err(ImportError::damaged(
                    "it requests a session for a protocol without sessions",
                )),
            }
        });
        Ok(PendingSessionRequest {
            session: self.session.0,
            respond: self.respond.into(),
            anew: anew.transpose()?,
            topics: self.topics.map(Text::values).unwrap_or_default(),
            opens: self.opens,
        })
    }
}
