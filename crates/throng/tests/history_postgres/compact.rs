//! Compacted topics, which retain the last message of each key.

use random::Random;

use super::append::migrated;
use super::*;

/// Sets the state of a key, and returns the id.
pub fn set(server: &Server, topic: &str, key: &str, data: Value) -> String {
    let body = json!({"topic": topic, "key": key, "data": data});
    server.post("/api/publish", body)["id"].as_str().unwrap().to_owned()
}

/// Connects a member, and returns the keys and data that it gets, up to the notice that the state is complete. The first
/// value is false if the server reports a gap.
pub fn state(server: &Server, query: &str) -> (bool, Vec<(String, Value)>) {
    let mut stream = member(server, query);
    let (mut recovered, mut state) = (true, Vec::new());
    loop {
        assert!(state.len() < 10_000, "the state has no end");
        let object = stream.next_object();
        match object["type"].as_str() {
            Some("message") => {
                let key = object["key"].as_str().unwrap_or_default().to_owned();
                state.push((key, object["data"].clone()));
            }
            Some("state_complete") => return (recovered, state),
            _ => recovered &= object["recovered"] != false,
        }
    }
}

fn pairs(pairs: &[(&str, Value)]) -> Vec<(String, Value)> {
    pairs.iter().map(|(key, data)| ((*key).to_owned(), data.clone())).collect()
}

#[test]
fn a_newcomer_gets_the_state_and_a_client_that_comes_back_what_changed() {
    let database = Database::start();
    let mut server = database.server();
    let other = database.server();
    let first = set(&server, "map:1", "a", json!(1));
    set(&server, "map:1", "b", json!(2));
    set(&other, "map:1", "a", json!(3));
    set(&server, "map:1", "c", json!(4));
    let last = set(&other, "map:1", "b", Value::Null);
    set(&server, "map:2", "a", json!("elsewhere"));
    for is_new in [false, true] {
        for server in [&server, &other] {
            let at = |what: &str| format!("{what}, after a restart: {is_new}");
            server.until("it has all", |server| history(server, "map:2").len() == 1);
            let whole = pairs(&[("a", json!(3)), ("c", json!(4))]);
            assert_eq!(state(server, "topic=map:1"), (true, whole.clone()), "{}", at("new"));
            let start = state(server, "topic=map:1&since=start");
            assert_eq!(start, (true, whole), "{}", at("from the start"));
            let changes = pairs(&[("a", json!(3)), ("c", json!(4)), ("b", Value::Null)]);
            let back = state(server, &format!("topic=map:1&since={first}"));
            assert_eq!(back, (true, changes), "{}", at("back"));
            let back = state(server, &format!("topic=map:1&since={last}"));
            assert_eq!(back, (true, vec![]), "{}", at("back at the end"));
            assert_eq!(state(server, "topic=map:3"), (true, vec![]), "{}", at("empty"));
            assert_eq!(data(&history(server, "map:1")), [json!(3), json!(4), Value::Null]);
        }
        if !is_new {
            server = database.replace(server);
        }
    }
    let without = json!({"topic": "map:1", "data": 1});
    let (status, reply) = server.api("POST", "/api/publish", Some(without));
    assert_eq!((status, &reply["error"]["code"]), (400, &json!("key_required")), "{reply}");
}

#[test]
fn the_limits_of_a_compacted_topic_count_keys() {
    let database = Database::start();
    let mut server = database.server();
    let first = set(&server, "map:1", "a", json!(1));
    (2..9).for_each(|n| _ = set(&server, "map:1", "b", json!(n)));
    set(&server, "map:1", "c", json!(9));
    let known = set(&server, "map:1", "a", json!(10));
    // The key that has not changed for the longest goes.
    set(&server, "map:1", "d", json!(11));
    let expected = pairs(&[("c", json!(9)), ("a", json!(10)), ("d", json!(11))]);
    for is_new in [false, true] {
        assert_eq!(state(&server, "topic=map:1"), (true, expected.clone()), "{is_new}");
        let back = state(&server, &format!("topic=map:1&since={known}"));
        assert_eq!(back, (true, pairs(&[("d", json!(11))])), "{is_new}");
        // This client does not know that the key b is gone.
        let back = state(&server, &format!("topic=map:1&since={first}"));
        assert_eq!(back, (false, expected.clone()), "{is_new}");
        if !is_new {
            server = database.replace(server);
        }
    }
    database.age();
    server.until("what is no state is deleted", |_| database.rows() == 3);
    assert_eq!(state(&server, "topic=map:1"), (true, expected));
    assert_eq!(server.metric("throng_history_trims_failed_total"), 0.0);
}

#[test]
fn newcomers_share_what_was_read_from_the_database() {
    let database = Database::start();
    let server = database.server();
    for key in ["a", "b", "c"] {
        set(&server, "map:1", key, json!(1));
    }
    let server = database.replace(server);
    let all = pairs(&[("a", json!(1)), ("b", json!(1)), ("c", json!(1))]);
    for _ in 0..40 {
        assert_eq!(state(&server, "topic=map:1"), (true, all.clone()));
    }
    let reads = server.metric("throng_history_disk_reads_total");
    assert!((1.0..20.0).contains(&reads), "{reads} reads");
    // A client that comes after a change has it, and no key that was removed before.
    set(&server, "map:1", "a", Value::Null);
    assert_eq!(state(&server, "topic=map:1"), (true, all[1..].to_vec()));
    set(&server, "map:1", "b", json!(2));
    let changed = pairs(&[("c", json!(1)), ("b", json!(2))]);
    assert_eq!(state(&server, "topic=map:1"), (true, changed.clone()));
    assert_eq!(state(&server, "topic=map:1"), (true, changed));
    assert!(server.api("DELETE", "/api/history/map:1", None).0 < 300);
    assert_eq!(state(&server, "topic=map:1"), (true, vec![]));
}

/// The memory of the server is empty: all clients need what is in the database.
#[test]
fn clients_that_come_back_share_what_was_read_from_the_database() {
    let database = Database::start();
    let server = database.server();
    let ids: Vec<String> = (0..9).map(|number| publish(&server, "chat:1", number)).collect();
    // Without it memory would know that nothing came after the last message.
    publish(&server, "chat:2", "later");
    let server = database.replace(server);
    for _ in 0..40 {
        let mut back = member(&server, &format!("topic=chat:1&since={}", ids[3]));
        assert_eq!(data(&until_data(&mut back, &json!(8))), [4, 5, 6, 7, 8]);
    }
    let reads = server.metric("throng_history_disk_reads_total");
    assert!((1.0..20.0).contains(&reads), "{reads} reads");
    // A poll with nothing to read waits for no message that came after the read.
    let poll = |timeout: u64| {
        server.get(&format!("/poll?topic=chat:1&since={}&timeout={timeout}", ids[8])).1
    };
    assert_eq!(poll(0)["messages"], json!([]));
    publish(&server, "chat:1", 9);
    assert_eq!(poll(60)["messages"][0]["data"], 9);
    let mut back = member(&server, &format!("topic=chat:1&since={}", ids[3]));
    assert_eq!(data(&until_data(&mut back, &json!(9))), [4, 5, 6, 7, 8, 9]);
}

#[test]
fn states_and_removals_go_when_their_time_is_over() {
    let database = Database::start();
    let server = database.server();
    let count =
        |table: &str| database.postgres.psql(&format!("SELECT count(*) FROM throng.{table}"));
    let first = set(&server, "brief:1", "a", json!(1));
    set(&server, "map:1", "a", json!(2));
    set(&server, "map:1", "b", Value::Null);
    server.until("a state is too old", |_| count("history_states") == "2");
    let is_empty = |server: &Server| state(server, "topic=brief:1") == (true, vec![]);
    server.until("memory has none, too", is_empty);
    // As if the key had been removed a day ago.
    database.postgres.psql("UPDATE throng.history_states SET ends_ms = 1 WHERE ends_ms > 0");
    server.until("a removal is too old", |_| count("history_states") == "1");
    database.age();
    server.until("what is no state is deleted", |_| database.rows() == 1);
    let server = database.replace(server);
    assert_eq!(state(&server, "topic=map:1"), (true, pairs(&[("a", json!(2))])));
    assert_eq!(state(&server, &format!("topic=brief:1&since={first}")), (true, vec![]));
    assert!(!state(&server, &format!("topic=map:1&since={first}")).0);
    let sums = "SELECT states, states_bytes FROM throng.history_topics ORDER BY name";
    assert_eq!(database.postgres.psql(sums), "0|0\n1|1");
}

#[test]
fn replaced_messages_that_a_server_has_missed_are_a_gap_for_members_of_compacted_topics_only() {
    let database = Database::start();
    let (there, away) = (database.server(), database.server_b(&[]));
    publish(&there, "chat:1", 0);
    set(&there, "map:1", "a", json!(1));
    away.until("it has both", |away| history(away, "map:1").len() == 1);
    let mut live = member(&away, "topic=chat:1&topic=map:1");
    database.lock_out(&away);
    (2..=4).for_each(|n| _ = set(&there, "map:1", "a", json!(n)));
    publish(&there, "chat:1", 9);
    database.age();
    there.until("replaced messages are deleted", |_| database.rows() == 3);
    database.let_in();
    until_connected(&away);
    let mut gaps = Vec::new();
    loop {
        let object = live.next_object();
        gaps.extend((object["recovered"] == false).then(|| object["topics"].clone()));
        if object["topic"] == "chat:1" && object["data"] == 9 {
            break;
        }
    }
    assert_eq!(gaps, [json!({"map:1": "too_old"})]);
    assert_eq!(state(&away, "topic=map:1"), (true, pairs(&[("a", json!(4))])));
    assert_eq!(data(&history(&away, "chat:1")), [0, 9]);
}

#[test]
fn a_deleted_state_is_gone_and_later_ones_stay() {
    let database = Database::start();
    let server = database.server();
    let first = set(&server, "map:1", "a", json!(1));
    set(&server, "map:1", "b", json!(2));
    let (status, reply) = server.api("DELETE", "/api/history/map:1", None);
    assert!(status < 300, "{reply}");
    assert_eq!(state(&server, "topic=map:1"), (true, vec![]));
    set(&server, "map:1", "a", json!(3));
    for server in [&server, &database.server()] {
        assert_eq!(state(server, "topic=map:1"), (true, pairs(&[("a", json!(3))])));
        let back = state(server, &format!("topic=map:1&since={first}"));
        assert_eq!(back, (false, pairs(&[("a", json!(3))])));
    }
}

#[test]
fn a_rule_that_becomes_that_of_a_compacted_topic_keeps_the_last_message_of_each_key() {
    let database = Database::start();
    let folder = Scratch::new("becomes");
    let url = database.postgres.url("postgres");
    let rule = |compact: bool| {
        let rule = "[[topics]]\npattern = \"x:*\"\nhistory_messages_max = 4\ndurable = true\n";
        let file = format!("{rule}compact = {compact}\n");
        folder.write("throng.toml", &file).display().to_string()
    };
    let start = |compact: bool| {
        let server = Server::with(&["--config", &rule(compact)], &[("THRONG_HISTORY_URL", &url)]);
        until_connected(&server);
        server
    };
    let count =
        |table: &str| database.postgres.psql(&format!("SELECT count(*) FROM throng.{table}"));
    let server = start(false);
    for (key, data) in [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("c", 5)] {
        set(&server, "x:1", key, json!(data));
    }
    publish(&server, "x:1", "no state");
    drop(server);
    let server = start(true);
    set(&server, "x:1", "d", json!(6));
    let expected = [("a", json!(3)), ("c", json!(5)), ("", json!("no state")), ("d", json!(6))];
    assert_eq!(state(&server, "topic=x:1"), (true, pairs(&expected)));
    drop(server);
    let server = start(true);
    assert_eq!(state(&server, "topic=x:1"), (true, pairs(&expected)));
    database.age();
    server.until("what is no state is deleted", |_| database.rows() == 4);
    drop(server);
    let server = start(false);
    // While servers get the rule one after the other, messages come with both, and the topic stays compacted.
    set(&server, "x:1", "c", json!(5));
    assert_eq!(count("history_states"), "4");
    database.postgres.psql("UPDATE throng.history_topics SET last_compact_ms = 0");
    publish(&server, "x:1", 7);
    set(&server, "x:1", "a", json!(8));
    assert_eq!(data(&history(&server, "x:1")), [json!(6), json!(5), json!(7), json!(8)]);
    assert_eq!(count("history_states"), "0");
}

#[test]
fn a_newcomer_gets_a_long_state_although_later_ones_are_gone() {
    let database = Database::start();
    let folder = Scratch::new("long");
    let url = database.postgres.url("postgres");
    let rule = "[[topics]]\npattern = \"map:*\"\nhistory_messages_max = 10000\ndurable = true\ncompact = true\n";
    let file = folder.write("throng.toml", rule).display().to_string();
    let start = || {
        let server = Server::with(&["--config", &file], &[("THRONG_HISTORY_URL", &url)]);
        until_connected(&server);
        server
    };
    let server = start();
    let keys: Vec<String> = (0..600).map(|n| format!("k{n:03}")).collect();
    for keys in keys.chunks(100) {
        let publish = |key| json!({"publish": {"topic": "map:1", "key": key, "data": 1}});
        let commands: Vec<Value> = keys.iter().map(publish).collect();
        server.post("/api/batch", json!({ "commands": commands }));
    }
    set(&server, "map:1", "gone", Value::Null);
    database.postgres.psql("UPDATE throng.history_states SET ends_ms = 1 WHERE ends_ms > 0");
    let left = "SELECT states || ' ' || states_floor FROM throng.history_topics";
    server.until("the removal is gone", |_| database.postgres.psql(left) == "600 601");
    drop(server);
    let server = start();
    let (recovered, state) = state(&server, "topic=map:1");
    let found: Vec<String> = state.into_iter().map(|(key, _)| key).collect();
    assert!(recovered && found == keys, "{recovered}, {} keys", found.len());
}

#[test]
fn a_database_of_the_version_before_is_migrated_and_its_messages_are_no_states() {
    let database = Database::start();
    let script = include_str!("../../../history_postgres/sql/1.sql").replace("{schema}", "throng");
    database.postgres.psql(&format!("CREATE SCHEMA throng; {script}"));
    let append = |number: u64| {
        format!(
            "SELECT through FROM throng.history_append(1, {number}, (SELECT epoch FROM throng.history_log), 0, 300, \
             '{{map:1}}', '{{NULL}}', '{{1}}', '{{x}}', '{{NULL}}', '{{NULL}}', '{{3}}', '{{1000}}', '{{3600}}')"
        )
    };
    assert_eq!(database.postgres.psql(&append(1)), "1");
    let server = database.server();
    let versions =
        "SELECT string_agg(version::text, ' ' ORDER BY version) FROM throng.history_migrations";
    assert_eq!(database.postgres.psql(versions), "1 2 3 4 5");
    // A server of the version before still has its connection.
    assert_eq!(database.postgres.psql(&append(2)), "2");
    let first = set(&server, "map:1", "a", json!(1));
    assert_eq!(state(&database.server(), "topic=map:1"), (true, pairs(&[("a", json!(1))])));
    let earlier = first.replace(":3", ":1");
    let back = state(&database.server(), &format!("topic=map:1&since={earlier}"));
    assert_eq!(back, (false, pairs(&[("a", json!(1))])));
}

/// A message of a topic.
struct Item {
    topic: u64,
    key: u64,
    size: u64,
    compact: bool,
}

fn item(topic: u64, key: u64, compact: bool) -> Item {
    Item { topic, key, size: 20, compact }
}

/// Returns the call that appends a batch. `last` is the last offset of the log.
fn append(number: u64, last: u64, batch: &[Item]) -> String {
    let array = |kind: &str, value: &dyn Fn(&Item) -> String| {
        let values: Vec<String> = batch.iter().map(value).collect();
        format!("'{{{}}}'::{kind}[]", values.join(","))
    };
    let same = |kind: &str, value: &str| array(kind, &|_| value.to_owned());
    format!(
        "SELECT through FROM throng.history_append_batch(1, {number}, (SELECT epoch FROM throng.history_log), {last}, 300, \
         {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {});\n",
        array("text", &|it| format!("t{}", it.topic)),
        same("bigint", "NULL"),
        array("bigint", &|it| it.size.to_string()),
        same("bytea", "x"),
        same("text", "NULL"),
        same("bigint", "NULL"),
        same("bigint", &LIMITS.0.to_string()),
        same("bigint", &LIMITS.1.to_string()),
        same("bigint", "3600"),
        array("text", &|it| format!("k{}", it.key)),
        same("boolean", "false"),
        array("boolean", &|it| it.compact.to_string()),
    )
}

/// Returns the offsets in a table, in ascending order.
fn offsets(postgres: &Postgres, table: &str) -> String {
    postgres.psql(&format!(
        "SELECT string_agg(log_offset::text, ',' ORDER BY log_offset) FROM throng.{table}"
    ))
}

#[test]
fn messages_from_before_topics_were_compacted_are_deleted_in_steps() {
    let postgres = migrated();
    let plain = [(0, 0), (0, 1), (0, 0), (0, 1), (0, 2), (1, 0), (1, 0), (1, 0)];
    let plain = plain.map(|(topic, key)| item(topic, key, false));
    postgres.psql(&append(1, 0, &plain));
    postgres.psql(&append(2, 8, &[item(0, 3, true), item(1, 3, true)]));
    assert_eq!(offsets(&postgres, "history_states"), "4,5,8,9,10", "60 bytes of each topic");
    let topics = || {
        let topics = "SELECT string_agg(concat_ws(' ', states_floor, states, states_bytes, trim_through), ',' ORDER BY name) \
                      FROM throng.history_topics";
        postgres.psql(topics)
    };
    assert_eq!(topics(), "3 3 60 8,0 2 40 9");
    let trim = || postgres.psql("SELECT throng.history_trim_uncompacted(0, 1000, 2, 60000)");
    assert_eq!(trim(), "0", "they are too young");
    postgres.psql("UPDATE throng.history_messages SET at_ms = at_ms - 120000");
    let trims: Vec<String> = (0..4).map(|_| trim()).collect();
    assert_eq!(trims, ["2", "3", "1", "0"], "with the topics that are done");
    // A limit dropped the message 3 later.
    assert_eq!(offsets(&postgres, "history_messages"), "3,4,5,8,9,10");
    assert_eq!(offsets(&postgres, "history_replaced"), "3");
    assert_eq!(topics(), "3 3 60 0,0 2 40 0");
    assert_eq!(postgres.psql("SELECT through FROM throng.history_trimmed"), "9");
}

#[test]
fn a_topic_that_is_compacted_no_more_has_what_was_replaced_and_servers_with_both_rules_know() {
    let postgres = migrated();
    let trimmed = || postgres.psql("SELECT through FROM throng.history_trimmed");
    postgres.psql(&append(1, 0, &[item(0, 0, true), item(0, 1, true), item(0, 0, true)]));
    assert_eq!((trimmed(), offsets(&postgres, "history_replaced")), ("0".into(), "1".into()));
    // Another server has another rule.
    postgres.psql(&append(2, 3, &[item(0, 1, false)]));
    assert_eq!((trimmed(), offsets(&postgres, "history_states")), ("4".into(), "3,4".into()));
    postgres.psql(&append(3, 4, &[item(0, 1, true)]));
    assert_eq!((trimmed(), offsets(&postgres, "history_states")), ("4".into(), "3,5".into()));
    postgres.psql("UPDATE throng.history_topics SET last_compact_ms = 0");
    postgres.psql(&append(4, 5, &[item(0, 1, false)]));
    assert_eq!((trimmed(), offsets(&postgres, "history_states")), ("6".into(), String::new()));
    let topics = "SELECT concat_ws(' ', compact, states, states_bytes, trim_through) FROM throng.history_topics";
    assert_eq!(postgres.psql(topics), "f 0 0 0");
    assert_eq!(postgres.psql("SELECT throng.history_trim_replaced(1000, 0)"), "0");
    assert_eq!(offsets(&postgres, "history_messages"), "1,2,3,4,5,6");
}

#[test]
fn a_message_that_another_session_has_locked_is_deleted_the_next_time() {
    let postgres = migrated();
    postgres.psql(&append(1, 0, &[item(0, 0, true), item(0, 0, true), item(0, 0, true)]));
    let mut session = postgres.session();
    session.run("BEGIN");
    session.run("SELECT FROM throng.history_messages WHERE log_offset = 1 FOR UPDATE");
    let trim = || postgres.psql("SELECT throng.history_trim_replaced(1000, 0)");
    assert_eq!((trim(), offsets(&postgres, "history_replaced")), ("1".into(), "1".into()));
    session.run("ROLLBACK");
    assert_eq!((trim(), offsets(&postgres, "history_messages")), ("1".into(), "3".into()));
}

/// The expected states of a compacted topic.
#[derive(Clone, Default)]
struct Model {
    /// Offset, key and size, in the order of the offsets.
    states: Vec<(u64, u64, u64)>,
    floor: u64,
}

/// What each topic retains: the number of states and their bytes.
const LIMITS: (usize, u64) = (4, 60);

impl Model {
    fn set(&mut self, offset: u64, key: u64, size: u64) {
        self.states.retain(|(_, other, _)| *other != key);
        self.states.push((offset, key, size));
        let bytes = |model: &Model| model.states.iter().map(|(_, _, size)| size).sum::<u64>();
        while self.states.len() > 1 && (self.states.len() > LIMITS.0 || bytes(self) > LIMITS.1) {
            self.floor = self.states.remove(0).0;
        }
    }

    fn offsets(&self) -> String {
        let offsets: Vec<String> = self.states.iter().map(|(it, ..)| it.to_string()).collect();
        offsets.join(",")
    }
}

/// Nodes have delivered different parts of the log, and each has the states of its own moment. `COMPACT_SEED=s` makes
/// another run.
#[test]
fn each_offset_of_the_log_has_the_states_of_the_model() {
    let seed = std::env::var("COMPACT_SEED").map_or(5, |seed| seed.parse().expect("a number"));
    println!("COMPACT_SEED={seed}");
    let mut random = Random::new(seed);
    let postgres = migrated();
    let mut models = [Model::default(), Model::default()];
    let (mut script, mut last) = (String::new(), 0);
    // For each offset, both models.
    let mut moments = vec![models.clone()];
    for number in 1..=60 {
        let items = 1 + random.below(8_u64);
        let item = |_| Item {
            topic: random.below(2),
            key: random.below(6),
            size: 1 + random.below(40_u64),
            compact: true,
        };
        let batch: Vec<Item> = (0..items).map(item).collect();
        script += &append(number, last, &batch);
        for Item { topic, key, size, .. } in batch {
            last += 1;
            models[topic as usize].set(last, key, size);
            moments.push(models.clone());
        }
    }
    let replies = postgres.psql_script(&script);
    assert_eq!(replies.lines().last(), Some(&*last.to_string()), "seed {seed}");
    let statements = [
        include_str!("../../../history_postgres/sql/after.sql"),
        include_str!("../../../history_postgres/sql/before.sql"),
    ];
    let states = |topic: usize, delivered: usize, statement: &str| {
        let delivered = delivered.to_string();
        let name = format!("'t{topic}'");
        let values = ["throng", &name, "0", &delivered, "1000", "1000000", &delivered];
        let names = ["{schema}", "$1", "$2", "$3", "$4", "$5", "$6"];
        let statement = names
            .iter()
            .zip(values)
            .fold(statement.to_owned(), |text, (name, value)| text.replace(name, value));
        format!(
            "SELECT '.' || coalesce(string_agg(log_offset::text, ',' ORDER BY log_offset), '') FROM ({statement}) AS f;\n"
        )
    };
    for statement in statements {
        let moment =
            |delivered: usize| [0, 1].map(|topic| states(topic, delivered, statement)).concat();
        let script: String = (1..moments.len()).map(moment).collect();
        let found = postgres.psql_script(&script);
        let expected = moments[1..].iter().flatten().map(|model| format!(".{}", model.offsets()));
        let (found, expected): (Vec<&str>, Vec<String>) =
            (found.lines().collect(), expected.collect());
        assert_eq!(found, expected, "seed {seed}");
    }
    let of_topics = "SELECT string_agg(states_floor || ' ' || states || ' ' || states_bytes, ',' ORDER BY name) \
                     FROM throng.history_topics";
    let expected = models.iter().map(|model| {
        let bytes = model.states.iter().map(|(_, _, size)| size).sum::<u64>();
        format!("{} {} {bytes}", model.floor, model.states.len())
    });
    assert_eq!(postgres.psql(of_topics), expected.collect::<Vec<_>>().join(","), "seed {seed}");
    postgres.psql("SELECT throng.history_trim_replaced(100000, 0)");
    let mut left: Vec<u64> =
        models.iter().flat_map(|model| model.states.iter().map(|(offset, ..)| *offset)).collect();
    left.sort_unstable();
    let left: Vec<String> = left.iter().map(u64::to_string).collect();
    assert_eq!(offsets(&postgres, "history_messages"), left.join(","), "seed {seed}");
}
