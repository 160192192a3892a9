//! Results of rows of the outbox.

use std::sync::{Arc, Mutex};

use outbox::{Outcome, Publisher, Row};

use super::fake::{Bench, Mood, bench};
use crate::api::OutboxPublisher;

/// Returns the outcome of a row with this message.
fn outcome(bench: &Bench, message: &str) -> Outcome {
    let bytes = message.len() as u64;
    outcome_of(bench, Row { id: 7, uid: "0b1c".into(), message: Some(message.into()), bytes })
}

fn outcome_of(bench: &Bench, row: Row) -> Outcome {
    let outcome = Arc::new(Mutex::new(None));
    let written = outcome.clone();
    let done = Box::new(move |outcome| *written.lock().unwrap() = Some(outcome));
    OutboxPublisher(bench.node.clone()).publish(&row, done);
    outcome.lock().unwrap().take().expect("an outcome")
}

#[tokio::test]
async fn a_row_is_a_command_that_publishes() {
    let bench = bench(Mood::Willing);
    for message in [
        r#"{"publish":{"topic":"a","data":1,"event":"x"}}"#,
        r#"{"send":{"user":"bob","data":"hi"}}"#,
        r#"{"broadcast":{"data":null}}"#,
    ] {
        assert_eq!(outcome(&bench, message), Outcome::Published, "{message}");
    }
    let topics: Vec<_> =
        bench.published.lock().unwrap().iter().map(|it| it.topic.to_string()).collect();
    assert_eq!(topics, ["a", "@bob", "*"]);
}

#[tokio::test]
async fn what_the_api_refuses_is_refused_with_its_code() {
    let bench = bench(Mood::Willing);
    for (message, code) in [
        (r#"{"publish":{"topic":"@bob","data":1}}"#, "bad_topic"),
        (r#"{"publish":{"topic":"$SYS/broker/uptime","data":1}}"#, "forbidden"),
        (r#"{"publish":{"topic":"a","data":1,"idempotency_key":"k"}}"#, "no_history"),
        (r#"{"publish":{"topic":"a","data":1,"colour":1}}"#, "bad_request"),
        (r#"{"send":{"user":"","data":1}}"#, "bad_user"),
        (r#"{"disconnect":{"user":"bob"}}"#, "bad_request"),
        (r#"{"topic":"a","data":1}"#, "bad_request"),
        ("1", "bad_request"),
    ] {
        let Outcome::Refused(reason) = outcome(&bench, message) else { panic!("{message}") };
        assert_eq!(&*reason.code, code, "{message}: {}", reason.text);
    }
    let row = Row { id: 7, uid: "0b1c".into(), message: None, bytes: 5_000 };
    let Outcome::Refused(reason) = outcome_of(&bench, row) else { panic!("it is too large") };
    assert_eq!(&*reason.code, "body_too_large");
    assert!(reason.text.contains("5000 bytes"), "{}", reason.text);
    assert!(bench.published.lock().unwrap().is_empty());
    assert!(bench.commands.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_row_waits_while_shards_are_behind_and_through_an_upgrade() {
    let message = r#"{"publish":{"topic":"a","data":1}}"#;
    let overloaded = outcome(&bench(Mood::Overloaded), message);
    assert!(matches!(overloaded, Outcome::Wait(_)), "{overloaded:?}");
    let bench = bench(Mood::Willing);
    bench.node.upgrades.gate.pause();
    assert!(matches!(outcome(&bench, message), Outcome::Wait(_)));
    bench.node.upgrades.gate.release();
    assert_eq!(outcome(&bench, message), Outcome::Published);
    assert_eq!(bench.published.lock().unwrap().len(), 1);
}
