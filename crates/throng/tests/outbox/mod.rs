//! Messages that applications publish in their own transactions in a real PostgreSQL, with psql as the application.

mod access;
mod faults;
pub mod support;

use serde_json::{Value, json};

use crate::support::*;
use support::*;

/// Opens an HTTP stream and reads its welcome.
fn stream(server: &Server, query: &str) -> Stream {
    let mut stream = server.listen(&format!("/stream?{query}"));
    assert_eq!(stream.next_object()["type"], "welcome");
    stream
}

/// Returns the data of the next message of an HTTP stream.
fn next_data(stream: &mut Stream) -> Value {
    loop {
        let object = stream.next_object();
        // Objects without data are about the history.
        if let Some(data) = object.get("data") {
            return data.clone();
        }
    }
}

/// Reads messages of an HTTP stream up to `"end"`, and returns the data of those before it.
fn until_end(stream: &mut Stream) -> Vec<Value> {
    let data = std::iter::repeat_with(|| next_data(stream));
    data.take_while(|data| data != "end").collect()
}

#[test]
fn what_is_committed_is_published_and_what_is_rolled_back_is_not() {
    let postgres = Postgres::start();
    let server = postgres.draining_server(&[], &[]);
    let mut orders = stream(&server, "topic=orders:7");
    postgres.psql("BEGIN; SELECT throng.publish('orders:7', '{\"state\":\"lost\"}'); ROLLBACK");
    postgres.psql("SELECT throng.publish('orders:7', '{\"state\":\"new\"}')");
    let mut open = postgres.session();
    open.run("BEGIN");
    open.run("SELECT throng.publish('orders:7', '{\"state\":\"paid\"}')");
    open.run("SELECT throng.publish('orders:7', '{\"state\":\"sent\"}', event => 'parcel', tags => '{a,b}')");
    // A later transaction that commits first does not wait for the open one.
    postgres.psql("SELECT throng.publish('orders:7', '{\"state\":\"seen\"}')");
    assert_eq!(next_data(&mut orders), json!({"state": "new"}));
    assert_eq!(next_data(&mut orders), json!({"state": "seen"}));
    open.run("COMMIT");
    assert_eq!(next_data(&mut orders), json!({"state": "paid"}));
    let sent = orders.next_object();
    assert_eq!((&sent["data"], &sent["event"]), (&json!({"state": "sent"}), &json!("parcel")));
    postgres.until_empty();
    server.until("four rows are counted", |server| state(server)["published"] == 4);
    assert_eq!(server.metric("throng_outbox_published_total"), 4.0);
    assert_eq!(server.metric("throng_outbox_draining"), 1.0);
    assert_eq!(server.metric("throng_outbox_connected"), 1.0);
}

#[test]
fn users_and_everyone_get_what_a_transaction_sends() {
    let postgres = Postgres::start();
    let server = postgres.draining_server(&[], &[]);
    let mut alice = stream(&server, "user=alice");
    let mut bob = stream(&server, "user=bob");
    postgres.psql("SELECT throng.send('alice', '\"for alice\"'), throng.broadcast('[1, null]')");
    // Messages of different topics have no order.
    let mut data = [(); 2].map(|()| next_data(&mut alice).to_string());
    data.sort();
    assert_eq!(data, ["\"for alice\"", "[1,null]"]);
    assert_eq!(next_data(&mut bob), json!([1, null]));
    let refused = |sql: &str| {
        let output = postgres.try_psql("postgres", "app", sql);
        assert!(!output.status.success(), "{sql}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused("SELECT throng.publish(NULL, '1')").contains("needs a topic and data"));
    assert!(refused("SELECT throng.publish('a', 'no JSON')").contains("invalid input syntax"));
}

#[test]
fn ten_thousand_rows_come_once_and_in_order() {
    let postgres = Postgres::start();
    let settings = [
        ("THRONG_OUTBOX_BATCH_BYTES_MAX", "32KiB"),
        // With these limits a member that reads slowly is never closed.
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "64MiB"),
        ("THRONG_LIMITS_OUTBOX_MESSAGES_MAX", "100000"),
        ("THRONG_LIMITS_OUTBOXES_BYTES_MAX", "1GiB"),
    ];
    let server = postgres.draining_server(&[], &settings);
    let mut numbers = stream(&server, "topic=numbers");
    postgres.psql(
        "SELECT count(throng.publish('numbers', to_jsonb(n))) FROM generate_series(1, 9999) AS n; \
         SELECT throng.publish('numbers', '\"end\"')",
    );
    let expected: Vec<Value> = (1..10_000).map(Value::from).collect();
    assert_eq!(until_end(&mut numbers), expected);
    postgres.until_empty();
}

#[test]
fn a_row_that_can_not_be_published_is_refused_and_blocks_nothing() {
    let postgres = Postgres::start();
    let limits =
        [("THRONG_ADMIN_BODY_BYTES_MAX", "128KiB"), ("THRONG_OUTBOX_REFUSED_ROWS_MAX", "5")];
    let server = postgres.draining_server(&[], &limits);
    let mut member = stream(&server, "topic=t");
    let rows = [
        "throng.publish('@alice', '1')",
        "throng.publish('t', '1', event => 'phx_join')",
        "throng.publish('t', '1', idempotency_key => 'k')",
        "throng.publish('t', to_jsonb(repeat('x', 70000)))",
        "throng.publish('t', to_jsonb(repeat('x', 140000)))",
        "throng.outbox_insert('{\"disconnect\":{\"user\":\"alice\"}}')",
        "throng.publish('t', '\"good\"')",
    ];
    postgres.psql(&format!("SELECT {}", rows.join(", ")));
    assert_eq!(next_data(&mut member), "good");
    postgres.until_empty();
    // The table has at most five rejected rows, so the server has deleted the first one.
    let codes = postgres.psql(
        "SELECT string_agg(code, ' ' ORDER BY id), min(id), max(length(reason)) > 20 FROM throng.outbox_refused",
    );
    assert_eq!(codes, "reserved_event no_history message_too_large body_too_large bad_request|2|t");
    server.until("six rows are counted", |server| state(server)["refused"] == 6);
    assert_eq!(server.metric("throng_outbox_refused_total"), 6.0);
    // Without the reserved event, a retry publishes the message.
    postgres.psql(
        "UPDATE throng.outbox_refused SET message = message #- '{publish,event}' WHERE id = 2; \
         SELECT throng.outbox_retry(2)",
    );
    assert_eq!(next_data(&mut member), 1);
    assert_eq!(postgres.psql("SELECT count(*) FROM throng.outbox_refused"), "4");
}

#[test]
fn a_server_without_a_database_has_no_outbox() {
    let server = Server::start();
    let (status, error) = server.api("GET", "/api/outbox", None);
    assert_eq!((status, &error["error"]["code"]), (409, &json!("no_outbox")), "{error}");
    let (_, metrics) = text(server.admin, "GET", "/metrics", None, "");
    assert!(!metrics.contains("throng_outbox_connected"), "{metrics}");
}
