//! The page of settings, from their table.

use std::fmt::Write;

use config::{Absent, FORWARD_KEYS, KEY_KEYS, SECTIONS, SETTINGS, TOPIC_KEYS, TableKey};

/// Returns the page.
pub fn page() -> String {
    let mut out = include_str!("configuration.md").to_owned();
    out.push_str("\n## Sections\n\n| section | |\n| --- | --- |\n");
    for (section, doc) in SECTIONS {
        let _ = writeln!(out, "| [`[{section}]`](#{section}) | {doc} |");
    }
    out.push_str("| [`[[topics]]`](#rules-by-topic) | Rules by topic: what clients may do there, and what is retained. |\n");
    out.push_str(
        "| [`[[forward]]`](#rules-that-forward) | Rules that send what clients publish to a back end. |\n",
    );
    out.push_str("| [`[[keys]]`](#keys-of-the-api) | Keys of the API: what each permits. |\n");
    for (section, doc) in SECTIONS {
        let _ = write!(out, "\n## `[{section}]`\n\n{doc}\n");
        for setting in SETTINGS.iter().filter(|setting| setting.parts().0 == *section) {
            setting_of(&mut out, setting);
        }
    }
    out.push_str(
        "\n## Rules by topic\n\nTables `[[topics]]`, in the file only, all **live**. The first whose \
         pattern matches a topic wins; a topic that none matches has the default of each key. See \
         [Topics and rules](topics.md).\n",
    );
    table_of(&mut out, "topics", TOPIC_KEYS);
    out.push_str(
        "\n## Rules that forward\n\nTables `[[forward]]`, in the file only, all **live**. The first whose filter \
         matches a topic wins. See [To a back end](forward.md).\n",
    );
    table_of(&mut out, "forward", FORWARD_KEYS);
    out.push_str(
        "\n## Keys of the API\n\nTables `[[keys]]`, in the file only, all **live**, beside \
         `admin.api_key`. As soon as there is a key, every call needs one that has the scope for it. \
         `throng key new` makes one. See [Security](security.md#keys).\n",
    );
    table_of(&mut out, "keys", KEY_KEYS);
    out
}

fn table_of(out: &mut String, table: &str, keys: &[TableKey]) {
    for key in keys {
        let absent = match key.absent {
            Absent::Default(value) => format!("default `{value}`"),
            Absent::Unset(value) => format!("may be left out; for example `{value}`"),
            Absent::Required(value) => format!("required; for example `{value}`"),
        };
        let (name, doc, expected) = (key.key, text(key.doc), grouped(&key.valid_values()));
        let secret = if key.kind.is_secret() { ", never printed" } else { "" };
        let _ =
            write!(out, "\n### `{table}.{name}`\n\n{doc}\n\n- {expected}{secret}\n- {absent}\n");
    }
}

fn setting_of(out: &mut String, setting: &config::Setting) {
    let flags = throng::setting_flags();
    let flag = flags.iter().find(|(key, _)| *key == setting.key);
    let flag = flag.map_or(String::new(), |(_, flag)| format!(", `{flag}`"));
    let (key, doc, expected) = (setting.key, text(setting.doc), grouped(&setting.valid_values()));
    let (default, variable) = (setting.default, setting.variable());
    let change = if setting.reload { "live" } else { "needs a restart" };
    let secret = if setting.secret { ", never printed" } else { "" };
    let _ = write!(
        out,
        "\n### `{key}`\n\n{doc}\n\n- {expected}{secret}\n- default `{default}`; {change}\n- \
         `{variable}`{flag}\n"
    );
}

/// Converts a sentence of the table to Markdown: patterns contain stars and brackets.
fn text(doc: &str) -> String {
    doc.replace('*', "\\*").replace("[[", "\\[[").replace('<', "&lt;")
}

/// Adds commas to the large numbers of a text.
pub(super) fn grouped(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_inclusive(' ') {
        let digits = word.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = word.split_at(digits);
        let is_sentence = rest.trim_matches([' ', ',', '.', ';']).is_empty();
        for (at, digit) in number.char_indices() {
            if at > 0 && (digits - at) % 3 == 0 && digits > 4 && is_sentence {
                out.push(',');
            }
            out.push(digit);
        }
        out.push_str(rest);
    }
    out
}

#[test]
fn large_numbers_are_grouped() {
    assert_eq!(grouped("from 16 to 100000000, like"), "from 16 to 100,000,000, like");
    assert_eq!(grouped("1000 or 0.0.0.0:80000"), "1000 or 0.0.0.0:80000");
}
