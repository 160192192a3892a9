//! MQTT sessions that outlive their connections. The topics `chat:*` have a rule, and others have none.

use std::ops::Range;

use protocol::mqtt::client::SubscribeParts;

use super::retained::MQTT;
use super::*;
use crate::application::Application;
use crate::mqtt::client::*;
use crate::upgrade::node::Node;

/// Connects a client whose session has these filters, and returns when its connection has ended.
pub(super) fn leave_session(server: &Server, client: &str, filters: &[SubscribeParts<'_>]) {
    let mut connection = Connect::persistent(V5, client).open(server.client);
    connection.subscribe(filters);
    connection.cut();
    until_left(server, client);
}

pub(super) fn until_left(server: &Server, client: &str) {
    server.until("its client is away", |server| {
        let (status, session) = server.api("GET", &format!("/api/mqtt/sessions/{client}"), None);
        status == 200 && session["connected"] == false
    });
}

/// Publishes numbers in turns to these topics with QoS 1 and 2. Returns the topics and payloads.
pub(super) fn publish_to(
    server: &Server,
    topics: &[&str],
    numbers: Range<usize>,
) -> Vec<(String, String)> {
    let mut publisher = Connect::new(V5, "publisher").open(server.client);
    let published = numbers.map(|n| {
        let (topic, payload) = (topics[n % topics.len()], n.to_string());
        publisher.publish(topic, &payload, if n % 2 == 0 { 1 } else { 2 });
        (topic.to_owned(), payload)
    });
    published.collect()
}

#[test]
fn a_session_gets_what_was_published_meanwhile() {
    let database = Database::start();
    let publishing = ("THRONG_CLIENT_PUBLISH_PREFIXES", "room/");
    let server = database.server_with(&[MQTT[0], publishing]);
    leave_session(&server, "keeper", &[filter("chat:1", 1), filter("room/+", 1)]);
    let published = publish_to(&server, &["chat:1", "room/1", "elsewhere", "room/2"], 0..40);
    let mut expected: Vec<_> = published.into_iter().filter(|it| it.0 != "elsewhere").collect();
    assert_eq!(database.rows(), 30, "no rule and no session retains the others");
    // With QoS 0 nothing is retained for a session alone.
    let mut publisher = Connect::new(V5, "publisher").open(server.client);
    publisher.publish("room/1", "unconfirmed", 0);
    publisher.ping();
    server.publish("room/3", json!("by the API"));
    expected.push(("room/3".into(), "by the API".into()));
    let by_client = Some(json!("by a client"));
    let (status, reply) = json(server.client, "POST", "/publish?topic=room/4", by_client, "");
    assert_eq!(status, 200, "{reply}");
    expected.push(("room/4".into(), "by a client".into()));
    let mut client = Connect::persistent(V5, "keeper").open(server.client);
    assert!(client.session_present);
    assert_eq!(client.messages(expected.len()), expected);
    publisher.publish("room/1", "live", 1);
    assert_eq!(client.message().payload, "live");
    client.is_quiet();
    client.disconnect();
    until_left(&server, "keeper");
    // Nothing more is retained for a session that has ended.
    assert_eq!(server.api("DELETE", "/api/mqtt/sessions/keeper", None).0, 200);
    let rows = database.rows();
    publish_to(&server, &["room/1"], 0..4);
    assert_eq!(database.rows(), rows);
}

#[test]
fn publishers_to_a_session_fail_while_the_database_is_away() {
    let database = Database::start();
    let server = database.server_b(&MQTT);
    leave_session(&server, "keeper", &[filter("room/1", 1)]);
    publish_to(&server, &["room/1"], 0..1);
    database.lock_out(&server);
    let mqtt = json!({"topic": "room/1", "data": "lost"});
    let (status, error) = server.api("POST", "/api/publish", Some(mqtt));
    assert_eq!((status, &error["error"]["code"]), (503, &json!("store_failed")), "{error}");
    publish_to(&server, &["elsewhere"], 0..1);
    database.let_in();
    until_connected(&server);
    publish_to(&server, &["room/1"], 1..2);
    let mut client = Connect::persistent(V5, "keeper").open(server.client);
    let payloads: Vec<String> = client.messages(2).into_iter().map(|(_, data)| data).collect();
    assert_eq!(payloads, ["0", "1"]);
    client.is_quiet();
}

#[test]
fn a_session_gets_messages_of_all_nodes_in_topics_with_a_rule_and_members_get_each_once() {
    let (database, nats) = (Database::start(), Nats::start());
    let [a, b, c] = database.nodes_with(&nats, &MQTT);
    leave_session(&a, "keeper", &[filter("chat:1", 1), filter("room/1", 1)]);
    let mut live = [&a, &b, &c].map(|node| member(node, "topic=room/1&topic=chat:1"));
    let mut expected = Vec::new();
    for (at, node) in [&b, &a, &c, &a, &b].into_iter().enumerate() {
        expected.extend(publish_to(node, &["chat:1"], at..at + 1));
    }
    // Members get what the log has for the session at another node, and what it does not have.
    expected.extend(publish_to(&a, &["room/1"], 10..14));
    publish_to(&b, &["room/1"], 14..15);
    publish_to(&b, &["chat:1"], 15..16).into_iter().for_each(|it| expected.push(it));
    let payload = |(_, data): (String, Value)| data.to_string().trim_matches('"').to_owned();
    for stream in &mut live {
        // Between the two logs there is no order.
        let mut received: Vec<String> = (0..11).map(|_| payload(next(stream))).collect();
        received.sort_unstable_by_key(|it| it.parse::<u32>().unwrap());
        let all = (0..5).chain(10..16).map(|n: u32| n.to_string());
        assert_eq!(received, all.collect::<Vec<_>>());
    }
    let mut client = Connect::persistent(V5, "keeper").open(a.client);
    assert!(client.session_present);
    assert_eq!(client.messages(expected.len()), expected);
    client.is_quiet();
    publish_to(&c, &["chat:1"], 16..17);
    assert_eq!(client.message().payload, "16");
}

#[test]
fn an_upgrade_passes_sessions_on_and_the_database_has_their_messages() {
    let database = Database::start();
    let node: Node = upgrade::node(&database);
    leave_session(&node, "keeper", &[filter("chat:1", 1), filter("room/+", 1)]);
    let mut expected = publish_to(&node, &["chat:1", "room/1", "room/2"], 0..9);
    // These topics have nothing for the session. The server reads names in parts: `room/9` is in the second one.
    database.postgres.psql(
        "INSERT INTO throng.history_topics (name, last_offset, last_ms) \
         SELECT 'room/' || n || '/x', 1, extract(epoch FROM now()) * 1000 FROM generate_series(1, 5000) AS n",
    );
    node.upgrade();
    expected.extend(publish_to(&node, &["room/9", "room/1"], 9..13));
    let mut client = Connect::persistent(V5, "keeper").open(node.client);
    assert!(client.session_present);
    assert_eq!(client.messages(expected.len()), expected);
    client.is_quiet();
}

#[test]
fn a_message_that_a_member_of_a_group_has_not_confirmed_passes_to_another_member() {
    let database = Database::start();
    let server = database.server_with(&MQTT);
    let mut first = Connect::persistent(V5, "first").open(server.client);
    first.subscribe(&[filter("$share/g/room/1", 1)]);
    publish_to(&server, &["room/1"], 0..1);
    assert_eq!(first.unconfirmed().payload, "0");
    first.cut();
    until_left(&server, "first");
    let mut second = Connect::persistent(V5, "second").open(server.client);
    second.subscribe(&[filter("$share/g/room/1", 1)]);
    assert_eq!(server.api("DELETE", "/api/mqtt/sessions/first", None).0, 200);
    assert_eq!(second.message().payload, "0");
    second.is_quiet();
}

/// A wildcard does not reach a topic that the application decides about. After the upgrade the messages are in the database
/// alone, and no session asks for those of that topic any more.
#[test]
fn a_session_with_a_wildcard_returns_though_topics_that_it_does_not_reach_have_messages() {
    let database = Database::start();
    let application = Application::replying(|_| json!({}));
    let url = application.url();
    let rules = "[[topics]]\npattern = \"private/*\"\njoin = \"webhook\"\n";
    let server = upgrade::node_of(&database, rules, &[("THRONG_WEBHOOK_URL", &url)]);
    leave_session(&server, "wide", &[filter("#", 1)]);
    leave_session(&server, "private", &[filter("private/7", 1)]);
    server.publish("private/7", json!("for one"));
    server.publish("room/1", json!("for all"));
    assert_eq!(database.rows(), 2);
    assert_eq!(server.api("DELETE", "/api/mqtt/sessions/private", None).0, 200);
    server.upgrade();
    let mut client = Connect::persistent(V5, "wide").open(server.client);
    assert!(client.session_present);
    assert_eq!(client.message().payload, "for all");
    client.is_quiet();
}

#[test]
fn polls_at_other_nodes_get_each_message_that_the_log_has_for_a_session() {
    let (database, nats) = (Database::start(), Nats::start());
    let [a, b, _c] = database.nodes_with(&nats, &MQTT);
    let begin = b.get("/poll?topic=room/1&timeout=0").1;
    leave_session(&a, "keeper", &[filter("room/1", 1)]);
    for n in 0..5 {
        a.publish("room/1", json!(n));
    }
    assert_eq!(database.rows(), 5);
    let (mut since, mut received) = (begin["since"].as_str().unwrap().to_owned(), Vec::new());
    while received.len() < 5 {
        let (status, reply) = b.get(&format!("/poll?topic=room/1&since={since}"));
        assert_eq!((status, &reply["recovered"]), (200, &json!(true)), "{reply}");
        let messages = reply["messages"].as_array().unwrap();
        assert!(!messages.is_empty(), "{received:?}");
        received.extend(messages.iter().map(|message| message["data"].clone()));
        since = reply["since"].as_str().unwrap().to_owned();
    }
    assert_eq!(received, (0..5).map(|n| json!(n)).collect::<Vec<_>>());
    let recent = b.api("GET", "/api/messages?topic=room/1", None).1;
    assert_eq!(recent["messages"].as_array().unwrap().len(), 5, "{recent}");
}
