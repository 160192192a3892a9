//! Publish, send, broadcast and batch.

use axum::body::Body;
use axum::http::Request;
use model::Data;
use proptest::prelude::*;
use serde_json::json;

use super::fake::{Mood, bench};

#[tokio::test]
async fn a_message_gets_its_topic_event_and_data() {
    let bench = bench(Mood::Willing);
    let reply = bench.post("/api/publish", json!({"topic": "news", "data": {"a": 1}})).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json(), json!({"id": "5f3a91c2:1", "offset": 1, "members": 4}));
    bench.post("/api/send", json!({"user": "alice", "data": "hi", "event": "note"})).await;
    let body = json!({"data": "AP8=", "encoding": "base64", "event": "message"});
    bench.post("/api/broadcast", body).await;
    bench.post("/api/publish", "{\"topic\":\"n\",\"data\":null}").await;
    let publications = bench.published.lock().unwrap();
    let have: Vec<_> = publications
        .iter()
        .map(|publication| {
            (publication.topic.as_str(), publication.event.as_deref(), publication.data.clone())
        })
        .collect();
    let want = [
        ("news", None, Data::Json("{\"a\":1}".into())),
        ("@alice", Some("note"), Data::Text("hi".into())),
        ("*", None, Data::Binary([0, 255].into())),
        ("n", None, Data::Json("null".into())),
    ];
    assert_eq!(have, want);
}

#[tokio::test]
async fn an_invalid_body_is_rejected_with_the_reason() {
    let bench = bench(Mood::Willing);
    for (body, code, words) in [
        ("", "bad_json", "line 1 column 0"),
        ("{\n\"topic\":,", "bad_json", "line 2 column 9"),
        ("[]", "bad_request", ""),
        ("[\"a\",1,null,null,null,null,null,false,[],null,null,null]", "bad_request", "object"),
        ("{\"topic\":\"a\"}", "bad_request", "data"),
        ("{\"topic\":\"a\",\"data\":1,\"x\":1}", "bad_request", "`x`"),
        ("{\"topic\":\"@a\",\"data\":1}", "bad_topic", "@"),
        ("{\"topic\":\"*\",\"data\":1}", "bad_topic", "broadcast"),
        ("{\"topic\":\"a\",\"data\":1,\"event\":\"\"}", "bad_event", "empty"),
        ("{\"topic\":\"a\",\"data\":1,\"event\":\"a\\nb\"}", "bad_event", "control"),
        ("{\"topic\":\"a\",\"data\":1,\"encoding\":\"base64\"}", "bad_data", "string"),
        ("{\"topic\":\"a\",\"data\":1,\"tags\":[\"a\\u001b[2J\"]}", "bad_tags", "control"),
        ("{\"topic\":\"a\",\"data\":1,\"key\":\"a\\n\"}", "bad_message_key", "control"),
        ("{\"topic\":\"a\",\"data\":1,\"sender\":\"\"}", "bad_sender", "empty"),
        (
            "{\"topic\":\"a\",\"data\":1,\"idempotency_key\":\"a\\u0000\"}",
            "bad_idempotency_key",
            "control",
        ),
    ] {
        let reply = bench.post("/api/publish", body).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, code), "{body}");
        assert!(reply.text.contains(words), "{body}: {}", reply.text);
    }
    assert!(bench.published.lock().unwrap().is_empty());
}

/// No call of the application can publish an event of the server.
#[tokio::test]
async fn an_event_that_clients_take_for_the_servers_is_not_published() {
    let bench = bench(Mood::Willing);
    for event in [
        "recovery",
        "state_complete",
        "error",
        "open",
        "phx_close",
        "phx_error",
        "presence_state",
        "chan_reply_1",
    ] {
        let publish = json!({"topic": "a", "data": 1, "event": event});
        let send = json!({"user": "a", "data": 1, "event": event});
        let broadcast = json!({"data": 1, "event": event});
        let batch = json!({"commands": [{"publish": publish}, {"send": send}]});
        for (call, body) in
            [("/api/publish", publish), ("/api/send", send), ("/api/broadcast", broadcast)]
        {
            let reply = bench.post(call, body).await;
            assert_eq!((reply.status, reply.code().as_str()), (400, "reserved_event"), "{event}");
            assert!(reply.text.contains(event), "{}", reply.text);
        }
        let results = bench.post("/api/batch", batch).await.json();
        for at in [0, 1] {
            assert_eq!(results["results"][at]["error"]["code"], "reserved_event");
        }
    }
    assert!(bench.published.lock().unwrap().is_empty());
    for event in ["update", "close", "message", "heartbeat"] {
        let reply = bench.post("/api/broadcast", json!({"data": 1, "event": event})).await;
        assert_eq!(reply.status, 200, "{event}");
    }
}

#[tokio::test]
async fn bodies_are_json_whatever_tools_call_them() {
    let bench = bench(Mood::Willing);
    for (media, status) in [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/x-www-form-urlencoded", 200),
        ("text/plain;charset=UTF-8", 200),
        ("application/octet-stream", 200),
        ("", 200),
        ("text/html", 415),
        ("application/json-patch+json", 415),
        ("multipart/form-data; boundary=x", 415),
    ] {
        let request = Request::post("/api/broadcast").header("content-type", media);
        let reply = bench.call(request.body(Body::from("{\"data\":1}")).unwrap()).await;
        assert_eq!(reply.status, status, "{media}");
        if status == 415 {
            assert_eq!(reply.code(), "bad_media_type");
            let header = "send the header Content-Type: application/json";
            assert!(reply.text.contains(header), "{}", reply.text);
        }
    }
}

#[tokio::test]
async fn what_is_too_large_is_413() {
    let bench = bench(Mood::Willing);
    let data = |bytes| json!({"data": "x".repeat(bytes)});
    assert_eq!(bench.post("/api/broadcast", data(100)).await.status, 200);
    let reply = bench.post("/api/broadcast", data(101)).await;
    assert_eq!((reply.status, reply.code().as_str()), (413, "message_too_large"));
    let reply = bench.post("/api/broadcast", data(5000)).await;
    assert_eq!((reply.status, reply.code().as_str()), (413, "body_too_large"));
}

#[tokio::test]
async fn an_overloaded_node_publishes_nothing_and_says_when_to_come_back() {
    let reply = bench(Mood::Overloaded).post("/api/broadcast", "{\"data\":1}").await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "overloaded"));
    assert_eq!(reply.headers["retry-after"], "1");
}

#[tokio::test]
async fn each_command_of_a_batch_is_served_and_a_rejected_one_stops_nothing() {
    let bench = bench(Mood::Willing);
    let commands = json!({"commands": [
        {"publish": {"topic": "a", "data": 1}},
        {"publish": {"topic": "@a", "data": 1}},
        {"dance": {}},
        7,
        {"publish": {"topic": "a", "data": 1}, "send": {"user": "a", "data": 1}},
        {"send": {"user": "alice", "data": 2}},
        {"broadcast": {"data": "x".repeat(101)}},
        {"subscribe": {"user": "alice", "topic": "a"}},
        {"unsubscribe": {"user": "alice", "topic": "a"}},
        {"disconnect": {"user": "alice"}},
        {"publish": {"topic": "$SYS/broker/uptime", "data": 1}},
    ]});
    let reply = bench.post("/api/batch", commands).await;
    assert_eq!(reply.status, 200);
    let results = reply.json();
    let results = results["results"].as_array().unwrap();
    let codes =
        ["", "bad_topic", "bad_request", "bad_request", "bad_request", "", "message_too_large"];
    for (result, code) in results.iter().zip(codes) {
        assert_eq!(result["error"]["code"].as_str().unwrap_or(""), code, "{result}");
        assert_eq!(result["ok"].is_object(), code.is_empty(), "{result}");
    }
    assert_eq!(results[0]["ok"], json!({"id": "5f3a91c2:1", "offset": 1, "members": 4}));
    assert_eq!(results[5]["ok"]["offset"], 2);
    let counts = [json!({"connections": 4}), json!({"connections": 2}), json!({"disconnected": 4})];
    for (result, count) in results[7..].iter().zip(counts) {
        assert_eq!(result["ok"], count);
    }
    assert_eq!(results[10]["error"]["code"], "forbidden");
    assert_eq!(results.len(), 11);
    // No key of the application may publish below `$SYS`.
    let body = json!({"topic": "$SYS", "data": 1, "mqtt": {"retain": true}});
    let reply = bench.post("/api/publish", body).await;
    assert_eq!((reply.status, reply.code().as_str()), (403, "forbidden"));
}

#[tokio::test]
async fn a_command_has_one_name_and_none_is_lost() {
    let bench = bench(Mood::Willing);
    let publish = "\"publish\":{\"topic\":\"a\",\"data\":1}";
    for command in [format!("{{{publish},{publish}}}"), "{}".into(), format!("[{{{publish}}}]")] {
        let reply = bench.post("/api/batch", format!("{{\"commands\":[{command}]}}")).await;
        let error = &reply.json()["results"][0]["error"];
        assert_eq!(error["code"], "bad_request", "{command}");
        assert!(error["message"].as_str().unwrap().contains("one field"), "{error}");
    }
    assert!(bench.published.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_batch_has_a_thousand_commands_at_most() {
    let bench = bench(Mood::Willing);
    let batch = |count: usize| format!("{{\"commands\":[{}0]}}", "0,".repeat(count - 1));
    assert_eq!(bench.post("/api/batch", batch(1000)).await.status, 200);
    let reply = bench.post("/api/batch", batch(1001)).await;
    assert_eq!((reply.status, reply.code().as_str()), (400, "batch_too_long"));
}

/// A whole batch waits as long as one message: a silent shard doesn't add the waits up.
#[tokio::test(start_paused = true)]
async fn members_are_left_out_when_they_cannot_be_counted_in_time() {
    let bench = bench(Mood::Silent);
    let began = tokio::time::Instant::now();
    let reply = bench.post("/api/broadcast", "{\"data\":1}").await;
    assert_eq!(reply.json(), json!({"id": "5f3a91c2:1", "offset": 1}));
    let commands = vec![json!({"broadcast": {"data": 1}}); 20];
    let reply = bench.post("/api/batch", json!({"commands": commands})).await;
    assert_eq!(reply.json()["results"][19]["ok"].get("members"), None);
    assert!(began.elapsed().as_secs_f64() < 10.1, "{:?}", began.elapsed());
}

/// Commands that must be settled one by one don't add the waits up either.
#[tokio::test(start_paused = true)]
async fn a_silent_shard_is_waited_for_once_in_a_batch() {
    let bench = bench(Mood::Silent);
    let began = tokio::time::Instant::now();
    let commands = vec![json!({"subscribe": {"user": "a", "topic": "b"}}); 20];
    let reply = bench.post("/api/batch", json!({"commands": commands})).await.json();
    for result in reply["results"].as_array().unwrap() {
        assert_eq!(result["error"]["code"], "no_answer");
    }
    assert!(began.elapsed().as_secs_f64() < 5.1, "{:?}", began.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any body the response is JSON, and never an error of the server.
    #[test]
    fn any_body_is_served_in_json(
        bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..64),
            "\\{\"(commands|data|topic|user)\":[\\[\\]\\{\\}0-9\",:a-z]{0,32}\\}".prop_map(String::into_bytes),
        ],
        path in prop_oneof![Just("publish"), Just("send"), Just("broadcast"), Just("batch"), Just("disconnect")],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let request = Request::post(format!("/api/{path}")).body(Body::from(bytes)).unwrap();
        let reply = runtime.block_on(bench(Mood::Willing).call(request));
        match reply.status {
            200 => prop_assert!(reply.json().is_object()),
            400 | 413 => prop_assert!(!reply.code().is_empty()),
            other => prop_assert!(false, "{other}"),
        }
    }
}
