//! A PostgreSQL server for Throng's history, on an empty folder.

use std::fs::File;
use std::net::SocketAddrV4;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bench::process::ServerProcess;
use flood::clock::process_cpu;
use flood::source::free_server_address;
use rustix::process::{Pid, Signal, kill_process};

use crate::load::Usage;
use crate::server::written_bytes;

/// The user and the group "nobody" of Linux distributions: PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;

/// How long the server may take until it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How long the server may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server. All of its processes end with this.
pub(crate) struct Postgres {
    process: ServerProcess,
    /// The address of the server, whose superuser needs no password.
    address: SocketAddrV4,
}

impl Postgres {
    /// Creates a database and starts its server. `programs` is the folder with PostgreSQL's programs.
    ///
    /// # Errors
    /// If a program can't be run or reports an error. The folder has the log.
    pub(crate) fn start(programs: &Path, dir: &Path) -> Result<Self> {
        let data = dir.join("postgres");
        std::fs::create_dir(&data).with_context(|| data.display().to_string())?;
        let is_root = rustix::process::getuid().is_root();
        if is_root {
            chown(&data, Some(NOBODY), Some(NOBODY)).context("the folder of PostgreSQL")?;
        }
        let log = File::create(dir.join("log.postgres")).context("the log of PostgreSQL")?;
        let program = |name: &str| -> Result<Command> {
            let mut command = Command::new(programs.join(name));
            command.arg("-D").arg(&data).current_dir(&data).stdin(Stdio::null());
            command.stdout(log.try_clone()?).stderr(log.try_clone()?);
            if is_root {
                command.uid(NOBODY).gid(NOBODY);
            }
            Ok(command)
        };
        let mut create = program("initdb")?;
        create.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"]);
        let status =
            create.status().with_context(|| format!("running initdb in {}", programs.display()))?;
        ensure!(status.success(), "initdb: {status}");
        let address = free_server_address()?;
        let mut serve = program("postgres")?;
        serve.args([
            "-h",
            "127.0.0.1",
            "-p",
            &address.port().to_string(),
            "-c",
            "unix_socket_directories=",
        ]);
        let server = Self { process: ServerProcess::start(serve)?, address };
        server.wait_ready(programs)?;
        Ok(server)
    }

    fn wait_ready(&self, programs: &Path) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < START_TIMEOUT {
            let mut check = Command::new(programs.join("pg_isready"));
            let port = self.address.port().to_string();
            check.args(["-q", "-h", "127.0.0.1", "-p", &port, "-U", "postgres"]);
            if check.status().context("running pg_isready")?.success() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("PostgreSQL was not ready within {START_TIMEOUT:?}")
    }

    /// Returns the URL for Throng.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address)
    }

    /// Returns the resources that all processes of the server have used.
    ///
    /// # Errors
    /// If the kernel does not report them.
    pub(crate) fn usage(&self) -> Result<Usage> {
        let mut usage = Usage { cpu: Duration::ZERO, written_bytes: 0 };
        for pid in std::iter::once(self.process.id()).chain(children(self.process.id())?) {
            // A process of a connection may have ended meanwhile.
            usage.cpu += process_cpu(pid).unwrap_or_default();
            usage.written_bytes += written_bytes(pid).unwrap_or(0);
        }
        Ok(usage)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // All of its processes end by this signal. They may use the folder until then.
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        pid.into_iter().for_each(|pid| _ = kill_process(pid, Signal::QUIT));
        let begin = Instant::now();
        while matches!(self.process.ended(), Ok(None)) && begin.elapsed() < END_TIMEOUT {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns the processes that a process has started and that run now.
fn children(pid: u32) -> Result<Vec<u32>> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(&path).context(path)?;
    Ok(text.split_whitespace().filter_map(|child| child.parse().ok()).collect())
}
