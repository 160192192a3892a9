//! A small SSE server with one defect, and what `throng flood` reports about it.

mod defects;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Stream, header};

/// One in so many messages is affected.
pub const EVERY: u64 = 5;
/// The number of messages before the server stalls, falls silent, or closes a connection.
pub const GOOD_MESSAGES: u64 = 3;
/// How long the server stalls.
pub const STALL: Duration = Duration::from_secs(2);

/// The defect of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// None.
    None,
    /// Delivers one in [`EVERY`] messages to no connection.
    Drops,
    /// Delivers one in [`EVERY`] messages twice.
    Duplicates,
    /// Swaps each second message with the one before.
    Reorders,
    /// Delays messages by [`STALL`] after [`GOOD_MESSAGES`].
    Stalls,
    /// Accepts messages after [`GOOD_MESSAGES`] and never delivers them.
    Swallows,
    /// Delivers one in [`EVERY`] messages to all topics but its own.
    Strays,
    /// Closes each connection after [`GOOD_MESSAGES`].
    Closes,
    /// Ends the response of each connection properly after [`GOOD_MESSAGES`].
    Ends,
    /// Rejects one in [`EVERY`] publishes.
    RefusesPublishes,
    /// Accepts connections and never responds.
    Hangs,
    /// Closes without a response.
    HangsUp,
    /// Resets without a response.
    Resets,
    /// Responds with 503.
    Refuses,
    /// Responds with an HTML page.
    Page,
    /// Responds in another protocol.
    Garbage,
}

/// A running server. Its threads end with the test's process.
pub struct BadServer {
    pub address: SocketAddr,
}

/// The state that its threads share.
struct State {
    defect: Defect,
    published: u64,
    listeners: Vec<Listener>,
    /// Messages that wait for the message to swap with, or for the end of the stall.
    withheld: Vec<(String, String)>,
    /// Sockets that only stay open.
    open: Vec<TcpStream>,
}

struct Listener {
    topic: String,
    socket: TcpStream,
    taken: u64,
}

impl BadServer {
    pub fn start(defect: Defect) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state =
            State { defect, published: 0, listeners: vec![], withheld: vec![], open: vec![] };
        let state = Arc::new(Mutex::new(state));
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let state = state.clone();
                std::thread::spawn(move || serve(socket, &state));
            }
        });
        BadServer { address }
    }

    /// Returns the arguments for a crowd that listens and publishes here.
    pub fn arguments(&self) -> String {
        let address = self.address;
        format!(
            "http://{address}/sse?topic={{topic}} --publish http://{address}/pub?topic={{topic}}"
        )
    }
}

/// Serves one connection: a publisher's requests one after the other, or one listener.
fn serve(mut socket: TcpStream, state: &Arc<Mutex<State>>) {
    let _ = socket.set_nodelay(true);
    let defect = state.lock().unwrap().defect;
    if defect == Defect::Resets {
        // A close with unread input is a reset.
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
            "GET" => return listen(defect, topic, socket, state),
            _ => return,
        }
    }
}

fn listen(defect: Defect, topic: String, mut socket: TcpStream, state: &Mutex<State>) {
    let reply = match defect {
        Defect::Hangs => "",
        Defect::HangsUp => return,
        Defect::Refuses => "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        Defect::Page => {
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n<p>"
        }
        Defect::Garbage => "SSH-2.0-OpenSSH_9.2\r\n",
        Defect::Ends => {
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
             Transfer-Encoding: chunked\r\n\r\n"
        }
        _ => "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
    };
    // The server registers the listener before it responds, so the listener misses no later message.
    let mut state = state.lock().unwrap();
    let _ = socket.write_all(reply.as_bytes());
    match defect {
        Defect::Hangs | Defect::Refuses | Defect::Page | Defect::Garbage => state.open.push(socket),
        _ => state.listeners.push(Listener { topic, socket, taken: 0 }),
    }
}

/// Returns false if the publish is rejected.
fn publish(shared: &Arc<Mutex<State>>, topic: String, payload: String) -> bool {
    let mut state = shared.lock().unwrap();
    state.published += 1;
    let number = state.published;
    let chosen = number.is_multiple_of(EVERY);
    match state.defect {
        Defect::Drops if chosen => {}
        Defect::Duplicates if chosen => {
            state.deliver(&topic, &payload);
            state.deliver(&topic, &payload);
        }
        Defect::Reorders if !number.is_multiple_of(2) => state.withheld.push((topic, payload)),
        Defect::Reorders => {
            state.deliver(&topic, &payload);
            state.release();
        }
        Defect::Stalls if number == GOOD_MESSAGES + 1 => {
            state.withheld.push((topic, payload));
            let shared = shared.clone();
            std::thread::spawn(move || {
                std::thread::sleep(STALL);
                shared.lock().unwrap().release();
            });
        }
        Defect::Stalls if !state.withheld.is_empty() => state.withheld.push((topic, payload)),
        Defect::Swallows if number > GOOD_MESSAGES => {}
        Defect::Strays if chosen => state.deliver_to(&payload, |own| own != topic),
        Defect::RefusesPublishes if chosen => return false,
        _ => state.deliver(&topic, &payload),
    }
    true
}

impl State {
    fn release(&mut self) {
        for (topic, payload) in std::mem::take(&mut self.withheld) {
            self.deliver(&topic, &payload);
        }
    }

    fn deliver(&mut self, topic: &str, payload: &str) {
        self.deliver_to(payload, |own| own == topic);
    }

    fn deliver_to(&mut self, payload: &str, whom: impl Fn(&str) -> bool) {
        let defect = self.defect;
        let event = format!("data: {payload}\n\n");
        self.listeners.retain_mut(|listener| {
            if !whom(&listener.topic) {
                return true;
            }
            listener.taken += 1;
            let last = listener.taken == GOOD_MESSAGES;
            let written = match defect {
                Defect::Ends => {
                    let end = if last { "0\r\n\r\n" } else { "" };
                    let chunk = format!("{:x}\r\n{event}\r\n{end}", event.len());
                    listener.socket.write_all(chunk.as_bytes())
                }
                _ => listener.socket.write_all(event.as_bytes()),
            };
            written.is_ok() && !(last && matches!(defect, Defect::Closes | Defect::Ends))
        });
    }
}
