//! Runs a page from its first line to its last, as a reader would.
//!
//! A page has one reader, with one shell, one server at a time and one tab of a browser.
//!
//! - `sh` runs. A command that starts the server replaces the server before it; `curl -N` and the commands after it
//!   stay in another terminal. Ports 8000 and 8001 stand for the real server's ports.
//! - `json` and `text` directly behind it is its expected output ([`compare`]).
//! - `toml` becomes the reader's throng.toml, and must be valid.
//! - `js` runs in the console of a browser's tab.
//!
//! A comment `<!-- test: … -->` in front of a block tells the test what the text around the block tells people:
//!
//! | | |
//! | --- | --- |
//! | `not run: WHY` | The test only checks that the block's commands exist and accept these flags. |
//! | `with A => B; C => D` | The test replaces A by B in the block: a large number by a small one. |
//! | `background` | The block runs in another terminal. |
//! | `until TEXT` | The reader repeats the block until it prints TEXT: the described effect takes a moment. |
//! | `exit N` | The commands end with this status, and their standard error counts as output. |
//! | `output of the commands`, `the listener`, `listener N`, `the server`, `the page` | The source of this output. |
//! | `numbers vary`, `any order`, `headers` | How the test compares the output. |
//! | `serve FLAGS`, `stop` | The reader restarts the server with the throng.toml of the page so far, or ends it. |
//! | `from FILE` | The block is a part of this file. |
//! | `file NAME` | The reader writes the block into this file. |
//! | `port N` | Another port that programs of the page use. |
//! | `sent over /ws?QUERY` | Each line is a command of a WebSocket; the block behind it has the responses. |
//! | `shape` | The block is JSON that no command prints. |

use std::collections::HashMap;
use std::net::TcpStream;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use regex::Regex;

use crate::docs::browser::Browser;
use crate::docs::compare::{self, Names, Rules};
use crate::docs::form;
use crate::docs::markdown::{Block, Item, Page};
use crate::docs::shell::{Listener, Server, Shell};
use crate::support::{TIMEOUT, free_port};

/// How many snippets the test handled in each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub run: usize,
    pub compared: usize,
    pub checked: usize,
    pub marked: usize,
}

/// The directives in front of a block.
#[derive(Default)]
struct How {
    not_run: Option<String>,
    with: Vec<(String, String)>,
    background: bool,
    until: Option<String>,
    exit: i32,
    of: Option<String>,
    rules: Rules,
    headers: bool,
    from: Option<String>,
    file: Option<String>,
    sent: Option<String>,
    shape: bool,
}

/// The output of the block before.
enum Printed {
    Nothing,
    Text(String),
    Listener(usize),
}

pub struct Runner<'a> {
    root: &'a Path,
    shell: Shell,
    server: Option<Server>,
    listeners: Vec<Listener>,
    browser: Option<Browser>,
    /// The real ports by the page's ports.
    ports: HashMap<u16, u16>,
    /// The real ports of those on which no program of the page listens yet.
    silent_ports: Vec<u16>,
    names: Names,
    printed: Printed,
    how: How,
    counts: Counts,
}

/// Runs a page. Fails if a result differs from the page.
pub fn run(root: &Path, path: &str, text: &str) -> Result<Counts, String> {
    let page = Page::read(text);
    let mut runner = Runner {
        root,
        shell: Shell::start(&path.replace(['/', '.'], "-"), root),
        server: None,
        listeners: Vec::new(),
        browser: None,
        ports: HashMap::new(),
        silent_ports: Vec::new(),
        names: Names::default(),
        printed: Printed::Nothing,
        how: How::default(),
        counts: Counts::default(),
    };
    for item in &page.items {
        let (line, done) = match item {
            Item::Directive(text, line) => (*line, runner.direct(text)),
            Item::Block(block) => (block.line, runner.block(block)),
            Item::Command(text, line) => {
                runner.counts.checked += 1;
                (*line, form::check(root, text))
            }
        };
        done.map_err(|error| format!("{path}:{line}: {error}"))?;
    }
    Ok(runner.counts)
}

impl Runner<'_> {
    fn direct(&mut self, text: &str) -> Result<(), String> {
        if let Some(why) = text.strip_prefix("not run:") {
            self.how.not_run = Some(why.trim().into());
            return Ok(());
        }
        if let Some(pairs) = text.strip_prefix("with ") {
            for pair in pairs.split("; ") {
                let (from, to) = pair.split_once(" => ").ok_or("with takes A => B")?;
                self.how.with.push((from.into(), to.into()));
            }
            return Ok(());
        }
        for directive in text.split(", ") {
            let (word, rest) = directive.split_once(' ').unwrap_or((directive, ""));
            match (word, rest) {
                ("background", "") => self.how.background = true,
                ("until", text) => self.how.until = Some(text.into()),
                ("exit", code) => {
                    self.how.exit = code.parse().map_err(|_| "exit takes a number")?
                }
                ("output", of) => {
                    self.how.of = Some(of.strip_prefix("of ").ok_or("output of what?")?.into());
                }
                ("numbers", "vary") => self.how.rules.numbers_vary = true,
                ("any", "order") => self.how.rules.any_order = true,
                ("headers", "") => self.how.headers = true,
                ("from", file) => self.how.from = Some(file.into()),
                ("file", name) => self.how.file = Some(name.into()),
                ("sent", over) => {
                    self.how.sent = Some(over.strip_prefix("over ").ok_or("over what?")?.into());
                }
                ("shape", "") => self.how.shape = true,
                ("port", port) => {
                    let port = port.parse().map_err(|_| "port takes a number")?;
                    let real = free_port();
                    self.ports.insert(port, real);
                    self.silent_ports.push(real);
                }
                ("stop", "") => self.server = None,
                ("serve", flags) => self.serve(&format!("throng serve {flags}")),
                _ => return Err(format!("there is no directive {directive:?}")),
            }
        }
        Ok(())
    }

    fn block(&mut self, block: &Block) -> Result<(), String> {
        let how = std::mem::take(&mut self.how);
        let text = &block.text;
        if let Some(why) = &how.not_run {
            if why.len() < 10 {
                return Err("say why it is not run".into());
            }
            self.counts.marked += 1;
            self.printed = Printed::Nothing;
            return match &*block.language {
                "sh" => form::check(self.root, text),
                _ => Ok(()),
            };
        }
        if let Some(file) = &how.from {
            let all = std::fs::read_to_string(self.root.join(file));
            let all = all.map_err(|error| format!("{file}: {error}"))?;
            self.counts.compared += 1;
            return match all.contains(text.trim()) {
                true => Ok(()),
                false => Err(format!("this does not stand in {file}")),
            };
        }
        if let Some(name) = &how.file {
            let path = self.shell.folder.join(name);
            self.counts.run += 1;
            return std::fs::write(path, self.real(text))
                .map_err(|error| format!("{name}: {error}"));
        }
        match &*block.language {
            "sh" => self.sh(text, &how),
            "js" => self.js(text),
            "toml" => self.toml(text),
            "json" if how.shape => {
                self.counts.checked += 1;
                let mut all =
                    serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
                all.try_for_each(|value| value.map(drop).map_err(|error| error.to_string()))
            }
            "json" if how.sent.is_some() => self.websocket(text, &how.sent.unwrap_or_default()),
            "json" | "text" => self.output(block, &how),
            other => Err(format!("{other:?} is run by nothing: mark it `not run: WHY`")),
        }
    }

    fn sh(&mut self, text: &str, how: &How) -> Result<(), String> {
        static CARGO: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"cargo run --release(?: --)?(?P<end>\s|$)").unwrap());
        static LISTEN: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"--(?P<which>listen|admin) (?P<host>[\w.]+):(?P<port>\d+)").unwrap()
        });
        self.counts.run += 1;
        let mut text = text.to_owned();
        for (from, to) in &how.with {
            if !text.contains(from.as_str()) {
                return Err(format!("with {from}: it is not in the block"));
            }
            text = text.replace(from, to);
        }
        let text = CARGO.replace_all(&text, "throng$end").into_owned();
        if let Some(line) = text.lines().find(|line| form::is_large(line)) {
            return Err(format!("{line}: this may run for hours, and change the host: mark it"));
        }
        let (first, last) = split_last(&text);
        if starts_server(last) {
            if !first.trim().is_empty() {
                self.foreground(first, how)?;
            }
            // The system chooses the ports. From here on, the page's ports stand for them.
            let mut own = Vec::new();
            let line = LISTEN.replace_all(last, |found: &regex::Captures<'_>| {
                if let Ok(port) = found["port"].parse::<u16>() {
                    own.push((found["which"].to_owned(), port));
                }
                format!("--{} {}:0", &found["which"], &found["host"])
            });
            self.serve(line.trim());
            for (which, port) in own {
                let server = self.server.as_ref().ok_or("no server")?;
                let real = if which == "listen" { server.client } else { server.admin };
                self.ports.insert(port, real);
            }
            self.printed = Printed::Nothing;
            return Ok(());
        }
        self.need_server();
        if how.background {
            return self.leave(&text);
        }
        if last.starts_with("curl -N") {
            if !first.trim().is_empty() {
                self.foreground(first, how)?;
            }
            return self.leave(last);
        }
        self.foreground(&text, how)
    }

    fn foreground(&mut self, text: &str, how: &How) -> Result<(), String> {
        let stored = self.stored();
        let end = Instant::now() + TIMEOUT;
        let mut done = self.shell.run(&self.real(text));
        while how.until.as_ref().is_some_and(|until| !done.out.contains(until)) {
            if Instant::now() > end {
                return Err(format!("it never prints {:?}:\n{}", how.until, done.out));
            }
            std::thread::sleep(Duration::from_millis(20));
            done = self.shell.run(&self.real(text));
        }
        let output = format!("{}{}", done.out, done.err);
        if how.exit == 0 && !done.failed.is_empty() || done.status != how.exit {
            return Err(format!(
                "it ended with {} ({}):\n{output}",
                done.status,
                done.failed.trim()
            ));
        }
        let printed = if how.exit == 0 { done.out } else { output };
        // A test would read faster than the store writes, unlike a person.
        self.until_stored(stored, printed.matches("\"queued\":true").count())?;
        self.printed = Printed::Text(self.shown(&printed));
        Ok(())
    }

    /// Starts a block in the background, and waits until it has connected, listens, or has printed something.
    fn leave(&mut self, text: &str) -> Result<(), String> {
        let before = self.opened();
        let speaks = |port: &u16| TcpStream::connect(("127.0.0.1", *port)).is_ok();
        // A program already listens on the other ports.
        self.silent_ports.retain(|port| !speaks(port));
        let listener = self.shell.leave(&self.real(text));
        let end = Instant::now() + TIMEOUT;
        while self.opened() <= before && listener.text().is_empty() {
            if self.silent_ports.iter().any(speaks) {
                break;
            }
            if Instant::now() > end {
                return Err(format!(
                    "it neither connects nor listens, and prints nothing:\n{text}"
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.listeners.push(listener);
        self.printed = Printed::Listener(self.listeners.len() - 1);
        Ok(())
    }

    /// Returns how many operations the server's store has written, if the server has a store.
    fn stored(&self) -> Option<u64> {
        let address = ([127, 0, 0, 1], self.server.as_ref()?.admin).into();
        let (_, metrics) = crate::support::text(address, "GET", "/metrics", None, "");
        let value = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        value("throng_store_operations_total ")
    }

    /// Waits until the store has written `more` operations than before.
    fn until_stored(&self, before: Option<u64>, more: usize) -> Result<(), String> {
        let end = Instant::now() + TIMEOUT;
        while more > 0 && self.stored() < before.map(|before| before + more as u64) {
            if Instant::now() > end {
                return Err("the store does not write what is queued".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Returns how many connections have ever opened a transport, or 0 if the admin port requires a key.
    fn opened(&self) -> u64 {
        let Some(server) = &self.server else { return 0 };
        let address = ([127, 0, 0, 1], server.admin).into();
        let (_, metrics) = crate::support::text(address, "GET", "/metrics", None, "");
        let opened = metrics.lines().filter(|it| it.starts_with("throng_connections_opened_total"));
        let count =
            opened.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
        // Every shard replies to this, and by then has finished the turn in which a connection subscribed.
        crate::support::text(address, "GET", "/api/topics", None, "");
        count as u64
    }

    fn js(&mut self, text: &str) -> Result<(), String> {
        self.counts.run += 1;
        self.need_server();
        let before = self.opened();
        let js = self.real(text);
        let browser = self.browser.get_or_insert_with(Browser::start);
        browser.run(&js)?;
        // The page's connection must be open before a command publishes to it.
        if ["EventSource(", "WebSocket(", "new Socket("].iter().any(|it| js.contains(it)) {
            let end = Instant::now() + TIMEOUT;
            while self.opened() <= before {
                if Instant::now() > end {
                    return Err(format!("it opens no connection:\n{js}"));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.printed = Printed::Nothing;
        Ok(())
    }

    fn toml(&mut self, text: &str) -> Result<(), String> {
        self.counts.run += 1;
        std::fs::write(self.shell.folder.join("throng.toml"), self.real(text)).unwrap();
        let done = self.shell.run("throng config --check");
        match done.status {
            0 => Ok(()),
            _ => Err(format!("throng config --check:\n{}", done.err)),
        }
    }

    fn websocket(&mut self, text: &str, target: &str) -> Result<(), String> {
        self.counts.run += 1;
        self.need_server();
        let port = self.server.as_ref().ok_or("no server")?.client;
        let socket = crate::support::connect(([127, 0, 0, 1], port).into());
        let url = format!("ws://127.0.0.1:{port}{target}");
        let (mut socket, _) =
            tungstenite::client(url, socket).map_err(|error| error.to_string())?;
        let mut output = crate::support::receive(&mut socket).to_string();
        for line in text.lines() {
            let command = tungstenite::Message::text(self.names.real(line));
            socket.send(command).map_err(|error| error.to_string())?;
            loop {
                let response = crate::support::receive(&mut socket);
                output = format!("{output}\n{response}");
                if response["type"] == "reply" {
                    break;
                }
            }
        }
        self.printed = Printed::Text(output);
        Ok(())
    }

    /// Compares a block with the output that it stands for.
    fn output(&mut self, block: &Block, how: &How) -> Result<(), String> {
        self.counts.compared += 1;
        if how.of.is_none() && !block.follows {
            return Err("nothing stands before it that prints this: say whose output it is".into());
        }
        let which = match how.of.as_deref() {
            None | Some("the commands") => match &self.printed {
                Printed::Nothing => return Err("the block before prints nothing".into()),
                Printed::Text(text) => {
                    let real = if how.headers { text.replace('\r', "") } else { text.clone() };
                    let names = &mut self.names;
                    return match compare::fits(&block.text, &real, true, how.rules, names) {
                        Some(_) => Ok(()),
                        None => {
                            Err(format!("it printed\n{real}\nand the page shows\n{}", block.text))
                        }
                    };
                }
                Printed::Listener(at) => Some(*at),
            },
            Some("the listener") => {
                Some(self.listeners.len().checked_sub(1).ok_or("who listens?")?)
            }
            Some("the server" | "the page") => None,
            Some(other) => {
                let number =
                    other.strip_prefix("listener ").and_then(|it| it.parse::<usize>().ok());
                Some(number.ok_or("output of whom?")? - 1)
            }
        };
        let end = Instant::now() + TIMEOUT;
        loop {
            let (all, seen) = self.events_within(which, how)?;
            let real = all.get(seen..).unwrap_or_default();
            let names = &mut self.names;
            if let Some(end) = compare::fits(&block.text, real, false, how.rules, names) {
                self.see(which, how, seen + end);
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("there came\n{real}\nand the page shows\n{}", block.text));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the output of a listener, the server or the page, and how much of it the page has shown.
    fn events_within(
        &mut self,
        which: Option<usize>,
        how: &How,
    ) -> Result<(String, usize), String> {
        let (text, seen) = match (which, how.of.as_deref()) {
            (Some(at), _) => {
                let listener = self.listeners.get(at).ok_or("there is no such listener")?;
                (listener.text(), listener.seen)
            }
            (None, Some("the server")) => {
                let server = self.server.as_ref().ok_or("no server runs")?;
                (server.listener.text(), server.listener.seen)
            }
            _ => {
                let browser = self.browser.as_mut().ok_or("no page is open")?;
                let seen = browser.seen;
                (browser.log()?.to_owned(), seen)
            }
        };
        Ok((self.shown(&text), seen))
    }

    fn see(&mut self, which: Option<usize>, how: &How, seen: usize) {
        match (which, how.of.as_deref()) {
            (Some(at), _) => self.listeners[at].seen = seen,
            (None, Some("the server")) => {
                self.server.iter_mut().for_each(|server| server.listener.seen = seen);
            }
            _ => self.browser.iter_mut().for_each(|browser| browser.seen = seen),
        }
    }

    fn need_server(&mut self) {
        if self.server.is_none() {
            self.serve("throng serve");
        }
    }

    fn serve(&mut self, command_line: &str) {
        // The server before holds its store until it has ended.
        self.server = None;
        let server = Server::start(&self.shell, &self.real(command_line));
        self.ports.insert(8000, server.client);
        self.ports.insert(8001, server.admin);
        self.names = Names::default();
        self.server = Some(server);
    }

    /// Returns a text of the page with the real ports.
    fn real(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (shown, real) in &self.ports {
            for host in ["127.0.0.1:", "localhost:", "listen(", "-p "] {
                text = text.replace(&format!("{host}{shown}"), &format!("{host}{real}"));
            }
        }
        text
    }

    /// Returns output with the page's ports.
    fn shown(&self, text: &str) -> String {
        let mut text = text.to_owned();
        // Ports that a page chose by `--listen` map to the same real ports as 8000 and 8001. Output always shows the
        // latter.
        for (shown, real) in self.ports.iter().filter(|(shown, _)| **shown < 9000) {
            text = text.replace(&format!("127.0.0.1:{real}"), &format!("127.0.0.1:{shown}"));
        }
        text
    }
}

/// Splits a block into the text before its last command, and that command.
fn split_last(text: &str) -> (&str, &str) {
    let mut at = 0;
    let mut continued = false;
    let (mut quotes, mut begin) = (0, 0);
    for line in text.split_inclusive('\n') {
        if !continued && quotes % 2 == 0 && !line.trim().is_empty() {
            begin = at;
        }
        quotes += line.matches('\'').count();
        continued = line.trim_end().ends_with('\\');
        at += line.len();
    }
    text.split_at(begin)
}

/// Returns true for a command that starts a server.
fn starts_server(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next() == Some("throng")
        && words.next().is_none_or(|word| word == "serve" || word.starts_with("--"))
        && !line.replace("2> ", "").contains(['|', '>'])
        && !line.contains("--help")
        && !line.contains("--version")
}

#[test]
fn blocks_are_taken_apart() {
    assert_eq!(split_last("a\nb -d '{\n}'\n"), ("a\n", "b -d '{\n}'\n"));
    assert_eq!(split_last("a\nb \\\n c\n"), ("a\n", "b \\\n c\n"));
    assert!(starts_server("throng\n") && starts_server("throng serve --data d"));
    assert!(starts_server("throng --listen 127.0.0.1:9000"));
    assert!(!starts_server("throng top") && !starts_server("throng --version"));
}
