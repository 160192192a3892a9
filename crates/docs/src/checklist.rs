//! The checklist of a public server, in a hand-written page.

use std::fmt::Write;

/// The beginning and the end of the table in the page.
const BEGIN: &str = "<!-- Made from the code by `cargo run -p docs`. -->\n";
const END: &str = "<!-- Until here. -->\n";

/// Returns the page with the table from the code.
///
/// # Errors
/// If the page can't be read, or has no markers for the table.
pub fn within(name: &str) -> Result<String, String> {
    let path = super::folder().join(name);
    let page = std::fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or(format!("{name} has no markers for the checklist"))?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", table()))
}

fn table() -> String {
    let mut out = "\n| point | what it protects | settings |\n| --- | --- | --- |\n".to_owned();
    for point in config::CHECKLIST {
        let link = |key: &&str| match *key {
            "topics" => "[`[[topics]]`](configuration.md#rules-by-topic)".to_owned(),
            "forward" => "[`[[forward]]`](configuration.md#rules-that-forward)".to_owned(),
            "keys" => "[`[[keys]]`](configuration.md#keys-of-the-api)".to_owned(),
            // The page of settings makes its anchors in the same way.
            key => format!("[`{key}`](configuration.md#{})", key.replace('.', "")),
        };
        let settings: Vec<String> = point.settings.iter().map(link).collect();
        let _ = writeln!(out, "| {} | {} | {} |", point.name, point.about, settings.join(", "));
    }
    out.push('\n');
    out
}
