//! Every command and snippet of README.md and docs/ is run, and prints what the page shows.
//!
//! `cargo test -p throng --test server docs::history` runs one page. `docs/page.rs` describes what a page may
//! contain.

mod browser;
mod compare;
mod form;
mod markdown;
mod page;
mod shell;

use std::collections::{BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};

use markdown::Page;
use page::Counts;

/// The pages, as tests: each has a server and a folder of its own.
macro_rules! pages {
    ($($test:ident: $path:literal,)*) => {
        const PAGES: &[&str] = &[$($path),*];
        $(#[test]
        fn $test() {
            run($path);
        })*
    };
}

pages! {
    readme: "README.md",
    index: "docs/README.md",
    getting_started: "docs/getting-started.md",
    transports: "docs/transports.md",
    sse: "docs/sse.md",
    stream: "docs/stream.md",
    poll: "docs/poll.md",
    websocket: "docs/websocket.md",
    phoenix: "docs/phoenix.md",
    mqtt: "docs/mqtt.md",
    own_protocol: "docs/own-protocol.md",
    publishing: "docs/publishing.md",
    topics: "docs/topics.md",
    history: "docs/history.md",
    acknowledgement: "docs/acknowledgement.md",
    presence: "docs/presence.md",
    webhooks: "docs/webhooks.md",
    forward: "docs/forward.md",
    subscriptions: "docs/subscriptions.md",
    recipes: "docs/recipes.md",
    coming_from: "docs/coming-from.md",
    configuration: "docs/configuration.md",
    api: "docs/api.md",
    command_line: "docs/command-line.md",
    errors: "docs/errors.md",
    limits: "docs/limits.md",
    glossary: "docs/glossary.md",
    install: "docs/install.md",
    operations: "docs/operations.md",
    tracing: "docs/tracing.md",
    cluster: "docs/cluster.md",
    outbox: "docs/outbox.md",
    history_postgres: "docs/history-postgres.md",
    store: "docs/store.md",
    guarantees: "docs/guarantees.md",
    security: "docs/security.md",
    access: "docs/access.md",
    tls: "docs/tls.md",
    proxies: "docs/proxies.md",
    load_testing: "docs/load-testing.md",
    benchmarks: "docs/benchmarks.md",
    architecture: "docs/architecture.md",
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the pages about internals, which have links and nothing to run.
fn internals(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root.join("docs/internals")).unwrap();
    let names = entries.map(|entry| Path::new("docs/internals").join(entry.unwrap().file_name()));
    let pages: Vec<PathBuf> = names.collect();
    assert!(pages.len() > 20, "{pages:?}");
    pages
}

fn run(path: &str) {
    let root = root();
    let text = std::fs::read_to_string(root.join(path)).unwrap();
    let counts = page::run(&root, path, &text).unwrap_or_else(|error| panic!("{error}"));
    let Counts { run, compared, checked, marked } = counts;
    println!(
        "{path}: {run} snippets run, {compared} compared with what came, {checked} checked, \
         {marked} marked as not run"
    );
}

#[test]
fn every_page_is_run_and_in_the_summary() {
    let root = root();
    let summary = std::fs::read_to_string(root.join("docs/SUMMARY.md")).unwrap();
    for page in internals(&root) {
        let link = page.strip_prefix("docs").unwrap().display().to_string();
        assert!(summary.contains(&format!("]({link})")), "docs/SUMMARY.md has no {link}");
    }
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root.join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") && name != "SUMMARY.md" {
            assert!(summary.contains(&format!("]({name})")), "docs/SUMMARY.md has no {name}");
            found.insert(format!("docs/{name}"));
        }
    }
    found.insert("README.md".into());
    let known: BTreeSet<String> = PAGES.iter().map(|path| path.to_string()).collect();
    assert_eq!(found, known, "name each page in this file");
}

#[test]
fn links_lead_somewhere() {
    let root = root();
    let mut pages: Vec<PathBuf> = PAGES.iter().map(PathBuf::from).collect();
    pages.extend(internals(&root));
    for more in [
        "docs/SUMMARY.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "BENCHMARKS.md",
        "SECURITY.md",
    ] {
        pages.extend(root.join(more).exists().then(|| PathBuf::from(more)));
    }
    let (mut wrong, mut anchors) = (Vec::new(), HashMap::<PathBuf, Vec<String>>::new());
    for page in &pages {
        let read = |path: &Path| Page::read(&std::fs::read_to_string(root.join(path)).unwrap());
        for (link, line) in read(page).links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let to = match path {
                "" => page.clone(),
                path => normal(&page.with_file_name("").join(path)),
            };
            let exists = root.join(&to).exists();
            let mut is_known = |to: &Path| {
                let known = anchors.entry(to.into()).or_insert_with(|| read(to).anchors);
                known.iter().any(|known| known == anchor)
            };
            let anchored = anchor.is_empty() || exists && is_known(&to);
            if !exists || !anchored {
                wrong.push(format!("{}:{line}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "these lead nowhere:\n{}", wrong.join("\n"));
}

/// Resolves the `..` of a path.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            part => out.push(part),
        }
    }
    out
}
