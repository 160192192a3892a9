//! Processes are killed, and PostgreSQL is away.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use random::Random;
use serde_json::{Value, json};

use super::*;
use crate::store::full::Mount;

/// Returns the flags for a store, and a rule that gives topics a history in it.
fn with_history(name: &str) -> (Scratch, [String; 4]) {
    let scratch = Scratch::new(name);
    let rules = "[[topics]]\npattern = \"log:*\"\nhistory_messages_max = 100000\n\
                 history_bytes_max = \"1GiB\"\n";
    let file = scratch.write("throng.toml", rules).display().to_string();
    let data = scratch.path().join("data").display().to_string();
    (scratch, ["--config".into(), file, "--data".into(), data])
}

fn history(server: &Server, topic: &str) -> Vec<Value> {
    let (mut all, mut since) = (Vec::new(), String::new());
    loop {
        let (status, page) =
            server.api("GET", &format!("/api/history/{topic}?limit=1000{since}"), None);
        assert_eq!(status, 200, "{page}");
        let messages = page["messages"].as_array().unwrap().iter();
        all.extend(messages.map(|message| message["data"].clone()));
        if page["more"] == false {
            return all;
        }
        since = format!("&since={}", page["next"].as_str().unwrap());
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// `KILL_ROUNDS=n KILL_SEED=s` sets the number of kills and their times.
#[test]
fn kills_at_any_moment_lose_and_repeat_nothing_of_a_stored_history() {
    let rounds = number("KILL_ROUNDS").unwrap_or(5);
    let seed = number("KILL_SEED").unwrap_or(15);
    println!("KILL_SEED={seed} KILL_ROUNDS={rounds}");
    let mut random = Random::new(seed);
    let postgres = Postgres::start();
    let (_scratch, flags) = with_history("outbox");
    let flags = flags.each_ref().map(|flag| &**flag);
    let mut server = postgres.draining_server(&flags, &[]);
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut session = postgres.session();
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) && sent < 90_000 {
                sent += 1;
                session.run(&format!("SELECT throng.publish('log:1', '{sent}')"));
                std::thread::sleep(Duration::from_millis(2));
            }
            sent
        });
        for _ in 0..rounds {
            std::thread::sleep(Duration::from_millis(random.below(300)));
            server.child.kill().unwrap();
            server.child.wait().unwrap();
            server = postgres.draining_server(&flags, &[]);
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    let expected: Vec<Value> = (1..=sent).map(Value::from).collect();
    postgres.until_empty();
    assert_eq!(history(&server, "log:1"), expected);
}

#[test]
fn a_kill_between_publish_and_delete_publishes_once_to_a_stored_history_and_again_elsewhere() {
    let postgres = Postgres::start();
    let (_scratch, flags) = with_history("outbox");
    let flags = flags.each_ref().map(|flag| &**flag);
    let mut server = postgres.draining_server(&flags, &[]);
    let mut members = [stream(&server, "topic=log:1"), stream(&server, "topic=plain")];
    let mut blocker = postgres.undeletable();
    postgres
        .psql("SELECT throng.publish('log:1', '\"first\"'), throng.publish('plain', '\"first\"')");
    for member in &mut members {
        assert_eq!(next_data(member), "first");
    }
    // By then the server knows that the message is on disk.
    postgres.until_deletes_wait(true);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    postgres.psql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted");
    postgres.until_deletes_wait(false);
    blocker.run("ROLLBACK");
    assert_eq!(postgres.rows(), 2);
    // A member connects before the server publishes the rows again. Until then another session holds the lock.
    let mut other = postgres.session();
    let class = i32::from_be_bytes(*b"thrg");
    other.run(&format!("SELECT pg_advisory_lock({class}, hashtext('drain throng'))"));
    let server = postgres.server(&flags, &[]);
    let mut again = stream(&server, "topic=plain");
    server.until("it is connected", |server| state(server)["connected"] == true);
    assert_eq!(state(&server)["draining"], false);
    drop(other);
    assert_eq!(next_data(&mut again), "first");
    postgres
        .psql("SELECT throng.publish('log:1', '\"last\"'), throng.publish('plain', '\"last\"')");
    assert_eq!(next_data(&mut again), "last");
    server.until("the last one is there", |server| history(server, "log:1").len() > 1);
    assert_eq!(history(&server, "log:1"), ["first", "last"]);
}

#[test]
fn rows_wait_while_postgresql_is_away_and_come_once() {
    let mut postgres = Postgres::start();
    let server = postgres.draining_server(&[], &[]);
    let mut member = stream(&server, "topic=t");
    for round in 0..3 {
        // PostgreSQL is killed between publish and delete.
        let blocker = postgres.undeletable();
        postgres.psql(&format!("SELECT throng.publish('t', '{round}')"));
        assert_eq!(next_data(&mut member), round);
        postgres.until_deletes_wait(true);
        postgres.kill();
        drop(blocker);
        server.until("it has lost the connection", |server| state(server)["connected"] == false);
        assert_eq!(server.metric("throng_outbox_connected"), 0.0);
        let (status, _) = text(server.admin, "GET", "/readyz", None, "");
        assert_eq!(status, 200);
        server.publish("t", json!("without"));
        assert_eq!(next_data(&mut member), "without");
        postgres.run();
        // The row still exists, and the server knows that it has published it.
        postgres.until_empty();
    }
    postgres.psql("SELECT throng.publish('t', '\"last\"')");
    assert_eq!(next_data(&mut member), "last");
    assert!(server.metric("throng_outbox_connections_lost_total") >= 3.0);
}

#[test]
fn one_of_two_servers_drains_and_the_other_takes_over_when_it_dies() {
    let postgres = Postgres::start();
    let mut first = postgres.draining_server(&[], &[]);
    let mut second = postgres.server(&[], &[]);
    second.until("it is connected", |second| state(second)["connected"] == true);
    let mut at_first = stream(&first, "topic=t");
    let mut at_second = stream(&second, "topic=t");
    let publish = |from: u32| {
        postgres.psql(&format!(
            "SELECT count(throng.publish('t', to_jsonb(n))) FROM generate_series({from}, {}) AS n; \
             SELECT throng.publish('t', '\"end\"')",
            from + 99
        ));
    };
    publish(1);
    assert_eq!(until_end(&mut at_first), (1..=100).map(Value::from).collect::<Vec<_>>());
    postgres.until_empty();
    assert_eq!(state(&second)["draining"], false);
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    until_draining(&second);
    publish(101);
    assert_eq!(until_end(&mut at_second), (101..=200).map(Value::from).collect::<Vec<_>>());
    // A server that stops gives back the lock at once.
    let third = postgres.server(&[], &[]);
    drop(at_second);
    second.signal("-TERM");
    assert!(wait_within(&mut second.child).success());
    until_draining(&third);
}

#[test]
fn rows_wait_while_the_store_is_behind() {
    let postgres = Postgres::start();
    let (_scratch, flags) = with_history("outbox");
    let flags = flags.each_ref().map(|flag| &**flag);
    let server = postgres.draining_server(&flags, &[("THRONG_STORE_QUEUE_MESSAGES_MAX", "4")]);
    postgres.psql(
        "SELECT count(throng.publish('log:1', to_jsonb(n))) FROM generate_series(1, 60) AS n",
    );
    postgres.until_empty();
    assert_eq!(history(&server, "log:1"), (1..=60).map(Value::from).collect::<Vec<_>>());
    assert_eq!(postgres.psql("SELECT count(*) FROM throng.outbox_refused"), "0");
}

#[test]
fn rows_wait_while_the_disk_is_full_and_come_once() {
    let postgres = Postgres::start();
    let (scratch, [config, file, data, folder]) = with_history("outbox");
    let Some(mount) = Mount::new(&scratch.path().join("data"), "size=16m") else { return };
    let filler = mount.path.join("filler");
    std::fs::write(&filler, vec![1; 11 << 20]).unwrap();
    let flags = [&*config, &*file, &*data, &*folder];
    let server = postgres.draining_server(&flags, &[]);
    postgres.psql(
        "SELECT count(throng.publish('log:1', to_jsonb(n || repeat('x', 60000)))) \
         FROM generate_series(1, 100) AS n",
    );
    until_error(&server, "the disk is full");
    assert!(postgres.rows() > 0);
    std::fs::remove_file(&filler).unwrap();
    postgres.until_empty();
    let history = history(&server, "log:1").into_iter();
    let numbers = history.map(|data| data.as_str().unwrap().trim_end_matches('x').to_owned());
    let mut numbers: Vec<u64> = numbers.map(|number| number.parse().unwrap()).collect();
    // Messages that were being written when the disk was full may come later.
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
    assert_eq!(postgres.psql("SELECT count(*) FROM throng.outbox_refused"), "0");
    drop(server);
}

#[test]
fn a_server_that_can_not_publish_leaves_the_rows_to_another() {
    let postgres = Postgres::start();
    let (scratch, [config, file, data, folder]) = with_history("outbox");
    let Some(mount) = Mount::new(&scratch.path().join("data"), "size=16m") else { return };
    std::fs::write(mount.path.join("filler"), vec![1; 11 << 20]).unwrap();
    let first = postgres.draining_server(&[&config, &file, &data, &folder], &[]);
    let second = postgres.server(&[], &[]);
    second.until("it is connected", |second| state(second)["connected"] == true);
    let mut member = stream(&second, "topic=t");
    // The last row comes after rows that the first server can't store.
    postgres.psql(
        "SELECT count(throng.publish('log:1', to_jsonb(n || repeat('x', 60000)))) \
         FROM generate_series(1, 100) AS n; SELECT throng.publish('t', '\"end\"')",
    );
    until_error(&first, "the disk is full");
    assert!(until_end(&mut member).is_empty());
    postgres.until_empty();
    assert_eq!(state(&second)["draining"], true);
    first.until("it knows that another one drains", |first| {
        let state = state(first);
        state["draining"] == false && state["error"].is_null()
    });
}

#[test]
fn rows_come_once_and_in_order_through_an_upgrade() {
    let postgres = Postgres::start();
    let server = postgres.draining_server(&[], &[]);
    let mut member = stream(&server, "topic=t");
    let publish = |from: u32| {
        postgres.psql(&format!(
            "SELECT count(throng.publish('t', to_jsonb(n))) FROM generate_series({from}, {}) AS n",
            from + 99
        ));
    };
    publish(1);
    let admin = format!("http://{}", server.admin);
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    let mut upgrade = command.args(["upgrade", "--admin", &admin]).spawn().unwrap();
    publish(101);
    assert!(wait_within(&mut upgrade).success());
    publish(201);
    until_draining(&server);
    postgres.psql("SELECT throng.publish('t', '\"end\"')");
    assert_eq!(until_end(&mut member), (1..=300).map(Value::from).collect::<Vec<_>>());
}
