//! Keys of the API with a real server: made by `throng key`, changed by a reload, named in the log.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use support::*;

/// A folder of its own for each test.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join("throng-tests").join(format!("keys-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn throng(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.current_dir(folder).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Makes a key, adds its table to the configuration, and gives the key.
fn make(folder: &Path, name: &str, args: &[&str]) -> String {
    let file = format!("{name}.key");
    let made = throng(folder, &[&["key", "new", "--name", name, "--output", &file], args].concat());
    assert!(made.status.success(), "{made:?}");
    let table = String::from_utf8(made.stdout).unwrap();
    let key = std::fs::read_to_string(folder.join(&file)).unwrap().trim().to_owned();
    assert!(table.starts_with("[[keys]]\n") && !table.contains(&key), "{table}");
    let config = folder.join("throng.toml");
    let before = std::fs::read_to_string(&config).unwrap_or_default();
    std::fs::write(config, before + &table).unwrap();
    key
}

fn serve(folder: &Path, log: Stdio) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "1"]);
    Server::run_in(folder, command, &[("THRONG_LOG_LEVEL", "debug")], log)
}

fn call(
    server: &Server,
    method: &str,
    target: &str,
    key: &str,
    body: Option<Value>,
) -> (u16, Value) {
    json(server.admin, method, target, body, &format!("Authorization: Bearer {key}\r\n"))
}

#[test]
fn keys_are_made_used_and_taken_away() {
    let folder = folder("life");
    let rooms = make(&folder, "rooms", &["--scope", "publish:room:*", "--scope", "publish:@*"]);
    let ops = make(&folder, "ops", &["--scope", "read", "--expires", "2090-01-01"]);
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let server = serve(&folder, log.into());
    assert_eq!(server.api("GET", "/api/stats", None).0, 401);
    assert_eq!(call(&server, "GET", "/api/stats", &ops, None).0, 200);
    let mut stream = server.listen("/stream?topic=room:1&user=al");
    let to = |topic: &str| Some(json!({"topic": topic, "data": format!("to {topic}")}));
    assert_eq!(call(&server, "POST", "/api/publish", &rooms, to("room:1")).0, 200);
    let (status, error) = call(&server, "POST", "/api/publish", &rooms, to("news"));
    assert_eq!((status, &error["error"]["code"]), (403, &json!("insufficient_scope")));
    assert_eq!(call(&server, "POST", "/api/publish", &ops, to("room:1")).0, 403);
    let all = Some(json!({"data": "no"}));
    assert_eq!(call(&server, "POST", "/api/broadcast", &rooms, all).0, 403);
    let al = Some(json!({"user": "al", "data": "to al"}));
    assert_eq!(call(&server, "POST", "/api/send", &rooms, al).0, 200);
    for want in ["to room:1", "to al"] {
        while stream.object()["data"] != want {}
    }
    // What may not be published goes to nobody, and the configuration shows no hash.
    let (_, config) = call(&server, "GET", "/api/config", &ops, None);
    let config = config["toml"].as_str().unwrap();
    assert!(config.contains("name = \"rooms\"") && !config.contains("sha256:"), "{config}");

    // The file without the first key.
    let text = std::fs::read_to_string(folder.join("throng.toml")).unwrap();
    let (_, second) = text.rsplit_once("[[keys]]").unwrap();
    std::fs::write(folder.join("throng.toml"), format!("[[keys]]{second}")).unwrap();
    server.signal("-HUP");
    server.until("the key is gone", |server| {
        call(server, "POST", "/api/publish", &rooms, to("room:1")).0 == 401
    });
    assert_eq!(call(&server, "GET", "/api/stats", &ops, None).0, 200);
    drop(server);
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    assert!(log.contains("key=\"rooms\"") && log.contains("key=\"ops\""), "{log}");
    assert!(!log.contains(&rooms) && !log.contains(&ops), "{log}");
}

#[test]
fn a_key_is_checked_against_the_configuration() {
    let folder = folder("check");
    make(&folder, "old", &["--scope", "admin", "--expires", "2001-01-01"]);
    make(&folder, "ops", &["--scope", "read", "--scope", "publish:*"]);
    let check = |file: &str| {
        let output = throng(&folder, &["key", "check", file]);
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text + &String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(check("ops.key"), (Some(0), "ops: read, publish:*, without end\n".into()));
    let (code, text) = check("old.key");
    assert!(code == Some(3) && text.starts_with("old: admin; it has expired "), "{text}");
    std::fs::rename(folder.join("throng.toml"), folder.join("other.toml")).unwrap();
    assert_eq!(check("ops.key"), (Some(3), "this is no key of the configuration\n".into()));
}

#[test]
fn mistakes_are_found_before_a_key_is_made() {
    let folder = folder("mistakes");
    let error = |args: &[&str]| {
        let output = throng(&folder, &[&["key", "new"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error(&["--name", "a"]).contains("--scope"));
    assert!(error(&["--name", "a", "--scope", "write"]).contains("a scope is \"admin\""));
    let name = error(&["--name", "a b", "--scope", "read"]);
    assert!(name.starts_with("error: --name: a name has letters, digits"), "{name}");
    let time = error(&["--name", "a", "--scope", "read", "--expires", "soon", "--output", "k"]);
    assert!(time.starts_with("error: --expires: expected a date or a time"), "{time}");
    assert!(!folder.join("k").exists());
    // A file that is there is left as it is, for it may hold a key.
    make(&folder, "k", &["--scope", "read"]);
    let again =
        throng(&folder, &["key", "new", "--name", "b", "--scope", "read", "--output", "k.key"]);
    assert_eq!(again.status.code(), Some(1));
    let mode = std::fs::metadata(folder.join("k.key")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
}
