//! Prints the commented default file, and the configuration in force.

use std::fmt::Write;

use crate::certificates::CERTIFICATE_KEYS;
use crate::forwards::FORWARD_KEYS;
use crate::keys::KEY_KEYS;
use crate::table::SETTINGS;
use crate::tables::{Absent, TableKey};
use crate::topics::TOPIC_KEYS;
use crate::values::Rule;
use crate::{Loaded, Value};

/// Returns a file with every setting at its default, and with comments on its effect and its values.
pub fn default_file() -> String {
    let mut out = String::from(
        "# Throng's configuration: every setting at its default.\n\
         # Each is also a variable: [limits] connections_max is THRONG_LIMITS_CONNECTIONS_MAX.\n\
         # (live): a change takes effect when the process gets SIGHUP; others need a restart.\n",
    );
    let mut section = "";
    for setting in SETTINGS {
        let (this, key) = setting.parts();
        if this != section {
            let _ = write!(out, "\n[{this}]\n");
            section = this;
        }
        let live = if setting.reload { " (live)" } else { "" };
        let (doc, expected, default) = (setting.doc, setting.valid_values(), setting.default);
        let _ = write!(out, "# {doc}{live}\n# Takes {expected}.\n{key} = {default}\n");
    }
    out.push_str(
        "\n# Rules by topic (live), in the file only: a table each, in this order. The first whose\n\
         # pattern matches a topic wins; a topic that none matches has the default of each key.\n\
         # This is one, as an example:\n#[[topics]]\n",
    );
    example(&mut out, TOPIC_KEYS);
    out.push_str(
        "\n# Rules that send what clients publish to a back end (live), in the file only: a table each, in\n\
         # this order. The first whose filter matches a topic wins.\n\
         # This is one, as an example:\n#[[forward]]\n",
    );
    example(&mut out, FORWARD_KEYS);
    out.push_str(
        "\n# Keys of the API beside admin.api_key (live), in the file only: a table each. As soon as\n\
         # there is a key, every call needs one that has the scope for it. throng key new makes one.\n\
         # This is one, as an example:\n#[[keys]]\n",
    );
    example(&mut out, KEY_KEYS);
    out.push_str(
        "\n# Certificates for further hosts (live), in the file only: a table each.\n\
         # This is one, as an example:\n#[[tls.certificates]]\n",
    );
    example(&mut out, CERTIFICATE_KEYS);
    out
}

/// Appends the keys of a table as comments, with an example.
fn example(out: &mut String, keys: &[TableKey]) {
    for key in keys {
        let (and, value) = match key.absent {
            Absent::Default(value) => ("", value),
            Absent::Unset(value) => (", or is left out", value),
            Absent::Required(value) => (", and is required", value),
        };
        let (doc, expected, key) = (key.doc, key.valid_values(), key.key);
        let _ = write!(out, "# {doc}\n# Takes {expected}{and}.\n#{key} = {value}\n");
    }
}

/// Returns the configuration in force as TOML, one setting a line. Each line names the source of its value. Secrets
/// are omitted.
pub fn effective(loaded: &Loaded) -> String {
    let mut out = String::new();
    let mut section = "";
    for setting in SETTINGS {
        let Some((value, origin)) = loaded.values.get(setting.key) else {
            continue;
        };
        let (this, key) = setting.parts();
        if this != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            let _ = writeln!(out, "{gap}[{this}]");
            section = this;
        }
        let line = match (setting.secret, value) {
            (true, Value::Text(text)) if !text.is_empty() => format!("# {key} is set"),
            (_, value) => format!("{key} = {}", toml_text(value)),
        };
        let _ = writeln!(out, "{line:<44} # {origin}");
    }
    for rule in &loaded.rules {
        out.push_str("\n[[topics]]\n");
        table(&mut out, TOPIC_KEYS, rule);
    }
    for rule in &loaded.forwards {
        out.push_str("\n[[forward]]\n");
        table(&mut out, FORWARD_KEYS, rule);
    }
    for key in &loaded.keys {
        out.push_str("\n[[keys]]\n");
        table(&mut out, KEY_KEYS, key);
    }
    for rule in &loaded.certificates {
        out.push_str("\n[[tls.certificates]]\n");
        table(&mut out, CERTIFICATE_KEYS, rule);
    }
    out
}

fn table(out: &mut String, keys: &[TableKey], rule: &Rule) {
    for key in keys {
        if let Some((value, origin)) = rule.values.get(key.key) {
            let line = match key.kind.is_secret() {
                true => format!("# {} is set", key.key),
                false => format!("{} = {}", key.key, toml_text(value)),
            };
            let _ = writeln!(out, "{line:<44} # {origin}");
        }
    }
}

fn toml_text(value: &Value) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Text(text) => quoted(text),
        Value::List(items) => {
            format!("[{}]", items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Formats a TOML basic string (TOML 1.0, String). It is always one line.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            c if c.is_control() => write!(out, "\\u{:04X}", u32::from(c)),
            c => write!(out, "{c}"),
        };
    }
    out.push('"');
    out
}
