//! A listener on SSE that resumes after each end of its connection.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::store::ledger::Ledger;
use crate::support::TIMEOUT;

/// The number of ids that a failure prints.
const IDS_SHOWN: usize = 1_000;

pub struct Listener {
    topics: &'static [&'static str],
    /// The offset at which the listener began.
    first: u64,
    received: Arc<Mutex<Received>>,
    connections: u64,
    /// The number of messages that were compared already, in all and of each topic.
    compared: usize,
    counts: HashMap<&'static str, usize>,
    reader: Option<JoinHandle<()>>,
}

struct Received {
    last_id: String,
    messages: Vec<(u64, String)>,
    recoveries: u64,
    /// The ids as they arrived, and where connections began, for debugging.
    ids: Vec<String>,
}

impl Listener {
    /// Returns a listener that has everything up to an id.
    pub fn new(topics: &'static [&'static str], last_id: &str) -> Self {
        let first = last_id.split_once(':').unwrap().1.parse().unwrap();
        let received = Received {
            last_id: last_id.into(),
            messages: Vec::new(),
            recoveries: 0,
            ids: Vec::new(),
        };
        let received = Arc::new(Mutex::new(received));
        Listener {
            topics,
            first,
            received,
            connections: 0,
            compared: 0,
            counts: HashMap::new(),
            reader: None,
        }
    }

    /// Connects, and listens until the connection ends.
    pub fn connect(&mut self, client: SocketAddr) {
        self.reader.take().into_iter().for_each(|reader| reader.join().unwrap());
        self.connections += 1;
        let topics: Vec<String> =
            self.topics.iter().map(|topic| format!("topic={topic}")).collect();
        let mut received = self.received.lock().unwrap();
        let last_id = received.last_id.clone();
        received.ids.push(format!("comes back with {last_id}"));
        drop(received);
        let mut socket = TcpStream::connect(client).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = format!(
            "GET /sse?{} HTTP/1.1\r\nHost: t\r\nLast-Event-ID: {last_id}\r\n\r\n",
            topics.join("&")
        );
        socket.write_all(head.as_bytes()).unwrap();
        let received = self.received.clone();
        self.reader = Some(std::thread::spawn(move || listen(socket, &received)));
    }

    /// Checks that all missed messages arrive once, in order within each topic, and that the server
    /// reports a complete recovery.
    pub fn check(&mut self, ledger: &Ledger) {
        let want = ledger.after(self.topics, self.first);
        let until = Instant::now() + TIMEOUT;
        let received = loop {
            let received = self.received.lock().unwrap();
            let all =
                received.messages.len() >= want.len() && received.recoveries == self.connections;
            if all || Instant::now() > until {
                break received;
            }
            drop(received);
            std::thread::sleep(Duration::from_millis(1));
        };
        let ids = &received.ids[received.ids.len().saturating_sub(IDS_SHOWN)..];
        let about = format!("{:?}, ids {}", self.topics, ids.join(", "));
        assert_eq!(received.recoveries, self.connections, "{about}: reported recoveries");
        for topic in self.topics {
            let want = ledger.after(&[topic], self.first);
            let got = received.messages[self.compared..].iter();
            let got = got.filter(|got| ledger.topic(got.0) == Some(topic));
            let from = self.counts.entry(topic).or_default();
            let mut due = want[*from..].iter();
            for got in got {
                assert_eq!(Some(got), due.next(), "{about}: {topic}");
                *from += 1;
            }
            assert_eq!(due.next(), None, "{about}: {topic}: did not come");
        }
        self.compared = received.messages.len();
        assert_eq!(self.compared, want.len(), "{about}: more came than was stored");
    }
}

fn listen(socket: TcpStream, received: &Mutex<Received>) {
    let (mut lines, mut block) = (BufReader::new(socket), Vec::new());
    let mut line = Vec::new();
    // An event without an empty line at its end was cut off, and doesn't count.
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) && line.ends_with(b"\n") {
        let text = std::str::from_utf8(&line).unwrap().trim_end().to_string();
        line.clear();
        match text.is_empty() {
            true => process_event(&std::mem::take(&mut block), &mut received.lock().unwrap()),
            false => block.push(text),
        }
    }
}

fn process_event(block: &[String], received: &mut Received) {
    let field = |name: &str| block.iter().find_map(|line| line.strip_prefix(name));
    let (id, data) = (field("id: "), field("data: "));
    if let Some(id) = id {
        received.last_id = id.into();
        received.ids.push(id.into());
    }
    match (field("event: "), data) {
        (Some("recovery"), Some(data)) => {
            assert!(data.contains("\"recovered\":true"), "{data}");
            received.recoveries += 1;
        }
        (_, Some(data)) => {
            let own = id.unwrap().split('/').next().unwrap();
            let offset = own.split_once(':').unwrap().1.parse().unwrap();
            received.messages.push((offset, data.into()));
        }
        _ => {}
    }
}
