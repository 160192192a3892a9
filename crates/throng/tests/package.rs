//! Files made from the command line (completions, manual pages), and the package that `scripts/package` makes: the
//! test unpacks it, and runs its binary.

use std::path::Path;
use std::process::Command;

use crate::support::*;

const THRONG: &str = env!("CARGO_BIN_EXE_throng");

/// Runs a command that must succeed. Returns what it prints.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns true if a program is installed.
fn is_there(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .unwrap()
        .status
        .success()
}

#[test]
fn completions_are_scripts_of_their_shells() {
    let folder = Scratch::new("completions");
    for shell in ["bash", "zsh", "fish"] {
        let script = run(Command::new(THRONG).args(["completions", shell]));
        for word in ["serve", "flood", "max-connections", "systemd"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        let path = folder.path().join(shell);
        std::fs::write(&path, script).unwrap();
        if shell == "bash" || is_there(shell) {
            run(Command::new(shell).arg("-n").arg(&path));
        }
    }
    // The completion that bash would offer after "throng se".
    let script = format!(
        ". {}; COMP_WORDS=(throng se) COMP_CWORD=1; _throng throng se throng; echo ${{COMPREPLY[@]}}",
        folder.path().join("bash").display()
    );
    assert_eq!(run(Command::new("bash").args(["-c", &script])).trim(), "serve");
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = Scratch::new("man");
    run(Command::new(THRONG).args(["man", "--output"]).arg(folder.path()));
    let mut names: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for name in ["throng.1", "throng-serve.1", "throng-flood-one-topic.1", "throng-store-check.1"] {
        assert!(names.iter().any(|it| it == name), "{name} is not among {names:?}");
    }
    for name in &names {
        let path = folder.path().join(name);
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}");
        if is_there("groff") {
            let mut groff = Command::new("groff");
            let output =
                groff.args(["-man", "-Kutf8", "-Tutf8", "-ww", "-z"]).arg(&path).output().unwrap();
            let warnings = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && warnings.is_empty(), "{name}: {warnings}");
        }
    }
    // Without a folder the command prints the first page.
    assert!(run(Command::new(THRONG).arg("man")).contains(".TH throng 1"));
}

#[test]
fn the_package_unpacks_and_serves() {
    let folder = Scratch::new("package");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut package = Command::new(root.join("scripts/package"));
    package.env("THRONG_BIN", THRONG).env("OUT", folder.path().join("out"));
    package.env("GZIP_LEVEL", "-1");
    let archive = run(&mut package);
    let archive = Path::new(archive.trim());
    let name = archive.file_name().unwrap().to_str().unwrap().strip_suffix(".tar.gz").unwrap();
    assert!(name.starts_with(concat!("throng-", env!("CARGO_PKG_VERSION"), "-")), "{name}");
    run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(folder.path()));
    let unpacked = folder.path().join(name);
    for file in [
        "LICENSE",
        "NOTICE",
        "README.md",
        "docs/README.md",
        "man/throng-serve.1",
        "completions/throng.zsh",
        "throng.toml",
    ] {
        assert!(unpacked.join(file).exists(), "{file}");
    }
    let unit = std::fs::read_to_string(unpacked.join("throng.service")).unwrap();
    // The unit must not have the path of this binary.
    for line in ["ExecStart=/usr/local/bin/throng serve", "User=throng", "ProtectHome=yes"] {
        assert!(unit.contains(line), "{line}: {unit}");
    }
    assert!(!unit.contains("folder of this binary"), "{unit}");
    assert!(!unit.contains(THRONG), "{unit}");
    let binary = unpacked.join("throng");
    let version = run(Command::new(&binary).arg("--version"));
    assert_eq!(version.trim(), concat!("throng ", env!("CARGO_PKG_VERSION")));
    // The files that INSTALL names exist.
    let install = std::fs::read_to_string(unpacked.join("INSTALL")).unwrap();
    for word in install.split_whitespace().filter(|word| word.starts_with("completions/")) {
        assert!(unpacked.join(word).exists(), "{word}");
    }
    let mut serve = Command::new(&binary);
    serve.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let server = Server::run(serve, &[]);
    let mut stream = server.listen("/sse?topic=news");
    server.until_members("news", 1);
    server.publish("news", "from a package".into());
    assert_eq!(stream.data(), "from a package");
}
