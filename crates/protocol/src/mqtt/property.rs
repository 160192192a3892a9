//! Properties of packets (MQTT 5.0, section 2.2.2).

use super::MqttError;
use super::cursor::Cursor;

/// The packets and the will, as contexts that allow different properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PropertyContext {
    Connect,
    Connack,
    /// PUBLISH of a server.
    Publish,
    /// PUBLISH of a client, which can't name subscriptions.
    ClientPublish,
    Will,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK.
    Confirm,
    Subscribe,
    Unsubscribe,
    /// DISCONNECT of a client.
    ClientDisconnect,
    /// DISCONNECT of a server, which can't set the session expiry.
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

/// The form of a property, and the contexts that allow it.
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

/// The form of a property's value; `None` for an unknown property.
pub(super) fn form(number: u8) -> Option<Form> {
    known(number).map(|(form, _)| form)
}

/// The checked properties of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a>(&'a [u8]);

impl<'a> Properties<'a> {
    /// No properties.
    pub const NONE: Properties<'static> = Properties(&[]);

    /// Reads and checks the properties at the cursor.
    pub(super) fn read(
        cursor: &mut Cursor<'a>,
        context: PropertyContext,
    ) -> Result<Self, MqttError> {
        let bytes = cursor.variable()? as usize;
        let own = cursor.take(bytes)?;
        let (mut left, mut seen) = (Cursor(own), 0u64);
        while let [number, ..] = *left.0 {
            // A message for several subscriptions has the identifiers of all.
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

    /// All properties, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (u8, Value<'a>)> + use<'a> {
        let mut left = Cursor(self.0);
        // `read` has checked them.
        std::iter::from_fn(move || if left.is_empty() { None } else { next(&mut left).ok() })
    }

    /// The value of a property with a number.
    pub fn number(&self, number: u8) -> Option<u32> {
        self.iter().find_map(|(id, value)| match value {
            Value::Number(value) if id == number => Some(value),
            Value::Number(_) | Value::Text(_) | Value::Binary(_) | Value::Pair(..) => None,
        })
    }

    /// The value of a property with a text.
    pub fn text(&self, number: u8) -> Option<&'a str> {
        self.iter().find_map(|(id, value)| match value {
            Value::Text(text) if id == number => Some(text),
            Value::Number(_) | Value::Text(_) | Value::Binary(_) | Value::Pair(..) => None,
        })
    }

    /// The value of a property with bytes.
    pub fn binary(&self, number: u8) -> Option<&'a [u8]> {
        self.iter().find_map(|(id, value)| match value {
            Value::Binary(bytes) if id == number => Some(bytes),
            Value::Number(_) | Value::Text(_) | Value::Binary(_) | Value::Pair(..) => None,
        })
    }

    /// The user properties, in their order.
    pub fn user(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.iter().filter_map(|(_, value)| match value {
            Value::Pair(name, value) => Some((name, value)),
            Value::Number(_) | Value::Text(_) | Value::Binary(_) => None,
        })
    }

    /// The subscription identifiers of a message, or the one of SUBSCRIBE.
    pub fn subscription_identifiers(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.iter().filter_map(|(id, value)| match value {
            Value::Number(value) if id == id::SUBSCRIPTION_IDENTIFIER => Some(value),
            Value::Number(_) | Value::Text(_) | Value::Binary(_) | Value::Pair(..) => None,
        })
    }

    /// Returns true if it has no properties.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Properties by their names, as received: for an absent one the caller applies the default of the standard.
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

/// Narrows a number that was read from two bytes.
fn two(number: u32) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

accessors! {
    /// The payload is UTF-8.
    payload_is_text: PAYLOAD_FORMAT_INDICATOR, number -> bool, |it| it == 1;
    /// Seconds until a message expires.
    message_expiry_s: MESSAGE_EXPIRY_INTERVAL, number -> u32;
    /// The media type of the payload.
    content_type: CONTENT_TYPE, text -> &'a str;
    /// The topic for a response.
    response_topic: RESPONSE_TOPIC, text -> &'a str;
    /// Data that a response repeats.
    correlation_data: CORRELATION_DATA, binary -> &'a [u8];
    /// Seconds for which a session outlives its connection.
    session_expiry_s: SESSION_EXPIRY_INTERVAL, number -> u32;
    /// The client identifier that the server assigned.
    assigned_client_identifier: ASSIGNED_CLIENT_IDENTIFIER, text -> &'a str;
    /// The keep-alive that the server sets, in seconds.
    server_keep_alive_s: SERVER_KEEP_ALIVE, number -> u16, two;
    /// The authentication method.
    authentication_method: AUTHENTICATION_METHOD, text -> &'a str;
    /// Data for the authentication method.
    authentication_data: AUTHENTICATION_DATA, binary -> &'a [u8];
    /// The client accepts reason strings and user properties with errors.
    request_problem_information: REQUEST_PROBLEM_INFORMATION, number -> bool, |it| it == 1;
    /// Seconds before the server publishes a will.
    will_delay_s: WILL_DELAY_INTERVAL, number -> u32;
    /// The client requests response information.
    request_response_information: REQUEST_RESPONSE_INFORMATION, number -> bool, |it| it == 1;
    /// The prefix of response topics.
    response_information: RESPONSE_INFORMATION, text -> &'a str;
    /// The server to use instead.
    server_reference: SERVER_REFERENCE, text -> &'a str;
    /// A reason for people.
    reason_string: REASON_STRING, text -> &'a str;
    /// Unconfirmed messages of QoS 1 and 2, at most.
    receive_maximum: RECEIVE_MAXIMUM, number -> u16, two;
    /// The highest topic alias.
    topic_alias_maximum: TOPIC_ALIAS_MAXIMUM, number -> u16, two;
    /// The alias that stands for the topic, now or later.
    topic_alias: TOPIC_ALIAS, number -> u16, two;
    /// The highest QoS: 0 or 1.
    maximum_qos: MAXIMUM_QOS, number -> u32;
    /// The server supports retained messages.
    retain_available: RETAIN_AVAILABLE, number -> bool, |it| it == 1;
    /// Bytes of a packet, at most.
    maximum_packet_size: MAXIMUM_PACKET_SIZE, number -> u32;
    /// The server supports wildcards in filters.
    wildcard_subscription_available: WILDCARD_SUBSCRIPTION_AVAILABLE, number -> bool, |it| it == 1;
    /// The server supports subscription identifiers.
    subscription_identifier_available: SUBSCRIPTION_IDENTIFIER_AVAILABLE, number -> bool, |it| it == 1;
    /// The server supports shared subscriptions.
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

/// Checks that a property may have this value.
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
