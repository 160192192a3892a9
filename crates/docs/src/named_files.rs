//! ARCHITECTURE.md, CONTRIBUTING.md and docs/internals name files of the sources: each exists.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the pages, by their paths.
fn pages() -> Vec<PathBuf> {
    let internals = std::fs::read_dir(root().join("docs/internals")).unwrap();
    let mut pages: Vec<PathBuf> = internals.map(|entry| entry.unwrap().path()).collect();
    pages.extend(["ARCHITECTURE.md", "CONTRIBUTING.md"].map(|page| root().join(page)));
    pages
}

/// Returns the words in backticks that name a file or a folder of a crate: `engine/src/core/mod.rs`.
fn named(text: &str) -> Vec<&str> {
    let mut named = Vec::new();
    for line in text.lines() {
        let words = line.split('`').skip(1).step_by(2);
        named.extend(words.filter(|word| {
            let is_path =
                word.contains("/src") || word.contains("/tests") || word.contains("/fuzz");
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
            is_path && !word.starts_with('/') && word.chars().all(is_plain)
        }));
    }
    named
}

fn is_there(name: &str) -> bool {
    ["", "crates"].iter().any(|folder| root().join(Path::new(folder)).join(name).exists())
}

#[test]
fn each_named_file_is_there() {
    let (mut count, mut missing) = (0, Vec::new());
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let named = named(&text);
        count += named.len();
        let gone = named.into_iter().filter(|name| !is_there(name));
        missing.extend(gone.map(|name| format!("{}: {name}", page.display())));
    }
    assert!(count > 250, "{count}");
    assert!(missing.is_empty(), "these files don't exist:\n{}", missing.join("\n"));
}

#[test]
fn a_name_of_a_file_is_distinguished_from_others() {
    let text = "`engine/src/lib.rs` and `Engine::new`, `/api/stats`, `cargo test x/src/a.rs`,\n\
                `throng/tests/docs`";
    assert_eq!(named(text), ["engine/src/lib.rs", "throng/tests/docs"]);
    assert!(
        is_there("engine/src/lib.rs")
            && is_there("crates/engine/src")
            && !is_there("engine/src/x.rs")
    );
}

/// Returns the diff of the first change in CONTRIBUTING.md: its files, with the lines of each hunk that must exist.
fn first_change(page: &str) -> Vec<(String, String)> {
    let (_, diff) = page.split_once("\n````diff\n").expect("a diff");
    let (diff, _) = diff.split_once("\n````\n").expect("its end");
    let (mut file, mut hunks) = (String::new(), Vec::<(String, String)>::new());
    for line in diff.lines() {
        match line.split_at_checked(1) {
            _ if line.starts_with("+++ ") => {}
            _ if line.starts_with("--- a/") => file = line.replace("--- a/", ""),
            Some(("@", _)) => hunks.push((file.clone(), String::new())),
            Some((" " | "-", text)) => {
                let hunk = &mut hunks.last_mut().expect("a hunk").1;
                hunk.push_str(text);
                hunk.push('\n');
            }
            _ => assert!(line.is_empty() || line.starts_with('+'), "{line}"),
        }
    }
    hunks
}

#[test]
fn the_first_change_fits_the_code() {
    let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let hunks = first_change(&page);
    assert!(hunks.len() > 5, "{hunks:?}");
    for (file, lines) in hunks {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        assert!(text.contains(&lines), "CONTRIBUTING.md: {file} has no longer\n{lines}");
    }
}
