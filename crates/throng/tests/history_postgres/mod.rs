//! The history of topics in a real PostgreSQL.

mod access;
mod append;
mod compact;
mod cursors;
mod failover;
mod faults;
mod gaps;
mod nodes;
mod refusals;
mod retained;
mod sessions;
mod stored_sessions;
mod subscriptions;
mod support;
mod transfer;
mod trim;
mod upgrade;

use serde_json::{Value, json};

use crate::support::*;
use support::*;

#[test]
fn messages_have_their_ids_through_a_restart_and_members_get_what_they_missed() {
    let database = Database::start();
    let server = database.server();
    let mut live = member(&server, "topic=chat:1");
    let ids: Vec<String> = (1..=5).map(|n| publish(&server, "chat:1", n)).collect();
    publish(&server, "chat:2", "elsewhere");
    let got: Vec<(String, Value)> = (0..5).map(|_| next(&mut live)).collect();
    let expected: Vec<(String, Value)> =
        ids.iter().cloned().zip((1..=5).map(Value::from)).collect();
    assert_eq!(got, expected);
    assert_eq!(history(&server, "chat:1"), expected);
    let server = database.replace(server);
    assert_eq!(history(&server, "chat:1"), expected, "from the database");
    // Like a browser that reconnects: first the messages after the second one, and then live messages.
    let mut back = member(&server, &format!("topic=chat:1&since={}", ids[1]));
    let sixth = publish(&server, "chat:1", 6);
    let missed = until_data(&mut back, &json!(6));
    assert_eq!(data(&missed), [3, 4, 5, 6]);
    assert_eq!((&missed[0].0, &missed[3].0), (&ids[2], &sixth));
    let mut newest = member(&server, "topic=chat:1&since=last:2");
    assert_eq!(data(&[next(&mut newest), next(&mut newest)]), [5, 6]);
    let mut all = member(&server, "topic=chat:1&since=start");
    assert_eq!(data(&until_data(&mut all, &json!(6))), [1, 2, 3, 4, 5, 6]);
    let mut new = member(&server, "topic=chat:1");
    publish(&server, "chat:1", 7);
    assert_eq!(next(&mut new).1, 7, "a newcomer begins now");
}

#[test]
fn pages_go_both_ways_and_say_what_is_gone() {
    let database = Database::start();
    let server = database.server();
    let ids: Vec<String> = (1..=9).map(|n| publish(&server, "few:1", n)).collect();
    let page = |server: &Server, query: &str| {
        let (status, page) = server.api("GET", &format!("/api/history/few:1?{query}"), None);
        assert_eq!(status, 200, "{page}");
        let messages = page["messages"].as_array().unwrap();
        let data: Vec<Value> = messages.iter().map(|message| message["data"].clone()).collect();
        (data, page["more"].as_bool().unwrap())
    };
    let expect = |server: &Server, when: &str| {
        assert_eq!(page(server, "limit=9"), (vec![7.into(), 8.into(), 9.into()], false), "{when}");
        assert_eq!(page(server, "limit=2"), (vec![7.into(), 8.into()], true), "{when}");
        let since = format!("since={}&limit=9", ids[7]);
        assert_eq!(page(server, &since), (vec![9.into()], false), "{when}");
        let mut late = member(server, &format!("topic=few:1&since={}", ids[1]));
        let joined = late.next_object();
        assert_eq!(joined["recovered"], false, "{when}: {joined}");
        let mut whole = member(server, &format!("topic=few:1&since={}", ids[5]));
        assert_eq!(data(&until_data(&mut whole, &json!(9))), [7, 8, 9], "{when}");
    };
    expect(&server, "from memory");
    let server = database.replace(server);
    expect(&server, "from the database");
    // The server also deletes messages from the database that no rule retains, when they are a minute old.
    database.age();
    server.until("older messages are deleted", |_| database.rows() == 3);
    expect(&server, "when they are deleted");
}

#[test]
fn messages_that_are_too_old_are_gone_everywhere() {
    let database = Database::start();
    let server = database.server();
    let first = publish(&server, "old:1", 1);
    publish(&server, "old:1", 2);
    server.until("they are too old", |server| history(server, "old:1").is_empty());
    let mut back = member(&server, &format!("topic=old:1&since={first}"));
    assert_eq!(back.next_object()["recovered"], false);
    let server = database.replace(server);
    assert_eq!(database.rows(), 2, "they are younger than a minute");
    database.age();
    server.until("what is older is deleted", |_| database.rows() == 1);
    assert!(history(&server, "old:1").is_empty());
}

#[test]
fn a_key_publishes_once_and_a_condition_applies_also_after_a_restart() {
    let database = Database::start();
    let mut server = database.server();
    let keyed = json!({"topic": "chat:1", "data": 1, "idempotency_key": "k"});
    let first = server.post("/api/publish", keyed.clone());
    for is_new in [false, true] {
        let again = server.post("/api/publish", keyed.clone());
        assert_eq!(again["id"], first["id"], "{again}");
        let second = publish(&server, "chat:1", 2);
        let on = |id: &Value| json!({"topic": "chat:1", "data": 3, "if_offset": id});
        let offset = |id: &str| id.rsplit_once(':').unwrap().1.parse::<u64>().unwrap();
        let (status, refused) =
            server.api("POST", "/api/publish", Some(on(&json!(offset(&second) - 1))));
        assert_eq!(
            (status, &refused["error"]["code"]),
            (409, &json!("newer_message")),
            "{refused}"
        );
        server.post("/api/publish", on(&json!(offset(&second))));
        if !is_new {
            server = database.replace(server);
        }
    }
    assert_eq!(data(&history(&server, "chat:1")), [1, 2, 3, 2, 3]);
}

#[test]
fn a_deleted_history_is_gone_and_later_messages_stay() {
    let database = Database::start();
    let server = database.server();
    let ids: Vec<String> = (1..=3).map(|n| publish(&server, "chat:1", n)).collect();
    publish(&server, "chat:2", "other");
    let (status, reply) = server.api("DELETE", "/api/history/chat:1", None);
    assert!(status < 300, "{reply}");
    assert!(history(&server, "chat:1").is_empty());
    publish(&server, "chat:1", 4);
    for server in [&server, &database.server()] {
        assert_eq!(data(&history(server, "chat:1")), [4]);
        assert_eq!(data(&history(server, "chat:2")), ["other"]);
        let mut back = member(server, &format!("topic=chat:1&since={}", ids[0]));
        assert_eq!(back.next_object()["recovered"], false);
    }
}

#[test]
fn clients_publish_durably_and_get_the_id_after_the_commit() {
    let database = Database::start();
    let folder = Scratch::new("open");
    let rules = "[client]\npublish_prefixes = [\"chat:\"]\n[[topics]]\npattern = \"chat:*\"\n\
                 history_messages_max = 9\ndurable = true\n";
    let file = folder.write("throng.toml", rules).display().to_string();
    let url = database.postgres.url("postgres");
    let server = Server::with(&["--config", &file], &[("THRONG_HISTORY_URL", &url)]);
    until_connected(&server);
    let mut live = member(&server, "topic=chat:1");
    let (status, reply) =
        json(server.client, "POST", "/publish?topic=chat:1", Some(json!("hello")), "");
    assert_eq!(status, 200, "{reply}");
    let (id, data) = next(&mut live);
    assert_eq!((&json!(id), data), (&reply["id"], json!("hello")));
}

#[test]
fn mqtt_clients_publish_with_each_quality_of_service() {
    let database = Database::start();
    let folder = Scratch::new("mqtt");
    let rules = "[client]\npublish_prefixes = [\"chat:\"]\n[[topics]]\npattern = \"chat:*\"\n\
                 history_messages_max = 9\ndurable = true\n";
    let file = folder.write("throng.toml", rules).display().to_string();
    let url = database.postgres.url("postgres");
    let flags = ["--config", &file, "--mqtt", "127.0.0.1:0"];
    let server = Server::with(&flags, &[("THRONG_HISTORY_URL", &url)]);
    until_connected(&server);
    let (host, port) = (server.client.ip().to_string(), server.client.port().to_string());
    for qos in ["0", "1", "2"] {
        let mut command = std::process::Command::new("mosquitto_pub");
        command.args(["-h", &host, "-p", &port, "-t", "chat:1", "-q", qos, "-m", qos]);
        let output = output_within(&mut command);
        assert!(output.status.success(), "{output:?}");
    }
    // No process waits for the first one's result.
    server.until("all are there", |server| history(server, "chat:1").len() == 3);
    let mut got: Vec<String> =
        history(&server, "chat:1").iter().map(|(_, data)| data.to_string()).collect();
    got.sort_unstable();
    let got: Vec<&str> = got.iter().map(|data| data.trim_matches('"')).collect();
    assert_eq!(got, ["0", "1", "2"]);
}
