//! The operator's view of MQTT clients, and the calls that end their sessions and delete retained messages.

use std::process::Command;

use crate::mqtt::client::*;
use crate::support::*;
use protocol::mqtt::id;
use serde_json::{Value, json};
use token::{Algorithm, Signer};

const SESSIONS: &str = "/api/mqtt/sessions";
const RETAINED: &str = "/api/mqtt/retained";

/// The reason that a client gets when an operator ends its session.
const ADMINISTRATIVE_ACTION: u8 = 0x98;

fn serve(settings: &[(&str, &str)]) -> Server {
    let quiet = [("THRONG_LOG_LEVEL", "error")];
    Server::with(&["--mqtt", "127.0.0.1:0", "--shards", "2"], &[&quiet, settings].concat())
}

#[track_caller]
fn good(server: &Server, method: &str, target: &str) -> Value {
    let (status, reply) = server.api(method, target, None);
    assert_eq!(status, 200, "{method} {target}: {reply}");
    reply
}

#[track_caller]
fn bad(server: &Server, method: &str, target: &str) -> String {
    let (status, reply) = server.api(method, target, None);
    let code = reply["error"]["code"].as_str().unwrap_or_default();
    format!("{status} {code}")
}

fn names(page: &Value, list: &str, name: &str) -> Vec<String> {
    let all = page[list].as_array().unwrap().iter();
    all.map(|it| it[name].as_str().unwrap().to_owned()).collect()
}

fn clients(server: &Server, query: &str) -> Vec<String> {
    names(&good(server, "GET", &format!("{SESSIONS}?{query}")), "sessions", "client")
}

/// Returns the names of all pages, with `limit` names a page.
fn pages(server: &Server, path: &str, limit: usize, list: &str, name: &str) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let page = good(server, "GET", &format!("{path}?limit={limit}{after}"));
        let found = names(&page, list, name);
        assert!(found.len() <= limit, "{page}");
        all.extend(found);
        let Some(next) = page["next"].as_str() else { return all };
        after = format!("&after={}", next.replace('/', "%2F"));
    }
}

#[test]
fn clients_are_listed_connected_or_away() {
    let server = serve(&[]);
    let mut persistent = Connect::persistent(V5, "kept").user("al").open(server.client);
    persistent.subscribe(&[filter("a/+", 1), filter("b", 2)]);
    let _clean = Connect { keep_alive_s: 900, ..Connect::new(V3, "clean") }.open(server.client);
    let mut away = Connect::persistent(V3, "away").open(server.client);
    let shared = filter("$share/g/c/#", 1);
    away.subscribe_with(&[shared], &[]);
    away.disconnect();
    server.until("the client is away", |server| clients(server, "connected=false") == ["away"]);

    let page = good(&server, "GET", SESSIONS);
    assert_eq!(
        (names(&page, "sessions", "client"), &page["next"]),
        (vec!["away".into(), "clean".into(), "kept".into()], &Value::Null)
    );
    let [gone, clean, persistent_info] = [0, 1, 2].map(|at| &page["sessions"][at]);
    assert_eq!(
        (&gone["connected"], &gone["connection"], &gone["subscriptions"]),
        (&json!(false), &Value::Null, &json!(1))
    );
    // 3.1.1 has no session expiry, so the server's maximum applies.
    let [since, expires] = ["since", "expires_at"].map(|name| gone[name].as_u64().unwrap());
    assert_eq!((expires - since, &gone["expiry_seconds"]), (86_400, &json!(86_400)));
    assert!(gone["position"].as_str().unwrap().contains(':'));
    assert_eq!(
        (&clean["expiry_seconds"], &clean["connection"]["version"]),
        (&json!(0), &json!("3.1.1"))
    );
    assert_eq!(clean["connection"]["keep_alive_seconds"], 900);
    let connection = &persistent_info["connection"];
    assert_eq!((&connection["version"], &connection["users"]), (&json!("5.0"), &json!(["al"])));
    assert!(connection["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert_eq!(
        (&persistent_info["expiry_seconds"], &persistent_info["subscriptions"]),
        (&json!(3_600), &json!(2))
    );
    // Without authentication a session has no owner.
    assert_eq!(persistent_info["owner"], Value::Null);

    assert_eq!(clients(&server, "connected=true"), ["clean", "kept"]);
    assert_eq!(clients(&server, "prefix=k"), ["kept"]);
    let one = good(&server, "GET", &format!("{SESSIONS}/kept"));
    assert_eq!(
        (names(&one, "filters", "filter"), &one["filters"][1]["qos"]),
        (vec!["a/+".into(), "b".into()], &json!(2))
    );
    let one = good(&server, "GET", &format!("{SESSIONS}/away"));
    assert_eq!(
        (&one["filters"][0]["group"], &one["filters"][0]["filter"]),
        (&json!("g"), &json!("c/#"))
    );
    assert_eq!(bad(&server, "GET", &format!("{SESSIONS}/never")), "404 no_mqtt_session");
    assert_eq!(bad(&server, "GET", &format!("{SESSIONS}/kept?owner=al")), "404 no_mqtt_session");

    // A message is in flight until the client confirms it. The API of connections has the client's name.
    server.publish("b", json!("one"));
    let message = persistent.unconfirmed();
    assert_eq!(good(&server, "GET", &format!("{SESSIONS}/kept"))["in_flight"], 1);
    persistent.confirm(protocol::mqtt::write::ConfirmType::Pubrec, message.id);
    let user = good(&server, "GET", "/api/users/al");
    let want = json!({"client": "kept", "owner": null, "version": "5.0"});
    assert_eq!(
        (&user["connections"][0]["transport"], &user["connections"][0]["mqtt"]),
        (&json!("mqtt"), &want)
    );
    let mqtt = &good(&server, "GET", "/api/stats")["mqtt"];
    assert_eq!(
        (&mqtt["clients"], &mqtt["sessions_away"], &mqtt["sessions_kept"]),
        (&json!(2), &json!(1), &json!(2))
    );
}

#[test]
fn filters_are_no_topics() {
    let server = serve(&[]);
    let mut client = Connect::new(V5, "c").user("al").open(server.client);
    client.subscribe(&[filter("a/+", 1), filter("a/b", 1), filter("$share/g/c/#", 1)]);
    let topics = good(&server, "GET", "/api/topics");
    assert_eq!(names(&topics, "topics", "topic"), ["a/b"]);
    let top = good(&server, "GET", "/api/top");
    assert_eq!(names(&top, "topics", "topic"), ["a/b"]);
    let user = good(&server, "GET", "/api/users/al");
    let mut topics: Vec<_> = user["connections"][0]["topics"].as_array().unwrap().iter().collect();
    topics.sort_by_key(|name| name.as_str());
    assert_eq!(json!(topics), json!(["$share/g/c/#", "a/+", "a/b"]));
}

#[test]
fn many_sessions_come_in_pages() {
    let server = serve(&[]);
    let connected: Vec<_> = (0..25)
        .map(|n| Connect::new([V3, V5][n % 2], &format!("c{n:02}")).open(server.client))
        .collect();
    for n in (0..40).step_by(2) {
        Connect::persistent(V5, &format!("d{n:02}")).open(server.client).disconnect();
    }
    server.until("all are away", |server| clients(server, "connected=false").len() == 20);
    let mut want: Vec<_> = (0..25).map(|n| format!("c{n:02}")).collect();
    want.extend((0..40).step_by(2).map(|n| format!("d{n:02}")));
    for limit in [1, 7, 45, 1_000] {
        assert_eq!(pages(&server, SESSIONS, limit, "sessions", "client"), want, "{limit}");
    }
    drop(connected);
}

#[test]
fn a_session_that_is_ended_is_gone_with_its_connection() {
    let server = serve(&[]);
    let mut listener = Connect::new(V5, "listener").open(server.client);
    listener.subscribe(&[filter("gone/+", 1)]);
    for (version, topic) in [(V3, "gone/3"), (V5, "gone/5")] {
        let connect = Connect::persistent(version, "phone").will(topic, "lost", 1);
        let mut client = connect.open(server.client);
        client.subscribe(&[filter("a", 1)]);
        let ended = good(&server, "DELETE", &format!("{SESSIONS}/phone"));
        let want = json!({"client": "phone", "owner": null, "ended": true, "disconnected": true});
        assert_eq!(ended, want);
        client.is_ended_for(ADMINISTRATIVE_ACTION);
        assert_eq!(listener.message().topic, topic);
        assert_eq!(bad(&server, "DELETE", &format!("{SESSIONS}/phone")), "404 no_mqtt_session");

        // The client reconnects with a new session, which the operator ends while the client is away and its will
        // waits.
        let delayed = match version {
            V3 => connect.clone(),
            V5 => {
                let mut connect = connect.clone();
                let delay = number(id::WILL_DELAY_INTERVAL, 3_000);
                connect.will.as_mut().unwrap().properties.push(delay);
                connect
            }
        };
        let mut client = delayed.open(server.client);
        assert!(!client.session_present);
        client.subscribe(&[filter("a", 1)]);
        client.cut();
        server
            .until("the client is away", |server| clients(server, "connected=false") == ["phone"]);
        if version == V3 {
            assert_eq!(listener.message().topic, topic);
        }
        listener.is_quiet();
        let ended = good(&server, "DELETE", &format!("{SESSIONS}/phone"));
        assert_eq!(ended["disconnected"], false);
        if version == V5 {
            assert_eq!(listener.message().topic, topic);
        }
        assert_eq!(clients(&server, "prefix=phone"), [""; 0]);
        let client = Connect::persistent(version, "phone").open(server.client);
        assert!(!client.session_present);
        client.disconnect();
        server
            .until("the client is away", |server| clients(server, "connected=false") == ["phone"]);
        let _ = good(&server, "DELETE", &format!("{SESSIONS}/phone"));
    }
    // A session that ends with its connection is also a session.
    let mut clean = Connect::new(V5, "clean").open(server.client);
    let _ = good(&server, "DELETE", &format!("{SESSIONS}/clean"));
    clean.is_ended_for(ADMINISTRATIVE_ACTION);
    let closed = "throng_connections_closed_total{reason=\"application\"}";
    server.until("three are closed", |server| server.metric(closed) == 3.0);
}

#[test]
fn a_client_of_a_proved_user_is_named_with_its_owner() {
    const SECRET: &str = "a secret of more than 32 bytes for tests";
    let server = serve(&[("THRONG_AUTH_HMAC_KEY", SECRET)]);
    let signer = Signer::new(SECRET, "HS256".parse::<Algorithm>().unwrap(), None).unwrap();
    let connect = |user: &str| {
        let token = signer.sign(&json!({"sub": user, "exp": 4_000_000_000_u64})).unwrap();
        Connect { password: Some(token.into()), ..Connect::persistent(V5, "phone") }
    };
    let mut al = connect("al").user("al").open(server.client);
    connect("bob").user("bob").open(server.client).disconnect();
    server.until("bob is away", |server| clients(server, "connected=false") == ["phone"]);
    let owners = |page: &Value| names(page, "sessions", "owner");
    let page = good(&server, "GET", &format!("{SESSIONS}?limit=1"));
    assert_eq!(owners(&page), ["al"]);
    let next = page["next"].as_str().unwrap().replace('\t', "%09");
    let page = good(&server, "GET", &format!("{SESSIONS}?limit=1&after={next}"));
    assert_eq!((owners(&page), &page["next"]), (vec!["bob".into()], &Value::Null));
    assert_eq!(bad(&server, "DELETE", &format!("{SESSIONS}/phone")), "404 no_mqtt_session");
    let ended = good(&server, "DELETE", &format!("{SESSIONS}/phone?owner=al"));
    assert_eq!((&ended["owner"], &ended["disconnected"]), (&json!("al"), &json!(true)));
    al.is_ended_for(ADMINISTRATIVE_ACTION);
    let ended = good(&server, "DELETE", &format!("{SESSIONS}/phone?owner=bob"));
    assert_eq!(ended["disconnected"], false);
    assert_eq!(clients(&server, ""), [""; 0]);
}

#[test]
fn retained_messages_are_listed_and_deleted() {
    let server = serve(&[]);
    let mut client = Connect::new(V5, "c").open(server.client);
    for n in 0..12 {
        let topic = format!("state/{n:02}");
        client.publish_all(Publish::new(&topic, "on", 1).retained());
    }
    let expiry = number(id::MESSAGE_EXPIRY_INTERVAL, 1_000);
    client.publish_all(Publish::new("other", "\u{1}", 2).retained().with(expiry));
    let body = json!({"topic": "room", "data": {"n": 1}, "mqtt": {"retain": true}});
    let _ = server.post("/api/publish", body);

    let mut want = vec!["other".to_owned(), "room".into()];
    want.extend((0..12).map(|n| format!("state/{n:02}")));
    for limit in [1, 5, 14, 1_000] {
        assert_eq!(pages(&server, RETAINED, limit, "retained", "topic"), want, "{limit}");
    }
    let page = good(&server, "GET", &format!("{RETAINED}?filter=state/%2B&limit=2&after=state/00"));
    assert_eq!(names(&page, "retained", "topic"), ["state/01", "state/02"]);
    let page = good(&server, "GET", &format!("{RETAINED}?filter=%24SYS/broker/uptime"));
    assert_eq!(names(&page, "retained", "topic"), ["$SYS/broker/uptime"]);
    assert_eq!(bad(&server, "GET", &format!("{RETAINED}?filter=a%23")), "400 bad_filter");
    let one = good(&server, "GET", &format!("{RETAINED}/other"));
    assert_eq!((&one["data"], &one["qos"], &one["bytes"]), (&json!("\u{1}"), &json!(2), &json!(1)));
    let [at, expires] = ["published_at", "expires_at"].map(|name| one[name].as_u64().unwrap());
    assert!((999_000..=1_000_000).contains(&(expires - at)), "{one}");
    assert_eq!(good(&server, "GET", &format!("{RETAINED}/room"))["data"], json!({"n": 1}));

    // Current subscribers get no message about the deletion, and later subscribers get no retained message.
    let mut here = Connect::new(V5, "here").open(server.client);
    here.subscribe(&[filter("state/03", 1)]);
    assert!(here.message().retain);
    let want = json!({"topic": "state/03", "deleted": true});
    assert_eq!(good(&server, "DELETE", &format!("{RETAINED}/state%2F03")), want);
    here.is_quiet();
    let mut later = Connect::new(V5, "later").open(server.client);
    later.subscribe(&[filter("state/03", 1)]);
    later.is_quiet();
    for method in ["GET", "DELETE"] {
        assert_eq!(bad(&server, method, &format!("{RETAINED}/state%2F03")), "404 no_retained");
    }
    // An empty message deletes as well.
    let body = json!({"topic": "room", "data": "", "mqtt": {"retain": true}});
    let _ = server.post("/api/publish", body);
    assert_eq!(bad(&server, "GET", &format!("{RETAINED}/room")), "404 no_retained");
    assert_eq!(good(&server, "GET", "/api/stats")["mqtt"]["retained"], 12);
}

#[test]
fn what_was_ended_and_deleted_does_not_come_back_with_the_store() {
    let folder = Scratch::new("mqtt-views");
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--mqtt", "127.0.0.1:0", "--shards", "1"]).arg("--data").arg(folder.path());
        let quiet = [("THRONG_LOG_LEVEL", "error"), ("THRONG_TIMEOUTS_DRAIN_SECONDS", "0")];
        Server::run(command, &quiet)
    };
    let mut server = start();
    let mut here = Connect::persistent(V5, "here").open(server.client);
    here.subscribe(&[filter("a", 1)]);
    Connect::persistent(V5, "stays").open(server.client).disconnect();
    let mut away = Connect::persistent(V5, "away").open(server.client);
    away.subscribe(&[filter("a", 1)]);
    for topic in ["keep", "delete"] {
        away.publish_all(Publish::new(topic, "x", 1).retained());
    }
    away.disconnect();
    server.until("two are away", |server| clients(server, "connected=false").len() == 2);
    let published_at = |server: &Server| {
        good(server, "GET", &format!("{RETAINED}/keep"))["published_at"].as_u64().unwrap()
    };
    let before = published_at(&server);
    for client in ["here", "away"] {
        let _ = good(&server, "DELETE", &format!("{SESSIONS}/{client}"));
    }
    here.is_ended_for(ADMINISTRATIVE_ACTION);
    let _ = good(&server, "DELETE", &format!("{RETAINED}/delete"));
    server.signal("-TERM");
    wait_within(&mut server.child);

    let server = start();
    assert_eq!(clients(&server, ""), ["stays"]);
    let page = good(&server, "GET", RETAINED);
    assert_eq!(names(&page, "retained", "topic"), ["keep"]);
    // Both clocks round.
    assert!(before.abs_diff(published_at(&server)) <= 2);
    for client in ["here", "away"] {
        assert!(!Connect::persistent(V5, client).open(server.client).session_present, "{client}");
    }
}
