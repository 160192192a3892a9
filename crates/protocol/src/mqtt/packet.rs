//! Packets that borrow from the received bytes (MQTT 5.0 and 3.1.1, sections 2 and 3).

use model::Qos;
use model::filter::Filter;

use super::cursor::Cursor;
use super::property::Properties;
use super::{MqttError, ReasonCode};

/// Versions of the protocol with different packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 3.1 and 3.1.1.
    V3,
    /// 5.0.
    V5,
}

/// The sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A client.
    Client,
    /// A server.
    Server,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A client connects.
    Connect(Connect<'a>),
    /// The server accepts or rejects it.
    Connack(Connack<'a>),
    /// A message.
    Publish(Publish<'a>),
    /// Confirms a message of QoS 1.
    Puback(Confirm<'a>),
    /// Confirms a message of QoS 2.
    Pubrec(Confirm<'a>),
    /// The sender of a QoS 2 message has its PUBREC.
    Pubrel(Confirm<'a>),
    /// The receiver has discarded the packet identifier.
    Pubcomp(Confirm<'a>),
    /// A client subscribes.
    Subscribe(Subscribe<'a>),
    /// The server accepts or rejects each subscription.
    Suback(Results<'a>),
    /// A client unsubscribes.
    Unsubscribe(Unsubscribe<'a>),
    /// The server confirms that.
    Unsuback(Results<'a>),
    /// A client checks that the server is alive.
    Pingreq,
    /// The server confirms that.
    Pingresp,
    /// The connection ends.
    Disconnect(Disconnect<'a>),
    /// A step of an authentication.
    Auth(Disconnect<'a>),
}

/// CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// The version.
    pub version: Version,
    /// The version is 3.1, in which the client identifier is required.
    pub is_3_1: bool,
    /// The client requests a new session; in MQTT 3 one that ends with the connection.
    pub clean: bool,
    /// The keep-alive, in seconds.
    pub keep_alive_s: u16,
    /// Properties of 5.0.
    pub properties: Properties<'a>,
    /// The client identifier; may be empty.
    pub client: &'a str,
    /// The will, which the server publishes when the client is gone.
    pub will: Option<Will<'a>>,
    /// The user name.
    pub user: Option<&'a str>,
    /// The password.
    pub password: Option<&'a [u8]>,
}

/// The will in CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Will<'a> {
    /// The QoS of the message.
    pub qos: Qos,
    /// The message is to be retained.
    pub retain: bool,
    /// Properties of 5.0.
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
    /// Properties of 5.0.
    pub properties: Properties<'a>,
}

/// PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    /// The sender may have sent it before.
    pub dup: bool,
    /// The QoS.
    pub qos: Qos,
    /// The message is to be retained, or was.
    pub retain: bool,
    /// The topic; empty if an alias stands for it.
    pub topic: &'a str,
    /// The packet identifier; 0 with QoS 0.
    pub id: u16,
    /// Properties of 5.0.
    pub properties: Properties<'a>,
    /// The message.
    pub payload: &'a [u8],
}

/// PUBACK, PUBREC, PUBREL and PUBCOMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm<'a> {
    /// The packet identifier.
    pub id: u16,
    /// The reason code of 5.0.
    pub reason: ReasonCode,
    /// Properties of 5.0.
    pub properties: Properties<'a>,
}

/// SUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    /// The packet identifier.
    pub id: u16,
    /// Properties of 5.0.
    pub properties: Properties<'a>,
    pub(super) version: Version,
    /// Valid filters with options, as bytes.
    pub(super) filters: &'a [u8],
}

/// One filter of SUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription<'a> {
    /// The filter.
    pub filter: Filter<'a>,
    /// The maximum QoS.
    pub qos: Qos,
    /// The client gets no messages of its own.
    pub no_local: bool,
    /// Messages retain the RETAIN flag of their publisher.
    pub retain_as_published: bool,
    /// When retained messages are sent: 0 always, 1 for a new subscription, 2 never.
    pub retain_handling: u8,
}

/// SUBACK and UNSUBACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Results<'a> {
    /// The packet identifier.
    pub id: u16,
    /// Properties of 5.0.
    pub properties: Properties<'a>,
    /// A code for each filter; none in UNSUBACK of MQTT 3.
    pub codes: &'a [u8],
}

/// UNSUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    /// The packet identifier.
    pub id: u16,
    /// Properties of 5.0.
    pub properties: Properties<'a>,
    /// Valid filters, as bytes.
    pub(super) filters: &'a [u8],
}

/// DISCONNECT and AUTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect<'a> {
    /// The reason code of 5.0.
    pub reason: ReasonCode,
    /// Properties of 5.0.
    pub properties: Properties<'a>,
}

impl<'a> Subscribe<'a> {
    /// The filters, in order.
    pub fn subscriptions(&self) -> impl Iterator<Item = Subscription<'a>> + use<'a> {
        let (mut left, version) = (Cursor(self.filters), self.version);
        // `read` has checked them.
        std::iter::from_fn(move || {
            if left.is_empty() { None } else { subscription(&mut left, version).ok() }
        })
    }
}

impl<'a> Unsubscribe<'a> {
    /// The filters as the client wrote them, in order.
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
