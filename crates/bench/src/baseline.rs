//! Bare servers, which do only what the kernel requires of any server. They show the physical limits for comparison
//! with Throng.
//!
//! A bare server runs as a child process (this executable, started again with an argument), so that its CPU time is
//! measured like Throng's. It has as many threads and private descriptor tables as Throng has shards for the same
//! crowd. It replies to any request with the head of an event stream. The command `fan N` on standard input sends one
//! message of N bytes to every connection.

mod fan;
mod worker;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddrV4;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};

use crate::process::ServerProcess;
use flood::source::free_server_address;

/// The first argument of the child.
const CHILD: &str = "--bare-server";
/// The line that the child prints once all its threads listen.
const READY: &str = "ready";
/// Threads that a bare server may have, at most.
const THREADS_MAX: u16 = 1_024;
/// Bytes of one message, at most.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// How a bare server sends one message to all its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sender {
    /// One `write` to each.
    Write,
    /// `io_uring` sends, a batch at a time.
    IoUring,
}

impl Sender {
    fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::IoUring => "io-uring",
        }
    }
}

/// The child's arguments, after `CHILD`.
#[derive(Parser, Debug)]
pub struct ChildArguments {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddrV4,
    /// Event-loop threads.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(THREADS_MAX)))]
    threads: u16,
    /// How to send.
    #[arg(long)]
    sender: Sender,
}

/// Returns the arguments if this process was started as a bare server.
pub fn child_arguments() -> Option<Result<ChildArguments>> {
    let mut words = std::env::args();
    let name = words.next()?;
    (words.next()? == CHILD).then(|| {
        ChildArguments::try_parse_from(std::iter::once(name).chain(words))
            .context("the arguments of a bare server")
    })
}

/// The result of a fan-out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FanoutResult {
    /// Connections whose socket accepted the whole message.
    pub sent: u64,
    /// Connections whose socket accepted none or a part of it.
    pub rejected: u64,
}

/// Runs a bare server until standard input ends.
///
/// # Errors
/// If it can't listen, or the kernel forbids `io_uring`.
pub fn serve(arguments: &ChildArguments) -> Result<()> {
    let (ready, is_ready) = channel();
    let mut workers = Vec::new();
    for _ in 0..arguments.threads {
        workers.push(worker::start(arguments.listen, arguments.sender, ready.clone())?);
    }
    drop(ready);
    for _ in &workers {
        is_ready.recv().context("a thread ended before it listened")??;
    }
    println!("{READY}");
    for line in std::io::stdin().lines() {
        let line = line.context("reading a command")?;
        let bytes = line
            .strip_prefix("fan ")
            .and_then(|bytes| bytes.parse().ok())
            .filter(|bytes| *bytes <= MESSAGE_BYTES_MAX)
            .with_context(|| format!("«{line}» is not a command; try «fan 120»"))?;
        let message: Arc<[u8]> = fan::message(bytes).into();
        let receivers = workers
            .iter()
            .map(|worker| worker.fan(message.clone()))
            .collect::<Result<Vec<Receiver<FanoutResult>>>>()?;
        let mut all = FanoutResult::default();
        for receiver in receivers {
            let fanned = receiver.recv().context("a thread ended in a fan-out")?;
            all.sent += fanned.sent;
            all.rejected += fanned.rejected;
        }
        println!("fanned {} {}", all.sent, all.rejected);
    }
    Ok(())
}

/// A bare server, seen from the bench.
#[derive(Debug)]
pub struct Baseline {
    /// Its process.
    pub process: ServerProcess,
    /// The address for clients.
    pub clients: SocketAddrV4,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Baseline {
    /// Starts a bare server and waits until it listens. This executable's `main` must be
    /// [`crate::main`].
    ///
    /// # Errors
    /// If it doesn't start.
    pub fn start(threads: usize, sender: Sender) -> Result<Self> {
        let clients = free_server_address()?;
        let mut command = Command::new(std::env::current_exe().context("own executable")?);
        command
            .arg(CHILD)
            .arg(format!("--listen={clients}"))
            .arg(format!("--threads={threads}"))
            .arg(format!("--sender={}", sender.word()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = ServerProcess::start(command).context("starting a bare server")?;
        let (commands, replies) = process.take_pipes().context("pipes to a bare server")?;
        let mut baseline = Self { process, clients, commands, replies: BufReader::new(replies) };
        let line = baseline.read_reply()?;
        ensure!(line == READY, "a bare server replied «{line}»");
        Ok(baseline)
    }

    /// Sends one message of this many bytes to every connection. Returns when all are sent.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn fan(&mut self, bytes: usize) -> Result<FanoutResult> {
        writeln!(self.commands, "fan {bytes}").context("a command to a bare server")?;
        let line = self.read_reply()?;
        let mut words = line.split(' ');
        let mut number = || words.next()?.parse().ok();
        if let (None, Some(sent), Some(rejected)) = (number(), number(), number()) {
            return Ok(FanoutResult { sent, rejected });
        }
        bail!("a bare server replied «{line}»")
    }

    /// Returns the CPU time used so far.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    fn read_reply(&mut self) -> Result<String> {
        let mut line = String::new();
        self.replies.read_line(&mut line).context("a reply of a bare server")?;
        Ok(line.trim_end().to_owned())
    }
}
