//! Subscriptions as CSV, one `user,topic` a line.
//!
//! The first line may be the header `user,topic`. A name with a comma or a quotation mark is
//! quoted, and quotation marks in it are doubled (RFC 4180). Names contain no control characters,
//! so each line is one row, and a text can be split at any line end. Lines end with `\n` or `\r\n`.
//! The parser skips empty lines and a byte order mark at the start.

use std::borrow::Cow;

use model::name::{BAD_USER, check_name, check_topic};

/// The first line of a file.
pub const HEADER: &str = "user,topic";

/// One subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The line number, from 1.
    pub line: usize,
    /// The user who subscribes.
    pub user: Cow<'a, str>,
    /// The topic.
    pub topic: Cow<'a, str>,
}

/// A line that is not a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct LineError {
    /// The line number, from 1.
    pub line: usize,
    /// What is wrong with the line, and what to write instead.
    pub reason: &'static str,
}

/// An iterator over the rows of a text.
pub struct Rows<'a> {
    rest: &'a [u8],
    line: usize,
}

/// Parses the rows of a text.
pub fn rows(text: &[u8]) -> Rows<'_> {
    Rows { rest: text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text), line: 0 }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Result<Row<'a>, LineError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let mut parts = self.rest.splitn(2, |byte| *byte == b'\n');
            let line = parts.next().unwrap_or_default();
            self.rest = parts.next().unwrap_or_default();
            self.line += 1;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let is_header = self.line == 1 && line == HEADER.as_bytes();
            if !line.is_empty() && !is_header {
                let number = self.line;
                return Some(match fields(line) {
                    Ok((user, topic)) => Ok(Row { line: number, user, topic }),
                    Err(reason) => Err(LineError { line: number, reason }),
                });
            }
        }
        None
    }
}

fn fields(line: &[u8]) -> Result<(Cow<'_, str>, Cow<'_, str>), &'static str> {
    let line = std::str::from_utf8(line).map_err(|_| "it is not UTF-8")?;
    let (user, rest) = field(line)?;
    let rest = rest.strip_prefix(',').ok_or("it has one field: write user,topic")?;
    let (topic, rest) = field(rest)?;
    if !rest.is_empty() {
        return Err("it has more than two fields: write user,topic, and names with a comma in \
                    quotation marks");
    }
    check_name(&user).map_err(|_| BAD_USER)?;
    check_topic(&topic)?;
    Ok((user, topic))
}

/// Parses one field. Returns it with the rest of the line, which is empty or starts with a comma.
fn field(text: &str) -> Result<(Cow<'_, str>, &str), &'static str> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(',').unwrap_or(text.len());
        let (field, rest) = text.split_at(end);
        if field.contains('"') {
            return Err("a quotation mark is inside of a field that does not begin with one");
        }
        return Ok((field.into(), rest));
    };
    let mut at = 0;
    loop {
        let quote = quoted[at..].find('"').ok_or("a quotation mark has no end on the line")?;
        at += quote + 1;
        let rest = &quoted[at..];
        if rest.starts_with('"') {
            at += 1;
            continue;
        }
        if !rest.is_empty() && !rest.starts_with(',') {
            return Err("something other than a comma follows a quotation mark");
        }
        let field = &quoted[..at - 1];
        let field = match field.contains('"') {
            true => field.replace("\"\"", "\"").into(),
            false => field.into(),
        };
        return Ok((field, rest));
    }
}

/// Appends a row.
pub fn write_row(text: &mut String, user: &str, topic: &str) {
    write_field(text, user);
    text.push(',');
    write_field(text, topic);
    text.push('\n');
}

fn write_field(text: &mut String, field: &str) {
    // The parser would take a byte order mark in the first field for the file's own. The header
    // needs no quotes, because it has two fields.
    if !field.contains([',', '"', '\u{feff}']) {
        return text.push_str(field);
    }
    text.push('"');
    text.push_str(&field.replace('"', "\"\""));
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8]) -> Result<Vec<(usize, String, String)>, LineError> {
        let owned = |row: Row| (row.line, row.user.into_owned(), row.topic.into_owned());
        rows(text).map(|row| row.map(owned)).collect()
    }

    #[test]
    fn parses_headers_quotes_line_ends_and_empty_lines() {
        let text = "\u{feff}user,topic\r\nu1,feed:u2\r\n\n\"a,\"\"b\"\"\",news\nu3,\"x\"";
        let want = [(2, "u1", "feed:u2"), (4, "a,\"b\"", "news"), (5, "u3", "x")];
        let want = want.map(|(line, user, topic)| (line, user.to_string(), topic.to_string()));
        assert_eq!(read(text.as_bytes()).unwrap(), want);
        assert_eq!(read(b"").unwrap(), []);
        assert_eq!(read(b"a,b\nuser,topic").unwrap().len(), 2);
    }

    #[test]
    fn errors_name_the_line() {
        for (line, reason) in [
            ("alice", "one field"),
            ("a,b,c", "more than two"),
            (",b", "user's name"),
            ("a,", "empty"),
            ("a,@b", "'@'"),
            ("a,*", "broadcast"),
            ("a\tb,c", "control"),
            ("\"a,b", "no end"),
            ("\"a\"b,c", "other than a comma"),
            ("a\"b,c", "inside"),
        ] {
            let error = read(format!("user,topic\nu,t\n{line}\nu,t\n").as_bytes()).unwrap_err();
            assert!(error.line == 3 && error.reason.contains(reason), "{line}: {error}");
        }
        assert_eq!(read(b"\xff,b").unwrap_err().reason, "it is not UTF-8");
        assert!(read(format!("{},b", "a".repeat(255)).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn rows_round_trip(
            list in proptest::collection::vec(("[^\\p{Cc}]{1,20}", "[^\\p{Cc}@*][^\\p{Cc}]{0,20}"), 0..20),
        ) {
            let mut text = format!("{HEADER}\n");
            for (user, topic) in &list {
                write_row(&mut text, user, topic);
            }
            let read = read(text.as_bytes()).unwrap();
            let read: Vec<_> = read.into_iter().map(|(_, user, topic)| (user, topic)).collect();
            prop_assert_eq!(read, list);
        }

        #[test]
        fn the_parser_reads_any_bytes_to_the_end(text in proptest::collection::vec(
            prop_oneof![any::<u8>(), Just(b','), Just(b'"'), Just(b'\n')], 0..200)
        ) {
            let lines = text.split(|byte| *byte == b'\n').count();
            let mut last = 0;
            for row in rows(&text) {
                let line = row.map_or_else(|error| error.line, |row| row.line);
                prop_assert!(line > last && line <= lines);
                last = line;
            }
        }
    }
}
