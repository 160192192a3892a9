//! Deletion of messages that no rule retains, which blocks nothing else, and reads that take too long.

use super::*;

#[test]
fn idempotency_keys_go_while_the_deletion_of_topics_waits_for_an_append() {
    let database = Database::start();
    let server = database.server();
    let keyed = json!({"topic": "chat:1", "data": 1, "idempotency_key": "k"});
    server.post("/api/publish", keyed);
    // An append holds this lock until its commit.
    let mut append = database.postgres.session();
    append.run("BEGIN");
    append.run("SELECT last_offset FROM throng.history_log FOR UPDATE");
    database.postgres.psql(
        "DELETE FROM throng.history_messages; UPDATE throng.history_topics SET last_ms = 0; \
         UPDATE throng.history_keys SET expires_ms = 1",
    );
    let count =
        |table: &str| database.postgres.psql(&format!("SELECT count(*) FROM throng.{table}"));
    server.until("the topic is to be forgotten", |_| {
        !database.processes("history_forget", LOCKED).is_empty()
    });
    assert_eq!(count("history_keys"), "0", "their deletion is committed");
    assert_eq!(count("history_topics"), "1");
    append.run("ROLLBACK");
    server.until("it is forgotten", |_| count("history_topics") == "0");
    // A client that returns from before the deletion must get a gap notice: `previous` is not 0.
    publish(&server, "chat:1", 2);
    let previous = "SELECT string_agg(previous::text, ' ') FROM throng.history_messages";
    assert_eq!(database.postgres.psql(previous), "1");
}

#[test]
fn a_deletion_that_fails_and_a_read_that_takes_too_long_end_nothing_else() {
    let database = Database::start();
    let server = database.server();
    (1..=3).for_each(|n| _ = publish(&server, "chat:1", n));
    // After a restart the server has no messages in memory.
    let server = database.replace(server);
    database.postgres.psql("DROP FUNCTION throng.history_trim");
    server.until("it fails", |server| server.metric("throng_history_trims_failed_total") >= 1.0);
    let mut live = member(&server, "topic=chat:1");
    publish(&server, "chat:1", 4);
    assert_eq!(next(&mut live).1, 4);
    let mut lock = database.postgres.session();
    lock.run("BEGIN");
    lock.run("LOCK TABLE throng.history_topics IN ACCESS EXCLUSIVE MODE");
    std::thread::scope(|scope| {
        let read = scope.spawn(|| server.api("GET", "/api/history/chat:1", None));
        let waiting = || database.processes("of the topic $1", LOCKED);
        server.until("the read waits", |_| !waiting().is_empty());
        // As `statement_timeout` does.
        database.postgres.psql(&format!("SELECT pg_cancel_backend({})", waiting()[0]));
        let (status, reply) = read.join().unwrap();
        assert_eq!((status, &reply["error"]["code"]), (503, &json!("store_failed")), "{reply}");
    });
    lock.run("ROLLBACK");
    publish(&server, "chat:1", 5);
    assert_eq!(next(&mut live).1, 5);
    assert_eq!(data(&history(&server, "chat:1")), [1, 2, 3, 4, 5]);
    assert_eq!(server.metric("throng_history_connections_lost_total"), 0.0);
}
