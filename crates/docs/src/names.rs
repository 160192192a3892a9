//! Names in the sources are the terms of docs/internals/glossary.md: no identifier and no file name has a word that
//! the project has given up.

use std::path::{Path, PathBuf};

/// Words that are given up, each with its substitute. The list grows with each word that the sources lose.
const GIVEN_UP: &[(&str, &str)] = &[
    ("badge", "grant set"),
    ("badges", "grant sets"),
    ("brought", "delivered"),
    ("intake", "request queue"),
    ("kit", "support"),
    ("overlaps", "dedup"),
    ("parked", "pending"),
    ("roomy", "shrink"),
    ("special", "per member"),
    ("teller", "event sender"),
    ("telling", "event queue"),
    ("tidy", "shrink"),
];

/// Names that stay although they have such a word, by their path: users see them as settings, as fields and schemas
/// of the API, and as fuzz targets.
const SEEN_BY_USERS: &[(&str, &str)] = &[
    ("", "answer_filters"),
    ("control/src/api/login.rs", "LoginAnswer"),
    ("control/src/api/login.rs", "LogoutAnswer"),
    ("control/src/api/subscriptions/mod.rs", "Answer"),
    ("control/src/monitor", "answers"),
    ("fuzz_targets", "answer"),
];

/// Crates whose names come last.
const TOOLS: &[&str] = &["bench", "flood", "top", "tune"];

/// Words that are given up in all crates but the tools.
const GIVEN_UP_BY_SERVER: &[(&str, &str)] = &[
    ("answer", "reply or response"),
    ("answered", "replied"),
    ("answering", "replying"),
    ("answers", "replies or responses"),
    ("anybody", "anonymous"),
    ("asked", "requested"),
    ("hear", "receive"),
    ("heard", "received, an event"),
    ("hearing", "subscribers"),
    ("hears", "receives"),
    ("held", "pending, retained or open"),
    ("hold", "pause, reserve or pending"),
    ("kept", "retained, persistent or stored"),
    ("life", "lifetime"),
    ("lives", "lifetimes"),
    ("look", "scan, verify or poll"),
    ("looked", "scanned"),
    ("looking", "verifying"),
    ("looks", "verifies"),
    ("nobody", "no client, no member"),
    ("nobodys", "no client's"),
    ("question", "request"),
    ("questions", "requests"),
    ("room", "capacity or space"),
    ("rooms", "capacity or space"),
    ("somebody", "the client, the user"),
    ("spelling", "typo"),
    ("tell", "notify"),
    ("tells", "notifies"),
    ("told", "notified, reported, an event"),
    ("unanswered", "without reply"),
    ("unheld", "without account"),
    ("unkept", "unsaved"),
    ("unwanted", "without interest, abandoned"),
    ("verdict", "decision"),
    ("verdicts", "decisions"),
    ("wanted", "requested, subscribed or expected"),
    ("whoever", "the client, the user"),
];

/// Returns the words of an identifier or a file name: `PollOver` and `poll_over` have the same.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        let begins = c.is_uppercase() && was_lower;
        if !c.is_alphanumeric() || begins {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().expect("there is one").extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns the code of a file, without its comments and strings.
fn code(text: &str) -> String {
    let (mut code, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(['/', '"', '\'']) {
        let (before, from) = rest.split_at(at);
        code.push_str(before);
        let length = if from.starts_with("//") {
            from.find('\n').unwrap_or(from.len())
        } else if from.starts_with('"') {
            string_bytes(before, from)
        } else if from.starts_with("'\"'") {
            3
        } else {
            code.push_str(&from[..1]);
            rest = &from[1..];
            continue;
        };
        code.push(' ');
        rest = &from[length..];
    }
    code + rest
}

/// Returns the length of a string with its quotes, from the text before it and the text from its first quote on.
fn string_bytes(before: &str, from: &str) -> usize {
    let hashes = before.len() - before.trim_end_matches('#').len();
    if before.trim_end_matches('#').ends_with('r') {
        let end = format!("\"{}", "#".repeat(hashes));
        return from[1..].find(&end).map_or(from.len(), |at| 1 + at + end.len());
    }
    let mut is_escaped = false;
    for (at, c) in from.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at + 1,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    from.len()
}

/// Returns the given-up word in a name, with its substitute.
fn given_up(name: &str, is_tool: bool) -> Option<(&'static str, &'static str)> {
    let words = words(name);
    let server = GIVEN_UP_BY_SERVER.iter().filter(|_| !is_tool);
    GIVEN_UP.iter().chain(server).find(|(word, _)| words.iter().any(|it| it == word)).copied()
}

fn find_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            find_files(&path, files);
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
}

#[test]
fn no_name_has_a_word_that_is_given_up() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    find_files(&crates, &mut files);
    let mut found = Vec::new();
    for path in &files {
        let shown = path.strip_prefix(&crates).unwrap();
        let is_tool = TOOLS.iter().any(|it| shown.starts_with(it));
        let stem = path.file_stem().and_then(|it| it.to_str()).unwrap();
        let text = code(&std::fs::read_to_string(path).unwrap());
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let mut names: Vec<&str> = text.split(|c| !is_part(c)).chain([stem]).collect();
        names.sort_unstable();
        names.dedup();
        let is_seen = |of: &(&str, &str), name: &str| shown.starts_with(of.0) && of.1 == name;
        names.retain(|name| !SEEN_BY_USERS.iter().any(|of| is_seen(of, name)));
        for (name, (word, instead)) in
            names.iter().filter_map(|it| Some((it, given_up(it, is_tool)?)))
        {
            found.push(format!("{}: {name} has \"{word}\": say \"{instead}\"", shown.display()));
        }
    }
    assert!(files.len() > 500, "{}", files.len());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn words_of_names_are_found_in_each_form() {
    assert_eq!(words("PollOver"), ["poll", "over"]);
    assert_eq!(words("SHRINK_DUE_US"), ["shrink", "due", "us"]);
    assert_eq!(given_up("GrantBadge", true), Some(("badge", "grant set")));
    assert_eq!(given_up("badger", false), None);
    assert_eq!(given_up("nobody", false).map(|(word, _)| word), Some("nobody"));
    assert_eq!(given_up("nobody", true), None);
    assert_eq!(
        code("a = \"x\"; // y\nb").split_whitespace().collect::<Vec<_>>(),
        ["a", "=", ";", "b"]
    );
    assert_eq!(
        code("f('\"', \"a \\\" \\\n b\", r#\"c\" d\"#, 'e)").split_whitespace().collect::<String>(),
        "f(,,r#,'e)"
    );
}
