//! The back ends of examples/forward-python and examples/forward-go, as processes, with MQTT clients that send
//! requests to them.

use std::process::Command;

use crate::backends::{Backend, folder, go, python};
use crate::mqtt::client::{Connect, Publish, V3, V5, filter};
use crate::support::{Scratch, Server, json as request};
use protocol::mqtt::{Value as Property, id};
use serde_json::{Value, json};

/// Checks everything that the example does.
fn replies_requests(backend: &Backend, of: &str) {
    let file = std::fs::read_to_string(folder(of).join("throng.toml")).unwrap();
    let file = file
        .replace("http://127.0.0.1:9000/requests", &backend.url)
        .replace("127.0.0.1:1883", "127.0.0.1:0");
    assert!(file.contains(&backend.url));
    let scratch = Scratch::new(of);
    let path = scratch.path().join("throng.toml");
    crate::support::write_secret(&path, &file);
    let mut throng = Command::new(env!("CARGO_BIN_EXE_throng"));
    throng.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    throng.arg(&path);
    let server = Server::run(throng, &[]);

    let mut shop = Connect::new(V3, "shop").open(server.client);
    shop.subscribe(&[filter("orders", 1), filter("requests/#", 1)]);
    let mut pump = Connect::new(V5, "pump-7").user("alice").open(server.client);
    pump.subscribe(&[filter("answers/7", 1), filter("@alice", 1)]);
    let send_request = |topic: &'static str, item: &'static str| {
        Publish::new(topic, item, 1)
            .with((id::RESPONSE_TOPIC, Property::Text("answers/7")))
            .with((id::CORRELATION_DATA, Property::Binary(b"42")))
    };
    let said = |payload: &str| -> Value { serde_json::from_str(payload).unwrap() };
    for (item, want) in [
        ("tea", json!({"item": "tea", "price": 3})),
        ("gold", json!({"error": "there is tea and cake"})),
    ] {
        pump.publish_all(send_request("requests/price", item));
        let reply = pump.message();
        assert_eq!((&*reply.topic, said(&reply.payload)), ("answers/7", want));
        assert_eq!(reply.property(id::CORRELATION_DATA), Some("42"));
    }
    // Without a response topic the reply goes to the user. The shop gets the order, and nothing else.
    pump.publish("requests/order", "cake", 2);
    let reply = pump.message();
    assert_eq!(said(&reply.payload), json!({"ordered": "cake", "price": 4}));
    let order = shop.message();
    assert_eq!((&*order.topic, order.qos), ("orders", 1));
    assert_eq!(said(&order.payload), json!({"item": "cake", "from": "alice", "client": "pump-7"}));
    shop.is_quiet();
    assert_eq!(server.metric("throng_forward_answers_refused_total{filter=\"requests/#\"}"), 0.0);
    // The back end rejects requests without a valid signature.
    let address = backend.url.split('/').nth(2).unwrap().parse().unwrap();
    let body = json!({"messages": []});
    for headers in ["", "webhook-id: a\r\nwebhook-timestamp: 1\r\nwebhook-signature: v1,AAAA\r\n"] {
        assert_eq!(request(address, "POST", "/requests", Some(body.clone()), headers).0, 401);
    }
}

#[test]
fn the_back_end_in_python_replies_requests() {
    replies_requests(&python("forward-python", &[]), "forward-python");
}

#[test]
fn the_back_end_in_go_replies_requests() {
    let backend = go("forward-go", "TEST_GO_FORWARD", &[]);
    replies_requests(&backend, "forward-go");
}
