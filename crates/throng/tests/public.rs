//! `throng config --check --public`: whether a configuration is fit for a server on the public Internet.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::*;

/// Returns the exit status and the output.
fn judge(folder: &Path, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    let output = output_within(command.current_dir(folder).arg("config").args(args));
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn what_is_not_configured_is_not_for_the_public() {
    let scratch = Scratch::new("public");
    let folder = scratch.path();
    let (code, text) = judge(folder, &["--check", "--public"]);
    assert!(code == Some(3) && text.ends_with("\nnot fit for the public: 3 errors\n"), "{text}");
    assert!(text.starts_with("error    tokens         no client needs a token"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert_eq!(judge(folder, &["--check"]), (Some(0), "ok\n".into()));
    // The flag is only valid with --check.
    assert_eq!(judge(folder, &["--public"]).0, Some(2));
    // Errors of the configuration show as usual.
    std::fs::write(folder.join("throng.toml"), "[limits]\nconnection_max = 1\n").unwrap();
    let (code, text) = judge(folder, &["--check", "--public"]);
    assert!(code == Some(2) && text.contains("did you mean limits.connections_max?"), "{text}");
}

#[test]
fn a_secret_that_everybody_on_the_host_can_read_is_an_error() {
    let scratch = Scratch::new("public");
    let folder = scratch.path();
    let config = folder.join("throng.toml");
    let secret = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let text = format!(
        "[client]\ncors_origins = [\"https://a.example\"]\ntrusted_proxies = [\"127.0.0.1\"]\n\
         [auth]\nhmac_key = \"{secret}\"\nrequired = true\n\
         [limits]\nconnections_per_address_max = 100\n"
    );
    std::fs::write(&config, text).unwrap();
    let with_mode = |mode: u32| {
        std::fs::set_permissions(&config, std::fs::Permissions::from_mode(mode)).unwrap();
        judge(folder, &["--check", "--public"])
    };
    let (code, text) = with_mode(0o600);
    let want = "if you intend what the warnings are about";
    assert!(code == Some(0) && text.contains(want), "{text}");
    let (code, text) = with_mode(0o644);
    assert!(
        code == Some(3) && text.contains("\nerror    files          auth.hmac_key: "),
        "{text}"
    );
    assert!(!text.contains(secret), "{text}");
}
