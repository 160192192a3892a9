//! Properties for MQTT clients of a message that the application publishes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::{Attributes, ErrorCode, Name, Properties, Publication, Qos};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::http::Rejection;

/// The longest text of MQTT, in bytes.
const TEXT_BYTES_MAX: usize = 65_535;

/// Properties of a message for MQTT clients.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MqttOptions {
    /// The QoS: 0 at most once, 1 at least once, 2 exactly once. A subscription gets the lesser of this and its own.
    /// With 0 it does not wait for sessions whose clients are away.
    #[schema(minimum = 0, maximum = 2, default = 2, example = 1)]
    qos: Option<u8>,
    /// It becomes the topic's retained message: later subscribers get it at once. One without data (`""`) deletes the
    /// topic's retained message. A topic with `+` or `#` in its name has none.
    #[serde(default)]
    #[schema(default = false)]
    retain: bool,
    /// The type of the data, in the application's words. Of MQTT 5, as the fields below.
    #[schema(example = "application/json")]
    content_type: Option<String>,
    /// The topic for the response.
    #[schema(example = "answers/7")]
    response_topic: Option<String>,
    /// Identifies the response for the requester, as base64.
    #[schema(example = "AQI=")]
    correlation_data: Option<String>,
    /// Names and values, in order; names may repeat.
    #[serde(default)]
    #[schema(example = json!([["unit", "celsius"]]))]
    user_properties: Vec<(String, String)>,
}

impl MqttOptions {
    /// Returns the publication with these properties.
    pub fn apply(&self, mut publication: Publication) -> Result<Publication, Rejection> {
        let bad = |message: String| Rejection::new(ErrorCode::BadMqtt, format!("mqtt: {message}"));
        if let Some(number) = self.qos {
            publication.qos = Qos::from_number(number)
                .ok_or_else(|| bad(format!("qos must be 0, 1 or 2, not {number}")))?;
        }
        publication.retain = self.retain;
        if self.retain {
            // MQTT has no topics with such names.
            model::filter::check_name(&publication.topic)
                .map_err(|error| bad(format!("retain: {error}")))?;
        }
        let texts = self.content_type.iter().chain(&self.response_topic);
        let pairs = self.user_properties.iter().flat_map(|(name, value)| [name, value]);
        if texts.chain(pairs).any(|text| text.len() > TEXT_BYTES_MAX || text.contains('\0')) {
            let message = format!("a text must have at most {TEXT_BYTES_MAX} bytes, and no byte 0");
            return Err(bad(message));
        }
        let response_topic = self.response_topic.as_deref().map(|topic| {
            let checked = model::filter::check_name(topic);
            checked
                .map(|()| Name::from(topic))
                .map_err(|error| bad(format!("response_topic: {error}")))
        });
        let correlation_data = self.correlation_data.as_deref().map(|text| {
            let decoded = STANDARD.decode(text);
            decoded.map(Into::into).map_err(|_| bad("correlation_data must be base64".into()))
        });
        let pair = |(name, value): &(String, String)| (name.as_str().into(), value.as_str().into());
        let properties = Properties {
            is_text: false,
            content_type: self.content_type.as_deref().map(Into::into),
            response_topic: response_topic.transpose()?,
            correlation_data: correlation_data.transpose()?,
            user: self.user_properties.iter().map(pair).collect(),
        };
        properties.check().map_err(|error| bad(error.to_string()))?;
        if properties != Properties::default() {
            let attributes = publication.attributes.get_or_insert_with(Box::<Attributes>::default);
            attributes.properties = Some(Box::new(properties));
        }
        Ok(publication)
    }
}

#[cfg(test)]
mod tests {
    use model::{Data, PROPERTIES_BYTES_MAX, USER_PROPERTIES_MAX};

    use super::*;

    fn applied(json: &str) -> Result<Publication, Rejection> {
        applied_to("a", json)
    }

    fn applied_to(topic: &str, json: &str) -> Result<Publication, Rejection> {
        let options: MqttOptions = serde_json::from_str(json).unwrap();
        options.apply(Publication::new(topic, Data::Text("x".into())))
    }

    #[test]
    fn what_is_said_goes_with_the_message() {
        let plain = applied("{}").unwrap();
        assert_eq!(
            (plain.qos, plain.retain, plain.attributes.is_none()),
            (Qos::ExactlyOnce, false, true)
        );
        let json = r#"{"qos":1,"retain":true,"content_type":"text/plain","response_topic":"b/c",
            "correlation_data":"AQI=","user_properties":[["x","1"],["x","2"]]}"#;
        let said = applied(json).unwrap();
        assert_eq!((said.qos, said.retain), (Qos::AtLeastOnce, true));
        let properties = said.attributes.unwrap().properties.unwrap();
        assert_eq!(properties.content_type.as_deref(), Some("text/plain"));
        assert_eq!(properties.response_topic.as_deref(), Some("b/c"));
        assert_eq!(properties.correlation_data.as_deref(), Some(&[1, 2][..]));
        assert_eq!(properties.user.len(), 2);
    }

    #[test]
    fn what_is_no_topic_of_mqtt_retains_nothing() {
        for topic in ["a/+/b", "a/#", "a+b"] {
            let error = applied_to(topic, r#"{"retain":true}"#).unwrap_err();
            assert_eq!(error.code, "bad_mqtt", "{topic}");
            assert!(error.message.starts_with("mqtt: retain: a topic's name"), "{}", error.message);
            assert!(applied_to(topic, r#"{"qos":1}"#).is_ok(), "{topic}");
        }
    }

    #[test]
    fn what_mqtt_can_not_say_is_refused() {
        let pairs = vec![r#"["",""]"#; USER_PROPERTIES_MAX + 1].join(",");
        let many = format!(r#"{{"user_properties":[{pairs}]}}"#);
        let long = format!(r#"{{"content_type":"{}"}}"#, "x".repeat(PROPERTIES_BYTES_MAX + 1));
        for (json, want) in [
            (r#"{"qos":3}"#, "qos"),
            (r#"{"response_topic":"a/+"}"#, "response_topic"),
            (r#"{"correlation_data":"!"}"#, "correlation_data"),
            (r#"{"user_properties":[["a\u0000","b"]]}"#, "text"),
            (&long, "bytes"),
            (&many, "user properties"),
        ] {
            let error = applied(json).unwrap_err();
            assert_eq!(error.code, "bad_mqtt", "{json}");
            assert!(error.message.contains(want), "{json}: {}", error.message);
        }
    }
}
