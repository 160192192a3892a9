//! A Throng server as a child process. The bench uses only its external interface.

use std::fs::File;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::api::Api;
use crate::process::ServerProcess;
use flood::source::free_server_address;

/// How long the server may take until it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Connections that a server may have beyond its crowd: probes, and connections that an earlier crowd
/// has just closed.
const CONNECTIONS_SLACK: usize = 2_000;

/// How Throng sends a message to many connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// `--sender io_uring`
    IoUring,
    /// `--sender write`
    Write,
    /// `--sender auto`, the default.
    Auto,
}

impl Sender {
    /// The two senders, for side-by-side runs.
    pub const ALL: [Self; 2] = [Self::IoUring, Self::Write];

    /// Returns the value of the server's flag.
    pub fn word(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Write => "write",
            Self::Auto => "auto",
        }
    }
}

/// Returns the setting that serves MQTT, too.
fn with_mqtt() -> [(&'static str, String); 1] {
    [("THRONG_MQTT_LISTEN", "127.0.0.1:0".into())]
}

/// A running server without heartbeats.
#[derive(Debug)]
pub struct Throng {
    /// Its process.
    pub process: ServerProcess,
    /// The address for clients.
    pub clients: SocketAddrV4,
    /// The address for applications.
    pub admin: SocketAddrV4,
    /// A client of the application side.
    pub api: Api,
    log: PathBuf,
}

impl Throng {
    /// Starts a server for a crowd of this many connections, and waits until it is ready.
    ///
    /// # Errors
    /// If it can't be built or started, or isn't ready in time. The error has the end of its log.
    pub fn start(shards: usize, connections: usize, sender: Sender) -> Result<Self> {
        Self::start_set(&binary()?, shards, connections, sender, &with_mqtt())
    }

    /// Starts this executable as [`Throng::start`] does, but without MQTT.
    ///
    /// # Errors
    /// If it can't be started, or isn't ready in time. The error has the end of its log.
    pub fn start_build(
        binary: &Path,
        shards: usize,
        connections: usize,
        sender: Sender,
    ) -> Result<Self> {
        Self::start_set(binary, shards, connections, sender, &[])
    }

    /// Starts a server with these settings, as environment variables.
    ///
    /// # Errors
    /// As [`Throng::start_build`].
    pub fn start_with(
        shards: usize,
        connections: usize,
        settings: &[(&str, String)],
    ) -> Result<Self> {
        let settings = [&with_mqtt(), settings].concat();
        Self::start_set(&binary()?, shards, connections, Sender::IoUring, &settings)
    }

    fn start_set(
        binary: &Path,
        shards: usize,
        connections: usize,
        sender: Sender,
        settings: &[(&str, String)],
    ) -> Result<Self> {
        let clients = free_server_address()?;
        let admin = free_server_address()?;
        let log = std::env::temp_dir().join(format!(
            "throng-bench-{}-{}.log",
            std::process::id(),
            clients.port()
        ));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = Command::new(binary);
        command
            .arg("serve")
            .args(["--listen", &clients.to_string()])
            .args(["--admin", &admin.to_string()])
            .args(["--shards", &shards.to_string()])
            .args(["--max-connections", &(connections + CONNECTIONS_SLACK).to_string()])
            .args(["--sender", sender.word()])
            .args(["--log", "warn"])
            // The server must not read the user's throng.toml in the current folder.
            .current_dir(std::env::temp_dir())
            .envs(QUIET.iter().copied())
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("the log")?)
            .stderr(file);
        let mut throng = Self {
            process: ServerProcess::start(command)?,
            clients,
            admin,
            api: Api::new(admin),
            log,
        };
        throng.wait_ready().with_context(|| throng.log_end())?;
        Ok(throng)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < START_TIMEOUT {
            if let Some(status) = self.process.ended()? {
                bail!("throng ended at its start: {status}");
            }
            if let Ok((200, _)) = self.api.get("/readyz") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("throng was not ready within {START_TIMEOUT:?}")
    }

    fn log_end(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let end = &lines[lines.len().saturating_sub(20)..];
        format!("the end of throng's log:\n{}", end.join("\n"))
    }

    /// Publishes to a topic and checks that it had this many members.
    ///
    /// # Errors
    /// If the server rejects it, or the number of members is another.
    pub fn publish(&mut self, topic: &str, data: &str, members: usize) -> Result<()> {
        let response = self.api.post("/api/publish", &json!({"topic": topic, "data": data}))?;
        ensure!(response["members"] == members, "{members} members expected: {response}");
        Ok(())
    }

    /// Sends to a user.
    ///
    /// # Errors
    /// If the server rejects it.
    pub fn send(&mut self, user: &str, data: &str) -> Result<Value> {
        self.api.post("/api/send", &json!({"user": user, "data": data}))
    }

    /// Returns the CPU time used so far.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }
}

impl Drop for Throng {
    fn drop(&mut self) {
        // A log that stays in the temporary folder is no error.
        let _ = std::fs::remove_file(&self.log);
    }
}

/// Switches off heartbeats, and lets polls and silent WebSockets wait.
const QUIET: &[(&str, &str)] = &[
    ("THRONG_TIMEOUTS_SSE_HEARTBEAT_SECONDS", "3600"),
    ("THRONG_TIMEOUTS_STREAM_HEARTBEAT_SECONDS", "3600"),
    ("THRONG_TIMEOUTS_WS_PING_SECONDS", "3600"),
    ("THRONG_TIMEOUTS_WS_SILENCE_SECONDS", "7200"),
    ("THRONG_TIMEOUTS_POLL_SECONDS_MAX", "3600"),
];

/// Returns the executable: `THRONG_BIN`, or the one of this build, which it brings up to date.
///
/// # Errors
/// If it can't be built, or does not exist.
pub fn binary() -> Result<PathBuf> {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = BINARY.get() {
        return Ok(path.clone());
    }
    let path = match std::env::var_os("THRONG_BIN") {
        // The server runs in another folder, so a relative path would not work.
        Some(path) => std::path::absolute(path).context("THRONG_BIN")?,
        None => build()?,
    };
    ensure!(
        path.is_file(),
        "no server at {}: build it with «cargo build --release -p throng», or set THRONG_BIN",
        path.display()
    );
    Ok(BINARY.get_or_init(|| path).clone())
}

/// Builds the server. `cargo bench` alone builds no other package's binary, so the bench would measure
/// an outdated one.
fn build() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("own executable")?;
    let profile = exe.ancestors().nth(2).context("a target folder")?;
    let target = profile.parent().context("a target folder")?;
    if let Some(cargo) = std::env::var_os("CARGO") {
        let status = Command::new(cargo)
            .args(["build", "--release", "--quiet", "--package", "throng"])
            .arg("--target-dir")
            .arg(target)
            .status()
            .context("running cargo")?;
        ensure!(status.success(), "building throng: {status}");
        return Ok(target.join("release/throng"));
    }
    Ok(profile.join("throng"))
}
