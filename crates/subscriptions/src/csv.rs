//! Subscriptions as CSV, one `user,topic` per line.
//!
//! The first line may be the header `user,topic`. A name with a comma or a quotation mark is quoted, and quotation
//! marks in it are doubled (RFC 4180). Names contain no control characters, so each line is one row, and a text can be
//! split at any line end. Lines end with `\n` or `\r\n`. The parser skips empty lines and a byte order mark at the
//! start.
//!
//! `csv_core` accepts any text. This parser rejects text that no program writes: a name that is parsed in another way
//! than its writer intended would become a user who doesn't exist.

use std::borrow::Cow;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder, Terminator};
use model::name::{BAD_USER, check_name, check_topic};

/// The fields of a file's first line.
pub const HEADER: [&str; 2] = ["user", "topic"];

/// Bytes of a row, at most: enough for two names of 254 bytes. Without this limit, the parser would search the whole
/// text for the end of a quotation.
const ROW_BYTES_MAX: usize = 1_024;

/// One more than a row has, and one that detects excess.
const FIELDS_MAX: usize = 4;

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
    /// Why the line is invalid, and what to write instead.
    pub reason: &'static str,
}

/// An iterator over the rows of a text.
pub struct Rows<'a> {
    rest: &'a [u8],
    line: usize,
    reader: Reader,
    /// The fields of the row that was read, without quotation marks around them.
    fields: [u8; ROW_BYTES_MAX],
    ends: [usize; FIELDS_MAX],
}

/// Parses the rows of a text.
pub fn rows(text: &[u8]) -> Rows<'_> {
    Rows {
        rest: text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text),
        line: 0,
        reader: ReaderBuilder::new().terminator(Terminator::Any(b'\n')).build(),
        fields: [0; ROW_BYTES_MAX],
        ends: [0; FIELDS_MAX],
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Result<Row<'a>, LineError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let Some(rest) = self.rest.strip_prefix(b"\n") {
                (self.rest, self.line) = (rest, self.line + 1);
            }
            if self.rest.is_empty() {
                return None;
            }
            self.line += 1;
            let line = self.line;
            match self.read() {
                Ok(None) => {}
                Ok(Some((user, topic))) if line == 1 && [&*user, &*topic] == HEADER => {}
                Ok(Some((user, topic))) => return Some(Ok(Row { line, user, topic })),
                Err(reason) => return Some(Err(LineError { line, reason })),
            }
        }
    }
}

/// A user and a topic.
type Names<'a> = (Cow<'a, str>, Cow<'a, str>);

impl<'a> Rows<'a> {
    /// Reads a line. `None` if it is empty.
    fn read(&mut self) -> Result<Option<Names<'a>>, &'static str> {
        let text = self.rest;
        let (mut result, read, bytes, mut count) =
            self.reader.read_record(text, &mut self.fields, &mut self.ends);
        if result == ReadRecordResult::InputEmpty {
            // The last line of the text has no end.
            let (fields, ends) = (&mut self.fields[bytes..], &mut self.ends[count..]);
            let (last, _, _, ended) = self.reader.read_record(b"\n", fields, ends);
            (result, count) = (last, count + ended);
        }
        let mut lines = text[..read].split(|byte| *byte == b'\n');
        let line = lines.next().unwrap_or_default();
        if result != ReadRecordResult::Record || line.len() + 1 < read {
            self.reader.reset();
            let mut parts = text.splitn(2, |byte| *byte == b'\n');
            let line = parts.next().unwrap_or_default();
            self.rest = parts.next().unwrap_or_default();
            return Err(match result {
                ReadRecordResult::OutputEndsFull => MORE_FIELDS,
                _ if line.len() > ROW_BYTES_MAX => "it has a name of more than 254 bytes",
                _ => NO_END,
            });
        }
        self.rest = &text[read..];
        let (line, returns) = line.strip_suffix(b"\r").map_or((line, 0), |line| (line, 1));
        if line.is_empty() {
            return Ok(None);
        }
        let line = std::str::from_utf8(line).map_err(|_| "it is not UTF-8")?;
        match count {
            2 => {}
            1 => return Err("it has one field: write user,topic"),
            _ => return Err(MORE_FIELDS),
        }
        let (middle, end) = (self.ends[0], bytes - returns);
        let names: Names<'a> = if end + 1 == line.len() {
            if self.fields[..end].contains(&b'"') {
                return Err(INSIDE);
            }
            (line[..middle].into(), line[middle + 1..].into())
        } else {
            let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let names = (name(&self.fields[..middle]), name(&self.fields[middle..end]));
            check_quotes(line, &names.0, &names.1)?;
            (names.0.into(), names.1.into())
        };
        check_name(&names.0).map_err(|_| BAD_USER)?;
        check_topic(&names.1)?;
        Ok(Some(names))
    }
}

const MORE_FIELDS: &str =
    "it has more than two fields: write user,topic, and names with a comma in quotation marks";
const NO_END: &str = "a quotation mark has no end on the line";
const INSIDE: &str = "a quotation mark is inside a field that does not begin with one";

/// Checks that the parsed names are those that the line was meant to have.
fn check_quotes(line: &str, user: &str, topic: &str) -> Result<(), &'static str> {
    let mut rest = line;
    for (field, end) in [(user, ","), (topic, "")] {
        let is_quoted = rest.starts_with('"');
        if !is_quoted && field.contains('"') {
            return Err(INSIDE);
        }
        let written = match is_quoted {
            true => format!("\"{}\"{end}", field.replace('"', "\"\"")),
            false => format!("{field}{end}"),
        };
        rest = rest
            .strip_prefix(&*written)
            .ok_or("something other than a comma follows a quotation mark")?;
    }
    Ok(())
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
        assert_eq!(read(b"\"user\",\"topic\"\r\na,\"b\"\r\n\r\n").unwrap().len(), 1);
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
        // The error names the line on which the quotation mark begins, not the one where the text ends.
        for text in ["a,b\n\"a,b\nc,\"d\"\n", "a,b\n\"a\nb\",c\n", "a,b\n\"a,b"] {
            let error = read(text.as_bytes()).unwrap_err();
            assert!(error.line == 2 && error.reason.contains("no end"), "{text}: {error}");
        }
        let far = format!("a,b\nc,\"d\n{}", "e,f\n".repeat(10_000));
        assert_eq!(read(far.as_bytes()).unwrap_err().to_string(), format!("line 2: {NO_END}"));
        let long = format!("a,b\n{},c\n", "a".repeat(100_000));
        let error = read(long.as_bytes()).unwrap_err();
        assert!(error.line == 2 && error.reason.contains("254 bytes"), "{error}");
        assert!(read(b"a\rb,c").unwrap_err().reason.contains("control"));
        assert!(read(format!("{},b", "a".repeat(255)).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn rows_round_trip(
            list in proptest::collection::vec(("[^\\p{Cc}]{1,20}", "[^\\p{Cc}@*][^\\p{Cc}]{0,20}"), 0..20),
        ) {
            let mut writer = csv::Writer::from_writer(Vec::new());
            writer.write_record(HEADER).unwrap();
            for (user, topic) in &list {
                writer.write_record([user, topic]).unwrap();
            }
            let read = read(&writer.into_inner().unwrap()).unwrap();
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
