//! Phoenix Channels with real clients: current and old versions of the unmodified `phoenix` package of
//! npm. The scenarios of `tests/phoenix` run against real servers.

mod raw;

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::support::*;
use serde_json::{Value, json};

/// The folder of the scenarios.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/phoenix")
}

/// A poll of at most a second. It ends with a second of the server's clock.
const SHORT_POLLS: (&str, &str) = ("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "1");
/// Polls last whole seconds. These last at least one second.
const LONGER_POLLS: (&str, &str) = ("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "2");
const SHORT_SILENCE: (&str, &str) = ("THRONG_TIMEOUTS_PHOENIX_SILENCE_SECONDS", "2");
/// A timeout that is many times a client's heartbeat in a scenario.
const LONGER_SILENCE: (&str, &str) = ("THRONG_TIMEOUTS_PHOENIX_SILENCE_SECONDS", "5");

/// Starts a server with the topics of `topics.toml`.
fn serve(settings: &[(&str, &str)]) -> Server {
    serve_with(&[], settings)
}

fn serve_with(flags: &[&str], settings: &[(&str, &str)]) -> Server {
    let file = folder().join("topics.toml");
    Server::with(&[&["--config", file.to_str().unwrap()], flags].concat(), settings)
}

/// Returns an address for a server that a test restarts at the same address.
fn lasting_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Starts a server at these addresses, for clients and applications.
fn serve_at([client, admin]: &[String; 2]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", client, "--admin", admin]);
    command.arg("--config").arg(folder().join("topics.toml"));
    Server::run(command, &[])
}

/// A running scenario; killed at the end of the test.
struct Script {
    name: String,
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Script {
    /// Starts a scenario of a file. `given` has the server's addresses if it runs already.
    fn start(file: &str, scenario: &str, given: &Value) -> Self {
        let folder = folder();
        assert!(
            folder.join("node_modules/ws").exists(),
            "the packages are not installed: run `npm ci` in {}, as scripts/test does",
            folder.display()
        );
        let mut child = Command::new("node")
            .args([file, scenario, &given.to_string()])
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("node: {error}; scripts/test installs it"));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let input = child.stdin.take().unwrap();
        Script { name: format!("{file} {scenario}"), child, input, lines }
    }

    /// Returns the scenario's next line.
    fn read(&mut self) -> Value {
        match self.lines.next() {
            Some(line) => serde_json::from_str(&line.unwrap()).unwrap(),
            None => {
                let mut why = String::new();
                self.child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
                panic!("{} failed:\n{why}", self.name)
            }
        }
    }

    fn write(&mut self, value: &Value) {
        writeln!(self.input, "{value}").unwrap();
    }

    /// Waits until the scenario has succeeded.
    fn done(mut self) {
        let said = self.read();
        assert!(said["done"].is_string(), "{}: {said}", self.name);
        assert!(wait_within(&mut self.child).success(), "{}", self.name);
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn addresses(server: &Server) -> Value {
    json!({"client": server.client.to_string(), "admin": server.admin.to_string()})
}

/// Runs a whole scenario.
fn run(server: &Server, file: &str, scenario: &str) {
    Script::start(file, scenario, &addresses(server)).done();
}

#[test]
fn clients_join_push_and_leave() {
    run(&serve(&[]), "channels.cjs", "join_push_and_leave");
}

#[test]
fn messages_say_who_sent_them_and_no_client_can() {
    run(&serve(&[SHORT_POLLS]), "channels.cjs", "who_sent_it");
}

#[test]
fn joins_and_pushes_against_the_rules_get_errors() {
    let server = serve(&[("THRONG_LIMITS_MESSAGE_BYTES_MAX", "1024")]);
    run(&server, "channels.cjs", "what_rules_refuse");
}

#[test]
fn a_client_that_joins_too_many_topics_gets_an_error() {
    let server = serve(&[("THRONG_LIMITS_TOPICS_PER_CONNECTION_MAX", "5")]);
    run(&server, "channels.cjs", "too_many_topics");
}

#[test]
fn all_transports_and_the_api_share_one_set_of_topics() {
    run(&serve(&[]), "channels.cjs", "messages_from_everywhere");
}

#[test]
fn messages_to_users_and_to_all_arrive() {
    run(&serve(&[]), "channels.cjs", "messages_to_users_and_to_all");
}

#[test]
fn bytes_go_both_ways() {
    run(&serve(&[]), "channels.cjs", "binary_both_ways");
}

#[test]
fn supabases_client_broadcasts_and_receives() {
    run(&serve(&[]), "realtime.cjs", "broadcasts");
}

#[test]
fn heartbeats_are_served_and_keep_the_connection_open() {
    run(&serve(&[LONGER_SILENCE]), "channels.cjs", "heartbeats_get_replies");
}

#[test]
fn clients_rejoin_after_a_server_was_killed() {
    let lasting = [lasting_address(), lasting_address()];
    let mut server = serve_at(&lasting);
    let mut script = Script::start("lifecycle.cjs", "restart", &addresses(&server));
    assert_eq!(script.read(), "joined");
    server.child.kill().unwrap();
    wait_within(&mut server.child);
    let _again = serve_at(&lasting);
    script.write(&json!("started"));
    script.done();
}

#[test]
fn clients_reconnect_to_another_server_when_one_ends() {
    let lasting = [lasting_address(), lasting_address()];
    let mut server = serve_at(&lasting);
    let mut script = Script::start("lifecycle.cjs", "drain", &addresses(&server));
    assert_eq!(script.read(), "joined");
    server.signal("-TERM");
    wait_within(&mut server.child);
    let _again = serve_at(&lasting);
    script.write(&json!("started"));
    script.done();
}

#[test]
fn clients_rejoin_when_the_application_disconnects_them() {
    run(&serve(&[]), "lifecycle.cjs", "disconnect_by_the_application");
}

#[test]
fn a_channel_is_closed_when_the_application_unsubscribes_its_user() {
    run(&serve(&[]), "lifecycle.cjs", "unsubscribe_by_the_application");
}

#[test]
fn long_polls_join_push_and_leave_on_any_shard() {
    let server = serve_with(&["--shards", "4"], &[SHORT_POLLS]);
    run(&server, "longpoll.cjs", "join_push_and_leave");
}

#[test]
fn long_polls_deliver_bytes_as_base64() {
    run(&serve(&[SHORT_POLLS]), "longpoll.cjs", "binary");
}

#[test]
fn long_polls_are_served_as_phoenix_does() {
    let server = serve_with(&["--shards", "4"], &[LONGER_POLLS]);
    run(&server, "longpoll.cjs", "bare_requests");
}

#[test]
fn a_session_without_polls_ends() {
    run(&serve(&[SHORT_POLLS]), "longpoll.cjs", "session_ends_without_polls");
}

#[test]
fn long_polls_rejoin_when_the_application_disconnects_them() {
    let server = serve_with(&["--shards", "4"], &[SHORT_POLLS]);
    run(&server, "longpoll.cjs", "disconnect_by_the_application");
}

#[test]
fn long_polls_carry_bursts_of_small_messages() {
    run(&serve(&[SHORT_POLLS]), "longpoll.cjs", "a_burst_of_small_messages");
}

#[test]
fn long_polls_carry_bursts_of_large_messages() {
    run(&serve(&[SHORT_POLLS]), "longpoll.cjs", "a_burst_of_large_messages");
}

#[test]
fn long_polls_that_are_abandoned_lose_nothing() {
    let server = serve_with(&["--shards", "4"], &[LONGER_POLLS]);
    run(&server, "longpoll.cjs", "polls_that_are_abandoned");
}

#[test]
fn long_polls_carry_bursts_of_the_application() {
    run(&serve(&[SHORT_POLLS]), "longpoll.cjs", "a_burst_of_the_application");
}

#[test]
fn clients_fall_back_to_long_poll_where_websockets_fail() {
    run(&serve(&[SHORT_POLLS]), "longpoll.cjs", "fallback_from_websocket");
}

#[test]
fn clients_use_websockets_that_work() {
    run(&serve(&[]), "longpoll.cjs", "no_fallback_where_websockets_work");
}

#[test]
fn presence_sends_the_state_and_its_changes() {
    run(&serve(&[SHORT_POLLS]), "presence.cjs", "state_and_diffs");
}

#[test]
fn presence_drops_dead_connections() {
    run(&serve(&[]), "presence.cjs", "a_connection_that_dies_leaves");
}

#[test]
fn presence_drops_silent_connections() {
    run(&serve(&[LONGER_SILENCE]), "presence.cjs", "a_silent_connection_leaves");
}

#[test]
fn presence_metas_can_be_updated() {
    run(&serve(&[]), "presence.cjs", "presence_update");
}

#[test]
fn presence_counts_users_of_all_transports() {
    run(&serve(&[]), "presence.cjs", "other_transports_count");
}

#[test]
fn presence_counts_only_above_its_cap() {
    let server = serve(&[("THRONG_PRESENCE_USERS_MAX", "3")]);
    run(&server, "presence.cjs", "counts_above_the_cap");
}

#[test]
fn presence_is_sent_on_other_transports() {
    run(&serve_with(&["--shards", "4"], &[]), "presence.cjs", "other_transports_are_notified");
}

#[test]
fn presence_has_commands_on_websockets() {
    run(&serve(&[]), "presence.cjs", "ws_commands");
}

#[test]
fn presence_lists_that_are_long_come_one_by_one() {
    run(&serve(&[("THRONG_LIMITS_TOPICS_PER_CONNECTION_MAX", "20")]), "presence.cjs", "long_lists");
}

#[test]
fn presence_is_correct_after_random_joins_and_leaves() {
    run(&serve_with(&["--shards", "4"], &[SHORT_POLLS]), "presence.cjs", "churn");
}

#[test]
fn browser_tabs_exchange_messages_and_presence() {
    run(&Server::with(&["--demo"], &[SHORT_POLLS]), "browser.cjs", "tabs");
}

#[test]
fn the_demos_chat_shows_who_wrote_what() {
    run(&Server::with(&["--demo"], &[]), "browser.cjs", "demo_chat");
}

/// Starts a server whose topics have history, with or without a store.
fn recall(client: &str, admin: &str, data: Option<&Path>) -> Server {
    let topics = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recovery/topics.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", client, "--admin", admin, "--config"]).arg(topics);
    if let Some(data) = data {
        command.arg("--data").arg(data);
    }
    Server::run(command, &[SHORT_POLLS])
}

/// Runs a scenario against a server whose topics have history in memory.
fn run_recovery(scenario: &str) {
    let anywhere = "127.0.0.1:0";
    run(&recall(anywhere, anywhere, None), "recovery.cjs", scenario);
}

#[test]
fn missed_messages_arrive_when_clients_rejoin() {
    run_recovery("positions");
}

#[test]
fn new_clients_get_what_is_there() {
    run_recovery("what_is_there");
}

#[test]
fn clients_get_the_state_of_a_compact_topic() {
    run_recovery("states");
}

#[test]
fn clients_read_pages_of_a_history() {
    run_recovery("pages");
}

#[test]
fn clients_learn_that_messages_are_lost() {
    run_recovery("lost");
}

#[test]
fn clients_that_are_cut_off_miss_nothing() {
    run_recovery("cut");
}

#[test]
fn missed_messages_are_chosen_by_tags() {
    run_recovery("tags");
}

#[test]
fn messages_wait_until_clients_acknowledge_them() {
    run_recovery("acknowledgements");
}

#[test]
fn missed_messages_arrive_after_a_restart() {
    for (scenario, at) in [("restart", "published"), ("event_source", "received")] {
        let data = Scratch::new(scenario);
        let (client, admin) = (lasting_address(), lasting_address());
        let mut server = recall(&client, &admin, Some(data.path()));
        let mut script = Script::start("recovery.cjs", scenario, &addresses(&server));
        assert_eq!(script.read(), at);
        server.signal("-TERM");
        wait_within(&mut server.child);
        let _again = recall(&client, &admin, Some(data.path()));
        script.write(&json!("started"));
        script.done();
    }
}

/// Runs a scenario that is also the application that receives the server's webhooks.
fn send_request(scenario: &str, settings: &[(&str, &str)]) {
    let mut script = Script::start("webhook.cjs", scenario, &json!({}));
    let url = format!("http://127.0.0.1:{}/hook/a", script.read()["port"]);
    let server = serve(&[&[("THRONG_WEBHOOK_URL", url.as_str())], settings].concat());
    script.write(&addresses(&server));
    script.done();
}

#[test]
fn webhooks_decide_about_joins_and_events() {
    let secret = ("THRONG_WEBHOOK_SECRET", "0123456789abcdef");
    send_request("joins_and_events", &[secret, SHORT_POLLS]);
}

#[test]
fn what_is_published_is_allowed_refused_or_changed_by_webhooks() {
    send_request("publishes", &[SHORT_POLLS]);
}

#[test]
fn a_failing_webhook_is_an_error_to_the_client() {
    send_request("failures", &[("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "4000")]);
}

#[test]
fn a_client_may_leave_while_its_join_webhook_is_pending() {
    send_request("leave_while_a_join_waits", &[]);
}

/// A rule against joins applies to the clients of all transports.
#[test]
fn a_topic_without_joins_is_closed_to_every_transport() {
    let server = serve(&[]);
    // No application replies for the second topic.
    for (topic, code, status) in [("refused:a", "forbidden", 403), ("asked:a", "unanswered", 503)] {
        for path in ["/sse", "/stream", "/poll"] {
            let (got, error) = server.get(&format!("{path}?topic=plain:a&topic={topic}"));
            assert_eq!((got, &error["error"]["code"]), (status, &json!(code)), "{path}");
        }
        let request = format!(
            "GET /ws?topic={topic} HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        let mut stream = Stream::new(server.connect());
        stream.send(&request);
        assert_eq!(stream.read_reply().0, status);
        let mut socket = websocket(&server, "");
        let reply = command(&mut socket, json!({"type":"subscribe","id":1,"topic":topic}));
        assert_eq!(reply["error"]["code"], code);
    }
}

#[test]
fn the_status_page_is_served_where_it_is_enabled() {
    let hidden = serve(&[]);
    assert_eq!(hidden.get("/status").0, 404);
    let server = serve(&[("THRONG_CLIENT_STATUS_PAGE", "true")]);
    let _open = server.listen("/sse?topic=plain:a");
    let page = server.exchange(b"GET /status HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("Mean response time"), "{page}");
    let (_, figures) = server.get("/status?format=json");
    assert!(figures["connections"].as_u64().unwrap() >= 1);
    assert!(figures["answers"].as_u64().unwrap() >= 1);
    assert!(figures["uptime_ms"].as_u64().is_some());
}
