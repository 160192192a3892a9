//! PostgreSQL is away, and processes are killed.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use random::Random;

use super::*;

/// Publishes once, with an idempotency key. Returns the status.
pub fn try_publish(server: &Server, data: u64) -> u16 {
    let body = json!({"topic": "chat:1", "data": data, "idempotency_key": data.to_string()});
    server.api("POST", "/api/publish", Some(body)).0
}

#[test]
fn while_postgresql_is_away_nothing_is_acknowledged_and_all_else_goes_on() {
    let mut database = Database::start();
    let server = database.server();
    let mut live = member(&server, "topic=chat:1&topic=plain");
    let mut expected: Vec<u64> = Vec::new();
    for round in 0..3 {
        expected.push(round);
        publish(&server, "chat:1", round);
        assert_eq!(next(&mut live).1, round);
        database.postgres.kill();
        until_away(&server);
        let body = json!({"topic": "chat:1", "data": "lost"});
        let (status, head, reply) = with_head(&server, &body);
        assert_eq!(status, 503, "{reply}");
        assert!(reply.contains("\"store_failed\"") && reply.contains("PostgreSQL"), "{reply}");
        assert!(head.to_lowercase().contains("retry-after:"), "{head}");
        server.publish("plain", json!("without"));
        assert_eq!(next(&mut live).1, "without", "the connection stays, and other topics go on");
        // The server serves messages that it has in memory.
        let mut back = member(&server, "topic=chat:1&since=last:1");
        assert_eq!(next(&mut back).1, round);
        assert_eq!(text(server.admin, "GET", "/readyz", None, "").0, 200);
        database.postgres.run();
        until_connected(&server);
    }
    publish(&server, "chat:1", "end");
    assert_eq!(next(&mut live).1, "end");
    let all = data(&history(&server, "chat:1"));
    let expected: Vec<Value> = expected.into_iter().map(Value::from).collect();
    assert_eq!(all, [&expected[..], &[json!("end")]].concat());
    assert!(server.metric("throng_history_connections_lost_total") >= 3.0);
}

/// Publishes. Returns the status, the head and the body.
fn with_head(server: &Server, body: &Value) -> (u16, String, String) {
    let mut stream = Stream::new(connect(server.admin));
    let body = body.to_string();
    stream.send(&format!(
        "POST /api/publish HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        server.admin,
        body.len()
    ));
    let head = stream.head();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut reply = String::new();
    stream.reader.read_to_string(&mut reply).unwrap();
    (status, head, reply)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// `KILL_ROUNDS=n KILL_SEED=s` sets the number of kills and their times.
#[test]
fn kills_of_postgresql_and_of_the_server_lose_and_repeat_nothing() {
    let rounds = number("KILL_ROUNDS").unwrap_or(6);
    let seed = number("KILL_SEED").unwrap_or(7);
    println!("KILL_SEED={seed} KILL_ROUNDS={rounds}");
    let mut random = Random::new(seed);
    let mut database = Database::start();
    let mut server = database.server();
    let witness = database.server();
    let mut seen = member(&witness, "topic=chat:1");
    let mut published = 0;
    for round in 0..rounds {
        let stop = AtomicBool::new(false);
        let end = std::thread::scope(|scope| {
            let publisher = scope.spawn(|| {
                let mut next = published;
                while !stop.load(Ordering::Relaxed) {
                    // Repeats the publish with the same key until the server acknowledges it.
                    match try_publish(&server, next) {
                        200 => next += 1,
                        503 => std::thread::sleep(Duration::from_millis(20)),
                        status => panic!("{status}"),
                    }
                }
                next
            });
            std::thread::sleep(Duration::from_millis(50 + random.below(200)));
            database.postgres.kill();
            std::thread::sleep(Duration::from_millis(random.below(200)));
            database.postgres.run();
            until_connected(&server);
            std::thread::sleep(Duration::from_millis(random.below(100)));
            stop.store(true, Ordering::Relaxed);
            publisher.join().unwrap()
        });
        published = end;
        if round % 2 == 1 {
            server = database.replace(server);
        }
    }
    server.until("all is there again", |server| {
        let body = json!({"topic": "chat:1", "data": "end", "idempotency_key": "end"});
        server.api("POST", "/api/publish", Some(body)).0 == 200
    });
    let seen = until_data(&mut seen, &json!("end"));
    let expected: Vec<Value> = (0..published).map(Value::from).chain([json!("end")]).collect();
    assert_eq!(data(&seen), expected, "seed {seed}");
    assert_eq!(history(&server, "chat:1"), seen);
    assert_eq!(history(&witness, "chat:1"), seen);
}

#[test]
fn a_batch_whose_reply_is_lost_is_confirmed_when_the_connection_is_back() {
    let database = Database::start();
    let server = database.server();
    // Another session locks the counter: the append waits, and then its session is terminated.
    let mut blocker = database.postgres.session();
    blocker.run("BEGIN");
    blocker.run("SELECT last_offset FROM throng.history_log FOR UPDATE");
    let body = json!({"topic": "chat:1", "data": "once"});
    let (status, reply) = std::thread::scope(|scope| {
        let publisher = scope.spawn(|| server.api("POST", "/api/publish", Some(body)));
        server.until("the append waits", |_| {
            !database.processes("history_append", LOCKED).is_empty()
        });
        database.postgres.psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'throng'",
        );
        blocker.run("ROLLBACK");
        publisher.join().unwrap()
    });
    until_connected(&server);
    let all = history(&server, "chat:1");
    if status == 200 {
        let id = reply["id"].as_str().unwrap().to_owned();
        assert_eq!(all, [(id, json!("once"))]);
        return;
    }
    // If the connection comes back too late, the publisher gets this error.
    assert_eq!(status, 503, "{reply}");
    assert!(
        reply["error"]["message"].as_str().unwrap().contains("may be published or not"),
        "{reply}"
    );
    assert!(all.len() <= 1, "{all:?}");
}
