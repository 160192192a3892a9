//! MQTT sessions and retained messages, over the API.

use std::sync::Arc;

use model::{ConnectionId, NodeId, Qos};
use serde_json::{Value, json};
use sessions::{Claim, ClaimOutcome, Ended, LocalRetained, Now, Session, Will};

use super::fake::{Mood, bench, with_meanwhile, with_retained};

const PATH: &str = "/api/mqtt/sessions";

fn id(shard: u16) -> ConnectionId {
    ConnectionId { node: NodeId(9), shard, slot: 12, serial: 345 }
}

/// Connects a client of this key, and disconnects it.
fn leave(shared: &shard::Shared, key: &str) {
    let sessions = &shared.mqtt_sessions;
    let claim = Claim { key, by: id(0), clean: false };
    assert_eq!(sessions.claim(claim), ClaimOutcome::New { will: None });
    let session = Session { seconds: 60, position: 5, ..Session::default() };
    let publication = model::Publication::new("gone", model::Data::Text(key.into()));
    let will =
        Some(Will { publication, delay_s: 9, expiry_s: Some(60), author: Default::default() });
    let _ = sessions.release(key, id(0), Ended { session: Some(session), will }, Now::at(1_000));
}

fn clients(page: &Value) -> Vec<String> {
    let one = |it: &Value| {
        let owner = it["owner"].as_str().map(|owner| format!(" of {owner}")).unwrap_or_default();
        format!("{}{owner}", it["client"].as_str().unwrap())
    };
    page["sessions"].as_array().unwrap().iter().map(one).collect()
}

#[tokio::test]
async fn sessions_of_connected_clients_and_of_those_away_are_one_list_in_pages() {
    let bench = bench(Mood::Willing);
    for key in ["c", "x", "bob\0phone"] {
        leave(&bench.node.shared, key);
    }
    let page = bench.get(&format!("{PATH}?limit=3")).await.json();
    assert_eq!(
        (clients(&page), &page["next"]),
        (vec!["b".into(), "c".into(), "phone of al".into()], &json!("phone\tal"))
    );
    let page = bench.get(&format!("{PATH}?limit=3&after=phone%09al")).await.json();
    assert_eq!(
        (clients(&page), &page["next"]),
        (vec!["phone of bob".into(), "x".into(), "y".into()], &json!("y"))
    );
    let page = bench.get(&format!("{PATH}?limit=3&after=y")).await.json();
    assert_eq!((clients(&page), &page["next"]), (vec!["z".into()], &Value::Null));
    for (query, want) in [
        ("prefix=ph", vec!["phone of al", "phone of bob"]),
        ("connected=true", vec!["b", "phone of al", "y", "z"]),
        ("connected=false", vec!["c", "phone of bob", "x"]),
        ("connected=false&prefix=x", vec!["x"]),
    ] {
        assert_eq!(clients(&bench.get(&format!("{PATH}?{query}")).await.json()), want, "{query}");
    }
    let commands = std::mem::take(&mut *bench.commands.lock().unwrap());
    assert!(commands.contains(&"1 clients \"\" Some(\"phone\\tal\") 4".into()), "{commands:?}");
    for query in ["limit=0", "limit=1001", "connected=x", "user=al"] {
        let reply = bench.get(&format!("{PATH}?{query}")).await;
        assert!(reply.status == 400 && reply.code().starts_with("bad_"), "{query}");
    }
}

/// Its shard no longer has the client, and the registry did not have it before.
#[tokio::test]
async fn a_client_that_goes_while_sessions_are_listed_is_listed() {
    let bench = with_meanwhile(|shared| leave(shared, "c"));
    assert!(clients(&bench.get(PATH).await.json()).contains(&"c".into()));
}

#[tokio::test]
async fn a_session_is_described_connected_or_away() {
    let bench = bench(Mood::Willing);
    leave(&bench.node.shared, "c");
    let _ = bench.node.shared.mqtt_sessions.claim(Claim { key: "b", by: id(1), clean: true });
    let mut found = bench.get(&format!("{PATH}/b")).await.json();
    assert!(found["since"].take().as_u64() > Some(1_000_000_000));
    let filter = json!({"filter": "a/+", "group": "g", "qos": 1, "no_local": true,
        "retain_as_published": false, "id": 7});
    let connection = json!({"id": "00000009-1-12-345", "version": "5.0", "address": "10.0.0.1:5000",
        "users": ["alice"], "keep_alive_seconds": 30, "outbox_bytes": 7});
    let want = json!({"client": "b", "owner": null, "connected": true, "since": null, "expires_at": null,
        "expiry_seconds": 60, "subscriptions": 1, "in_flight": 2, "waiting": 3, "position": null,
        "connection": connection, "filters": [filter]});
    assert_eq!(found, want);
    let want = json!({"client": "c", "owner": null, "connected": false, "since": 1_000,
        "expires_at": 1_060, "expiry_seconds": 60, "subscriptions": 0, "in_flight": 0, "waiting": 0,
        "position": "0badcafe:5", "connection": null, "filters": []});
    assert_eq!(bench.get(&format!("{PATH}/c")).await.json(), want);
    for path in ["never", "c?owner=al"] {
        let reply = bench.get(&format!("{PATH}/{path}")).await;
        assert_eq!((reply.status, reply.code().as_str()), (404, "no_mqtt_session"), "{path}");
    }
}

#[tokio::test]
async fn a_session_is_ended_connected_or_away() {
    let bench = bench(Mood::Willing);
    leave(&bench.node.shared, "bob\0phone");
    let sessions = &bench.node.shared.mqtt_sessions;
    let _ = sessions.claim(Claim { key: "b", by: id(1), clean: true });
    // The shard has another client in the slot.
    let _ = sessions.claim(Claim { key: "other", by: id(0), clean: true });
    let reply = bench.delete(&format!("{PATH}/b")).await.json();
    let want = json!({"client": "b", "owner": null, "ended": true, "disconnected": true});
    assert_eq!(reply, want);
    let reply = bench.delete(&format!("{PATH}/phone?owner=bob")).await.json();
    let want = json!({"client": "phone", "owner": "bob", "ended": true, "disconnected": false});
    assert_eq!(reply, want);
    let wills =
        bench.published.lock().unwrap().iter().map(|it| it.topic.to_string()).collect::<Vec<_>>();
    assert_eq!(wills, ["gone"]);
    for path in ["phone?owner=bob", "phone", "other"] {
        let reply = bench.delete(&format!("{PATH}/{path}")).await;
        assert_eq!((reply.status, reply.code().as_str()), (404, "no_mqtt_session"), "{path}");
    }
    let commands = bench.commands.lock().unwrap();
    assert_eq!(*commands, ["1 end 12 b", "0 end 12 other", "0 end 12 other", "0 end 12 other"]);
}

#[tokio::test(start_paused = true)]
async fn shards_that_do_not_reply_are_no_empty_list() {
    for (mood, code) in [(Mood::Ended, "going_down"), (Mood::Silent, "no_answer")] {
        let bench = bench(mood);
        let reply = bench.get(&format!("{PATH}?connected=true")).await;
        assert_eq!((reply.status, reply.code().as_str()), (503, code));
    }
}

#[tokio::test]
async fn retained_messages_are_listed_shown_and_deleted() {
    let retained = Arc::new(LocalRetained::new(None));
    let bench = with_retained(Mood::Willing, retained.clone());
    for (at, topic) in ["a/b", "a/c", "b", "@al", "$SYS/broker/uptime"].into_iter().enumerate() {
        let publication = model::Publication {
            qos: Qos::AtLeastOnce,
            attributes: Some(Box::new(model::Attributes {
                is_own: topic.starts_with("$SYS/"),
                ..Default::default()
            })),
            ..model::Publication::new(topic, model::Data::Text("hello".into()))
        };
        let id = model::Position { epoch: model::Epoch(1), offset: at as u64 };
        let message = model::Message { at_ms: 7_000, ..model::Message::new(publication, id, 0, 0) };
        retained.retain(&Arc::new(message.into()));
    }
    let path = "/api/mqtt/retained";
    let topics = |page: &Value| {
        let all = page["retained"].as_array().unwrap().iter();
        all.map(|it| it["topic"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let page = bench.get(&format!("{path}?limit=2")).await.json();
    assert_eq!((topics(&page), &page["next"]), (vec!["@al".into(), "a/b".into()], &json!("a/b")));
    let want =
        json!({"topic": "a/b", "bytes": 5, "qos": 1, "published_at": 7_000, "expires_at": null});
    assert_eq!(page["retained"][1], want);
    let page = bench.get(&format!("{path}?limit=2&after=a/b")).await.json();
    assert_eq!((topics(&page), &page["next"]), (vec!["a/c".into(), "b".into()], &Value::Null));
    let page = bench.get(&format!("{path}?filter=a/%2B")).await.json();
    assert_eq!(topics(&page), ["a/b", "a/c"]);
    assert_eq!(topics(&bench.get(&format!("{path}?filter=$SYS/%23")).await.json()).len(), 1);
    for filter in ["a/%23/b", "", "$share/g/a"] {
        let reply = bench.get(&format!("{path}?filter={filter}")).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, "bad_filter"), "{filter}");
    }

    let one = bench.get(&format!("{path}/a%2Fb")).await.json();
    let want = json!({"id": "00000001:0", "offset": 0, "topic": "a/b", "event": "message",
        "data": "hello", "published_at": 7_000, "bytes": 5, "qos": 1, "expires_at": null});
    assert_eq!(one, want);
    let want = json!({"topic": "a/b", "deleted": true});
    assert_eq!(bench.delete(&format!("{path}/a%2Fb")).await.json(), want);
    for reply in
        [bench.get(&format!("{path}/a%2Fb")).await, bench.delete(&format!("{path}/a%2Fb")).await]
    {
        assert_eq!((reply.status, reply.code().as_str()), (404, "no_retained"));
    }
    let stats = bench.get("/api/stats").await.json();
    assert_eq!(
        (&stats["mqtt"]["retained"], &stats["mqtt"]["sessions_away"]),
        (&json!(3), &json!(0))
    );
}
