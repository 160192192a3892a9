//! `throng parent`: takes the place of a server whose connections another process has taken over, if something waits
//! for this process to end: a container, of which it is process 1, or a supervisor (`--stay`).
//!
//! It has no other task than to stay. It passes signals to the process that serves, and ends when that process ends.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::error::CommandError;

/// Returns true if this process must stay after another one has taken over: as process 1, because a container ends with
/// it, or because a supervisor requires it (`is_required`). `is_child` is true if this process started the new one. The
/// parent of any other new process waits for that itself.
pub fn must_stay(is_child: bool, is_required: bool) -> bool {
    is_child && (std::process::id() == 1 || (is_required && !is_waited_for()))
}

/// Returns true if this process's parent is a `throng parent`, which waits for the new process as well.
fn is_waited_for() -> bool {
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_pid());
    let line = parent.and_then(|parent| std::fs::read(format!("/proc/{parent}/cmdline")).ok());
    line.is_some_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"parent"))
}

/// Forwards signals to the children until this process becomes `throng parent`. Meanwhile it still replies to calls,
/// and gets the signals that are meant for the server.
pub fn pass_signals_on() {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR2]);
    let thread = std::thread::Builder::new().name("signals".into());
    let passing = signals.and_then(|mut signals| {
        thread.spawn(move || {
            let mut family = Family::default();
            signals.forever().for_each(|signal| family.signal(signal));
        })
    });
    if let Err(error) = passing {
        tracing::warn!(%error, "signals are not forwarded to the new process for some seconds");
    }
}

/// Replaces this process by `throng parent`, which has the same process id and children. Any thread may call this, when
/// nothing else is left to do. Returns only if it fails.
pub fn become_parent(binary: &Path) -> io::Error {
    adopt_orphans();
    Command::new(binary).arg("parent").exec()
}

/// Makes this process the new parent of orphans among its descendants. Process 1 needs no call for that. The server's
/// child may upgrade again, and then end.
fn adopt_orphans() {
    if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        tracing::warn!(%error, "the process of the next upgrade may get another parent");
    }
}

/// Passes signals on until the last child has ended, and ends with that child's status.
pub fn run() -> Result<(), CommandError> {
    let to_error =
        |error: io::Error| CommandError::Runtime(format!("signals can't be handled: {error}"));
    // This comes before a signal can end a child whose own children would get another parent.
    adopt_orphans();
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR2, SIGCHLD]).map_err(to_error)?;
    let mut family = Family::default();
    // A child that ended before the handler was installed sends no signal to it.
    family.reap();
    while !family.is_gone {
        for signal in signals.wait() {
            match signal {
                SIGCHLD => family.reap(),
                signal => family.signal(signal),
            }
        }
    }
    std::process::exit(family.status);
}

/// The processes below this one.
#[derive(Default)]
struct Family {
    /// The signal that ends the server, once it came.
    ending: Option<i32>,
    /// The processes that got this signal.
    signalled: BTreeSet<i32>,
    /// The exit status of the child that ended last.
    status: i32,
    /// No child is left.
    is_gone: bool,
}

impl Family {
    /// Reaps the children that have ended.
    fn reap(&mut self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    self.signalled.remove(&pid.as_raw_pid());
                    self.status = exit_status(status);
                }
                Ok(None) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.is_gone = true;
                    return;
                }
            }
        }
        // An orphan that this process has adopted from an ended child has not got the signal yet.
        if let Some(signal) = self.ending {
            for child in children() {
                if self.signalled.insert(child.as_raw_pid()) {
                    send(child, signal);
                }
            }
        }
    }

    /// Passes a signal on.
    fn signal(&mut self, signal: i32) {
        let children = children();
        if matches!(signal, SIGTERM | SIGINT) {
            self.ending = Some(signal);
            self.signalled.extend(children.iter().map(|child| child.as_raw_pid()));
        }
        for child in children {
            send(child, signal);
        }
    }
}

fn exit_status(status: WaitStatus) -> i32 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => status,
        // Shells use this status as well.
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    }
}

fn send(child: Pid, signal: i32) {
    let signal = match signal {
        SIGTERM => Signal::TERM,
        SIGINT => Signal::INT,
        SIGHUP => Signal::HUP,
        _ => Signal::USR2,
    };
    // The child may have ended this moment.
    let _ = rustix::process::kill_process(child, signal);
}

/// The children of all threads of this process.
fn children() -> Vec<Pid> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let mut all = Vec::new();
    for text in texts {
        let pids = text.split_ascii_whitespace().filter_map(|word| word.parse().ok());
        all.extend(pids.filter_map(Pid::from_raw));
    }
    all
}
