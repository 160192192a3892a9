//! Topics' history: options of publish, pages, deletion, and counts.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::fake::{Bench, HISTORY_EPOCH, Mood, bench, stored};

async fn publish(bench: &Bench, body: Value) -> super::fake::TestReply {
    bench.post("/api/publish", body).await
}

fn offsets(page: &Value) -> Vec<u64> {
    let messages = page["messages"].as_array().unwrap();
    messages.iter().map(|message| message["offset"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn options_go_to_the_broker() {
    let bench = bench(Mood::Willing);
    let body = json!({"topic": "log:a", "data": 1, "ttl_seconds": 60.5, "tags": ["de", "x", "de"],
        "key": "AAPL", "idempotency_key": "one"});
    let first = publish(&bench, body.clone()).await;
    assert_eq!(first.json(), json!({"id": "0badcafe:1", "offset": 1, "members": 4}));
    let again = publish(&bench, body).await.json();
    assert_eq!(again, json!({"id": "0badcafe:1", "offset": 1, "repeated": true}));
    let other = json!({"topic": "log:b", "data": 1, "idempotency_key": "one"});
    assert_eq!(publish(&bench, other).await.json()["offset"], 2);
    let live = json!({"topic": "log:a", "data": 1, "no_history": true});
    assert_eq!(publish(&bench, live).await.json()["id"], "5f3a91c2:1");
    let send = json!({"user": "keen", "data": 1, "tags": ["x"], "if_offset": 0});
    assert_eq!(bench.post("/api/send", send).await.json()["offset"], 3);
    let publications = bench.published.lock().unwrap();
    let attributes = publications[0].attributes.as_ref().unwrap();
    assert_eq!(
        (&attributes.tags, attributes.key.as_deref()),
        (&vec!["de".into(), "x".into()], Some("AAPL"))
    );
    let expires_ms = attributes.expires_ms.unwrap();
    let now_ms = crate::monitor::process::unix_ms();
    assert!((now_ms + 30_000..=now_ms + 60_500).contains(&expires_ms));
    let last = publications.last().unwrap();
    assert_eq!((&*last.topic, last.tags()), ("@keen", &["x".into()][..]));
    assert_eq!((publications[0].sender(), last.sender()), (None, None));
    assert!(publications[2].attributes.is_none(), "nothing beside, nothing allocated");
}

#[tokio::test]
async fn only_what_is_not_outdated_is_published() {
    let bench = bench(Mood::Willing);
    let after = async |position: Value| {
        publish(&bench, json!({"topic": "log:a", "data": 1, "if_offset": position})).await
    };
    assert_eq!(after(json!(0)).await.status, 200);
    assert_eq!(after(json!("0badcafe:1")).await.json()["offset"], 2);
    let newer = after(json!(1)).await;
    assert_eq!((newer.status, newer.code().as_str()), (409, "newer_message"));
    assert_eq!(newer.json()["error"]["last"], "0badcafe:2");
    let other = after(json!("5f3a91c2:2")).await;
    assert_eq!((other.status, other.code().as_str()), (409, "epoch_changed"));
    assert_eq!(other.json()["error"]["epoch"], "0badcafe");
    assert_eq!(bench.published.lock().unwrap().len(), 3, "the broker rejected the newer one");
}

#[tokio::test]
async fn invalid_options_are_rejected_and_nothing_is_published() {
    let bench = bench(Mood::Willing);
    for (option, code) in [
        (json!({"idempotency_key": ""}), "bad_idempotency_key"),
        (json!({"idempotency_key": "x".repeat(129)}), "bad_idempotency_key"),
        (json!({"idempotency_key": "x", "no_history": true}), "bad_request"),
        (json!({"idempotency_key": "x", "topic": "news"}), "no_history"),
        (json!({"if_offset": 1, "topic": "news"}), "no_history"),
        (json!({"if_offset": "5f3a91c2:1", "topic": "news"}), "no_history"),
        (json!({"if_offset": 1, "no_history": true}), "bad_request"),
        (json!({"if_offset": -1}), "bad_request"),
        (json!({"if_offset": "1"}), "bad_request"),
        (json!({"ttl_seconds": 0}), "bad_ttl"),
        (json!({"ttl_seconds": -1.5}), "bad_ttl"),
        (json!({"ttl_seconds": "1"}), "bad_request"),
        (json!({"tags": [""]}), "bad_tags"),
        (json!({"tags": ["x".repeat(65)]}), "bad_tags"),
        (json!({"tags": (0..17).map(|n| n.to_string()).collect::<Vec<_>>()}), "bad_tags"),
        (json!({"key": ""}), "bad_message_key"),
        (json!({"no_history": 1}), "bad_request"),
    ] {
        let mut body = json!({"topic": "log:a", "data": 1});
        body.as_object_mut().unwrap().extend(option.as_object().unwrap().clone());
        let reply = publish(&bench, body).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, code), "{option}");
    }
    let broadcast = json!({"data": 1, "tags": ["x"]});
    assert_eq!(bench.post("/api/broadcast", broadcast).await.status, 400);
    assert!(bench.published.lock().unwrap().is_empty());
    let fits = json!({"topic": "news", "data": 1, "ttl_seconds": 1, "key": "k", "tags": ["x"]});
    assert_eq!(publish(&bench, fits).await.status, 200, "without history they do no harm");
}

#[tokio::test]
async fn a_store_that_is_behind_or_broken_is_503() {
    let bench = bench(Mood::Willing);
    for (topic, code, words) in [
        ("log:full", "store_busy", "nothing was published"),
        ("log:broken", "store_failed", "the disk is full"),
    ] {
        let reply = publish(&bench, json!({"topic": topic, "data": 1})).await;
        assert_eq!((reply.status, reply.code().as_str()), (503, code));
        assert_eq!(reply.headers["retry-after"], "1");
        assert!(reply.text.contains(words), "{}", reply.text);
    }
}

/// No response denies a publish that may still happen, and a batch waits as long as one message.
#[tokio::test(start_paused = true)]
async fn a_silent_disk_leaves_it_open_whether_it_is_published() {
    let bench = bench(Mood::Willing);
    let began = tokio::time::Instant::now();
    let body = json!({"topic": "log:silent", "data": 1});
    let reply = publish(&bench, body.clone()).await;
    assert_eq!((reply.status, reply.code().as_str()), (504, "timeout"));
    assert!(reply.text.contains("idempotency_key"), "{}", reply.text);
    let commands = vec![json!({"publish": body}), json!({"broadcast": {"data": 1}})];
    let results = bench.post("/api/batch", json!({"commands": commands})).await.json();
    assert_eq!(results["results"][0]["error"]["code"], "timeout");
    assert_eq!(results["results"][1]["ok"]["members"], 4);
    assert!(began.elapsed().as_secs_f64() < 40.1, "{:?}", began.elapsed());
}

#[tokio::test]
async fn history_is_paged_in_both_directions() {
    let bench = bench(Mood::Willing);
    let empty = bench.get("/api/history/log:a").await.json();
    assert_eq!(
        empty,
        json!({"topic": "log:a", "epoch": "0badcafe", "messages": [], "more": false,
        "next": null, "last": "0badcafe:0", "complete": true})
    );
    for n in 1..=4 {
        publish(&bench, json!({"topic": "log:a", "data": {"n": n}, "tags": ["x"], "key": "k"}))
            .await;
        publish(&bench, json!({"topic": "log:b/c", "data": "AP8=", "encoding": "base64"})).await;
    }
    let page = bench.get("/api/history/log:a?limit=3").await.json();
    assert_eq!((offsets(&page), &page["more"]), (vec![1, 3, 5], &json!(true)));
    assert_eq!((&page["next"], &page["last"]), (&json!("0badcafe:5"), &json!("0badcafe:8")));
    let mut first = page["messages"][0].clone();
    let at = first.as_object_mut().unwrap().remove("published_at").unwrap();
    assert!(at.as_u64().unwrap() > 1_600_000_000_000);
    assert_eq!(
        first,
        json!({"id": "0badcafe:1", "offset": 1, "topic": "log:a", "event": "message",
        "data": {"n": 1}, "tags": ["x"], "key": "k"})
    );
    let page = bench.get("/api/history/log:a?limit=3&since=0badcafe:5").await.json();
    assert_eq!(
        (offsets(&page), &page["more"], &page["next"]),
        (vec![7], &json!(false), &Value::Null)
    );
    let page = bench.get("/api/history/log:a?limit=3&reverse=true").await.json();
    assert_eq!((offsets(&page), &page["next"]), (vec![7, 5, 3], &json!("0badcafe:3")));
    let page = bench.get("/api/history/log:a?reverse=true&since=0badcafe:3").await.json();
    assert_eq!(
        (offsets(&page), &page["more"], &page["complete"]),
        (vec![1], &json!(false), &json!(true))
    );
    let page = bench.get("/api/history/log:b%2Fc?limit=1").await.json();
    assert_eq!(
        (&page["topic"], &page["messages"][0]["encoding"]),
        (&json!("log:b/c"), &json!("base64"))
    );
}

#[tokio::test]
async fn a_page_says_that_messages_before_it_are_gone() {
    let bench = bench(Mood::Willing);
    for n in 1..=7 {
        publish(&bench, json!({"topic": "log:a", "data": n})).await;
    }
    let page = bench.get("/api/history/log:a?since=0badcafe:1").await.json();
    assert_eq!((offsets(&page), &page["complete"]), (vec![3, 4, 5, 6, 7], &json!(false)));
    let page = bench.get("/api/history/log:a?since=0badcafe:2").await.json();
    assert_eq!((offsets(&page), &page["complete"]), (vec![3, 4, 5, 6, 7], &json!(true)));
    for (path, status, code) in [
        ("log:a?since=5f3a91c2:1", 409, "epoch_changed"),
        ("log:a?since=1", 400, "bad_since"),
        ("log:a?limit=0", 400, "bad_limit"),
        ("log:a?limit=1001", 400, "bad_limit"),
        ("log:a?reverse=1", 400, "bad_query"),
        ("log:a?limit=1&limit=2", 400, "bad_query"),
        ("news", 404, "no_history"),
        ("%FF", 400, "bad_path"),
    ] {
        let reply = bench.get(&format!("/api/history/{path}")).await;
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{path}");
    }
    let reply = bench.get("/api/history/log:a?since=5f3a91c2:1").await.json();
    assert_eq!(reply["error"]["epoch"], "0badcafe");
    for (query, message) in [
        ("reverse=yes", "reverse must be true or false, not \"yes\""),
        ("limit=2&reverse=", "reverse must be true or false, not \"\""),
        ("limit=all&reverse=true", "limit must be a whole number, not \"all\""),
        ("limit=-1", "limit must be a whole number, not \"-1\""),
        (
            "limit=99999999999999999999999",
            "limit must be a whole number, not \"99999999999999999999999\"",
        ),
        (
            "since=0badcafe%3A1&before=1",
            "there is no parameter before: this call accepts since, limit, reverse",
        ),
        ("limit=1&limit=2", "duplicate field `limit`"),
    ] {
        let reply = bench.get(&format!("/api/history/log:a?{query}")).await.json();
        assert_eq!(reply["error"]["message"], message, "{query}");
    }
    let reply = bench.get("/api/top?by=x").await.json();
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("by can't be \"x\": unknown variant"), "{message}");
}

#[tokio::test]
async fn a_page_ends_at_4_mib() {
    let bench = bench(Mood::Willing);
    fill(&bench, 2 << 20, 5);
    let page = bench.get("/api/history/bulk:a").await.json();
    assert_eq!((offsets(&page), &page["next"]), (vec![1, 2], &json!("0badcafe:2")));
    let page = bench.get("/api/history/bulk:a?since=0badcafe:4").await.json();
    assert_eq!((offsets(&page), &page["next"]), (vec![5], &Value::Null));
}

/// Publishes messages of this many bytes to `bulk:a`, not through the API.
fn fill(bench: &Bench, bytes: usize, messages: usize) {
    for _ in 0..messages {
        let publication =
            model::Publication::new("bulk:a", model::Data::Text("x".repeat(bytes).into()));
        let publish = broker::Publish { publication, options: broker::Options::default() };
        bench.node.broker.submit(publish, None, Box::new(|result| _ = result.unwrap()));
    }
}

#[tokio::test]
async fn a_deleted_history_is_gone_for_a_client_that_comes_back() {
    let bench = bench(Mood::Willing);
    for n in 1..=3 {
        publish(&bench, json!({"topic": "log:a", "data": n})).await;
    }
    let deleted = bench.delete("/api/history/log:a").await;
    assert_eq!(deleted.json(), json!({"topic": "log:a", "deleted": true, "through": "0badcafe:3"}));
    publish(&bench, json!({"topic": "log:a", "data": 4})).await;
    let page = bench.get("/api/history/log:a?since=0badcafe:1").await.json();
    assert_eq!((offsets(&page), &page["complete"]), (vec![4], &json!(false)));
    let page = bench.get("/api/history/log:a?since=0badcafe:3").await.json();
    assert_eq!((offsets(&page), &page["complete"]), (vec![4], &json!(true)));
    let reply = bench.delete("/api/history/news").await;
    assert_eq!((reply.status, reply.code().as_str()), (404, "no_history"));
    let reply = bench.delete("/api/history").await;
    assert_eq!((reply.status, reply.code().as_str()), (405, "method_not_allowed"));
}

/// A store in a directory of its own, which ends with the test.
struct Disk(store::Store, PathBuf);

impl Disk {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("throng-api-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let (store, ..) = store::Store::open(store::Options {
            dir: dir.clone(),
            new_epoch: HISTORY_EPOCH.0,
            queue_messages_max: 1_000,
            queue_bytes_max: 64 << 20,
            cache_bytes_max: 1 << 20,
            verify_bytes_max: 1 << 30,
            idempotency_seconds_max: 300,
        })
        .unwrap();
        Disk(store, dir)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.0.close();
        let _ = std::fs::remove_dir_all(&self.1);
    }
}

#[tokio::test]
async fn what_memory_has_not_comes_from_the_disk() {
    let disk = Disk::new("pages");
    let before = stored(disk.0.clone(), 0);
    for n in 1..=3 {
        let reply = publish(&before, json!({"topic": "log:a", "data": n, "tags": ["x"]})).await;
        assert_eq!(reply.json(), json!({"id": format!("0badcafe:{n}"), "offset": n, "members": 4}));
    }
    // Another process: its memory is empty.
    let bench = stored(disk.0.clone(), 3);
    let page = bench.get("/api/history/log:a?limit=2").await.json();
    assert_eq!((offsets(&page), &page["next"]), (vec![1, 2], &json!("0badcafe:2")));
    assert_eq!((&page["last"], &page["complete"]), (&json!("0badcafe:3"), &json!(true)));
    assert_eq!(page["messages"][0]["tags"], json!(["x"]));
    assert!(page["messages"][0]["published_at"].as_u64().unwrap() > 1_600_000_000_000);
    let page = bench.get("/api/history/log:a?reverse=true&since=0badcafe:3").await.json();
    assert_eq!((offsets(&page), &page["complete"]), (vec![2, 1], &json!(true)));
    let deleted = bench.delete("/api/history/log:a").await;
    assert_eq!((deleted.status, &deleted.json()["through"]), (200, &json!("0badcafe:3")));
    let page = bench.get("/api/history/log:a?since=0badcafe:1").await.json();
    assert_eq!((offsets(&page), &page["complete"]), (vec![], &json!(false)));
    let nothing = bench.delete("/api/history/news").await;
    assert_eq!((nothing.status, nothing.code().as_str()), (404, "no_history"));
}

#[tokio::test]
async fn a_reply_before_the_disk_waits_for_no_members() {
    let disk = Disk::new("queued");
    let bench = stored(disk.0.clone(), 0);
    let reply = publish(&bench, json!({"topic": "bulk:a", "data": 1})).await;
    assert_eq!(reply.json(), json!({"id": "0badcafe:1", "offset": 1, "queued": true}));
    let live = json!({"topic": "bulk:a", "data": 1, "no_history": true});
    assert_eq!(publish(&bench, live).await.json()["members"], 4);
}

#[tokio::test]
async fn history_and_store_are_counted() {
    let disk = Disk::new("counted");
    let bench = stored(disk.0.clone(), 0);
    for _ in 0..2 {
        let body = json!({"topic": "log:a", "data": "x", "idempotency_key": "k"});
        assert_eq!(publish(&bench, body).await.status, 200);
    }
    let stats = bench.get("/api/stats").await.json();
    let history = &stats["history"];
    assert_eq!((&history["epoch"], &history["offset"]), (&json!("0badcafe"), &json!(1)));
    assert_eq!((&history["messages"], &history["idempotency_keys"]), (&json!(1), &json!(1)));
    assert_eq!((&history["published"], &history["repeated"]), (&json!(1), &json!(1)));
    let store = &stats["store"];
    assert_eq!((&store["failed"], &store["messages"]), (&Value::Null, &json!(1)));
    assert!(store["file_bytes"].as_u64().unwrap() > 0 && store["commits"].as_u64().unwrap() > 0);
    assert!(store["commit_ms_max"].as_f64().unwrap() >= store["commit_ms_mean"].as_f64().unwrap());
    let metrics = bench.get("/metrics").await.text;
    for line in [
        "throng_history_messages 1.0",
        "throng_history_topics 1.0",
        "throng_history_published_total 1.0",
        "throng_publishes_repeated_total 1.0",
        "throng_recoveries_total{result=\"lost\"} 0.0",
        "throng_store_queue_messages 0.0",
        "throng_store_failed 0.0",
        "throng_store_messages 1.0",
        "# UNIT throng_history_bytes bytes",
        "# TYPE throng_store_commit_seconds histogram",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line} in\n{metrics}");
    }
    assert!(metrics.contains("throng_store_commit_seconds_bucket{le=\"+Inf\"}"), "{metrics}");
    let none = super::fake::bench(Mood::Willing);
    let stats = none.get("/api/stats").await.json();
    for part in ["store", "history_database", "subscription_database"] {
        assert_eq!(stats.get(part), Some(&Value::Null), "{part}");
    }
    assert!(!none.get("/metrics").await.text.contains("throng_store_"));
}

#[tokio::test]
async fn what_is_too_old_is_swept_every_second() {
    let bench = bench(Mood::Willing);
    let sweeping = tokio::spawn(crate::thread::each_second(bench.node.clone()));
    for topic in ["brief", "log:a"] {
        publish(&bench, json!({"topic": topic, "data": 1})).await;
    }
    let messages = || bench.node.history().stats().messages;
    assert_eq!(messages(), 2);
    for _ in 0..600 {
        if messages() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(messages(), 1);
    sweeping.abort();
}
