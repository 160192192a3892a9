//! The primary of PostgreSQL dies, and its standby becomes the primary.

use std::sync::atomic::{AtomicU64, Ordering};

use super::cursors::{acknowledge, until_cursor};
use super::faults::try_publish;
use super::retained::{MQTT, retain, until_retained, until_written};
use super::*;

/// Starts a server that finds the primary of the two.
fn server_of_both(database: &Database, standby: &Postgres) -> Server {
    let hosts = format!("{},{}", database.postgres.folder(), standby.folder());
    let url = format!("postgres:///app?host={hosts}&user=postgres");
    let urls = [("THRONG_HISTORY_URL", &*url), ("THRONG_OUTBOX_URL", &url)];
    database.server_with(&[&urls[..], &MQTT].concat())
}

/// Publishes the numbers below `end`, each again and again until it is acknowledged. `published` counts them.
fn publish_numbers(server: &Server, published: &AtomicU64, end: u64) {
    for number in 0..end {
        server.until("it is acknowledged", |server| try_publish(server, number) == 200);
        published.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_a_synchronous_standby_takes_over() {
    let mut database = Database::start();
    let standby = database.postgres.standby();
    database
        .postgres
        .psql_script("ALTER SYSTEM SET synchronous_standby_names = '*'; SELECT pg_reload_conf();");
    let [a, b] = [server_of_both(&database, &standby), server_of_both(&database, &standby)];
    let mut seen = member(&b, "topic=chat:1");
    retain(&a, "light", "on");
    let job = publish(&a, "job:1", "job");
    acknowledge(&a, "alice", "job:1", &job);
    until_written(&a);
    a.until("the cursor is written", |a| a.metric("throng_history_pending_cursors") == 0.0);
    let published = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let publisher = scope.spawn(|| publish_numbers(&a, &published, 300));
        b.until("some are published", |_| published.load(Ordering::Relaxed) >= 50);
        database.postgres.kill();
        standby.promote();
        publisher.join().unwrap();
    });
    [&a, &b].into_iter().for_each(until_connected);
    standby.psql("SELECT throng.publish('chat:1', '\"outbox\"')");
    let seen = until_data(&mut seen, &json!("outbox"));
    let expected: Vec<Value> = (0..300).map(Value::from).chain([json!("outbox")]).collect();
    assert_eq!(data(&seen), expected);
    let new = server_of_both(&database, &standby);
    for server in [&a, &b, &new] {
        server.until("it has them, too", |server| history(server, "chat:1") == seen);
        until_retained(server, &[("light", "on")]);
        until_cursor(server, "alice", "job:1", &job);
    }
}

#[test]
fn a_standby_that_lacks_commits_is_noticed() {
    let mut database = Database::start();
    let standby = database.postgres.standby();
    let server = server_of_both(&database, &standby);
    let ids: Vec<String> = (0..3).map(|number| publish(&server, "chat:1", number)).collect();
    until("the standby has them", || {
        standby.psql("SELECT count(*) FROM throng.history_messages") == "3"
    });
    // From now on it gets nothing.
    standby.psql_script("ALTER SYSTEM SET primary_conninfo = ''; SELECT pg_reload_conf();");
    until("the standby does not receive", || {
        database.postgres.psql("SELECT count(*) FROM pg_stat_replication") == "0"
    });
    let lost = publish(&server, "chat:1", 3);
    database.postgres.kill();
    standby.promote();
    until_refused(&server, "restart this server");
    drop(server);
    let server = server_of_both(&database, &standby);
    let id = publish(&server, "chat:1", 4);
    assert_ne!(id.split_once(':').unwrap().0, lost.split_once(':').unwrap().0, "another epoch");
    assert_eq!(data(&history(&server, "chat:1")), [0, 1, 2, 4]);
    // A client that has got the lost message, or one before, gets notice.
    for since in [&lost, &ids[0]] {
        let mut back = member(&server, &format!("topic=chat:1&since={since}"));
        let notice = back.next_object();
        assert_eq!(notice["recovered"], false, "{notice}");
        assert_eq!(notice["topics"], json!({"chat:1": "epoch_changed"}), "{notice}");
    }
}
