//! The back ends of examples/backend, in Python and in Go, as processes, with a server that sends its webhook
//! requests to them.

use std::process::Command;

use crate::backends::{Backend, folder, go, python};
use crate::support::{Server, command, json as request, websocket};
use serde_json::{Value, json};

const KEY: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// The server requests a refresh when half of a session has passed; the back end has the other half to reply.
const SETTINGS: [(&str, &str); 2] = [("SIGNING_KEY", KEY), ("SESSION_SECONDS", "6")];

fn serve(url: &str, key: &str) -> Server {
    let mut throng = Command::new(env!("CARGO_BIN_EXE_throng"));
    throng.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]);
    throng.arg(folder("backend").join("throng.toml"));
    let settings = [
        ("THRONG_WEBHOOK_URL", url),
        ("THRONG_WEBHOOK_SIGNING_KEY", key),
        ("THRONG_WEBHOOK_OCCUPANCY_MILLISECONDS", "100"),
        // The server waits for a back end that a slow machine holds up.
        ("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "60000"),
    ];
    Server::run(throng, &settings)
}

fn online(backend: &Backend) -> Value {
    let address = backend.url.split('/').nth(2).unwrap().parse().unwrap();
    request(address, "GET", "/", None, "").1
}

/// Checks everything that the example does.
fn decides_replies_and_gets_events(backend: &Backend) {
    let server = serve(&backend.url, KEY);
    // The back end says which user a session belongs to. A client that names another user is rejected.
    let (status, error) = server.get("/poll?topic=free&timeout=0");
    assert_eq!((status, &error["error"]["code"]), (401, &json!("unauthorized")));
    let (status, error) = server.get("/poll?user=bob&session=session-of-eve&timeout=0");
    assert_eq!((status, &error["error"]["code"]), (403, &json!("not_your_user")));
    for (cookie, status) in [("x=1; session=session-of-eve", 200), ("session=", 401), ("=;;", 401)]
    {
        let headers = format!("Cookie: {cookie}\r\n");
        let got = request(server.client, "GET", "/poll?topic=free&timeout=0", None, &headers);
        assert_eq!(got.0, status, "{cookie}");
    }
    let mut alice = websocket(&server, "session=session-of-alice&topic=chat:1");
    let entered = command(&mut alice, json!({"type": "subscribe", "id": 1, "topic": "doc:7"}));
    assert_eq!(entered["ok"]["topic"], "doc:7", "{entered}");
    // The server sends presence notices at intervals.
    server.until("alice shows what the back end says", |_| {
        let list = command(&mut alice, json!({"type": "presence", "id": 2, "topic": "doc:7"}));
        list["ok"]["presences"]["alice"]["metas"][0]["name"] == "Alice"
    });
    let (status, error) = server.get("/sse?session=session-of-eve&topic=doc:7");
    assert_eq!((status, &error["error"]["code"]), (403, &json!("members_only")));
    assert_eq!(server.get("/poll?session=session-of-bob&topic=doc:7&timeout=0").0, 200);

    let mut say = |data: &str| {
        let publish = json!({"type": "publish", "id": 3, "topic": "chat:1", "data": data});
        alice.send(tungstenite::Message::text(publish.to_string())).unwrap();
        // The message and the reply come in either order. Presence notices of the document come in between.
        let (mut event, mut replied) = (None, false);
        loop {
            let next = crate::support::receive(&mut alice);
            if next["error"].is_object() {
                return next;
            }
            replied |= next["id"] == 3;
            event = event.or((next["topic"] == "chat:1").then_some(next));
            if replied && let Some(event) = event.take() {
                return event;
            }
        }
    };
    assert_eq!(say("hello")["data"], "hello");
    assert_eq!(say("damn it")["data"], "d*** it");
    assert_eq!(say("buy spam")["error"]["code"], "no_spam");
    let order = |item: &str| {
        let body = Some(json!({"item": item}));
        request(server.client, "POST", "/publish?topic=order:1&session=session-of-bob", body, "")
    };
    assert_eq!(order("tea"), (200, json!({"ordered": "tea", "price": 3})));
    let (status, error) = order("gold");
    assert_eq!((status, &error["error"]["code"]), (403, &json!("unknown_item")));

    let want = json!({"users": ["alice"], "topics": ["chat:1", "doc:7"]});
    server.until("the back end knows who is there", |_| online(backend) == want);
    drop(alice);
    let no_users = json!({"users": [], "topics": []});
    server.until("the back end knows that nobody is", |_| online(backend) == no_users);
}

/// The server requests refreshes of a session of a few seconds, and the session goes on.
fn lets_stay(backend: &Backend) {
    let server = serve(&backend.url, KEY);
    let mut stream = server.listen("/stream?session=session-of-bob&topic=free");
    assert_eq!(stream.next_object()["users"], json!(["bob"]));
    server.until("it was asked whether he may stay, and again", |server| {
        server.metric("throng_webhook_events_total{result=\"ok\"}") >= 3.0
    });
    server.publish("free", json!("still"));
    while stream.next_object()["data"] != "still" {}
    assert_eq!(server.metric("throng_webhook_events_total{result=\"error\"}"), 0.0);
}

/// The back end rejects requests that are signed with another key.
fn wants_the_signature(backend: &Backend) {
    let server = serve(&backend.url, "another key of which nobody knows anything");
    let (status, error) = server.get("/poll?user=alice&topic=doc:7&timeout=0");
    assert_eq!((status, &error["error"]["code"]), (503, &json!("unanswered")), "{error}");
    let address = backend.url.split('/').nth(2).unwrap().parse().unwrap();
    let body = json!({"events": []});
    for headers in [
        "",
        "webhook-id: a\r\nwebhook-timestamp: 1\r\nwebhook-signature: v1,AAAA\r\n",
        "webhook-id: a\r\nwebhook-timestamp: x\r\nwebhook-signature: \r\n",
    ] {
        assert_eq!(request(address, "POST", "/throng", Some(body.clone()), headers).0, 401);
    }
}

#[test]
fn the_back_end_in_python_decides_replies_and_gets_events() {
    let backend = python("backend", &SETTINGS);
    decides_replies_and_gets_events(&backend);
    lets_stay(&backend);
    wants_the_signature(&backend);
}

#[test]
fn the_back_end_in_go_decides_replies_and_gets_events() {
    let backend = go("backend", "TEST_GO_BACKEND", &SETTINGS);
    decides_replies_and_gets_events(&backend);
    lets_stay(&backend);
    wants_the_signature(&backend);
}
