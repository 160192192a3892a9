//! The bodies of HTTP requests to the application: JSON, no I/O.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::{ConnectionId, Data, Name};
use protocol::request::Credentials;
use shard::{Connecting, EventSource, WebhookRequest};

/// The rough number of bytes of an event besides its payload and names.
const EVENT_BYTES: usize = 128;

/// The rough number of bytes of an event in a request.
pub(super) fn event_bytes(hook_request: &WebhookRequest) -> usize {
    EVENT_BYTES + memory_bytes(hook_request)
}

/// The memory of a request that its client decides about, in bytes: its payload and names.
pub(super) fn memory_bytes(hook_request: &WebhookRequest) -> usize {
    let hook_request = &hook_request.details;
    let users: usize = hook_request.users.iter().map(|user| user.len()).sum();
    let tags: usize = hook_request.tags.iter().map(|tag| tag.len()).sum();
    let payload = hook_request.payload.as_ref().map_or(0, Data::bytes);
    let name = |name: &Option<Name>| name.as_ref().map_or(0, |name| name.len());
    let names = name(&hook_request.topic) + name(&hook_request.event) + name(&hook_request.key);
    payload
        + names
        + tags
        + users
        + hook_request.connect.as_ref().map_or(0, |it| connecting_bytes(it))
}

fn connecting_bytes(Connecting { request, .. }: &Connecting) -> usize {
    let pairs = request.query.iter().chain(&request.headers);
    request.path.len() + pairs.map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

/// The body of the HTTP request that carries these requests, in their order.
pub(super) fn write<'a>(hook_requests: impl Iterator<Item = &'a WebhookRequest>) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(br#"{"events":["#);
    for (at, hook_request) in hook_requests.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        event(&mut out, hook_request);
    }
    out.extend_from_slice(b"]}");
    out
}

fn event(out: &mut Vec<u8>, hook_request: &WebhookRequest) {
    let (connection, hook_request) = (hook_request.connection, &hook_request.details);
    out.extend_from_slice(br#"{"kind":"#);
    string(out, hook_request.kind.name());
    if let Some(topic) = &hook_request.topic {
        out.extend_from_slice(br#","topic":"#);
        string(out, topic);
    }
    if let Some(event) = &hook_request.event {
        out.extend_from_slice(br#","event":"#);
        string(out, event);
    }
    if let Some(data) = &hook_request.payload {
        out.extend_from_slice(br#","payload":"#);
        payload(out, data);
    }
    if !hook_request.tags.is_empty() {
        out.extend_from_slice(br#","tags":"#);
        strings(out, &hook_request.tags);
    }
    if let Some(key) = &hook_request.key {
        out.extend_from_slice(br#","key":"#);
        string(out, key);
    }
    who(out, &hook_request.users, connection, hook_request.transport);
    if let Some(connect) = &hook_request.connect {
        connecting(out, connect);
    }
    out.push(b'}');
}

/// Appends a client without a token. A query may repeat a parameter, so each parameter has a list.
fn connecting(out: &mut Vec<u8>, Connecting { address, request, .. }: &Connecting) {
    out.extend_from_slice(br#","address":"#);
    match address {
        Some(address) => string(out, &address.to_string()),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(br#","path":"#);
    string(out, &request.path);
    let mut query: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, value) in &request.query {
        query.entry(name).or_default().push(value);
    }
    let headers: BTreeMap<&str, &str> =
        request.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    // Writing texts to a Vec can't fail.
    out.extend_from_slice(br#","query":"#);
    let _ = serde_json::to_writer(&mut *out, &query);
    out.extend_from_slice(br#","headers":"#);
    let _ = serde_json::to_writer(&mut *out, &headers);
    if let Some(Credentials { client, user, password }) = &request.credentials {
        out.extend_from_slice(br#","client_id":"#);
        string(out, client);
        out.extend_from_slice(br#","username":"#);
        let _ = serde_json::to_writer(&mut *out, user);
        if let Some((password, is_base64)) = password {
            let key = if *is_base64 { "password_base64" } else { "password" };
            out.extend_from_slice(format!(r#","{key}":"#).as_bytes());
            string(out, password);
        }
    }
}

/// The body of the HTTP request with these events. `lost` is how many were dropped since the application last took
/// some.
pub(super) fn events_body<'a>(events: impl Iterator<Item = &'a [u8]>, lost: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(br#"{"events":["#);
    for (at, event) in events.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(event);
    }
    out.push(b']');
    if lost > 0 {
        out.extend_from_slice(format!(r#","lost":{lost}"#).as_bytes());
    }
    out.push(b'}');
    out
}

fn begin(number: u64, at_ms: u64, kind: &str) -> Vec<u8> {
    format!(r#"{{"kind":"{kind}","id":"{number}","time":{at_ms}"#).into_bytes()
}

/// An event about a node that begins.
pub(super) fn started(number: u64, at_ms: u64, node: &str) -> Vec<u8> {
    let mut out = begin(number, at_ms, "started");
    out.extend_from_slice(br#","node":"#);
    string(&mut out, node);
    out.push(b'}');
    out
}

/// An event about a topic.
pub(super) fn about_topic(number: u64, at_ms: u64, kind: &str, topic: &str) -> Vec<u8> {
    let mut out = begin(number, at_ms, kind);
    out.extend_from_slice(br#","topic":"#);
    string(&mut out, topic);
    out.push(b'}');
    out
}

/// An event about a connection; `end` is why it ended, and how many seconds it was open.
pub(super) fn about_connection(
    number: u64,
    at_ms: u64,
    kind: &str,
    source: &EventSource,
    topic: Option<&Name>,
    end: Option<(&str, u32)>,
) -> Vec<u8> {
    let mut out = begin(number, at_ms, kind);
    if let Some(topic) = topic {
        out.extend_from_slice(br#","topic":"#);
        string(&mut out, topic);
    }
    if let Some((reason, seconds)) = end {
        out.extend_from_slice(format!(r#","reason":"{reason}","seconds":{seconds}"#).as_bytes());
    }
    who(&mut out, &source.users, source.connection, source.transport);
    out.push(b'}');
    out
}

/// Appends users, connection and transport.
fn who(out: &mut Vec<u8>, users: &[Name], connection: ConnectionId, transport: &str) {
    out.extend_from_slice(br#","user":"#);
    match users.first() {
        Some(user) => string(out, user),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(br#","users":"#);
    strings(out, users);
    out.extend_from_slice(br#","connection":"#);
    string(out, &connection.to_string());
    out.extend_from_slice(br#","transport":"#);
    string(out, transport);
}

fn payload(out: &mut Vec<u8>, data: &Data) {
    match data {
        Data::Json(text) => out.extend_from_slice(text.as_bytes()),
        Data::Text(text) => string(out, text),
        Data::Binary(bytes) => {
            out.extend_from_slice(br#"{"data":""#);
            out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
            out.extend_from_slice(br#"","encoding":"base64"}"#);
        }
    }
}

fn strings(out: &mut Vec<u8>, texts: &[Name]) {
    protocol::json::strings(texts, out);
}

fn string(out: &mut Vec<u8>, text: &str) {
    // Writing text to a Vec can't fail.
    let _ = serde_json::to_writer(out, text);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use protocol::request::ConnectRequest;
    use shard::{RequestDetails, WebhookKind};

    use super::super::tests::hook_request;
    use super::*;

    fn written(hook_request: &WebhookRequest) -> Value {
        let mut body: Value = serde_json::from_slice(&write([hook_request].into_iter())).unwrap();
        body["events"][0].take()
    }

    #[test]
    fn an_event_is_written_with_all_that_is_known_of_it() {
        let mut request = hook_request(7);
        request.details.topic = Some("room:\"1\"".into());
        request.details.payload = Some(Data::Json(r#"{"n":1.00}"#.into()));
        let want = json!({
            "kind": "message", "topic": "room:\"1\"", "event": "say", "payload": {"n": 1.0},
            "user": "alice", "users": ["alice", "bob"], "connection": "00000009-0-7-3",
            "transport": "phoenix",
        });
        assert_eq!(written(&request), want);
        let raw = String::from_utf8(write([&request].into_iter())).unwrap();
        assert!(raw.contains(r#""payload":{"n":1.00},"#), "numbers keep their digits: {raw}");
    }

    #[test]
    fn who_comes_is_written_with_the_request() {
        let pair = |name: &str, value: &str| (name.into(), value.into());
        let request = ConnectRequest {
            transport: "sse",
            users: Vec::new(),
            path: "/sse".into(),
            query: vec![pair("topic", "a\"b"), pair("x", ""), pair("topic", "c")],
            headers: vec![pair("cookie", "a=b; c=\"d\""), pair("origin", "http://a")],
            credentials: None,
        };
        let connecting = Connecting { address: None, request, topics_max: 9 };
        let request = |connect| {
            let details = RequestDetails::new(WebhookKind::Connect, None, vec!["al".into()], "sse");
            WebhookRequest { details: RequestDetails { connect, ..details }, ..hook_request(7) }
        };
        let bytes = memory_bytes(&request(None));
        let address = "2001:db8::1".parse().unwrap();
        let base = request(Some(Box::new(Connecting { address: Some(address), ..connecting })));
        let texts = [
            "/sse",
            "topic",
            "a\"b",
            "x",
            "topic",
            "c",
            "cookie",
            "a=b; c=\"d\"",
            "origin",
            "http://a",
        ];
        let all: usize = texts.iter().map(|text| text.len()).sum();
        assert_eq!(memory_bytes(&base) - bytes, all, "what a client sends is counted");
        let want = json!({
            "kind": "connect", "user": "al", "users": ["al"], "connection": "00000009-0-7-3",
            "transport": "sse", "address": "2001:db8::1", "path": "/sse",
            "query": {"topic": ["a\"b", "c"], "x": [""]},
            "headers": {"cookie": "a=b; c=\"d\"", "origin": "http://a"},
        });
        assert_eq!(written(&base), want);
        let details = RequestDetails::new(WebhookKind::Refresh, None, Vec::new(), "ws");
        let want = json!({
            "kind": "refresh", "user": null, "users": [], "connection": "00000009-0-7-3",
            "transport": "ws",
        });
        assert_eq!(written(&WebhookRequest { details, ..hook_request(7) }), want);
    }

    #[test]
    fn payloads_that_are_no_json_become_json() {
        let mut request = hook_request(7);
        request.details.kind = WebhookKind::Publish;
        request.details.users.clear();
        (request.details.tags, request.details.key) =
            (vec!["a".into(), "b\"".into()], Some("k".into()));
        request.details.payload = Some(Data::Text("a\n\"b\"".into()));
        let event = written(&request);
        assert_eq!(event["kind"], "publish");
        assert_eq!((&event["tags"], &event["key"]), (&json!(["a", "b\""]), &json!("k")));
        assert_eq!(event["payload"], "a\n\"b\"");
        assert_eq!((&event["user"], &event["users"]), (&Value::Null, &json!([])));
        request.details.payload = Some(Data::Binary([0, 255].into()));
        assert_eq!(written(&request)["payload"], json!({"data": "AP8=", "encoding": "base64"}));
        (request.details.kind, request.details.payload, request.details.event) =
            (WebhookKind::Subscribe, None, None);
        let event = written(&request);
        assert_eq!(event["kind"], "subscribe");
        assert!(event.get("payload").is_none() && event.get("event").is_none(), "{event}");
    }

    #[test]
    fn events_stay_in_order() {
        let hook_requests: Vec<WebhookRequest> = (0..3).map(hook_request).collect();
        let body: Value = serde_json::from_slice(&write(hook_requests.iter())).unwrap();
        let names: Vec<_> = (0..3).map(|n| body["events"][n]["connection"].clone()).collect();
        assert_eq!(names, ["00000009-0-0-3", "00000009-0-1-3", "00000009-0-2-3"]);
    }
}
