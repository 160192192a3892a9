//! Users in a topic, over the API.

use presence::{
    Batch, Completion, Counts, Limits, List, NodeId, Presence, PresenceReply, Ref, Stats,
};
use serde_json::{Value, json};

use super::fake::{Mood, bench};

/// Publishes due notices, without receivers.
fn announce(presence: &dyn Presence, now_us: u64) {
    let mut batches = presence.take(now_us, 9);
    batches.iter_mut().for_each(|batch| batch.publish(&mut |_, _, _| true));
    presence.confirm(batches, now_us);
}

#[tokio::test]
async fn presence_lists_users_up_to_the_cap() {
    let bench = bench(Mood::Willing);
    let off = bench.get("/api/presence/news").await;
    assert_eq!((off.status, off.code().as_str()), (404, "no_presence"));
    let empty = bench.get("/api/presence/room%3A1").await.json();
    assert_eq!(empty, json!({"topic":"room:1","users":0,"connections":0,"presences":{}}));
    let presence = &*bench.node.shared.presence;
    for user in ["ann", "bob", "bob"] {
        presence.enter("room:1", user, "{\"at\":1}", 0);
    }
    announce(presence, 1);
    let two = bench.get("/api/presence/room%3A1").await.json();
    assert_eq!((&two["users"], &two["connections"]), (&json!(2), &json!(3)));
    assert_eq!(two["presences"]["bob"]["metas"].as_array().unwrap().len(), 2);
    assert_eq!(two["presences"]["ann"]["metas"][0]["at"], 1);
    for user in ["cid", "dan"] {
        presence.enter("room:1", user, "{}", 0);
    }
    announce(presence, 2);
    let many = bench.get("/api/presence/room%3A1").await.json();
    assert_eq!((&many["users"], &many["presences"]), (&json!(4), &Value::Null));
}

/// Presence whose lists another node has.
struct Remote {
    replies: bool,
}

impl Presence for Remote {
    fn list(
        &self,
        _: &str,
        _: Option<(&str, Ref)>,
        later: Completion<List>,
    ) -> PresenceReply<List> {
        if self.replies {
            let counts = Counts { users: 7, connections: 9, listed: false };
            std::thread::spawn(move || later(List { counts, users: None }));
        }
        PresenceReply::Later
    }

    fn enter(&self, _: &str, _: &str, _: &str, _: u64) -> Ref {
        unreachable!()
    }

    fn update(&self, _: &str, _: &str, _: Ref, _: &str, _: u64) -> Option<Ref> {
        unreachable!()
    }

    fn leave(&self, _: &str, _: &str, _: Ref, _: u64) {
        unreachable!()
    }

    fn take(&self, _: u64, _: usize) -> Vec<Batch> {
        unreachable!()
    }

    fn confirm(&self, _: Vec<Batch>, _: u64) {
        unreachable!()
    }

    fn connections(&self) -> usize {
        unreachable!()
    }

    fn expire(&self, _: NodeId, _: u64) {
        unreachable!()
    }

    fn set_limits(&self, _: Limits, _: u64) {
        unreachable!()
    }

    fn stats(&self) -> Stats {
        unreachable!()
    }
}

#[tokio::test]
async fn a_list_may_come_later_or_not_at_all() {
    let Ok(list) = crate::api::list_presence(&Remote { replies: true }, "room:1").await else {
        panic!("the answer came");
    };
    assert_eq!((list.counts.users, list.counts.connections), (7, 9));
    let gone = crate::api::list_presence(&Remote { replies: false }, "room:1").await;
    assert!(gone.is_err(), "nobody will answer");
}
