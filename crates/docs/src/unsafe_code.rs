//! Every `unsafe` of the workspace has a row in ARCHITECTURE.md, which says why it must be and why it is
//! sound; a new one without a row fails here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Crates with `unsafe`; all others forbid it.
const WITH: [&str; 6] = ["bench", "flood", "shard", "store", "throng", "tune"];

/// How often the keyword stands in a function, by the function's file and name.
type Found = BTreeMap<(String, String), usize>;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "node_modules" && name != "target" {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether the keyword stands in a line, where what follows it is a block or an item.
fn has_keyword(line: &str) -> usize {
    let code = line.split("//").next().unwrap_or_default();
    let is_word = |c: char| c.is_alphanumeric() || "_-'\"`".contains(c);
    code.match_indices("unsafe")
        .filter(|(at, word)| {
            let (before, after) = (&code[..*at], &code[at + word.len()..]);
            let follows = after.trim_start();
            let is_item = ["{", "fn ", "impl ", "impl<", "trait ", "extern ", "mod "]
                .iter()
                .any(|start| follows.starts_with(start));
            !before.ends_with(is_word)
                && !after.starts_with(is_word)
                && (is_item || follows.is_empty())
        })
        .count()
}

/// The name of the function that begins in a line.
fn function(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let is_start = before.split_whitespace().all(|word| {
        ["pub", "const", "async", "unsafe", "extern", "\"C\""].contains(&word)
            || word.starts_with("pub(")
            || word.ends_with(')')
    });
    let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    (is_start && !name.is_empty()).then_some(name)
}

fn in_text(file: &str, text: &str, found: &mut Found) {
    let mut name = "";
    for line in text.lines() {
        name = function(line).unwrap_or(name);
        let count = has_keyword(line);
        if count > 0 {
            *found.entry((file.to_owned(), name.to_owned())).or_default() += count;
        }
    }
}

/// What the sources have.
fn in_sources() -> Found {
    let (root, mut files, mut found) = (root(), Vec::new(), Found::new());
    for folder in ["crates", "examples", "fuzz"] {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 300, "{}", files.len());
    for path in files {
        // This file speaks of the keyword.
        if path.ends_with("docs/src/unsafe_code.rs") {
            continue;
        }
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        let name = name.strip_prefix("crates/").unwrap_or(name);
        in_text(name, &std::fs::read_to_string(&path).unwrap(), &mut found);
    }
    found
}

/// What the table has: `file`, `function` (with a count if there are several), and two reasons.
fn in_table() -> Found {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, chapter) = text.split_once("\n## Every `unsafe`\n").expect("the chapter");
    let chapter = chapter.split("\n## ").next().unwrap();
    let rows = chapter.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [file, place, why, sound] = cells.as_slice() else { panic!("{row}") };
        assert!(why.len() > 5 && sound.len() > 5, "{row}");
        let (function, count) = match place.split_once(" × ") {
            Some((function, count)) => (function, count.parse().expect(row)),
            None => (*place, 1),
        };
        ((file.replace('`', ""), function.replace('`', "")), count)
    })
    .collect()
}

#[test]
fn every_unsafe_has_a_row() {
    let (code, table) = (in_sources(), in_table());
    for (place, count) in &code {
        let listed = table.get(place);
        assert_eq!(
            listed,
            Some(count),
            "{place:?}: say in ARCHITECTURE.md (Every `unsafe`) why it must be, and why it is sound"
        );
    }
    for place in table.keys() {
        assert!(code.contains_key(place), "{place:?} of ARCHITECTURE.md is there no longer");
    }
}

#[test]
fn all_other_crates_forbid_it() {
    let mut crates = 0;
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let entry = ["src/lib.rs", "src/main.rs"].map(|file| path.join(file));
        let Some(entry) = entry.iter().find(|file| file.exists()) else { continue };
        crates += 1;
        let forbids = std::fs::read_to_string(entry).unwrap().contains("#![forbid(unsafe_code)]");
        assert_eq!(forbids, !WITH.contains(&&*name), "{name}");
    }
    assert!(crates > 20, "{crates}");
}

#[test]
fn the_keyword_is_found_where_it_is_one() {
    let text = "pub(super) fn a() {\n  unsafe { x() };\n  // unsafe { }\n  let unsafe_x = 'unsafe-inline';\n\
                  let f = unsafe {\n}\npub unsafe fn b() {}\n#![allow(unsafe_code)]\nunsafe impl S for X {}\n\
                  fn c() { \"unsafe\" }\n";
    let mut found = Found::new();
    in_text("f.rs", text, &mut found);
    let count = |name: &str| found.get(&("f.rs".to_owned(), name.to_owned())).copied();
    assert_eq!((count("a"), count("b"), count("c")), (Some(2), Some(2), None));
}
