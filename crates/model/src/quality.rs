//! The quality of service of messages, and the properties from MQTT publishers.

use crate::Name;

/// The quality of service of a message (MQTT 5.0, section 4.3). A member gets the lesser of the message's and the
/// one that it requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Qos {
    /// At most once: no acknowledgement.
    AtMostOnce = 0,
    /// At least once: the message comes again until it is acknowledged.
    AtLeastOnce = 1,
    /// Exactly once. It is also the limit for messages that were not published by MQTT.
    #[default]
    ExactlyOnce = 2,
}

impl Qos {
    /// Returns the quality with this number; `None` from 3 on.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Qos::AtMostOnce),
            1 => Some(Qos::AtLeastOnce),
            2 => Some(Qos::ExactlyOnce),
            _ => None,
        }
    }

    /// Returns the number, 0 to 2.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// True if the receiver acknowledges the message.
    pub fn is_confirmed(self) -> bool {
        self != Qos::AtMostOnce
    }
}

/// Bytes of memory that the properties of a message may take.
pub const PROPERTIES_BYTES_MAX: usize = 16 << 10;

/// User properties that a message may have.
pub const USER_PROPERTIES_MAX: usize = 64;

/// Bytes that an allocator takes beside the texts of a name and a value.
const PAIR_ALLOCATED_BYTES: usize = 32;

/// The properties that an MQTT publisher gives to a message (MQTT 5.0, section 3.3.2.3). The server passes them on
/// unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// The publisher says that the payload is text in UTF-8.
    pub is_text: bool,
    /// The kind of payload, as the application defines it.
    pub content_type: Option<Box<str>>,
    /// The topic to which a response is to be published.
    pub response_topic: Option<Name>,
    /// Data by which the publisher recognizes the response.
    pub correlation_data: Option<Box<[u8]>>,
    /// Names and values, in order; names may repeat.
    pub user: Vec<(Box<str>, Box<str>)>,
}

/// Why properties are too many for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PropertiesError {
    /// They take more than [`PROPERTIES_BYTES_MAX`].
    #[error("its properties take {0} bytes: {PROPERTIES_BYTES_MAX} are allowed")]
    Bytes(usize),
    /// More than [`USER_PROPERTIES_MAX`] are the publisher's own.
    #[error("it has {0} user properties: {USER_PROPERTIES_MAX} are allowed")]
    User(usize),
}

impl Properties {
    /// The memory that they take, in bytes, roughly.
    pub fn bytes(&self) -> usize {
        let Properties { is_text: _, content_type, response_topic, correlation_data, user } = self;
        let texts = content_type.as_ref().map_or(0, |text| text.len())
            + response_topic.as_ref().map_or(0, |topic| topic.len())
            + correlation_data.as_ref().map_or(0, |data| data.len())
            + user.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        Self::bytes_of(texts, user.len())
    }

    /// The memory that properties take with this many bytes of texts and this many user properties, roughly.
    pub fn bytes_of(texts_bytes: usize, user: usize) -> usize {
        let pair = size_of::<(Box<str>, Box<str>)>() + PAIR_ALLOCATED_BYTES;
        size_of::<Properties>() + texts_bytes + user * pair
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// With the limit that they exceed.
    pub fn check(&self) -> Result<(), PropertiesError> {
        if self.user.len() > USER_PROPERTIES_MAX {
            return Err(PropertiesError::User(self.user.len()));
        }
        match self.bytes() {
            0..=PROPERTIES_BYTES_MAX => Ok(()),
            bytes => Err(PropertiesError::Bytes(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_properties_take_memory_also_where_they_are_empty() {
        let with = |pairs: usize, text: &str| Properties {
            user: vec![(text.into(), "".into()); pairs],
            ..Properties::default()
        };
        let (none, one) = (with(0, "").bytes(), with(1, "").bytes());
        assert!(one - none >= size_of::<(Box<str>, Box<str>)>() + 16);
        assert_eq!(with(3, "abc").bytes() - none, 3 * (one - none) + 9);
        assert_eq!(with(USER_PROPERTIES_MAX, "abc").check(), Ok(()));
        let many = USER_PROPERTIES_MAX + 1;
        assert_eq!(with(many, "").check(), Err(PropertiesError::User(many)));
        let long = with(1, &"x".repeat(PROPERTIES_BYTES_MAX - one));
        assert_eq!(long.check(), Ok(()));
        let long = with(1, &"x".repeat(PROPERTIES_BYTES_MAX - one + 1));
        assert_eq!(long.check(), Err(PropertiesError::Bytes(PROPERTIES_BYTES_MAX + 1)));
    }

    #[test]
    fn a_member_gets_the_lesser() {
        assert_eq!(Qos::default().min(Qos::AtLeastOnce), Qos::AtLeastOnce);
        assert_eq!(Qos::AtMostOnce.min(Qos::AtLeastOnce), Qos::AtMostOnce);
        for number in 0..=255 {
            assert_eq!(Qos::from_number(number).map(Qos::number), (number < 3).then_some(number));
        }
    }
}
