//! What MQTT clients ask for, in the engine's vocabulary: as packets say it, and owned.

use auth::Principal;
use model::{Encoding, Name, Publication, Qos};

use super::MqttError;
use super::property::{Properties, id};
use crate::secret::Secret;

/// What a client asks for.
#[derive(Debug)]
pub enum Incoming {
    /// To be let in.
    Connect(Box<Connect>),
    /// To publish.
    Publish(Box<Publish>),
    /// It has a message, or is done with one.
    Confirm(Confirm),
    /// To get messages.
    Subscribe(Box<Subscribe>),
    /// To get them no longer.
    Unsubscribe {
        /// The packet identifier.
        id: u16,
        /// Filters, as they were subscribed to.
        filters: Vec<Name>,
    },
    /// To be told that the server is there.
    Ping,
    /// What can't be: the connection ends.
    Broken(MqttError),
    /// To go.
    Disconnect {
        /// Its will is to be published all the same (MQTT 5.0, section 3.14.2.1).
        with_will: bool,
        /// For how long its session outlives the connection, in seconds, where it says that.
        seconds: Option<u32>,
    },
    /// To go on with a new token.
    Authenticate {
        /// The method, which is that of CONNECT.
        method: Box<str>,
        /// The token.
        token: Secret,
    },
}

/// A client that wants to be let in, and may.
#[derive(Debug)]
pub struct Connect {
    /// What it speaks.
    pub encoding: Encoding,
    /// Who it is.
    pub principal: Principal,
    /// Whether that was proved: by a token, or by the application's word.
    pub is_proved: bool,
    /// Its identifier; the server gives it one where it has none.
    pub client: Name,
    /// The server has given it its identifier.
    pub is_assigned: bool,
    /// It wants a new session.
    pub clean: bool,
    /// For how long the session outlives the connection, in seconds; [`u32::MAX`] is without end.
    pub seconds: u32,
    /// How often it speaks at the least, in seconds; 0 says nothing of that.
    pub keep_alive_s: u16,
    /// What is published when it is gone.
    pub will: Option<Will>,
    /// What it takes.
    pub limits: ClientLimits,
    /// How it authenticates again with a new token, if it may.
    pub method: Option<Box<str>>,
}

/// What a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Messages with QoS 1 and 2 that are under way to it.
    pub receive_max: u16,
    /// The bytes of a packet.
    pub packet_bytes_max: u32,
    /// Aliases of topics; 0 where it knows none.
    pub topic_alias_max: u16,
    /// It wants to be told why something was refused.
    pub problem_information: bool,
}

impl Default for ClientLimits {
    /// Those of a client that sets none.
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
    /// What CONNECT says of it.
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

/// What is published when a client is gone.
#[derive(Debug)]
pub struct Will {
    /// What. Its time to live is not in it.
    pub publication: Publication,
    /// How long that waits for the client to come back, in seconds.
    pub delay_s: u32,
    /// How long it counts from when it is published, in seconds.
    pub expiry_s: Option<u32>,
}

/// A message of a client.
#[derive(Debug)]
pub struct Publish {
    /// The packet identifier; 0 with QoS 0.
    pub id: u16,
    /// The topic's alias; 0 is none. With an empty topic the one that the alias stands for is meant.
    pub alias: u16,
    /// The message, whose time to live counts from now on.
    pub publication: Publication,
}

/// A client has a message, or is done with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// By which packet.
    pub kind: ConfirmKind,
    /// The packet identifier.
    pub id: u16,
    /// It did not take it.
    pub failed: bool,
}

/// The packets that confirm something.
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
    /// What it wants.
    pub wants: Vec<Want>,
}

/// One filter that a client subscribes to.
#[derive(Clone, Debug)]
pub struct Want {
    /// The filter, without what makes it a shared one.
    pub filter: Name,
    /// The group with which it is shared.
    pub group: Option<Name>,
    /// At the most so surely.
    pub qos: Qos,
    /// Not what the client itself publishes.
    pub no_local: bool,
    /// Messages say whether they were published to be retained.
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
