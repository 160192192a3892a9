//! Rights in the database, and configurations that the server rejects at the start.

use std::process::Command;

use super::retained::MQTT;
use super::*;
use crate::mqtt::client::*;

fn throng(arguments: &[&str], settings: &[(&str, &str)]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    output_within(command.args(arguments).envs(settings.iter().copied()).current_dir("/"))
}

fn serve(settings: &[(&str, &str)]) -> std::process::Output {
    throng(&["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"], settings)
}

/// Returns the SQL statements of docs/history-postgres.md for a database user that owns nothing.
pub fn grants() -> String {
    let page = include_str!("../../../../docs/history-postgres.md");
    let (_, grants) = page.split_once("<!-- the grants -->").expect("the grants");
    let (_, grants) = grants.split_once("```sql\n").unwrap();
    grants.split_once("```").unwrap().0.to_owned()
}

#[test]
fn a_user_with_the_rights_of_the_page_needs_nothing_else() {
    let database = Database::start();
    let postgres = &database.postgres;
    postgres.psql("CREATE ROLE throng LOGIN");
    let url = postgres.url("throng");
    let settings = [("THRONG_HISTORY_URL", &*url), MQTT[0]];
    let output = serve(&settings);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("throng history migrate --print | psql"), "{error}");
    for part in ["history", "subscriptions"] {
        let script = throng(&[part, "migrate", "--print"], &[]);
        assert!(script.status.success(), "{script:?}");
        postgres.psql(&String::from_utf8(script.stdout).unwrap());
    }
    let output = serve(&settings);
    assert!(String::from_utf8_lossy(&output.stderr).contains("permission denied"), "{output:?}");
    postgres.psql(&grants());
    let server = database.server_with(&settings);
    let ids: Vec<String> = (1..=9).map(|n| publish(&server, "few:1", n)).collect();
    for key in ["a", "b", "a", "c", "d"] {
        server.post("/api/publish", json!({"topic": "map:1", "key": key, "data": 1}));
    }
    server.post("/api/publish", json!({"topic": "brief:1", "key": "a", "data": 1}));
    let states = "SELECT count(*) FROM throng.history_states";
    server.until("a state is too old", |_| database.postgres.psql(states) == "3");
    database.age();
    server.until("it deletes what no rule retains", |_| database.rows() == 6);
    assert_eq!(server.metric("throng_history_trims_failed_total"), 0.0);
    let (status, reply) = server.api("DELETE", "/api/history/few:1", None);
    assert!(status < 300, "{reply}");
    let mut back = member(&server, &format!("topic=few:1&since={}", ids[8]));
    publish(&server, "few:1", "last");
    assert_eq!(next(&mut back).1, "last");
    let job = publish(&server, "job:1", 1);
    server.post("/api/ack", json!({"user": "bob", "topic": "job:1", "id": job}));
    let cursors = "SELECT count(*) FROM throng.history_cursors";
    server.until("the cursor is written", |_| database.postgres.psql(cursors) == "1");
    let light = json!({"topic": "light", "data": "on", "mqtt": {"retain": true}});
    server.post("/api/publish", light);
    server.until("it is written", |it| it.metric("throng_mqtt_retained_pending") == 0.0);
    assert_eq!(server.api("DELETE", "/api/mqtt/retained/light", None).0, 200);
    let removed = "SELECT count(*) FROM throng.history_mqtt_retained WHERE record IS NULL";
    assert_eq!(database.postgres.psql(removed), "1");
    let subscribe = json!({"user": "bob", "add": ["feed:a"]});
    assert_eq!(server.post("/api/subscriptions", subscribe)["added"], 1);
    super::sessions::leave_session(&server, "keeper", &[filter("chat:1", 1)]);
    let sessions = "SELECT count(*) FROM throng.history_mqtt_sessions WHERE key = 'keeper' AND session IS NOT NULL";
    server.until("the session is written", |_| database.postgres.psql(sessions) == "1");
    let mut publisher = Connect::persistent(V5, "publisher").open(server.client);
    publisher.publish("chat:1", "x", 2);
    assert_eq!(server.api("DELETE", "/api/mqtt/sessions/keeper", None).0, 200);
    server.until("the row is deleted", |_| database.postgres.psql(sessions) == "0");
}

#[test]
fn the_command_makes_the_schema_once_and_the_outbox_stands_beside_it() {
    let postgres = Postgres::start();
    let url = postgres.url("postgres");
    let settings = [("THRONG_HISTORY_URL", &*url), ("THRONG_OUTBOX_URL", &*url)];
    let printed = |part: &str| {
        let output = throng(&[part, "migrate"], &settings);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(printed("outbox"), "the schema \"throng\" has version 1 now (it was 0)\n");
    assert_eq!(printed("history"), "the schema \"throng\" has version 5 now (it was 0)\n");
    assert_eq!(printed("history"), "the schema \"throng\" already has version 5\n");
    assert_eq!(printed("subscriptions"), "the schema \"throng\" has version 1 now (it was 0)\n");
    postgres.psql("INSERT INTO throng.history_migrations (version) VALUES (99)");
    let output = serve(&settings);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("start the newer program"),
        "{output:?}"
    );
    // The newer version says that this one can use its tables.
    postgres.psql("UPDATE throng.history_migrations SET usable_from = 3 WHERE version = 99");
    assert_eq!(printed("history"), "the schema \"throng\" already has version 99\n");
    let server = Server::with(&[], &settings);
    until_connected(&server);
    let output = throng(&["history", "migrate"], &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_database_that_is_away_or_of_another_encoding_is_refused_at_the_start() {
    let settings = [
        ("THRONG_HISTORY_URL", "postgres:///app?host=/nowhere&user=a"),
        ("THRONG_HISTORY_PASSWORD", "hush-hush-hush"),
    ];
    let output = serve(&settings);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("the history in PostgreSQL (history.url)"), "{error}");
    assert!(!error.contains("hush"), "{error}");
    let postgres = Postgres::start();
    postgres.psql("SELECT 1");
    let create = "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0";
    assert!(postgres.try_psql("postgres", "postgres", create).status.success());
    let url = postgres.url("postgres").replace("/app?", "/latin?");
    let output = serve(&[("THRONG_HISTORY_URL", &url)]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("needs UTF8"), "{output:?}");
}

#[test]
fn what_waits_is_appended_at_the_end() {
    let database = Database::start();
    let mut server = database.server();
    publish(&server, "chat:1", 1);
    server.signal("-TERM");
    assert!(wait_within(&mut server.child).success());
    let server = database.server();
    assert_eq!(data(&history(&server, "chat:1")), [1]);
}
