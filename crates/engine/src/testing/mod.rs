//! Drives engines in one thread, without sockets: an in-memory network with small pipes.

mod upgrade;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use broker::{Broker, ShardDelivery};
use history::History;
use protocol::{Codecs, Listener};

use crate::delivery::outbox::{Capacity, Chunk, Outbox, Piece};
use crate::{
    Arrival, Command, Config, Engine, Handle, ObservedDelivery, Output, Outputs, Queue, Settings,
    Shared,
};
pub(crate) use upgrade::{Services, Upgrade};

/// The capacity of a pipe to a client that doesn't read, in bytes.
const PIPE_BYTES: usize = 2_304;

/// The most members that one turn serves.
const TURN: usize = 5;

/// Commands from other engines and from the test.
struct Commands {
    waiting: Mutex<Vec<Command>>,
    items_max: usize,
}

impl Queue for Commands {
    fn push(&self, command: Command) {
        self.waiting.lock().unwrap().push(command);
    }

    fn has_capacity(&self) -> bool {
        self.waiting.lock().unwrap().len() < self.items_max
    }

    fn is_empty(&self) -> bool {
        self.waiting.lock().unwrap().is_empty()
    }

    fn len(&self) -> usize {
        self.waiting.lock().unwrap().len()
    }

    fn take(&self, empty: Vec<Command>) -> Vec<Command> {
        std::mem::replace(&mut *self.waiting.lock().unwrap(), empty)
    }
}

/// Creates a handle to an engine that a test drives.
pub(crate) fn handle(items_max: usize) -> Handle {
    let commands = Commands { waiting: Mutex::default(), items_max };
    Handle::new(Box::new(commands), 64)
}

/// Two ends of a connection.
#[derive(Default)]
struct Pipe {
    to_server: VecDeque<u8>,
    to_client: VecDeque<u8>,
    client_closed: bool,
    server_closed: bool,
}

/// The client's end. Dropping it closes it.
pub(crate) struct ClientEnd(Rc<RefCell<Pipe>>);

/// The server's end. Dropping it closes it.
pub(crate) struct ServerEnd(Rc<RefCell<Pipe>>);

/// Creates a connection.
pub(crate) fn pair() -> (ClientEnd, ServerEnd) {
    let pipe: Rc<RefCell<Pipe>> = Rc::default();
    (ClientEnd(pipe.clone()), ServerEnd(pipe))
}

impl ClientEnd {
    pub fn send(&self, bytes: &[u8]) {
        self.0.borrow_mut().to_server.extend(bytes);
    }

    /// Returns how many sent bytes the server has not read.
    pub fn unread(&self) -> usize {
        self.0.borrow().to_server.len()
    }

    /// True when the server has ended the connection: earlier bytes may still be unread.
    pub fn is_ended(&self) -> bool {
        self.0.borrow().server_closed
    }

    /// Breaks the connection: of the bytes that the server has not read, so many reach it.
    pub fn cut(self, bytes: usize) {
        self.0.borrow_mut().to_server.truncate(bytes);
    }

    /// Reads the available bytes, at most so many; `None` at the end.
    pub fn read(&self, bytes_max: usize) -> Option<Vec<u8>> {
        let mut pipe = self.0.borrow_mut();
        let length = bytes_max.min(pipe.to_client.len());
        if length == 0 && pipe.server_closed {
            return None;
        }
        Some(take(&mut pipe.to_client, length))
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        self.0.borrow_mut().client_closed = true;
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        self.0.borrow_mut().server_closed = true;
    }
}

struct Socket {
    end: ServerEnd,
    outbox: Option<Outbox>,
    /// Set when the socket closes after all bytes have left; true when only the server's side does.
    closing: Option<bool>,
    /// The engine knows that the peer has closed.
    end_sent: bool,
}

/// An engine and its in-memory sockets.
pub(crate) struct Driver {
    pub engine: Engine,
    sockets: BTreeMap<u32, Socket>,
    unread: Vec<u32>,
    confirmed: Vec<u32>,
}

/// Creates drivers of engines, one for each handle.
pub(crate) fn drivers(
    handles: &[Handle],
    settings: Settings,
    broker: Arc<dyn Broker>,
    history: Arc<dyn History>,
    shared: Arc<Shared>,
) -> Vec<Driver> {
    let settings = Arc::new(settings);
    let engines: Arc<[Handle]> = handles.into();
    let driver = |number| Driver {
        engine: Engine::new(Config {
            number,
            engines: engines.clone(),
            shared: shared.clone(),
            settings: settings.clone(),
            broker: broker.clone(),
            history: history.clone(),
            webhook: None,
            codecs: Codecs::new(1, 64),
            now_us: 0,
        }),
        sockets: BTreeMap::new(),
        unread: Vec::new(),
        confirmed: Vec::new(),
    };
    (0..).take(handles.len()).map(driver).collect()
}

/// The most turns that engines may need until they are quiet.
const QUIET_TURNS: usize = 10_000;

/// Lets engines work until all of them are quiet.
pub(crate) fn quiet(drivers: &mut [Driver]) {
    let mut turns = 0;
    while !drivers.iter().all(|driver| driver.engine.is_quiet()) {
        drivers.iter_mut().for_each(Driver::work);
        turns += 1;
        assert!(turns < QUIET_TURNS, "engines do not come to rest");
    }
}

/// Creates an engine like another, without connections.
pub(crate) fn another(before: &Engine, engines: Arc<[Handle]>, shared: Arc<Shared>) -> Engine {
    let core = &before.core;
    Engine::new(Config {
        number: core.number,
        engines,
        shared,
        settings: core.settings.clone(),
        broker: core.broker.clone(),
        history: core.history.clone(),
        webhook: before.core.webhook.clone(),
        codecs: Codecs::new(1, 64),
        now_us: core.now_us,
    })
}

impl Driver {
    /// Does the pending work of the engine, and reads no socket.
    pub fn work(&mut self) {
        self.engine.take_commands();
        self.engine.run_commands();
        self.perform();
        self.engine.release_pending();
        self.perform();
        self.fan_out();
    }

    /// A client has connected: often its request is already there.
    pub fn connect(&mut self, end: ServerEnd) {
        self.connect_as(end, false);
    }

    /// As `Driver::connect`, perhaps beyond the limit of its address. Returns the connection's slot.
    pub fn connect_as(&mut self, end: ServerEnd, reserved: bool) -> u32 {
        let arrival = if reserved { Arrival::Reserved } else { Arrival::Direct(None) };
        self.connect_by(end, Listener::Client, arrival)
    }

    /// As `Driver::connect_as`, with this listener and arrival.
    pub fn connect_by(&mut self, end: ServerEnd, listener: Listener, arrival: Arrival) -> u32 {
        self.engine.shared().connections.fetch_add(1, Ordering::Relaxed);
        let slot = self.engine.open(listener, arrival);
        self.sockets.insert(slot, Socket { end, outbox: None, closing: None, end_sent: false });
        self.readable(slot);
        slot
    }

    /// Returns the sockets with an event, and whether commands have come.
    pub fn events(&self) -> (Vec<u32>, bool) {
        let has_event = |socket: &Socket| {
            let pipe = socket.end.0.borrow();
            let has_space = socket.outbox.is_some() && pipe.to_client.len() < PIPE_BYTES;
            has_space || !pipe.to_server.is_empty() || (pipe.client_closed && !socket.end_sent)
        };
        let sockets = self.sockets.iter().filter(|(_, socket)| has_event(socket));
        let commands = !self.engine.handle().inbox.queue.is_empty();
        (sockets.map(|(slot, _)| *slot).collect(), commands)
    }

    /// Handles the event of a socket.
    pub fn ready(&mut self, slot: u32) {
        self.flush(slot);
        let closed = self.sockets.get(&slot).is_some_and(|it| it.end.0.borrow().client_closed);
        if !self.engine.is_paused(slot) {
            self.readable(slot);
        } else if closed {
            self.engine.on_hung_up(slot);
            self.perform();
        }
    }

    /// Resumes what has waited for this turn.
    pub fn resume(&mut self) {
        self.engine.resume_waiters();
        self.perform();
        for slot in std::mem::take(&mut self.confirmed) {
            if self.sockets.get(&slot).is_some_and(|socket| socket.outbox.is_none()) {
                self.engine.on_drained(slot);
                self.perform();
            }
        }
        for slot in std::mem::take(&mut self.unread) {
            self.readable(slot);
        }
    }

    /// Serves a turn's share of the fan-outs.
    pub fn fan_out(&mut self) {
        let mut members = 0;
        while members < TURN
            && let Some(served) = self.engine.slice(true)
        {
            members += served.max(1);
            self.perform();
        }
        self.engine.serve_due();
        self.perform();
        self.engine.reply_woken();
        self.perform();
    }

    /// Sweeps, when it is due.
    pub fn sweep(&mut self) {
        if self.engine.now_us() < self.engine.sweep_due_us() {
            return;
        }
        self.engine.sweep();
        self.perform();
    }

    fn readable(&mut self, slot: u32) {
        loop {
            let Some(socket) = self.sockets.get_mut(&slot) else { return };
            let mut pipe = socket.end.0.borrow_mut();
            let capacity = self.engine.input_capacity(slot, pipe.to_server.len().max(1));
            if capacity == 0 {
                drop(pipe);
                return self.engine.pause(slot);
            }
            let length = capacity.min(pipe.to_server.len());
            let mut bytes = take(&mut pipe.to_server, length);
            let end = length == 0 && pipe.client_closed && !socket.end_sent;
            drop(pipe);
            if end {
                socket.end_sent = true;
                self.engine.on_peer_closed(slot);
                return self.perform();
            }
            if length == 0 {
                return;
            }
            self.engine.on_received(slot, &mut bytes);
            self.perform();
        }
    }

    /// Performs the engine's outputs.
    pub fn perform(&mut self) {
        while self.engine.has_outputs() {
            let Outputs { list, bytes, slots } = self.engine.poll_outputs(Outputs::default());
            for output in list {
                match output {
                    Output::Send { slot, bytes: range, messages, confirm } => {
                        let piece = Piece::new(bytes[range].into(), self.engine.metrics());
                        if self.send(slot, Chunk::new(piece, messages)) && confirm {
                            self.confirmed.push(slot);
                        }
                    }
                    Output::Shared { bytes, slots: range, messages, .. } => {
                        let piece = Piece::new(bytes, self.engine.metrics());
                        for slot in &slots[range] {
                            self.send(*slot, Chunk::new(piece.clone(), messages));
                        }
                    }
                    Output::Resume { slot } => self.unread.push(slot),
                    Output::Close { slot, linger } => {
                        if let Some(socket) = self.sockets.get_mut(&slot) {
                            socket.closing = Some(linger);
                            if socket.outbox.is_none() {
                                self.shut(slot, linger);
                            }
                        }
                    }
                    Output::Drop { slot } => drop(self.sockets.remove(&slot)),
                    Output::Address { slot } => self.engine.on_address(slot, None),
                    Output::Traced(mut traced) => {
                        let socket = traced.slot.and_then(|slot| self.sockets.get(&slot));
                        let outbox = socket.and_then(|socket| socket.outbox.as_ref());
                        traced.event.outbox_bytes += outbox.map_or(0, Outbox::bytes);
                        traced.sink.push(traced.event);
                    }
                    Output::Observed(observed) => {
                        let ObservedDelivery { observer, delivery } = *observed;
                        let sent_us = self.engine.now_us();
                        observer.on_delivered(ShardDelivery { sent_us, ..delivery });
                    }
                    Output::Delivered { .. } | Output::Describe(_) | Output::Slowest(_) => {}
                }
            }
        }
    }

    fn shut(&mut self, slot: u32, linger: bool) {
        if let Some(socket) = self.sockets.get(&slot) {
            socket.end.0.borrow_mut().server_closed = true;
        }
        if linger {
            self.engine.on_half_closed(slot);
            self.unread.push(slot);
        } else {
            self.engine.on_ended(slot);
        }
    }

    /// True when all bytes have left.
    fn send(&mut self, slot: u32, chunk: Chunk) -> bool {
        let now_us = self.engine.now_us();
        let Some(socket) = self.sockets.get_mut(&slot) else { return false };
        if socket.end.0.borrow().client_closed {
            // Like a socket whose peer is gone.
            self.engine.on_lost(slot);
            return false;
        }
        let is_new = socket.outbox.is_none();
        let outbox = socket.outbox.get_or_insert_with(|| Outbox::new(now_us));
        outbox.push(chunk, 0);
        if is_new {
            fill(&socket.end, outbox, now_us);
        }
        if outbox.is_empty() {
            socket.outbox = None;
            return true;
        }
        let slow = outbox.capacity(self.engine.settings(), now_us) == Capacity::None;
        if is_new {
            self.engine.on_blocked(slot);
        }
        if slow {
            self.engine.on_slow(slot);
        }
        false
    }

    fn flush(&mut self, slot: u32) {
        let now_us = self.engine.now_us();
        let Some(socket) = self.sockets.get_mut(&slot) else { return };
        let Some(outbox) = &mut socket.outbox else { return };
        if fill(&socket.end, outbox, now_us) {
            self.engine.on_written(slot);
        }
        if outbox.is_empty() {
            socket.outbox = None;
            match socket.closing {
                Some(linger) => self.shut(slot, linger),
                None => self.engine.on_drained(slot),
            }
        }
        self.perform();
    }
}

/// Takes the first bytes of a queue.
fn take(queue: &mut VecDeque<u8>, length: usize) -> Vec<u8> {
    let (first, second) = queue.as_slices();
    let split = length.min(first.len());
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&first[..split]);
    bytes.extend_from_slice(&second[..length - split]);
    queue.drain(..length);
    bytes
}

/// Moves as many bytes as fit; true when any did.
fn fill(end: &ServerEnd, outbox: &mut Outbox, now_us: u64) -> bool {
    let mut pipe = end.0.borrow_mut();
    let capacity = PIPE_BYTES.saturating_sub(pipe.to_client.len());
    let mut sent = 0;
    for part in outbox.parts() {
        let part = &part[..part.len().min(capacity - sent)];
        pipe.to_client.extend(part);
        sent += part.len();
        if sent == capacity {
            break;
        }
    }
    outbox.advance(sent, now_us);
    sent > 0
}
