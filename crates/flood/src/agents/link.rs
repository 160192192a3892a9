//! An agent's connection to its coordinator while a run goes on.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};

use super::frame::{FRAME_BYTES_MAX, receive, send};
use super::{ToAgent, ToCoordinator};
use crate::clock::now_ns;
use crate::crowd::{Clock, Part, Published, PublishedHere, Times, lock};
use crate::record::Sample;
use crate::run::{Others, Point};
use crate::show::Phase;

/// A point that all agents have reached, and how much each had published.
type Passed = (Point, Vec<(Part, PublishedHere)>);

/// The messages of the coordinator so far.
#[derive(Debug, Default)]
pub struct CoordinatorState {
    /// When the run begins, on the coordinator's clock.
    pub start_ns: Mutex<Option<u64>>,
    passed: Mutex<Vec<Passed>>,
    /// The coordinator has the results.
    pub ended: AtomicBool,
    /// The coordinator is gone.
    pub gone: AtomicBool,
    /// The run must end.
    pub stop: AtomicBool,
}

/// The connection.
pub struct Link {
    writer: Arc<Mutex<TcpStream>>,
    pub coordinator: Arc<CoordinatorState>,
}

impl Link {
    /// Begins to listen to the coordinator, on a thread that ends with the connection.
    ///
    /// # Errors
    /// If the system can't start a thread.
    pub fn start(socket: &TcpStream, clock: Clock) -> Result<Self> {
        let link =
            Link { writer: Arc::new(Mutex::new(socket.try_clone()?)), coordinator: Arc::default() };
        let (mut socket, writer, coordinator) =
            (socket.try_clone()?, link.writer.clone(), link.coordinator.clone());
        let listen = move || {
            while let Ok(Some(said)) = receive(&mut socket, FRAME_BYTES_MAX) {
                if on_message(said, &coordinator, &clock, &writer).is_err() {
                    break;
                }
            }
            coordinator.gone.store(true, Ordering::Relaxed);
            coordinator.stop.store(true, Ordering::Relaxed);
        };
        std::thread::Builder::new().name("coordinator".into()).spawn(listen)?;
        Ok(link)
    }

    /// Sends the coordinator a message.
    ///
    /// # Errors
    /// If the coordinator is gone.
    pub fn say(&self, message: &ToCoordinator) -> Result<()> {
        ensure!(
            !self.coordinator.gone.load(Ordering::Relaxed),
            "the coordinator has closed the connection"
        );
        send(&mut *lock(&self.writer), message)
    }
}

fn on_message(
    said: ToAgent,
    coordinator: &CoordinatorState,
    clock: &Clock,
    writer: &Mutex<TcpStream>,
) -> Result<()> {
    match said {
        // The protocol has one job for each connection.
        ToAgent::Job(_) => anyhow::bail!("a second job"),
        ToAgent::Start { at_ns } => *lock(&coordinator.start_ns) = Some(at_ns),
        ToAgent::Ping { number } => {
            let at_ns = now_ns();
            send(&mut *lock(writer), &ToCoordinator::Pong { number, at_ns })?;
        }
        ToAgent::Clock { ahead_ns } => clock.set_ahead(ahead_ns),
        ToAgent::Pass { point, published } => lock(&coordinator.passed).push((point, published)),
        ToAgent::Stop => coordinator.stop.store(true, Ordering::Relaxed),
        ToAgent::End => coordinator.ended.store(true, Ordering::Relaxed),
    }
    Ok(())
}

impl Others for Link {
    fn reach(&mut self, point: Point, published: &PublishedHere) -> Result<()> {
        // Before the end the coordinator does not need the published counts.
        let published = match point {
            Point::Published => published.clone(),
            _ => PublishedHere::default(),
        };
        self.say(&ToCoordinator::Reached { point, published })
    }

    fn have_reached(&mut self, point: Point, published: &Published) -> Result<bool> {
        ensure!(
            !self.coordinator.gone.load(Ordering::Relaxed),
            "the coordinator has closed the connection"
        );
        let mut passed = lock(&self.coordinator.passed);
        let Some(at) = passed.iter().position(|(passed, _)| *passed == point) else {
            return Ok(false);
        };
        for (part, here) in passed.swap_remove(at).1 {
            if part != published.part {
                published.learn(part, &here);
            }
        }
        Ok(true)
    }

    fn sample(&mut self, phase: Phase, sample: &Sample, times: &Times) -> Result<()> {
        let (sample, times) = (Box::new(*sample), Box::new(times.clone()));
        self.say(&ToCoordinator::Sample { phase, sample, times })
    }
}
