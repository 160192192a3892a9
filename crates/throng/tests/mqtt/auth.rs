//! How a client proves its user by a token or by the application's decision, and for how long.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use protocol::mqtt::{ReasonCode, Value, id, write};
use serde_json::json;

use crate::application::{Act, Application};
use crate::mqtt::client::*;
use crate::mqtt::raw::BOTH;
use crate::mqtt::{Configured, server};
use crate::support::{Server, TIMEOUT};

/// The key that signs the tokens.
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Starts a server that requires tokens. Clients may publish to `a` and `b`, and to topics below them.
pub fn guarded(settings: &[(&str, &str)]) -> Configured {
    let own = [
        ("THRONG_AUTH_HMAC_KEY", KEY),
        ("THRONG_AUTH_REQUIRED", "true"),
        ("THRONG_AUTH_EXPIRY_SPREAD_SECONDS", "0"),
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "a,b,devices/,users/"),
    ];
    server(&[&own, settings].concat())
}

pub fn signed(claims: &serde_json::Value) -> String {
    let signer = token::Signer::new(KEY, "HS256".parse().unwrap(), None).unwrap();
    signer.sign(claims).unwrap()
}

/// Returns a token with which a user may subscribe and publish to these topics, valid for this many seconds.
fn grants(user: &str, topics: &[&str], seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let throng = json!({"subscribe": topics, "publish": topics});
    signed(&json!({"sub": user, "exp": now + seconds, "iat": now, "throng": throng}))
}

/// Connects with a token that expires soon. Makes another token if the machine is so slow that the token expires
/// before.
fn open_briefly(server: &Server, connect: impl Fn(&str) -> Connect) -> Client {
    let end = Instant::now() + TIMEOUT;
    loop {
        let token = grants("alice", &["a", "b"], 3);
        let (client, outcome) = connect(&token).try_open(server.client);
        if outcome.code == 0 {
            return client;
        }
        assert!(Instant::now() < end, "each token has expired before it is used");
    }
}

/// The client authenticates again, with another token.
fn reauthenticate(client: &mut Client, properties: &[Property]) {
    client.send(&bytes(|out| write::auth(ReasonCode::ReAuthenticate, properties, out)));
}

fn may_publish(client: &mut Client, topic: &str) -> bool {
    let id = client.id();
    client.send(&Publish { id, ..Publish::new(topic, "x", 1) }.bytes(client.version));
    match client.next() {
        Event::Confirm("PUBACK", confirmed, code) if confirmed == id => {
            assert!([0, 0x10, 0x87].contains(&code), "{code:#x}");
            code != 0x87
        }
        other => panic!("{other:?} in place of PUBACK"),
    }
}

#[test]
fn a_token_is_the_password_the_user_name_or_authentication_data() {
    let server = guarded(&[]);
    let token = grants("alice", &["a"], 600);
    for version in BOTH {
        let connect = Connect::new(version, "phone");
        let mut ways =
            vec![connect.clone().user("alice").password(&token), connect.clone().user(&token)];
        if version == V5 {
            ways.push(connect.clone().password(&token));
            ways.push(connect.clone().authenticates(&token));
            ways.push(connect.clone().user("alice").authenticates(&token));
        }
        for way in ways {
            let (mut alice, outcome) = way.try_open(server.client);
            assert_eq!(outcome.code, 0, "{way:?}");
            // CONNACK repeats the authentication method if the client has named one.
            let method = (!way.properties.is_empty()).then_some("token");
            assert_eq!(outcome.property(id::AUTHENTICATION_METHOD), method);
            alice.subscribe(&[filter("a", 1), filter("@alice", 1)]);
            server.post("/api/send", json!({"user": "alice", "data": "hello"}));
            assert_eq!(alice.message().payload, "hello");
            alice.disconnect();
        }
    }
}

#[test]
fn who_proves_nothing_is_refused_and_closed() {
    let server = guarded(&[]);
    let token = grants("alice", &["a"], 600);
    let forged = format!("{token}x");
    let expired = signed(&json!({"sub": "alice", "exp": 1_000_000}));
    for version in BOTH {
        let connect = Connect::new(version, "phone");
        let (not_authorized, wrong) = if version == V3 { (5, 4) } else { (0x87, 0x86) };
        let mut refused = vec![
            (connect.clone(), not_authorized),
            (connect.clone().user("alice"), not_authorized),
            (connect.clone().user("alice").password("secret"), not_authorized),
            (connect.clone().user("alice").password(&forged), wrong),
            (connect.clone().user("alice").password(&expired), wrong),
            (connect.clone().user("bob").password(&token), wrong),
            (connect.clone().user(&forged), wrong),
        ];
        if version == V5 {
            refused.push((connect.clone().authenticates(&forged), wrong));
            refused.push((connect.clone().user("bob").authenticates(&token), wrong));
        }
        for (connect, expected) in refused {
            let (mut client, outcome) = connect.try_open(server.client);
            assert_eq!((outcome.code, outcome.session_present), (expected, false), "{connect:?}");
            assert_eq!(outcome.property(id::AUTHENTICATION_METHOD), None);
            client.expect_events(&[Event::Closed]);
        }
    }
}

#[test]
fn a_client_goes_on_with_a_new_token() {
    let server = guarded(&[]);
    let connect = Connect::new(V5, "phone").authenticates(&grants("alice", &["a"], 600));
    let mut alice = connect.open(server.client);
    assert_eq!(alice.subscribe_with(&[filter("a", 1), filter("b", 1)], &[]), [1, 0x87]);
    assert!(!may_publish(&mut alice, "b"));
    reauthenticate(&mut alice, &by_token(&grants("alice", &["a", "b"], 600)));
    let said = vec![(id::AUTHENTICATION_METHOD, "token".to_string())];
    alice.expect_events(&[Event::Auth(0, said)]);
    // The new token's grants apply from now on.
    alice.subscribe(&[filter("b", 1)]);
    assert!(may_publish(&mut alice, "b"));
    assert_eq!(alice.message().payload, "x");
    // A token with fewer grants takes grants away.
    reauthenticate(&mut alice, &by_token(&grants("alice", &["a"], 600)));
    assert!(matches!(alice.next(), Event::Auth(0, _)));
    assert!(!may_publish(&mut alice, "b"));
    assert!(may_publish(&mut alice, "a"));
}

#[test]
fn a_connection_lasts_as_long_as_its_newest_token() {
    let server = guarded(&[]);
    let connect = |token: &str| Connect::new(V5, "phone").authenticates(token);
    let end = Instant::now() + TIMEOUT;
    let (mut alice, opened) = loop {
        let mut alice = open_briefly(&server, connect);
        let opened = Instant::now();
        reauthenticate(&mut alice, &by_token(&grants("alice", &["a"], 600)));
        match alice.next() {
            Event::Auth(0, _) => break (alice, opened),
            // The first token expired before.
            Event::Disconnect(0x87, _) => assert!(Instant::now() < end, "each has expired before"),
            other => panic!("{other:?}"),
        }
    };
    // The first token, valid for three seconds, has expired. A connection would end at most a second after its token.
    std::thread::sleep(Duration::from_secs(6).saturating_sub(opened.elapsed()));
    alice.ping();
    // The newest token may also expire earlier.
    reauthenticate(&mut alice, &by_token(&grants("alice", &["a"], 2)));
    match alice.next() {
        Event::Auth(0, _) => alice.is_ended_for(0x87),
        // On a slow machine this token expires before it arrives.
        Event::Disconnect(0x87, _) => alice.expect_events(&[Event::Closed]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_token_that_is_none_ends_the_connection() {
    let server = guarded(&[]);
    let token = grants("alice", &["a", "b"], 600);
    let mut witness = Connect::new(V5, "witness").password(&token).open(server.client);
    witness.subscribe(&[filter("b", 1)]);
    let [method, data] = by_token(&token);
    let other = (id::AUTHENTICATION_METHOD, Value::Text("other"));
    let cases = [
        (by_token(&format!("{token}x")).to_vec(), 0x87),
        (by_token(&signed(&json!({"sub": "alice", "exp": 1_000_000}))).to_vec(), 0x87),
        (by_token(&grants("bob", &["a"], 600)).to_vec(), 0x87),
        (by_token("").to_vec(), 0x87),
        (vec![method], 0x87),
        (vec![other, data], 0x8c),
    ];
    for (properties, expected) in cases {
        let connect = Connect::new(V5, "phone").will("b", "gone", 1).authenticates(&token);
        let mut alice = connect.open(server.client);
        reauthenticate(&mut alice, &properties);
        alice.is_ended_for(expected);
        assert_eq!(witness.message().payload, "gone");
    }
}

#[test]
fn who_has_not_begun_with_a_method_does_not_go_on_with_one() {
    let server = guarded(&[]);
    let token = grants("alice", &["a"], 600);
    let mut alice = Connect::new(V5, "phone").password(&token).open(server.client);
    reauthenticate(&mut alice, &by_token(&token));
    alice.is_ended_for(0x8c);
}

#[test]
fn an_unrequested_response_is_a_fault() {
    let server = guarded(&[]);
    let token = grants("alice", &["a"], 600);
    let mut alice = Connect::new(V5, "phone").authenticates(&token).open(server.client);
    let outcome = by_token(&token);
    alice.send(&bytes(|out| write::auth(ReasonCode::ContinueAuthentication, &outcome, out)));
    alice.is_ended_for(0x82);
}

#[test]
fn a_token_that_expires_ends_its_connections() {
    let server = guarded(&[]);
    let lasting = grants("alice", &["a", "b"], 600);
    let mut witness = Connect::new(V5, "witness").password(&lasting).open(server.client);
    witness.subscribe(&[filter("b", 1)]);
    let token = grants("alice", &["a", "b"], 1);
    for version in BOTH {
        let connect = Connect::new(version, "phone").user("alice").will("b", "expired", 1);
        let mut alice = open_briefly(&server, |token| connect.clone().password(token));
        alice.is_ended_for(0x87);
        assert_eq!(witness.message().payload, "expired");
    }
    let (_, outcome) = Connect::new(V5, "phone").password(&token).try_open(server.client);
    assert_eq!(outcome.code, 0x86);
}

#[test]
fn a_revoked_token_ends_its_connections_and_counts_no_more() {
    let server = guarded(&[]);
    for version in BOTH {
        let user = format!("alice {version:?}");
        let token = grants(&user, &["a"], 600);
        let connect = Connect::persistent(version, "phone").user(&user).password(&token);
        let mut alice = connect.open(server.client);
        alice.subscribe(&[filter("a", 1)]);
        let bob = grants("bob", &["a"], 600);
        let mut bob = Connect::new(version, "other").user("bob").password(&bob).open(server.client);
        let outcome = server.post("/api/revoke", json!({"user": user}));
        assert_eq!(outcome["closed"], 1, "{outcome}");
        alice.is_ended_for(0x87);
        let (_, outcome) = connect.try_open(server.client);
        assert_eq!(outcome.code, if version == V3 { 4 } else { 0x86 });
        bob.ping();
    }
}

/// Starts a server that calls the application's `connect` webhook.
fn serve_with_webhook(app: &Application, timeout_milliseconds: &str) -> Configured {
    let url = app.url();
    server(&[
        ("THRONG_WEBHOOK_URL", &url),
        ("THRONG_WEBHOOK_CONNECT", "true"),
        ("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", timeout_milliseconds),
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "a,b"),
    ])
}

#[test]
fn the_application_says_who_a_client_is() {
    let app = Application::start(|events| {
        let grants = json!({"subscribe": ["a"], "publish": []});
        let reply = |event: &serde_json::Value| {
            if event["password"] == "right" {
                return json!({"user": "alice", "grants": grants});
            }
            if event["password_base64"] == "/w==" {
                return json!({});
            }
            json!({"status": "error", "response": {"code": "unauthorized"}})
        };
        match events[0]["client_id"].as_str() {
            Some("hangs") => Act::Hang,
            _ => Act::Reply(events.iter().map(reply).collect()),
        }
    });
    let (server, hasty) = (serve_with_webhook(&app, "60000"), serve_with_webhook(&app, "500"));
    for version in BOTH {
        let connect = Connect::new(version, "sensor 7");
        let named = connect.clone().user("login");
        let mut alice = named.clone().password("right").open(server.client);
        let refused = if version == V3 { 0x80 } else { 0x87 };
        let codes = alice.subscribe_with(&[filter("a", 1), filter("b", 1)], &[]);
        assert_eq!(codes, [1, refused]);
        let event = app.events().pop().unwrap();
        let said = ["kind", "transport", "client_id", "username", "password"];
        let said = said.map(|key| event[key].as_str().unwrap_or_default());
        assert_eq!(said, ["connect", "mqtt", "sensor 7", "login", "right"], "{event}");
        assert_eq!(event["users"], json!(["login"]), "whom it names, which nobody has proved");
        server.until("it is alice", |server| {
            let (_, outcome) = server.api("GET", "/api/users/alice", None);
            outcome["connections"].as_array().is_some_and(|all| all.len() == 1)
        });
        alice.disconnect();
        // A password may have any bytes.
        let bytes = Connect { password: Some(vec![0xff]), ..named.clone() };
        bytes.open(server.client).disconnect();
        for wrong in [connect.clone(), named.clone(), named.clone().password("wrong")] {
            let (mut client, outcome) = wrong.try_open(server.client);
            assert_eq!(outcome.code, if version == V3 { 5 } else { 0x87 });
            client.expect_events(&[Event::Closed]);
        }
        // If the application does not reply, the server rejects the client.
        let hangs = Connect::new(version, "hangs").user("login").password("right");
        let (mut client, outcome) = hangs.try_open(hasty.client);
        let rejection_codes: &[u8] = if version == V3 { &[3, 5] } else { &[0x87, 0x88] };
        assert!(rejection_codes.contains(&outcome.code), "{outcome:?}");
        client.expect_events(&[Event::Closed]);
    }
}
