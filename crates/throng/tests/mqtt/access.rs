//! Topics to which a client may subscribe and publish, by its token and by the application's decision.

use protocol::mqtt::client::SubscribeParts;
use protocol::mqtt::write::ConfirmType;
use serde_json::{Value, json};

use crate::application::{Act, Application};
use crate::mqtt::auth::{guarded, signed};
use crate::mqtt::client::*;
use crate::mqtt::raw::BOTH;
use crate::support::Server;

/// Connects a client of this name with a token that grants these topics.
fn granted(server: &Server, connect: Connect, user: &str, topics: &[&str]) -> Client {
    let throng = json!({"subscribe": topics, "publish": topics});
    let token = signed(&json!({"sub": user, "throng": throng}));
    connect.user(user).password(&token).open(server.client)
}

fn code(client: &mut Client, requested: &str) -> u8 {
    client.subscribe_with(&[SubscribeParts { filter: requested, ..filter("", 1) }], &[])[0]
}

#[test]
fn grants_may_name_the_client_and_its_user() {
    let server = guarded(&[]);
    let patterns = ["devices/{client}/*", "users/{sub}/*", "{sub}/{client}"];
    for version in BOTH {
        let no = if version == V3 { 0x80 } else { 0x87 };
        let own = |client: &str| Connect::new(version, client);
        let mut seven = granted(&server, own("7"), "alice", &patterns);
        for (requested, may) in [
            ("devices/7/temp", true),
            ("devices/7/#", true),
            ("devices/7/+/x", true),
            ("users/alice/1", true),
            ("alice/7", true),
            ("devices/8/temp", false),
            ("devices/+/temp", false),
            ("devices/#", false),
            ("#", false),
            ("devices/{client}/temp", false),
            ("users/bob/1", false),
            ("users/{sub}/1", false),
            ("alice/8", false),
            ("7/alice", false),
        ] {
            assert_eq!(
                code(&mut seven, requested),
                if may { 1 } else { no },
                "{version:?} {requested}"
            );
        }
        let mut all = granted(&server, own("all"), "root", &["*"]);
        all.subscribe(&[filter("devices/#", 1), filter("users/#", 1)]);
        seven.publish("devices/7/x", "own", 1);
        assert_eq!(all.message().topic, "devices/7/x");
        seven.publish("users/alice/x", "own", 2);
        assert_eq!(all.message().topic, "users/alice/x");
        for topic in ["devices/8/x", "users/bob/x", "devices/{client}/x"] {
            let mut seven = granted(&server, own("7"), "alice", &patterns);
            seven.send(&Publish::new(topic, "x", 1).bytes(version));
            match version {
                V3 => seven.expect_events(&[Event::Closed]),
                V5 => seven.expect_events(&[Event::Confirm("PUBACK", 1, 0x87)]),
            }
        }
        all.is_quiet();
        all.disconnect();
    }
}

#[test]
fn a_client_widens_no_grant_by_what_it_calls_itself() {
    let server = guarded(&[]);
    let patterns = ["devices/{client}/*"];
    for version in BOTH {
        let no = if version == V3 { 0x80 } else { 0x87 };
        for name in ["*", "+", "#", "a/b", "", "{client}", "{sub}", "x*"] {
            let mut client = granted(&server, Connect::new(version, name), "alice", &patterns);
            for requested in
                ["devices/8/temp", "devices/+/temp", "devices/a/b/temp", "devices/x1/temp"]
            {
                assert_eq!(code(&mut client, requested), no, "{name:?} {requested}");
            }
            client.disconnect();
        }
    }
}

/// Starts a server that calls this application's webhook for topics `asked:…`, with a long timeout.
fn serve_with_webhook(app: &Application) -> Server {
    serve_with_webhook_and(app, &[("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "60000")])
}

/// Starts a server with a short webhook timeout. The application's reply may come too late.
fn hasty(app: &Application, settings: &[(&str, &str)]) -> Server {
    let hasty = [("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "500")];
    serve_with_webhook_and(app, &[&hasty, settings].concat())
}

fn serve_with_webhook_and(app: &Application, settings: &[(&str, &str)]) -> Server {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tokens/asked.toml");
    let url = app.url();
    let own = [("THRONG_WEBHOOK_URL", url.as_str()), ("THRONG_LOG_LEVEL", "error")];
    let flags = ["--mqtt", "127.0.0.1:0", "--shards", "2", "--config", config];
    Server::with(&flags, &[&own, settings].concat())
}

/// The application: it admits alice, rejects all others, and never replies about topics with `silent`.
fn members(events: &[Value]) -> Act {
    let is_silent = |event: &Value| event["topic"].as_str().unwrap().contains("silent");
    if events.iter().any(is_silent) {
        return Act::Hang;
    }
    let reply = |event: &Value| match event["user"].as_str() {
        Some("alice") => json!({}),
        _ => json!({"status": "error", "response": {"code": "members_only"}}),
    };
    Act::Reply(events.iter().map(reply).collect())
}

#[test]
fn the_application_decides_who_subscribes() {
    let app = Application::start(members);
    let server = serve_with_webhook(&app);
    for version in BOTH {
        let no = if version == V3 { 0x80 } else { 0x87 };
        let mut alice = Connect::new(version, "a").user("alice").open(server.client);
        let mut bob = Connect::new(version, "b").user("bob").open(server.client);
        // SUBACK has a code for each filter, in their order, as soon as the application has replied.
        let filters = [filter("plain", 2), filter("asked:1", 1), filter("wild/+", 0)];
        assert_eq!(alice.subscribe_with(&filters, &[]), [2, 1, 0]);
        let event = app.events().pop().unwrap();
        let said = ["kind", "topic", "user", "transport"].map(|key| event[key].as_str().unwrap());
        assert_eq!(said, ["subscribe", "asked:1", "alice", "mqtt"], "{event}");
        assert_eq!(bob.subscribe_with(&filters, &[]), [2, no, 0]);
        // Wildcards do not match topics that need a webhook.
        bob.subscribe(&[filter("#", 1), filter("+", 1)]);
        server.publish("asked:1", json!("for members"));
        assert_eq!(alice.message().payload, "for members");
        bob.is_quiet();
        server.publish("plain", json!("for all"));
        assert_eq!(bob.message().payload, "for all");
        alice.disconnect();
        bob.disconnect();
    }
}

/// The codes that SUBACK and PUBACK may have where something is refused (MQTT 5.0, sections 3.9.3 and 3.4.2.1).
const SUBACK: [u8; 8] = [0x80, 0x83, 0x87, 0x8f, 0x91, 0x97, 0x9e, 0xa2];
const PUBACK: [u8; 7] = [0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];

#[test]
fn silence_of_the_application_admits_no_client() {
    let app = Application::start(members);
    let denies = hasty(&app, &[]);
    let allows = hasty(&app, &[("THRONG_WEBHOOK_SILENCE", "allow")]);
    for version in BOTH {
        let alice = Connect::new(version, "a").user("alice");
        let mut one = alice.open(denies.client);
        let codes = one.subscribe_with(&[filter("asked:silent", 1), filter("plain", 1)], &[]);
        match version {
            V3 => assert_eq!(codes, [0x80, 1]),
            V5 => assert!(SUBACK.contains(&codes[0]) && codes[1] == 1, "{codes:02x?}"),
        }
        denies.publish("asked:silent", json!("not for it"));
        one.is_quiet();
        let mut one = alice.open(allows.client);
        one.subscribe(&[filter("asked:silent", 1)]);
        allows.publish("asked:silent", json!("for it"));
        assert_eq!(one.message().payload, "for it");
    }
}

#[test]
fn requests_beyond_capacity_are_rejected_by_a_code_that_suback_has() {
    let app = Application::start(members);
    let server = hasty(&app, &[("THRONG_WEBHOOK_QUEUE_EVENTS_PER_URL_MAX", "1")]);
    let mut alice = Connect::new(V5, "a").user("alice").open(server.client);
    let filters = [filter("asked:silent", 1), filter("asked:1", 1), filter("asked:2", 1)];
    let codes = alice.subscribe_with(&filters, &[]);
    assert!(codes.iter().all(|code| *code == 1 || SUBACK.contains(code)), "{codes:02x?}");
    assert!(codes.iter().any(|code| *code != 1), "{codes:02x?}");
    alice.ping();
}

#[test]
fn the_application_decides_what_is_published() {
    let app = Application::start(members);
    let (server, hasty) = (serve_with_webhook(&app), hasty(&app, &[]));
    let mut subscriber = Connect::new(V5, "hears").user("alice").open(server.client);
    subscriber.subscribe(&[filter("asked:1", 2)]);
    let mut alice = Connect::new(V5, "a").user("alice").open(server.client);
    alice.publish("asked:1", "one", 1);
    alice.publish("asked:1", "two", 2);
    assert_eq!([subscriber.message().payload, subscriber.message().payload], ["one", "two"]);
    for (server, user, topic) in [(&server, "bob", "asked:1"), (&hasty, "alice", "asked:silent")] {
        let mut client = Connect::new(V5, "refused").user(user).open(server.client);
        for (qos, expected) in [(1, "PUBACK"), (2, "PUBREC")] {
            client.send(&Publish { id: 3, ..Publish::new(topic, "no", qos) }.bytes(V5));
            match client.next() {
                Event::Confirm(name, 3, code) => {
                    assert!(name == expected && PUBACK.contains(&code), "{name} {code:#x}");
                }
                other => panic!("{other:?}"),
            }
        }
        // After the rejection the identifier is free, and a PUBREL for it is an error.
        client.confirm(ConfirmType::Pubrel, 3);
        client.expect_events(&[Event::Confirm("PUBCOMP", 3, 0x92)]);
        client.disconnect();
        // MQTT 3 has no packet for a rejection.
        let mut client = Connect::new(V3, "refused").user(user).open(server.client);
        client.send(&Publish::new(topic, "no", 1).bytes(V3));
        client.expect_events(&[Event::Closed]);
    }
    subscriber.is_quiet();
}
