//! docs/guarantees.md: each cell of its table names tests, and each of these exists.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// The number of faults in the table.
const FAULTS: usize = 9;

/// The tests of a number: the path below `crates/`, and the names.
#[derive(Debug, PartialEq, Eq)]
struct Tests<'a> {
    number: usize,
    file: &'a str,
    names: Vec<&'a str>,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn between<'a>(page: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = page.split_once(from).unwrap_or_else(|| panic!("the page has no {from:?}"));
    rest.split_once(to).map_or(rest, |(inside, _)| inside)
}

/// Returns the cells after the first of each row but the head.
fn cells(page: &str) -> Vec<Vec<&str>> {
    let table = between(page, "<!-- the table -->", "<!-- the end of the table -->");
    let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').skip(1).map(str::trim).collect()).collect()
}

/// Returns the numbers of a cell: those in brackets at its end. `None` if it has no brackets.
fn numbers(cell: &str) -> Option<Vec<usize>> {
    let (_, numbers) = cell.strip_suffix(')')?.rsplit_once(" (")?;
    numbers.split(", ").map(|number| number.parse().ok()).collect()
}

fn tests(page: &str) -> Vec<Tests<'_>> {
    let lines = between(page, "<!-- the list -->", "<!-- the end of the list -->").lines();
    let item = |line| {
        let (number, rest) = str::split_once(line, ". ")?;
        let words: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
        let (file, names) = words.split_first()?;
        Some(Tests { number: number.parse().ok()?, file, names: names.to_vec() })
    };
    lines.filter(|line| !line.is_empty()).map(|line| item(line).expect(line)).collect()
}

/// Returns true if a file's text has a test of this name.
fn has_test(text: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    text.match_indices(&head).any(|(at, _)| {
        let attributes = text[..at].rsplit("\n\n").next().unwrap_or_default();
        attributes.contains("#[test]")
    })
}

#[test]
fn each_cell_names_tests_that_exist() {
    let page = std::fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let (cells, tests) = (cells(&page), tests(&page));
    assert!(cells.len() > 10, "{cells:?}");
    let mut used = BTreeSet::new();
    for row in &cells {
        assert_eq!(row.len(), FAULTS, "{row:?}");
        for cell in row.iter().filter(|cell| **cell != "–") {
            let numbers = numbers(cell).unwrap_or_else(|| panic!("{cell:?} names no test"));
            used.extend(numbers);
        }
    }
    let listed: BTreeSet<usize> = tests.iter().map(|tests| tests.number).collect();
    assert_eq!(used, listed, "the table and the list have the same numbers");
    assert!(tests.iter().map(|tests| tests.number).eq(1..=tests.len()), "one after the other");
    let mut missing = Vec::new();
    for Tests { file, names, .. } in &tests {
        let text = std::fs::read_to_string(root().join("crates").join(file)).unwrap_or_default();
        assert!(!names.is_empty(), "{file}");
        let gone = names.iter().filter(|name| !has_test(&text, name));
        missing.extend(gone.map(|name| format!("{file}: {name}")));
    }
    assert!(missing.is_empty(), "these tests don't exist:\n{}", missing.join("\n"));
}

#[test]
fn a_page_is_read_as_it_stands() {
    let page = "<!-- the table -->\n| | a | b |\n| - | - | - |\n| x | safe (1, 12) | – |\n\
                <!-- the end of the table -->\n<!-- the list -->\n1. `a/b.rs`: `one`, `two`\n";
    assert_eq!(cells(page), [["safe (1, 12)", "–"]]);
    assert_eq!(numbers("safe (1, 12)"), Some(vec![1, 12]));
    assert_eq!(["–", "safe", "safe (x)", "(1"].map(numbers), [const { None }; 4]);
    let names = vec!["one", "two"];
    assert_eq!(tests(page), [Tests { number: 1, file: "a/b.rs", names }]);
    let text = "#[test]\nfn one() {}\n\nfn two() {}\n";
    assert!(has_test(text, "one") && !has_test(text, "two") && !has_test(text, "on"));
}
