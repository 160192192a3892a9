//! Configurations that are read again.

use std::path::PathBuf;

use crate::kit::*;
use crate::support::*;
use serde_json::json;

/// A server in a folder of its own, with a configuration there.
struct Place {
    folder: PathBuf,
    server: Server,
}

const FIRST: &str = "the first key of all, which is long enough";
const SECOND: &str = "the second key of all, which is long enough";

impl Place {
    fn new(name: &str, configuration: &str, files: &[(&str, &str)]) -> Self {
        let folder =
            std::env::temp_dir().join(format!("throng-tokens-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        files.iter().for_each(|(name, text)| write_secret(&folder.join(name), text));
        write_secret(&folder.join("throng.toml"), configuration);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let server = Server::run_in(&folder, command, &[], std::process::Stdio::inherit());
        Place { folder, server }
    }

    fn write(&self, name: &str, text: &str) {
        write_secret(&self.folder.join(name), text);
    }

    fn reload(&self) {
        self.server.signal("-HUP");
    }

    /// What a poll with this token is answered.
    fn poll(&self, token: &str) -> u16 {
        get(&self.server, &format!("/poll?topic=room:1&timeout=0&token={token}")).status
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn by(key: &str) -> String {
    signed("HS256", key, None, everything("al"))
}

#[test]
fn keys_in_files_are_rotated_by_a_reload() {
    let configuration =
        "[auth]\nhmac_key_file = \"key\"\npublic_key_files = [\"public.pem\"]\nrequired = true\n";
    let place = Place::new("rotate", configuration, &[("key", FIRST), ("public.pem", RSA.1)]);
    let (rsa, ed) = (
        signed("RS256", RSA.0, None, everything("al")),
        signed("EdDSA", ED.0, None, everything("al")),
    );
    let ask = || [by(FIRST), by(SECOND), rsa.clone(), ed.clone()].map(|token| place.poll(&token));
    assert_eq!(ask(), [200, 401, 200, 401]);
    let mut open =
        Client::open(&place.server, Way::Ws, &format!("token={}", by(FIRST)), "").ok().unwrap();
    place.write("key", SECOND);
    place.write("public.pem", ED.1);
    place.reload();
    // Each shard takes the new ones when it has a turn.
    place.server.until("the keys are others", |_| ask() == [401, 200, 401, 200]);
    // Who is connected stays.
    assert_eq!(open.ask(json!({"type": "ping"})), json!({}));
    assert_eq!(open.ask(json!({"type": "refresh", "token": by(FIRST)})), "invalid_token");
    assert!(open.ask(json!({"type": "refresh", "token": by(SECOND)})).is_object());

    // What can't be right leaves all as it was.
    for (name, text) in [
        ("public.pem", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
        ("public.pem", RSA.0),
        ("key", "short"),
        ("key", ""),
    ] {
        let before = std::fs::read_to_string(place.folder.join(name)).unwrap();
        place.write(name, text);
        // The change beside it counts neither.
        place.write("throng.toml", &format!("{configuration}issuers = [\"https://a.example\"]\n"));
        place.reload();
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(ask(), [401, 200, 401, 200], "{name} {text}");
        place.write(name, &before);
        place.write("throng.toml", configuration);
    }
    std::fs::remove_file(place.folder.join("public.pem")).unwrap();
    place.reload();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(ask(), [401, 200, 401, 200]);
}

#[test]
fn tokens_can_be_required_and_not_while_it_runs() {
    let base =
        format!("[client]\npublish_prefixes = [\"room:\"]\n[auth]\nhmac_key = \"{FIRST}\"\n");
    let open = format!("{base}anonymous_grants = [\"subscribe:*\"]\n");
    let place = Place::new("required", &open, &[]);
    let none = || get(&place.server, "/poll?topic=room:1&timeout=0").status;
    assert_eq!(none(), 200);
    let mut early = Client::open(&place.server, Way::Ws, "topic=room:1", "").ok().unwrap();
    place.write("throng.toml", &format!("{base}required = true\n"));
    place.reload();
    place.server.until("it is required", |_| none() == 401);
    assert_eq!(place.poll(&by(FIRST)), 200);
    // Who has come before stays in what it has entered, and may do no more than others without a token.
    place.server.publish("room:1", json!("still"));
    assert_eq!(early.until("message"), "still");
    assert_eq!(early.ask(json!({"type": "subscribe", "topic": "room:2"})), "not_granted");
    assert!(early.ask(json!({"type": "connect", "token": by(FIRST)})).is_object());
    assert_eq!(early.ask(json!({"type": "subscribe", "topic": "room:2"}))["topic"], "room:2");
    // And without keys everybody is who they say, again.
    place.write("throng.toml", "[client]\npublish_prefixes = [\"room:\"]\n");
    place.reload();
    place.server.until("nothing is required", |_| none() == 200);
    let anybody = get(&place.server, "/poll?user=bo&timeout=0");
    assert_eq!(anybody.status, 200);
}
