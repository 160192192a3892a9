//! Retained messages of MQTT, which all servers with one database share. The topics `chat:*` are in its log.

use std::collections::BTreeMap;
use std::thread;

use protocol::mqtt::id;

use super::append::migrated;
use super::*;
use crate::cluster::support::Nats;
use crate::mqtt::client::*;

/// The settings of a server for MQTT clients.
pub const MQTT: [(&str, &str); 1] = [("THRONG_MQTT_LISTEN", "127.0.0.1:0")];

/// Publishes a retained message. An empty one removes the topic's retained message.
pub fn retain(server: &Server, topic: &str, data: &str) {
    let mqtt = json!({"retain": true, "qos": 1});
    server.post("/api/publish", json!({"topic": topic, "data": data, "mqtt": mqtt}));
}

/// Returns the retained message of each topic.
fn retained(server: &Server) -> BTreeMap<String, String> {
    let (status, page) = server.api("GET", "/api/mqtt/retained?limit=1000", None);
    assert_eq!((status, &page["next"]), (200, &json!(null)), "{page}");
    let topics = page["retained"].as_array().unwrap().iter();
    let topics = topics.map(|it| it["topic"].as_str().unwrap());
    let data = |topic: &str| {
        let (_, found) = server.api("GET", &format!("/api/mqtt/retained/{topic}"), None);
        found["data"].as_str().unwrap_or_default().to_owned()
    };
    topics.map(|topic| (topic.to_owned(), data(topic))).collect()
}

/// The messages of these topics.
fn messages(messages: &[(&str, &str)]) -> BTreeMap<String, String> {
    messages.iter().map(|(topic, data)| (topic.to_string(), data.to_string())).collect()
}

/// Waits until a server has these retained messages and no others.
pub fn until_retained(server: &Server, expected: &[(&str, &str)]) {
    let expected = messages(expected);
    server.until(&format!("it has {expected:?}"), |server| retained(server) == expected);
}

/// Waits until all rows are written.
pub fn until_written(server: &Server) {
    server.until("all is written", |it| it.metric("throng_mqtt_retained_pending") == 0.0);
}

#[test]
fn retained_messages_reach_all_servers_and_outlive_them() {
    let database = Database::start();
    let servers = [database.server_with(&MQTT), database.server_with(&MQTT)];
    let [a, b] = &servers;
    retain(a, "light", "on");
    retain(b, "chat:1", "first");
    retain(a, "chat:1", "second");
    retain(b, "gone", "x");
    let all = [("light", "on"), ("chat:1", "second"), ("gone", "x")];
    servers.iter().for_each(|it| until_retained(it, &all));
    // A deletion counts at all servers once it has its reply, and so does an empty message.
    assert_eq!(a.api("DELETE", "/api/mqtt/retained/gone", None).0, 200);
    assert_eq!(b.api("DELETE", "/api/mqtt/retained/none", None).0, 404);
    retain(b, "light", "");
    retain(b, "chat:2", "brief");
    retain(a, "chat:2", "");
    servers.iter().for_each(|it| until_retained(it, &[("chat:1", "second")]));
    servers.iter().for_each(until_written);
    drop(servers);
    let server = database.server_with(&MQTT);
    assert_eq!(
        retained(&server),
        messages(&[("chat:1", "second")]),
        "before the first client comes"
    );
    let mut client = Connect::new(V5, "c").open(server.client);
    client.subscribe(&[filter("chat:1", 1)]);
    let message = client.message();
    assert_eq!((message.payload.as_str(), message.retain, message.qos), ("second", true, 1));
}

#[test]
fn servers_that_retain_at_the_same_moment_agree() {
    let database = Database::start();
    let servers = [database.server_with(&MQTT), database.server_with(&MQTT)];
    thread::scope(|scope| {
        for (at, server) in servers.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..150 {
                    let (topic, data) = (number % 5, format!("{at} {number}"));
                    let data = if number % 7 == 6 { "" } else { &data };
                    retain(server, &format!("t/{topic}"), data);
                    retain(server, &format!("chat:{topic}"), data);
                }
            });
        }
    });
    let [a, b] = &servers;
    servers.iter().for_each(until_written);
    b.until("both have the same", |b| retained(b) == retained(a));
    // What comes last in the log is retained, at a server that starts, too.
    let last = |topic: &str| history(a, topic).last().unwrap().1.as_str().unwrap().to_owned();
    let all = retained(a);
    for topic in (0..5).map(|topic| format!("chat:{topic}")) {
        assert_eq!(all.get(&topic).cloned().unwrap_or_default(), last(&topic), "{topic}");
    }
    assert_eq!(retained(&database.server_with(&MQTT)), all);
}

#[test]
fn a_retained_message_is_confirmed_when_it_is_in_the_database() {
    let database = Database::start();
    let server = database.server_with(&MQTT);
    let mut client = Connect::new(V5, "c").open(server.client);
    let mut lock = database.postgres.session();
    lock.run("BEGIN");
    lock.run("SELECT * FROM throng.history_mqtt_retained_log FOR UPDATE");
    for (at, qos) in [1, 2].into_iter().enumerate() {
        let id = u16::try_from(at).unwrap() + 1;
        let publish = Publish::new("light", "on", qos).retained();
        client.send(&Publish { id, ..publish }.bytes(V5));
    }
    // The server has read both, and members get them at once.
    client.ping();
    client.is_quiet();
    assert_eq!(server.metric("throng_mqtt_retained_pending"), 1.0);
    let mut other = Connect::new(V5, "d").open(server.client);
    other.subscribe(&[filter("light", 0)]);
    assert_eq!(other.message().payload, "on");
    lock.run("ROLLBACK");
    let mut events = [client.next(), client.next()].map(|event| format!("{event:?}"));
    events.sort();
    let confirmed = [("PUBACK", 1), ("PUBREC", 2)];
    assert_eq!(events, confirmed.map(|(kind, id)| format!("{:?}", Event::Confirm(kind, id, 0))));
    let written = "SELECT count(*) FROM throng.history_mqtt_retained WHERE topic = 'light' AND record IS NOT NULL";
    assert_eq!(database.postgres.psql(written), "1");
}

#[test]
fn retained_messages_wait_while_the_database_is_away() {
    let database = Database::start();
    let (there, away) = (database.server_with(&MQTT), database.server_b(&MQTT));
    retain(&away, "light", "on");
    retain(&away, "lamp", "on");
    until_retained(&there, &[("light", "on"), ("lamp", "on")]);
    database.lock_out(&away);
    retain(&away, "light", "off");
    let (status, error) = away.api("DELETE", "/api/mqtt/retained/lamp", None);
    assert_eq!((status, &error["error"]["code"]), (503, &json!("store_failed")), "{error}");
    assert_eq!(retained(&away), messages(&[("light", "off")]), "here it counts at once");
    assert_eq!(away.metric("throng_mqtt_retained_pending"), 2.0);
    retain(&there, "door", "open");
    assert_eq!(retained(&there), messages(&[("light", "on"), ("lamp", "on"), ("door", "open")]));
    database.let_in();
    for server in [&away, &there] {
        until_retained(server, &[("light", "off"), ("door", "open")]);
    }
}

#[test]
fn nodes_of_a_cluster_have_retained_messages_before_their_rows() {
    let (nats, database) = (Nats::start(), Database::start());
    let nodes = database.nodes(&nats);
    retain(&nodes[0], "gone", "x");
    nodes.iter().for_each(|node| until_retained(node, &[("gone", "x")]));
    // A node with a write of its own takes no message of another one.
    nodes.iter().for_each(until_written);
    let mut lock = database.postgres.session();
    lock.run("BEGIN");
    lock.run("SELECT * FROM throng.history_mqtt_retained_log FOR UPDATE");
    for node in &nodes {
        // On a slow machine a node reads the rows again, which are those of before.
        node.until("it has both changes", |node| {
            retain(&nodes[0], "light", "on");
            retain(&nodes[1], "gone", "");
            retained(node) == messages(&[("light", "on")])
        });
    }
    // The row may be another one than the message that came: then the row counts. A node without a write of its own reads
    // the rows after some seconds.
    until_retained(&nodes[2], &[("gone", "x")]);
    lock.run("ROLLBACK");
    nodes.iter().for_each(|node| until_retained(node, &[("light", "on")]));
    nodes.iter().for_each(until_written);
    assert_eq!(nodes[0].api("DELETE", "/api/mqtt/retained/light", None).0, 200);
    nodes.iter().for_each(|node| until_retained(node, &[]));
}

#[test]
fn limits_and_expiry_apply_to_retained_messages_that_servers_share() {
    let database = Database::start();
    let limited = database.server_with(&[MQTT[0], ("THRONG_MQTT_RETAINED_MESSAGES_MAX", "2")]);
    let other = database.server_with(&MQTT);
    retain(&limited, "a", "1");
    retain(&limited, "z", "1");
    retain(&limited, "b", "1");
    assert_eq!(limited.metric("throng_mqtt_retained_refused_total"), 1.0);
    retain(&limited, "z", "");
    // The last message of a topic was refused, so the earlier one is no longer the last.
    for server in [&limited, &other] {
        until_retained(server, &[("a", "1")]);
    }
    retain(&other, "b", "2");
    until_retained(&limited, &[("a", "1"), ("b", "2")]);
    retain(&other, "b", "");
    until_retained(&limited, &[("a", "1")]);
    // The server deletes rows some time after the messages have expired or were removed.
    let mut client = Connect::new(V5, "c").open(limited.client);
    let brief = Publish::new("brief", "x", 1).retained();
    client.publish_all(brief.with(number(id::MESSAGE_EXPIRY_INTERVAL, 1)));
    let brief_row = "SELECT expires_ms - changed_ms > 0 FROM throng.history_mqtt_retained WHERE topic = 'brief'";
    assert_eq!(database.postgres.psql(brief_row), "t");
    database.postgres.psql(
        "UPDATE throng.history_mqtt_retained SET changed_ms = changed_ms - 86500000, expires_ms = expires_ms - 3700000",
    );
    let rows = "SELECT string_agg(topic, ',') FROM throng.history_mqtt_retained";
    let third = database.server_with(&MQTT);
    third.until("it deletes them", |_| database.postgres.psql(rows) == "a");
    assert_eq!(
        database.postgres.psql("SELECT forgotten > 0 FROM throng.history_mqtt_retained_log"),
        "t"
    );
    for server in [&limited, &other, &third] {
        until_retained(server, &[("a", "1")]);
    }
    // A server without capacity leaves a message of the log to those that have it.
    retain(&other, "c", "1");
    until_retained(&limited, &[("a", "1"), ("c", "1")]);
    retain(&limited, "chat:1", "log");
    for server in [&limited, &other] {
        until_retained(server, &[("a", "1"), ("c", "1"), ("chat:1", "log")]);
    }
}

#[test]
fn a_node_without_capacity_removes_the_earlier_message_of_the_log() {
    let postgres = migrated();
    postgres.psql("UPDATE throng.history_log SET last_offset = 100");
    // The record, the offset, and whether the write yields; then the rejecting topics, and the row.
    let write = |record: &str, offset: u64, yields: bool| {
        let rejecting = postgres.psql(&format!(
            "SELECT rejecting_topics FROM throng.history_mqtt_retain('{{t}}', ARRAY[{record}]::bytea[], '{{NULL}}', \
             '{{{offset}}}', '{{{yields}}}')"
        ));
        let row = "SELECT coalesce(convert_from(record, 'UTF8'), '-'), log_offset FROM throng.history_mqtt_retained";
        (rejecting, postgres.psql(row))
    };
    let accepted = |row: &str| ("{}".to_owned(), row.to_owned());
    let rejected = |row: &str| ("{t}".to_owned(), row.to_owned());
    assert_eq!(write("'first'", 9, false), accepted("first|9"));
    assert_eq!(write("'first'", 9, false), rejected("first|9"), "another node has written it");
    assert_eq!(write("NULL", 10, true), accepted("-|9"));
    assert_eq!(write("'second'", 10, false), accepted("second|10"));
    assert_eq!(write("NULL", 10, true), rejected("second|10"), "another node has accepted it");
    assert_eq!(write("'first'", 9, false), rejected("second|10"));
    assert_eq!(write("NULL", 11, false), accepted("-|11"));
    // The log has lost this offset, and gives lower ones to other messages.
    postgres.psql("UPDATE throng.history_log SET last_offset = 5");
    assert_eq!(write("'third'", 4, false), accepted("third|4"));
}

#[test]
fn a_server_that_has_missed_removals_reads_all_rows() {
    let database = Database::start();
    let server = database.server_with(&MQTT);
    // Some pages of rows.
    let mut topics: Vec<String> = (0..600).map(|number| format!("t/{number:03}")).collect();
    topics.iter().for_each(|topic| retain(&server, topic, "x"));
    until_written(&server);
    // As if they were removed, and their rows deleted, while the server was away.
    database.postgres.psql(
        "DELETE FROM throng.history_mqtt_retained WHERE topic LIKE 't/_07'; \
         UPDATE throng.history_mqtt_retained_log SET last_change = last_change + 1, forgotten = last_change + 1; \
         SELECT pg_notify('throng_retained', 'throng')",
    );
    topics.retain(|topic| !topic.ends_with("07"));
    server
        .until("it has only the others", |it| retained(it).into_keys().eq(topics.iter().cloned()));
    retain(&server, "t/007", "again");
    until_written(&server);
    let other = database.server_with(&MQTT);
    assert!(retained(&other).contains_key("t/007"));
}

#[test]
fn a_server_that_ends_writes_pending_retained_messages() {
    let database = Database::start();
    let mut server = database.server_with(&MQTT);
    let mut lock = database.postgres.session();
    lock.run("BEGIN");
    lock.run("SELECT * FROM throng.history_mqtt_retained_log FOR UPDATE");
    retain(&server, "light", "on");
    assert_eq!(server.metric("throng_mqtt_retained_pending"), 1.0);
    server.signal("-TERM");
    lock.run("ROLLBACK");
    assert!(server.child.wait().unwrap().success());
    assert_eq!(retained(&database.server_with(&MQTT)), messages(&[("light", "on")]));
}

#[test]
fn a_new_process_has_the_retained_messages_of_all_servers() {
    let database = Database::start();
    let nodes = [super::upgrade::node(&database), super::upgrade::node(&database)];
    let [a, b] = &nodes;
    retain(a, "light", "on");
    retain(b, "chat:1", "first");
    retain(b, "gone", "x");
    until_retained(a, &[("light", "on"), ("chat:1", "first"), ("gone", "x")]);
    let mut lock = database.postgres.session();
    lock.run("BEGIN");
    lock.run("SELECT * FROM throng.history_mqtt_retained_log FOR UPDATE");
    retain(a, "light", "off");
    let text = a.upgrade_fails(&[]);
    assert!(text.contains("pending work of the shards, the store or the database"), "{text}");
    retain(a, "gone", "");
    lock.run("ROLLBACK");
    a.upgrade();
    let all = [("light", "off"), ("chat:1", "first")];
    assert_eq!(retained(a), messages(&all));
    until_retained(b, &all);
    retain(b, "light", "");
    retain(b, "chat:1", "second");
    nodes.iter().for_each(|it| until_retained(it, &[("chat:1", "second")]));
}
