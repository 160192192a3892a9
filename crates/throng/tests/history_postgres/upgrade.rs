//! A new process takes a server's place while the history is in PostgreSQL: no client and no publisher notices.

use std::thread;

use super::*;
use crate::upgrade::member::{ALL, Member, Publisher, numbers};
use crate::upgrade::node::{Node, Options};

pub(super) fn node(database: &Database) -> Node {
    node_with(database, &[])
}

/// Like [`node`], with these variables.
fn node_with(database: &Database, settings: &[(&str, &str)]) -> Node {
    node_of(database, RULES, settings)
}

/// Like [`node_with`], with these rules of topics.
pub(super) fn node_of(database: &Database, rules: &str, settings: &[(&str, &str)]) -> Node {
    let url = database.postgres.url("postgres");
    let topics = format!("[timeouts]\ndrain_seconds = 0\n\n[history]\nurl = \"{url}\"\n\n{rules}");
    let node = Node::with(Options { topics, settings: settings.to_vec(), ..Options::default() });
    until_connected(&node);
    node
}

/// Publishes numbers to `chat:a` at the first server and to `chat:b` at the second one, while `act` runs. Then checks
/// that each member got each number of its topic once and in order.
fn all_the_while(nodes: &[Node; 2], members: Vec<Member>, act: impl FnOnce()) {
    let publishers = [Publisher::default(), Publisher::default()];
    thread::scope(|scope| {
        let publishing = [("chat:a", 0), ("chat:b", 1)].map(|(topic, at)| {
            let (publisher, node) = (&publishers[at], &nodes[at]);
            scope.spawn(move || publisher.run(node, &[topic]))
        });
        let read = |mut member: Member| {
            let received = member.before_end();
            (member, received)
        };
        let reading: Vec<_> =
            members.into_iter().map(|member| scope.spawn(move || read(member))).collect();
        publishers[0].meanwhile(|| publishers[1].meanwhile(act));
        let counts = publishing.map(|it| it.join().unwrap());
        for thread in reading {
            let (member, received) = thread.join().unwrap();
            let count = counts[usize::from(member.topic == "chat:b")];
            member.check_received(&received, &numbers(0..count));
        }
    });
    for node in nodes {
        assert_eq!(node.metric("throng_history_gaps_total"), 0.0, "{}", node.log());
    }
}

/// Connects members of each transport to both topics at the first server, and one member of each topic at the second.
fn members(nodes: &[Node; 2]) -> Vec<Member> {
    let mut members = Vec::new();
    for topic in ["chat:a", "chat:b"] {
        members.extend(ALL.map(|kind| Member::open(&nodes[0], kind, topic)));
        members.push(Member::open(&nodes[1], ALL[0], topic));
    }
    members
}

#[test]
fn each_transport_receives_what_all_servers_append_once_through_upgrades() {
    let database = Database::start();
    let nodes = [node(&database), node(&database)];
    all_the_while(&nodes, members(&nodes), || (0..3).for_each(|_| nodes[0].upgrade()));
    // The new process reads earlier messages from the database.
    let [all, same] = nodes.each_ref().map(|node| history(node, "chat:a"));
    assert!(all == same && all.len() > 40);
    let mut back = member(&nodes[0], &format!("topic=chat:a&since={}", all[2].0));
    assert_eq!(until_data(&mut back, &json!("end")), all[3..]);
    let again = json!({"topic": "chat:b", "data": 1, "idempotency_key": "k"});
    let first = nodes[0].post("/api/publish", again.clone());
    nodes[0].upgrade();
    assert_eq!(nodes[0].post("/api/publish", again)["id"], first["id"]);
}

#[test]
fn an_upgrade_that_fails_leaves_the_server_with_its_history() {
    let database = Database::start();
    let nodes = [node(&database), node(&database)];
    all_the_while(&nodes, members(&nodes), || {
        nodes[0].upgrade_fails(&["--binary", "/bin/false"]);
        let outcome = nodes[0].try_upgrade(&["--check"]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        // The new process rejects the other database.
        let failing = format!("exec {} \"$@\"", crate::upgrade::node::throng());
        let failing = nodes[0].script(
            "other.sh",
            &format!("export THRONG_HISTORY_URL='{}'\n{failing}", other(&database)),
        );
        let text = nodes[0].upgrade_fails(&["--binary", failing.to_str().unwrap()]);
        assert!(text.contains("history.url: this database has another log"), "{text}");
        nodes[0].upgrade();
    });
}

/// The old process writes them before the new one begins.
#[test]
fn acknowledgements_that_wait_for_the_database_are_written_before_an_upgrade() {
    let database = Database::start();
    let node = node(&database);
    let mut worker = member(&node, "topic=job:1&user=bob");
    node.until("bob begins", |_| !cursors(&database).is_empty());
    let ids: Vec<String> = (0..4).map(|number| publish(&node, "job:1", number)).collect();
    (0..4).for_each(|number| assert_eq!(next(&mut worker).1, number));
    let acknowledge = |id: &String| {
        let done = node.post("/api/ack", json!({"user": "bob", "topic": "job:1", "id": id}));
        assert_eq!(done["acknowledged"], *id, "{done}");
    };
    let mut lock = database.postgres.session();
    lock.run("BEGIN");
    lock.run("SELECT * FROM throng.history_cursors_log FOR UPDATE");
    acknowledge(&ids[1]);
    let text = node.upgrade_fails(&[]);
    assert!(text.contains("pending work of the shards, the store or the database"), "{text}");
    acknowledge(&ids[2]);
    lock.run("ROLLBACK");
    node.upgrade();
    let third = ids[2].split_once(':').unwrap().1;
    assert_eq!(cursors(&database), format!("bob job:1 {third}"));
    publish(&node, "job:1", 4);
    assert_eq!(next(&mut worker).1, 4, "the connection goes on");
    let mut back = member(&node, "topic=job:1&user=bob");
    assert_eq!(data(&until_data(&mut back, &json!(4))), [3, 4]);
}

fn cursors(database: &Database) -> String {
    database.postgres.psql(
        "SELECT string_agg(concat_ws(' ', user_name, topic, acknowledged), ',') FROM throng.history_cursors",
    )
}

/// The URL of another database with a history of its own.
fn other(database: &Database) -> String {
    database.postgres.psql("CREATE DATABASE other");
    database.postgres.url("postgres").replace("/app", "/other")
}

#[test]
fn a_client_that_catches_up_goes_on_at_the_new_process() {
    let database = Database::start();
    let node = node(&database);
    let count = 400;
    let text = |number: usize| format!("{number} {}", "x".repeat(10_000));
    (0..count).for_each(|number| _ = publish(&node, "chat:a", text(number)));
    // The member does not read, and the history is larger than its socket and its outbox.
    let mut slow = member(&node, "topic=chat:a&since=start");
    node.upgrade();
    publish(&node, "chat:a", "end");
    let expected = (0..count).map(|number| json!(text(number)));
    let expected: Vec<Value> = expected.chain([json!("end")]).collect();
    assert_eq!(data(&until_data(&mut slow, &json!("end"))), expected);
}

/// The call waits for the database, so the shards serve until it has ended.
#[test]
fn clients_are_served_while_an_upgrade_waits_for_a_slow_call() {
    let database = Database::start();
    // For a session that outlives its connection, the database would have the messages of the other topic, too.
    let settings = [("THRONG_LOG_LEVEL", "info"), ("THRONG_MQTT_SESSION_SECONDS_MAX", "0")];
    let node = node_with(&database, &settings);
    publish(&node, "chat:a", 0);
    let mut members = ALL.map(|kind| Member::open(&node, kind, "plain"));
    let mut all_receive = |text: &str| {
        node.publish("plain", text.into());
        members.iter_mut().for_each(|member| assert_eq!(member.next(), text));
    };
    // On a slow machine the call may wait for longer than the server lets it wait for a lock.
    let body = json!({"topic": "chat:a", "data": 1, "idempotency_key": "slow"});
    let is_published = || node.api("POST", "/api/publish", Some(body.clone())).0 == 200;
    let mut lock = database.postgres.session();
    lock.run("BEGIN");
    lock.run("SELECT * FROM throng.history_topics FOR UPDATE");
    thread::scope(|scope| {
        let slow = scope.spawn(|| node.until("it is published", |_| is_published()));
        node.until("a call waits", |_| !database.processes("history_append", LOCKED).is_empty());
        let upgrade = node.begin(&[]);
        node.until("an attempt fails", |_| node.log().contains("calls of the admin API are slow"));
        all_receive("between two attempts");
        lock.run("ROLLBACK");
        node.finish(upgrade);
        slow.join().unwrap();
    });
    all_receive("after the upgrade");
    assert_eq!(data(&history(&node, "chat:a")), [0, 1]);
}
