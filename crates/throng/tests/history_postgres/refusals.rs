//! Publishes that the server rejects, and the errors that their publishers get.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;

#[test]
fn a_log_that_is_another_one_is_noticed() {
    let database = Database::start();
    let server = database.server();
    let ids: Vec<String> = (1..=3).map(|n| publish(&server, "chat:1", n)).collect();
    // As after a failover to a replica that lacks two commits.
    database.postgres.psql(
        "DELETE FROM throng.history_messages WHERE log_offset > 1; UPDATE throng.history_log SET last_offset = 1",
    );
    until_away(&server);
    let (status, reply) =
        server.api("POST", "/api/publish", Some(json!({"topic": "chat:1", "data": 4})));
    assert_eq!(status, 503, "{reply}");
    assert!(reply["error"]["message"].as_str().unwrap().contains("restart this server"), "{reply}");
    let (epoch, _) = ids[0].split_once(':').unwrap();
    let server = database.replace(server);
    let id = publish(&server, "chat:1", 4);
    assert!(!id.starts_with(epoch), "another epoch: {id}");
    assert_eq!(data(&history(&server, "chat:1")), [1, 4]);
}

/// Returns the SQL statement of docs/history-postgres.md that makes clients get a gap notice.
fn new_epoch() -> String {
    let page = include_str!("../../../../docs/history-postgres.md");
    let (_, rest) = page.split_once("<!-- the new epoch -->").expect("the statement");
    let (_, rest) = rest.split_once("```sql\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn a_log_that_became_another_one_while_the_server_was_away_gets_nothing_from_it() {
    let database = Database::start();
    let server = database.server_b(&[]);
    publish(&server, "chat:1", 1);
    database.lock_out(&server);
    database.postgres.psql(&new_epoch());
    database.let_in();
    until_refused(&server, "restart this server");
    assert_eq!((database.rows(), server.metric("throng_history_connected")), (1, 0.0));
    let stats = &server.api("GET", "/api/stats", None).1["history_database"];
    let counts = (&stats["nodes_connected"], &stats["commits"], &stats["gaps"]);
    assert_eq!(counts, (&json!(0), &json!(1), &json!(0)), "{stats}");
    assert!(stats["error"].as_str().unwrap().contains("restart this server"), "{stats}");
}

#[test]
fn offsets_that_have_other_messages_than_the_server_knows_are_noticed() {
    let database = Database::start();
    let away = database.server_b(&[]);
    (1..=3).for_each(|n| _ = publish(&away, "chat:1", n));
    database.lock_out(&away);
    // A failover loses two commits, and another server appends others in their places.
    database.postgres.psql(
        "DELETE FROM throng.history_messages WHERE log_offset > 1; UPDATE throng.history_log SET last_offset = 1",
    );
    let there = database.server();
    ["x", "y", "z"].into_iter().for_each(|data| _ = publish(&there, "chat:1", data));
    database.let_in();
    until_refused(&away, "restart this server");
    // Clients of both servers have ids that now stand for other messages. The log gets a new epoch, so `there` must
    // restart, too.
    until_restart_is_due(&there);
    assert_eq!(away.metric("throng_history_connected"), 0.0);
}

/// Publishes until the server rejects it because the log is another one.
fn until_restart_is_due(server: &Server) {
    let body = json!({"topic": "chat:1", "data": "again"});
    server.until("it refuses", |server| {
        let (status, reply) = server.api("POST", "/api/publish", Some(body.clone()));
        status == 503 && reply["error"]["message"].as_str().unwrap().contains("restart this server")
    });
}

#[test]
fn a_batch_that_is_refused_may_be_there_if_it_was_sent_before() {
    let database = Database::start();
    let server = database.server();
    let body = json!({"topic": "chat:1", "data": "refused"});
    let publish_once = || server.api("POST", "/api/publish", Some(body.clone()));
    let waiting = || database.processes("history_append", LOCKED);
    let end =
        |how: &str, process: &str| database.postgres.psql(&format!("SELECT {how}({process})"));
    let message = |(status, reply): (u16, Value)| {
        assert_eq!(status, 503, "{reply}");
        reply["error"]["message"].as_str().unwrap().to_owned()
    };
    let mut blocker = database.postgres.session();
    blocker.run("BEGIN");
    blocker.run("SELECT last_offset FROM throng.history_log FOR UPDATE");
    std::thread::scope(|scope| {
        let publisher = scope.spawn(publish_once);
        server.until("the append waits", |_| !waiting().is_empty());
        end("pg_cancel_backend", &waiting()[0]);
        let message = message(publisher.join().unwrap());
        assert!(message.contains("nothing was published"), "{message}");
    });
    assert_eq!(server.metric("throng_history_connections_lost_total"), 0.0);
    std::thread::scope(|scope| {
        let publisher = scope.spawn(publish_once);
        server.until("the append waits", |_| !waiting().is_empty());
        end("pg_terminate_backend", &waiting()[0]);
        // If this takes too long, the publisher gets the same error.
        server.until("it is sent again", |server| {
            publisher.is_finished()
                || server.metric("throng_history_connections_lost_total") == 1.0
                    && !waiting().is_empty()
        });
        waiting().iter().for_each(|process| _ = end("pg_cancel_backend", process));
        let message = message(publisher.join().unwrap());
        assert!(message.contains("may be published or not"), "{message}");
    });
    blocker.run("ROLLBACK");
    until_connected(&server);
    publish(&server, "chat:1", "taken");
    assert_eq!(data(&history(&server, "chat:1")), ["taken"]);
}

/// Publishes until the server responds 200. Counts the rejections.
fn publish_until_taken(server: &Server, data: u64, refused: &AtomicU64) {
    server.until("it is taken", |server| {
        let body = json!({"topic": "chat:1", "data": data});
        let (status, reply) = server.api("POST", "/api/publish", Some(body));
        if status != 200 {
            assert_eq!((status, &reply["error"]["code"]), (503, &json!("store_busy")), "{reply}");
            refused.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(5));
        }
        status == 200
    });
}

#[test]
fn appended_messages_that_are_not_delivered_are_bounded() {
    let database = Database::start();
    let server = database.server_b(&[("THRONG_HISTORY_QUEUE_MESSAGES_MAX", "4")]);
    let other = database.server();
    let mut live = member(&server, "topic=chat:1");
    publish(&server, "chat:1", "first");
    assert_eq!(next(&mut live).1, "first");
    // This server can't read messages of other servers now, so it delivers no message after them.
    let follower = database.processes("What was committed after", "usename = 'b'");
    assert_eq!(follower.len(), 1, "{follower:?}");
    let signal = |signal: &str| {
        assert!(Command::new("kill").args([signal, &follower[0]]).status().unwrap().success());
    };
    signal("-STOP");
    publish(&other, "chat:1", "other");
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for data in 0..20 {
            let (server, refused) = (&server, &refused);
            scope.spawn(move || publish_until_taken(server, data, refused));
        }
        server.until("it takes no more", |server| {
            server.metric("throng_history_backlog_messages") >= 4.0
                && server.metric("throng_history_queue_messages") == 4.0
        });
        let before = refused.load(Ordering::Relaxed);
        server.until("others are refused", |_| refused.load(Ordering::Relaxed) > before + 40);
        // The server starts a batch only while the backlog is below its limit.
        assert!(database.rows() <= 2 + 3 + 4, "{}", database.rows());
        signal("-CONT");
    });
    let all = history(&server, "chat:1");
    let seen: Vec<(String, Value)> = (0..21).map(|_| next(&mut live)).collect();
    assert_eq!(seen, all[1..]);
    let mut numbers: Vec<u64> = all.iter().filter_map(|(_, data)| data.as_u64()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..20));
}
