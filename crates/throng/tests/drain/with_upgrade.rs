//! An upgrade and a drain exclude each other, in either order.

use serde_json::json;

use super::{is_ready, state};
use crate::upgrade::node::{Node, Storage};

#[test]
fn a_node_that_drains_is_not_upgraded_until_that_is_cancelled() {
    let node = Node::new(Storage::Memory);
    let mut client = node.listen("/sse?topic=a");
    node.post("/api/drain", json!({"wait_seconds": 86_400}));
    let said = node.upgrade_fails(&[]);
    assert!(said.contains("drain_under_way") && said.contains("throng drain --cancel"), "{said}");
    assert_eq!(node.try_upgrade(&["--check"]).code, Some(3));
    assert_eq!(state(&node)["stage"], "waiting");
    node.api("DELETE", "/api/drain", None);
    node.upgrade();
    // The new process serves, and can be drained.
    assert!(is_ready(&node));
    node.publish("a", json!("on"));
    assert_eq!(client.data(), "on");
    node.post("/api/drain", json!({"wait_seconds": 0, "seconds": 1}));
    assert!(client.rest().ends_with(": closing, use_another_server\n\n"));
}

#[test]
fn a_node_that_is_upgraded_does_not_drain() {
    let node = Node::new(Storage::Memory);
    let mut client = node.listen("/sse?topic=a");
    let binary = node.waiting_binary("new");
    let upgrade = node.begin(&["--binary", binary.path()]);
    binary.process();
    let (status, refused) = node.api("POST", "/api/drain", Some(json!({})));
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("upgrade_under_way")));
    assert!(is_ready(&node));
    binary.go();
    node.finish(upgrade);
    node.publish("a", json!("on"));
    assert_eq!(client.data(), "on");
    assert_eq!(state(&node)["stage"], "serving");
}
