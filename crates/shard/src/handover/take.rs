//! The new shard's side: it takes the connections of the shard that it replaces.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use engine::{Chunk, ImportError, Listener, Outbox, Piece};

use zeroize::Zeroizing;

use super::channel::{Channel, Frame};
use super::wire::{self, Reader};
use crate::settings::Port;
use crate::shard::Shard;
use crate::socket::State;

/// A shard of the old process that has connected to this one.
#[derive(Debug)]
pub struct TakenShard {
    /// Its number.
    pub number: u32,
    /// Its listeners.
    pub listeners: Vec<(Port, OwnedFd)>,
    /// The channel to it.
    pub(crate) channel: Channel,
}

impl TakenShard {
    /// Waits for the first frame of a shard.
    ///
    /// # Errors
    /// When the shard sends another frame, or none.
    pub fn greet(channel: Channel) -> io::Result<Self> {
        let frame = channel.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let wrong = || {
            let message = "the other process is not a shard of Throng";
            io::Error::new(io::ErrorKind::InvalidData, message)
        };
        if frame.kind != wire::HELLO {
            return Err(wrong());
        }
        let mut reader = Reader(&frame.body);
        let number = reader.u32()?;
        let mut listeners = Vec::new();
        for socket in frame.descriptors {
            let port = match reader.u8()? {
                wire::CLIENT => Port::plain(Listener::Client),
                wire::CLIENT_TLS => Port::tls(Listener::Client),
                wire::MQTT => Port::plain(Listener::Mqtt),
                wire::MQTT_TLS => Port::tls(Listener::Mqtt),
                // A newer version's listener, which this one can't serve.
                _ => continue,
            };
            listeners.push((port, socket));
        }
        Ok(TakenShard { number, listeners, channel })
    }
}

/// Why a shard can't take over.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// The old shard broke off.
    #[error("the connection to the old process failed: {0}")]
    Channel(#[from] io::Error),
    /// A record can't be read.
    #[error("a connection can't be taken over: {0}")]
    Record(#[from] ImportError),
    /// The state of a connection's TLS can't be read.
    #[error("a connection can't be taken over: {0}")]
    Tls(#[from] tls::ImportError),
    /// The old shard sent something else that is invalid.
    #[error("a record of the hand-over is damaged")]
    Damaged,
}

/// The decision whether all new shards go on, or none.
#[derive(Debug, Default)]
pub(crate) struct Going {
    decided: Mutex<Option<bool>>,
    changed: Condvar,
}

impl Going {
    pub(crate) fn decide(&self, go: bool) {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(go);
        self.changed.notify_all();
    }

    /// Waits for the decision. Returns false when the shards don't go on.
    pub fn wait(&self) -> bool {
        let mut decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *decided {
                Some(go) => return go,
                None => {
                    decided = self.changed.wait(decided).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

/// What the process knows of its shards while they take over.
pub struct Taker {
    /// The report of each shard, when it has everything or can't go on.
    pub reports: Receiver<(u32, Result<(), TakeError>)>,
    pub(crate) going: Arc<Going>,
    /// Connections taken so far. One that is sent again counts again.
    pub taken: Arc<AtomicU64>,
    /// Sockets of the shards beyond those of the old process. They listen once the shards go on.
    pub(crate) further: Vec<OwnedFd>,
    pub(crate) backlog: u32,
}

impl Taker {
    /// Lets the shards go on. Called when all shards have everything.
    pub fn go(&self) {
        for socket in &self.further {
            if let Err(error) = crate::listen::listen(socket, self.backlog) {
                tracing::warn!(
                    %error,
                    "an additional shard can't listen: the others accept all connections"
                );
            }
        }
        self.going.decide(true);
    }

    /// Ends the new shards: the old process goes on.
    pub fn abandon(&self) {
        self.going.decide(false);
    }
}

/// What a shard needs to take over.
pub(crate) struct Taking {
    pub channel: Channel,
    pub report: Sender<(u32, Result<(), TakeError>)>,
    pub going: Arc<Going>,
    pub taken: Arc<AtomicU64>,
}

/// What the shard applies when it goes on.
#[derive(Default)]
struct Rest {
    outboxes: HashMap<u32, Vec<(u32, Vec<u8>)>>,
}

impl Shard {
    /// Takes connections until it has them all, and goes on when all shards do. Returns false when they don't.
    pub(crate) fn take_over(&mut self, taking: Taking) -> bool {
        let Taking { channel, report, going, taken } = taking;
        let number = u32::from(self.engine.number());
        let rest = self.take_all(&channel, &taken);
        let (rest, result) = match rest {
            Ok(rest) => (Some(rest), Ok(())),
            Err(error) => {
                let _ = channel.send(wire::ERROR, error.to_string().as_bytes(), &[]);
                (None, Err(error))
            }
        };
        let _ = report.send((number, result));
        let Some(rest) = rest.filter(|_| going.wait()) else {
            return false;
        };
        drop(channel);
        self.go_on_with(rest);
        true
    }

    fn take_all(&mut self, channel: &Channel, taken: &AtomicU64) -> Result<Rest, TakeError> {
        let mut rest = Rest::default();
        // The old shard begins when it has received a frame.
        channel.send(wire::RECEIPT, &[], &[])?;
        while let Some(frame) = channel.receive()? {
            self.engine.set_now(self.now_us());
            match frame.kind {
                wire::ENGINE => self.engine.import_engine(&frame.body)?,
                wire::CONNECTIONS => {
                    taken.fetch_add(self.take_connections(frame)?, Ordering::Relaxed);
                    channel.send(wire::RECEIPT, &[], &[])?;
                }
                wire::GONE => {
                    let mut reader = Reader(&frame.body);
                    while !reader.is_empty() {
                        self.forget_taken(reader.u32()?);
                    }
                    channel.send(wire::RECEIPT, &[], &[])?;
                }
                wire::OUTBOX => {
                    let mut reader = Reader(&frame.body);
                    let slot = reader.u32()?;
                    let pieces = rest.outboxes.entry(slot).or_default();
                    while !reader.is_empty() {
                        let messages = reader.u32()?;
                        pieces.push((messages, reader.piece()?.to_vec()));
                    }
                }
                wire::OWED => self.engine.give_owed_record(&frame.body)?,
                wire::END => {
                    channel.send(wire::HAVE, &[], &[])?;
                    return Ok(rest);
                }
                // A newer version's frame.
                _ => {}
            }
        }
        Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }

    fn take_connections(&mut self, frame: Frame) -> Result<u64, TakeError> {
        let mut descriptors = frame.descriptors.into_iter();
        // The body may contain TLS keys.
        let body = Zeroizing::new(frame.body);
        let (mut reader, mut count) = (Reader(&body), 0);
        while !reader.is_empty() {
            let (slot, flags) = (reader.u32()?, reader.u8()?);
            let has_socket = flags & wire::HAS_SOCKET != 0;
            let record = reader.piece()?;
            let tls = if flags & wire::HAS_TLS != 0 { Some(reader.piece()?) } else { None };
            match has_socket {
                false => _ = self.engine.forget_imported(slot),
                true => self.forget_taken(slot),
            }
            // The engine first checks that the slot can exist.
            if self.engine.import(record)? != slot {
                return Err(TakeError::Damaged);
            }
            if has_socket {
                let socket = descriptors.next().ok_or(TakeError::Damaged)?;
                self.take_socket(slot, socket)?;
            }
            if let Some(tls) = tls {
                self.take_tls(slot, tls)?;
            }
            count += 1;
        }
        Ok(count)
    }

    fn take_socket(&mut self, slot: u32, socket: OwnedFd) -> io::Result<()> {
        self.poller.add(&socket, u64::from(slot), false)?;
        let settings = self.engine.settings();
        let max = settings.connections_per_address_max;
        if max > 0
            && let Ok(Some(address)) = rustix::net::getpeername(&socket)
            && let Ok(address) = SocketAddr::try_from(address)
        {
            let address = address.ip().to_canonical();
            // The address of a proxy's client counts elsewhere.
            if !settings.session.proxies.networks.contains(address) {
                let address = settings.network(address);
                if self.engine.shared().addresses.enter(address, u32::MAX) {
                    self.peers.insert(slot, address);
                }
            }
        }
        self.sockets.insert(slot, socket);
        Ok(())
    }

    /// Takes the TLS state of a connection in place of an earlier one.
    fn take_tls(&mut self, slot: u32, state: &[u8]) -> Result<(), TakeError> {
        let socket = self.sockets.get_mut(slot).ok_or(TakeError::Damaged)?;
        socket.set(State::Tls, true);
        self.forget_tls(slot);
        self.tls.import(slot, state)?;
        self.count_taken_tls(slot);
        Ok(())
    }

    /// Forgets a copied connection that has ended in the old process.
    fn forget_taken(&mut self, slot: u32) {
        self.engine.forget_imported(slot);
        self.forget_tls(slot);
        self.sockets.remove(slot);
        if let Some(address) = self.peers.remove(&slot) {
            self.engine.shared().addresses.leave(address);
        }
    }

    /// Serves: all shards have everything, and the old ones are gone.
    fn go_on_with(&mut self, rest: Rest) {
        self.engine.set_now(self.now_us());
        let now_us = self.engine.now_us();
        let metrics = self.engine.metrics().clone();
        for (slot, pieces) in rest.outboxes {
            let mut outbox = Outbox::new(now_us);
            let Some(socket) = self.sockets.get(slot) else {
                continue;
            };
            for (messages, bytes) in pieces {
                metrics.outbox_bytes.add(bytes.len() as u64);
                outbox.push(Chunk::new(Piece::new(bytes.into(), &metrics), messages), 0);
            }
            metrics.outboxes.add(1);
            let _ = self.poller.watch_output(socket, u64::from(slot), true);
            self.sockets.block(slot, outbox);
        }
        self.unread.extend(self.tls.undelivered());
        self.engine.restart();
        self.buffer = vec![0; crate::shard::READ_BYTES];
        self.perform();
        // The bytes that the engine waits for have left in the old process.
        for slot in 0..self.engine.slots_end() {
            if self.engine.awaits_drained(slot)
                && self.sockets.get(slot).is_some_and(|socket| !socket.is(State::Blocked))
            {
                self.engine.on_drained(slot);
                self.perform();
            }
        }
    }
}
