//! Checks commands that the tests do not run: that they exist, and accept these flags.

use std::path::Path;
use std::process::{Command, Stdio};

/// Returns true for a command of the repository that no test may run by accident.
pub fn is_large(line: &str) -> bool {
    let mut words =
        line.split_whitespace().skip_while(|word| word.contains('=') && !word.starts_with('-'));
    words.next().is_some_and(|word| {
        word == "cargo" || word.starts_with("bench/") || word.starts_with("scripts/")
    })
}

/// Fails if a text is no valid command.
pub fn check(root: &Path, text: &str) -> Result<(), String> {
    // Brackets hold the values that the reader chooses.
    let end = [" <", " ["].iter().filter_map(|bracket| text.find(bracket)).min();
    let text = &text[..end.unwrap_or(text.len())];
    let bash = Command::new("bash").args(["-n", "-c", text]).output().unwrap();
    if !bash.status.success() {
        return Err(String::from_utf8_lossy(&bash.stderr).into_owned());
    }
    let text = text.replace("\\\n", " ");
    text.lines().filter(|line| !line.trim().is_empty()).try_for_each(|line| command(root, line))
}

fn command(root: &Path, line: &str) -> Result<(), String> {
    // Only the command before a pipe or a redirection is checked.
    let line = line.split([';', '|', '&', '>']).next().unwrap_or_default();
    let is_variable = |word: &&str| word.contains('=') && !word.starts_with('-');
    let mut words = line.split_whitespace().skip_while(is_variable);
    let (Some(first), rest) = (words.next(), words.collect::<Vec<_>>()) else { return Ok(()) };
    let exists = |path: &Path| match path.exists() {
        true => Ok(()),
        false => Err(format!("{line}: there is no {}", path.display())),
    };
    match first {
        "throng" => takes(line, &rest),
        "cargo" if rest.starts_with(&["run", "--release"]) => match rest.get(2) {
            Some(&"--") => takes(line, &rest[3..]),
            Some(&"-p") => package(root, rest.get(3).copied().unwrap_or_default()),
            _ => Ok(()),
        },
        "cargo" => {
            let after =
                |flag| rest.iter().position(|it| *it == flag).and_then(|at| rest.get(at + 1));
            if let Some(name) = after("-p") {
                package(root, name)?;
            }
            match after("--bench") {
                Some(name) => exists(&root.join(format!("crates/bench/benches/{name}.rs"))),
                None => Ok(()),
            }
        }
        script if script.starts_with("bench/") || script.starts_with("scripts/") => {
            let path = root.join(script);
            exists(&path)?;
            let is_python = std::fs::read(&path).unwrap().starts_with(b"#!/usr/bin/env python3");
            let (program, options) = match is_python {
                true => {
                    ("python3", &["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"][..])
                }
                false => ("bash", &["-n"][..]),
            };
            let output = Command::new(program).args(options).arg(&path).output().unwrap();
            match output.status.success() {
                true => Ok(()),
                false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            }
        }
        _ => Ok(()),
    }
}

/// Runs `throng WORDS --help`, which fails if a word is unknown.
fn takes(line: &str, words: &[&str]) -> Result<(), String> {
    // A placeholder ends the words, since the parser does not know it.
    let words = words.iter().take_while(|word| !word.starts_with(['…', '#', '[', '<']));
    let mut throng = Command::new(env!("CARGO_BIN_EXE_throng"));
    let words = words.map(|word| word.trim_matches('\''));
    let words: Vec<&str> = words.collect();
    let help = (words.first() != Some(&"help")).then_some("--help");
    let output = throng.args(words).args(help).stdin(Stdio::null()).output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn package(root: &Path, name: &str) -> Result<(), String> {
    let folders =
        ["crates", "examples"].map(|folder| root.join(folder).join(name).join("Cargo.toml"));
    match folders.iter().any(|path| path.exists()) {
        true => Ok(()),
        false => Err(format!("there is no package {name}")),
    }
}
