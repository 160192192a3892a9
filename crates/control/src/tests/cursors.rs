//! Acknowledging on a user's behalf.

use serde_json::{Value, json};

use super::fake::{Mood, bench};

#[tokio::test]
async fn an_application_acknowledges_for_its_users() {
    let bench = bench(Mood::Willing);
    for user in ["keen", "keen"] {
        bench.post("/api/send", json!({"user": user, "data": 1})).await;
    }
    bench.post("/api/publish", json!({"topic": "job:1", "data": 1})).await;
    let own = json!({"user": "keen", "topic": "@keen", "acknowledged": null, "given_up": null});
    assert_eq!(bench.get("/api/cursors/keen").await.json(), own);
    let reply = bench.post("/api/ack", json!({"user": "keen", "id": "0badcafe:2"})).await;
    let own =
        json!({"user": "keen", "topic": "@keen", "acknowledged": "0badcafe:2", "given_up": null});
    assert_eq!((reply.status, reply.json()), (200, own.clone()));
    let back = bench.post("/api/ack", json!({"user": "keen", "id": "0badcafe:1"})).await;
    assert_eq!(back.json(), own, "it never goes back");
    assert_eq!(bench.get("/api/cursors/keen?topic=%40keen").await.json(), own);
    let job = json!({"user": "b/c", "topic": "job:1", "id": "0badcafe:3"});
    let job = bench.post("/api/ack", job).await.json();
    let want = json!({
        "user": "b/c", "topic": "job:1", "acknowledged": "0badcafe:3", "given_up": null
    });
    assert_eq!(job, want);
    assert_eq!(bench.get("/api/cursors/b%2Fc?topic=job:1").await.json(), job);
    let other = bench.get("/api/cursors/keen?topic=job:1").await.json();
    assert_eq!(other["acknowledged"], Value::Null, "to look makes no cursor");
    let again = bench.get("/api/cursors/keen?topic=job:1").await.json();
    assert_eq!(again["acknowledged"], Value::Null);
    let stats = bench.get("/api/stats").await.json();
    assert_eq!(
        (&stats["history"]["acknowledged"], &stats["history"]["cursors"]),
        (&json!(2), &json!(2))
    );
}

#[tokio::test]
async fn what_cannot_be_acknowledged_is_rejected() {
    let bench = bench(Mood::Willing);
    bench.post("/api/publish", json!({"topic": "job:1", "data": 1})).await;
    for (body, status, code) in [
        (json!({"user": "a", "topic": "job:1", "id": "5f3a91c2:1"}), 409, "epoch_changed"),
        (json!({"user": "a", "topic": "job:1", "id": "0badcafe:2"}), 400, "bad_id"),
        (json!({"user": "a", "topic": "job:1", "id": "1"}), 400, "bad_id"),
        (json!({"user": "a", "topic": "log:1", "id": "0badcafe:1"}), 400, "not_acknowledged"),
        (json!({"user": "a", "id": "0badcafe:1"}), 400, "not_acknowledged"),
        (json!({"user": "a", "topic": "@keen", "id": "0badcafe:1"}), 400, "bad_topic"),
        (json!({"user": "a", "topic": "*", "id": "0badcafe:1"}), 400, "bad_topic"),
        (json!({"user": "", "topic": "job:1", "id": "0badcafe:1"}), 400, "bad_user"),
        (json!({"user": "a", "topic": "job:1"}), 400, "bad_request"),
    ] {
        let reply = bench.post("/api/ack", &body).await;
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{body}");
        let epoch = &reply.json()["error"]["epoch"];
        assert_eq!(epoch == "0badcafe", status == 409, "{body}");
    }
    for (path, code) in [
        ("alice", "not_acknowledged"),
        ("keen?topic=log:1", "not_acknowledged"),
        ("alice?topic=%40keen", "bad_topic"),
        ("a%0Ab", "bad_user"),
        ("keen?user=x", "bad_query"),
    ] {
        let reply = bench.get(&format!("/api/cursors/{path}")).await;
        assert_eq!((reply.status, reply.code().as_str()), (400, code), "{path}");
    }
}
