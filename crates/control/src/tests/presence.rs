//! Who is in a topic, over the API.

use serde_json::{Value, json};

use super::fake::{Mood, bench};

#[tokio::test]
async fn presence_lists_users_up_to_the_cap() {
    let bench = bench(Mood::Willing);
    let off = bench.get("/api/presence/news").await;
    assert_eq!((off.status, off.code().as_str()), (404, "no_presence"));
    let empty = bench.get("/api/presence/room%3A1").await.json();
    assert_eq!(empty, json!({"topic":"room:1","users":0,"connections":0,"presences":{}}));
    let registry = &bench.node.shared.presence;
    for user in ["ann", "bob", "bob"] {
        registry.lock().unwrap().enter("room:1", user, "{\"at\":1}", 0);
    }
    registry.lock().unwrap().flush(1, &mut |_, _, _| true);
    let two = bench.get("/api/presence/room%3A1").await.json();
    assert_eq!((&two["users"], &two["connections"]), (&json!(2), &json!(3)));
    assert_eq!(two["presences"]["bob"]["metas"].as_array().unwrap().len(), 2);
    assert_eq!(two["presences"]["ann"]["metas"][0]["at"], 1);
    for user in ["cid", "dan"] {
        registry.lock().unwrap().enter("room:1", user, "{}", 0);
    }
    registry.lock().unwrap().flush(2, &mut |_, _, _| true);
    let many = bench.get("/api/presence/room%3A1").await.json();
    assert_eq!((&many["users"], &many["presences"]), (&json!(4), &Value::Null));
}
