//! Properties of packets (MQTT 5.0, section 2.2.2).

use super::MqttError;
use super::cursor::Cursor;

/// The packets and the will, by what properties they may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PropertyContext {
    Connect,
    Connack,
    /// PUBLISH of a server.
    Publish,
    /// PUBLISH of a client, which knows nothing of who is subscribed.
    ClientPublish,
    Will,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK.
    Confirm,
    Subscribe,
    Unsubscribe,
    /// DISCONNECT of a client.
    ClientDisconnect,
    /// DISCONNECT of a server, which doesn't say for how long the client's session is to live.
    Disconnect,
    Auth,
}

/// The form of a property's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Byte,
    Two,
    Four,
    Variable,
    Text,
    Binary,
    Pair,
}

/// A property's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number.
    Number(u32),
    /// A text.
    Text(&'a str),
    /// Bytes.
    Binary(&'a [u8]),
    /// A name and a value.
    Pair(&'a str, &'a str),
}

/// The numbers of the properties.
pub mod id {
    #![allow(missing_docs, reason = "they have the names of the standard")]
    pub const PAYLOAD_FORMAT_INDICATOR: u8 = 0x01;
    pub const MESSAGE_EXPIRY_INTERVAL: u8 = 0x02;
    pub const CONTENT_TYPE: u8 = 0x03;
    pub const RESPONSE_TOPIC: u8 = 0x08;
    pub const CORRELATION_DATA: u8 = 0x09;
    pub const SUBSCRIPTION_IDENTIFIER: u8 = 0x0b;
    pub const SESSION_EXPIRY_INTERVAL: u8 = 0x11;
    pub const ASSIGNED_CLIENT_IDENTIFIER: u8 = 0x12;
    pub const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub const AUTHENTICATION_METHOD: u8 = 0x15;
    pub const AUTHENTICATION_DATA: u8 = 0x16;
    pub const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub const WILL_DELAY_INTERVAL: u8 = 0x18;
    pub const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub const RESPONSE_INFORMATION: u8 = 0x1a;
    pub const SERVER_REFERENCE: u8 = 0x1c;
    pub const REASON_STRING: u8 = 0x1f;
    pub const RECEIVE_MAXIMUM: u8 = 0x21;
    pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub const TOPIC_ALIAS: u8 = 0x23;
    pub const MAXIMUM_QOS: u8 = 0x24;
    pub const RETAIN_AVAILABLE: u8 = 0x25;
    pub const USER_PROPERTY: u8 = 0x26;
    pub const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub const WILDCARD_SUBSCRIPTION_AVAILABLE: u8 = 0x28;
    pub const SUBSCRIPTION_IDENTIFIER_AVAILABLE: u8 = 0x29;
    pub const SHARED_SUBSCRIPTION_AVAILABLE: u8 = 0x2a;
}

/// The form of a property, and where it may be.
fn known(number: u8) -> Option<(Form, &'static [PropertyContext])> {
    use PropertyContext::{
        Auth, ClientDisconnect, ClientPublish, Confirm, Connack, Connect, Disconnect, Publish,
        Subscribe, Unsubscribe, Will,
    };
    const ALL: &[PropertyContext] = &[
        Connect,
        Connack,
        Publish,
        ClientPublish,
        Will,
        Confirm,
        Subscribe,
        Unsubscribe,
        ClientDisconnect,
        Disconnect,
        Auth,
    ];
    const MESSAGE: &[PropertyContext] = &[Publish, ClientPublish, Will];
    Some(match number {
        id::PAYLOAD_FORMAT_INDICATOR => (Form::Byte, MESSAGE),
        id::MESSAGE_EXPIRY_INTERVAL => (Form::Four, MESSAGE),
        id::CONTENT_TYPE | id::RESPONSE_TOPIC => (Form::Text, MESSAGE),
        id::CORRELATION_DATA => (Form::Binary, MESSAGE),
        id::SUBSCRIPTION_IDENTIFIER => (Form::Variable, &[Publish, Subscribe]),
        id::SESSION_EXPIRY_INTERVAL => (Form::Four, &[Connect, Connack, ClientDisconnect]),
        id::ASSIGNED_CLIENT_IDENTIFIER | id::RESPONSE_INFORMATION => (Form::Text, &[Connack]),
        id::SERVER_KEEP_ALIVE => (Form::Two, &[Connack]),
        id::AUTHENTICATION_METHOD => (Form::Text, &[Connect, Connack, Auth]),
        id::AUTHENTICATION_DATA => (Form::Binary, &[Connect, Connack, Auth]),
        id::REQUEST_PROBLEM_INFORMATION | id::REQUEST_RESPONSE_INFORMATION => {
            (Form::Byte, &[Connect])
        }
        id::WILL_DELAY_INTERVAL => (Form::Four, &[Will]),
        id::SERVER_REFERENCE => (Form::Text, &[Connack, ClientDisconnect, Disconnect]),
        id::REASON_STRING => (Form::Text, &[Connack, Confirm, ClientDisconnect, Disconnect, Auth]),
        id::RECEIVE_MAXIMUM | id::TOPIC_ALIAS_MAXIMUM => (Form::Two, &[Connect, Connack]),
        id::TOPIC_ALIAS => (Form::Two, &[Publish, ClientPublish]),
        id::MAXIMUM_PACKET_SIZE => (Form::Four, &[Connect, Connack]),
        id::MAXIMUM_QOS
        | id::RETAIN_AVAILABLE
        | id::WILDCARD_SUBSCRIPTION_AVAILABLE
        | id::SUBSCRIPTION_IDENTIFIER_AVAILABLE
        | id::SHARED_SUBSCRIPTION_AVAILABLE => (Form::Byte, &[Connack]),
        id::USER_PROPERTY => (Form::Pair, ALL),
        _ => return None,
    })
}

/// The form of a property's value; nothing where there is no such property.
pub(super) fn form(number: u8) -> Option<Form> {
    known(number).map(|(form, _)| form)
}

/// The properties of a packet: read, and found to be allowed there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a>(&'a [u8]);

impl<'a> Properties<'a> {
    /// None.
    pub const NONE: Properties<'static> = Properties(&[]);

    /// Reads and checks the properties at the beginning of what is left of a packet.
    pub(super) fn read(
        cursor: &mut Cursor<'a>,
        context: PropertyContext,
    ) -> Result<Self, MqttError> {
        let bytes = cursor.variable()? as usize;
        let own = cursor.take(bytes)?;
        let (mut left, mut seen) = (Cursor(own), 0u64);
        while let [number, ..] = *left.0 {
            // A message that comes for several subscriptions has all of their identifiers.
            let may_repeat = number == id::USER_PROPERTY
                || (number == id::SUBSCRIPTION_IDENTIFIER && context == PropertyContext::Publish);
            match known(number) {
                Some((_, contexts)) if contexts.contains(&context) => {}
                _ => return Err(MqttError::Property(number)),
            }
            if seen & 1 << number != 0 && !may_repeat {
                return Err(MqttError::PropertyTwice(number));
            }
            seen |= 1 << number;
            let (_, value) = next(&mut left)?;
            check(number, value)?;
        }
        let has = |number: u8| seen & 1 << number != 0;
        let needs_method = has(id::AUTHENTICATION_DATA) || context == PropertyContext::Auth;
        if needs_method && !has(id::AUTHENTICATION_METHOD) {
            return Err(MqttError::AuthenticationMethod);
        }
        Ok(Properties(own))
    }

    /// All, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (u8, Value<'a>)> + use<'a> {
        let mut left = Cursor(self.0);
        // They were read before.
        std::iter::from_fn(move || if left.is_empty() { None } else { next(&mut left).ok() })
    }

    /// A number.
    pub fn number(&self, number: u8) -> Option<u32> {
        self.iter().find_map(|(id, value)| match value {
            Value::Number(value) if id == number => Some(value),
            Value::Number(_) | Value::Text(_) | Value::Binary(_) | Value::Pair(..) => None,
        })
    }

    /// A text.
    pub fn text(&self, number: u8) -> Option<&'a str> {
        self.iter().find_map(|(id, value)| match value {
            Value::Text(text) if id == number => Some(text),
            Value::Number(_) | Value::Text(_) | Value::Binary(_) | Value::Pair(..) => None,
        })
    }

    /// Bytes.
    pub fn binary(&self, number: u8) -> Option<&'a [u8]> {
        self.iter().find_map(|(id, value)| match value {
            Value::Binary(bytes) if id == number => Some(bytes),
            Value::Number(_) | Value::Text(_) | Value::Binary(_) | Value::Pair(..) => None,
        })
    }

    /// The user's own, in their order.
    pub fn user(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.iter().filter_map(|(_, value)| match value {
            Value::Pair(name, value) => Some((name, value)),
            Value::Number(_) | Value::Text(_) | Value::Binary(_) => None,
        })
    }

    /// The subscriptions that a message comes for, or the one of SUBSCRIBE.
    pub fn subscription_identifiers(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.iter().filter_map(|(id, value)| match value {
            Value::Number(value) if id == id::SUBSCRIPTION_IDENTIFIER => Some(value),
            Value::Number(_) | Value::Text(_) | Value::Binary(_) | Value::Pair(..) => None,
        })
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The properties by their names, each as it came: what the standard says of one that is absent is for the caller.
macro_rules! accessors {
    ($($(#[doc = $doc:literal])+ $name:ident: $id:ident, $get:ident -> $type:ty $(, $map:expr)?;)+) => {
        impl<'a> Properties<'a> {
            $(
                $(#[doc = $doc])+
                pub fn $name(&self) -> Option<$type> {
                    self.$get(id::$id)$(.map($map))?
                }
            )+
        }
    };
}

/// A number that was read from two bytes.
fn two(number: u32) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

accessors! {
    /// The payload is UTF-8.
    payload_is_text: PAYLOAD_FORMAT_INDICATOR, number -> bool, |it| it == 1;
    /// For how long a message is of use, in seconds.
    message_expiry_s: MESSAGE_EXPIRY_INTERVAL, number -> u32;
    /// What the payload is.
    content_type: CONTENT_TYPE, text -> &'a str;
    /// Where an answer goes.
    response_topic: RESPONSE_TOPIC, text -> &'a str;
    /// What an answer repeats.
    correlation_data: CORRELATION_DATA, binary -> &'a [u8];
    /// For how long a session outlives its connection, in seconds.
    session_expiry_s: SESSION_EXPIRY_INTERVAL, number -> u32;
    /// The identifier that the server gave.
    assigned_client_identifier: ASSIGNED_CLIENT_IDENTIFIER, text -> &'a str;
    /// The keep-alive that counts, in seconds.
    server_keep_alive_s: SERVER_KEEP_ALIVE, number -> u16, two;
    /// How a client authenticates.
    authentication_method: AUTHENTICATION_METHOD, text -> &'a str;
    /// With what.
    authentication_data: AUTHENTICATION_DATA, binary -> &'a [u8];
    /// Whether reasons may be told in texts and user properties.
    request_problem_information: REQUEST_PROBLEM_INFORMATION, number -> bool, |it| it == 1;
    /// How long a will waits, in seconds.
    will_delay_s: WILL_DELAY_INTERVAL, number -> u32;
    /// Whether the server is asked for response information.
    request_response_information: REQUEST_RESPONSE_INFORMATION, number -> bool, |it| it == 1;
    /// What response topics may begin with.
    response_information: RESPONSE_INFORMATION, text -> &'a str;
    /// Another server.
    server_reference: SERVER_REFERENCE, text -> &'a str;
    /// Why, for people.
    reason_string: REASON_STRING, text -> &'a str;
    /// Messages with QoS 1 and 2 that may be under way.
    receive_maximum: RECEIVE_MAXIMUM, number -> u16, two;
    /// The highest topic alias.
    topic_alias_maximum: TOPIC_ALIAS_MAXIMUM, number -> u16, two;
    /// What stands for the topic, or will.
    topic_alias: TOPIC_ALIAS, number -> u16, two;
    /// The highest QoS: 0 or 1.
    maximum_qos: MAXIMUM_QOS, number -> u32;
    /// Whether messages can be retained.
    retain_available: RETAIN_AVAILABLE, number -> bool, |it| it == 1;
    /// The most bytes of a packet.
    maximum_packet_size: MAXIMUM_PACKET_SIZE, number -> u32;
    /// Whether filters may have wildcards.
    wildcard_subscription_available: WILDCARD_SUBSCRIPTION_AVAILABLE, number -> bool, |it| it == 1;
    /// Whether subscriptions may have identifiers.
    subscription_identifier_available: SUBSCRIPTION_IDENTIFIER_AVAILABLE, number -> bool, |it| it == 1;
    /// Whether subscriptions may be shared.
    shared_subscription_available: SHARED_SUBSCRIPTION_AVAILABLE, number -> bool, |it| it == 1;
}

fn next<'a>(cursor: &mut Cursor<'a>) -> Result<(u8, Value<'a>), MqttError> {
    let number = cursor.byte()?;
    let (form, _) = known(number).ok_or(MqttError::Property(number))?;
    let value = match form {
        Form::Byte => Value::Number(cursor.byte()?.into()),
        Form::Two => Value::Number(cursor.two()?.into()),
        Form::Four => Value::Number(cursor.four()?),
        Form::Variable => Value::Number(cursor.variable()?),
        Form::Text => Value::Text(cursor.text()?),
        Form::Binary => Value::Binary(cursor.binary()?),
        Form::Pair => Value::Pair(cursor.text()?, cursor.text()?),
    };
    Ok((number, value))
}

/// Whether a property may have this value.
fn check(number: u8, value: Value<'_>) -> Result<(), MqttError> {
    let Value::Number(value) = value else { return Ok(()) };
    match number {
        id::PAYLOAD_FORMAT_INDICATOR
        | id::REQUEST_PROBLEM_INFORMATION
        | id::REQUEST_RESPONSE_INFORMATION
        | id::MAXIMUM_QOS
        | id::RETAIN_AVAILABLE
        | id::WILDCARD_SUBSCRIPTION_AVAILABLE
        | id::SUBSCRIPTION_IDENTIFIER_AVAILABLE
        | id::SHARED_SUBSCRIPTION_AVAILABLE
            if value > 1 =>
        {
            Err(MqttError::PropertyValue(number))
        }
        id::RECEIVE_MAXIMUM | id::MAXIMUM_PACKET_SIZE | id::SUBSCRIPTION_IDENTIFIER
            if value == 0 =>
        {
            Err(MqttError::PropertyValue(number))
        }
        id::TOPIC_ALIAS if value == 0 => Err(MqttError::TopicAlias),
        _ => Ok(()),
    }
}
