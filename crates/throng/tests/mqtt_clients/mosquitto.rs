//! Mosquitto's command-line clients, which many people try first.

use std::process::Command;

use serde_json::json;

use crate::mqtt_clients::{Server, Subscriber, guarded, spawn, token};
use crate::support::printed_within;

const VERSIONS: [&str; 3] = ["mqttv31", "mqttv311", "mqttv5"];

/// Returns the command of a Mosquitto program with address and version.
fn program(name: &str, server: &Server, version: &str) -> Command {
    let mut command = Command::new(name);
    command.args(["-h", "127.0.0.1", "-p", &server.client.port().to_string(), "-V", version]);
    command
}

/// Runs a command to its end. Returns its output.
fn run(mut command: Command) -> (bool, String) {
    let output = printed_within(spawn(&mut command));
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

fn succeeds(command: Command) -> String {
    let what = format!("{command:?}");
    let (ok, text) = run(command);
    assert!(ok, "{what}: {text}");
    text
}

/// Starts mosquitto_sub, which writes topic, QoS, retain flag and payload at once.
fn start(mut command: Command) -> Subscriber {
    command.args(["-F", "%t %q %r %p"]);
    Subscriber::new(command)
}

/// Adds alice's token to a command.
fn alice(mut command: Command) -> Command {
    command.args(["-u", "alice", "-P", &token()]);
    command
}

#[test]
fn mosquitto_pub_and_sub() {
    let server = guarded();
    for version in VERSIONS {
        let of = |name: &str, more: &[&str]| {
            let mut command = alice(program(name, &server, version));
            command.args(more);
            command
        };
        let publish = |more: &[&str]| drop(succeeds(of("mosquitto_pub", more)));
        let topic = |rest: &str| format!("{version}/{rest}");
        let (one, deep) = (topic("+/x"), topic("deep/#"));
        let ready = topic("ready");
        let more = ["-q", "2", "-t", &one, "-t", &deep, "-t", &ready];
        let mut sub = start(of("mosquitto_sub", &more));
        server.until_members(&ready.replace('/', "%2F"), 1);
        for qos in ["0", "1", "2"] {
            // A client can't tell whether the server has read a QoS 0 message, so each must arrive before the next
            // one.
            publish(&["-t", &topic("1/x"), "-q", qos, "-m", "hello"]);
            assert_eq!(sub.line(), format!("{version}/1/x {qos} 0 hello"));
            publish(&["-t", &topic("1/y"), "-q", qos, "-m", "nobody"]);
            publish(&["-t", &topic("deep/er/still"), "-q", qos, "-m", "é"]);
            assert_eq!(sub.line(), format!("{version}/deep/er/still {qos} 0 é"));
        }
        server.publish(&topic("1/x"), json!({"celsius": 21}));
        assert_eq!(sub.line(), format!("{version}/1/x 2 0 {{\"celsius\":21}}"));

        // A later subscriber gets the retained message, and no longer after its removal.
        let lamp = topic("state/lamp");
        publish(&["-t", &lamp, "-q", "1", "-r", "-m", "on"]);
        let (state, end) = (topic("state/#"), topic("state/end"));
        let later = ["-t", &state, "-C", "1", "-F", "%t %r %p"];
        let line = succeeds(of("mosquitto_sub", &later));
        assert_eq!(line, format!("{lamp} 1 on\n"));
        publish(&["-t", &lamp, "-q", "1", "-r", "-n"]);
        let mut none = start(of("mosquitto_sub", &["-t", &state, "-t", &end]));
        server.until_members(&end.replace('/', "%2F"), 1);
        publish(&["-t", &end, "-q", "1", "-m", "end"]);
        assert_eq!(none.line(), format!("{end} 0 0 end"));
        drop(none);

        // A persistent session: the messages that came while the client was away, in order.
        let (id, persistent) = (topic("id").replace('/', ""), topic("kept"));
        let session = match version {
            "mqttv5" => vec!["-c", "-x", "3600", "-i", &id, "-q", "2", "-t", &persistent],
            _ => vec!["-c", "-i", &id, "-q", "2", "-t", &persistent],
        };
        succeeds(of("mosquitto_sub", &[&session[..], &["-E"]].concat()));
        for n in ["1", "2", "3", "4"] {
            publish(&["-t", &persistent, "-q", if n < "3" { "1" } else { "2" }, "-m", n]);
        }
        let more = ["-C", "4", "-F", "%q %p"];
        let lines = succeeds(of("mosquitto_sub", &[&session[..], &more].concat()));
        assert_eq!(lines, "1 1\n1 2\n2 3\n2 4\n", "{version}");

        // A will.
        let (will, here) = (topic("1/x"), topic("here"));
        let more =
            ["--will-topic", &will, "--will-payload", "gone", "--will-qos", "1", "-t", &here];
        let dying = start(of("mosquitto_sub", &more));
        server.until_members(&here.replace('/', "%2F"), 1);
        drop(dying);
        assert_eq!(sub.line(), format!("{version}/1/x 1 0 gone"));
    }
}

#[test]
fn mosquitto_gets_the_reason_of_a_rejection() {
    let server = guarded();
    for version in VERSIONS {
        let refused = |who: &[&str]| {
            let mut command = program("mosquitto_pub", &server, version);
            command.args(who).args(["-t", "x", "-m", "x", "-q", "1"]);
            let (ok, text) = run(command);
            assert!(!ok, "{version}: {who:?} was let in");
            // The versions spell it differently.
            text.to_lowercase().replace("authorized", "authorised")
        };
        let text = refused(&["-u", "alice", "-P", "secret"]);
        assert!(text.contains("not authorised"), "{version}: {text}");
        let text = refused(&[]);
        assert!(text.contains("not authorised"), "{version}: {text}");
        let forged = format!("{}x", token());
        let text = refused(&["-u", "alice", "-P", &forged]);
        let is_explained =
            text.contains("bad user name or password") || text.contains("not authorised");
        assert!(is_explained, "{version}: {text}");
        let text = refused(&["-u", "bob", "-P", &token()]);
        let is_explained =
            text.contains("bad user name or password") || text.contains("not authorised");
        assert!(is_explained, "{version}: {text}");
    }
}
