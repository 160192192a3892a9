//! The servers, each a child process on a folder of its own.

use std::fs::File;
use std::net::{SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bench::api::Api;
use bench::process::ServerProcess;
use flood::source::free_server_address;
use serde_json::json;

use crate::http::{Http, TOPIC};
use crate::load::{self, Measured, Publisher, Span, Usage};
use crate::postgres::Postgres;
use crate::{Mode, PAYLOAD, nats};

/// How long a server may take until it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A server and its settings.
#[derive(Debug, Clone)]
pub(crate) enum Setting {
    /// Throng, which responds after the commit, or without a history.
    Throng {
        /// The executable.
        binary: PathBuf,
        /// The history of the topic.
        history: History,
    },
    /// NATS JetStream with a stream in files.
    Nats {
        /// The executable.
        nats: Nats,
        /// Syncs before each acknowledgement; otherwise every two minutes, which is its default.
        sync_always: bool,
    },
}

impl Setting {
    /// Returns the name for the table.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Throng { history: History::Store, .. } => "Throng, durable = true",
            Self::Throng { history: History::Postgres(_), .. } => "Throng, history in PostgreSQL",
            Self::Throng { history: History::Nowhere, .. } => {
                "Throng, no history (nothing on disk)"
            }
            Self::Nats { sync_always: true, .. } => "JetStream, sync_interval: always",
            Self::Nats { sync_always: false, .. } => "JetStream, default (fsync every 2 min)",
        }
    }
}

/// Where Throng has the history of the topic.
#[derive(Debug, Clone)]
pub(crate) enum History {
    /// The topic has none.
    Nowhere,
    /// In the store of `--data`.
    Store,
    /// In a PostgreSQL server, whose programs are in this folder.
    Postgres(PathBuf),
}

/// A NATS server's executable.
#[derive(Debug, Clone)]
pub(crate) struct Nats {
    binary: PathBuf,
    /// Its version text.
    pub(crate) version: String,
    number: (u32, u32),
}

impl Nats {
    /// Runs it to get its version.
    ///
    /// # Errors
    /// If it can't be run.
    pub(crate) fn at(binary: &Path) -> Result<Self> {
        let version = version(binary)?;
        let number = version_number(&version)
            .with_context(|| format!("{} reports its version as {version:?}", binary.display()))?;
        Ok(Self { binary: binary.to_owned(), version, number })
    }

    /// Returns whether it has a setting to sync before it acknowledges.
    pub(crate) fn has_sync_always(&self) -> bool {
        self.number >= (2, 10)
    }

    /// Returns whether it has atomic batches.
    pub(crate) fn has_batches(&self) -> bool {
        self.number >= (2, 12)
    }

    fn config(&self, address: SocketAddrV4, data: &Path, sync_always: bool) -> String {
        let sync = if sync_always { "  sync_interval: always\n" } else { "" };
        // The default of 50 batches at a time is too low for the publishers.
        let batches = if self.has_batches() {
            "  limits { batch { max_inflight_per_stream: 1000 } }\n"
        } else {
            ""
        };
        format!(
            "listen: \"{address}\"\njetstream {{\n  store_dir: {:?}\n{sync}{batches}}}\n",
            data.display().to_string()
        )
    }
}

/// Returns the output of an executable for `--version`.
///
/// # Errors
/// If it can't be run.
pub(crate) fn version(binary: &Path) -> Result<String> {
    let output = Command::new(binary)
        .arg("--version")
        .output()
        .with_context(|| format!("running {}", binary.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Parses `nats-server: v2.10.7` as (2, 10).
fn version_number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.rsplit('v').next()?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

const THRONG_TOPICS: &str = r#"
[[topics]]
pattern = "durable:*"
history_messages_max = 1000000
history_bytes_max = "1GiB"
durable = true
"#;

/// A running server.
struct Server {
    process: ServerProcess,
    /// The address to publish to.
    address: SocketAddrV4,
    /// The server with Throng's history. It ends after Throng.
    postgres: Option<Postgres>,
}

impl Server {
    fn start(dir: &Path, setting: &Setting) -> Result<Self> {
        let address = free_server_address()?;
        let data = dir.join("data");
        let config = dir.join("config");
        let mut command;
        let mut postgres = None;
        match setting {
            Setting::Throng { binary, history } => {
                let text = match history {
                    History::Nowhere => String::new(),
                    History::Store => THRONG_TOPICS.to_owned(),
                    History::Postgres(programs) => {
                        let server = Postgres::start(programs, dir)?;
                        let text = format!("[history]\nurl = {:?}\n{THRONG_TOPICS}", server.url());
                        postgres = Some(server);
                        text
                    }
                };
                std::fs::write(&config, text)?;
                command = Command::new(std::path::absolute(binary)?);
                command.arg("serve").arg("--config").arg(&config);
                command.args(["--listen", &free_server_address()?.to_string()]);
                command.args(["--admin", &address.to_string()]).args(["--log", "warn"]);
                if matches!(history, History::Store) {
                    command.arg("--data").arg(&data);
                }
            }
            Setting::Nats { nats, sync_always } => {
                std::fs::write(&config, nats.config(address, &data, *sync_always))?;
                command = Command::new(std::path::absolute(&nats.binary)?);
                command.arg("-c").arg(&config);
            }
        }
        let log = File::create(dir.join("log")).context("the log")?;
        // The server must not read the user's configuration in the current folder.
        command.current_dir(dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut server = Self { process: ServerProcess::start(command)?, address, postgres };
        server.wait_ready(setting)?;
        Ok(server)
    }

    fn wait_ready(&mut self, setting: &Setting) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < START_TIMEOUT {
            if let Some(status) = self.process.ended()? {
                bail!("the server ended at its start: {status}");
            }
            let ready = match setting {
                Setting::Throng { .. } => {
                    matches!(Api::new(self.address).get("/readyz"), Ok((200, _)))
                }
                Setting::Nats { .. } => TcpStream::connect(self.address).is_ok(),
            };
            if ready {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the server was not ready within {START_TIMEOUT:?}")
    }

    fn publishers(
        &self,
        setting: &Setting,
        mode: Mode,
        count: usize,
    ) -> Result<Vec<(TcpStream, Box<dyn Publisher>)>> {
        let mut publishers: Vec<(TcpStream, Box<dyn Publisher>)> = Vec::with_capacity(count);
        for index in 0..count {
            publishers.push(match setting {
                Setting::Throng { .. } => {
                    let stream = TcpStream::connect(self.address).context("connecting")?;
                    (stream, Box::new(Http::new(self.address, mode)))
                }
                Setting::Nats { .. } => {
                    let nats = nats::Nats::new(index, mode);
                    (nats.connect(self.address)?, Box::new(nats))
                }
            });
        }
        Ok(publishers)
    }

    fn usage(&self) -> Result<Usage> {
        let (cpu, written_bytes) = (self.process.cpu()?, written_bytes(self.process.id())?);
        let more = self.postgres.as_ref().map_or(Ok(Usage::default()), Postgres::usage)?;
        Ok(Usage { cpu: cpu + more.cpu, written_bytes: written_bytes + more.written_bytes })
    }

    /// Checks that the server has every message that it acknowledged.
    fn verify(&self, setting: &Setting, total: u64) -> Result<()> {
        match setting {
            Setting::Throng { .. } => {
                let one_more = json!({"topic": TOPIC, "data": PAYLOAD});
                let response = Api::new(self.address).post("/api/publish", &one_more)?;
                let offset = response["offset"].as_u64();
                ensure!(offset > Some(total), "after {total} messages the next one is {response}");
            }
            Setting::Nats { .. } => {
                let stored = nats::last_sequence(self.address)?;
                ensure!(stored == total, "of {total} messages acknowledged, {stored} are stored");
            }
        }
        Ok(())
    }
}

/// Runs one server on an empty folder, and its publishers.
///
/// # Errors
/// If the server can't be started, rejects a request, or has lost a message. The error has the end of
/// its log.
pub(crate) fn cell(
    dir: &Path,
    setting: &Setting,
    mode: Mode,
    publishers: usize,
    span: Span,
) -> Result<Measured> {
    let dir = dir.join("server");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
    }
    std::fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
    let outcome = measure(&dir, setting, mode, publishers, span).with_context(|| log_end(&dir));
    std::fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
    // The next server must not wait for the disk writes of this one.
    rustix::fs::sync();
    outcome
}

fn measure(
    dir: &Path,
    setting: &Setting,
    mode: Mode,
    publishers: usize,
    span: Span,
) -> Result<Measured> {
    let server = Server::start(dir, setting)?;
    if matches!(setting, Setting::Nats { .. }) {
        nats::create_stream(server.address, mode)?;
    }
    let publishers = server.publishers(setting, mode, publishers)?;
    let measured = load::run(publishers, span, &|| server.usage())?;
    server.verify(setting, measured.total)?;
    Ok(measured)
}

fn log_end(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let end = &lines[lines.len().saturating_sub(20)..];
    format!("the end of the server's log:\n{}", end.join("\n"))
}

/// Returns the bytes that a process has written or will write to disk.
///
/// # Errors
/// If it has ended, or the kernel does not report them.
pub(crate) fn written_bytes(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).context("/proc/PID/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).context("write_bytes in /proc/PID/io")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_decides_the_features_of_nats() {
        assert_eq!(version_number("nats-server: v2.9.10"), Some((2, 9)));
        assert_eq!(version_number("nats-server: v2.15.2"), Some((2, 15)));
        assert_eq!(version_number("something"), None);
        let of = |number| Nats { binary: PathBuf::new(), version: String::new(), number };
        assert!(!of((2, 9)).has_sync_always() && of((2, 10)).has_sync_always());
        assert!(!of((2, 11)).has_batches() && of((2, 12)).has_batches());
    }

    #[test]
    fn old_servers_get_no_new_settings() {
        let address = "127.0.0.1:4222".parse().expect("an address");
        let nats = Nats { binary: PathBuf::new(), version: String::new(), number: (2, 9) };
        assert_eq!(
            nats.config(address, Path::new("/d"), false),
            "listen: \"127.0.0.1:4222\"\njetstream {\n  store_dir: \"/d\"\n}\n"
        );
    }

    #[test]
    fn the_bytes_written_by_this_process_are_readable() {
        written_bytes(std::process::id()).expect("a number");
    }
}
