//! The options of a publish.

use std::fmt;

use model::name::check_name;
use model::{ErrorCode, Name, Position};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use utoipa::openapi::schema::{KnownFormat, OneOfBuilder, SchemaFormat};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::http::Rejection;
use crate::monitor::process;
use crate::node::History;

/// The message that is to be the topic's newest: its offset, or its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfOffset {
    Offset(u64),
    Id(Position),
}

impl<'de> Deserialize<'de> for IfOffset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OffsetOrId;

        impl Visitor<'_> for OffsetOrId {
            type Value = IfOffset;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("if_offset: an offset from 0, or an id like \"5f3a91c2:1042\"")
            }

            fn visit_u64<E: Error>(self, offset: u64) -> Result<IfOffset, E> {
                Ok(IfOffset::Offset(offset))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<IfOffset, E> {
                text.parse()
                    .map(IfOffset::Id)
                    .map_err(|error| E::custom(format!("if_offset: {error}")))
            }
        }

        deserializer.deserialize_any(OffsetOrId)
    }
}

impl PartialSchema for IfOffset {
    fn schema() -> RefOr<Schema> {
        let offset = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .minimum(Some(0))
            .description(Some("The offset of a message"));
        let id = ObjectBuilder::new()
            .schema_type(Type::String)
            .examples(["5f3a91c2:1042"])
            .description(Some("The id of a message, whose epoch is checked as well"));
        OneOfBuilder::new().item(offset).item(id).into()
    }
}

impl ToSchema for IfOffset {}

/// Checks the user whom the application names as a message's sender.
pub(super) fn checked_sender(sender: Option<&str>) -> Result<Option<Name>, Rejection> {
    let Some(sender) = sender else { return Ok(None) };
    match check_name(sender) {
        Ok(()) => Ok(Some(sender.into())),
        Err(error) => Err(Rejection::new(ErrorCode::BadSender, format!("sender: {error}"))),
    }
}

impl IfOffset {
    pub(super) fn offset(self, history: &dyn History) -> Result<u64, Rejection> {
        match self {
            IfOffset::Offset(offset) => Ok(offset),
            IfOffset::Id(id) if id.epoch == history.epoch() => Ok(id.offset),
            IfOffset::Id(_) => Err(Rejection::epoch_changed(history.epoch())),
        }
    }
}

/// Returns when a message expires, in milliseconds since 1970. A time beyond the largest number is never.
pub(super) fn expires_ms(ttl_seconds: f64) -> Result<u64, Rejection> {
    if ttl_seconds.is_nan() || ttl_seconds <= 0.0 {
        return Err(Rejection::new(
            ErrorCode::BadTtl,
            "ttl_seconds must be a number of seconds above 0",
        ));
    }
    // The conversion saturates.
    let ttl_ms = (ttl_seconds * 1_000.0).ceil() as u64;
    Ok(process::unix_ms().saturating_add(ttl_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_offset_is_a_number_or_an_id() {
        let read = serde_json::from_str::<IfOffset>;
        assert_eq!(read("0").unwrap(), IfOffset::Offset(0));
        assert_eq!(read("\"5f3a91c2:7\"").unwrap(), IfOffset::Id("5f3a91c2:7".parse().unwrap()));
        for bad in ["-1", "1.5", "null", "[]", "\"7\"", "\"\"", "{}", "true"] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains("if_offset"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_ttl_is_above_zero_and_may_be_without_end() {
        for bad in [0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(expires_ms(bad).unwrap_err().code, "bad_ttl", "{bad}");
        }
        assert_eq!(expires_ms(1e300).unwrap(), u64::MAX);
        let (now, soon) = (process::unix_ms(), expires_ms(0.0001).unwrap());
        assert!((now + 1..now + 60_000).contains(&soon));
    }

    proptest::proptest! {
        #[test]
        fn any_json_is_read_or_rejected(text in "[-0-9a-f:.\"eE]{0,24}") {
            if let Ok(IfOffset::Id(id)) = serde_json::from_str(&text) {
                proptest::prop_assert_eq!(text, format!("\"{id}\""));
            }
        }
    }
}
