//! A small server of SSE that does one thing wrong, and what `throng flood` says of it.

mod faults;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Stream, header};

/// Of so many messages one is mistreated.
pub const EVERY: u64 = 5;
/// Messages until it stalls or falls silent, and until it closes a connection.
pub const GOOD_MESSAGES: u64 = 3;
/// How long it stalls.
pub const STALL: Duration = Duration::from_secs(2);

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// One in [`EVERY`] messages comes to nobody.
    Drops,
    /// One in [`EVERY`] comes twice.
    Duplicates,
    /// Each second message overtakes the one before.
    Reorders,
    /// After [`GOOD_MESSAGES`], messages wait for [`STALL`].
    Stalls,
    /// After [`GOOD_MESSAGES`], messages are taken and never delivered.
    Swallows,
    /// One in [`EVERY`] comes to all topics but its own.
    Strays,
    /// Closes each connection that has got [`GOOD_MESSAGES`].
    Closes,
    /// Ends the answer of each connection that has got [`GOOD_MESSAGES`] in good order.
    Ends,
    /// Refuses one in [`EVERY`] publishes.
    RefusesPublishes,
    /// Accepts and never answers.
    Hangs,
    /// Closes instead of an answer.
    HangsUp,
    /// Resets instead of an answer.
    Resets,
    /// Answers with 503.
    Refuses,
    /// Answers with a page.
    Page,
    /// Answers in another protocol.
    Garbage,
}

/// Where it listens. Its threads end with the test's process.
pub struct BadServer {
    pub address: SocketAddr,
}

/// What its threads share.
struct State {
    fault: Fault,
    published: u64,
    listeners: Vec<Listener>,
    /// What waits: of a pair that is swapped, or while it stalls.
    held: Vec<(String, String)>,
    /// Sockets that are kept for nothing but to be open.
    kept: Vec<TcpStream>,
}

struct Listener {
    topic: String,
    socket: TcpStream,
    taken: u64,
}

impl BadServer {
    pub fn start(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { fault, published: 0, listeners: vec![], held: vec![], kept: vec![] };
        let state = Arc::new(Mutex::new(state));
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let state = state.clone();
                std::thread::spawn(move || serve(socket, &state));
            }
        });
        BadServer { address }
    }

    /// Arguments for a crowd that listens and publishes here.
    pub fn arguments(&self) -> String {
        let address = self.address;
        format!(
            "http://{address}/sse?topic={{topic}} --publish http://{address}/pub?topic={{topic}}"
        )
    }
}

/// Publishes one after the other on one connection, or one listener.
fn serve(mut socket: TcpStream, state: &Arc<Mutex<State>>) {
    let _ = socket.set_nodelay(true);
    let fault = state.lock().unwrap().fault;
    if fault == Fault::Resets {
        // A close with the rest of the request unread is a reset.
        let _ = socket.read(&mut [0]);
        return;
    }
    let mut stream = Stream::new(socket.try_clone().unwrap());
    loop {
        let head = stream.head_if_any();
        let mut words = head.split(' ');
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let topic = target.split("topic=").nth(1).unwrap_or("").to_string();
        match method {
            "POST" => {
                let length = header(&head, "content-length").unwrap().parse().unwrap();
                let mut body = vec![0; length];
                stream.reader.read_exact(&mut body).unwrap();
                let taken = publish(state, topic, String::from_utf8(body).unwrap());
                let status = if taken { "200 OK" } else { "500 Internal Server Error" };
                stream.send(&format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"));
            }
            "GET" => return listen(fault, topic, socket, state),
            _ => return,
        }
    }
}

fn listen(fault: Fault, topic: String, mut socket: TcpStream, state: &Mutex<State>) {
    let answer = match fault {
        Fault::Hangs => "",
        Fault::HangsUp => return,
        Fault::Refuses => "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        Fault::Page => "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n<p>",
        Fault::Garbage => "SSH-2.0-OpenSSH_9.2\r\n",
        Fault::Ends => {
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
             Transfer-Encoding: chunked\r\n\r\n"
        }
        _ => "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
    };
    // It listens before it knows that it does: nothing that is published then is missed.
    let mut state = state.lock().unwrap();
    let _ = socket.write_all(answer.as_bytes());
    match fault {
        Fault::Hangs | Fault::Refuses | Fault::Page | Fault::Garbage => state.kept.push(socket),
        _ => state.listeners.push(Listener { topic, socket, taken: 0 }),
    }
}

/// False when it is refused.
fn publish(shared: &Arc<Mutex<State>>, topic: String, payload: String) -> bool {
    let mut state = shared.lock().unwrap();
    state.published += 1;
    let number = state.published;
    let chosen = number.is_multiple_of(EVERY);
    match state.fault {
        Fault::Drops if chosen => {}
        Fault::Duplicates if chosen => {
            state.deliver(&topic, &payload);
            state.deliver(&topic, &payload);
        }
        Fault::Reorders if !number.is_multiple_of(2) => state.held.push((topic, payload)),
        Fault::Reorders => {
            state.deliver(&topic, &payload);
            state.release();
        }
        Fault::Stalls if number == GOOD_MESSAGES + 1 => {
            state.held.push((topic, payload));
            let shared = shared.clone();
            std::thread::spawn(move || {
                std::thread::sleep(STALL);
                shared.lock().unwrap().release();
            });
        }
        Fault::Stalls if !state.held.is_empty() => state.held.push((topic, payload)),
        Fault::Swallows if number > GOOD_MESSAGES => {}
        Fault::Strays if chosen => state.deliver_to(&payload, |own| own != topic),
        Fault::RefusesPublishes if chosen => return false,
        _ => state.deliver(&topic, &payload),
    }
    true
}

impl State {
    fn release(&mut self) {
        for (topic, payload) in std::mem::take(&mut self.held) {
            self.deliver(&topic, &payload);
        }
    }

    fn deliver(&mut self, topic: &str, payload: &str) {
        self.deliver_to(payload, |own| own == topic);
    }

    fn deliver_to(&mut self, payload: &str, whom: impl Fn(&str) -> bool) {
        let fault = self.fault;
        let event = format!("data: {payload}\n\n");
        self.listeners.retain_mut(|listener| {
            if !whom(&listener.topic) {
                return true;
            }
            listener.taken += 1;
            let last = listener.taken == GOOD_MESSAGES;
            let written = match fault {
                Fault::Ends => {
                    let end = if last { "0\r\n\r\n" } else { "" };
                    let chunk = format!("{:x}\r\n{event}\r\n{end}", event.len());
                    listener.socket.write_all(chunk.as_bytes())
                }
                _ => listener.socket.write_all(event.as_bytes()),
            };
            written.is_ok() && !(last && matches!(fault, Fault::Closes | Fault::Ends))
        });
    }
}
