//! The page of limits: the settings, from the configuration's tables, and the fixed ones, from the table of
//! docs/internals/limits.md.

use std::fmt::Write;

use config::{Absent, FORWARD_KEYS, KEY_KEYS, Kind, Limit, SETTINGS, TOPIC_KEYS};

/// The text around the tables.
const TEXT: &str = include_str!("limits.md");

/// The page with the fixed limits.
const FIXED: &str = include_str!("../../../docs/internals/limits.md");

/// Returns the page.
///
/// # Errors
/// If docs/internals/limits.md has no table.
pub fn page() -> Result<String, String> {
    Ok(TEXT
        .replace("{{SETTINGS}}", settings().trim_end())
        .replace("{{FIXED}}", fixed()?.trim_end()))
}

/// A setting, or a key of a rule or of a key of the API.
struct Row {
    /// The name, after its section or its table.
    key: String,
    kind: Kind,
    /// The default as TOML; empty if it has none.
    default: &'static str,
    limit: Option<Limit>,
}

/// Returns all rows, in the order of the configuration's tables.
fn rows() -> impl Iterator<Item = Row> {
    let settings = SETTINGS.iter().map(|it| {
        let (kind, default, limit) = (it.kind, it.default, it.limit);
        Row { key: it.key.to_owned(), kind, default, limit }
    });
    let tables = [("topics", TOPIC_KEYS), ("forward", FORWARD_KEYS), ("keys", KEY_KEYS)];
    settings.chain(tables.into_iter().flat_map(|(table, keys)| {
        keys.iter().map(move |it| {
            let default = match it.absent {
                Absent::Default(value) => value,
                Absent::Unset(_) | Absent::Required(_) => "",
            };
            let key = format!("{table}.{}", it.key);
            Row { key, kind: it.kind, default, limit: it.limit }
        })
    }))
}

/// Returns the unit at the end of a key's name, before the thing that it is counted for.
fn unit(key: &str) -> String {
    let name = key.split_once('.').map_or(key, |(_, name)| name);
    let name = name.trim_end_matches("_max");
    let counted = name.split("_per_").next().unwrap_or(name);
    let word = match counted.rsplit('_').next().unwrap_or(counted) {
        "accept" => "connections",
        // They count an MQTT client's messages under way, and its topic aliases.
        "receive" | "inflight" => "messages",
        "alias" => "aliases",
        word => word,
    };
    let rate = if name.contains("per_second") { " a second" } else { "" };
    format!("{word}{rate}")
}

fn settings() -> String {
    let mut out =
        "| limit | unit | default | if exceeded | metrics |\n| --- | --- | --- | --- | --- |\n"
            .to_owned();
    for Row { key, kind, default, limit } in rows() {
        let Some(Limit { beyond, metrics }) = limit else { continue };
        let default = match default.trim_matches('"') {
            "" => "–".to_owned(),
            text => super::configuration::grouped(text).trim_end().to_owned(),
        };
        let unit = if matches!(kind, Kind::Bytes(..)) && !key.contains("per_second") {
            "bytes".to_owned()
        } else {
            unit(&key)
        };
        let anchor = key.replace('.', "");
        let _ = writeln!(
            out,
            "| [`{key}`](configuration.md#{anchor}) | {unit} | {default} | {beyond} | {metrics} |"
        );
    }
    out
}

fn fixed() -> Result<String, String> {
    let (_, rest) = FIXED
        .split_once("## Fixed limits\n")
        .ok_or("docs/internals/limits.md has no table of fixed limits")?;
    let mut out = "| limit | value |\n| --- | --- |\n".to_owned();
    let rows = rest.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|'));
    for row in rows.skip(2) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [limit, value, _] = cells.as_slice() else {
            return Err(format!("docs/internals/limits.md: {row} has not three cells"));
        };
        let _ = writeln!(out, "| {limit} | {value} |");
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new limit needs a text about what happens beyond it, and where that shows, in its line of the table.
    #[test]
    fn a_setting_whose_name_is_that_of_a_limit_says_what_happens_beyond_it() {
        let limits: Vec<Row> = rows().filter(|row| row.key.ends_with("_max")).collect();
        assert!(limits.len() > 60, "{}", limits.len());
        for row in limits {
            assert!(row.limit.is_some(), "{}: no `beyond` in crates/config/src", row.key);
        }
    }

    #[test]
    fn units_are_those_of_the_names() {
        for (key, want) in [
            ("limits.connections_per_user_max", "connections"),
            ("limits.accept_per_second_max", "connections a second"),
            ("limits.bytes_per_second_per_user_max", "bytes a second"),
            ("webhook.queue_events_per_url_max", "events"),
            ("timeouts.head_seconds", "seconds"),
            ("mqtt.receive_max", "messages"),
            ("mqtt.topic_alias_max", "aliases"),
        ] {
            assert_eq!(unit(key), want);
        }
        assert!(fixed().unwrap().lines().count() > 50);
    }
}
