//! One attacker, which makes random attacks one after another.

use std::collections::VecDeque;
use std::io::{Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use random::Random;

use super::*;
use crate::hostile::websocket::frame;

/// The user that attackers claim to be.
pub const USER: &str = "evil";

/// Connections that an attacker holds at a time.
const OPEN_MAX: usize = 6;

/// How long an attacker waits for a server that does not read or respond. No result depends on it.
const PATIENCE: Duration = Duration::from_millis(100);

/// The random choices of an attacker, which only depend on the seed.
pub struct Dice(Random);

impl Dice {
    pub fn new(seed: u64, of: u64) -> Self {
        Dice(Random::of(seed, of))
    }

    fn below(&mut self, end: usize) -> usize {
        self.0.below(end)
    }

    fn one_in(&mut self, of: usize) -> bool {
        self.0.one_in(of)
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    fn bytes(&mut self, max: usize) -> Vec<u8> {
        let length = self.below(max + 1);
        self.0.bytes(length)
    }

    /// Changes, removes or repeats some bytes.
    fn corrupt(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len().max(1));
            match self.below(5) {
                _ if bytes.is_empty() => {}
                0 => bytes[at] = self.0.bits() as u8,
                1 => bytes[at] ^= 1 << self.below(8),
                2 => drop(bytes.remove(at)),
                3 => bytes.insert(at, *self.of(b"\r\n\0 :,%\xff{[\"")),
                _ => {
                    let piece = bytes[at..bytes.len().min(at + 20)].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
    }
}

/// Valid requests, which attackers corrupt.
const REQUESTS: [&str; 14] = [
    "GET /sse?topic=good&user=evil HTTP/1.1\r\nHost: t\r\nLast-Event-ID: 00000001:7\r\n\r\n",
    "GET /stream?topic=loud&user=evil&since:loud=00000001:7 HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET /poll?topic=good&since=00000001:7/9-0000000b.8&timeout=1 HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET /presence?topic=good HTTP/1.1\r\nHost: t\r\n\r\n",
    "GET /chat.js HTTP/1.1\r\nHost: t\r\nIf-None-Match: *\r\n\r\n",
    "HEAD /sse?topic=a HTTP/1.1\r\nHost: t\r\n\r\n",
    "OPTIONS /publish HTTP/1.1\r\nHost: t\r\nOrigin: http://a\r\nAccess-Control-Request-Headers: a\r\n\r\n",
    "POST /publish?topic=chat:a&event=error HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello",
    "POST /publish?topic=chat:a&tag=b&key=c HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello",
    "POST /publish?topic=good HTTP/1.1\r\nHost: t\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /ack HTTP/1.1\r\nHost: t\r\nContent-Length: 34\r\n\r\n{\"user\":\"evil\",\"id\":\"00000001:7\"}\n",
    "POST /socket/longpoll?vsn=2.0.0&token=AAAA HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n[]",
    "GET /ws?topic=good HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    "GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
];

/// Valid commands and Phoenix messages, which attackers corrupt.
const MESSAGES: [&str; 18] = [
    r#"{"type":"subscribe","id":1,"topic":"loud","since":"00000001:7","tags":["a"]}"#,
    r#"{"type":"unsubscribe","id":1,"topic":"good"}"#,
    r#"{"type":"publish","id":1,"topic":"chat:a","data":{"a":[1,2,3]}}"#,
    r#"{"type":"publish","id":1,"topic":"chat:a","event":"recovery","data":1}"#,
    r#"{"type":"ack","id":1,"user":"good","message":"00000001:7"}"#,
    r#"["subscribe",1,"loud",null,null,null,null,null,null,null,null]"#,
    r#"["1","1","good","phx_join",{"meta":{"a":"b"}}]"#,
    r#"["2","2","loud","phx_join",{"since":"00000001:7"}]"#,
    r#"["3","3","@good","phx_join",{}]"#,
    r#"["4","4","*","phx_join",{}]"#,
    r#"["1","5","good","phx_leave",{}]"#,
    r#"["1","6","good","presence_update",{"mood":"bad"}]"#,
    r#"["1","7","good","phx_close",{}]"#,
    r#"["1","8","good","presence_diff",{"joins":{},"leaves":{}}]"#,
    r#"["2","9","loud","shout",{"a":1}]"#,
    r#"[null,"10","phoenix","heartbeat",{}]"#,
    r#"[null,"11","good","ack",{"id":"00000001:7"}]"#,
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
];

type Attack = fn(&mut Dice, &mut TcpStream) -> Result<()>;

const KINDS: [Attack; 12] = [
    noise,
    corrupted,
    unfinished,
    body,
    never_reads,
    frames,
    bomb,
    fragments,
    phoenix,
    sessions,
    unread,
    shout,
];

/// Makes [`ATTACKS`] attacks, unless `done` is set before.
pub fn attack(server: &Server, mut dice: Dice, done: &AtomicBool, attacks: &AtomicU64) {
    let (mut open, mut made) = (VecDeque::new(), 0);
    while made < ATTACKS && !done.load(Ordering::Relaxed) {
        let Ok(mut socket) = TcpStream::connect(server.client) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        made += 1;
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        // The server may close the connection, so errors are expected.
        let _ = dice.of(&KINDS)(&mut dice, &mut socket);
        match dice.below(4) {
            0 => drop(socket.shutdown(Shutdown::Write)),
            1 => drop(socket.read(&mut [0; 512])),
            _ => {}
        }
        attacks.fetch_add(1, Ordering::Relaxed);
        open.push_back(socket);
        if open.len() > OPEN_MAX || dice.one_in(10) {
            open.pop_front();
        }
        std::thread::sleep(Duration::from_millis(dice.below(20) as u64));
    }
}

fn noise(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    socket.write_all(&dice.bytes(2_000))
}

fn corrupted(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    for _ in 0..=dice.below(3) {
        let mut request = dice.of(&REQUESTS).as_bytes().to_vec();
        dice.corrupt(&mut request);
        let (first, rest) = request.split_at(dice.below(request.len() + 1));
        socket.write_all(first)?;
        socket.write_all(rest)?;
    }
    Ok(())
}

fn unfinished(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    let request = dice.of(&REQUESTS).as_bytes();
    socket.write_all(&request[..dice.below(request.len())])
}

/// Sends the beginning of a large body.
fn body(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    write!(
        socket,
        "POST /socket/longpoll?vsn=2.0.0 HTTP/1.1\r\nHost: t\r\nContent-Length: 900000\r\n\r\n"
    )?;
    socket.write_all(&dice.bytes(30_000))
}

/// Subscribes and never reads.
fn never_reads(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    let path = dice.of(&["sse", "stream", "poll"]);
    let topic = dice.of(&["chat:a", "good"]);
    write!(socket, "GET /{path}?topic={topic}&user={USER} HTTP/1.1\r\nHost: t\r\n\r\n")
}

fn frames(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    let offer = *dice.of(&["", "Sec-WebSocket-Extensions: permessage-deflate\r\n"]);
    let target = format!("/ws?topic=good&user={USER}");
    socket.write_all(upgrade(&target, offer).as_bytes())?;
    for _ in 0..dice.below(10) {
        let payload = match dice.below(3) {
            0 => dice.bytes(300),
            _ => dice.of(&MESSAGES).as_bytes().to_vec(),
        };
        let first = *dice.of(&[0x81, 0x82, 0x89, 0x8a, 0x88, 0x01, 0x00, 0x80, 0xc1]);
        let mut frame = frame(first, &payload);
        if dice.one_in(2) {
            dice.corrupt(&mut frame);
        }
        socket.write_all(&frame)?;
    }
    Ok(())
}

fn bomb(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    static BOMB: OnceLock<Vec<u8>> = OnceLock::new();
    let bomb = BOMB.get_or_init(|| crate::hostile::websocket::bomb(4 << 20));
    let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    socket.write_all(upgrade("/ws", offer).as_bytes())?;
    let (first, rest) = bomb.split_at(dice.below(bomb.len()));
    socket.write_all(&frame(0x41, first))?;
    socket.write_all(&frame(0x80, rest))
}

fn fragments(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    socket.write_all(upgrade("/ws", "").as_bytes())?;
    socket.write_all(&frame(0x01, b"{"))?;
    let mut many = Vec::new();
    for _ in 0..dice.below(500) {
        many.extend(frame(*dice.of(&[0x00, 0x00, 0x00, 0x89]), b""));
    }
    socket.write_all(&many)
}

fn phoenix(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    let vsn = dice.of(&["1.0.0", "2.0.0"]);
    let target = format!("/socket/websocket?vsn={vsn}&user={USER}");
    socket.write_all(upgrade(&target, "").as_bytes())?;
    for _ in 0..dice.below(12) {
        let mut bytes = dice.of(&MESSAGES).as_bytes().to_vec();
        let first = match dice.below(6) {
            0 => {
                bytes = dice.bytes(60);
                if let Some(kind) = bytes.first_mut() {
                    *kind %= 6;
                }
                0x82
            }
            1 => {
                dice.corrupt(&mut bytes);
                0x81
            }
            _ => 0x81,
        };
        socket.write_all(&frame(first, &bytes))?;
    }
    Ok(())
}

/// Opens a session, disconnects during a poll, and sends messages with a token that may be corrupted.
fn sessions(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    let base = format!("/socket/longpoll?vsn=2.0.0&user={USER}");
    write!(socket, "GET {base} HTTP/1.1\r\nHost: t\r\n\r\n")?;
    let mut reply = [0; 1024];
    socket.set_read_timeout(Some(TIMEOUT))?;
    let read = socket.read(&mut reply)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let reply = String::from_utf8_lossy(&reply[..read]).into_owned();
    let token = reply.split("\"token\":\"").nth(1).and_then(|it| it.split('"').next());
    let mut token = token.unwrap_or_default().as_bytes().to_vec();
    if dice.one_in(2) {
        dice.corrupt(&mut token);
    }
    let token: String = token.iter().map(|byte| format!("%{byte:02X}")).collect();
    let body = format!("{}\n{}\nAAEBAQE=\n", dice.of(&MESSAGES), dice.of(&MESSAGES));
    write!(
        socket,
        "POST {base}&token={token} HTTP/1.1\r\nHost: t\r\nContent-Type: application/x-ndjson\r\n\
         Content-Length: {}\r\n\r\n{body}GET {base}&token={token} HTTP/1.1\r\nHost: t\r\n\r\n",
        body.len()
    )
}

/// Requests responses and does not read them, so that closing the socket resets it.
fn unread(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    let request = b"GET /chat.js HTTP/1.1\r\nHost: t\r\n\r\n";
    socket.write_all(&request.repeat(1 + dice.below(10)))?;
    let last = *dice.of(&REQUESTS);
    socket.write_all(last.as_bytes())
}

/// Publishes large messages to a topic where clients may publish, and whose members never read.
fn shout(dice: &mut Dice, socket: &mut TcpStream) -> Result<()> {
    let body = "x".repeat(dice.below(60_000));
    write!(
        socket,
        "POST /publish?topic=chat:a HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}
