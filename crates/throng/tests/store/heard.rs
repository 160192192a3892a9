//! A listener on SSE that comes back after each end with what it heard last.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::ledger::Ledger;
use crate::support::PATIENCE;

/// Ids that are shown when a test fails.
const IDS_SHOWN: usize = 1_000;

pub struct Listener {
    topics: &'static [&'static str],
    /// Where it began.
    first: u64,
    heard: Arc<Mutex<Heard>>,
    connections: u64,
    /// So many messages were compared already, in all and of each topic.
    compared: usize,
    counts: HashMap<&'static str, usize>,
    reader: Option<JoinHandle<()>>,
}

struct Heard {
    last_id: String,
    messages: Vec<(u64, String)>,
    recoveries: u64,
    /// The ids as they came, and where connections began: for those who look for a fault.
    ids: Vec<String>,
}

impl Listener {
    /// One that has everything up to an id.
    pub fn new(topics: &'static [&'static str], last_id: &str) -> Self {
        let first = last_id.split_once(':').unwrap().1.parse().unwrap();
        let heard =
            Heard { last_id: last_id.into(), messages: Vec::new(), recoveries: 0, ids: Vec::new() };
        let heard = Arc::new(Mutex::new(heard));
        Listener {
            topics,
            first,
            heard,
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
        let mut heard = self.heard.lock().unwrap();
        let last_id = heard.last_id.clone();
        heard.ids.push(format!("comes back with {last_id}"));
        drop(heard);
        let mut socket = TcpStream::connect(client).unwrap();
        let head = format!(
            "GET /sse?{} HTTP/1.1\r\nHost: t\r\nLast-Event-ID: {last_id}\r\n\r\n",
            topics.join("&")
        );
        socket.write_all(head.as_bytes()).unwrap();
        let heard = self.heard.clone();
        self.reader = Some(std::thread::spawn(move || listen(socket, &heard)));
    }

    /// What was missed comes, each message once, those of a topic in order, and is said to be all.
    pub fn check(&mut self, ledger: &Ledger) {
        let want = ledger.after(self.topics, self.first);
        let until = Instant::now() + PATIENCE;
        let heard = loop {
            let heard = self.heard.lock().unwrap();
            let all = heard.messages.len() >= want.len() && heard.recoveries == self.connections;
            if all || Instant::now() > until {
                break heard;
            }
            drop(heard);
            std::thread::sleep(Duration::from_millis(1));
        };
        let ids = &heard.ids[heard.ids.len().saturating_sub(IDS_SHOWN)..];
        let about = format!("{:?}, ids {}", self.topics, ids.join(", "));
        assert_eq!(heard.recoveries, self.connections, "{about}: told to have recovered");
        for topic in self.topics {
            let want = ledger.after(&[topic], self.first);
            let got = heard.messages[self.compared..].iter();
            let got = got.filter(|got| ledger.topic(got.0) == Some(topic));
            let from = self.counts.entry(topic).or_default();
            let mut due = want[*from..].iter();
            for got in got {
                assert_eq!(Some(got), due.next(), "{about}: {topic}");
                *from += 1;
            }
            assert_eq!(due.next(), None, "{about}: {topic}: did not come");
        }
        self.compared = heard.messages.len();
        assert_eq!(self.compared, want.len(), "{about}: more came than was stored");
    }
}

fn listen(socket: TcpStream, heard: &Mutex<Heard>) {
    let (mut lines, mut block) = (BufReader::new(socket), Vec::new());
    let mut line = Vec::new();
    // An event that was cut off is none: it has no empty line at its end.
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) && line.ends_with(b"\n") {
        let text = std::str::from_utf8(&line).unwrap().trim_end().to_string();
        line.clear();
        match text.is_empty() {
            true => understand(&std::mem::take(&mut block), &mut heard.lock().unwrap()),
            false => block.push(text),
        }
    }
}

fn understand(block: &[String], heard: &mut Heard) {
    let field = |name: &str| block.iter().find_map(|line| line.strip_prefix(name));
    let (id, data) = (field("id: "), field("data: "));
    if let Some(id) = id {
        heard.last_id = id.into();
        heard.ids.push(id.into());
    }
    match (field("event: "), data) {
        (Some("recovery"), Some(data)) => {
            assert!(data.contains("\"recovered\":true"), "{data}");
            heard.recoveries += 1;
        }
        (_, Some(data)) => {
            let own = id.unwrap().split('/').next().unwrap();
            let offset = own.split_once(':').unwrap().1.parse().unwrap();
            heard.messages.push((offset, data.into()));
        }
        _ => {}
    }
}
