//! `throng token`: a real server accepts the tokens that it makes, and agrees with its verdicts.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::*;
use serde_json::{Value, json};

const SHARED: &str = "0123456789abcdef0123456789abcdef";

/// Private keys, their public keys, and the default algorithms of their tokens.
const PAIRS: [(&str, &str, &str, &str); 3] = [
    (
        "rsa",
        "RS256",
        include_str!("../../token/src/tests/rsa.pem"),
        include_str!("../../token/src/tests/rsa.pub.pem"),
    ),
    (
        "p256",
        "ES256",
        include_str!("../../token/src/tests/p256.pem"),
        include_str!("../../token/src/tests/p256.pub.pem"),
    ),
    (
        "ed25519",
        "EdDSA",
        include_str!("../../token/src/tests/ed25519.pem"),
        include_str!("../../token/src/tests/ed25519.pub.pem"),
    ),
];

/// Creates a folder with this configuration.
fn folder_with(config: &str) -> Scratch {
    let folder = Scratch::new("token");
    folder.write("throng.toml", config);
    folder
}

fn serve(folder: &Path) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "1"]);
    Server::run_in(folder, command, &[], Stdio::inherit())
}

/// Runs the command with this standard input.
fn throng(folder: &Path, args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.current_dir(folder).arg("token").args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that does not read its input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    printed_within(child)
}

fn make(folder: &Path, args: &[&str]) -> String {
    let output = throng(folder, &[&["make"], args].concat(), "");
    assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.ends_with('\n') && text.lines().count() == 1, "{text}");
    text.trim().into()
}

/// Returns the exit status and the output of `throng token read`.
fn read(folder: &Path, token: &str) -> (Option<i32>, String) {
    let output = throng(folder, &["read", token], "");
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), text + &String::from_utf8(output.stderr).unwrap())
}

/// Returns a line of the output of `read`.
fn row(text: &str, name: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(name));
    line.unwrap_or_else(|| panic!("{name} in {text}"))[8..].to_string()
}

fn claims(folder: &Path, token: &str) -> Value {
    serde_json::from_str(&row(&read(folder, token).1, "claims")).unwrap()
}

/// Returns the status and the code of a poll of this topic with this token.
fn poll(server: &Server, topic: &str, token: &str) -> (u16, Value) {
    let (status, body) = server.get(&format!("/poll?timeout=0&topic={topic}&token={token}"));
    (status, body["error"]["code"].clone())
}

fn required(more: &str) -> String {
    format!("[auth]\nrequired = true\n{more}")
}

fn shared(more: &str) -> String {
    required(&format!("hmac_key = \"{SHARED}\"\n{more}"))
}

#[test]
fn a_server_takes_a_token_for_what_it_says() {
    let rule = "[[topics]]\npattern = \"room:*\"\npublish = \"allow\"\n";
    let scratch = folder_with(&shared(rule));
    let folder = scratch.path();
    let server = serve(folder);
    let token = make(
        folder,
        &[
            "--user",
            "al",
            "--user",
            "bo",
            "--subscribe",
            "room:*",
            "--publish",
            "room:{sub}",
            "--presence",
            "room:1",
            "--history",
            "room:2",
            "--info",
            r#"{"name":"Al"}"#,
            "--id",
            "one",
        ],
    );
    assert_eq!(poll(&server, "room:7", &token).0, 200);
    assert_eq!(poll(&server, "news", &token).0, 403);
    assert_eq!(poll(&server, "room:7", &token[..token.len() - 3]).0, 401);
    let publish = |topic: &str| {
        let bearer = format!("Authorization: Bearer {token}\r\n");
        text(server.client, "POST", &format!("/publish?topic={topic}"), Some(json!(1)), &bearer).0
    };
    assert_eq!(["room:al", "room:bo", "room:cy"].map(publish), [200, 200, 403]);
    let mut stream = server.listen(&format!("/stream?topic=room:1&token={token}"));
    server.publish("room:1", json!("for those within"));
    while stream.next_object()["data"] != "for those within" {}
    for user in ["al", "bo"] {
        let (_, reply) = server.api("GET", &format!("/api/users/{user}"), None);
        assert_eq!(reply["count"], 1, "{reply}");
    }

    let said = claims(folder, &token);
    assert_eq!(
        (&said["sub"], &said["users"], &said["jti"]),
        (&json!("al"), &json!(["bo"]), &json!("one"))
    );
    assert_eq!(said["exp"].as_u64().unwrap() - said["iat"].as_u64().unwrap(), 3_600);
    assert_eq!(said["throng"]["info"], json!({"name": "Al"}));
    let (code, text) = read(folder, &token);
    assert_eq!(code, Some(0), "{text}");
    assert!(row(&text, "expires").starts_with("in 3"), "{text}");
    let granted = "verdict accepted: al, bo\n        subscribe: room:*\n        publish: room:{sub}\n        \
                   presence: room:1\n        history: room:2\n";
    assert!(text.ends_with(granted), "{text}");
}

#[test]
fn a_token_for_one_topic_opens_that_topic_beside_the_users() {
    let scratch = folder_with(&shared(""));
    let folder = scratch.path();
    let user = make(folder, &["--user", "al", "--subscribe", "news"]);
    let topic = make(folder, &["--user", "al", "--topic", "secret", "--seconds", "60"]);
    let (code, text) = read(folder, &topic);
    let decision = row(&text, "verdict");
    assert_eq!((code, &*decision), (Some(0), "accepted: al may enter secret"), "{text}");
    let server = serve(folder);
    let mut socket = websocket(&server, &format!("token={user}"));
    let mut enter = |fields: Value| {
        let mut subscribe = json!({"type": "subscribe", "id": 1, "topic": "secret"});
        subscribe.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        command(&mut socket, subscribe)
    };
    assert_eq!(enter(json!({}))["error"]["code"], "not_granted");
    let entered = enter(json!({ "token": topic }));
    assert!(entered["ok"].is_object(), "{entered}");
    // A topic token does not name the client's user.
    assert_eq!(poll(&server, "secret", &topic).0, 401);
    let both = throng(folder, &["make", "--user", "al", "--topic", "a", "--subscribe", "b"], "");
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

#[test]
fn private_keys_sign_as_their_kind_has_it_or_as_one_says() {
    let names: Vec<String> = PAIRS.iter().map(|(name, ..)| format!("\"{name}.pub.pem\"")).collect();
    let scratch = folder_with(&required(&format!("public_key_files = [{}]\n", names.join(", "))));
    let folder = scratch.path();
    for (name, _, private, public) in PAIRS {
        write_secret(&folder.join(format!("{name}.pem")), private);
        std::fs::write(folder.join(format!("{name}.pub.pem")), public).unwrap();
    }
    let server = serve(folder);
    let signed = |file: &str, more: &[&str]| {
        let token = make(
            folder,
            &[&["--user", "al", "--subscribe", "*", "--key-file", file], more].concat(),
        );
        let (code, text) = read(folder, &token);
        let header: Value = serde_json::from_str(&row(&text, "header")).unwrap();
        assert_eq!((code, poll(&server, "a", &token).0), (Some(0), 200), "{text}");
        header
    };
    for (name, algorithm, ..) in PAIRS {
        assert_eq!(signed(&format!("{name}.pem"), &[])["alg"], algorithm);
    }
    let header = signed("rsa.pem", &["--algorithm", "PS256", "--key-id", "one"]);
    assert_eq!((&header["alg"], &header["kid"]), (&json!("PS256"), &json!("one")));

    // With a key of another kind, a key that can't sign, or none, the command makes no token, and prints the remedy.
    let wrong = |args: &[&str]| {
        let output = throng(folder, &[&["make", "--user", "al"], args].concat(), "");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    wrong(&["--key-file", "p256.pem", "--algorithm", "RS256"]);
    assert!(wrong(&["--key-file", "p256.pub.pem"]).contains("openssl genpkey"));
    assert!(wrong(&["--key-file", "gone.pem"]).contains("gone.pem"));
    assert!(wrong(&[]).contains("name a file with --key-file"));
    assert!(wrong(&["--key-file", "rsa.pem", "--algorithm", "none"]).contains("or EdDSA"));
    assert!(wrong(&["--key-file", "rsa.pem", "--info", "[1]"]).contains("not a JSON object"));

    // An editor has added a line break to a shared key in a file, so it is another key.
    write_secret(&folder.join("shared"), &format!("{SHARED}\n"));
    let token = make(folder, &["--user", "al", "--key-file", "shared"]);
    let (code, text) = read(folder, &token);
    assert_eq!((code, poll(&server, "a", &token).0), (Some(3), 401), "{text}");
    drop(server);
    std::fs::write(folder.join("throng.toml"), shared("")).unwrap();
    assert_eq!(read(folder, &token).0, Some(0));
}

#[test]
fn the_issuer_and_the_audience_are_those_of_the_configuration_unless_said() {
    let config = shared("issuers = [\"https://first\", \"second\"]\naudience = \"here\"\n");
    let scratch = folder_with(&config);
    let folder = scratch.path();
    let server = serve(folder);
    let mut tokens = Vec::new();
    for (args, issuer, audience, taken) in [
        (&[][..], "https://first", "here", true),
        (&["--issuer", "second"], "second", "here", true),
        (&["--issuer", "third"], "third", "here", false),
        (&["--audience", "there"], "https://first", "there", false),
    ] {
        let token = make(folder, &[&["--user", "al", "--subscribe", "*"], args].concat());
        let said = claims(folder, &token);
        assert_eq!((&said["iss"], &said["aud"]), (&json!(issuer), &json!(audience)));
        let (code, text) = read(folder, &token);
        let (status, error) = poll(&server, "a", &token);
        assert_eq!((code, status), if taken { (Some(0), 200) } else { (Some(3), 401) }, "{text}");
        // The command prints the same code as the server.
        if !taken {
            let want = format!("rejected ({}): ", error.as_str().unwrap());
            assert!(row(&text, "verdict").starts_with(&want), "{want}: {text}");
        }
        tokens.push(token);
    }
    // Without a configuration the command adds nothing and verifies nothing.
    std::fs::write(folder.join("throng.toml"), "").unwrap();
    write_secret(&folder.join("shared"), SHARED);
    let bare = make(folder, &["--user", "al", "--key-file", "shared", "--seconds", "0"]);
    let said = claims(folder, &bare);
    let names: Vec<&String> = said.as_object().unwrap().keys().collect();
    assert_eq!(names, ["iat", "sub"]);
    let (code, text) = read(folder, &bare);
    assert!(code == Some(0) && row(&text, "verdict").starts_with("not checked"), "{text}");
}

#[test]
fn a_token_is_read_from_standard_input_and_judged_by_the_exit_status() {
    let scratch = folder_with(&shared(""));
    let folder = scratch.path();
    let good = make(folder, &["--user", "al"]);
    for args in [&["read"][..], &["read", "-"]] {
        let output = throng(folder, args, &format!("  {good}\n"));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(String::from_utf8(output.stdout).unwrap().contains("verdict accepted: al\n"));
        assert!(output.stderr.is_empty(), "nobody sits at a pipe");
    }
    let old = make(folder, &["--user", "al", "--seconds", "1"]);
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    let output = throng(folder, &["read"], &old);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(row(&text, "expires").contains(" s ago ("), "{text}");
    assert!(row(&text, "verdict").starts_with("rejected (token_expired): "), "{text}");
    // A signature of another token, and texts that are no token.
    let forged = format!("{}{}", &good[..good.len() - 43], &old[old.len() - 43..]);
    let (code, text) = read(folder, &forged);
    assert!(code == Some(3) && row(&text, "verdict").starts_with("rejected ("), "{text}");
    for junk in ["", "a.b", "a.b.c", "not a token"] {
        let output = throng(folder, &["read"], junk);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{junk}: {text}");
        assert!(text.contains("not a JSON Web Token") && output.stdout.is_empty(), "{text}");
    }
}
