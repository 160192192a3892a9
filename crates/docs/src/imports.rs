//! No two files of a crate import each other, except a module and its own children: so a reader can read each file
//! before the files that use it.
//!
//! A name that a module only re-exports counts as an import of the file that defines it. The imports of a
//! `#[cfg(test)]` module inside of a file do not count, nor a module's imports from its own children.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Pairs that still exist. The list only shrinks: a pair that is gone fails the test, too.
const KNOWN: &[(&str, &str)] = &[
    ("flood/agents/coordinator.rs", "flood/run.rs"),
    ("flood/agents/mod.rs", "flood/run.rs"),
    ("shard/handover/give.rs", "shard/shard.rs"),
];

/// The longest chain of names that stand for each other.
const DEPTH: usize = 16;

/// The names of a path, from the root of the crate; the crate itself is empty.
type Module = Vec<String>;

/// The files of one crate, by their modules.
struct Crate {
    files: BTreeMap<Module, Source>,
}

/// The names in a file. Modules inside of it count as the file.
#[derive(Default)]
struct Source {
    path: PathBuf,
    /// The names of its items.
    items: BTreeSet<String>,
    /// Names that `use` imports, and the paths that they stand for.
    names: BTreeMap<String, Module>,
    /// Modules whose names `use` imports all.
    globs: Vec<Module>,
    /// All paths in it. They begin at the crate, or with a name.
    paths: Vec<Module>,
}

impl Crate {
    /// Reads the files of a library or a program below this folder.
    fn read(folder: &Path) -> Crate {
        let mut paths = Vec::new();
        find_files(folder, &mut paths);
        Crate::parse(paths.iter().map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            (path.strip_prefix(folder).unwrap(), text)
        }))
    }

    /// Parses files, by their paths below the folder.
    fn parse<'a>(files: impl Iterator<Item = (&'a Path, String)>) -> Crate {
        let parsed = files.map(|(path, text)| {
            let names = path.with_extension("");
            let names = names.iter().map(|name| name.to_str().unwrap().to_string());
            let mut module: Module = names.collect();
            module.pop_if(|last| matches!(last.as_str(), "mod" | "lib" | "main"));
            let mut source = Source { path: path.into(), ..Source::default() };
            source.read(&mut Tokens::of(&text), &module, 0);
            (module, source)
        });
        Crate { files: parsed.collect() }
    }

    /// Returns the module whose file defines the item of a path, as written in the file of `from`; `None` if another
    /// crate has it.
    fn target(&self, from: &[String], path: &[String], depth: usize) -> Option<Module> {
        // Names may stand for each other in a circle.
        if depth > DEPTH {
            return None;
        }
        let (mut module, mut rest) = match path.split_first()? {
            (first, rest) if first == "crate" => (Module::new(), rest),
            _ => (from.to_vec(), path),
        };
        let is_absolute = path[0] == "crate";
        while let Some((name, behind)) = rest.split_first() {
            let mut child = module.clone();
            child.push(name.clone());
            if self.files.contains_key(&child) {
                (module, rest) = (child, behind);
                continue;
            }
            let source = self.files.get(&module)?;
            if source.items.contains(name) {
                return Some(module);
            }
            if let Some(path) = source.names.get(name) {
                let path: Module = path.iter().chain(behind).cloned().collect();
                return match path[0] == *name && !is_crate(&path) {
                    true => None,
                    false => self.target(&module, &path, depth + 1),
                };
            }
            let has_item =
                |it: &Module| self.files.get(it).is_some_and(|it| it.items.contains(name));
            let mut globs =
                source.globs.iter().filter_map(|it| self.target(&module, it, DEPTH.max(depth + 1)));
            let found = globs.find(has_item);
            return found.or((is_absolute || module != from).then_some(module));
        }
        Some(module)
    }

    /// Returns the pairs of files that import each other, in the order of their modules.
    fn circles(&self) -> BTreeSet<(&Path, &Path)> {
        let mut imports = BTreeSet::new();
        for (module, source) in &self.files {
            let targets = source.paths.iter().filter_map(|path| self.target(module, path, 0));
            let others = targets.filter(|target| !target.starts_with(module));
            imports.extend(others.map(|target| (module, target)));
        }
        let is_mutual = |(from, to): &&(&Module, Module)| {
            *from < to
                && self
                    .files
                    .get_key_value(to)
                    .is_some_and(|(to, _)| imports.contains(&(to, (*from).clone())))
        };
        let path = |module: &Module| self.files[module].path.as_path();
        imports.iter().filter(is_mutual).map(|(from, to)| (path(from), path(to))).collect()
    }
}

fn is_crate(path: &[String]) -> bool {
    path.first().is_some_and(|first| first == "crate")
}

impl Source {
    /// Reads to the end of a block, or of the file, in a module that is `inside` levels below the file's.
    fn read(&mut self, tokens: &mut Tokens, module: &Module, inside: usize) {
        const ITEMS: [&str; 10] = [
            "struct",
            "enum",
            "trait",
            "fn",
            "const",
            "static",
            "type",
            "union",
            "mod",
            "macro_rules",
        ];
        let mut braces = 0;
        let mut is_test = false;
        while let Some(token) = tokens.next() {
            match token.as_str() {
                "{" => braces += 1,
                "}" if braces == 0 => return,
                "}" => braces -= 1,
                "#" if tokens
                    .rest()
                    .starts_with(&["[", "cfg", "(", "test", ")", "]"].map(String::from)) =>
                {
                    is_test = true;
                    continue;
                }
                "use" => self.read_use(tokens, module, inside, &mut Vec::new()),
                "mod" if tokens.peek(1) == Some("{") => {
                    self.items.extend(tokens.next());
                    tokens.next();
                    match is_test {
                        true => Source::default().read(tokens, module, inside + 1),
                        false => self.read(tokens, module, inside + 1),
                    }
                }
                word if ITEMS.contains(&word) => {
                    tokens.skip("!");
                    if tokens.peek(0).is_some_and(is_name) && braces == 0 {
                        self.items.extend(tokens.peek(0).map(str::to_string));
                    }
                }
                word if is_name(word) => {
                    let mut path = vec![token.clone()];
                    while tokens.peek(0) == Some("::") && tokens.peek(1).is_some_and(is_name) {
                        tokens.next();
                        path.extend(tokens.next());
                    }
                    if path.len() > 1 {
                        self.paths.extend(absolute(path, module, inside));
                    }
                }
                _ => {}
            }
            is_test &= matches!(token.as_str(), "[" | "]" | "(" | ")" | "cfg" | "test" | "pub");
        }
    }

    /// Reads the text after `use`, or one branch of it after this path.
    fn read_use(&mut self, tokens: &mut Tokens, module: &Module, inside: usize, path: &mut Module) {
        let length = path.len();
        while let Some(token) = tokens.next() {
            match token.as_str() {
                "::" => continue,
                "{" => {
                    while tokens.peek(0).is_some_and(|it| it != "}") {
                        self.read_use(tokens, module, inside, path);
                        tokens.skip(",");
                    }
                    tokens.next();
                    break;
                }
                "*" => {
                    if let Some(path) = absolute(path.clone(), module, inside) {
                        self.globs.push(path.clone());
                        self.paths.push(path);
                    }
                    break;
                }
                _ => path.push(token),
            }
            if tokens.peek(0) != Some("::") {
                path.pop_if(|last| last == "self" && length > 0);
                let mut name = path.last().cloned();
                if tokens.skip("as") {
                    name = tokens.next();
                }
                if let Some((name, path)) = name.zip(absolute(path.clone(), module, inside)) {
                    self.paths.push(path.clone());
                    self.names.insert(name, path);
                }
                break;
            }
        }
        path.truncate(length);
    }
}

/// Returns a path without `self` and `super`; `None` if it leads into a module inside of the file.
fn absolute(path: Module, module: &Module, inside: usize) -> Option<Module> {
    let supers = path.iter().take_while(|it| *it == "super").count();
    let rest = &path[supers.max(usize::from(path[0] == "self"))..];
    let above = match (path[0].as_str(), supers) {
        ("self", _) | (_, 1..) if supers <= inside => module.len(),
        (_, 1..) => module.len().checked_sub(supers - inside)?,
        _ => return Some(path),
    };
    let root = std::iter::once("crate".to_string());
    Some(root.chain(module[..above].iter().chain(rest).cloned()).collect())
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// The words and signs of a file, without comments and texts.
struct Tokens {
    all: Vec<String>,
    at: usize,
}

impl Tokens {
    fn of(text: &str) -> Tokens {
        let (mut all, mut rest) = (Vec::new(), text);
        while let Some(first) = rest.chars().next() {
            let length = match first {
                '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |at| at + 2),
                '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
                'r' if rest.starts_with("r#\"") => {
                    rest[3..].find("\"#").map_or(rest.len(), |at| at + 5)
                }
                'r' if rest.starts_with("r\"") => {
                    rest[2..].find('"').map_or(rest.len(), |at| at + 3)
                }
                '"' => {
                    let mut is_escaped = false;
                    let end = rest[1..].find(|it| match (is_escaped, it) {
                        (false, '"') => true,
                        (was, it) => {
                            is_escaped = !was && it == '\\';
                            false
                        }
                    });
                    end.map_or(rest.len(), |at| at + 2)
                }
                '\'' if rest[1..].starts_with('\\') => 3 + rest[3..].find('\'').unwrap_or(0) + 1,
                '\'' => {
                    let mut behind = rest[1..].chars();
                    let one = behind.next().map_or(0, char::len_utf8);
                    if behind.next() == Some('\'') { one + 2 } else { 1 }
                }
                ':' if rest.starts_with("::") => {
                    all.push("::".to_string());
                    2
                }
                it if it.is_alphanumeric() || it == '_' => {
                    let is_other = |it: char| !it.is_alphanumeric() && it != '_';
                    let length = rest.find(is_other).unwrap_or(rest.len());
                    all.push(rest[..length].to_string());
                    length
                }
                it if it.is_whitespace() => it.len_utf8(),
                it => {
                    all.push(it.to_string());
                    it.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        Tokens { all, at: 0 }
    }

    fn next(&mut self) -> Option<String> {
        self.at += 1;
        self.all.get(self.at - 1).cloned()
    }

    fn peek(&self, ahead: usize) -> Option<&str> {
        self.all.get(self.at + ahead).map(String::as_str)
    }

    fn rest(&self) -> &[String] {
        &self.all[self.at.min(self.all.len())..]
    }

    fn skip(&mut self, token: &str) -> bool {
        let is_next = self.peek(0) == Some(token);
        self.at += usize::from(is_next);
        is_next
    }
}

fn find_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_files(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn no_two_files_of_a_crate_import_each_other() {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(crates()).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap();
        let shown = |path: &Path| format!("{name}/{}", path.display());
        for (one, other) in Crate::read(&folder.join("src")).circles() {
            found.insert((shown(one), shown(other)));
        }
    }
    let known: BTreeSet<_> = KNOWN.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "these files import each other: {new:#?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "these pairs are gone, so take them out of KNOWN: {gone:#?}");
}

#[test]
fn circles_are_found_behind_the_names_that_a_module_passes_on() {
    let circles = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(path, text)| (Path::new(*path), text.to_string()));
        Crate::parse(files).circles().len()
    };
    let root = ("lib.rs", "mod a; mod b; pub use a::A; pub use b::*;");
    let (a, b) = (("a.rs", "pub struct A(crate::B);"), ("b/mod.rs", "use super::A; pub struct B;"));
    assert_eq!(circles(&[root, a, b]), 1);
    assert_eq!(circles(&[root, ("a.rs", "// crate::B\npub struct A;"), b]), 0);
    assert_eq!(circles(&[root, ("a.rs", "use crate::{b::{self as c}}; pub struct A;"), b]), 1);
    let tests = "pub struct A; #[cfg(test)] mod tests { use super::*; use crate::B; }";
    assert_eq!(circles(&[root, ("a.rs", tests), b]), 0, "tests may look at anything");
    let child = ("b/c.rs", "use super::B; pub struct C;");
    let parent = ("b/mod.rs", "mod c; use c::C; pub struct B;");
    assert_eq!(circles(&[root, parent, child]), 0, "a module and its own children");
}
