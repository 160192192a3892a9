//! The API of any node covers the whole cluster.

use serde_json::{Value, json};

use super::support::*;
use super::{stream, until_end};
use crate::support::*;

/// Calls the API at a node, and checks that all nodes have replied. Returns the reply without its list of missing
/// nodes.
fn whole(node: &Server, method: &str, target: &str, body: Option<Value>) -> Value {
    let (status, mut reply) = node.api(method, target, body);
    assert_eq!(status, 200, "{target}: {reply}");
    let missing = reply.as_object_mut().unwrap().remove("missing");
    assert_eq!(missing, Some(json!([])), "{target}: {reply}");
    reply
}

#[test]
fn members_users_and_figures_are_those_of_all_nodes() {
    let nats = Nats::start();
    let [a, b, c] = nats.nodes(&[]);
    let _open: Vec<Stream> = [(&a, "al"), (&b, "al"), (&b, "bo"), (&c, "cy")]
        .map(|(node, user)| stream(node, &format!("topic=news&topic=t:{user}&user={user}")))
        .into();
    for node in [&a, &b, &c] {
        let topic = whole(node, "GET", "/api/topics/news", None);
        assert_eq!(topic, json!({"topic": "news", "members": 4}));
        let members = whole(node, "GET", "/api/topics/news/members?limit=3", None);
        assert_eq!(
            (&members["members"], members["connections"].as_array().unwrap().len()),
            (&json!(4), 3)
        );
        let al = whole(node, "GET", "/api/users/al", None);
        assert_eq!((&al["count"], al["connections"].as_array().unwrap().len()), (&json!(2), 2));
        let topic = |name: &str, members: u64| json!({"topic": name, "members": members});
        let page = whole(node, "GET", "/api/topics?limit=2", None);
        assert_eq!(page, json!({"topics": [topic("news", 4), topic("t:al", 2)], "next": "t:al"}));
        let page = whole(node, "GET", "/api/topics?limit=2&after=t%3Aal", None);
        assert_eq!(page, json!({"topics": [topic("t:bo", 1), topic("t:cy", 1)], "next": null}));
        let stats = whole(node, "GET", "/api/stats", None);
        assert_eq!(stats["connections_by_transport"]["stream"], 4);
        assert_eq!(stats["connections_by_shard"].as_array().unwrap().len(), 6);
    }
    // A call may select one node by its name, by its id, or as `self`.
    let id = state(&b)["node"]["id"].as_str().unwrap().to_string();
    for (node, name) in [(&a, "b"), (&a, &*id), (&b, "self"), (&b, "b"), (&c, "b")] {
        let (_, topic) = node.api("GET", &format!("/api/topics/news?node={name}"), None);
        assert_eq!(topic, json!({"topic": "news", "members": 2}), "{name}");
        let target = format!("/api/topics/news/members?node={name}&limit=1");
        let (_, members) = node.api("GET", &target, None);
        assert_eq!(members["connections"].as_array().unwrap().len(), 1, "{members}");
        let (_, stats) = node.api("GET", &format!("/api/stats?node={name}"), None);
        assert_eq!(stats["connections_by_shard"].as_array().unwrap().len(), 2);
    }
    let (status, error) = a.api("GET", "/api/stats?node=x", None);
    assert_eq!((status, &error["error"]["code"]), (404, &json!("no_node")), "{error}");
    let (status, error) = a.api("GET", "/api/topics?node=b&limit=0", None);
    assert_eq!((status, &error["error"]["code"]), (400, &json!("bad_limit")), "{error}");
}

#[test]
fn users_are_subscribed_and_disconnected_at_all_nodes() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    let mut als = [stream(&a, "user=al"), stream(&b, "user=al")];
    let mut bo = stream(&b, "user=bo");
    let membership = json!({"user": "al", "topic": "late"});
    let subscribed = whole(&a, "POST", "/api/subscribe", Some(membership.clone()));
    assert_eq!(subscribed, json!({"connections": 2}));
    b.publish("late", json!("end"));
    als.iter_mut().for_each(|al| assert!(until_end(al).is_empty()));
    let subscribed = whole(&b, "POST", "/api/unsubscribe", Some(membership));
    assert_eq!(subscribed, json!({"connections": 2}));
    // A connection's id names its node. Any node passes the call on to that node.
    let bos = whole(&a, "GET", "/api/users/bo", None)["connections"][0]["id"].clone();
    let login = json!({"connection": bos, "user": "robert"});
    let (status, reply) = a.api("POST", "/api/login", Some(login));
    assert_eq!((status, reply), (200, json!({"user": "robert", "users": 2, "already": false})));
    a.post("/api/send", json!({"user": "robert", "data": "end"}));
    assert!(until_end(&mut bo).is_empty());
    let (status, error) = a.api("POST", "/api/subscribe", Some(json!({"user": ""})));
    assert_eq!(status, 400, "{error}");
    let disconnected = whole(&a, "POST", "/api/disconnect", Some(json!({"user": "al"})));
    assert_eq!(disconnected, json!({"disconnected": 2}));
    als.iter_mut().for_each(|al| drop(al.rest()));
    let (status, reply) = a.api("POST", "/api/disconnect", Some(json!({"connection": bos})));
    assert_eq!((status, reply), (200, json!({"disconnected": 1})));
    bo.rest();
}

#[test]
fn commands_of_a_batch_reach_users_at_all_nodes() {
    let nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    let mut als = [stream(&a, "user=al"), stream(&b, "user=al")];
    let mut bo = stream(&b, "user=bo");
    let bos = whole(&a, "GET", "/api/users/bo", None)["connections"][0]["id"].clone();
    let batch = |node: &Server, commands: Value| {
        let (status, reply) = node.api("POST", "/api/batch", Some(json!({"commands": commands})));
        assert_eq!(status, 200, "{reply}");
        reply["results"].as_array().unwrap().clone()
    };
    let done = |field: &str, count: u64| json!({"ok": {field: count, "missing": []}});
    // A batch changes a user's subscriptions and then publishes: the message reaches members at the other node by the
    // new subscriptions.
    let membership = json!({"user": "al", "topic": "room"});
    let results = batch(
        &a,
        json!([{"subscribe": membership}, {"publish": {"topic": "room", "data": "end"}}]),
    );
    assert_eq!(results[0], done("connections", 2));
    assert!(results[1]["ok"]["id"].is_string(), "{}", results[1]);
    als.iter_mut().for_each(|al| assert!(until_end(al).is_empty()));
    let results = batch(
        &a,
        json!([
            {"unsubscribe": membership},
            {"subscribe": {"user": "", "topic": "room"}},
            {"disconnect": {"connection": bos}},
            {"disconnect": {"user": "al"}},
            {"disconnect": {"user": "nobody"}},
        ]),
    );
    assert_eq!(results[0], done("connections", 2));
    assert_eq!(results[1]["error"]["code"], "bad_user");
    assert_eq!(results[2], done("disconnected", 1));
    assert_eq!(results[3], done("disconnected", 2));
    assert_eq!(results[4], done("disconnected", 0));
    als.iter_mut().for_each(|al| drop(al.rest()));
    bo.rest();
}

#[test]
fn a_node_that_does_not_reply_is_named() {
    let mut nats = Nats::start();
    let [a, b] = nats.nodes(&[]);
    let _al = [stream(&a, "user=al"), stream(&b, "user=al")];
    assert_eq!(whole(&a, "GET", "/api/users/al", None)["count"], 2);
    b.pause();
    let (status, al) = a.api("GET", "/api/users/al", None);
    // After 3.5 seconds b counts as silent and leaves the cluster.
    if nodes_in(&a, "up") == ["b"] {
        assert_eq!((status, &al["count"], &al["missing"]), (200, &json!(1), &json!(["b"])));
    }
    a.until("b is silent", |a| nodes_in(a, "silent") == ["b"]);
    assert_eq!(whole(&a, "GET", "/api/users/al", None)["count"], 1);
    let (status, error) = a.api("GET", "/api/users/al?node=b", None);
    assert_eq!((status, &error["error"]["code"]), (404, &json!("no_node")), "{error}");
    b.signal("-CONT");
    a.until("b is back", |a| nodes_in(a, "up") == ["b"]);
    a.until("both reply", |a| a.api("GET", "/api/users/al", None).1["count"] == 2);
    // Without NATS a node can call no other node, and lists the others as missing at once.
    nats.kill();
    until_disconnected(&a);
    let (status, al) = a.api("GET", "/api/users/al", None);
    assert_eq!((status, &al["count"], &al["missing"]), (200, &json!(1), &json!(["b"])));
}
