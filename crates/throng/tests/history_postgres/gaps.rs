//! Messages that a server has not read: its members and returning clients get a gap notice.

use super::*;

/// Reads the objects of a stream up to a message with this data.
fn until_object(stream: &mut Stream, last: &Value) -> Vec<Value> {
    let mut objects = vec![stream.next_object()];
    while objects.last().is_some_and(|object| object["data"] != *last) {
        objects.push(stream.next_object());
    }
    objects
}

#[test]
fn messages_that_are_deleted_while_a_server_is_away_are_a_gap_for_its_members() {
    let database = Database::start();
    let (there, away) = (database.server(), database.server_b(&[]));
    let first = publish(&there, "few:1", 0);
    away.until("it has the first one", |away| history(away, "few:1").len() == 1);
    let mut live = member(&away, "topic=few:1&topic=plain");
    database.lock_out(&away);
    (1..=9).for_each(|n| _ = publish(&there, "few:1", n));
    database.age();
    there.until("older messages are deleted", |_| database.rows() == 3);
    database.let_in();
    until_connected(&away);
    let objects = until_object(&mut live, &json!(9));
    let gap = objects.iter().position(|object| object["recovered"] == false);
    let (before, after) = objects.split_at(gap.unwrap_or_else(|| panic!("{objects:?}")));
    assert!(before.iter().all(|object| object.get("data").is_none()), "{objects:?}");
    assert_eq!(after[0]["topics"], json!({"few:1": "too_old"}), "{objects:?}");
    let data: Vec<&Value> = after[1..].iter().filter_map(|object| object.get("data")).collect();
    assert_eq!(data, [7, 8, 9]);
    assert_eq!(away.metric("throng_history_gaps_total"), 1.0);
    // The server knows that its memory has a gap.
    let mut back = member(&away, &format!("topic=few:1&since={first}"));
    assert_eq!(back.next_object()["recovered"], false);
    let since = after[0]["since"].as_str().unwrap();
    let mut informed = member(&away, &format!("topic=few:1&since={since}"));
    let objects = until_object(&mut informed, &json!(9));
    assert!(objects.iter().all(|object| object["recovered"] != false), "{objects:?}");
    assert_eq!(self::data(&history(&away, "few:1")), [7, 8, 9]);
}

#[test]
fn a_server_that_is_away_for_less_than_a_minute_misses_nothing() {
    let database = Database::start();
    let (there, away) = (database.server(), database.server_b(&[]));
    publish(&there, "few:1", 0);
    away.until("it has the first one", |away| history(away, "few:1").len() == 1);
    let mut live = member(&away, "topic=few:1");
    database.lock_out(&away);
    (1..=9).for_each(|n| _ = publish(&there, "few:1", n));
    database.let_in();
    let seen = until_data(&mut live, &json!(9));
    assert_eq!(data(&seen), (1..=9).map(Value::from).collect::<Vec<_>>());
    assert_eq!(away.metric("throng_history_gaps_total"), 0.0);
}

#[test]
fn a_message_that_cannot_be_read_is_a_gap_for_the_members_of_its_topic() {
    let database = Database::start();
    let (there, away) = (database.server(), database.server_b(&[]));
    let mut live = member(&away, "topic=chat:1&topic=chat:2");
    database.lock_out(&away);
    publish(&there, "chat:1", 1);
    publish(&there, "chat:2", 2);
    database.postgres.psql("UPDATE throng.history_messages SET record = 'x' WHERE log_offset = 1");
    database.let_in();
    let objects = until_object(&mut live, &json!(2));
    let gap = objects.iter().find(|object| object["recovered"] == false);
    let gap = gap.unwrap_or_else(|| panic!("{objects:?}"));
    assert_eq!(gap["topics"], json!({"chat:1": "too_old"}), "{objects:?}");
}

#[test]
fn a_topic_whose_rule_comes_by_a_reload_has_what_was_published_before() {
    let database = Database::start();
    let folder = Scratch::new("reload");
    let rule = |pattern: &str| {
        format!("[[topics]]\npattern = \"{pattern}\"\nhistory_messages_max = 9\ndurable = true\n")
    };
    let file = folder.write("throng.toml", &rule("few:*")).display().to_string();
    let url = database.postgres.url("postgres");
    let late = Server::with(&["--config", &file], &[("THRONG_HISTORY_URL", &url)]);
    until_connected(&late);
    let there = database.server();
    let mut live = member(&late, "topic=chat:1");
    (1..=3).for_each(|n| _ = publish(&there, "chat:1", n));
    assert_eq!(data(&until_data(&mut live, &json!(3))), [1, 2, 3], "members get them at once");
    assert_eq!(late.metric("throng_history_passed_total"), 3.0);
    folder.write("throng.toml", &(rule("few:*") + &rule("chat:*")));
    late.signal("-HUP");
    late.until("the topic has a history", |late| {
        late.api("GET", "/api/history/chat:1", None).0 == 200
    });
    publish(&there, "chat:1", 4);
    late.until("it has the last one", |late| {
        data(&history(late, "chat:1")).last() == Some(&json!(4))
    });
    assert_eq!(data(&history(&late, "chat:1")), [1, 2, 3, 4]);
    let mut all = member(&late, "topic=chat:1&since=start");
    assert_eq!(data(&until_data(&mut all, &json!(4))), [1, 2, 3, 4]);
}
