//! The new process, which the old one starts and watches.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;

/// How long a new process may take until it waits at its socket.
const START_WAIT: Duration = Duration::from_secs(30);

/// The variable with the id of the process that started this one to take over, and the socket at which this one waits.
/// An older version does not set it, so its child inherits an outdated value. The value counts only if it names the
/// socket of this process.
const STARTER: &str = "_THRONG_STARTER";

/// Returns the process that has started this one to wait at this socket.
pub(super) fn starter(socket: &Path) -> Option<Pid> {
    let value = std::env::var_os(STARTER)?.into_string().ok()?;
    let (pid, of) = value.split_once(' ')?;
    if Path::new(of) == socket { Pid::from_raw(pid.parse().ok()?) } else { None }
}

/// A folder that only this user can enter, removed when it is not needed any more.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Creates one, in the service manager's runtime directory for this service, or else among temporary files.
    pub fn new() -> io::Result<Self> {
        let parent = std::env::var_os("RUNTIME_DIRECTORY")
            .and_then(|paths| std::env::split_paths(&paths).next())
            .filter(|path| path.is_dir())
            .unwrap_or_else(std::env::temp_dir);
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
        let path = parent.join(format!("throng-{:016x}", u64::from_le_bytes(random)));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Folder(path))
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("take-over")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A socket at which this process takes requests that earlier processes forward. Each process passes it to the next,
/// because an earlier process may outlive the process after it.
pub(in super::super) struct Forwarded {
    path: PathBuf,
    listener: UnixListener,
    /// The folder, which this process removes. `None` if the next process has it, and removes it.
    folder: Option<Folder>,
}

impl Forwarded {
    /// Creates one in a folder of its own.
    pub fn new() -> io::Result<Self> {
        let folder = Folder::new()?;
        let path = folder.0.join("admin");
        let listener = UnixListener::bind(&path)?;
        Ok(Forwarded { path, listener, folder: Some(folder) })
    }

    /// Takes over the socket of the previous process.
    pub fn inherited(path: PathBuf, listener: UnixListener) -> Self {
        let folder = path.parent().map(|folder| Folder(folder.to_owned()));
        Forwarded { path, listener, folder }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a clone of the listener.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Leaves the folder to the next process.
    pub fn let_go(&mut self) {
        if let Some(folder) = self.folder.take() {
            std::mem::forget(folder);
        }
    }
}

/// The new process, which is killed when this is dropped.
pub(super) struct NewProcess {
    child: Option<Child>,
    binary: PathBuf,
}

impl NewProcess {
    /// Starts it with these arguments.
    pub fn start(binary: &Path, arguments: &[OsString], socket: &Path) -> io::Result<Self> {
        let child = Command::new(binary)
            .args(arguments)
            .arg("--take-over")
            .arg(socket)
            .env(STARTER, format!("{} {}", std::process::id(), socket.display()))
            .stdin(Stdio::null())
            // A terminal's Ctrl-C goes only to the first process, which passes it on.
            .process_group(0)
            .spawn();
        let child = child.map_err(|error| {
            io::Error::new(error.kind(), format!("{} can't be started: {error}", binary.display()))
        })?;
        Ok(NewProcess { child: Some(child), binary: binary.to_owned() })
    }

    /// Waits until the new process waits at the socket, unless the wait is cancelled.
    pub fn wait_for(&mut self, socket: &Path, is_cancelled: impl Fn() -> bool) -> io::Result<()> {
        self.wait_within(START_WAIT, socket, is_cancelled)
    }

    fn wait_within(
        &mut self,
        wait: Duration,
        socket: &Path,
        is_cancelled: impl Fn() -> bool,
    ) -> io::Result<()> {
        let began = Instant::now();
        while !socket.exists() {
            if is_cancelled() {
                return Err(io::Error::other("this process was told to end"));
            }
            if let Some(end) = self.has_ended() {
                return Err(io::Error::other(end));
            }
            if began.elapsed() > wait {
                return Err(io::Error::other(format!(
                    "{} did not wait at the socket of the upgrade within {} s: is it a version of \
                     Throng that supports --take-over?",
                    self.binary.display(),
                    wait.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns how the process has ended, if it has.
    pub fn has_ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("with status {code}"),
            (None, Some(signal)) => format!("by signal {signal}"),
            (None, None) => "for an unknown reason".into(),
        };
        Some(format!("{} has ended {how}; see its log", self.binary.display()))
    }

    /// Lets the new process outlive this one, since it serves now. Returns its process id.
    pub fn let_go(&mut self) -> Option<u32> {
        self.child.take().map(|child| child.id())
    }
}

impl Drop for NewProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the arguments of this process without `--take-over`, which was for it alone.
pub(in super::super) fn arguments(all: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = Vec::new();
    let mut all = all.skip(1);
    while let Some(argument) = all.next() {
        if argument == "--take-over" {
            all.next();
        } else if !argument.to_string_lossy().starts_with("--take-over=") {
            arguments.push(argument);
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_process_does_not_learn_where_this_one_took_over() {
        let of = |line: &str| {
            let all = line.split(' ').map(OsString::from);
            arguments(all).join(std::ffi::OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(of("throng serve --demo"), "serve --demo");
        assert_eq!(of("throng serve --take-over /a/b --demo"), "serve --demo");
        assert_eq!(of("throng --take-over=/a/b"), "");
    }

    #[test]
    fn a_process_that_ends_or_cannot_be_started_is_reported() {
        let folder = Folder::new().unwrap();
        let socket = folder.socket();
        let error = NewProcess::start(Path::new("/nowhere/throng"), &[], &socket).err().unwrap();
        assert!(error.to_string().contains("/nowhere/throng can't be started"), "{error}");
        let mut process = NewProcess::start(Path::new("/bin/false"), &[], &socket).unwrap();
        let error = process.wait_for(&socket, || false).unwrap_err();
        assert!(error.to_string().contains("/bin/false has ended with status 1"), "{error}");
    }

    #[test]
    fn a_process_that_never_waits_at_the_socket_is_ended() {
        let folder = Folder::new().unwrap();
        let socket = folder.socket();
        let arguments = ["-c", "exec sleep 600"].map(OsString::from);
        let mut process = NewProcess::start(Path::new("/bin/sh"), &arguments, &socket).unwrap();
        let error = process.wait_within(Duration::ZERO, &socket, || false).unwrap_err();
        assert!(error.to_string().contains("/bin/sh did not wait at the socket"), "{error}");
        let error = process.wait_for(&socket, || true).unwrap_err();
        assert!(error.to_string().contains("this process was told to end"), "{error}");
        let child = Path::new("/proc").join(process.child.as_ref().unwrap().id().to_string());
        assert!(child.exists());
        drop(process);
        assert!(!child.exists());
    }
}
