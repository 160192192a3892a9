//! A server as a child process: starts it, measures it, and ensures that it ends.

#![expect(unsafe_code, reason = "what a child does between fork and exec")]

use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};

use flood::clock::process_cpu;
use kernel::{kilobytes, tcp_memory_pages};

/// A child process that is killed when this is dropped, or when the bench itself dies.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
}

impl ServerProcess {
    /// Starts the process.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start(mut command: Command) -> Result<Self> {
        // SAFETY: between fork and exec this makes one system call, and allocates nothing.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let child = command
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        Ok(Self { child })
    }

    /// Takes its standard input and output, if they are pipes and were not taken before.
    pub fn take_pipes(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        Some((self.child.stdin.take()?, self.child.stdout.take()?))
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the CPU time of all its threads so far.
    ///
    /// # Errors
    /// If it has ended.
    pub fn cpu(&self) -> Result<Duration> {
        process_cpu(self.child.id()).context("the server has ended")
    }

    /// Returns the bytes of its own memory (`RssAnon`), without files and kernel memory.
    ///
    /// # Errors
    /// If it has ended.
    pub fn anonymous_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).context("the server has ended")?;
        kilobytes(&text, "RssAnon:").context("RssAnon in /proc/PID/status")
    }

    /// Returns its exit status, if it has ended.
    ///
    /// # Errors
    /// If the kernel does not know the process.
    pub fn ended(&mut self) -> Result<Option<std::process::ExitStatus>> {
        self.child.try_wait().context("waiting for the server")
    }

    /// Waits until it has used hardly any CPU for a while, so that all its work is done.
    ///
    /// # Errors
    /// If it has ended, or is still busy at the timeout.
    pub fn wait_idle(&self, timeout: Duration) -> Result<()> {
        const WINDOW: Duration = Duration::from_millis(50);
        let begin = Instant::now();
        let mut before = self.cpu()?;
        while begin.elapsed() < timeout {
            std::thread::sleep(WINDOW);
            let now = self.cpu()?;
            if now - before < WINDOW / 100 {
                return Ok(());
            }
            before = now;
        }
        bail!("the server was not idle within {timeout:?}");
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The process may have ended by itself. The wait reaps it in any case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The kernel's memory for sockets on the whole machine. Both ends of each connection count.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelMemory {
    /// Slab: sockets, inodes, files, directory entries, epoll items.
    pub slab_bytes: u64,
    /// Buffers of TCP sockets.
    pub tcp_bytes: u64,
}

impl KernelMemory {
    /// Reads the current figures.
    ///
    /// # Errors
    /// If `/proc` does not have them.
    pub fn now() -> Result<Self> {
        let memory = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        let sockets = std::fs::read_to_string("/proc/net/sockstat").context("sockstat")?;
        Ok(Self {
            slab_bytes: kilobytes(&memory, "Slab:").context("Slab in /proc/meminfo")?,
            tcp_bytes: tcp_memory_pages(&sockets).context("TCP mem in /proc/net/sockstat")?
                * rustix::param::page_size() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_memory_of_this_machine_is_readable() {
        assert!(KernelMemory::now().expect("proc").slab_bytes > 0);
    }

    #[test]
    fn dropping_a_server_kills_it() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let server = ServerProcess::start(command).expect("sleep");
        assert!(server.anonymous_bytes().expect("its memory") > 0);
        server.wait_idle(Duration::from_secs(5)).expect("idle");
        let pid = server.child.id();
        drop(server);
        assert!(process_cpu(pid).is_err());
    }
}
