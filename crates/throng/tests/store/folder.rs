//! A folder for a store, servers on it, and a client that may be cut off at any moment.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use random::Random;
use serde_json::Value;

use crate::support::{Lines, Scratch, Server, TIMEOUT, output_within, wait_within};

/// A folder with a configuration and a data directory. A failed test does not remove it.
pub struct Folder {
    pub root: PathBuf,
    scratch: Option<Scratch>,
}

impl Folder {
    pub fn new(name: &str, configuration: &str) -> Self {
        let scratch = Scratch::new(&format!("store-{name}"));
        let folder = Folder { root: scratch.path().into(), scratch: Some(scratch) };
        folder.configure(configuration);
        folder
    }

    pub fn configure(&self, configuration: &str) {
        std::fs::write(self.root.join("throng.toml"), configuration).unwrap();
    }

    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// Returns the path of the store's file.
    pub fn file(&self) -> PathBuf {
        self.data().join("throng.redb")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--shards", "2", "--max-connections", "1000", "--config"]);
        command.arg(self.root.join("throng.toml"));
        command.env("THRONG_LOG_LEVEL", "off").current_dir(&self.root);
        command
    }

    pub fn serve(&self) -> Server {
        self.serve_in(&self.data())
    }

    pub fn serve_in(&self, data: &Path) -> Server {
        let mut command = self.command();
        command.arg("--data").arg(data);
        Server::run(command, &[])
    }

    /// Starts a server and kills it after this time, in whatever state it is then.
    pub fn begin_and_kill(&self, after: Duration) {
        let mut command = self.command();
        command.arg("--data").arg(self.data());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts a server. Returns `None` if it exits with 1.
    pub fn try_serve(&self) -> Option<Server> {
        let mut command = self.command();
        command.arg("--data").arg(self.data()).stdin(Stdio::null()).stderr(Stdio::null());
        let mut server = Server::spawn(&mut command);
        let mut lines = Lines::of(server.child.stdout.take().unwrap());
        let mut address = |label: &str| {
            let line = lines.find(|line| line.trim_start().starts_with(label))?;
            let (_, rest) = line.split_once("http://")?;
            rest.split(['/', ' ']).next()?.parse().ok()
        };
        if let (Some(client), Some(admin)) = (address("clients"), address("applications")) {
            // A thread must read the server's further lines.
            std::thread::spawn(move || lines.for_each(drop));
            (server.client, server.admin) = (client, admin);
            return Some(server);
        }
        assert_eq!(wait_within(&mut server.child).code(), Some(1));
        None
    }

    /// Starts a server that must end by itself. Returns its exit status and output.
    pub fn serve_rejected(&self, data: &Path) -> (Option<i32>, String) {
        let mut command = self.command();
        let output = output_within(command.arg("--data").arg(data));
        let texts = [output.stdout, output.stderr];
        let texts = texts.map(|text| String::from_utf8_lossy(&text).into_owned());
        (output.status.code(), texts.concat())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what was stored stays in {}", self.root.display());
            self.scratch.take().into_iter().for_each(std::mem::forget);
        }
    }
}

/// Stops a server properly. Returns its exit status.
pub fn end(mut server: Server) -> Option<i32> {
    server.signal("-TERM");
    wait_within(&mut server.child).code()
}

/// A connection that makes one request after another.
pub struct Caller {
    reader: BufReader<TcpStream>,
}

pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Value,
}

impl Caller {
    pub fn new(address: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_nodelay(true)?;
        Ok(Caller { reader: BufReader::new(socket) })
    }

    /// Makes one request. Returns an error if the connection ended before the complete response.
    pub fn call(&mut self, method: &str, target: &str, media: &str, body: &str) -> Result<Reply> {
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.reader.get_mut().write_all((head + body).as_bytes())?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.reader.read_line(&mut head)? == 0 {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
        }
        let length = crate::support::header(&head, "content-length");
        let mut body = vec![0; length.and_then(|length| length.parse().ok()).unwrap_or(0)];
        self.reader.read_exact(&mut body)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {head:?}"));
        let body = serde_json::from_slice(&body)
            .unwrap_or_else(|_| panic!("{target}: {}", String::from_utf8_lossy(&body)));
        Ok(Reply { status, head, body })
    }

    pub fn post(&mut self, target: &str, body: &Value) -> Result<Reply> {
        self.call("POST", target, "application/json", &body.to_string())
    }

    /// Reads the history of a topic after an id, page by page.
    pub fn history(
        &mut self,
        topic: &str,
        since: Option<&str>,
        limit: usize,
    ) -> Vec<HistoryMessage> {
        let (mut all, mut since) = (Vec::new(), since.map(String::from));
        loop {
            let after = since.map(|since| format!("&since={since}")).unwrap_or_default();
            let target = format!("/api/history/{topic}?limit={limit}{after}");
            let reply = self.call("GET", &target, "application/json", "").unwrap();
            assert_eq!(reply.status, 200, "{target}: {}", reply.body);
            let mut page = reply.body;
            assert_eq!(page["complete"], true, "{target}");
            let Value::Array(messages) = page["messages"].take() else { panic!("{page}") };
            all.extend(messages.iter().map(|message| HistoryMessage {
                id: message["id"].as_str().unwrap().into(),
                offset: message["offset"].as_u64().unwrap(),
                data: message["data"].as_str().unwrap().into(),
            }));
            match page["next"].as_str() {
                Some(next) if page["more"] == true => since = Some(next.into()),
                _ => return all,
            }
        }
    }
}

/// A message of a topic's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryMessage {
    pub id: String,
    pub offset: u64,
    pub data: String,
}

/// Flips up to `most` bits of a file, near its beginning where most used pages are.
pub fn flip_bits(random: &mut Random, bytes: &mut [u8], most: u64) {
    for _ in 0..=random.below(most) {
        let at = random.below(bytes.len() / 4);
        bytes[at] ^= 1 << random.below(8);
    }
}
