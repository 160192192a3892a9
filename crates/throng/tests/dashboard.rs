//! The dashboard in Chromium, at a server that requires a key: which keys can sign in, and what a key with the scope
//! `read` shows.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::cluster::support::{Nats, nodes_in};
use crate::mqtt::client::{Connect, Publish, V5, filter};
use crate::outbox::support::{Postgres, until_draining};
use crate::support::*;
use serde_json::json;

/// Keys whose hashes the configuration below has.
const READ: &str = "key-that-may-read-0123456789";
const ALL: &str = "key-for-everything-0123456789";

const ROOT: &str = "[[keys]]\nname = \"root\"\n\
    hash = \"sha256:96b7bde0b8d28d7cc0a366540986bae762a13fefad8b7a7b6e1a0657a9051c15\"\n\
    scopes = [\"admin\"]\n";
const OPS: &str = "[[keys]]\nname = \"ops\"\n\
    hash = \"sha256:a78a2189b9f39ae56dd17f7b175398d6af70bd9d2de69263bd822b01c4e6e6a8\"\n\
    scopes = [\"read\"]\n";
const HOSTS: &str = "[admin]\nhosts = [\"throng.example\"]\n";

/// Starts a server in a folder of its own, with both keys in its configuration.
fn serve(name: &str) -> (Server, Scratch) {
    let folder = Scratch::new(&format!("dashboard-{name}"));
    folder.write("throng.toml", &[HOSTS, ROOT, OPS].concat());
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "1"]);
    command.args(["--mqtt", "127.0.0.1:0"]);
    (Server::run_in(folder.path(), command, &[], Stdio::inherit()), folder)
}

fn start(server: &Server, name: &str) -> Child {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard");
    let given = json!({
        "client": server.client.to_string(),
        "admin": server.admin.to_string(),
        "read": READ,
        "all": ALL,
        // The folder for screenshots of the page, if a person wants them.
        "shots": std::env::var("DASHBOARD_SHOTS").ok(),
    });
    Command::new("node")
        .args(["page.cjs", name, &given.to_string()])
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("node: {error}; scripts/test installs it"))
}

fn done(name: &str, page: Child) {
    let output = page.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}:\n{errors}");
}

fn scenario(name: &str) {
    let (server, _folder) = serve(name);
    let _al = server.listen("/sse?user=al&topic=news");
    done(name, start(&server, name));
}

#[test]
fn who_signs_in_sees_what_the_key_may_see() {
    scenario("sign_in");
}

#[test]
fn sessions_of_mqtt_are_shown_and_ended_and_retained_messages_deleted() {
    let name = "mqtt";
    let (server, _folder) = serve(name);
    let mut here = Connect::persistent(V5, "here/<1>").user("al").open(server.client);
    here.subscribe(&[filter("news/+", 1), filter("state/#", 2)]);
    for topic in ["state/a", "state/b"] {
        here.publish_all(Publish::new(topic, "<b>on</b>", 1).retained());
    }
    Connect::persistent(V5, "away").open(server.client).disconnect();
    done(name, start(&server, name));
    here.is_ended_for(0x98);
    assert!(!Connect::persistent(V5, "here/<1>").open(server.client).session_present);
    let mut later = Connect::new(V5, "later").open(server.client);
    later.subscribe(&[filter("state/#", 1)]);
    assert_eq!(later.messages(1), [("state/b".into(), "<b>on</b>".into())]);
    later.is_quiet();
}

#[test]
fn pages_of_the_same_host_on_another_port_can_not_use_the_session() {
    scenario("other_sites");
}

#[test]
fn no_visitor_signs_in_under_a_name_that_another_made() {
    scenario("other_names");
}

#[test]
fn a_page_whose_key_is_taken_away_shows_no_more() {
    let name = "taken_away";
    let (server, folder) = serve(name);
    let mut page = start(&server, name);
    let line = Lines::of(page.stdout.take().unwrap()).next();
    assert_eq!(line.as_deref(), Some("signed in"));
    folder.write("throng.toml", &[HOSTS, ROOT].concat());
    server.signal("-HUP");
    done(name, page);
}

#[test]
fn attempts_to_connect_that_the_kernel_drops_are_shown_in_words() {
    let name = "kernel";
    let server = Server::start();
    let mut page = start(&server, name);
    let line = Lines::of(page.stdout.take().unwrap()).next();
    assert_eq!(line.as_deref(), Some("looked"));
    let listener = kernel::short_queue();
    let _queued = kernel::overflow(listener.local_addr().unwrap());
    done(name, page);
}

#[test]
fn nodes_and_the_outbox_are_shown_in_words() {
    let name = "cluster";
    let (nats, postgres) = (Nats::start(), Postgres::start());
    let url = postgres.url("postgres");
    let [a, mut b] = nats.nodes(&[("THRONG_OUTBOX_URL", &*url)]);
    // The dashboard's node then drains the outbox.
    b.child.kill().unwrap();
    b.child.wait().unwrap();
    until_draining(&a);
    a.until("b is silent", |a| nodes_in(a, "silent") == ["b"]);
    postgres.psql("SELECT throng.publish('t', '1'); SELECT throng.publish('', '1')");
    postgres.until_empty();
    done(name, start(&a, name));
}
