//! Reloads of the configuration.

use std::fs::File;
use std::process::{Command, Stdio};

use crate::support::*;
use crate::tokens::support::*;
use serde_json::json;

/// A server in its own folder, with its configuration there.
struct Node {
    server: Server,
    folder: Scratch,
}

const FIRST: &str = "the first key of all, which is long enough";
const SECOND: &str = "the second key of all, which is long enough";

/// The log's line for an accepted configuration, and for a rejected one.
const TAKEN: &str = "the configuration was read again";
const REFUSED: &str = "the configuration is unchanged";

impl Node {
    fn new(name: &str, configuration: &str, files: &[(&str, &str)]) -> Self {
        let folder = Scratch::new(name);
        files.iter().for_each(|(name, text)| write_secret(&folder.path().join(name), text));
        write_secret(&folder.path().join("throng.toml"), configuration);
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let log = Stdio::from(File::create(folder.path().join("log")).unwrap());
        Node { server: Server::run_in(folder.path(), command, &[], log), folder }
    }

    fn write(&self, name: &str, text: &str) {
        write_secret(&self.folder.path().join(name), text);
    }

    fn count(&self, line: &str) -> usize {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap();
        log.matches(line).count()
    }

    /// Reloads the configuration, and waits until the log has this line and each shard has the new settings.
    fn reload(&self, line: &str) {
        let before = self.count(line);
        self.server.signal("-HUP");
        self.server.until(line, |_| self.count(line) > before);
        // This call goes to all shards, behind the settings.
        members(&self.server, "none");
    }

    /// Returns the status of a poll with this token.
    fn poll(&self, token: &str) -> u16 {
        get(&self.server, &format!("/poll?topic=room:1&timeout=0&token={token}")).status
    }
}

fn by(key: &str) -> String {
    signed("HS256", key, None, everything("al"))
}

#[test]
fn keys_in_files_are_rotated_by_a_reload() {
    let configuration =
        "[auth]\nhmac_key_file = \"key\"\npublic_key_files = [\"public.pem\"]\nrequired = true\n";
    let node = Node::new("tokens-rotate", configuration, &[("key", FIRST), ("public.pem", RSA.1)]);
    let (rsa, ed) = (
        signed("RS256", RSA.0, None, everything("al")),
        signed("EdDSA", ED.0, None, everything("al")),
    );
    let command =
        || [by(FIRST), by(SECOND), rsa.clone(), ed.clone()].map(|token| node.poll(&token));
    assert_eq!(command(), [200, 401, 200, 401]);
    let mut open = Client::open(&node.server, Transport::Ws, &format!("token={}", by(FIRST)), "")
        .ok()
        .unwrap();
    node.write("key", SECOND);
    node.write("public.pem", ED.1);
    node.reload(TAKEN);
    assert_eq!(command(), [401, 200, 401, 200]);
    // Connected clients stay connected.
    assert_eq!(open.command(json!({"type": "ping"})), json!({}));
    assert_eq!(open.command(json!({"type": "refresh", "token": by(FIRST)})), "invalid_token");
    assert!(open.command(json!({"type": "refresh", "token": by(SECOND)})).is_object());

    // An invalid file changes nothing.
    for (name, text) in [
        ("public.pem", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
        ("public.pem", RSA.0),
        ("key", "short"),
        ("key", ""),
    ] {
        let before = std::fs::read_to_string(node.folder.path().join(name)).unwrap();
        node.write(name, text);
        // The valid change in the same reload does not apply either.
        node.write("throng.toml", &format!("{configuration}issuers = [\"https://a.example\"]\n"));
        node.reload(REFUSED);
        assert_eq!(command(), [401, 200, 401, 200], "{name} {text}");
        node.write(name, &before);
        node.write("throng.toml", configuration);
    }
    std::fs::remove_file(node.folder.path().join("public.pem")).unwrap();
    node.reload(REFUSED);
    assert_eq!(command(), [401, 200, 401, 200]);
}

#[test]
fn tokens_can_be_required_and_not_while_it_runs() {
    let base =
        format!("[client]\npublish_prefixes = [\"room:\"]\n[auth]\nhmac_key = \"{FIRST}\"\n");
    let open = format!("{base}anonymous_grants = [\"subscribe:*\"]\n");
    let node = Node::new("tokens-required", &open, &[]);
    let none = || get(&node.server, "/poll?topic=room:1&timeout=0").status;
    assert_eq!(none(), 200);
    let mut early = Client::open(&node.server, Transport::Ws, "topic=room:1", "").ok().unwrap();
    node.write("throng.toml", &format!("{base}required = true\n"));
    node.reload(TAKEN);
    assert_eq!(none(), 401);
    assert_eq!(node.poll(&by(FIRST)), 200);
    // A client from before stays in its topics, and otherwise may do no more than clients without a token.
    node.server.publish("room:1", json!("still"));
    assert_eq!(early.until("message"), "still");
    assert_eq!(early.command(json!({"type": "subscribe", "topic": "room:2"})), "not_granted");
    assert!(early.command(json!({"type": "connect", "token": by(FIRST)})).is_object());
    assert_eq!(early.command(json!({"type": "subscribe", "topic": "room:2"}))["topic"], "room:2");
    // Without keys clients again may be any user that they name.
    node.write("throng.toml", "[client]\npublish_prefixes = [\"room:\"]\n");
    node.reload(TAKEN);
    assert_eq!(none(), 200);
    let anonymous = get(&node.server, "/poll?user=bo&timeout=0");
    assert_eq!(anonymous.status, 200);
}
