//! An old shard and a new one in one process, with the frames between them.

mod frames;
mod handshakes;
mod hostile;
mod switch;

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use auth::CertificateUser;
use engine::{Listener, Settings};
use mailbox::Wake;
use model::NodeId;

use super::take::{Going, Taking};
use super::{Channel, Give, Giver, GiverStage, TakeError, TakenShard};
use crate::settings::Port;
use crate::shard::Shard;
use crate::tls::{TlsContext, TlsSettings};

/// How long each wait may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn shard() -> Shard {
    let limits =
        presence::Limits { users_max: 0, list_bytes_max: 0, interval_us: 1_000, members_per_ms: 0 };
    let shared = engine::Shared::new(
        NodeId(1),
        protocol::standard(),
        Arc::new(presence::Local::new(limits, NodeId(1))),
        Arc::default(),
        sessions::in_memory(NodeId(1)),
    );
    let policy = auth::Policy::new(model::Rules::default(), auth::LoginRule::Allow);
    let mut shard = crate::start::for_tests(Settings::for_tests(policy), Arc::new(shared));
    let acceptor = tls::testing::acceptor(0);
    let settings = TlsSettings { acceptor, certificate_user: CertificateUser::None };
    shard.tls_context = Some(TlsContext::new(settings, 8));
    shard
}

/// Returns a path for a socket that no other test uses.
fn path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("throng-shard-{}-{number}", std::process::id()))
}

/// Opens a connection, and returns the peer's end.
fn connect(shard: &mut Shard) -> Peer {
    connect_to(shard, false)
}

/// Opens a connection at a port with TLS or one without, and returns the peer's end.
fn connect_to(shard: &mut Shard, tls: bool) -> Peer {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let (listener, socket) = (Listener::Client, OwnedFd::from(ours));
    let port = Port { listener, tls };
    shard.admit(crate::shard::Accepted { port, socket, address: None });
    Peer { socket: theirs, got: Vec::new() }
}

/// A client's socket, with all bytes that it has received.
struct Peer {
    socket: UnixStream,
    got: Vec<u8>,
}

impl Peer {
    fn send(&mut self, text: &str) {
        self.socket.write_all(text.as_bytes()).unwrap();
    }

    /// Reads the available bytes. Returns true at the end.
    fn read(&mut self) -> bool {
        self.socket.read_to_end(&mut self.got).is_ok()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.got).into_owned()
    }

    /// The numbers of all received messages, in order.
    fn numbers(&self) -> Vec<u32> {
        let text = self.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter_map(|data| data.trim_matches('"').split_whitespace().next()?.parse().ok())
            .collect()
    }
}

/// Runs turns of a shard until a condition holds.
fn turns(shard: &mut Shard, what: &str, mut until: impl FnMut(&mut Shard) -> bool) {
    let began = Instant::now();
    while !until(shard) {
        assert!(began.elapsed() < PATIENCE, "{what}: it takes too long");
        // A pending wake-up keeps the turn from waiting.
        shard.commands.waker().wake();
        shard.turn();
    }
}

/// Runs a few turns, enough for all work that is due.
fn some_turns(shard: &mut Shard) {
    let mut left = 12;
    turns(shard, "turns", |_| {
        left -= 1;
        left == 0
    });
}

/// A new shard on a thread of its own.
struct New {
    going: Arc<Going>,
    reports: Receiver<(u32, Result<(), TakeError>)>,
    stop: Arc<AtomicBool>,
    broker: Arc<dyn broker::Broker>,
    /// Returns how many connections the shard had when it went on, if it did.
    thread: Option<JoinHandle<Option<usize>>>,
}

impl New {
    /// Takes over by this channel, and then serves until `stop` is set.
    fn start(old: Channel) -> New {
        let (report, reports) = channel();
        let (going, stop) = (Arc::<Going>::default(), Arc::<AtomicBool>::default());
        let (notify, made) = channel();
        let (its_going, its_stop) = (going.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut shard = shard();
            notify.send(shard.engine.broker().clone()).unwrap();
            let taking = Taking { channel: old, report, going: its_going, taken: Arc::default() };
            if !shard.take_over(taking) {
                return None;
            }
            let connections = shard.engine.slots().count();
            turns(&mut shard, "the new shard", |_| its_stop.load(Ordering::Acquire));
            Some(connections)
        });
        New { going, reports, stop, broker: made.recv().unwrap(), thread: Some(thread) }
    }

    /// Ends the shard, and returns how many connections it took over.
    fn end(&mut self) -> usize {
        self.stop.store(true, Ordering::Release);
        self.join().expect("it went on")
    }

    /// Ends the shard before it serves.
    fn abandon(&mut self) {
        self.going.decide(false);
        assert_eq!(self.join(), None);
    }

    fn join(&mut self) -> Option<usize> {
        self.thread.take().expect("it is there").join().unwrap()
    }
}

/// Lets the old shard begin to copy. Returns the new shard's end of the channel.
fn connect_new_shard(old: &mut Shard) -> Channel {
    let path = path();
    let listener = UnixListener::bind(&path).unwrap();
    old.giver.order(Give::Begin(path.clone()));
    old.giver.order(Give::Copy);
    old.obey();
    assert_eq!(old.giver.stage(), GiverStage::Copying, "{}", error_of(&old.giver));
    let (socket, _) = listener.accept().unwrap();
    std::fs::remove_file(&path).unwrap();
    Channel::new(socket).unwrap()
}

/// Starts a new shard, to which the old one copies.
fn begin(old: &mut Shard) -> New {
    let taken = TakenShard::greet(connect_new_shard(old)).unwrap();
    assert_eq!((taken.number, taken.listeners.len()), (0, 0));
    New::start(taken.channel)
}

/// Lets the old shard stand still and pass on everything.
fn switch(old: &mut Shard) {
    old.giver.order(Give::StandStill);
    turns(old, "still", |old| old.giver.stage() == GiverStage::Still);
    let mut before = None;
    turns(old, "rest", |old| {
        let (activity, at_rest) = old.giver.rest();
        // The wake-ups of `turns` count, too.
        let is_finished = at_rest && before.is_some();
        before = at_rest.then_some(activity);
        is_finished || old.engine.is_still()
    });
    old.giver.order(Give::Rest);
    turns(old, "given", |old| {
        assert_eq!(old.giver.error(), None);
        old.giver.stage() == GiverStage::Given
    });
}

fn publish(broker: &Arc<dyn broker::Broker>, numbers: std::ops::Range<u32>, filler: usize) {
    for number in numbers {
        let text = format!("{number} {}", ".".repeat(filler));
        let publication = model::Publication::new("news", model::Data::Text(text.into()));
        broker.publish(publication, None).unwrap();
    }
}

fn error_of(giver: &Giver) -> String {
    giver.error().unwrap_or_default()
}
