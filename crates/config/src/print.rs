//! The commented default file, and the configuration in force.

use std::fmt::Write;

use crate::table::SETTINGS;
use crate::{Loaded, Value};

/// A file that sets every setting to its default, and says what it does.
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
        let _ = write!(out, "# {}{live}\n{key} = {}\n", setting.doc, setting.default);
    }
    out
}

/// The configuration in force as TOML; each line says where its value came from. Secrets are left
/// out.
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
    out
}

fn toml_text(value: &Value) -> String {
    let quote = |text: &String| toml::Value::String(text.clone()).to_string();
    match value {
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Text(text) => quote(text),
        Value::List(items) => {
            format!("[{}]", items.iter().map(quote).collect::<Vec<_>>().join(", "))
        }
    }
}
