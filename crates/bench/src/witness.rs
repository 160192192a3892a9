//! Clients that record the id of each message, for comparison with the published ids. A crowd only counts: it would
//! not notice one lost message and another that comes twice.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddrV4, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// The topic of all witnesses.
const TOPIC: &str = "all";

/// One client, whose input a thread reads.
struct Witness {
    socket: TcpStream,
    /// The ids of its messages, in the order of arrival.
    ids: Arc<Mutex<Vec<String>>>,
    thread: JoinHandle<()>,
    /// The ids of the messages published to it alone.
    own: Vec<String>,
}

/// Clients of Server-Sent Events, each in the topic `all` and with a user of its own.
pub struct Witnesses {
    all: Vec<Witness>,
    /// The ids of the messages published to all of them.
    shared: Vec<String>,
}

impl Witnesses {
    /// Connects this many clients, with the users `witness0` and so on.
    ///
    /// # Errors
    /// If the server doesn't respond to one of them with 200.
    pub fn start(target: SocketAddrV4, clients: usize) -> Result<Self> {
        let all = (0..clients).map(|at| start(target, at)).collect::<Result<Vec<_>>>()?;
        Ok(Witnesses { all, shared: Vec::new() })
    }

    /// Records that a message with this id was published to the topic `all`.
    pub fn published(&mut self, id: &str) {
        self.shared.push(id.to_string());
    }

    /// Returns the user whose turn it is to get a message of its own; `sent` counts these.
    pub fn user(&self, sent: usize) -> String {
        format!("witness{}", sent % self.all.len())
    }

    /// Records the id of the message to that user.
    pub fn published_to(&mut self, sent: usize, id: &str) {
        let at = sent % self.all.len();
        self.all[at].own.push(id.to_string());
    }

    /// Waits until all have as many messages as were published to them, but no longer than this. Returns how many
    /// clients have other ids, or another order.
    ///
    /// # Errors
    /// If a thread has failed.
    pub fn end(self, patience: Duration) -> Result<u64> {
        let end = Instant::now() + patience;
        let shared: BTreeSet<&String> = self.shared.iter().collect();
        let mut wrong = 0;
        for witness in self.all {
            let mut want: Vec<&String> = self.shared.iter().chain(&witness.own).collect();
            let count = || witness.ids.lock().unwrap_or_else(PoisonError::into_inner).len();
            while count() < want.len() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            // The thread ends with the connection, however that ends.
            let _ = witness.socket.shutdown(Shutdown::Both);
            if witness.thread.join().is_err() {
                bail!("the thread of a witness has failed");
            }
            let ids = witness.ids.lock().unwrap_or_else(PoisonError::into_inner);
            let in_order = ids.iter().filter(|id| shared.contains(id)).eq(&self.shared);
            let mut got: Vec<&String> = ids.iter().collect();
            got.sort();
            want.sort();
            wrong += u64::from(!in_order || got != want);
        }
        Ok(wrong)
    }
}

fn start(target: SocketAddrV4, at: usize) -> Result<Witness> {
    let mut socket = TcpStream::connect(target).context("connecting a witness")?;
    write!(socket, "GET /sse?user=witness{at}&topic={TOPIC} HTTP/1.1\r\nHost: {target}\r\n\r\n")?;
    let mut reader = BufReader::new(socket.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        ensure!(reader.read_line(&mut head)? > 0, "a witness got the response {head:?}");
    }
    ensure!(head.starts_with("HTTP/1.1 200 "), "a witness got the response {head:?}");
    let ids = Arc::<Mutex<Vec<String>>>::default();
    let noted = ids.clone();
    let thread = std::thread::Builder::new().name(format!("witness-{at}")).spawn(move || {
        for line in reader.lines().map_while(std::io::Result::ok) {
            // The message's own id comes first; perhaps the position follows up to which the client has everything.
            if let Some(id) = line.strip_prefix("id: ").and_then(|id| id.split('/').next()) {
                noted.lock().unwrap_or_else(PoisonError::into_inner).push(id.to_string());
            }
        }
    });
    Ok(Witness { socket, ids, thread: thread.context("a thread for a witness")?, own: Vec::new() })
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    /// Runs a server that sends these events to a witness. Returns the number of witnesses that found an error.
    fn wrong(events: &'static str) -> u64 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let Ok(SocketAddr::V4(target)) = listener.local_addr() else { panic!("IPv4") };
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a witness");
            let request = BufReader::new(socket.try_clone().expect("a descriptor")).lines();
            let ends = |line: std::io::Result<String>| line.expect("a request").is_empty();
            assert!(request.into_iter().any(ends), "the request is whole");
            let head = "HTTP/1.1 200 OK\r\n\r\n";
            socket.write_all(format!("{head}{events}").as_bytes()).expect("room");
        });
        let mut witnesses = Witnesses::start(target, 1).expect("a response");
        assert_eq!(witnesses.user(7), "witness0");
        witnesses.published("1:1");
        witnesses.published_to(0, "1:2");
        witnesses.published("1:3");
        server.join().expect("it has replied");
        witnesses.end(Duration::from_millis(50)).expect("a thread")
    }

    #[test]
    fn witnesses_see_what_a_count_does_not() {
        assert_eq!(wrong("id: 1:1\ndata: a\n\nid: 1:2/1:1\ndata: b\n\nid: 1:3\ndata: c\n\n"), 0);
        // A message of another fan-out may overtake.
        assert_eq!(wrong("id: 1:1\ndata: a\n\nid: 1:3\ndata: c\n\nid: 1:2\ndata: b\n\n"), 0);
        for events in [
            "id: 1:1\n\nid: 1:2\n\nid: 1:2\n\n",
            "id: 1:1\n\nid: 1:2\n\n",
            "id: 1:3\n\nid: 1:2\n\nid: 1:1\n\n",
            "id: 1:1\n\nid: 1:2\n\nid: 1:3\n\nid: 1:4\n\n",
            "",
        ] {
            assert_eq!(wrong(events), 1, "{events}");
        }
    }
}
