//! The page of every `unsafe` of the workspace, made from the sources: its location, the reason why the file has any,
//! and the reason why it is sound. The texts are the `reason` of the file's `unsafe_code` attribute and the first
//! sentence of the comment `SAFETY`, which clippy requires at each block.

use std::fmt::Write;
use std::path::{Path, PathBuf};

const TEXT: &str = include_str!("unsafe.md");

/// One use of the keyword.
#[derive(Debug, PartialEq, Eq)]
struct UnsafeUse {
    /// The file's path below `crates/`.
    file: String,
    function: String,
    /// The reason why the file has `unsafe`, from its attribute.
    why: String,
    /// The reason why this is sound.
    sound: String,
}

/// Returns the page.
///
/// # Errors
/// If a use has no comment with the reason why it is sound, or its file no reason.
pub fn page() -> Result<String, String> {
    let mut table =
        "| file | function | why it is needed | why it is sound |\n| --- | --- | --- | --- |\n"
            .to_owned();
    for UnsafeUse { file, function, why, sound } in unsafe_uses()? {
        let _ = writeln!(table, "| `{file}` | `{function}` | {why} | {sound} |");
    }
    Ok(TEXT.replace("{{PLACES}}", table.trim_end()))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Finds the Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "node_modules" && name != "target" {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns all uses, by file.
fn unsafe_uses() -> Result<Vec<UnsafeUse>, String> {
    let (root, mut files, mut found) = (root(), Vec::new(), Vec::new());
    for folder in ["crates", "examples", "fuzz"] {
        sources(&root.join(folder), &mut files);
    }
    files.sort();
    for path in files {
        // This file contains the keyword in texts.
        if path.ends_with("docs/src/unsafe_code.rs") {
            continue;
        }
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        let name = name.strip_prefix("crates/").unwrap_or(&name);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
        in_text(name, &text, &mut found)?;
    }
    Ok(found)
}

/// Returns true if a line has the keyword before a block or an item.
fn has_keyword(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let is_word = |c: char| c.is_alphanumeric() || "_-'\"`".contains(c);
    code.match_indices("unsafe").any(|(at, word)| {
        let (before, after) = (&code[..at], &code[at + word.len()..]);
        let follows = after.trim_start();
        let is_item = ["{", "fn ", "impl ", "impl<", "trait ", "extern ", "mod "]
            .iter()
            .any(|start| follows.starts_with(start));
        !before.ends_with(is_word) && !after.starts_with(is_word) && (is_item || follows.is_empty())
    })
}

/// Returns the name of the function that begins in a line.
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

fn in_text(file: &str, text: &str, found: &mut Vec<UnsafeUse>) -> Result<(), String> {
    let (mut name, mut why) = ("", None);
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        name = function(line).unwrap_or(name);
        why = reason(&lines[at..]).or(why);
        if has_keyword(line) {
            let of = || format!("{file}, {name}");
            let why = why.ok_or_else(|| format!("{}: unsafe_code has no reason", of()))?;
            let sound = safety(&lines[..at]).ok_or_else(|| format!("{}: no SAFETY", of()))?;
            let (file, function) = (file.to_owned(), name.to_owned());
            found.push(UnsafeUse { file, function, why: why.to_owned(), sound });
        }
    }
    Ok(())
}

/// Returns the reason of an attribute `expect(unsafe_code, reason = "…")` that begins in the first of these lines.
fn reason<'a>(lines: &[&'a str]) -> Option<&'a str> {
    let first = lines.first()?.trim_start();
    let is_attribute =
        first.starts_with('#') && (first.contains("expect(") || first.contains("allow("));
    if !is_attribute || !lines.iter().take(2).any(|line| line.contains("unsafe_code")) {
        return None;
    }
    let line = lines.iter().take(4).find(|line| line.contains("reason = \""))?;
    line.split('"').nth(1)
}

/// Returns the first sentence of the nearest comment `SAFETY:` or chapter `# Safety` above, if only a few lines
/// separate it from the use.
fn safety(above: &[&str]) -> Option<String> {
    let comment = |line: &str| {
        let line = line.trim_start().trim_start_matches('/');
        line.trim().to_owned()
    };
    let is_start = |line: &&str| {
        let text = comment(line);
        line.trim_start().starts_with("//") && (text.starts_with("SAFETY:") || text == "# Safety")
    };
    // An attribute or the begin of the statement may come between.
    let start = above.iter().rposition(is_start).filter(|at| above.len() - at <= 8)?;
    let lines = above[start..].iter().take_while(|line| line.trim_start().starts_with("//"));
    let text: Vec<String> = lines.map(|line| comment(line)).collect();
    let text = text.join(" ");
    let text = text.trim_start_matches("SAFETY:").trim_start_matches("# Safety").trim();
    let sentence = text.split_once(". ").map_or(text, |(sentence, _)| sentence);
    let sentence = sentence.trim_end_matches('.');
    (sentence.len() > 5 && !sentence.starts_with("as above")).then(|| sentence.replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Crates with `unsafe`; all others forbid it.
    const WITH: [&str; 6] = ["bench", "flood", "shard", "store", "throng", "tune"];

    #[test]
    fn all_other_crates_forbid_it() {
        let mut crates = 0;
        for entry in std::fs::read_dir(root().join("crates")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let entry = ["src/lib.rs", "src/main.rs"].map(|file| path.join(file));
            let Some(entry) = entry.iter().find(|file| file.exists()) else { continue };
            crates += 1;
            let text = std::fs::read_to_string(entry).unwrap();
            assert_eq!(text.contains("#![forbid(unsafe_code)]"), !WITH.contains(&&*name), "{name}");
        }
        assert!(crates > 20, "{crates}");
    }

    #[test]
    fn every_use_is_found() {
        let uses = unsafe_uses().unwrap();
        assert!(uses.len() > 25, "{}", uses.len());
        for crate_name in WITH {
            assert!(uses.iter().any(|it| it.file.starts_with(crate_name)), "{crate_name}");
        }
    }

    #[test]
    fn the_keyword_is_found_where_it_is_one() {
        let text = "#![expect(unsafe_code, reason = \"a call\")]\n\
                    pub(super) fn a() {\n  // SAFETY: it is\n  // borrowed. For long.\n  unsafe { x() };\n\
                    // unsafe { }\n  let unsafe_x = 'unsafe-inline';\n}\n\
                    /// # Safety\n/// Nothing is handed on.\npub unsafe fn b() {}\n\
                    fn c() { \"unsafe\" }\n";
        let mut found = Vec::new();
        in_text("f.rs", text, &mut found).unwrap();
        let want = |function: &str, sound: &str| UnsafeUse {
            file: "f.rs".into(),
            function: function.into(),
            why: "a call".into(),
            sound: sound.into(),
        };
        assert_eq!(found, [want("a", "it is borrowed"), want("b", "Nothing is handed on")]);
        let bare = "#![expect(unsafe_code, reason = \"a call\")]\nfn a() {\n  unsafe { x() };\n}\n";
        assert!(in_text("f.rs", bare, &mut found).is_err_and(|error| error.contains("f.rs, a")));
        let vague = bare.replace("unsafe {", "// SAFETY: as above.\nunsafe {");
        assert!(in_text("f.rs", &vague, &mut found).is_err());
    }
}
