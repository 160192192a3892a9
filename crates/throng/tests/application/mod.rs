//! An application that receives the server's webhook requests: it replies as a test wants, and records each request.
#![allow(dead_code)]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net;
use serde_json::{Value, json};

use crate::support::{Stream, TIMEOUT, header};

/// How the application replies to a request.
pub enum Act {
    /// Replies with one reply for each event.
    Reply(Vec<Value>),
    /// Sends this text as the whole HTTP response.
    Raw(String),
    /// Never responds.
    Hang,
}

/// A request that the application received.
#[derive(Clone, Debug)]
pub struct Request {
    pub head: String,
    pub body: String,
    pub events: Vec<Value>,
}

type Decide = dyn Fn(&[Value]) -> Act + Send + Sync;

/// An application at a port of its own.
pub struct Application {
    pub address: SocketAddr,
    pub requests: Arc<Mutex<Vec<Request>>>,
}

impl Application {
    /// Starts an application that replies to each event by itself.
    pub fn replying(reply: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        Application::start(move |events| Act::Reply(events.iter().map(&reply).collect()))
    }

    pub fn start(decide: impl Fn(&[Value]) -> Act + Send + Sync + 'static) -> Self {
        Application::on(TcpListener::bind("127.0.0.1:0").unwrap(), decide)
    }

    /// Starts an application at a listener whose port the test knows before.
    pub fn on(
        listener: TcpListener,
        decide: impl Fn(&[Value]) -> Act + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (seen, decide): (_, Arc<Decide>) = (requests.clone(), Arc::new(decide));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (seen, decide) = (seen.clone(), decide.clone());
                std::thread::spawn(move || serve(socket, &seen, &*decide));
            }
        });
        Application { address, requests }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Returns all events so far, in the order in which they came.
    pub fn events(&self) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        requests.iter().flat_map(|request| request.events.clone()).collect()
    }

    /// Returns the events so far of these kinds.
    pub fn of(&self, kinds: &[&str]) -> Vec<Value> {
        let mut events = self.events();
        events.retain(|event| kinds.contains(&event["kind"].as_str().unwrap()));
        events
    }

    /// Waits until `is_so` is true of all events so far, and returns them.
    pub fn until(&self, what: &str, mut is_so: impl FnMut(&[Value]) -> bool) -> Vec<Value> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let events = self.events();
            if is_so(&events) {
                return events;
            }
            assert!(Instant::now() < end, "waited in vain until {what}: {events:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// An address at which no program listens, and which no other program can take until the test listens there.
pub struct Reserved {
    pub address: SocketAddr,
    socket: OwnedFd,
}

impl Reserved {
    pub fn new() -> Self {
        let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = net::getsockname(&socket).unwrap().try_into().unwrap();
        Reserved { address, socket }
    }

    pub fn listen(self) -> TcpListener {
        net::listen(&self.socket, 128).unwrap();
        self.socket.into()
    }
}

fn serve(socket: TcpStream, seen: &Mutex<Vec<Request>>, decide: &Decide) {
    use std::io::{BufRead, Read};
    socket.set_nodelay(true).unwrap();
    let mut stream = Stream::new(socket);
    loop {
        let mut head = String::new();
        // A server that is killed may reset the connection.
        while !head.ends_with("\r\n\r\n") {
            match stream.reader.read_line(&mut head) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let length = header(&head, "content-length").unwrap().parse().unwrap();
        let mut body = vec![0; length];
        if stream.reader.read_exact(&mut body).is_err() {
            return;
        }
        let body = String::from_utf8(body).unwrap();
        let read: Value = serde_json::from_str(&body).unwrap();
        // The server sends forwarded publishes under the key `messages`.
        let events = read["events"].as_array().or_else(|| read["messages"].as_array());
        let events = events.unwrap().clone();
        let act = decide(&events);
        seen.lock().unwrap().push(Request { head, body, events });
        let response = match act {
            Act::Reply(replies) => {
                let body = json!({"replies": replies}).to_string();
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            }
            Act::Raw(response) => response,
            Act::Hang => {
                // Waits until the server closes the connection.
                let _ = stream.reader.read(&mut [0]);
                return;
            }
        };
        use std::io::Write;
        if stream.reader.get_mut().write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}
