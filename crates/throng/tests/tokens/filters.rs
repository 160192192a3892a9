//! Tokens and MQTT topic filters: a filter may match only topics that the token grants.

use serde_json::json;

use crate::support::*;
use crate::tokens::support::*;

/// Filters, how a URL writes them, and whether a client with the grant `sensors/*` may subscribe to them.
const FILTERS: [(&str, &str, bool); 8] = [
    ("sensors/+", "sensors/%2B", true),
    ("sensors/+/temp", "sensors/%2B/temp", true),
    ("sensors/7", "sensors/7", true),
    ("#", "%23", false),
    ("+", "%2B", false),
    ("+/7", "%2B/7", false),
    ("other/+", "other/%2B", false),
    ("sensors", "sensors", false),
];

fn server() -> Server {
    serve(&[("THRONG_CLIENT_WILDCARDS", "true")])
}

/// Returns the token of a user who may subscribe to topics below `sensors`.
fn of_sensors() -> String {
    token(listener("al", &["sensors/*"]))
}

/// Checks that the client gets messages that match its filters, and none that the token does not grant.
fn receives_sensors(server: &Server, client: &mut Client) {
    server.publish("other/7", json!("not granted"));
    server.publish("sensors/7", json!("granted"));
    let event = client.until("message");
    assert_eq!(event, json!("granted"));
}

#[test]
fn a_filter_in_a_request_reaches_no_more_than_its_token_grants() {
    let (server, token) = (server(), of_sensors());
    for transport in [Transport::Sse, Transport::Stream, Transport::Ws] {
        for (filter, encoded, may) in FILTERS {
            let query = format!("topic={encoded}&filter=mqtt&token={token}");
            match Client::open(&server, transport, &query, "") {
                Ok(_) => assert!(may, "{transport:?} {filter}"),
                Err(reply) => {
                    let status = if transport == Transport::Ws { 4403 } else { 403 };
                    assert_eq!(reply.error(), (status, "not_granted"), "{transport:?} {filter}");
                    assert!(!may, "{transport:?} {filter}");
                }
            }
        }
        // One filter without a grant rejects the whole request.
        let both = format!("topic=sensors/%2B&topic=%23&filter=mqtt&token={token}");
        assert!(Client::open(&server, transport, &both, "").is_err(), "{transport:?}");
        let query = format!("topic=sensors/%2B&filter=mqtt&token={token}");
        let mut client = Client::open(&server, transport, &query, "").ok().unwrap();
        receives_sensors(&server, &mut client);
    }
}

#[test]
fn a_filter_of_a_command_reaches_no_more_than_the_token_grants() {
    let (server, token) = (server(), of_sensors());
    let mut client =
        Client::open(&server, Transport::Ws, &format!("token={token}"), "").ok().unwrap();
    for (filter, _, may) in FILTERS {
        let subscribe = json!({"type": "subscribe", "topic": filter, "filter": "mqtt"});
        let expected = if may { json!({"topic": filter}) } else { json!("not_granted") };
        assert_eq!(client.command(subscribe), expected, "{filter}");
    }
    receives_sensors(&server, &mut client);
}

#[test]
fn a_channel_that_is_a_filter_reaches_no_more_than_the_token_grants() {
    let (server, token) = (server(), of_sensors());
    for transport in [Transport::Phoenix, Transport::Longpoll] {
        let opened = Client::open(&server, transport, &format!("token={token}"), "");
        let mut client = opened.ok().unwrap();
        for (filter, _, may) in FILTERS {
            let reply = client.join(filter, json!({"filter": "mqtt"}));
            let expected = if may { "ok" } else { "error" };
            assert_eq!(reply["status"], expected, "{transport:?} {filter}: {reply}");
        }
        receives_sensors(&server, &mut client);
    }
}
