//! How surely a message is delivered, and what MQTT publishers say of a message.

use crate::Name;

/// How surely a message is delivered (MQTT 5.0, section 4.3). A member gets the lesser of what the
/// message has and what the member asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Qos {
    /// At most once: nobody confirms it.
    AtMostOnce = 0,
    /// At least once: it comes again until it is confirmed.
    AtLeastOnce = 1,
    /// Exactly once. All that is not published by MQTT may be delivered so.
    #[default]
    ExactlyOnce = 2,
}

impl Qos {
    /// The quality with this number; nothing from 3 on.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Qos::AtMostOnce),
            1 => Some(Qos::AtLeastOnce),
            2 => Some(Qos::ExactlyOnce),
            _ => None,
        }
    }

    /// Its number, 0 to 2.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Whether it is confirmed.
    pub fn is_confirmed(self) -> bool {
        self != Qos::AtMostOnce
    }
}

/// What an MQTT publisher says of a message beside its topic and its payload (MQTT 5.0, section
/// 3.3.2.3). It is passed on as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// The publisher says that the payload is text in UTF-8.
    pub is_text: bool,
    /// What the payload is, in the application's words.
    pub content_type: Option<Box<str>>,
    /// The topic to which an answer is to be published.
    pub response_topic: Option<Name>,
    /// By which the publisher knows the answer.
    pub correlation_data: Option<Box<[u8]>>,
    /// Names and values, in order; names may repeat.
    pub user: Vec<(Box<str>, Box<str>)>,
}

impl Properties {
    /// The bytes of their texts.
    pub fn bytes(&self) -> usize {
        let Properties { is_text: _, content_type, response_topic, correlation_data, user } = self;
        content_type.as_ref().map_or(0, |text| text.len())
            + response_topic.as_ref().map_or(0, |topic| topic.len())
            + correlation_data.as_ref().map_or(0, |data| data.len())
            + user.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_gets_the_lesser() {
        assert_eq!(Qos::default().min(Qos::AtLeastOnce), Qos::AtLeastOnce);
        assert_eq!(Qos::AtMostOnce.min(Qos::AtLeastOnce), Qos::AtMostOnce);
        for number in 0..=255 {
            assert_eq!(Qos::from_number(number).map(Qos::number), (number < 3).then_some(number));
        }
    }
}
