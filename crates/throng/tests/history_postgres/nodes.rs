//! Several servers with one database: each delivers what all of them append.

use super::*;

#[test]
fn what_one_server_appends_comes_at_all_of_them_with_the_same_ids() {
    let database = Database::start();
    let servers = [database.server(), database.server(), database.server()];
    let mut members = servers.each_ref().map(|server| member(server, "topic=chat:1"));
    std::thread::scope(|scope| {
        for (at, server) in servers.iter().enumerate() {
            scope.spawn(move || {
                (0..100).for_each(|n| _ = publish(server, "chat:1", format!("{at}-{n}")))
            });
        }
    });
    publish(&servers[0], "chat:1", "end");
    let all = members.each_mut().map(|member| until_data(member, &json!("end")));
    assert_eq!(all[0].len(), 301);
    assert!(all[0] == all[1] && all[1] == all[2]);
    for server in &servers {
        assert_eq!(history(server, "chat:1"), all[0]);
    }
    for at in 0..3 {
        let own = all[0].iter().filter_map(|(_, data)| {
            data.as_str()?.strip_prefix(&format!("{at}-"))?.parse::<u64>().ok()
        });
        assert!(own.eq(0..100), "each publisher's are in its order");
    }
    // A client may return to a server that has delivered less than another one. It waits until that server has caught
    // up.
    let (last, _) = &all[0][200];
    for server in &servers {
        let mut back = member(server, &format!("topic=chat:1&since={last}"));
        assert_eq!(until_data(&mut back, &json!("end")), all[0][201..]);
    }
}

#[test]
fn servers_append_beside_each_other_by_whatever_isolation_their_role_has() {
    let database = Database::start();
    let strict = "ALTER ROLE postgres SET default_transaction_isolation = 'repeatable read'";
    database.postgres.psql(strict);
    let servers = [database.server(), database.server()];
    std::thread::scope(|scope| {
        for server in &servers {
            scope.spawn(move || (0..200).for_each(|n| _ = publish(server, "chat:1", n)));
        }
    });
    for server in &servers {
        server.until("it has all", |server| history(server, "chat:1").len() == 400);
    }
}

#[test]
fn a_key_counts_at_all_servers_and_a_deletion_as_well() {
    let database = Database::start();
    let servers = [database.server(), database.server()];
    let keyed = json!({"topic": "chat:1", "data": 1, "idempotency_key": "k"});
    let ids =
        servers.each_ref().map(|server| server.post("/api/publish", keyed.clone())["id"].clone());
    assert_eq!(ids[0], ids[1]);
    for server in &servers {
        server.until("it has the message", |server| history(server, "chat:1").len() == 1);
    }
    let (status, reply) = servers[0].api("DELETE", "/api/history/chat:1", None);
    assert!(status < 300, "{reply}");
    servers[1].until("it is gone there, too", |server| history(server, "chat:1").is_empty());
}

#[test]
fn in_a_cluster_topics_with_history_come_by_the_database_and_others_by_nats() {
    let (database, mut nats) = (Database::start(), Nats::start());
    let nodes = database.nodes(&nats);
    let mut members = nodes.each_ref().map(|node| member(node, "topic=chat:1&topic=plain"));
    for number in 0..30 {
        publish(&nodes[number % 3], "chat:1", number);
    }
    // No node retains a message with `no_history`, but all members get it.
    let past = json!({"topic": "chat:1", "data": "past", "no_history": true});
    nodes[0].post("/api/publish", past);
    for member in &mut members {
        // This message goes by NATS, so it may overtake others.
        let mut got: Vec<Value> = (0..31).map(|_| next(member).1).collect();
        got.retain(|data| data != "past");
        assert_eq!(got, (0..30).map(Value::from).collect::<Vec<_>>());
    }
    let all = history(&nodes[0], "chat:1");
    assert_eq!(all.len(), 30);
    // Without NATS the nodes still deliver messages with a history.
    nats.kill();
    nodes.iter().for_each(until_disconnected);
    publish(&nodes[1], "chat:1", "without NATS");
    for member in &mut members {
        assert_eq!(next(member).1, "without NATS");
    }
    nats.run();
    nodes.iter().for_each(|node| until_nodes(node, 2));
    nodes[2].publish("plain", json!("with NATS"));
    for member in &mut members {
        assert_eq!(next(member).1, "with NATS");
    }
    // When a node dies, its client reconnects to another node and misses nothing.
    let [mut first, second, third] = nodes;
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let last = publish(&second, "chat:1", "last");
    let mut back = member(&third, &format!("topic=chat:1&since={}", all[9].0));
    let missed = until_data(&mut back, &json!("last"));
    assert_eq!(missed[..20], all[10..]);
    assert_eq!((missed.len(), &missed[21].0), (22, &last));
}
