//! A server that another process replaces while it runs, and the command that replaces it.

use std::io::Read;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::tls::{Authority, tunnel};
use crate::support::{Scratch, Server, TIMEOUT};

/// The topics of all tests.
pub const TOPICS: &str = include_str!("topics.toml");

/// Durable topics need a store.
pub const DURABLE: &str =
    "[[topics]]\npattern = \"d:*\"\nhistory_messages_max = 100000\ndurable = true\n";

/// How long `throng upgrade` may take: the server itself gives the longest step a minute.
const UPGRADE_TIMEOUT: Duration = TIMEOUT.saturating_mul(2);

/// Limits that clients do not reach, even if they do not read or wait for the end of an upgrade.
const PATIENT: [(&str, &str); 16] = [
    ("THRONG_ADMIN_HEAD_SECONDS", "600"),
    ("THRONG_ADMIN_IDLE_SECONDS", "600"),
    ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "64MiB"),
    ("THRONG_LIMITS_OUTBOX_MESSAGES_MAX", "100000"),
    ("THRONG_LIMITS_OUTBOXES_BYTES_MAX", "1GiB"),
    ("THRONG_LIMITS_RECENT_BYTES_MAX", "64MiB"),
    ("THRONG_LIMITS_RECENT_MESSAGES_MAX", "100000"),
    ("THRONG_LIMITS_RECENT_SECONDS_MAX", "600"),
    ("THRONG_LOG_LEVEL", "warn"),
    ("THRONG_MQTT_QUEUE_MESSAGES_MAX", "100000"),
    ("THRONG_TIMEOUTS_HEAD_SECONDS", "600"),
    ("THRONG_TIMEOUTS_IDLE_SECONDS", "600"),
    ("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "50"),
    ("THRONG_TIMEOUTS_PHOENIX_SILENCE_SECONDS", "600"),
    ("THRONG_TIMEOUTS_TCP_USER_TIMEOUT_SECONDS", "0"),
    ("THRONG_TIMEOUTS_WS_SILENCE_SECONDS", "600"),
];

/// The place of the history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Storage {
    Memory,
    Disk,
}

pub const BOTH: [Storage; 2] = [Storage::Memory, Storage::Disk];

/// The options of a server in a test.
pub struct Options<'a> {
    pub storage: Storage,
    /// The configuration.
    pub topics: String,
    /// Further parts of the configuration.
    pub more: String,
    pub settings: Vec<(&'a str, &'a str)>,
    pub binary: PathBuf,
    /// With this authority, clients connect through a tunnel with TLS.
    pub tls: Option<&'a Authority>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            storage: Storage::Memory,
            topics: TOPICS.into(),
            more: String::new(),
            settings: Vec::new(),
            binary: throng().into(),
            tls: None,
        }
    }
}

/// A server, or the process that has replaced it.
pub struct Node {
    pub server: Server,
    // The server ends before its folder is removed.
    folder: Scratch,
}

impl Deref for Node {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Node {
    pub fn new(storage: Storage) -> Self {
        Node::with(Options { storage, ..Options::default() })
    }

    pub fn with(options: Options<'_>) -> Self {
        let folder = Scratch::new("upgrade");
        let durable = if options.storage == Storage::Disk { DURABLE } else { "" };
        let text = format!("{}\n{}\n{durable}", options.topics, options.more);
        folder.write("throng.toml", &text);
        let mut command = serve(&options.binary, folder.path(), options.storage);
        command.args(["--shards", "3"]);
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let tls = options.tls.map(Authority::settings).unwrap_or_default();
        let tls = tls.iter().map(|(name, value)| (*name, value.as_str()));
        let settings: Vec<_> = options.settings.iter().copied().chain(tls).collect();
        let mut server = Server::run_in(folder.path(), command, &settings, log.into());
        if let (Some(authority), Some(address)) = (options.tls, server.client_tls) {
            server.client = tunnel(authority.client_config(), address);
        }
        Node { server, folder }
    }

    /// Returns the path of a file in the server's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Changes the configuration, but not its topics.
    pub fn configure(&self, more: &str) {
        self.folder.write("throng.toml", &format!("{TOPICS}\n{more}\n"));
    }

    /// Returns the command of a server with the same configuration and store.
    pub fn another(&self, storage: Storage) -> Command {
        serve(Path::new(throng()), self.folder.path(), storage)
    }

    /// Writes a script that runs in place of the server's binary.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.write(name, &format!("#!/bin/sh\n{text}\n"));
        executable(&path);
        path
    }

    /// Writes a script that prints its process id, and becomes the server when the test allows it.
    pub fn waiting_binary(&self, name: &str) -> WaitingBinary {
        let [started, go] = ["started", "go"].map(|what| self.path(&format!("{name}-{what}")));
        let text = format!(
            "echo $$ > {}\nwhile [ ! -e {} ]; do sleep 0.01; done\nexec {} \"$@\"",
            started.display(),
            go.display(),
            throng()
        );
        WaitingBinary { path: self.script(&format!("{name}.sh"), &text), started, go }
    }

    /// Returns the running servers, and the processes that they have started.
    pub fn processes(&self) -> Vec<u32> {
        self.server.mark.processes()
    }

    /// Waits until one process is left, and returns it.
    pub fn only(&self) -> u32 {
        let mut all = Vec::new();
        self.until("one process is left", |_| {
            all = self.processes();
            all.len() == 1
        });
        all[0]
    }

    /// Waits until no process of the server is left.
    pub fn until_all_ended(&self) {
        self.until("no process is left", |_| self.processes().is_empty());
    }

    /// Waits until the server has read all bytes that clients and applications have sent.
    pub fn until_all_read(&self) {
        let ports = [self.client.port(), self.admin.port()];
        self.until("the server has read all", |_| {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
            table.lines().skip(1).all(|row| {
                let columns: Vec<&str> = row.split_whitespace().collect();
                let is_server = |address: &str| {
                    let (_, port) = address.split_once(':').unwrap();
                    ports.contains(&u16::from_str_radix(port, 16).unwrap())
                };
                let (unsent, unread) = columns[4].split_once(':').unwrap();
                let is_empty = |queue: &str| queue.bytes().all(|digit| digit == b'0');
                (!is_server(columns[1]) || is_empty(unread))
                    && (!is_server(columns[2]) || is_empty(unsent))
            })
        });
    }

    /// Returns the command of an upgrade, with further arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(throng());
        command.args(["upgrade", "--admin", &format!("http://{}", self.admin)]);
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Begins an upgrade.
    pub fn begin(&self, arguments: &[&str]) -> Upgrade {
        Upgrade::begin(&mut self.command(arguments))
    }

    /// Runs `throng upgrade` to its end, which may be an error.
    pub fn try_upgrade(&self, arguments: &[&str]) -> Outcome {
        self.begin(arguments).end()
    }

    /// Upgrades the server, which must succeed, and waits for the end of the old process.
    pub fn upgrade(&self) {
        let before = self.only();
        self.switch();
        assert_ne!(self.only(), before, "the same process serves: {}", self.log());
    }

    /// Upgrades the server, which must succeed. If a busy machine needs more time than the server gives a step, the
    /// server gives up the upgrade, and this function tries again.
    pub fn switch(&self) {
        let end = Instant::now() + TIMEOUT;
        loop {
            let outcome = self.try_upgrade(&[]);
            match outcome.code {
                Some(0) => return,
                Some(3) if outcome.is_too_slow() && Instant::now() < end => {
                    println!("again, after {}", outcome.text());
                }
                _ => panic!("{outcome:?}"),
            }
        }
    }

    /// Waits for the end of an upgrade, which must succeed. If it was too slow, another one follows, as in
    /// [`Node::switch`].
    pub fn finish(&self, upgrade: Upgrade) {
        let outcome = upgrade.end();
        match outcome.code {
            Some(0) => {}
            Some(3) if outcome.is_too_slow() => self.switch(),
            _ => panic!("{outcome:?}"),
        }
    }

    /// Tries to upgrade the server, which must fail: the same process serves on. Returns the command's output.
    pub fn upgrade_fails(&self, arguments: &[&str]) -> String {
        let before = self.only();
        let outcome = self.try_upgrade(arguments);
        assert_eq!(outcome.code, Some(3), "{outcome:?}");
        assert_eq!(self.only(), before, "another process serves: {outcome:?}");
        let text = outcome.text();
        assert!(!text.contains("panicked"), "{text}");
        text
    }

    /// Returns the servers' log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Returns the epoch of all ids.
    pub fn epoch(&self) -> Value {
        self.api("GET", "/api/stats", None).1["epoch"].clone()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of the servers: {}", self.log());
        }
    }
}

pub fn throng() -> &'static str {
    env!("CARGO_BIN_EXE_throng")
}

/// Returns the command of a server with its configuration and store in this folder.
fn serve(binary: &Path, folder: &Path, storage: Storage) -> Command {
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--mqtt", "127.0.0.1:0", "--max-connections", "2000"]);
    command.arg("--config").arg(folder.join("throng.toml"));
    if storage == Storage::Disk {
        command.arg("--data").arg(folder.join("data"));
    }
    // A killed server leaves the folder of its sockets behind.
    command.current_dir(folder).envs(PATIENT).env("TMPDIR", folder);
    command
}

pub fn executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A script in place of the new server's binary, which waits.
pub struct WaitingBinary {
    path: PathBuf,
    started: PathBuf,
    go: PathBuf,
}

impl WaitingBinary {
    pub fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Waits until the script runs. Returns its process, which stays the same when it becomes the server.
    pub fn process(&self) -> u32 {
        line_of(&self.started).parse().unwrap()
    }

    /// Lets the script become the server.
    pub fn go(&self) {
        std::fs::write(&self.go, "").unwrap();
    }
}

/// A running `throng upgrade`; killed at the end of the test.
pub struct Upgrade {
    child: Child,
    begun: Instant,
    output: Option<[JoinHandle<String>; 2]>,
}

/// The result of `throng upgrade`.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Outcome {
    pub fn text(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }

    /// Returns true if a step took longer than the server waits for it.
    pub fn is_too_slow(&self) -> bool {
        self.text().contains("took longer than")
    }
}

impl Upgrade {
    fn begin(command: &mut Command) -> Self {
        fn all(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
            std::thread::spawn(move || {
                let mut text = String::new();
                pipe.read_to_string(&mut text).unwrap();
                text
            })
        }
        let (begun, mut child) = (Instant::now(), command.spawn().unwrap());
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Upgrade { child, begun, output: Some([all(stdout), all(stderr)]) }
    }

    pub fn end(mut self) -> Outcome {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(self.begun.elapsed() < UPGRADE_TIMEOUT, "throng upgrade does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = self.begun.elapsed();
        let [stdout, stderr] = self.output.take().unwrap().map(|text| text.join().unwrap());
        Outcome { code: status.code(), stdout, stderr, took }
    }
}

impl Drop for Upgrade {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends the loops of a test's threads, even if the test fails.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends a signal to a process, which may have ended.
pub fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([name, &pid.to_string()]).status().unwrap();
}

/// Waits until a file has a line, and returns it.
pub fn line_of(path: &Path) -> String {
    let end = Instant::now() + TIMEOUT;
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.trim().into(),
            _ => assert!(Instant::now() < end, "{} does not come", path.display()),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
