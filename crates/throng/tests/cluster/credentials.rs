//! Nodes log in to NATS with a user's credentials: the operator signs the account's JWT, and the account signs the
//! user's JWT.

use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

use super::support::*;
use super::{stream, until_end};
use crate::support::*;

/// Returns a NATS JWT, version 2, about the key `subject`.
fn jwt(signer: &KeyPair, subject: &KeyPair, nats: Value) -> String {
    let claims = json!({
        "jti": subject.public_key(),
        "iat": 1_700_000_000,
        "iss": signer.public_key(),
        "name": "throng",
        "sub": subject.public_key(),
        "nats": nats,
    });
    let encoded = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text =
        format!("{}.{}", encoded(json!({"typ": "JWT", "alg": "ed25519-nkey"})), encoded(claims));
    let signature = signer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Returns the text that `nsc generate creds` prints for a new user of an account.
fn credentials(account: &KeyPair) -> String {
    let user = KeyPair::new_user();
    let limits = json!({"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2});
    format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        jwt(account, &user, limits),
        user.seed().unwrap()
    )
}

/// Returns a NATS configuration that accepts the users of an account.
fn nats_config(account: &KeyPair) -> String {
    let operator = KeyPair::new_operator();
    let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1});
    let of_account = json!({"limits": limits, "type": "account", "version": 2});
    format!(
        "operator: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {} }}\n",
        jwt(&operator, &operator, json!({"type": "operator", "version": 2})),
        account.public_key(),
        jwt(&operator, account, of_account)
    )
}

#[test]
fn nats_lets_in_the_users_of_an_account_and_new_credentials_count_after_sighup() {
    let account = KeyPair::new_account();
    let scratch = Scratch::new("credentials");
    let config = scratch.write("nats.conf", &nats_config(&account)).display().to_string();
    let nats = Nats::with(&["-c", &config]);
    let write = |text: &str| write_secret(&scratch.path().join("throng.creds"), text);
    write(&credentials(&KeyPair::new_account()));
    let file = "[cluster]\ncredentials_file = \"throng.creds\"\n";
    let file = scratch.write("throng.toml", file).display().to_string();
    let flags = ["--config", &file, "--cluster", &nats.url()];
    let a = Server::with(&flags, &[]);
    a.until("NATS refuses it", |a| state(a)["nats"]["error"].is_string());
    assert_eq!(state(&a)["nats"]["connected"], false);
    write(&credentials(&account));
    let b = Server::with(&flags, &[]);
    a.signal("-HUP");
    for node in [&a, &b] {
        until_nodes(node, 1);
    }
    let mut member = stream(&b, "topic=t");
    a.until_members("t", 1);
    a.publish("t", json!("end"));
    assert!(until_end(&mut member).is_empty());
}

#[test]
fn credentials_that_are_none_are_refused_with_the_file() {
    let scratch = Scratch::new("credentials");
    let path = scratch.path().join("throng.creds");
    write_secret(&path, "a password\n");
    let file = "[cluster]\nurls = [\"nats://127.0.0.1:1\"]\ncredentials_file = \"throng.creds\"\n";
    let file = scratch.write("throng.toml", file).display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    let output = output_within(command.args(["serve", "--config", &file]));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    let named = format!("cluster.credentials_file, {}: there is no block", path.display());
    assert!(error.contains(&named) && !error.contains("a password"), "{error}");
}
