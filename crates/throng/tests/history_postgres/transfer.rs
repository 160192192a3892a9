//! `throng store export` and `throng store import`: the history of an embedded store moves into PostgreSQL and back.

use std::process::{Command, Stdio};

use crate::store::folder::{Folder, end};

use super::compact::{set, state};
use super::subscriptions::topics;
use super::*;

/// Runs `throng store …` in a folder. Returns the exit status and the output.
fn throng_store(folder: &Folder, args: &[&str]) -> (Option<i32>, String) {
    let output = output_within(&mut command(folder, args));
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn command(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.arg("store").args(args).current_dir(&folder.root).stdin(Stdio::null());
    command
}

/// Returns all messages of a topic, with all fields. A topic has less than a page of messages here.
fn messages(server: &Server, topic: &str) -> Vec<Value> {
    let (status, page) = server.api("GET", &format!("/api/history/{topic}?limit=100"), None);
    assert_eq!((status, &page["more"]), (200, &json!(false)), "{page}");
    page["messages"].as_array().unwrap().clone()
}

fn offset(id: &str) -> u64 {
    id.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// Replaces ids by offsets, since the epoch may differ.
fn in_any_epoch(mut messages: Vec<Value>) -> Vec<Value> {
    for message in &mut messages {
        message["id"] = offset(message["id"].as_str().unwrap()).into();
    }
    messages
}

const TOPICS: [&str; 4] = ["chat:1", "chat:2", "few:1", "chat:gone"];

/// Ids of some messages in the store.
struct Stored {
    ids: Vec<String>,
    keyed: String,
    few: Vec<String>,
    gone: Vec<String>,
    messages: Vec<Vec<Value>>,
}

fn keyed() -> Value {
    json!({"topic": "chat:2", "data": "paid", "idempotency_key": "order-17", "tags": ["red"], "event": "sale"})
}

/// Publishes messages of each kind to a server with a store, and stops the server.
fn fill(folder: &Folder) -> Stored {
    let server = folder.serve();
    let ids: Vec<String> = (1..=5).map(|n| publish(&server, "chat:1", n)).collect();
    let few: Vec<String> = (1..=9).map(|n| publish(&server, "few:1", n)).collect();
    let keyed = server.post("/api/publish", keyed())["id"].as_str().unwrap().to_owned();
    server.post(
        "/api/publish",
        json!({"topic": "chat:2", "data": {"for": "an hour"}, "ttl_seconds": 3600}),
    );
    let gone: Vec<String> = (1..=3).map(|n| publish(&server, "chat:gone", n)).collect();
    let (status, reply) = server.api("DELETE", "/api/history/chat:gone", None);
    assert!(status < 300, "{reply}");
    for user in ["bob", "cy"] {
        let body = json!({"user": user, "add": ["feed:b", "feed:a"]});
        let (status, reply) = server.api("POST", "/api/subscriptions", Some(body));
        assert_eq!(status, 200, "{reply}");
    }
    let messages = TOPICS.map(|topic| messages(&server, topic)).to_vec();
    assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), [5, 2, 3, 0]);
    assert_eq!(end(server), Some(0));
    Stored { ids, keyed, few, gone, messages }
}

#[test]
fn a_history_moves_into_postgres_with_its_ids_and_back_under_a_new_epoch() {
    let (database, folder) = (Database::start(), Folder::new("move", RULES));
    let url = database.postgres.url("postgres");
    let stored = fill(&folder);
    let early = database.server();
    let (status, text) = throng_store(&folder, &["export", "data", "--history-url", &url]);
    assert_eq!(status, Some(0), "{text}");
    // This server knows the empty log, and must append nothing to another log.
    until_refused(&early, "restart this server");
    drop(early);
    assert!(
        text.contains("4 topics with 10 messages, 1 idempotency keys and 0 cursors are in"),
        "{text}"
    );
    assert!(text.contains("with the ids that clients know"), "{text}");
    assert!(text.contains("with them, 4 stored subscriptions of 2 users were written"), "{text}");
    let server = database.server();
    check_moved(&server, &stored);
    let (status, text) = throng_store(&folder, &["export", "data", "--history-url", &url]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("is not empty (4 topics") && text.contains("history.schema"), "{text}");
    // The database may still have messages that no rule retains, and a deletion is a row there.
    (10..=12).for_each(|n| _ = publish(&server, "few:1", n));
    server.post("/api/subscriptions", json!({"user": "cy", "remove": ["feed:a", "feed:b"]}));
    server.post("/api/subscriptions", json!({"user": "bob", "add": ["feed:c"]}));
    publish(&server, "chat:deleted", 1);
    let (status, reply) = server.api("DELETE", "/api/history/chat:deleted", None);
    assert!(status < 300, "{reply}");
    let there = TOPICS.map(|topic| in_any_epoch(messages(&server, topic)));
    let last = publish(&server, "chat:1", "last");
    check_back(&folder, &url, &there, &stored, &last);
}

/// Checks that clients and publishers of the single server find everything at a server on the database.
fn check_moved(server: &Server, stored: &Stored) {
    let Stored { ids, keyed: key, few, gone, messages: all } = stored;
    for (topic, all) in TOPICS.iter().zip(all) {
        assert_eq!(messages(server, topic), *all, "{topic}");
    }
    let mut page = server.listen(&format!("/sse?topic=chat:1&since={}", ids[1]));
    let recovery: Value = serde_json::from_str(&page.data()).unwrap();
    assert_eq!(recovery["recovered"], true, "{recovery}");
    assert_eq!([page.data(), page.data(), page.data()], ["3", "4", "5"]);
    let recovered = |topic: &str, id: &str| {
        let mut back = member(server, &format!("topic={topic}&since={id}"));
        back.next_object()["recovered"].clone()
    };
    for user in ["bob", "cy"] {
        assert_eq!(topics(server, user), ["feed:a", "feed:b"], "{user}");
    }
    // The rule retains the messages from the seventh on.
    assert_eq!(
        (recovered("few:1", &few[5]), recovered("few:1", &few[4])),
        (true.into(), false.into())
    );
    assert_eq!(
        (recovered("chat:gone", &gone[2]), recovered("chat:gone", &gone[1])),
        (true.into(), false.into())
    );
    assert_eq!(server.post("/api/publish", keyed())["id"], json!(key));
    let conditional = |if_offset: u64| {
        let body = json!({"topic": "chat:1", "data": "next", "if_offset": if_offset});
        server.api("POST", "/api/publish", Some(body))
    };
    let (status, refused) = conditional(offset(&ids[3]));
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("newer_message")), "{refused}");
    let (status, next) = conditional(offset(&ids[4]));
    assert_eq!(status, 200, "{next}");
    // The next offset follows the last one of all topics, in the same epoch.
    let (epoch, _) = ids[0].split_once(':').unwrap();
    assert_eq!(next["id"], format!("{epoch}:{}", offset(&gone[2]) + 1));
    assert_eq!(page.data(), "next", "members get what comes after what they missed");
}

/// Checks that a new store has the database's contents, while a server still uses the database.
fn check_back(folder: &Folder, url: &str, there: &[Vec<Value>; 4], stored: &Stored, last: &str) {
    let (status, text) = throng_store(folder, &["import", "back", "--history-url", url]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("5 topics with 12 messages, 1 idempotency keys and 0 cursors"), "{text}");
    assert!(text.contains("with them, 3 stored subscriptions of 1 users were written"), "{text}");
    assert!(
        text.contains(&format!("messages after offset {} may be missing", offset(last))),
        "{text}"
    );
    let (status, text) = throng_store(folder, &["import", "back", "--history-url", url]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("back already has a store"), "{text}");
    let (status, text) = throng_store(folder, &["check", "back"]);
    assert_eq!(status, Some(0), "{text}");
    let server = folder.serve_in(&folder.root.join("back"));
    let back = TOPICS.map(|topic| in_any_epoch(messages(&server, topic)));
    let mut of_bob = topics(&server, "bob");
    of_bob.sort_unstable();
    assert_eq!(
        (&*of_bob, topics(&server, "cy").len()),
        (&["feed:a", "feed:b", "feed:c"].map(String::from)[..], 0)
    );
    assert_eq!(
        data_of(&back[0]),
        [json!(1), 2.into(), 3.into(), 4.into(), 5.into(), "next".into(), "last".into()]
    );
    assert_eq!(back[0][..6], there[0][..]);
    assert_eq!(back[1..], there[1..]);
    assert!(messages(&server, "chat:deleted").is_empty());
    let again = server.post("/api/publish", keyed());
    assert_eq!(offset(again["id"].as_str().unwrap()), offset(&stored.keyed));
    let mut client = member(&server, &format!("topic=chat:1&since={last}"));
    assert_eq!(client.next_object()["recovered"], false, "the log may have gone on");
    let id = publish(&server, "chat:1", "new");
    assert!(offset(&id) > offset(last), "{id}");
    assert_eq!(next(&mut client).1, "new");
    assert_eq!(end(server), Some(0));
}

fn data_of(messages: &[Value]) -> Vec<Value> {
    messages.iter().map(|message| message["data"].clone()).collect()
}

fn migrate(url: &str) {
    for part in ["history", "subscriptions"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args([part, "migrate"]).env("THRONG_HISTORY_URL", url).current_dir("/");
        assert!(output_within(&mut command).status.success());
    }
}

/// Returns true if the database has no history.
fn is_empty(database: &Database) -> bool {
    let rows = "SELECT (SELECT count(*) FROM throng.history_topics) + (SELECT count(*) FROM throng.history_messages) \
                + (SELECT count(*) FROM throng.history_keys) + (SELECT last_offset FROM throng.history_log)";
    database.postgres.psql(rows) == "0"
}

#[test]
fn a_killed_export_leaves_nothing_and_the_next_one_works() {
    let (database, folder) = (Database::start(), Folder::new("kill", RULES));
    let url = database.postgres.url("postgres");
    fill(&folder);
    migrate(&url);
    // The export writes the messages before the keys, and the keys wait for this lock.
    let mut blocker = database.postgres.session();
    blocker.run("BEGIN");
    blocker.run("LOCK TABLE throng.history_keys IN SHARE MODE");
    let export = ["export", "data", "--history-url", &url];
    let mut child =
        command(&folder, &export).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let waiting = || database.processes("INSERT INTO \"throng\".history_keys", LOCKED);
    until("the export waits", || !waiting().is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    blocker.run("ROLLBACK");
    until("its session has ended", || database.processes("history_", "true").is_empty());
    assert!(is_empty(&database));
    let (status, text) = throng_store(&folder, &export);
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(database.rows(), 10);
    // Clients may have seen messages that a backup lacks.
    let (status, text) = throng_store(&folder, &["backup", "copy", "--from", "data"]);
    assert_eq!(status, Some(0), "{text}");
    let mut of_copy = command(&folder, &["export", "copy", "--history-url", &url]);
    let output = output_within(of_copy.env("THRONG_HISTORY_SCHEMA", "moved"));
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("under a new epoch"), "{output:?}");
    let same = "SELECT a.epoch = b.epoch FROM throng.history_log AS a, moved.history_log AS b";
    assert_eq!(database.postgres.psql(same), "f");
}

#[test]
fn an_export_writes_over_no_subscriptions() {
    let (database, folder) = (Database::start(), Folder::new("over", RULES));
    let url = database.postgres.url("postgres");
    fill(&folder);
    let server = database.server();
    server.post("/api/subscriptions", json!({"user": "al", "add": ["feed:z"]}));
    let (status, text) = throng_store(&folder, &["export", "data", "--history-url", &url]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("has stored subscriptions"), "{text}");
    assert!(is_empty(&database));
    assert_eq!(topics(&server, "al"), ["feed:z"]);
}

#[test]
fn an_export_that_fails_in_the_middle_leaves_nothing() {
    let (database, folder) = (Database::start(), Folder::new("fail", RULES));
    let url = database.postgres.url("postgres");
    fill(&folder);
    let (status, text) = throng_store(&folder, &["import", "none", "--history-url", &url]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("has no history that this version can read (version 0 of 5)"), "{text}");
    assert!(!folder.root.join("none").exists());
    migrate(&url);
    database.postgres.psql(
        "CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no more'; END $$; \
         CREATE TRIGGER reject BEFORE UPDATE ON throng.history_log EXECUTE FUNCTION reject()",
    );
    let export = ["export", "data", "--history-url", &url];
    let (status, text) = throng_store(&folder, &export);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("error: the history in PostgreSQL: no more"), "{text}");
    assert!(is_empty(&database));
    database.postgres.psql("DROP TRIGGER reject ON throng.history_log");
    // The rights that the page grants to a server's database user suffice for an export and an import.
    database.postgres.psql("CREATE ROLE throng LOGIN");
    database.postgres.psql(&access::grants());
    let url = database.postgres.url("throng");
    let (status, text) = throng_store(&folder, &["export", "data", "--history-url", &url]);
    assert_eq!(status, Some(0), "{text}");
    let (status, text) = throng_store(&folder, &["import", "back", "--history-url", &url]);
    assert_eq!(status, Some(0), "{text}");
}

#[test]
fn a_compacted_topic_moves_with_its_states_and_its_positions() {
    let (database, folder) = (Database::start(), Folder::new("states", RULES));
    let url = database.postgres.url("postgres");
    let server = folder.serve();
    let first = set(&server, "map:1", "a", json!(1));
    let known = set(&server, "map:1", "b", json!(2));
    set(&server, "map:1", "a", json!(3));
    set(&server, "map:1", "b", Value::Null);
    set(&server, "map:1", "c", json!(4));
    // The key a goes: its last message is the oldest.
    set(&server, "map:1", "d", json!(5));
    let check = |server: &Server, at: &str| {
        let pairs = [("c", json!(4)), ("d", json!(5))];
        let newcomer = pairs.clone().map(|(key, data)| (key.to_owned(), data));
        assert_eq!(state(server, "topic=map:1"), (true, newcomer.to_vec()), "{at}");
        let (recovered, back) = state(server, &format!("topic=map:1&since={known}"));
        assert!(!recovered && back == newcomer, "{at}: {back:?}");
    };
    check(&server, "in the store");
    let third = format!("{}:{}", first.split_once(':').unwrap().0, offset(&known) + 1);
    assert_eq!(end(server), Some(0));
    let (status, text) = throng_store(&folder, &["export", "data", "--history-url", &url]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("1 topics with 3 messages") && !text.contains("not exported"), "{text}");
    let server = database.server();
    check(&server, "in PostgreSQL");
    let changes = [("b", Value::Null), ("c", json!(4)), ("d", json!(5))];
    let changes = changes.map(|(key, data)| (key.to_owned(), data));
    let back = state(&server, &format!("topic=map:1&since={third}"));
    assert_eq!(back, (true, changes.to_vec()), "a client from before");
    set(&server, "map:1", "c", json!(6));
    let rows =
        "SELECT string_agg(key, '' ORDER BY log_offset), sum(size) FROM throng.history_states";
    assert_eq!(database.postgres.psql(rows), "bdc|6");
    drop(server);
    let (status, text) = throng_store(&folder, &["import", "back", "--history-url", &url]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("1 topics with 3 messages"), "{text}");
    let (status, text) = throng_store(&folder, &["check", "back"]);
    assert_eq!(status, Some(0), "{text}");
    let server = folder.serve_in(&folder.root.join("back"));
    let after = |pairs: &[(&str, Value)]| {
        let pairs = pairs.iter().map(|(key, data)| ((*key).to_owned(), data.clone()));
        assert_eq!(state(&server, "topic=map:1"), (true, pairs.collect()));
    };
    after(&[("d", json!(5)), ("c", json!(6))]);
    set(&server, "map:1", "d", json!(7));
    after(&[("c", json!(6)), ("d", json!(7))]);
    assert_eq!(end(server), Some(0));
}

#[test]
fn cursors_and_retained_messages_move_in_both_directions() {
    let rules = "[inbox]\nenabled = true\ndurable = true\n\
                 [[topics]]\npattern = \"job:*\"\nhistory_messages_max = 9\ndurable = true\nacknowledge = true\n";
    let (database, folder) = (Database::start(), Folder::new("cursors", rules));
    let url = database.postgres.url("postgres");
    let server = folder.serve();
    let send = |server: &Server, data: u64| {
        let sent = server.post("/api/send", json!({"user": "bob", "data": data}));
        sent["id"].as_str().unwrap().to_owned()
    };
    let ids: Vec<String> = (1..=4).map(|data| send(&server, data)).collect();
    server.post("/api/ack", json!({"user": "bob", "id": ids[0]}));
    drop(member(&server, "topic=job:1&user=bob"));
    let job = publish(&server, "job:1", 5);
    let light = |data: &str| json!({"topic": "light", "data": data, "mqtt": {"retain": true}});
    let retained =
        |server: &Server| server.api("GET", "/api/mqtt/retained/light", None).1["data"].take();
    server.post("/api/publish", light("on"));
    assert_eq!(end(server), Some(0));
    let (status, text) = throng_store(&folder, &["export", "data", "--history-url", &url]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("0 idempotency keys and 2 cursors are in"), "{text}");
    assert!(text.contains("\n1 retained messages of MQTT were moved\n"), "{text}");
    let file = folder.root.join("throng.toml").display().to_string();
    let server = Server::with(&["--config", &file], &[("THRONG_HISTORY_URL", &url)]);
    until_connected(&server);
    assert_eq!(retained(&server), "on");
    server.post("/api/publish", light("off"));
    let waiting = |server: &Server, query: &str, last: u64| {
        let mut member = member(server, query);
        data(&until_data(&mut member, &json!(last)))
    };
    assert_eq!(waiting(&server, "user=bob", 4), [2, 3, 4]);
    assert_eq!(waiting(&server, "topic=job:1&user=bob", 5).last(), Some(&json!(5)));
    server.post("/api/ack", json!({"user": "bob", "id": ids[2]}));
    server.post("/api/ack", json!({"user": "bob", "topic": "job:1", "id": job}));
    let pending = ["throng_history_pending_cursors", "throng_mqtt_retained_pending"];
    server.until("they are written", |it| pending.iter().all(|name| it.metric(name) == 0.0));
    database.postgres.psql("UPDATE throng.history_cursors SET given_up = 4 WHERE topic = '@bob'");
    drop(server);
    let (status, text) = throng_store(&folder, &["import", "back", "--history-url", &url]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("0 idempotency keys and 2 cursors are imported"), "{text}");
    assert!(text.contains("\n1 retained messages of MQTT were moved\n"), "{text}");
    let server = folder.serve_in(&folder.root.join("back"));
    assert_eq!(retained(&server), "off");
    let cursor = server.api("GET", "/api/cursors/bob", None).1;
    let offset_of = |field: &str| offset(cursor[field].as_str().unwrap());
    assert_eq!((offset_of("acknowledged"), offset_of("given_up")), (offset(&ids[2]), 4));
    let cursor = server.api("GET", "/api/cursors/bob?topic=job:1", None).1;
    assert_eq!(offset(cursor["acknowledged"].as_str().unwrap()), offset(&job));
    assert_eq!(end(server), Some(0));
}

#[test]
fn an_impossible_export_is_refused_with_what_to_do() {
    let database = Database::start();
    let rules = format!("{RULES}[history]\nschema = \"moved\"\n");
    let folder = Folder::new("refuse", &rules);
    let url = database.postgres.url("postgres");
    let export = ["export", "data", "--config", "throng.toml", "--history-url", &url];
    let refused = |args: &[&str], status: i32, part: &str| {
        let (found, text) = throng_store(&folder, args);
        assert_eq!(found, Some(status), "{text}");
        assert!(text.contains(part), "{text}");
    };
    refused(&export, 1, "data has no store");
    let server = folder.serve();
    publish(&server, "chat:1", "the text of a message");
    refused(&export, 1, "stop the server that has it open");
    assert_eq!(end(server), Some(0));
    refused(&export[..2], 2, "no database: name it with --history-url");
    refused(&["export", "--history-url", &url], 2, "durable message needs a disk");
    let secret = "postgres://a:hush@h/d";
    let (status, text) = throng_store(&folder, &["export", "data", "--history-url", secret]);
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("history.password_file") && !text.contains("hush"), "{text}");
    let schemas = || {
        database
            .postgres
            .psql("SELECT count(*) FROM pg_namespace WHERE nspname IN ('throng', 'moved')")
    };
    assert_eq!(schemas(), "0");
    let good = std::fs::read(folder.file()).unwrap();
    let mut damaged = good.clone();
    let at = damaged.windows(9).position(|part| part == b"a message").unwrap();
    damaged[at] ^= 1;
    std::fs::write(folder.file(), &damaged).unwrap();
    // This command takes the directory from the configuration.
    let configured = ["export", "--data", "data", "--history-url", &url];
    refused(&configured, 3, "damaged: ");
    assert_eq!(schemas(), "0");
    std::fs::write(folder.file(), &good).unwrap();
    refused(&configured, 0, "1 topics with 1 messages");
    let moved = "SELECT string_agg(name, ' ') FROM moved.history_topics";
    assert_eq!(database.postgres.psql(moved), "chat:1");
}

/// Returns a query for all rows of a history in a schema, by the names of topics.
fn all_rows(schema: &str) -> String {
    format!(
        "SELECT t.name, t.last_offset, t.last_sequence, t.last_total, t.messages_max, t.bytes_max, t.seconds_max, \
         m.log_offset, m.previous, m.sequence, m.total, m.at_ms, m.expires_ms, m.record \
         FROM {schema}.history_topics AS t LEFT JOIN {schema}.history_messages AS m ON m.topic_id = t.id"
    )
}

#[test]
fn a_long_history_has_the_same_rows_after_it_went_there_and_back() {
    let (database, folder) = (Database::start(), Folder::new("long", RULES));
    let url = database.postgres.url("postgres");
    let server = folder.serve();
    for batch in 0..5 {
        let publish = |n: usize| {
            let topic = format!("chat:{}", n % 3);
            json!({"publish": {"topic": topic, "data": "x".repeat(n % 700), "ttl_seconds": 9_000 + n}})
        };
        let commands: Vec<Value> = (0..1_000).map(|n| publish(batch * 1_000 + n)).collect();
        let (status, reply) = server.api("POST", "/api/batch", Some(json!({"commands": commands})));
        assert_eq!(status, 200, "{reply}");
    }
    (0..7).for_each(|n| _ = publish(&server, "few:1", n));
    assert_eq!(end(server), Some(0));
    let run = |args: &[&str], schema: &str, part: &str| {
        let mut command = command(&folder, args);
        let output = output_within(
            command.args(["--history-url", &url]).env("THRONG_HISTORY_SCHEMA", schema),
        );
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success() && text.contains(part), "{text}");
    };
    let part = "4 topics with 5,003 messages";
    run(&["export", "data"], "throng", part);
    run(&["import", "back"], "throng", part);
    run(&["export", "back"], "again", part);
    let (one, other) = (all_rows("throng"), all_rows("again"));
    assert_eq!(database.postgres.psql(&format!("SELECT count(*) FROM ({one}) AS it")), "5003");
    for (one, other) in [(&one, &other), (&other, &one)] {
        let more = format!("SELECT count(*) FROM ({one} EXCEPT {other}) AS it");
        assert_eq!(database.postgres.psql(&more), "0");
    }
    // Checks that the rows are as a server would have written them.
    let wrong = "SELECT count(*) FROM (SELECT m.*, lag(m.log_offset, 1, m.previous) OVER topic AS before, \
         row_number() OVER topic AS number FROM throng.history_messages AS m \
         WINDOW topic AS (PARTITION BY topic_id ORDER BY log_offset)) AS m \
         WHERE previous <> before OR sequence <> number OR expires_ms IS NULL AND total > 2";
    assert_eq!(database.postgres.psql(wrong), "0");
    let total = "SELECT sum(last_total) FROM throng.history_topics WHERE name LIKE 'chat:%'";
    let bytes: usize = (0..5_000).map(|n| n % 700).sum();
    assert_eq!(database.postgres.psql(total), bytes.to_string());
}
