//! Packets, as they stand in the bytes that were received (MQTT 5.0 and 3.1.1, sections 2 and 3). Nothing is
//! copied.

use model::Qos;
use model::filter::Filter;

use super::cursor::Cursor;
use super::property::Properties;
use super::{MqttError, ReasonCode};

/// The versions of the protocol that differ in their packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 3.1 and 3.1.1.
    V3,
    /// 5.0.
    V5,
}

/// Who sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A client does.
    Client,
    /// A server does.
    Server,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A client wants to come in.
    Connect(Connect<'a>),
    /// It may, or not.
    Connack(Connack<'a>),
    /// A message.
    Publish(Publish<'a>),
    /// A message with QoS 1 has come.
    Puback(Confirm<'a>),
    /// A message with QoS 2 has come.
    Pubrec(Confirm<'a>),
    /// It may be forgotten that it has come.
    Pubrel(Confirm<'a>),
    /// It was forgotten.
    Pubcomp(Confirm<'a>),
    /// A client wants messages.
    Subscribe(Subscribe<'a>),
    /// It gets them, or not.
    Suback(Results<'a>),
    /// A client wants them no longer.
    Unsubscribe(Unsubscribe<'a>),
    /// It gets them no longer.
    Unsuback(Results<'a>),
    /// Is anybody there?
    Pingreq,
    /// Yes.
    Pingresp,
    /// The end.
    Disconnect(Disconnect<'a>),
    /// A step of an authentication.
    Auth(Disconnect<'a>),
}

/// CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// The version.
    pub version: Version,
    /// It is 3.1, whose clients have an identifier.
    pub is_3_1: bool,
    /// A new session is wanted; in MQTT 3 one that ends with the connection.
    pub clean: bool,
    /// In seconds.
    pub keep_alive_s: u16,
    /// Of 5.0.
    pub properties: Properties<'a>,
    /// May be empty.
    pub client: &'a str,
    /// What is published when the client is gone.
    pub will: Option<Will<'a>>,
    /// The user name.
    pub user: Option<&'a str>,
    /// The password.
    pub password: Option<&'a [u8]>,
}

/// The will in CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Will<'a> {
    /// How surely it is published.
    pub qos: Qos,
    /// It is to be retained.
    pub retain: bool,
    /// Of 5.0.
    pub properties: Properties<'a>,
    /// The topic.
    pub topic: &'a str,
    /// The message.
    pub payload: &'a [u8],
}

/// CONNACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connack<'a> {
    /// The server has the client's session.
    pub session_present: bool,
    /// The reason code, or the return code of MQTT 3.
    pub code: u8,
    /// Of 5.0.
    pub properties: Properties<'a>,
}

/// PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// It may have been sent before.
    pub dup: bool,
    /// How surely.
    pub qos: Qos,
    /// It is to be retained, or was.
    pub retain: bool,
    /// Empty where an alias stands for it.
    pub topic: &'a str,
    /// 0 with QoS 0.
    pub id: u16,
    /// Of 5.0.
    pub properties: Properties<'a>,
    /// The message.
    pub payload: &'a [u8],
}

/// PUBACK, PUBREC, PUBREL and PUBCOMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm<'a> {
    /// The packet identifier.
    pub id: u16,
    /// Of 5.0.
    pub reason: ReasonCode,
    /// Of 5.0.
    pub properties: Properties<'a>,
}

/// SUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// The packet identifier.
    pub id: u16,
    /// Of 5.0.
    pub properties: Properties<'a>,
    pub(super) version: Version,
    /// Valid.
    pub(super) filters: &'a [u8],
}

/// One filter of SUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription<'a> {
    /// The filter.
    pub filter: Filter<'a>,
    /// At the most so surely.
    pub qos: Qos,
    /// Not what the client itself publishes.
    pub no_local: bool,
    /// Messages say whether they were published to be retained.
    pub retain_as_published: bool,
    /// When retained messages are sent: 0 always, 1 for a new subscription, 2 never.
    pub retain_handling: u8,
}

/// SUBACK and UNSUBACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Results<'a> {
    /// The packet identifier.
    pub id: u16,
    /// Of 5.0.
    pub properties: Properties<'a>,
    /// A code for each filter; none in UNSUBACK of MQTT 3.
    pub codes: &'a [u8],
}

/// UNSUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    /// The packet identifier.
    pub id: u16,
    /// Of 5.0.
    pub properties: Properties<'a>,
    /// Valid.
    pub(super) filters: &'a [u8],
}

/// DISCONNECT and AUTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// Of 5.0.
    pub reason: ReasonCode,
    /// Of 5.0.
    pub properties: Properties<'a>,
}

impl<'a> Subscribe<'a> {
    /// The filters, in order.
    pub fn subscriptions(&self) -> impl Iterator<Item = Subscription<'a>> + use<'a> {
        let (mut left, version) = (Cursor(self.filters), self.version);
        // They were read before.
        std::iter::from_fn(move || {
            if left.is_empty() { None } else { subscription(&mut left, version).ok() }
        })
    }
}

impl<'a> Unsubscribe<'a> {
    /// The filters as they are written, in order.
    pub fn filters(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut left = Cursor(self.filters);
        std::iter::from_fn(move || if left.is_empty() { None } else { left.text().ok() })
    }
}

/// Reads one filter of SUBSCRIBE.
pub(super) fn subscription<'a>(
    cursor: &mut Cursor<'a>,
    version: Version,
) -> Result<Subscription<'a>, MqttError> {
    let filter = Filter::parse(cursor.text()?).map_err(MqttError::Filter)?;
    let options = cursor.byte()?;
    let reserved = match version {
        Version::V3 => 0xfc,
        Version::V5 => 0xc0,
    };
    if options & reserved != 0 {
        return Err(MqttError::Options);
    }
    let qos = Qos::from_number(options & 3).ok_or(MqttError::SubscriptionQos)?;
    let retain_handling = options >> 4 & 3;
    if retain_handling == 3 {
        return Err(MqttError::RetainHandling);
    }
    let (no_local, retain_as_published) = (options & 4 != 0, options & 8 != 0);
    if no_local && filter.group.is_some() {
        return Err(MqttError::SharedNoLocal);
    }
    Ok(Subscription { filter, qos, no_local, retain_as_published, retain_handling })
}
