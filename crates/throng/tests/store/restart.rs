//! Orderly restarts, changes of limits at run time, and the start with a large store.

use std::time::Duration;

use serde_json::{Value, json};

use crate::store::folder::{Caller, Folder, end};
use crate::support::{Server, Stream, header};

const TOPICS: &str = r#"
[timeouts]
drain_seconds = 0
[inbox]
enabled = true
[[topics]]
pattern = "jobs"
history_messages_max = 1000
acknowledge = true
[[topics]]
pattern = "state"
history_messages_max = 1000
compact = true
[[topics]]
pattern = "*:*"
history_messages_max = 1000
"#;

fn ok(server: &Server, method: &str, target: &str, body: Option<Value>) -> Value {
    let (status, reply) = server.api(method, target, body);
    assert_eq!(status, 200, "{method} {target}: {reply}");
    reply
}

fn id(reply: &Value) -> String {
    reply["id"].as_str().unwrap().into()
}

#[test]
fn what_a_rule_of_before_left_can_be_deleted_once_and_what_never_was_not_at_all() {
    let folder = Folder::new("no-rule", TOPICS);
    let server = folder.serve();
    server.post("/api/publish", json!({"topic": "n:a", "data": 1, "idempotency_key": "k"}));
    server.until("it is on disk", |server| {
        ok(server, "GET", "/api/history/n:a", None)["messages"].as_array().unwrap().len() == 1
    });
    assert_eq!(end(server), Some(0));
    folder.configure("[timeouts]\ndrain_seconds = 0\n");
    let server = folder.serve();
    let gone = |method: &str, topic: &str| {
        let (status, reply) = server.api(method, &format!("/api/history/{topic}"), None);
        assert_eq!((status, &reply["error"]["code"]), (404, &json!("no_history")), "{reply}");
    };
    gone("DELETE", "nope");
    gone("GET", "n:a");
    assert_eq!(ok(&server, "DELETE", "/api/history/n:a", None)["deleted"], true);
    gone("DELETE", "n:a");
}

#[test]
fn an_orderly_restart_loses_nothing() {
    let folder = Folder::new("restart", TOPICS);
    let server = folder.serve();
    let mut ids: Vec<String> = Vec::new();
    for number in 0..10 {
        let body = json!({"topic": "n:a", "data": format!("{number}"), "tags": ["t"],
            "event": "tick", "idempotency_key": format!("key-{number}")});
        ids.push(id(&server.post("/api/publish", body)));
    }
    let job = id(&server.publish("jobs", "first".into()));
    server.publish("jobs", "second".into());
    // Its publisher did not wait for the disk. No client sees the message before it is on disk.
    server.until("the jobs are there", |server| {
        ok(server, "GET", "/api/history/jobs", None)["messages"].as_array().unwrap().len() == 2
    });
    server.post("/api/ack", json!({"user": "alice", "topic": "jobs", "id": job}));
    let waits = server.post("/api/send", json!({"user": "alice", "data": "while you were away"}));
    for value in ["old", "new"] {
        server.post("/api/publish", json!({"topic": "state", "data": value, "key": "k"}));
    }
    let follows = json!({"user": "alice", "add": ["n:a", "n:b"]});
    assert_eq!(server.post("/api/subscriptions", follows)["count"], 2);
    let history = ok(&server, "GET", "/api/history/n:a", None);
    let cursor = ok(&server, "GET", "/api/cursors/alice?topic=jobs", None);
    let subscriptions = ok(&server, "GET", "/api/subscriptions/alice", None);
    assert_eq!(cursor["acknowledged"], *job);

    assert_eq!(end(server), Some(0));
    let server = folder.serve();
    let same = |target: &str, before: &Value| {
        let mut after = ok(&server, "GET", target, None);
        if !before["last"].is_null() {
            after["last"] = before["last"].clone();
        }
        assert_eq!(&after, before, "{target}");
    };
    same("/api/history/n:a", &history);
    same("/api/cursors/alice?topic=jobs", &cursor);
    assert_eq!(ok(&server, "GET", "/api/subscriptions/alice", None), subscriptions);
    let mut caller = Caller::new(server.admin).unwrap();
    let data = |topic: &str, caller: &mut Caller| -> Vec<String> {
        caller.history(topic, None, 100).into_iter().map(|message| message.data).collect()
    };
    assert_eq!(data("jobs", &mut caller), ["first", "second"]);
    assert_eq!(data("state", &mut caller), ["new"]);
    // The server knows the keys, so it publishes no message twice.
    for (number, id) in ids.iter().enumerate() {
        let body =
            json!({"topic": "n:a", "data": "again", "idempotency_key": format!("key-{number}")});
        let again = server.post("/api/publish", body);
        assert_eq!((&again["id"], &again["repeated"]), (&json!(id), &json!(true)));
    }
    // The offsets continue.
    let next = id(&server.publish("n:a", "next".into()));
    let offset = |id: &str| id.split_once(':').unwrap().1.parse::<u64>().unwrap();
    server.until("it is there", |_| data("n:a", &mut caller).last().unwrap() == "next");
    assert_eq!(next.split(':').next(), ids[0].split(':').next());
    assert!(offset(&next) > offset(&id(&waits)));
    // Alice enters her topics, and gets the messages that waited and the jobs that she has not acknowledged.
    let mut stream = server.listen("/sse?user=alice&topic=jobs");
    let got: Vec<String> = [stream.data(), stream.data()].into();
    assert!(got.contains(&"second".into()), "{got:?}");
    assert!(got.contains(&"while you were away".into()), "{got:?}");
    server.until_members("n:b", 1);
    server.publish("n:b", "followed".into());
    assert_eq!(stream.data(), "followed");
}

#[test]
fn clients_recover_after_a_restart_on_every_transport() {
    let folder = Folder::new("back", TOPICS);
    let server = folder.serve();
    let first = id(&server.publish("n:a", "1".into()));
    server.publish("n:a", "2".into());
    server.publish("n:a", "3".into());
    assert_eq!(end(server), Some(0));
    let server = folder.serve();
    let (status, poll) = server.get(&format!("/poll?topic=n:a&since={first}&timeout=0"));
    assert_eq!((status, &poll["recovered"]), (200, &json!(true)), "{poll}");
    let data = |messages: &Value| -> Vec<String> {
        let messages = messages.as_array().unwrap().iter();
        messages.map(|message| message["data"].as_str().unwrap().into()).collect()
    };
    assert_eq!(data(&poll["messages"]), ["2", "3"]);
    let mut sse = Stream::new(server.connect());
    sse.send(&format!("GET /sse?topic=n:a HTTP/1.1\r\nHost: t\r\nLast-Event-ID: {first}\r\n\r\n"));
    assert!(header(&sse.head(), "content-type").is_some());
    assert!(sse.data().contains("\"recovered\":true"));
    assert_eq!([sse.data(), sse.data()], ["2", "3"]);
}

/// A client may have received some topics further than others. It gets no message twice, even if the server must read
/// the missing ones from disk.
#[test]
fn a_token_with_several_positions_is_valid_after_a_restart() {
    let folder = Folder::new("gap", TOPICS);
    let server = folder.serve();
    let publish = |topic: &str, data: &str| id(&server.publish(topic, data.into()));
    let offset = |id: &str| id.split_once(':').unwrap().1.to_string();
    let has = publish("n:a", "a1");
    publish("n:a", "a2");
    publish("n:b", "b1");
    let through = publish("n:b", "b2");
    publish("n:a", "a3");
    let mark = model::resume::mark("n:a");
    let token = format!("{has}/{}-{mark:08x}.{}", offset(&through), offset(&has));
    let missed = |server: &Server| -> Vec<Value> {
        let target = format!("/poll?topic=n:a&topic=n:b&since={token}&timeout=0");
        let (_, poll) = server.get(&target);
        assert_eq!(poll["recovered"], true, "{poll}");
        let messages = poll["messages"].as_array().unwrap().iter();
        messages.map(|message| message["data"].clone()).collect()
    };
    server.until("all is written", |server| {
        let page = ok(server, "GET", "/api/history/n:a", None);
        page["messages"].as_array().unwrap().len() == 3
    });
    assert_eq!(missed(&server), ["a2", "a3"]);
    assert_eq!(end(server), Some(0));
    assert_eq!(missed(&folder.serve()), ["a2", "a3"]);
}

#[test]
fn a_reload_changes_the_history_limits() {
    let rule = |messages: u64| {
        format!("[[topics]]\npattern = \"n:*\"\nhistory_messages_max = {messages}\n")
    };
    let folder = Folder::new("reload", &rule(1_000));
    let server = folder.serve();
    (0..200).for_each(|number| drop(server.publish("n:a", format!("{number}").into())));
    let mut caller = Caller::new(server.admin).unwrap();
    let mut stored = |publish: &str| {
        server.publish("n:a", publish.into());
        caller.history("n:a", None, 1_000).len()
    };
    // A message to a topic that is not durable is readable once it is on disk.
    server.until("all is written", |_| stored("one more") >= 201);
    folder.configure(&rule(20));
    server.signal("-HUP");
    server.until("the new limit holds", |_| (20..=22).contains(&stored("less")));
    folder.configure(&rule(0));
    server.signal("-HUP");
    server.until("there is no history", |server| {
        server.api("GET", "/api/history/n:a", None).0 == 404
    });
    folder.configure(&rule(1_000));
    server.signal("-HUP");
    server.until("there is a history again", |server| {
        server.api("GET", "/api/history/n:a", None).0 == 200
    });
}

/// The number of messages in the store, and of their topics.
const MANY: usize = if cfg!(debug_assertions) { 20_000 } else { 300_000 };
const TOPICS_MANY: usize = 100;

/// Publishes all messages. Repeats those that were rejected because too many wait for the disk.
fn publish_all(mut commands: Vec<Value>, caller: &mut Caller) {
    while !commands.is_empty() {
        let reply = caller.post("/api/batch", &json!({"commands": commands})).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        let mut results = reply.body["results"].as_array().unwrap().iter();
        commands.retain(|_| {
            let error = &results.next().unwrap()["error"];
            assert!(error.is_null() || error["code"] == "store_busy", "{error}");
            !error.is_null()
        });
        if !commands.is_empty() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_large_store_opens_after_an_end_and_after_a_kill() {
    let rule = "[[topics]]\npattern = \"n:*\"\nhistory_messages_max = 10000\n[timeouts]\n\
                drain_seconds = 0\n";
    let folder = Folder::new("large", rule);
    let server = folder.serve();
    let mut caller = Caller::new(server.admin).unwrap();
    for part in 0..MANY / 1_000 {
        let command = |number: usize| {
            let topic = format!("n:{}", number % TOPICS_MANY);
            let data = format!("{} {}", part * 1_000 + number, "x".repeat(100));
            json!({"publish": {"topic": topic, "data": data}})
        };
        publish_all((0..1_000).map(command).collect(), &mut caller);
    }
    assert_eq!(end(server), Some(0));
    for _ in 0..2 {
        let server = folder.serve();
        let mut caller = Caller::new(server.admin).unwrap();
        let each = MANY / TOPICS_MANY;
        // The publisher of this message does not wait for the disk.
        assert!((each..=each + 1).contains(&caller.history("n:7", None, 1_000).len()));
        server.publish("n:7", "one more".into());
        // After the kill, the next start finds a file that was not closed.
        drop(server);
    }
}
