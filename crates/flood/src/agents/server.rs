//! `throng flood agent`: waits for coordinators, and runs a share of a run for one at a time.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;

use super::frame::{FRAME_BYTES_MAX, Until, receive, send};
use super::link::Link;
use super::{Job, SILENCE_MAX, ToAgent, ToCoordinator, hello};
use crate::RunError;
use crate::clock::now_ns;
use crate::crowd::{Clock, lock};
use crate::run::run_to_end;
use crate::setup::{Setup, Share};
use crate::show::Nothing;

/// Connections of coordinators at one time, including those in the handshake.
const CONNECTIONS_MAX: usize = 16;
/// How long a new coordinator waits for the previous run, which may still be closing its connections.
const BUSY_WAIT: Duration = Duration::from_secs(3);
/// Time between two checks for messages of the coordinator.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// An agent.
#[derive(Args, Clone, Debug)]
pub struct Agent {
    /// Where coordinators reach it. Beyond loopback it needs --key-file.
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "HOST:PORT")]
    listen: String,
    /// Read the key from this file: only coordinators that have it (--agents-key-file) may use this agent.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// The state that all connections share.
struct State {
    key: Option<String>,
    connections: AtomicUsize,
    /// A run is under way.
    is_busy: AtomicBool,
}

impl Agent {
    /// Serves until the process ends.
    ///
    /// # Errors
    /// If it can't listen at that address, or may not without a key.
    pub fn run(&self) -> Result<(), RunError> {
        let key = self.key_file.as_deref().map(files::read_secret).transpose();
        let key = key.map_err(|error| RunError::Usage(anyhow!("--key-file {error}")))?;
        let name =
            || format!("--listen {}: write a host and a port, as 10.0.0.5:7070", self.listen);
        let addresses =
            self.listen.to_socket_addrs().with_context(name).map_err(RunError::Usage)?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        if key.is_none() && !addresses.iter().all(|address| address.ip().is_loopback()) {
            return Err(RunError::Usage(anyhow!(
                "--listen {} is not a loopback address, so anyone could use this agent: write a \
                 key to a file (openssl rand -hex 24) and name it with --key-file, here and at the \
                 coordinator",
                self.listen
            )));
        }
        let listener = TcpListener::bind(addresses.as_slice())
            .and_then(|listener| Ok((listener.local_addr()?, listener)))
            .with_context(|| format!("--listen {}", self.listen));
        let (address, listener) = listener.map_err(RunError::Runtime)?;
        say(&format!("the agent listens at {address}"));
        let state = Arc::new(State {
            key,
            connections: AtomicUsize::new(0),
            is_busy: AtomicBool::new(false),
        });
        loop {
            let Ok((socket, from)) = listener.accept() else {
                // Too many files are open, or the peer is gone already.
                std::thread::sleep(POLL_EVERY);
                continue;
            };
            if state.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                state.connections.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let shared = state.clone();
            let serve = move || {
                if let Err(error) = serve(&socket, from, &shared) {
                    say(&format!("{from}: {error:#}"));
                }
                let _ = socket.shutdown(Shutdown::Both);
                shared.connections.fetch_sub(1, Ordering::Relaxed);
            };
            if std::thread::Builder::new().name("agent".into()).spawn(serve).is_err() {
                state.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Prints a line. A closed pipe must not end a run.
fn say(text: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn serve(mut socket: &TcpStream, from: SocketAddr, state: &State) -> Result<()> {
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(SILENCE_MAX))?;
    hello::welcome(socket, state.key.as_deref())?;
    let mut first = Until::new(socket, SILENCE_MAX);
    let Some(ToAgent::Job(job)) = receive(&mut first, FRAME_BYTES_MAX)? else {
        bail!("it sent no job");
    };
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    let begin = Instant::now();
    let mut is_busy = state.is_busy.swap(true, Ordering::Relaxed);
    while is_busy && begin.elapsed() < BUSY_WAIT {
        std::thread::sleep(POLL_EVERY);
        is_busy = state.is_busy.swap(true, Ordering::Relaxed);
    }
    if is_busy {
        let why = "it runs a share of another run: wait until that run has ended".to_string();
        return send(&mut socket, &ToCoordinator::Refused { why, is_usage: false });
    }
    let (name, part) = (job.scenario.name(), job.part);
    say(&format!("{from}: {name}, share {} of {}", part.number + 1, part.of));
    let busy = Busy(&state.is_busy);
    run(socket, *job)?;
    drop(busy);
    say(&format!("{from}: {name} has ended"));
    Ok(())
}

/// A run that is under way until this guard is dropped.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Runs a share, from its setup to its results.
fn run(socket: &TcpStream, job: Job) -> Result<()> {
    let Job { scenario, part, run, key, ca } = job;
    let clock = Clock::default();
    let mut link = Link::start(socket, clock.clone())?;
    let is_share = part.of > 0 && part.number < part.of;
    let share = Share { part, run, clock: clock.clone(), key, ca };
    let setup = match is_share.then(|| Setup::new(&scenario, share)) {
        Some(Ok(setup)) => setup,
        Some(Err(error)) => {
            link.say(&ToCoordinator::Refused { why: format!("{error:#}"), is_usage: true })?;
            return Err(error);
        }
        None => bail!("an invalid share of a run"),
    };
    link.say(&ToCoordinator::Ready)?;
    let coordinator = link.coordinator.clone();
    let start_ns = loop {
        if let Some(start_ns) = *lock(&coordinator.start_ns) {
            break start_ns;
        }
        if coordinator.stop.load(Ordering::Relaxed) {
            bail!("the coordinator has closed the connection before the start");
        }
        std::thread::sleep(POLL_EVERY);
    };
    let wait = clock.own(start_ns).saturating_sub(now_ns());
    std::thread::sleep(Duration::from_nanos(wait).min(SILENCE_MAX));
    let common = scenario.common();
    match run_to_end(setup, common, Some(&mut link), &coordinator.stop, &mut Nothing) {
        Ok((_, results)) => link.say(&ToCoordinator::Done(Box::new(results)))?,
        Err(error) => {
            // If the coordinator is gone, no peer reads this.
            let _ = link.say(&ToCoordinator::Failed { why: format!("{error:#}") });
            return Err(error);
        }
    }
    let begin = Instant::now();
    let is_over =
        || coordinator.ended.load(Ordering::Relaxed) || coordinator.gone.load(Ordering::Relaxed);
    while !is_over() && begin.elapsed() < SILENCE_MAX {
        std::thread::sleep(POLL_EVERY);
    }
    Ok(())
}
