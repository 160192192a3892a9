//! Compares `COVERED.md` with the tests: it names only existing tests, it names each test whose name has a number,
//! and it has all numbers of both standards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The sections of MQTT 3.1.1 with numbered statements, each with its last number (its Appendix B).
const OF_3_1_1: &str = "\
    1.5.3-3 2.2.2-2 2.3.1-7 3.1.0-2 3.1.2-24 3.1.3-11 3.1.4-5 3.2.0-1 3.2.2-6 3.3.1-12 3.3.2-3 3.3.4-1 \
    3.3.5-2 3.6.1-1 3.8.1-1 3.8.3-4 3.8.4-6 3.9.3-2 3.10.1-1 3.10.3-2 3.10.4-6 3.12.4-1 3.14.1-1 3.14.4-3 \
    4.1.0-2 4.3.1-1 4.3.2-2 4.3.3-2 4.4.0-1 4.5.0-2 4.6.0-6 4.7.1-3 4.7.2-1 4.7.3-4 4.8.0-2 6.0.0-4 7.0.0-2 \
    7.1.1-1 7.1.2-1";

/// The sections of MQTT 5.0 with numbered statements, each with its last number (its Appendix B). Section 2.2.1 begins
/// with 2.
const OF_5_0: &str = "\
    1.5.4-3 1.5.5-1 1.5.7-1 2.1.3-1 2.2.1-6 2.2.2-1 3.1.0-2 3.1.2-30 3.1.3-12 3.1.4-6 3.2.0-2 3.2.2-22 \
    3.3.1-13 3.3.2-20 3.3.4-10 3.4.2-3 3.5.2-3 3.6.1-1 3.6.2-3 3.7.2-3 3.8.1-1 3.8.3-5 3.8.4-8 3.9.2-2 \
    3.9.3-2 3.10.1-1 3.10.3-2 3.10.4-6 3.11.2-2 3.11.3-2 3.12.4-1 3.14.0-1 3.14.1-1 3.14.2-4 3.14.4-3 \
    3.15.1-1 3.15.2-3 4.1.0-2 4.2.0-1 4.3.1-1 4.3.2-5 4.3.3-13 4.4.0-2 4.5.0-2 4.6.0-6 4.7.0-1 4.7.1-2 \
    4.7.2-1 4.7.3-4 4.8.2-6 4.9.0-3 4.12.0-7 4.12.1-2 4.13.1-1 4.13.2-1 6.0.0-4";

/// A statement: its section, and its number there.
type Statement = (String, u32);

fn statement(text: &str) -> Option<Statement> {
    let (section, number) = text.split_once('-')?;
    Some((section.into(), number.parse().ok()?))
}

/// Returns all statements of a standard.
fn all(last: &str, is_there: impl Fn(&Statement) -> bool) -> BTreeSet<Statement> {
    let last = last.split_whitespace().map(|it| statement(it).unwrap());
    let all = last.flat_map(|(section, last)| (1..=last).map(move |at| (section.clone(), at)));
    all.filter(is_there).collect()
}

/// Returns the statements of a cell like `3.1.2-4, 3.1.2-11 to 13 (why)`. Anything else in it is a section.
fn named(cell: &str) -> Vec<Statement> {
    let one = |text: &str| {
        let mut words = text.split_whitespace();
        let Some((section, first)) = words.next().and_then(statement) else { return Vec::new() };
        let is_range = words.next() == Some("to");
        let last = words.next().filter(|_| is_range).map_or(first, |it| it.parse().unwrap());
        (first..=last).map(|at| (section.clone(), at)).collect()
    };
    cell.split(',').flat_map(one).collect()
}

/// Collects the tests of a source file, under the names that the table uses.
fn tests(file: &Path, names: &mut BTreeMap<String, bool>) {
    let stem = file.file_stem().unwrap().to_str().unwrap();
    let prefix = match stem {
        "interoperability_3" => "i3::".into(),
        "interoperability_5" => "i5::".into(),
        _ if stem.starts_with("normative_") => String::new(),
        _ => format!("{stem}::"),
    };
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines();
    while lines.any(|line| line == "#[test]") {
        let test = lines.next().and_then(|line| line.strip_prefix("fn ")).unwrap();
        let name = format!("{prefix}{}", test.split('(').next().unwrap());
        let is_new = names.insert(name, test.starts_with("mqtt")).is_none();
        assert!(is_new, "{test}: two tests of one name");
    }
}

#[test]
fn the_table_of_what_is_covered_is_true() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut names = BTreeMap::new();
    for folder in ["mqtt", "mqtt_sessions"] {
        let files = std::fs::read_dir(here.join(folder)).unwrap().map(|it| it.unwrap().path());
        let sources = files.filter(|file| file.extension().is_some_and(|it| it == "rs"));
        sources.for_each(|file| tests(&file, &mut names));
    }
    let table = std::fs::read_to_string(here.join("mqtt/COVERED.md")).unwrap();
    let rows = table.lines().filter(|line| line.starts_with('|'));
    let named: Vec<&str> = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 50, "the table was not found: {named:?}");
    for name in &named {
        assert!(names.contains_key(*name), "there is no test {name}");
    }
    for (name, _) in names.iter().filter(|(_, is_numbered)| **is_numbered) {
        assert!(named.contains(&name.as_str()), "{name} is not in the table");
    }
}

#[test]
fn the_tables_have_all_statements_of_both_standards() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let text = std::fs::read_to_string(here.join("mqtt/COVERED.md")).unwrap();
    let (tested, untested) = text.split_once("\nWhat has no test, and why:\n").unwrap();
    let cells = |table: &str, column: usize| -> BTreeSet<Statement> {
        let rows = table.lines().filter(|line| line.starts_with('|'));
        rows.flat_map(|row| named(row.split('|').nth(column).unwrap())).collect()
    };
    let has_none = |it: &Statement| (it.0.as_str(), it.1) != ("2.2.1", 1);
    for (column, last) in [(1, OF_3_1_1), (2, OF_5_0)] {
        let (tested, untested) = (cells(tested, column), cells(untested, column));
        let both: Vec<_> = tested.intersection(&untested).collect();
        assert!(both.is_empty(), "with a test and without: {both:?}");
        let named: BTreeSet<Statement> = tested.union(&untested).cloned().collect();
        let expected = all(last, has_none);
        let missing: Vec<_> = expected.difference(&named).collect();
        assert!(missing.is_empty(), "not in the tables: {missing:?}");
        let unknown: Vec<_> = named.difference(&expected).collect();
        assert!(unknown.is_empty(), "there is no such statement: {unknown:?}");
    }
}
