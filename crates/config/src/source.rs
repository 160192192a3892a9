//! From texts to values.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use toml::de::{DeTable, DeValue};

use crate::table::{Kind, SETTINGS, Setting, setting};
use crate::{Origin, Problem, Value};

/// Where values may come from.
#[derive(Clone, Debug, Default)]
pub struct Sources<'a> {
    /// The file's name and text.
    pub file: Option<(&'a str, &'a str)>,
    /// The environment, whole: names that don't begin with `THRONG_` are passed over.
    pub variables: Vec<(String, String)>,
    /// Key, the flag's name, and its value.
    pub flags: Vec<(&'a str, &'a str, String)>,
}

pub(crate) type Values = BTreeMap<&'static str, (Value, Origin)>;

/// Variables with our prefix that are no settings.
const NO_SETTINGS: [&str; 1] = ["THRONG_BIN"];

/// All settings have a value afterwards; what is wrong keeps its default.
pub(crate) fn read(sources: &Sources<'_>, problems: &mut Vec<Problem>) -> Values {
    let mut values = Values::new();
    let defaults = crate::print::default_file();
    let mut unused = Vec::new();
    file("defaults", &defaults, &mut values, &mut unused);
    debug_assert!(unused.is_empty(), "{unused:?}");
    values.values_mut().for_each(|(_, origin)| *origin = Origin::Default);
    if let Some((name, text)) = sources.file {
        file(name, text, &mut values, problems);
    }
    for (name, text) in &sources.variables {
        if name.starts_with("THRONG_") && !NO_SETTINGS.contains(&name.as_str()) {
            variable(name, text, &mut values, problems);
        }
    }
    for (key, flag, text) in &sources.flags {
        let origin = Origin::Flag((*flag).to_string());
        match setting(key) {
            Some(setting) => put(setting, from_text(setting, text), origin, &mut values, problems),
            None => problems.push(unknown(key, origin, SETTINGS.iter().map(|s| s.key.into()))),
        }
    }
    values
}

fn file(name: &str, text: &str, values: &mut Values, problems: &mut Vec<Problem>) {
    let at = |offset: usize| {
        let before = &text[..text.floor_char_boundary(offset)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
        Origin::File { name: name.into(), line, column }
    };
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            let origin = at(error.span().map_or(0, |span| span.start));
            let message = format!("this is not TOML: {}", error.message());
            problems.push(Problem { origin, key: String::new(), message });
            return;
        }
    };
    for (section, content) in table.get_ref() {
        let section_name = section.get_ref();
        let known = SETTINGS.iter().any(|setting| setting.parts().0 == section_name);
        let DeValue::Table(content) = content.get_ref() else {
            let message = "settings stand in sections, like [client]".to_string();
            let origin = at(section.span().start);
            problems.push(Problem { origin, key: section_name.to_string(), message });
            continue;
        };
        if !known {
            let sections = SETTINGS.iter().map(|setting| setting.parts().0.to_string());
            problems.push(unknown(section_name, at(section.span().start), sections));
            continue;
        }
        for (key, value) in content {
            let full = format!("{section_name}.{}", key.get_ref());
            match setting(&full) {
                Some(setting) => {
                    let origin = at(value.span().start);
                    put(setting, from_toml(setting, value.get_ref()), origin, values, problems);
                }
                None => {
                    let keys = SETTINGS.iter().map(|setting| setting.key.to_string());
                    problems.push(unknown(&full, at(key.span().start), keys));
                }
            }
        }
    }
}

fn variable(name: &str, text: &str, values: &mut Values, problems: &mut Vec<Problem>) {
    let origin = Origin::Variable(name.into());
    match SETTINGS.iter().find(|setting| setting.variable() == name) {
        Some(setting) => put(setting, from_text(setting, text), origin, values, problems),
        None => {
            let mut problem = unknown(name, origin, SETTINGS.iter().map(Setting::variable));
            problem.key = String::new();
            problems.push(problem);
        }
    }
}

fn put(
    setting: &'static Setting,
    value: Result<Value, String>,
    origin: Origin,
    values: &mut Values,
    problems: &mut Vec<Problem>,
) {
    match value {
        Ok(value) => {
            values.insert(setting.key, (value, origin));
        }
        Err(wrong) => {
            let message = format!("{wrong}; it takes {}", setting.wants());
            problems.push(Problem { origin, key: setting.key.into(), message });
        }
    }
}

/// A name that doesn't exist, with the nearest that does.
fn unknown(name: &str, origin: Origin, known: impl Iterator<Item = String>) -> Problem {
    let nearest = known.map(|known| (distance(name, &known), known)).min();
    let message = match nearest {
        Some((far, known)) if far <= 3 + name.len() / 4 => {
            format!("there is no such setting; did you mean {known}?")
        }
        _ => "there is no such setting; throng config --default lists all".into(),
    };
    Problem { origin, key: name.into(), message }
}

/// Insertions, deletions and replacements from one to the other (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = before + usize::from(a != *b);
            before = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[to.len()]
}

fn from_toml(setting: &Setting, value: &DeValue<'_>) -> Result<Value, String> {
    let mismatch = || Err(format!("{} is not right here", value.type_str()));
    match (setting.kind, value) {
        (Kind::Bool, DeValue::Boolean(value)) => Ok(Value::Bool(*value)),
        (Kind::Number(..) | Kind::Bytes(..), DeValue::Integer(integer)) => {
            let digits = integer.as_str();
            match i64::from_str_radix(digits, integer.radix()) {
                Ok(number) => in_bounds(setting, u64::try_from(number).ok(), digits),
                Err(_) => in_bounds(setting, None, digits),
            }
        }
        (Kind::List, DeValue::Array(items)) => items
            .iter()
            .map(|item| item.get_ref().as_str().map(str::to_string))
            .collect::<Option<_>>()
            .map(Value::List)
            .ok_or_else(|| "not all items are texts".into()),
        (Kind::Bool | Kind::Number(..) | Kind::List, _) => mismatch(),
        (_, DeValue::String(text)) => from_text(setting, text),
        _ => mismatch(),
    }
}

fn from_text(setting: &Setting, text: &str) -> Result<Value, String> {
    match setting.kind {
        Kind::Bool => match text {
            "true" | "1" => Ok(Value::Bool(true)),
            "false" | "0" => Ok(Value::Bool(false)),
            _ => Err(format!("{text:?} is neither true nor false")),
        },
        Kind::Number(..) => in_bounds(setting, text.parse().ok(), text),
        Kind::Bytes(..) => in_bounds(setting, bytes(text), text),
        Kind::Address => match text.parse::<SocketAddr>() {
            Ok(address) => Ok(Value::Text(address.to_string())),
            Err(_) => Err(format!("{text:?} is no address with a port")),
        },
        Kind::Choice(words) if !words.contains(&text) => Err(format!("{text:?} is not known")),
        Kind::Text | Kind::Choice(_) => Ok(Value::Text(text.into())),
        Kind::List => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Ok(Value::List(items.map(str::to_string).collect()))
        }
    }
}

fn in_bounds(setting: &Setting, number: Option<u64>, text: &str) -> Result<Value, String> {
    let (Kind::Number(min, max) | Kind::Bytes(min, max)) = setting.kind else {
        return Err("not a number".into());
    };
    match number {
        Some(number) if (min..=max).contains(&number) => Ok(Value::Number(number)),
        _ => Err(format!("{text} is out of bounds")),
    }
}

/// `4096`, `64KiB`, `64 KiB`, `4MiB`, `1GiB`.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let factor: u64 = match text[digits..].trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(factor)
}
