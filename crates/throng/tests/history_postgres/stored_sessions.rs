//! MQTT sessions in PostgreSQL: the next process of a node continues with them.

use protocol::mqtt::write::ConfirmType;

use super::retained::MQTT;
use super::sessions::{leave_session, publish_to, until_left};
use super::*;
use crate::mqtt::client::*;

const PUBLISHING: [(&str, &str); 2] = [MQTT[0], ("THRONG_CLIENT_PUBLISH_PREFIXES", "room/")];

/// Waits until all changes of sessions are in the database.
fn until_stored(server: &Server) {
    server.until("all is stored", |it| it.metric("throng_history_pending_sessions") == 0.0);
}

/// The statement that returns the processes of PostgreSQL with the lock of an owner.
const LOCKING: &str = "SELECT l.pid FROM throng.history_mqtt_owners AS o JOIN pg_locks AS l \
    ON (l.classid::bigint << 32 | l.objid::bigint) = throng.history_mqtt_owner_lock(o.id) \
    WHERE l.locktype = 'advisory' AND l.objsubid = 1";

/// Kills the only server of a node, and waits until PostgreSQL has noticed that.
fn kill(database: &Database, mut server: Server, node: &str) {
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    until_unlocked(database, node);
}

/// Waits until no owner of a node is locked.
fn until_unlocked(database: &Database, node: &str) {
    let locking = format!("{LOCKING} AND o.node = '{node}'");
    until("no process is the owner", || database.postgres.psql(&locking).is_empty());
}

/// Kills the only server without a name, and starts another process of its node.
fn replace(database: &Database, server: Server, settings: &[(&str, &str)]) -> Server {
    kill(database, server, "");
    database.server_with(settings)
}

fn resume(server: &Server, client: &str) -> Client {
    let client = Connect::persistent(V5, client).open(server.client);
    assert!(client.session_present);
    client
}

/// Returns the rows of sessions: their owners, and the client identifiers.
fn rows(database: &Database) -> String {
    database.postgres.psql(
        "SELECT owner || ' ' || convert_from(key, 'UTF8') FROM throng.history_mqtt_sessions WHERE session IS NOT NULL ORDER BY owner, key",
    )
}

#[test]
fn sessions_and_what_is_in_flight_outlive_the_death_of_their_server() {
    let database = Database::start();
    let server = database.server_with(&PUBLISHING);
    leave_session(&server, "away", &[filter("chat:1", 1), filter("room/+", 1)]);
    let mut connected = Connect::persistent(V5, "connected").open(server.client);
    connected.subscribe(&[filter("room/1", 2)]);
    let mut expected = publish_to(&server, &["chat:1", "room/1"], 0..10);
    // The client has the first message, and has not confirmed it.
    let first = connected.unconfirmed();
    assert_eq!((&*first.payload, first.qos), ("1", 2));
    until_stored(&server);
    let server = replace(&database, server, &PUBLISHING);
    expected.extend(publish_to(&server, &["room/2", "chat:1"], 10..14));
    let mut away = resume(&server, "away");
    assert_eq!(away.messages(expected.len()), expected);
    away.is_quiet();
    let mut connected = resume(&server, "connected");
    let again = connected.unconfirmed();
    assert_eq!((again.payload, again.id, again.dup), (first.payload, first.id, true));
    connected.confirm(ConfirmType::Pubrec, again.id);
    connected.expect_events(&[Event::Confirm("PUBREL", again.id, 0)]);
    connected.confirm(ConfirmType::Pubcomp, again.id);
    let payloads: Vec<String> = connected.messages(4).into_iter().map(|(_, data)| data).collect();
    assert_eq!(payloads, ["3", "5", "7", "9"]);
    connected.is_quiet();
    // A session that has ended has no row.
    away.disconnect();
    until_left(&server, "away");
    assert_eq!(server.api("DELETE", "/api/mqtt/sessions/away", None).0, 200);
    until_stored(&server);
    assert_eq!(rows(&database), "1 connected");
}

/// The progress of the publisher is in the transaction that appends its message.
#[test]
fn a_message_with_qos_2_is_published_once_though_its_server_dies_before_the_client_has_its_reply() {
    let database = Database::start();
    let server = database.server_with(&PUBLISHING);
    leave_session(&server, "keeper", &[filter("room/1", 1)]);
    let mut publisher = Connect::persistent(V5, "publisher").open(server.client);
    until_stored(&server);
    let publish = |topic, id| Publish { id, ..Publish::new(topic, "once", 2) };
    publisher.send(&publish("chat:1", 1).bytes(V5));
    publisher.expect_events(&[Event::Confirm("PUBREC", 1, 0)]);
    publisher.send(&publish("room/1", 2).bytes(V5));
    publisher.expect_events(&[Event::Confirm("PUBREC", 2, 0)]);
    let server = replace(&database, server, &PUBLISHING);
    let mut publisher = resume(&server, "publisher");
    for (topic, id) in [("chat:1", 1), ("room/1", 2)] {
        publisher.send(&Publish { dup: true, ..publish(topic, id) }.bytes(V5));
        publisher.expect_events(&[Event::Confirm("PUBREC", id, 0)]);
        publisher.confirm(ConfirmType::Pubrel, id);
        publisher.expect_events(&[Event::Confirm("PUBCOMP", id, 0)]);
    }
    assert_eq!(database.rows(), 2);
    let mut keeper = resume(&server, "keeper");
    assert_eq!(keeper.message().payload, "once");
    keeper.is_quiet();
}

#[test]
fn changes_of_sessions_wait_while_the_database_is_away() {
    let database = Database::start();
    let server = database.server_b(&MQTT);
    leave_session(&server, "before", &[filter("room/1", 1)]);
    database.lock_out(&server);
    let mut client = Connect::persistent(V5, "meanwhile").open(server.client);
    let subscribe =
        bytes(|out| protocol::mqtt::client::subscribe(V5, 1, &[], &[filter("room/2", 1)], out));
    client.send(&subscribe);
    client.ping();
    assert!(server.metric("throng_history_pending_sessions") > 0.0);
    assert_eq!(server.api("DELETE", "/api/mqtt/sessions/before", None).0, 200);
    database.let_in();
    assert_eq!(client.next(), Event::Suback(1, vec![1]));
    until_stored(&server);
    assert_eq!(rows(&database), "1 meanwhile");
}

#[test]
fn an_upgrade_passes_the_rows_on_and_a_restart_continues_with_them() {
    let database = Database::start();
    let node = upgrade::node(&database);
    leave_session(&node, "keeper", &[filter("chat:1", 1), filter("room/+", 1)]);
    let mut expected = publish_to(&node, &["chat:1", "room/1"], 0..4);
    node.upgrade();
    leave_session(&node, "later", &[filter("room/2", 1)]);
    expected.extend(publish_to(&node, &["room/1", "chat:1"], 4..6));
    node.upgrade();
    expected.extend(publish_to(&node, &["room/1", "chat:1"], 6..8));
    until_stored(&node);
    assert_eq!(rows(&database), "1 keeper\n1 later");
    drop(node);
    until_unlocked(&database, "");
    let server = database.server_with(&PUBLISHING);
    let mut client = resume(&server, "keeper");
    assert_eq!(client.messages(expected.len()), expected);
    client.is_quiet();
}

/// PostgreSQL may notice late that a process has ended.
#[test]
fn sessions_of_an_earlier_process_come_when_its_lock_is_free() {
    let database = Database::start();
    let named = [MQTT[0], ("THRONG_CLUSTER_NODE", "a")];
    let server = database.server_with(&named);
    for client in ["early", "late"] {
        leave_session(&server, client, &[filter("room/1", 1)]);
    }
    until_stored(&server);
    kill(&database, server, "a");
    // The server takes the other owner, and so need not wait for this one at its start.
    database.postgres.psql("INSERT INTO throng.history_mqtt_owners (node, log_epoch) SELECT node, log_epoch FROM throng.history_mqtt_owners");
    let mut dead = database.postgres.session();
    dead.run("SELECT pg_advisory_lock(throng.history_mqtt_owner_lock(1))");
    let server = database.server_with(&named);
    // A client that comes before has a new session.
    let mut early = Connect::persistent(V5, "early").open(server.client);
    assert!(!early.session_present);
    early.subscribe(&[filter("room/2", 1)]);
    dead.run("SELECT pg_advisory_unlock(throng.history_mqtt_owner_lock(1))");
    until_left(&server, "late");
    server.until("the rows are those of the new owner", |_| rows(&database) == "2 early\n2 late");
    publish_to(&server, &["room/1", "room/2"], 0..2);
    assert_eq!(early.message().payload, "1");
    early.is_quiet();
    assert_eq!(resume(&server, "late").message().payload, "0");
    let owners = "SELECT string_agg(id::text, ' ') FROM throng.history_mqtt_owners";
    server.until("the earlier owner is deleted", |_| database.postgres.psql(owners) == "2");
}

#[test]
fn a_server_without_a_name_takes_no_session_of_another_one_that_runs() {
    let database = Database::start();
    let first = database.server_with(&MQTT);
    leave_session(&first, "first", &[filter("room/1", 1)]);
    let second = database.server_with(&MQTT);
    leave_session(&second, "second", &[filter("room/1", 1)]);
    [&first, &second].into_iter().for_each(until_stored);
    assert_eq!(rows(&database), "1 first\n2 second");
    resume(&second, "second").is_quiet();
}

#[test]
fn servers_with_names_continue_with_their_own_sessions() {
    let database = Database::start();
    let [a, b] = ["a", "b"].map(|name| [MQTT[0], ("THRONG_CLUSTER_NODE", name)]);
    let (first, second) = (database.server_with(&a), database.server_with(&b));
    leave_session(&first, "first", &[filter("room/1", 1)]);
    leave_session(&second, "second", &[filter("room/1", 1)]);
    [&first, &second].into_iter().for_each(until_stored);
    kill(&database, first, "a");
    let first = database.server_with(&a);
    resume(&first, "first").is_quiet();
    resume(&second, "second").is_quiet();
}

/// Another server with the same name has taken over the sessions while this one had no connection to PostgreSQL.
#[test]
fn a_server_that_has_lost_its_owner_writes_its_sessions_to_another_one() {
    let database = Database::start();
    let server = database.server_with(&MQTT);
    leave_session(&server, "keeper", &[filter("room/1", 1)]);
    until_stored(&server);
    let mut other = database.postgres.session();
    other.run(&format!(
        "UPDATE throng.history_mqtt_owners SET runs = runs + 1; \
         SELECT pg_terminate_backend(pid) FROM ({LOCKING}) AS server; \
         SELECT pg_advisory_lock(throng.history_mqtt_owner_lock(1))"
    ));
    let mut client = Connect::persistent(V5, "later").open(server.client);
    client.subscribe(&[filter("room/1", 1)]);
    server.until("all are those of another owner", |_| {
        rows(&database) == "1 keeper\n2 keeper\n2 later"
    });
}

/// Offsets name other messages in another log.
#[test]
fn sessions_continue_with_what_is_published_from_now_on_in_another_log() {
    let database = Database::start();
    let server = database.server_with(&MQTT);
    leave_session(&server, "keeper", &[filter("room/1", 1)]);
    publish_to(&server, &["room/1"], 0..3);
    until_stored(&server);
    kill(&database, server, "");
    database
        .postgres
        .psql("UPDATE throng.history_log SET epoch = 1 + floor(random() * 4294967294)::bigint");
    let server = database.server_with(&MQTT);
    publish_to(&server, &["room/1"], 3..5);
    let mut client = resume(&server, "keeper");
    let payloads: Vec<String> = client.messages(2).into_iter().map(|(_, data)| data).collect();
    assert_eq!(payloads, ["3", "4"]);
    client.is_quiet();
    let epochs = "SELECT o.log_epoch = l.epoch FROM throng.history_mqtt_owners AS o, throng.history_log AS l";
    server.until("the rows have positions in this log", |_| database.postgres.psql(epochs) == "t");
}
