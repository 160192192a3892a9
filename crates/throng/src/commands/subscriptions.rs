//! `throng subscriptions`: imports and lists users' durable subscriptions, lists the subscribers of a topic, and
//! generates a follower graph to try them with.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read, Write, stderr, stdin, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ::csv::WriterBuilder;
use admin::text::grouped;
use admin::{Admin, AdminError, encoded};
use clap::{Args, Subcommand};
use serde_json::Value;
use subscriptions::csv;
use subscriptions::generate::Graph;

use crate::commands::migrate::{Migrate, Target};
use crate::commands::serve::history::address;
use crate::error::CommandError;

const IMPORT: &str = "/api/subscriptions/import";
/// The `User-Agent` of the requests.
const AGENT: &str = "throng-subscriptions";
/// Bytes of a file that one request sends.
const CHUNK_BYTES: usize = 1 << 20;
/// Users in one page of a topic's subscribers: the node scans all of them for each page.
const PAGE_USERS: u32 = 10_000;
/// How many times a chunk is sent again if the node is busy, restarts or can't be reached.
const RETRIES_MAX: u32 = 10;
/// The first wait before a retry, in milliseconds. It doubles with each retry, up to the maximum.
const WAIT_MS: u64 = 250;
const WAIT_MS_MAX: u64 = 5_000;
/// Time between two lines of progress, in a terminal and in a log.
const SHOW_EVERY: Duration = Duration::from_millis(200);
const LOG_EVERY: Duration = Duration::from_secs(5);

/// What to do with users' durable subscriptions.
#[derive(Subcommand)]
pub enum What {
    /// Import subscriptions from a CSV file into a running node.
    Import(Import),
    /// Generate a graph of followers as CSV: a few users have very many followers, most have few.
    Generate(Generate),
    /// Print the topics that a user enters on connect.
    List(List),
    /// Print the users who enter a topic on connect, whether they are connected now or not.
    Followers(Followers),
    /// Create the tables and functions of subscriptions in the database of history.url, as the
    /// server does when it starts.
    Migrate(Migrate),
}

/// Importing existing subscriptions changes nothing, so an import that stopped can be started
/// again.
#[derive(Args)]
pub struct Import {
    /// The CSV file, or - for standard input: a user and a topic on each line; the first line may
    /// be the header user,topic.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    node: Node,
}

/// The same values give the same graph. User u7 follows u9 as the line u7,feed:u9.
#[derive(Args)]
pub struct Generate {
    /// Number of users, which are named u0, u1 and so on.
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    users: u32,
    /// How many users each of them follows, on average.
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(..=100_000))]
    edges: u32,
    /// Seed of the random graph: another seed gives another graph.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Write to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// One topic a line, by name.
#[derive(Args)]
pub struct List {
    /// The user whose topics to print.
    #[arg(value_name = "USER")]
    user: String,
    #[command(flatten)]
    node: Node,
}

/// One user a line, by name.
#[derive(Args)]
pub struct Followers {
    /// The topic whose followers to print.
    #[arg(value_name = "TOPIC")]
    topic: String,
    /// Print only users who are connected now.
    #[arg(long)]
    connected: bool,
    #[command(flatten)]
    node: Node,
}

/// Which node, and how to be let in.
#[derive(Args)]
struct Node {
    /// The node's admin port: a URL, or a host and port.
    #[arg(long, default_value = "http://127.0.0.1:8001", value_name = "URL")]
    admin: String,
    #[command(flatten)]
    access: crate::node::Access,
}

impl Node {
    fn admin(&self) -> Result<Admin, CommandError> {
        Ok(Admin::new(&self.access.target(&self.admin)?, AGENT))
    }
}

/// Runs the command.
pub fn run(what: &What) -> Result<(), CommandError> {
    match what {
        What::Import(args) => import(args),
        What::Generate(args) => generate(args),
        What::List(args) => list(args),
        What::Followers(args) => followers(args),
        What::Migrate(args) => args.run(|config| Target {
            tables: subscriptions_postgres::SCHEMA,
            section: "history",
            schema: &config.history.schema,
            url: &config.history.url,
            password: &config.history.password,
            address,
        }),
    }
}

fn list(args: &List) -> Result<(), CommandError> {
    let path = format!("/api/subscriptions/{}", encoded(&args.user));
    let reply: Result<Value, AdminError> = args.node.admin()?.get(&path);
    let reply = reply.map_err(|error| CommandError::Runtime(error.to_string()))?;
    let mut text = String::new();
    for topic in reply["topics"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        text.push_str(topic);
        text.push('\n');
    }
    // A closed pipe is not an error.
    let _ = stdout().write_all(text.as_bytes());
    Ok(())
}

/// Prints page by page, so that a reader of the first lines waits for the first page only.
fn followers(args: &Followers) -> Result<(), CommandError> {
    let mut admin = args.node.admin()?;
    let topic = encoded(&args.topic);
    let mut after = String::new();
    loop {
        let path =
            format!("/api/topics/{topic}/subscribers?limit={PAGE_USERS}&after={}", encoded(&after));
        let page: Result<Value, AdminError> = admin.get(&path);
        let page = page.map_err(|error| CommandError::Runtime(error.to_string()))?;
        let mut text = String::new();
        for subscriber in page["subscribers"].as_array().into_iter().flatten() {
            let is_selected = !args.connected || subscriber["connected"] == true;
            if let Some(user) = subscriber["user"].as_str().filter(|_| is_selected) {
                text.push_str(user);
                text.push('\n');
            }
        }
        // A reader that has closed the pipe needs no more.
        match (stdout().write_all(text.as_bytes()), page["next"].as_str()) {
            (Ok(()), Some(next)) => next.clone_into(&mut after),
            _ => return Ok(()),
        }
    }
}

fn generate(args: &Generate) -> Result<(), CommandError> {
    let name =
        args.output.as_ref().map_or("standard output".into(), |path| path.display().to_string());
    let to_error =
        |error: std::io::Error| CommandError::Runtime(format!("{name}: can't be written: {error}"));
    let output: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(File::create(path).map_err(to_error)?),
        None => Box::new(stdout().lock()),
    };
    let graph = Graph { users: args.users, edges_per_user: args.edges, seed: args.seed };
    match write_graph(graph, output) {
        // The reader has closed the pipe: it needs no more.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(to_error),
    }
}

fn write_graph(graph: Graph, output: impl Write) -> std::io::Result<()> {
    let mut writer = WriterBuilder::new().buffer_capacity(CHUNK_BYTES).from_writer(output);
    let to_io = |error: ::csv::Error| match error.into_kind() {
        ::csv::ErrorKind::Io(error) => error,
        other => std::io::Error::other(format!("{other:?}")),
    };
    writer.write_record(csv::HEADER).map_err(to_io)?;
    let (mut user, mut topic) = (String::new(), String::new());
    for (follower, followed) in graph.edges() {
        user.clear();
        topic.clear();
        // Writing to a String can't fail.
        let _ = write!(user, "u{follower}").and(write!(topic, "feed:u{followed}"));
        writer.write_record([&user, &topic]).map_err(to_io)?;
    }
    writer.flush()
}

fn import(args: &Import) -> Result<(), CommandError> {
    let is_stdin = args.file.as_os_str() == "-";
    let name = if is_stdin { "standard input".into() } else { args.file.display().to_string() };
    let unreadable =
        |error: std::io::Error| CommandError::Runtime(format!("{name}: can't be read: {error}"));
    let mut admin = args.node.admin()?;
    let (input, bytes): (Box<dyn Read>, Option<u64>) = if is_stdin {
        (Box::new(stdin().lock()), None)
    } else {
        let file = File::open(&args.file).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        (Box::new(file), metadata.is_file().then_some(metadata.len()))
    };
    let mut chunks = Chunks::new(input);
    let mut progress = Progress::new(bytes);
    let result = loop {
        let chunk = match chunks.next() {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break Ok(()),
            Err(error) => break Err(CommandError::Runtime(format!("{name}: {error}"))),
        };
        match send(&mut admin, &chunk, &mut progress) {
            Ok((rows, added)) => progress.add(rows, added, chunk.bytes),
            Err(reason) => break Err(CommandError::Runtime(format!("{name}: {reason}"))),
        }
    };
    progress.end();
    let summary = progress.summary();
    match result {
        Ok(()) => {
            let _ = writeln!(stdout(), "{summary}");
            Ok(())
        }
        Err(CommandError::Runtime(reason)) => Err(CommandError::Runtime(format!(
            "{reason}\nstopped after {summary}; the rows before are imported, and importing them \
             again changes nothing"
        ))),
        Err(error) => Err(error),
    }
}

/// A part of a file that consists of whole lines.
struct Chunk {
    /// The text that is sent, with a header of its own.
    text: String,
    /// The number of its first line in the file, from 1.
    first: usize,
    /// The number of its last line in the file.
    last: usize,
    /// How many header lines were added before the file's lines.
    headers: usize,
    /// Bytes of the file that it contains.
    bytes: u64,
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("can't be read: {0}")]
    Io(std::io::Error),
    /// The line, from 1, and why it is invalid.
    #[error("line {0}: {1}")]
    Line(usize, String),
}

/// A file that is split at line ends.
struct Chunks<R> {
    input: R,
    /// Bytes that were read and not sent.
    rest: Vec<u8>,
    /// How many lines came before them.
    lines: usize,
}

impl<R: Read> Chunks<R> {
    fn new(input: R) -> Self {
        Chunks { input, rest: Vec::new(), lines: 0 }
    }

    /// Returns the next lines, after all of them were checked.
    fn next(&mut self) -> Result<Option<Chunk>, ReadError> {
        let capacity = CHUNK_BYTES.saturating_sub(self.rest.len()) as u64;
        let read =
            (&mut self.input).take(capacity).read_to_end(&mut self.rest).map_err(ReadError::Io)?;
        let end = match self.rest.iter().rposition(|byte| *byte == b'\n') {
            _ if (read as u64) < capacity => self.rest.len(),
            Some(end) => end + 1,
            None => {
                let reason = format!("it is longer than {CHUNK_BYTES} bytes: is this a CSV file?");
                return Err(ReadError::Line(self.lines + 1, reason));
            }
        };
        if end == 0 {
            return Ok(None);
        }
        let rest = self.rest.split_off(end);
        let piece = std::mem::replace(&mut self.rest, rest);
        let ends = piece.iter().filter(|byte| **byte == b'\n').count();
        let (first, bytes) = (self.lines + 1, piece.len() as u64);
        self.lines += ends + usize::from(!piece.ends_with(b"\n"));
        // Each chunk but the first gets a header, so that no row is mistaken for one.
        let headers = usize::from(first > 1);
        let header = csv::HEADER.join(",") + "\n";
        let text = if first == 1 { piece } else { [header.as_bytes(), &piece].concat() };
        if let Some(error) = csv::rows(&text).find_map(Result::err) {
            return Err(ReadError::Line(first - 1 + error.line - headers, error.reason.into()));
        }
        let text = String::from_utf8(text)
            .map_err(|_| ReadError::Line(first, "what follows is not UTF-8".into()))?;
        Ok(Some(Chunk { text, first, last: self.lines, headers, bytes }))
    }
}

impl Chunk {
    /// Converts a line number of the text to one of the file.
    fn line(&self, line: usize) -> usize {
        (self.first + line).saturating_sub(1 + self.headers)
    }
}

/// Sends a chunk. Returns the number of rows and of new rows, or why the node rejected the chunk.
fn send(admin: &mut Admin, chunk: &Chunk, progress: &mut Progress) -> Result<(u64, u64), String> {
    let mut retries = 0;
    loop {
        let reply = admin.exchange("POST", IMPORT, "text/csv", &chunk.text);
        let (reason, is_temporary) = match reply {
            Ok((200, body)) => {
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let count = |name: &str| body[name].as_u64();
                let counts = count("rows").zip(count("added"));
                return counts.ok_or_else(|| "the node's reply is not valid".into());
            }
            Ok((status, body)) => match line_of(&body) {
                Some((line, reason)) => return Err(format!("line {}: {reason}", chunk.line(line))),
                None => {
                    let error = admin.error_of(IMPORT, status, &body);
                    (error.to_string(), matches!(status, 408 | 503))
                }
            },
            Err(error) => (error.to_string(), matches!(error, AdminError::Unreachable(_))),
        };
        if !is_temporary || retries == RETRIES_MAX {
            return Err(format!("lines {} to {}: {reason}", chunk.first, chunk.last));
        }
        let wait = (WAIT_MS << retries).min(WAIT_MS_MAX);
        retries += 1;
        progress.say(&format!("{reason}; trying again ({retries} of {RETRIES_MAX})"));
        std::thread::sleep(Duration::from_millis(wait));
    }
}

/// Returns the line that the node rejected, and the reason.
fn line_of(body: &[u8]) -> Option<(usize, String)> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let message = body["error"]["message"].as_str()?;
    let (line, reason) = message.strip_prefix("line ")?.split_once(": ")?;
    Some((line.parse().ok()?, reason.to_owned()))
}

/// Prints the progress to standard error.
struct Progress {
    /// The length of the whole file, if it has one.
    bytes_total: Option<u64>,
    bytes: u64,
    rows: u64,
    added: u64,
    began: Instant,
    shown: Instant,
    in_terminal: bool,
}

impl Progress {
    fn new(bytes_total: Option<u64>) -> Self {
        let (began, in_terminal) = (Instant::now(), stderr().is_terminal());
        Progress { bytes_total, bytes: 0, rows: 0, added: 0, began, shown: began, in_terminal }
    }

    fn add(&mut self, rows: u64, added: u64, bytes: u64) {
        self.rows += rows;
        self.added += added;
        self.bytes += bytes;
        let every = if self.in_terminal { SHOW_EVERY } else { LOG_EVERY };
        if self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        let share = self.bytes_total.filter(|total| *total > 0).map_or(String::new(), |total| {
            format!("{:3.0} %  ", self.bytes as f64 / total as f64 * 100.0)
        });
        let line = format!("{share}{} rows, {} a second", grouped(self.rows), grouped(self.rate()));
        if self.in_terminal {
            // Returns to the start of the line and clears it.
            let _ = write!(stderr(), "\r\x1b[K{line}");
        } else {
            let _ = writeln!(stderr(), "{line}");
        }
    }

    /// Prints a line that stays.
    fn say(&self, line: &str) {
        self.end();
        let _ = writeln!(stderr(), "{line}");
    }

    /// Clears the progress line.
    fn end(&self) {
        if self.in_terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }

    fn rate(&self) -> u64 {
        (self.rows as f64 / self.began.elapsed().as_secs_f64().max(1e-3)) as u64
    }

    fn summary(&self) -> String {
        format!(
            "{} rows ({} new) in {:.1} s, {} a second",
            grouped(self.rows),
            grouped(self.added),
            self.began.elapsed().as_secs_f64(),
            grouped(self.rate())
        )
    }
}

#[cfg(test)]
mod tests {
    use admin::Target;
    use admin::tls::Trust;

    use super::*;

    /// A file of 15-byte lines. The last line has no line end.
    fn file(lines: usize) -> String {
        let lines: Vec<String> = (0..lines).map(|n| format!("u{n:06},t{n:05}")).collect();
        lines.join("\n")
    }

    #[test]
    fn files_are_split_at_line_ends_without_loss() {
        let text = format!("{}\n{}", csv::HEADER.join(","), file(200_000));
        let mut chunks = Chunks::new(text.as_bytes());
        let (mut rows, mut next, mut bytes) = (0, 1, 0);
        while let Some(chunk) = chunks.next().ok().unwrap() {
            assert_eq!(chunk.first, next);
            next = chunk.last + 1;
            bytes += chunk.bytes;
            for row in csv::rows(chunk.text.as_bytes()) {
                let row = row.unwrap();
                assert_eq!(row.user, format!("u{rows:06}"));
                rows += 1;
                assert_eq!(chunk.line(row.line), rows + 1);
            }
        }
        assert_eq!((rows, next, bytes), (200_000, 200_002, text.len() as u64));
    }

    #[test]
    fn errors_name_the_line_in_any_chunk() {
        for (lines, at) in [(10, 3), (200_000, 150_000), (200_000, 200_000)] {
            let mut text: Vec<String> = file(lines).lines().map(str::to_owned).collect();
            text[at - 1] = "alice".into();
            let text = text.join("\r\n");
            let mut chunks = Chunks::new(text.as_bytes());
            let error = loop {
                match chunks.next() {
                    Ok(chunk) => assert!(chunk.is_some()),
                    Err(ReadError::Line(line, reason)) => break (line, reason),
                    Err(ReadError::Io(error)) => panic!("{error}"),
                }
            };
            assert!(error.0 == at && error.1.contains("one field"), "{error:?} {at}");
        }
        let long = vec![b'x'; CHUNK_BYTES + 1];
        let error = Chunks::new(&long[..]).next();
        assert!(matches!(error, Err(ReadError::Line(1, reason)) if reason.contains("CSV")));
        assert!(Chunks::new(&b""[..]).next().ok().unwrap().is_none());
        // Only the first line of the file may be a header.
        let text = format!("{}\nuser,topic\n", file(100_000));
        let mut chunks = Chunks::new(text.as_bytes());
        let mut last = chunks.next().ok().unwrap().unwrap();
        while let Some(chunk) = chunks.next().ok().unwrap() {
            last = chunk;
        }
        let last = csv::rows(last.text.as_bytes()).last().unwrap().unwrap();
        assert_eq!((&*last.user, &*last.topic), ("user", "topic"));
    }

    #[test]
    fn a_rejected_line_is_found_in_the_response() {
        let body = br#"{"error":{"code":"bad_line","message":"line 7: it is: bad"}}"#;
        assert_eq!(line_of(body), Some((7, "it is: bad".into())));
        assert_eq!(line_of(br#"{"error":{"message":"7: bad"}}"#), None);
        assert_eq!(line_of(b"<html>"), None);
    }

    #[test]
    fn a_busy_node_is_retried_and_a_rejection_ends_the_import() {
        use std::io::{BufRead, BufReader};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let error = |status: &str, message: &str| {
            let body = format!(r#"{{"error":{{"code":"x","message":"{message}"}}}}"#);
            (status.to_owned(), body)
        };
        let replies = [
            error("503 Service Unavailable", "the queue is full"),
            ("200 OK".into(), r#"{"rows":2,"added":1}"#.into()),
            error("409 Conflict", "line 3: too many"),
            error("413 Payload Too Large", "the body has more than 4096 bytes"),
        ];
        let node = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            for (status, body) in replies {
                let (mut line, mut bytes) = (String::new(), 0);
                while line != "\r\n" {
                    line.clear();
                    reader.read_line(&mut line).unwrap();
                    if let Some(length) = line.strip_prefix("Content-Length: ") {
                        bytes = length.trim().parse().unwrap();
                    }
                }
                reader.read_exact(&mut vec![0; bytes]).unwrap();
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
                reader.get_mut().write_all((head + &body).as_bytes()).unwrap();
            }
        });
        let mut admin = Admin::new(&Target::parse(&address, None, Trust::System).unwrap(), AGENT);
        let text = "user,topic\na,b\na,c\n".to_owned();
        let chunk = Chunk { text, first: 101, last: 102, headers: 1, bytes: 8 };
        let mut progress = Progress::new(None);
        let mut send = || send(&mut admin, &chunk, &mut progress);
        assert_eq!(send(), Ok((2, 1)));
        assert_eq!(send(), Err("line 102: too many".into()));
        let rejected = send().unwrap_err();
        assert!(rejected.starts_with("lines 101 to 102: ") && rejected.contains("more than 4096"));
        node.join().unwrap();
    }
}
