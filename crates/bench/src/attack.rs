//! Attackers: crowds that load a server in ways that no honest client does. Each kind is a thread with a descriptor
//! table of its own, which goes on until it is stopped.

#![expect(unsafe_code, reason = "a thread with its own descriptor table")]

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The kind of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Heads of requests that come a byte at a time, and never end.
    Dribble,
    /// Subscribers of a busy topic that never read.
    NeverRead,
    /// Upgrades to a WebSocket that stop half-way.
    HalfOpen,
    /// WebSockets that enter topics and leave them as fast as the server reads.
    Joins,
    /// Heads without end, frames of gigabytes, storms of fragments, deep JSON, deflate bombs.
    Bombs,
}

impl Attack {
    /// All kinds.
    pub const ALL: [Attack; 5] =
        [Attack::Dribble, Attack::NeverRead, Attack::HalfOpen, Attack::Joins, Attack::Bombs];

    /// Returns its name for a table.
    pub fn name(self) -> &'static str {
        match self {
            Attack::Dribble => "dribbled heads",
            Attack::NeverRead => "never read",
            Attack::HalfOpen => "half handshakes",
            Attack::Joins => "flood of joins",
            Attack::Bombs => "bombs",
        }
    }

    /// Returns its number of connections, for this many honest clients.
    pub fn connections(self, honest: usize) -> usize {
        match self {
            Attack::Dribble | Attack::NeverRead => honest * 3 / 2,
            Attack::HalfOpen => honest / 2,
            Attack::Joins | Attack::Bombs => (honest / 200).clamp(4, 50),
        }
    }
}

/// The topic of the subscribers that never read.
pub const BUSY: &str = "busy";

/// An attack under way; it ends when this is dropped.
pub struct Running {
    stop: Arc<AtomicBool>,
    /// How many times it has connected, reconnects included.
    pub dialled: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Begins an attack on this server, with this many connections.
    ///
    /// # Errors
    /// If the system can't start the thread.
    pub fn start(attack: Attack, target: SocketAddrV4, connections: usize) -> Result<Self> {
        let (stop, dialled) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let attacker = Attacker { attack, target, stop: stop.clone(), dialled: dialled.clone() };
        let thread = std::thread::Builder::new()
            .name(format!("attack-{}", attack.name().replace(' ', "-")))
            .spawn(move || {
                // Real attackers have machines of their own: here they get only the processor time that the server
                // and its clients leave.
                let _ = rustix::process::nice(19);
                // SAFETY: the thread opens all descriptors that it uses, and hands none on.
                if unsafe { flood::descriptors::private_table() }.is_ok() {
                    attacker.run(connections);
                }
            })
            .context("a thread for an attack")?;
        Ok(Running { stop, dialled, thread: Some(thread) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Attacker {
    attack: Attack,
    target: SocketAddrV4,
    stop: Arc<AtomicBool>,
    dialled: Arc<AtomicU64>,
}

/// A connection of an attacker.
struct Victim {
    socket: OwnedFd,
    /// Bytes to send, again and again if the attack does so.
    bytes: Vec<u8>,
    sent: usize,
}

const UPGRADE: &str = "GET /ws?user=evil HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\n\
                       Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

impl Attacker {
    fn run(&self, connections: usize) {
        let mut victims: Vec<Option<Victim>> = Vec::new();
        victims.resize_with(connections, || None);
        while !self.stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            for (at, place) in victims.iter_mut().enumerate() {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                let alive = place.as_mut().is_some_and(|victim| self.go_on(victim));
                if !alive {
                    *place = self.dial(at);
                }
            }
            // The slow attacks process all of their connections several times within a time-out.
            let pause = match self.attack {
                Attack::Joins | Attack::Bombs => Duration::from_millis(1),
                Attack::Dribble | Attack::NeverRead | Attack::HalfOpen => Duration::from_secs(2),
            };
            while begin.elapsed() < pause && !self.stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1).max(pause / 100));
            }
        }
    }

    /// Each kind has addresses of its own, so that the ports of one address are enough.
    fn dial(&self, at: usize) -> Option<Victim> {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .ok()?;
        let source = Ipv4Addr::new(127, 200, self.attack as u8, 1 + (at / 10_000) as u8);
        flood::source::bind_address_without_port(&socket).ok()?;
        rustix::net::bind(&socket, &SocketAddrV4::new(source, 0)).ok()?;
        rustix::net::connect(&socket, &self.target).ok()?;
        self.dialled.fetch_add(1, Ordering::Relaxed);
        let mut victim = Victim { socket, bytes: first_bytes(self.attack, at), sent: 0 };
        if self.attack != Attack::Dribble {
            victim.send();
        }
        Some(victim)
    }

    /// Continues the attack on a connection. Returns false if the server has closed it.
    fn go_on(&self, victim: &mut Victim) -> bool {
        match self.attack {
            Attack::Dribble => {
                let byte = victim.bytes.get(victim.sent).copied().unwrap_or(b'x');
                victim.sent += 1;
                victim.send_bytes(&[byte]).is_ok() && victim.is_open()
            }
            // This attack reads nothing: only the errors of its socket show a close.
            Attack::NeverRead => victim.is_open_unread(),
            Attack::HalfOpen => victim.is_open(),
            Attack::Joins | Attack::Bombs => {
                if victim.sent == victim.bytes.len() && self.attack == Attack::Joins {
                    (victim.bytes, victim.sent) = (joins(), 0);
                } else if victim.sent == victim.bytes.len() {
                    return false;
                }
                victim.send() && victim.is_open()
            }
        }
    }
}

impl Victim {
    fn send_bytes(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::send(self.socket.as_fd(), bytes, flags)
    }

    /// Sends as much of the rest as the server takes. Returns false if the server has closed the connection.
    fn send(&mut self) -> bool {
        while self.sent < self.bytes.len() {
            match self.send_bytes(&self.bytes[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN | Errno::NOBUFS) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads and drops the input. Returns false at its end.
    fn is_open(&self) -> bool {
        let mut buffer = [0; 4096];
        for _ in 0..16 {
            match rustix::net::recv(self.socket.as_fd(), &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok(_) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    fn is_open_unread(&self) -> bool {
        !matches!(rustix::net::sockopt::socket_error(&self.socket), Ok(Err(_)) | Err(_))
    }
}

fn first_bytes(attack: Attack, at: usize) -> Vec<u8> {
    match attack {
        Attack::Dribble => b"GET /sse?topic=a HTTP/1.1\r\nHost: t\r\nX-Long: ".to_vec(),
        Attack::NeverRead => {
            format!("GET /sse?topic={BUSY} HTTP/1.1\r\nHost: t\r\n\r\n").into_bytes()
        }
        Attack::HalfOpen => UPGRADE.as_bytes().to_vec(),
        Attack::Joins => [format!("{UPGRADE}\r\n").into_bytes(), joins()].concat(),
        Attack::Bombs => bomb(at),
    }
}

/// Returns a client's frame, with a mask of zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        length @ 0..126 => out.push(0x80 | length as u8),
        length @ 126..65_536 => {
            out.push(0x80 | 126);
            out.extend((length as u16).to_be_bytes());
        }
        length => {
            out.push(0x80 | 127);
            out.extend((length as u64).to_be_bytes());
        }
    }
    out.extend([0; 4]);
    out.extend(payload);
    out
}

fn joins() -> Vec<u8> {
    let command = |kind: &str, at: usize| {
        frame(0x81, format!("{{\"type\":\"{kind}\",\"id\":{at},\"topic\":\"x{at}\"}}").as_bytes())
    };
    (0..50).flat_map(|at| [command("subscribe", at), command("unsubscribe", at)].concat()).collect()
}

/// Returns a bomb of one kind, by number.
fn bomb(at: usize) -> Vec<u8> {
    let upgraded = |bytes: Vec<u8>| [format!("{UPGRADE}\r\n").into_bytes(), bytes].concat();
    match at % 7 {
        0 => [b"GET / HTTP/1.1\r\nHost: t\r\nX: ".to_vec(), vec![b'x'; 1 << 20]].concat(),
        1 => format!("GET /{} HTTP/1.1\r\n", "a".repeat(1 << 20)).into_bytes(),
        2 => {
            let lines = "A: b\r\n".repeat(100_000);
            format!("GET / HTTP/1.1\r\nHost: t\r\n{lines}").into_bytes()
        }
        // A frame whose head declares 2^62 bytes.
        3 => upgraded(
            [&[0x82, 0xff, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &[7; 65_536]].concat(),
        ),
        // A message that never ends, one byte per frame.
        4 => upgraded([frame(1, b"x"), frame(0, b"x").repeat(200_000)].concat()),
        5 => {
            let deep = format!("{{\"type\":{}", "[".repeat(100_000));
            upgraded(frame(0x81, deep.as_bytes()).repeat(20))
        }
        // A few kilobytes that inflate to many megabytes.
        _ => {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
            let zeros = vec![b' '; 1 << 20];
            // Writing to a vector does not fail.
            (0..32).for_each(|_| encoder.write_all(&zeros).unwrap_or_default());
            let payload = encoder.finish().unwrap_or_default();
            let extension = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
            let head = format!("{UPGRADE}{extension}\r\n").into_bytes();
            [head, frame(0xc1, &payload).repeat(4)].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    #[test]
    fn attacks_connect_and_come_back() {
        for attack in Attack::ALL {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let Ok(SocketAddr::V4(target)) = listener.local_addr() else { panic!("IPv4") };
            let running = Running::start(attack, target, 3).expect("a thread");
            for _ in 0..3 {
                let (mut socket, _) = listener.accept().expect("an attacker");
                socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
                let mut byte = [0];
                assert_eq!(socket.read(&mut byte).expect("a byte"), 1, "{attack:?}");
            }
            assert!(running.dialled.load(Ordering::Relaxed) >= 3);
        }
    }

    #[test]
    fn bombs_are_of_seven_kinds_and_small_where_they_should_be() {
        assert!((0..7).all(|at| bomb(at) != bomb(at + 1)));
        assert!(bomb(6).len() < 200_000, "{}", bomb(6).len());
        assert_eq!(frame(0x81, &[1; 300])[..8], [0x81, 0xfe, 1, 44, 0, 0, 0, 0]);
    }
}
