//! Replies of back ends to messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use serde_json::json;

use super::fake::{Mood, bench};
use crate::api::ReplyPublisher;
use crate::webhook::{PublishReplies, ReplyCounts, ReplyTo};

/// Returns where replies to the messages "1" and "system" go.
fn reply_to(id: &str) -> Option<ReplyTo> {
    let topic = match id {
        "1" => "@alice",
        "system" => "$SYS/broker/uptime",
        _ => return None,
    };
    Some(ReplyTo { topic: topic.into(), correlation_data: Some([7].into()) })
}

/// Publishes a response. Returns its topics, how many could not be published, and why not.
fn publish(body: &[u8]) -> (Vec<String>, u64, String) {
    let bench = bench(Mood::Willing);
    let counts = Arc::new(ReplyCounts::default());
    let result = ReplyPublisher(bench.node.clone()).publish(body, &reply_to, &counts);
    let published = bench.published.lock().unwrap();
    assert_eq!(published.len() as u64, counts.published.load(Ordering::Relaxed));
    let topics = published.iter().map(|it| it.topic.to_string()).collect();
    (topics, counts.rejected.load(Ordering::Relaxed), result.err().unwrap_or_default())
}

#[tokio::test]
async fn each_message_is_checked_by_itself() {
    for empty in ["", " \n", "{}", r#"{"messages":[],"more":1}"#] {
        assert_eq!(publish(empty.as_bytes()), (Vec::new(), 0, String::new()), "{empty}");
    }
    let good = json!({"messages": [
        {"topic": "a", "data": 1}, {"user": "bob", "data": "x"},
        {"reply_to": "1", "data": "y", "mqtt": {"qos": 1}},
    ]});
    assert_eq!(publish(good.to_string().as_bytes()).0, ["a", "@bob", "@alice"]);
    let none = json!({"data": 1});
    for (message, want) in [
        (json!({"topic": "@bob", "data": 1}), "may not begin with '@'"),
        (json!({"topic": "a"}), "data"),
        (json!({"topic": "a", "data": 1, "colour": 1}), "colour"),
        (json!({"topic": "a", "user": "bob", "data": 1}), "topic"),
        (json!({"topic": "a", "reply_to": "1", "data": 1}), "topic"),
        (json!({"user": "bob", "reply_to": "1", "data": 1}), "one of topic, user and reply_to"),
        (json!({"user": "", "data": 1}), "may not be empty"),
        (json!({"reply_to": "2", "data": 1}), "not the id of a message in the request"),
        (json!({"topic": "a", "data": 1, "mqtt": {"qos": 3}}), "qos"),
        (json!({"topic": "$SYS/broker/uptime", "data": 1}), "only the server publishes"),
        (json!({"reply_to": "system", "data": 1}), "only the server publishes"),
        (none, "topic"),
        (json!("a"), "the body does not fit this call"),
    ] {
        let body = json!({"messages": [message, {"topic": "b", "data": 1}]}).to_string();
        let (topics, rejected, error) = publish(body.as_bytes());
        assert_eq!((&topics[..], rejected), (&["b".to_owned()][..], 1), "{body}");
        assert!(error.starts_with("message 0 of the reply: "), "{error}");
        assert!(error.contains(want), "{body}: {error}");
    }
    for body in ["[]", "no", r#"{"messages":1}"#] {
        let (topics, rejected, error) = publish(body.as_bytes());
        assert_eq!((topics.len(), rejected), (0, 1), "{body}");
        assert!(error.contains("the reply is not"), "{error}");
    }
}

#[tokio::test]
async fn a_reply_has_the_correlation_data_of_its_request() {
    let bench = bench(Mood::Willing);
    let body = json!({"messages": [
        {"reply_to": "1", "data": 1},
        {"reply_to": "1", "data": 1, "mqtt": {"correlation_data": "CQ=="}},
    ]});
    let counts = Arc::new(ReplyCounts::default());
    let body = body.to_string();
    ReplyPublisher(bench.node.clone()).publish(body.as_bytes(), &reply_to, &counts).unwrap();
    let published = bench.published.lock().unwrap();
    let data = |at: usize| published[at].properties().unwrap().correlation_data.clone().unwrap();
    assert_eq!((&*data(0), &*data(1)), (&[7][..], &[9][..]));
}

proptest! {
    #[test]
    fn whatever_comes_is_published_or_counted(
        body in r#"\{"messages":\[(\{("(topic|user|reply_to|data|mqtt|event|colour)":("a"|"1"|1|null|\{\}),?){0,4}\},?){0,3}\]\}?"#,
    ) {
        let (topics, rejected, error) = publish(body.as_bytes());
        prop_assert_eq!(rejected > 0, !error.is_empty());
        prop_assert!(topics.len() as u64 + rejected <= 4);
    }
}
