//! Reads the sources, and parses their texts to values.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::address::Resolve;
use crate::parse::{Mismatch, from_text, from_toml};
use crate::platform::is_set_by_platform;
use crate::renames::{self, OldName};
use crate::setting::Setting;
use crate::suggestion::suggest;
use crate::table::{SETTINGS, setting};
use crate::table_kinds::{TABLES, TableContent, TableKind};
use crate::tables::{Absent, TableKey};
use crate::values::{Rule, Values};
use crate::{Origin, SettingError, Value};

/// Reads the secret in a file. The error contains what to do.
pub type ReadSecret = fn(&Path) -> Result<String, String>;

/// The sources of values.
#[derive(Clone, Default)]
pub struct Sources<'a> {
    /// The file's name and text.
    pub file: Option<(&'a str, &'a str)>,
    /// The whole environment. Names that don't begin with `THRONG_` are ignored.
    pub variables: Vec<(OsString, OsString)>,
    /// For each flag: the setting's key, the flag's name, and its value.
    pub flags: Vec<(&'a str, &'a str, String)>,
    /// Errors of sources that the caller could not read, which are reported with all others. The key is one setting,
    /// or empty for the whole file.
    pub unreadable: Vec<SettingError>,
    /// Finds the addresses of a `name:port`. Without it, no name is an address.
    pub resolve: Option<Resolve>,
    /// Reads the file of `admin.api_key_file`. Without it, that setting is an error.
    pub read_secret: Option<ReadSecret>,
}

impl fmt::Debug for Sources<'_> {
    /// Leaves out texts, because they may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("file", &self.file.map(|(name, _)| name))
            .field("unreadable", &self.unreadable)
            .finish_non_exhaustive()
    }
}

/// Variables with our prefix that are not settings.
const OTHER_VARIABLES: [&str; 1] = ["THRONG_BIN"];

/// The values of all settings, and the errors of all sources.
#[derive(Default)]
pub(crate) struct Read {
    pub values: Values,
    /// The rules by topic, in the order of the file.
    pub rules: Vec<Rule>,
    /// The keys of the API, in the order of the file.
    pub keys: Vec<Rule>,
    /// The rules that send messages to a back end, in the order of the file.
    pub forwards: Vec<Rule>,
    /// The certificates for further hosts, in the order of the file.
    pub certificates: Vec<Rule>,
    /// Settings with an invalid value. Their real value is unknown, so they are not compared with
    /// others.
    pub invalid: BTreeSet<&'static str>,
    pub errors: Vec<SettingError>,
    /// The old names that were read.
    pub old_names: Vec<OldName>,
    /// Variables that the platform sets, and that were passed over.
    pub platform_variables: Vec<String>,
    /// As in [`Sources`].
    pub resolve: Option<Resolve>,
}

/// The text of a file, and the names of its positions.
#[derive(Clone, Copy)]
struct File<'a> {
    text: &'a str,
    at: &'a dyn Fn(usize) -> Origin,
}

impl<'a> File<'a> {
    /// Returns the origin of a span, and its text.
    fn locate(&self, span: Range<usize>) -> (Origin, &'a str) {
        ((self.at)(span.start), self.text.get(span).unwrap_or_default())
    }
}

pub(crate) fn read(sources: &Sources<'_>) -> Read {
    let mut read = Read { resolve: sources.resolve, ..Read::default() };
    read.file("defaults", &crate::print::default_file());
    debug_assert!(read.errors.is_empty(), "{:?}", read.errors);
    read.values.values_mut().for_each(|(_, origin)| *origin = Origin::Default);
    read.errors.clone_from(&sources.unreadable);
    if sources.unreadable.iter().any(|error| error.key.is_empty()) {
        read.invalidate_all();
    }
    if let Some((name, text)) = sources.file {
        read.file(name, text);
    }
    let ours = sources.variables.iter().filter_map(|(name, text)| {
        let name = name.to_string_lossy();
        let ours = name.starts_with("THRONG_") && !OTHER_VARIABLES.contains(&name.as_ref());
        ours.then_some((name, text.to_str()))
    });
    // Old names come last in each source, so that they meet the value of the new name.
    let (old, new): (Vec<_>, Vec<_>) = ours.partition(|(name, _)| is_old_variable(name));
    for (name, text) in new {
        read.variable(&name, &name, text);
    }
    for (name, text) in old {
        let new = renames::variable(&name).unwrap_or_default();
        read.variable(&name, &new, text);
    }
    for (key, flag, text) in &sources.flags {
        let origin = Origin::Flag((*flag).to_string());
        match setting(key) {
            Some(setting) => {
                let value = from_text(setting.kind, text, sources.resolve);
                read.put(setting, setting.key, value, origin);
            }
            None => read.unknown(key, origin, SETTINGS.iter().map(|s| s.key.into())),
        }
    }
    read.invalid.extend(sources.unreadable.iter().filter_map(|it| Some(setting(&it.key)?.key)));
    read
}

impl Read {
    fn file(&mut self, name: &str, text: &str) {
        let newlines: Vec<usize> = text.match_indices('\n').map(|(offset, _)| offset).collect();
        let at = |offset: usize| {
            let offset = text.floor_char_boundary(offset);
            let lines_before = newlines.partition_point(|newline| *newline < offset);
            let line_start = lines_before.checked_sub(1).map_or(0, |last| newlines[last] + 1);
            let line = lines_before + 1;
            let column = text[line_start..offset].chars().count() + 1;
            Origin::File { name: name.into(), line, column }
        };
        let file = File { text, at: &at };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let message = format!("this is not TOML: {}", error.message());
            self.add_error(at(error.span().map_or(0, |span| span.start)), "", message);
        }
        if !errors.is_empty() {
            // The parser guesses at the rest, so its values would cause misleading errors.
            return self.invalidate_all();
        }
        let sections = table.get_ref().iter();
        let (old, new): (Vec<_>, Vec<_>) =
            sections.partition(|(section, _)| renames::section(section.get_ref()).is_some());
        for (section, content) in new.into_iter().chain(old) {
            let (written, section_at) = (section.get_ref().as_ref(), at(section.span().start));
            let section = renames::section(written).unwrap_or(written);
            let known = SETTINGS.iter().any(|setting| setting.parts().0 == section);
            if let Some(kind) = TableKind::named(section) {
                self.tables(kind, content.get_ref(), section_at, file);
                continue;
            }
            match content.get_ref() {
                DeValue::Table(content) if known => {
                    if section != written {
                        let (old, new) = (format!("[{written}]"), format!("[{section}]"));
                        self.old_names.push(OldName { origin: section_at, old, new });
                    }
                    self.section(written, content, file);
                }
                DeValue::Table(_) | DeValue::Array(_) if !known => {
                    let sections = SETTINGS.iter().map(|setting| setting.parts().0);
                    let tables = TABLES.iter().map(|table| table.name);
                    let sections = sections.chain(tables).map(str::to_string);
                    self.unknown(section, section_at, sections);
                }
                _ if known => {
                    let message =
                        format!("this is a section: write [{section}], and below it its settings");
                    self.add_error(section_at, written, message);
                }
                _ => {
                    let keys = SETTINGS.iter().map(|setting| setting.key.to_string());
                    self.unknown(section, section_at, keys);
                }
            }
        }
    }

    fn section(&mut self, section: &str, content: &DeTable<'_>, file: File<'_>) {
        for (key, value) in content {
            let written = format!("{section}.{}", key.get_ref());
            if let Some(kind) = TableKind::named(&written) {
                self.tables(kind, value.get_ref(), file.locate(key.span()).0, file);
                continue;
            }
            let full = renames::setting(&written).unwrap_or_else(|| written.clone());
            match setting(&full) {
                Some(setting) => {
                    let (origin, text) = file.locate(value.span());
                    let value = from_toml(setting.kind, value.get_ref(), text, self.resolve);
                    self.put(setting, &written, value, origin);
                }
                None => {
                    let keys = SETTINGS.iter().map(|setting| setting.key.to_string());
                    self.add_error(file.locate(key.span()).0, &written, suggest(&full, keys));
                }
            }
        }
    }

    fn tables(&mut self, kind: &TableKind, content: &DeValue<'_>, origin: Origin, file: File<'_>) {
        let TableKind { name, one, .. } = kind;
        let how = || format!("each {one} is a table: write [[{name}]], and below it its keys");
        let DeValue::Array(items) = content else {
            return self.add_error(origin, name, how());
        };
        let mut rules = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let (origin, text) = file.locate(item.span());
            let name = format!("{name}[{index}]");
            rules.push(match item.get_ref() {
                DeValue::Table(table) => self.table(kind, &name, table, origin, file),
                _ => {
                    let message = Mismatch::new(text, Some(how()));
                    self.add_error(origin, &name, message.message("a table", false));
                    Rule::default()
                }
            });
        }
        match kind.content {
            TableContent::Topics => self.rules = rules,
            TableContent::Forwards => self.forwards = rules,
            TableContent::Keys => self.keys = rules,
            TableContent::Certificates => self.certificates = rules,
        }
    }

    fn table(
        &mut self,
        kind: &TableKind,
        name: &str,
        table: &DeTable<'_>,
        origin: Origin,
        file: File<'_>,
    ) -> Rule {
        let mut rule = Rule::default();
        let renamed = |key: &str| renames::topic_key(key).filter(|_| kind.is_topics());
        let (old, new): (Vec<_>, Vec<_>) =
            table.iter().partition(|(key, _)| renamed(key.get_ref()).is_some());
        for (key, value) in new.into_iter().chain(old) {
            let (written, full) = (key.get_ref().as_ref(), format!("{name}.{}", key.get_ref()));
            let renamed = renamed(written);
            let current = renamed.map_or(written, |renamed| renamed.new);
            let Some(known) = kind.keys.iter().find(|known| known.key == current) else {
                let keys = kind.keys.iter().map(|known| format!("{name}.{}", known.key));
                self.unknown(&full, file.locate(key.span()).0, keys);
                continue;
            };
            let (origin, text) = file.locate(value.span());
            if let (Some(renamed), Some((_, other))) = (renamed, rule.values.get(known.key)) {
                let message = set_twice(written, renamed.new, other);
                self.add_error(origin, &full, message);
                continue;
            }
            let mut result = from_toml(known.kind, value.get_ref(), text, None);
            if let (Some(renamed), DeValue::String(old)) = (renamed, value.get_ref()) {
                let new = renamed.word(old);
                result = from_text(known.kind, new, None);
                let (old, new) =
                    (format!("{written} = {old:?}"), format!("{} = {new:?}", renamed.new));
                if result.is_ok() {
                    self.old_names.push(OldName { origin: origin.clone(), old, new });
                }
            }
            match result {
                Ok(value) => drop(rule.values.insert(known.key, (value, origin))),
                Err(mismatch) => {
                    rule.invalid.insert(known.key);
                    let now =
                        renamed.map_or(String::new(), |it| format!("; {}", is_called(it.new)));
                    let message =
                        mismatch.message(&known.valid_values(), known.kind.is_secret()) + &now;
                    self.add_error(origin, &full, message);
                }
            }
        }
        for known in kind.keys {
            if rule.values.contains_key(known.key) || rule.invalid.contains(known.key) {
                continue;
            }
            match known.absent {
                Absent::Default(default) => {
                    if let Some(value) = default_value(known, default) {
                        rule.values.insert(known.key, (value, Origin::Default));
                    }
                }
                Absent::Unset(_) => {}
                Absent::Required(_) => {
                    let message = format!("it is missing: write {}", known.valid_values());
                    self.add_error(origin.clone(), &format!("{name}.{}", known.key), message);
                }
            }
        }
        rule
    }

    /// Reads the variable `written`, whose new name is `name`.
    fn variable(&mut self, written: &str, name: &str, text: Option<&str>) {
        let origin = Origin::Variable(written.into());
        match SETTINGS.iter().find(|setting| setting.variable() == name) {
            Some(setting) => {
                let value = text.ok_or_else(Mismatch::not_utf8);
                let value = value.and_then(|text| from_text(setting.kind, text, self.resolve));
                if written == name {
                    return self.put(setting, setting.key, value, origin);
                }
                let (old, new) = (written.to_string(), name.to_string());
                self.old_names.push(OldName { origin: origin.clone(), old, new });
                self.put(setting, written, value, origin);
            }
            None if is_set_by_platform(name, text) => self.platform_variables.push(name.into()),
            None => {
                let message = match TABLES.iter().find(|table| table.is_variable(name)) {
                    Some(TableKind { name, one, .. }) => {
                        format!("each {one} is set in the file only: write [[{name}]] there")
                    }
                    None => suggest(name, SETTINGS.iter().map(Setting::variable)),
                };
                self.add_error(origin, "", message);
            }
        }
    }

    /// Sets a value. `written` is the name in the source: a source must not use the old and the new name of a
    /// setting.
    fn put(
        &mut self,
        setting: &'static Setting,
        written: &str,
        value: Result<Value, Mismatch>,
        origin: Origin,
    ) {
        let is_old = written != setting.key;
        let (shown, name) = match &origin {
            Origin::Variable(_) => (setting.key, setting.variable()),
            _ => (written, setting.key.to_string()),
        };
        let other = self.values.get(setting.key).map(|(_, other)| other);
        if let Some(other) = other.filter(|other| is_old && is_one_source(other, &origin)) {
            let message = set_twice(written, &name, other);
            return self.add_error(origin, shown, message);
        }
        match value {
            Ok(value) => {
                self.invalid.remove(setting.key);
                self.values.insert(setting.key, (value, origin));
            }
            Err(mismatch) => {
                self.invalid.insert(setting.key);
                let now = if is_old { format!("; {}", is_called(&name)) } else { String::new() };
                let message = mismatch.message(&setting.valid_values(), setting.secret) + &now;
                self.add_error(origin, shown, message);
            }
        }
    }

    fn unknown(&mut self, name: &str, origin: Origin, known: impl Iterator<Item = String>) {
        self.add_error(origin, name, suggest(name, known));
    }

    fn add_error(&mut self, origin: Origin, key: &str, message: String) {
        self.errors.push(SettingError { origin, key: key.into(), message });
    }

    fn invalidate_all(&mut self) {
        self.invalid.extend(SETTINGS.iter().map(|setting| setting.key));
    }
}

fn is_old_variable(name: &str) -> bool {
    renames::variable(name).is_some()
}

/// Returns true if both come from the file, or both from the environment, so that neither overrides the other.
fn is_one_source(a: &Origin, b: &Origin) -> bool {
    matches!(
        (a, b),
        (Origin::File { .. }, Origin::File { .. }) | (Origin::Variable(_), Origin::Variable(_))
    )
}

fn set_twice(old: &str, new: &str, other: &Origin) -> String {
    format!("{}, which {other} sets, too: remove {old}", is_called(new))
}

fn is_called(new: &str) -> String {
    format!("it is called {new} now")
}

/// Parses a default of the table. A test checks that every default is valid.
pub(crate) fn default_value(key: &TableKey, default: &str) -> Option<Value> {
    from_toml(key.kind, DeValue::parse(default).ok()?.get_ref(), default, None).ok()
}
