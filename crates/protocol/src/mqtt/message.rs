//! The requests of MQTT clients, in the engine's vocabulary: owned copies of packets.

use auth::Principal;
use model::{Encoding, Name, Publication, Qos};

use super::MqttError;
use super::property::{Properties, id};
use crate::secret::Secret;

/// A request of a client.
#[derive(Debug)]
pub enum Incoming {
    /// The client connects.
    Connect(Box<Connect>),
    /// The client publishes.
    Publish(Box<Publish>),
    /// The client confirms a message or a step of QoS 2.
    Confirm(Confirm),
    /// The client subscribes.
    Subscribe(Box<Subscribe>),
    /// The client unsubscribes.
    Unsubscribe {
        /// The packet identifier.
        id: u16,
        /// Filters as in SUBSCRIBE.
        filters: Vec<Name>,
    },
    /// The client checks that the server is alive.
    Ping,
    /// The client sent an invalid packet: the connection ends.
    Broken(MqttError),
    /// The client disconnects.
    Disconnect {
        /// The server publishes the will nevertheless (MQTT 5.0, section 3.14.2.1).
        with_will: bool,
        /// Seconds for which the session outlives the connection, if the packet gives them.
        seconds: Option<u32>,
    },
    /// The client continues with a new token.
    Authenticate {
        /// The method; it must be that of CONNECT.
        method: Box<str>,
        /// The token.
        token: Secret,
    },
}

/// A client with a valid CONNECT, which may connect.
#[derive(Debug)]
pub struct Connect {
    /// The encoding of its packets.
    pub encoding: Encoding,
    /// Its identity and grants.
    pub principal: Principal,
    /// A token or the application proved the identity.
    pub is_proved: bool,
    /// Its identifier; the server assigns one if it is empty.
    pub client: Name,
    /// The server has assigned the identifier.
    pub is_assigned: bool,
    /// The client requests a new session.
    pub clean: bool,
    /// Seconds for which the session outlives the connection; [`u32::MAX`] is unlimited.
    pub seconds: u32,
    /// The keep-alive, in seconds; 0 is none.
    pub keep_alive_s: u16,
    /// The will, which the server publishes when the client is gone.
    pub will: Option<Will>,
    /// The client's limits.
    pub limits: ClientLimits,
    /// The method with which the client may authenticate again, if any.
    pub method: Option<Box<str>>,
}

/// The limits of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Unconfirmed messages of QoS 1 and 2 to the client.
    pub receive_max: u16,
    /// Bytes of a packet.
    pub packet_bytes_max: u32,
    /// Topic aliases; 0 if the client accepts none.
    pub topic_alias_max: u16,
    /// The client accepts reason strings with errors.
    pub problem_information: bool,
}

impl Default for ClientLimits {
    /// The limits of a client that sets none.
    fn default() -> Self {
        ClientLimits {
            receive_max: u16::MAX,
            packet_bytes_max: u32::MAX,
            topic_alias_max: 0,
            problem_information: true,
        }
    }
}

impl ClientLimits {
    /// The limits in CONNECT.
    pub(super) fn of(properties: &Properties<'_>) -> Self {
        let number = |number: u8| properties.number(number);
        let small = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        ClientLimits {
            receive_max: number(id::RECEIVE_MAXIMUM).map_or(u16::MAX, small),
            packet_bytes_max: number(id::MAXIMUM_PACKET_SIZE).unwrap_or(u32::MAX),
            topic_alias_max: number(id::TOPIC_ALIAS_MAXIMUM).map_or(0, small),
            problem_information: number(id::REQUEST_PROBLEM_INFORMATION) != Some(0),
        }
    }
}

/// The will: a message that the server publishes after the connection.
#[derive(Debug)]
pub struct Will {
    /// The message, without its time to live.
    pub publication: Publication,
    /// Seconds to wait for the client to return before the server publishes.
    pub delay_s: u32,
    /// Time to live from that moment, in seconds.
    pub expiry_s: Option<u32>,
}

/// A message of a client.
#[derive(Debug)]
pub struct Publish {
    /// The packet identifier; 0 with QoS 0.
    pub id: u16,
    /// The topic's alias; 0 is none. With an empty topic the alias stands for the topic.
    pub alias: u16,
    /// The message, whose time to live begins now.
    pub publication: Publication,
}

/// A client confirms a message or a step of QoS 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// The packet.
    pub kind: ConfirmKind,
    /// The packet identifier.
    pub id: u16,
    /// The client rejected the message.
    pub failed: bool,
}

/// The packets of confirmations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfirmKind {
    /// PUBACK.
    Acknowledged,
    /// PUBREC.
    Received,
    /// PUBREL.
    Release,
    /// PUBCOMP.
    Complete,
}

/// Subscriptions of a client.
#[derive(Debug)]
pub struct Subscribe {
    /// The packet identifier.
    pub id: u16,
    /// The identifier of the subscriptions; 0 is none.
    pub subscription: u32,
    /// The filters with their options.
    pub wants: Vec<Want>,
}

/// One filter that a client subscribes to.
#[derive(Clone, Debug)]
pub struct Want {
    /// The filter, without `$share` and the group.
    pub filter: Name,
    /// The group of a shared subscription.
    pub group: Option<Name>,
    /// The maximum QoS.
    pub qos: Qos,
    /// The client gets no messages of its own.
    pub no_local: bool,
    /// Messages retain the RETAIN flag of their publisher.
    pub retain_as_published: bool,
    /// When retained messages are sent.
    pub retain_handling: RetainHandling,
}

/// When retained messages are sent (MQTT 5.0, section 3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetainHandling {
    /// With each subscription.
    #[default]
    Always,
    /// With a new one.
    New,
    /// Never.
    Never,
}
