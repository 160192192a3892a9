//! Requests to back ends: JSON with the field names of the API's publish, no I/O.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::{Data, Properties};
use protocol::json;
use shard::ForwardRequest;

/// The rough number of bytes of a message besides its payload and names.
const MESSAGE_BYTES: usize = 192;

/// The rough number of bytes that a message takes in a queue; never 0.
pub(super) fn memory_bytes(request: &ForwardRequest) -> usize {
    let publication = &request.publication;
    let users: usize = request.users.iter().map(|user| user.len()).sum();
    let tags: usize = publication.tags().iter().map(|tag| tag.len()).sum();
    let name = |name: Option<&model::Name>| name.map_or(0, |name| name.len());
    let names = name(Some(&publication.topic))
        + name(publication.event.as_ref())
        + name(publication.key())
        + name(request.client.as_ref());
    let properties = publication.properties().map_or(0, Properties::bytes);
    MESSAGE_BYTES + publication.data.bytes() + names + users + tags + properties
}

/// The body of the HTTP request that carries these messages with their ids, in their order.
pub(super) fn write<'a>(messages: impl Iterator<Item = (&'a str, &'a ForwardRequest)>) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(br#"{"messages":["#);
    for (at, (id, request)) in messages.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        message(&mut out, id, request);
    }
    out.extend_from_slice(b"]}");
    out
}

fn message(out: &mut Vec<u8>, id: &str, request: &ForwardRequest) {
    let publication = &request.publication;
    out.extend_from_slice(br#"{"id":"#);
    json::string(id, out);
    field(out, "topic", &publication.topic);
    if let Some(event) = &publication.event {
        field(out, "event", event);
    }
    match &publication.data {
        Data::Json(text) => {
            out.extend_from_slice(br#","data":"#);
            out.extend_from_slice(text.as_bytes());
        }
        Data::Text(text) => field(out, "data", text),
        Data::Binary(bytes) => {
            field(out, "data", &STANDARD.encode(bytes));
            field(out, "encoding", "base64");
        }
    }
    if !publication.tags().is_empty() {
        out.extend_from_slice(br#","tags":"#);
        json::strings(publication.tags(), out);
    }
    if let Some(key) = publication.key() {
        field(out, "key", key);
    }
    match request.users.first() {
        Some(user) => field(out, "user", user),
        None => out.extend_from_slice(br#","user":null"#),
    }
    out.extend_from_slice(br#","users":"#);
    json::strings(&request.users, out);
    match request.connection {
        Some(connection) => field(out, "connection", &connection.to_string()),
        None => out.extend_from_slice(br#","connection":null"#),
    }
    field(out, "transport", request.transport);
    out.extend_from_slice(format!(r#","time":{}"#, request.at_ms).as_bytes());
    if let Some(client) = &request.client {
        field(out, "client", client);
        mqtt(out, request);
    }
    out.push(b'}');
}

/// Appends the properties of MQTT, with the field names of the API's publish.
fn mqtt(out: &mut Vec<u8>, request: &ForwardRequest) {
    let publication = &request.publication;
    let (qos, retain) = (publication.qos.number(), publication.retain);
    out.extend_from_slice(format!(r#","mqtt":{{"qos":{qos},"retain":{retain}"#).as_bytes());
    if let Some(properties) = publication.properties() {
        if let Some(kind) = &properties.content_type {
            field(out, "content_type", kind);
        }
        if let Some(topic) = &properties.response_topic {
            field(out, "response_topic", topic);
        }
        if let Some(data) = &properties.correlation_data {
            field(out, "correlation_data", &STANDARD.encode(data));
        }
        for (at, (name, value)) in properties.user.iter().enumerate() {
            out.extend_from_slice(if at == 0 { br#","user_properties":["# } else { b"," });
            out.push(b'[');
            json::string(name, out);
            out.push(b',');
            json::string(value, out);
            out.push(b']');
        }
        if !properties.user.is_empty() {
            out.push(b']');
        }
    }
    out.push(b'}');
}

fn field(out: &mut Vec<u8>, name: &str, text: &str) {
    out.extend_from_slice(format!(r#","{name}":"#).as_bytes());
    json::string(text, out);
}

#[cfg(test)]
mod tests {
    use model::{Attributes, ConnectionId, NodeId, Publication, Qos};
    use serde_json::{Value, json};
    use shard::SharedHook;

    use super::*;

    fn written(request: &ForwardRequest) -> Value {
        let body = write([("c81d-7", request)].into_iter());
        let mut body: Value = serde_json::from_slice(&body).unwrap();
        body["messages"][0].take()
    }

    #[test]
    fn a_message_is_written_as_the_api_takes_it() {
        let properties = Properties {
            is_text: true,
            content_type: Some("a/b".into()),
            response_topic: Some("answers/7".into()),
            correlation_data: Some([0, 255].into()),
            user: [("x".into(), "1".into()), ("x".into(), "\"2\"".into())].into(),
        };
        let attributes = Attributes {
            properties: Some(properties.into()),
            key: Some("k".into()),
            ..Attributes::default()
        };
        let request = ForwardRequest {
            filter: "requests/#".into(),
            publication: Publication {
                attributes: Some(attributes.into()),
                qos: Qos::AtLeastOnce,
                ..Publication::new("requests/7", Data::Binary([0, 255].into()))
            },
            users: vec!["alice".into()],
            connection: Some(ConnectionId { node: NodeId(9), shard: 0, slot: 7, serial: 3 }),
            transport: "mqtt",
            client: Some("pump-7".into()),
            at_ms: 1_700_000_000_000,
            hook: SharedHook::default(),
            reply: None,
        };
        let want = json!({
            "id": "c81d-7", "topic": "requests/7", "data": "AP8=", "encoding": "base64", "key": "k",
            "user": "alice", "users": ["alice"], "connection": "00000009-0-7-3",
            "transport": "mqtt", "time": 1_700_000_000_000_u64, "client": "pump-7",
            "mqtt": {
                "qos": 1, "retain": false, "content_type": "a/b", "response_topic": "answers/7",
                "correlation_data": "AP8=", "user_properties": [["x", "1"], ["x", "\"2\""]],
            },
        });
        assert_eq!(written(&request), want);
        assert!(memory_bytes(&request) > MESSAGE_BYTES + 20);
        let plain = ForwardRequest {
            publication: Publication::new("a", Data::Json("{\"n\":1.50}".into())),
            users: Vec::new(),
            connection: None,
            transport: "ws",
            client: None,
            ..request
        };
        let text = String::from_utf8(write([("1", &plain), ("2", &plain)].into_iter())).unwrap();
        assert!(text.contains(r#""data":{"n":1.50},"user":null"#), "numbers keep digits: {text}");
        assert_eq!(written(&plain).get("mqtt"), None);
    }
}
