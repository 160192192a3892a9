//! The content of a connection's record.

use minicbor::{Decode, Encode};
use model::Name;

use crate::connection::ColdRecord;
use crate::connection::peers::ProxiedRecord;
use crate::delivery::conflation::ConflatedRecord;
use crate::handover::message_key::MessageKey;
use crate::handover::value::{Text, Who};
use crate::limits::rates::RatesRecord;
use crate::mqtt::MqttRecord;
use crate::phoenix::joins::JoinRecord;
use crate::presence::entries::EntryRecord;
use crate::recovery::RecoveryRecord;
use crate::recovery::pages::PageRecord;

/// The whole state of a connection: the only list of the state that the parts have by its slot. A part with new state
/// adds a field. The compiler then leads to `Engine::record`, `Engine::import_parts` and [`Record::is_forgotten`], and
/// that check fails in tests until `Engine::forget` forgets the state as well.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct Record {
    /// The protocol's name.
    #[n(0)]
    pub protocol: Text<Name>,
    #[n(1)]
    pub encoding: u8,
    #[n(2)]
    pub slot: u32,
    #[n(3)]
    pub serial: u32,
    /// Seconds of the node's clock.
    #[n(4)]
    pub opened_s: u32,
    /// Seconds of the node's clock, wrapping around.
    #[n(5)]
    pub last_received_s: u16,
    /// The number of the phase.
    #[n(6)]
    pub phase: u8,
    /// The bits of the flags.
    #[n(7)]
    pub flags: u8,
    #[n(8)]
    pub cold: Option<ColdRecord>,
    /// The connection's topics, in order; `None` for a connection that is not in the hub.
    #[n(9)]
    pub topics: Option<Vec<Text<Name>>>,
    #[cbor(n(10), default)]
    pub joins: Vec<JoinRecord>,
    #[cbor(n(11), default)]
    pub presence: Vec<EntryRecord>,
    #[cbor(n(12), default)]
    pub snapshots_due: Vec<Text<Name>>,
    #[cbor(n(13), default)]
    pub explicit: Vec<Text<Name>>,
    #[n(14)]
    pub recovery: Option<RecoveryRecord>,
    #[n(15)]
    pub rates: Option<RatesRecord>,
    #[n(16)]
    pub pages: Option<Vec<PageRecord>>,
    /// The content of its token, without the users.
    #[n(17)]
    pub credential: Option<Who>,
    #[n(18)]
    pub proxied: Option<ProxiedRecord>,
    #[n(19)]
    pub conflated: Option<Vec<ConflatedRecord>>,
    /// `Some(true)` when the client got the warning that its token expires, otherwise `None`.
    #[n(20)]
    pub warned: Option<bool>,
    /// The state of an MQTT client.
    #[n(21)]
    pub mqtt: Option<MqttRecord>,
    /// Messages that one of its lists has delivered and others still owe it.
    #[n(22)]
    pub partly_delivered: Option<Vec<MessageKey>>,
    /// The user of its certificate.
    #[n(23)]
    pub certificate_user: Option<Text<Name>>,
}

impl Record {
    /// True when no part but the table has any state of the connection.
    pub fn is_forgotten(&self) -> bool {
        let Record {
            protocol: _,
            encoding: _,
            slot: _,
            serial: _,
            opened_s: _,
            last_received_s: _,
            phase: _,
            flags: _,
            cold: _,
            topics,
            joins,
            presence,
            snapshots_due,
            explicit,
            recovery,
            rates,
            pages,
            credential,
            proxied,
            conflated,
            warned,
            mqtt,
            partly_delivered,
            certificate_user,
        } = self;
        topics.is_none()
            && joins.is_empty()
            && presence.is_empty()
            && snapshots_due.is_empty()
            && explicit.is_empty()
            && recovery.is_none()
            && rates.is_none()
            && pages.is_none()
            && credential.is_none()
            && proxied.is_none()
            && conflated.is_none()
            && warned.is_none()
            && mqtt.is_none()
            && partly_delivered.is_none()
            && certificate_user.is_none()
    }
}
