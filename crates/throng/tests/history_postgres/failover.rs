//! The primary of PostgreSQL dies, and its standby becomes the primary.

use std::sync::atomic::{AtomicU64, Ordering};

use super::faults::try_publish;
use super::retained::MQTT;
use super::*;

/// Starts a server that finds the primary of the two.
fn server(database: &Database, standby: &Postgres) -> Server {
    let hosts = format!("{},{}", database.postgres.folder(), standby.folder());
    let url = format!("postgres:///app?host={hosts}&user=postgres");
    let urls = [("THRONG_HISTORY_URL", &*url), ("THRONG_OUTBOX_URL", &url)];
    database.server_with(&[&urls[..], &MQTT].concat())
}

/// Publishes numbers, each until it is acknowledged, until `last` of them are.
fn publish_numbers(server: &Server, published: &AtomicU64, last: u64) {
    for number in published.load(Ordering::Relaxed)..last {
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
    let [a, b] = [server(&database, &standby), server(&database, &standby)];
    let mut seen = member(&b, "topic=chat:1");
    let retained = json!({"topic": "light", "data": "on", "mqtt": {"retain": true, "qos": 1}});
    assert_eq!(a.api("POST", "/api/publish", Some(retained)).0, 200);
    let job = publish(&a, "job:1", "job");
    let cursor = json!({"user": "alice", "topic": "job:1", "id": job});
    assert_eq!(a.api("POST", "/api/ack", Some(cursor)).0, 200);
    for server in [&a, &b] {
        server.until("all is written", |it| {
            it.metric("throng_history_pending_cursors") == 0.0
                && it.metric("throng_mqtt_retained_pending") == 0.0
        });
    }
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
    let new = server(&database, &standby);
    for server in [&a, &b, &new] {
        assert_eq!(history(server, "chat:1"), seen);
        let (_, light) = server.api("GET", "/api/mqtt/retained/light", None);
        assert_eq!(light["data"], "on", "{light}");
        let (_, cursor) = server.api("GET", "/api/cursors/alice?topic=job:1", None);
        assert_eq!(cursor["acknowledged"], job, "{cursor}");
    }
}

#[test]
fn a_standby_that_lacks_commits_is_noticed() {
    let mut database = Database::start();
    let standby = database.postgres.standby();
    let server = server(&database, &standby);
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
    let server = self::server(&database, &standby);
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
