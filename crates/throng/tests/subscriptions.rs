//! Durable subscriptions against a server: from a file, over the API, and on connect.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use crate::support::*;
use serde_json::json;

fn throng(arguments: &[&str], admin: Option<SocketAddr>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.arg("subscriptions").args(arguments).env_remove("THRONG_ADMIN_API_KEY");
    command.args(admin.map(|admin| format!("--admin={admin}")));
    command
}

/// Runs a command with a text on standard input.
fn run(mut command: Command, input: &str) -> (i32, String, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that has already failed does not read, so the write may fail.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let Output { status, stdout, stderr } = printed_within(child);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn a_subscription_graph_is_imported_and_applied() {
    let (code, graph, _) = run(throng(&["generate", "--users", "3000", "--edges", "40"], None), "");
    assert_eq!(code, 0);
    let rows = graph.lines().count() - 1;
    assert!(graph.starts_with("user,topic\nu0,feed:u") && (110_000..130_000).contains(&rows));
    let server = Server::with(&["--shards", "2"], &[]);
    let mut stream = server.listen("/sse?user=u7");
    let (code, said, error) = run(throng(&["import", "-"], Some(server.admin)), &graph);
    assert_eq!((code, error.as_str()), (0, ""), "{said}");
    let response = said.replace(',', "");
    assert!(response.starts_with(&format!("{rows} rows ({rows} new) in ")), "{said}");
    let (_, said, _) = run(throng(&["import", "-"], Some(server.admin)), &graph);
    assert!(said.contains(" rows (0 new) in "), "{said}");
    let mut topics: Vec<&str> = graph.lines().filter_map(|line| line.strip_prefix("u7,")).collect();
    topics.sort_unstable();
    let (code, said, _) = run(throng(&["list", "u7"], Some(server.admin)), "");
    assert_eq!((code, said.lines().collect::<Vec<_>>()), (0, topics.clone()));
    // The subscribers of a topic.
    let topic = topics[0];
    let follows = |line: &&str| line.split_once(',').is_some_and(|(_, other)| other == topic);
    let mut users: Vec<&str> =
        graph.lines().filter(follows).map(|line| line.split_once(',').unwrap().0).collect();
    users.sort_unstable();
    let (code, said, _) = run(throng(&["followers", topic], Some(server.admin)), "");
    assert_eq!((code, said.lines().collect::<Vec<_>>()), (0, users.clone()));
    let (_, said, _) = run(throng(&["followers", "--connected", topic], Some(server.admin)), "");
    assert_eq!(said, "u7\n");
    let path = format!("/api/topics/{topic}/subscribers?limit=3&after={}", users[0]);
    let page = server.api("GET", &path, None).1;
    let names =
        page["subscribers"].as_array().unwrap().iter().map(|it| it["user"].as_str().unwrap());
    assert!(names.eq(users[1..].iter().take(3).copied()), "{page}");
    assert_eq!(page["count"], users.len());
    // Connected users have entered the topics, and other users enter them on connect.
    server.until_members(topic, 1);
    let mut later = server.listen("/sse?user=u7");
    server.until_members(topic, 2);
    server.publish(topic, json!("hello"));
    for stream in [&mut stream, &mut later] {
        assert_eq!(stream.data(), "hello");
    }
    let body = json!({"user": "u7", "remove": [topic]});
    let (status, reply) = server.api("POST", "/api/subscriptions", Some(body));
    assert_eq!((status, &reply["removed"], &reply["connections"]), (200, &json!(1), &json!(2)));
    server.until_members(topic, 0);
    let (_, said, _) = run(throng(&["followers", topic], Some(server.admin)), "");
    assert!(said.lines().eq(users.into_iter().filter(|user| *user != "u7")), "{said}");
}

#[test]
fn without_the_table_by_topic_the_command_says_what_to_set() {
    let server = Server::with(&["--shards", "1"], &[("THRONG_SUBSCRIPTIONS_BY_TOPIC", "false")]);
    let body = json!({"user": "bob", "add": ["a"]});
    assert_eq!(server.api("POST", "/api/subscriptions", Some(body)).1["added"], 1);
    let (code, said, error) = run(throng(&["followers", "a"], Some(server.admin)), "");
    assert_eq!((code, said.as_str()), (1, ""));
    assert!(error.contains("set subscriptions.by_topic = true"), "{error}");
}

#[test]
fn invalid_input_is_reported_by_line() {
    let server = Server::with(&["--shards", "1"], &[]);
    let import = |input: &str| run(throng(&["import", "-"], Some(server.admin)), input);
    let (code, _, error) = import("user,topic\na,b\na,b,c\n");
    assert!(code == 1 && error.contains("standard input: line 3: it has more than two"), "{error}");
    let many: String = (0..1001).map(|n| format!("bob,t{n}\n")).collect();
    let (code, _, error) = import(&format!("alice,a\n{many}"));
    let want =
        "standard input: line 2: \"bob\" would have 1001 subscriptions; a user may have 1000";
    assert!(code == 1 && error.contains(want), "{error}");
    let (code, _, error) = run(throng(&["import", "/no/such/file"], Some(server.admin)), "");
    assert!(code == 1 && error.contains("/no/such/file: can't be read"), "{error}");
    let (code, said, error) = run(throng(&["list", "alice"], Some(server.admin)), "");
    assert_eq!((code, said.as_str(), error.as_str()), (0, "", ""));
}
