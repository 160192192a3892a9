//! Durable subscriptions, over the API.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::subscriptions::{Change, SubscriptionStore, Subscriptions};
use axum::http::Request;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::fake::{Bench, Mood, TestReply, bench, with_subscription_store, without_followers};

const PATH: &str = "/api/subscriptions";

async fn import(bench: &Bench, text: impl Into<Vec<u8>>) -> TestReply {
    let request = Request::post("/api/subscriptions/import").header("content-type", "text/csv");
    bench.call(request.body(text.into().into()).unwrap()).await
}

async fn topics(bench: &Bench, user: &str) -> Value {
    bench.get(&format!("{PATH}/{user}")).await.json()["topics"].take()
}

/// Called with the result of storing a change.
type OnStored = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Stores a change when a test calls back.
#[derive(Default)]
struct Store {
    is_full: bool,
    waiting: Mutex<Vec<(Change, OnStored)>>,
}

impl SubscriptionStore for Store {
    fn save(&self, change: Change, done: OnStored) -> Result<(), String> {
        if self.is_full {
            return Err("the queue is full".into());
        }
        self.waiting.lock().unwrap().push((change, done));
        Ok(())
    }
}

impl Store {
    async fn next(&self) -> (Change, OnStored) {
        loop {
            if let Some(first) = self.waiting.lock().unwrap().pop() {
                return first;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn a_user_is_subscribed_listed_and_forgotten() {
    let bench = bench(Mood::Willing);
    assert_eq!(
        bench.get("/api/subscriptions/alice").await.json(),
        json!({
            "user": "alice", "topics": []
        })
    );
    let body = json!({"user": "alice", "add": ["feed:eve", "feed:bob", "feed:bob"]});
    let reply = bench.post(PATH, body).await.json();
    let want = json!({"user": "alice", "added": 2, "removed": 0, "count": 2, "connections": 4});
    assert_eq!(reply, want);
    let body = json!({"user": "alice", "add": ["news"], "remove": ["feed:eve", "none"]});
    let reply = bench.post(PATH, body).await.json();
    let want = json!({"user": "alice", "added": 1, "removed": 1, "count": 2, "connections": 4});
    assert_eq!(reply, want);
    assert_eq!(topics(&bench, "alice").await, json!(["feed:bob", "news"]));
    let reply = bench.delete("/api/subscriptions/alice").await.json();
    let want = json!({"user": "alice", "added": 0, "removed": 2, "count": 0, "connections": 4});
    assert_eq!(reply, want);
    assert_eq!(topics(&bench, "alice").await, json!([]));
    let commands = bench.commands.lock().unwrap();
    let changes: Vec<_> = commands.iter().filter(|line| !line.contains(" topic ")).collect();
    let want = [
        "0 subscribe alice feed:bob",
        "0 subscribe alice feed:eve",
        "1 subscribe alice feed:bob",
        "1 subscribe alice feed:eve",
        "0 unsubscribe alice feed:eve",
        "0 subscribe alice news",
        "1 unsubscribe alice feed:eve",
        "1 subscribe alice news",
        "0 unsubscribe alice feed:bob",
        "0 unsubscribe alice news",
        "1 unsubscribe alice feed:bob",
        "1 unsubscribe alice news",
    ];
    assert_eq!(changes, want);
}

#[tokio::test]
async fn a_user_without_connections_is_sought_once() {
    let bench = bench(Mood::Willing);
    let body = json!({"user": "zoe", "add": ["a", "b"]});
    assert_eq!(bench.post(PATH, &body).await.json()["connections"], 0);
    assert_eq!(bench.post(PATH, &body).await.json()["added"], 0);
    assert_eq!(*bench.commands.lock().unwrap(), ["0 topic @zoe", "1 topic @zoe"]);
}

#[tokio::test]
async fn a_topics_subscribers_are_listed_in_pages_by_name() {
    let bench = bench(Mood::Willing);
    let path = "/api/topics/feed:eve/subscribers";
    let empty = json!({"topic": "feed:eve", "count": 0, "subscribers": [], "next": null});
    assert_eq!(bench.get(path).await.json(), empty);
    assert!(bench.commands.lock().unwrap().is_empty());
    import(&bench, "carl,feed:eve\nalice,feed:eve\nbob,feed:eve\nbob,news\ndora,news\n").await;
    let page = bench.get(&format!("{path}?limit=2")).await.json();
    let user = |user: &str, connected: bool| json!({"user": user, "connected": connected});
    let want = json!({"topic": "feed:eve", "count": 3, "next": "bob",
        "subscribers": [user("alice", true), user("bob", true)]});
    assert_eq!(page, want);
    let page = bench.get(&format!("{path}?limit=2&after=bob")).await.json();
    let want = json!({"topic": "feed:eve", "count": 3, "next": null,
        "subscribers": [user("carl", false)]});
    assert_eq!(page, want);
    bench.delete("/api/subscriptions/alice").await;
    bench.post(PATH, json!({"user": "bob", "remove": ["feed:eve"]})).await;
    let left = bench.get(path).await.json();
    assert_eq!((&left["count"], &left["subscribers"]), (&json!(1), &json!([user("carl", false)])));
    for limit in ["0", "10001", "x"] {
        assert_eq!(bench.get(&format!("{path}?limit={limit}")).await.status, 400, "{limit}");
    }
}

#[tokio::test]
async fn without_the_table_by_topic_the_reply_says_what_to_set() {
    let bench = without_followers(Mood::Willing);
    bench.post(PATH, json!({"user": "alice", "add": ["a"]})).await;
    let reply = bench.get("/api/topics/a/subscribers").await;
    assert_eq!((reply.status, reply.code().as_str()), (400, "not_by_topic"));
    assert!(reply.text.contains("set subscriptions.by_topic = true"), "{}", reply.text);
}

#[tokio::test]
async fn names_and_limits_are_checked() {
    let bench = bench(Mood::Willing);
    for (body, code) in [
        (json!({"user": "", "add": ["a"]}), "bad_user"),
        (json!({"user": "a", "add": ["@b"]}), "bad_topic"),
        (json!({"user": "a", "remove": ["*"]}), "bad_topic"),
        (json!({"add": ["a"]}), "bad_request"),
        (json!({"user": "a", "changes": []}), "bad_request"),
        (json!({"user": "a", "topics": ["a"]}), "bad_request"),
        (json!({"changes": vec![json!({}); 1001]}), "batch_too_long"),
    ] {
        let reply = bench.post(PATH, &body).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, code), "{body}");
    }
    for path in ["/api/subscriptions/a%0Ab", "/api/subscriptions/%FF"] {
        assert_eq!(bench.get(path).await.status, 400);
        assert_eq!(bench.delete(path).await.status, 400);
    }
    let body = json!({"user": "alice", "add": ["1", "2", "3", "4", "5", "6"]});
    let reply = bench.post(PATH, body).await;
    assert_eq!((reply.status, reply.code().as_str()), (409, "too_many_subscriptions"));
    assert!(reply.text.contains("would have 6 subscriptions; a user may have 5"));
    assert_eq!(bench.node.subscriptions.users(), 0);
}

#[tokio::test]
async fn many_changes_are_served_one_by_one() {
    let bench = bench(Mood::Willing);
    let reply = bench.post(
        PATH,
        json!({"changes": [
            {"user": "alice", "add": ["a"]},
            {"user": "alice", "add": ["@a"]},
            {"user": "bob", "add": ["a", "b"]},
            {"name": "carl"},
            {"user": "alice", "add": ["b"], "remove": ["a"]},
        ]}),
    );
    let reply = reply.await.json();
    let results = reply["results"].as_array().unwrap();
    assert_eq!(results.len(), 5);
    assert_eq!(results[0]["ok"]["connections"], 4);
    assert_eq!(results[1]["error"]["code"], "bad_topic");
    assert_eq!((&results[2]["ok"]["user"], &results[2]["ok"]["count"]), (&json!("bob"), &json!(2)));
    assert_eq!(results[3]["error"]["code"], "bad_request");
    assert_eq!((&results[4]["ok"]["added"], &results[4]["ok"]["removed"]), (&json!(1), &json!(1)));
    assert_eq!(topics(&bench, "alice").await, json!(["b"]));
    assert_eq!(bench.post(PATH, json!({"changes": []})).await.json(), json!({"results": []}));
}

#[tokio::test]
async fn a_file_is_imported_whole_or_not_at_all() {
    let bench = bench(Mood::Willing);
    let text = "user,topic\nalice,a\nalice,b\nbob,a\nalice,a\n";
    assert_eq!(import(&bench, text).await.json(), json!({"rows": 4, "added": 3}));
    assert_eq!(import(&bench, text).await.json(), json!({"rows": 4, "added": 0}));
    assert_eq!(import(&bench, "").await.json(), json!({"rows": 0, "added": 0}));
    assert_eq!(topics(&bench, "alice").await, json!(["a", "b"]));
    assert!(bench.commands.lock().unwrap().contains(&"1 subscribe alice b".to_string()));
    let reply = import(&bench, "carl,a\ncarl,b,c\n").await;
    assert_eq!((reply.status, reply.code().as_str()), (400, "bad_line"));
    assert!(reply.text.contains("line 2: it has more than two fields"), "{}", reply.text);
    let many: String = (0..6).map(|n| format!("dave,{n}\n")).collect();
    let reply = import(&bench, format!("carl,a\n{many}")).await;
    assert_eq!((reply.status, reply.code().as_str()), (409, "too_many_subscriptions"));
    assert!(reply.text.contains("line 2: "), "{}", reply.text);
    assert_eq!(bench.node.subscriptions.users(), 2);
    let request = Request::post("/api/subscriptions/import").header("content-type", "image/png");
    assert_eq!(bench.call(request.body("a,b".into()).unwrap()).await.status, 415);
    assert_eq!(import(&bench, vec![b'a'; 5000]).await.status, 413);
    // A user may have this name, too.
    bench.post(PATH, json!({"user": "import", "add": ["x"]})).await;
    assert_eq!(topics(&bench, "import").await, json!(["x"]));
    assert_eq!(bench.delete("/api/subscriptions/import").await.json()["removed"], 1);
}

#[tokio::test]
async fn a_change_is_made_after_it_is_stored() {
    let store = Arc::new(Store::default());
    let bench = with_subscription_store(Mood::Willing, store.clone());
    let add = |user: &str, topic: &str| json!({"user": user, "add": [topic]});
    let called = bench.post(PATH, add("alice", "a"));
    let watched = async {
        let (change, done) = store.next().await;
        assert_eq!((change.puts.len(), &change.names), (1, &vec![(0, "a".into())]));
        assert!(bench.node.subscriptions.of("alice").is_empty());
        assert!(bench.commands.lock().unwrap().is_empty());
        done(Ok(()));
    };
    let (reply, ()) = tokio::join!(called, watched);
    assert_eq!(reply.json()["added"], 1);
    assert_eq!(topics(&bench, "alice").await, json!(["a"]));
    // A change without an effect is not stored.
    assert_eq!(bench.post(PATH, add("alice", "a")).await.json()["added"], 0);
    let failed = bench.post(PATH, add("alice", "b"));
    let (reply, ()) = tokio::join!(failed, async {
        store.next().await.1(Err("the disk is full".into()));
    });
    assert_eq!((reply.status, reply.code().as_str()), (503, "store_failed"));
    assert!(reply.text.contains("the disk is full"));
    assert_eq!(topics(&bench, "alice").await, json!(["a"]));
    let lost = bench.delete("/api/subscriptions/alice");
    let (reply, ()) = tokio::join!(lost, async { drop(store.next().await) });
    assert_eq!((reply.status, reply.code().as_str()), (503, "going_down"));
    let full = with_subscription_store(
        Mood::Willing,
        Arc::new(Store { is_full: true, ..Store::default() }),
    );
    let reply = full.post(PATH, add("alice", "a")).await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "store_busy"));
    assert_eq!(reply.headers["retry-after"], "1");
    assert_eq!(full.node.subscriptions.users(), 0);
}

#[tokio::test]
async fn a_caller_who_goes_away_leaves_nothing_half_done() {
    let store = Arc::new(Store::default());
    let bench = with_subscription_store(Mood::Willing, store.clone());
    let called = bench.post(PATH, json!({"user": "alice", "add": ["a"]}));
    let (_, done) = tokio::select! {
        biased;
        _ = called => unreachable!(),
        waiting = store.next() => waiting,
    };
    done(Ok(()));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(topics(&bench, "alice").await, json!(["a"]));
    assert!(bench.commands.lock().unwrap().contains(&"1 subscribe alice a".to_string()));
}

#[tokio::test(start_paused = true)]
async fn silent_shards_get_the_commands_and_are_not_counted() {
    let bench = bench(Mood::Silent);
    let reply = bench.post(PATH, json!({"user": "alice", "add": ["a"]})).await.json();
    assert_eq!((&reply["added"], &reply["connections"]), (&json!(1), &Value::Null));
    assert_eq!(topics(&bench, "alice").await, json!(["a"]));
}

/// Changes the subscriptions of a few users concurrently, with a store that is slow and fails at times. At the end,
/// memory has what a restart would load from the store.
fn changes_at_once(seeds: &[(u8, u8, bool, bool)]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(Store::default());
        let bench = with_subscription_store(Mood::Willing, store.clone());
        let committed = Arc::new(Mutex::new(Vec::new()));
        let writer = tokio::spawn({
            let (committed, fails) = (committed.clone(), seeds.iter().map(|seed| seed.3));
            let mut fails = fails.collect::<Vec<_>>().into_iter().cycle();
            async move {
                loop {
                    tokio::task::yield_now().await;
                    let waiting = std::mem::take(&mut *store.waiting.lock().unwrap());
                    for (change, done) in waiting {
                        if fails.next() == Some(true) {
                            done(Err("the disk is full".into()));
                        } else {
                            committed.lock().unwrap().push(change);
                            done(Ok(()));
                        }
                    }
                }
            }
        });
        let calls = seeds.iter().map(|(user, topic, is_add, _)| {
            let (user, topic) = (format!("u{}", user % 3), format!("t{}", topic % 6));
            let list = if *is_add { "add" } else { "remove" };
            let body = match topic.as_str() {
                "t5" => json!({"changes": [{"user": user, "add": ["t1"]}, {"user": "u1", list: ["t2"]}]}),
                _ => json!({"user": user, list: [topic]}),
            };
            bench.post(PATH, body)
        });
        futures_util::future::join_all(calls).await;
        writer.abort();
        let again = Subscriptions::default();
        for change in committed.lock().unwrap().iter() {
            for (number, name) in &change.names {
                again.load_name(*number, name).unwrap();
            }
            for (user, packed) in &change.puts {
                again.load_row(user, packed).unwrap();
            }
        }
        for user in ["u0", "u1", "u2"] {
            assert_eq!(again.of(user), bench.node.subscriptions.of(user), "{user}");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn memory_and_store_agree(
        seeds in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<bool>(), any::<bool>()), 1..30),
    ) {
        changes_at_once(&seeds);
    }
}

#[tokio::test]
async fn all_users_together_have_so_many() {
    let bench = bench(Mood::Willing);
    let add = |user: &str, count: usize| {
        let topics: Vec<_> = (0..count).map(|at| format!("t{at}")).collect();
        json!({"user": user, "add": topics})
    };
    assert_eq!(bench.post(PATH, add("alice", 5)).await.status, 200);
    let reply = bench.post(PATH, add("bob", 4)).await;
    assert_eq!((reply.status, reply.code().as_str()), (409, "subscriptions_full"));
    assert_eq!(bench.node.subscriptions.edges(), 5);
    assert_eq!(bench.post(PATH, add("bob", 3)).await.status, 200);
    // A change that removes as much needs no capacity, and neither do topics that the user has.
    let change = json!({"user": "bob", "add": ["x", "t1"], "remove": ["t0"]});
    assert_eq!(bench.post(PATH, change).await.status, 200);
    assert_eq!(bench.node.subscriptions.edges(), 8);
}
