//! The stream of samples: one a second, as server-sent events.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use wire::client::{Client, Event, Fault, Feed, State, by_name};

use crate::admin::{AGENT, Target, Trouble};
use crate::sample::Sample;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a node that samples every second may say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A sample, and the JSON that it was read from.
#[derive(Clone, Debug)]
pub struct Told {
    /// As the node wrote it, without a line end.
    pub json: String,
    /// What that means.
    pub sample: Sample,
}

/// An open stream.
pub struct Live {
    stream: TcpStream,
    name: String,
    client: &'static dyn Client,
    state: State,
    pending: Vec<u8>,
    told: VecDeque<Result<Told, String>>,
}

impl Live {
    /// Connects and asks. Whether the node grants it shows at the first sample.
    ///
    /// # Errors
    /// If there is no connection.
    pub fn open(target: &Target) -> Result<Self, Trouble> {
        let name = target.name().to_owned();
        let away =
            |error: std::io::Error| Trouble::Away(format!("nothing answers at {name}: {error}"));
        let mut stream =
            TcpStream::connect_timeout(&target.url.address, CONNECT_TIMEOUT).map_err(away)?;
        stream.set_read_timeout(Some(SILENCE_MAX)).map_err(away)?;
        stream.set_write_timeout(Some(SILENCE_MAX)).map_err(away)?;
        let key = target.key.as_ref();
        let key = key.map_or(String::new(), |key| format!("Authorization: Bearer {key}\r\n"));
        let request = format!(
            "GET {}/api/live HTTP/1.1\r\nHost: {name}\r\nUser-Agent: {AGENT}\r\n\
             Accept: text/event-stream\r\n{key}\r\n",
            target.url.path
        );
        stream.write_all(request.as_bytes()).map_err(away)?;
        let client = by_name("sse");
        let client = client.ok_or_else(|| Trouble::Refused("no reader of events".into()))?;
        let (state, pending, told) = Default::default();
        Ok(Live { stream, name, client, state, pending, told })
    }

    /// Waits for the next sample.
    ///
    /// # Errors
    /// If the stream ended, or is none. It is of no more use then.
    pub fn next(&mut self) -> Result<Told, Trouble> {
        loop {
            if let Some(told) = self.told.pop_front() {
                return told.map_err(Trouble::Away);
            }
            self.read()?;
        }
    }

    fn read(&mut self) -> Result<(), Trouble> {
        let mut bytes = [0; 16 * 1024];
        let read = match self.stream.read(&mut bytes) {
            Ok(0) => return Err(Trouble::Away(format!("{} closed the connection", self.name))),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let (name, seconds) = (&self.name, SILENCE_MAX.as_secs());
                return Err(Trouble::Away(format!("no sample from {name} in {seconds} s")));
            }
            Err(error) => {
                return Err(Trouble::Away(format!(
                    "the connection to {} broke: {error}",
                    self.name
                )));
            }
        };
        let Live { name, client, state, pending, told, .. } = self;
        // The reader of events answers nothing.
        let mut out = Vec::new();
        let mut feed = Feed { client: *client, number: 0, pending, out: &mut out };
        let fed = state.feed(&mut feed, &bytes[..read], &mut |event| match event {
            Event::Message(block) => told.push_back(parse(block)),
            Event::End => told.push_back(Err(format!("{name} ended the stream"))),
            _ => {}
        });
        fed.map_err(|fault| match fault {
            Fault::Status(503) => Trouble::Refused(format!(
                "{name} gives no live figures now: it is ending, or as many read them as may"
            )),
            Fault::Status(401 | 403) => {
                Trouble::Forbidden(format!("{name} refuses the key for its live figures"))
            }
            fault => Trouble::NotThrong(format!("{name} gives no live figures: {fault}")),
        })
    }
}

/// Reads an event whose data is a sample.
fn parse(block: &[u8]) -> Result<Told, String> {
    let text = std::str::from_utf8(block).map_err(|_| "a sample that is not UTF-8".to_owned())?;
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let json = data.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<String>();
    let sample =
        serde_json::from_str(&json).map_err(|error| format!("a broken sample: {error}"))?;
    Ok(Told { json, sample })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A stream from a server that writes this and closes.
    fn live(answer: &'static str) -> Live {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let read = stream.read(&mut [0; 4096]).expect("a request");
            assert!(read > 0);
            stream.write_all(answer.as_bytes()).expect("written");
        });
        Live::open(&Target::parse(&address, Some("k".into())).expect("a URL")).expect("open")
    }

    #[test]
    fn samples_come_one_after_the_other() {
        let mut live = live(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n\
             event: sample\ndata: {\"at\":1000,\"connections\":7}\n\n: still here\n\n\
             event: sample\ndata: {\"at\":2000,\"connections\":8}\n\n",
        );
        let first = live.next().unwrap();
        assert_eq!(first.json, "{\"at\":1000,\"connections\":7}");
        assert_eq!((first.sample.at, live.next().unwrap().sample.connections), (1_000, 8.0));
        assert!(matches!(live.next(), Err(Trouble::Away(_))));
    }

    #[test]
    fn what_is_no_stream_of_samples_is_told() {
        let page = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>\n\n";
        assert!(matches!(live(page).next(), Err(Trouble::NotThrong(_))));
        let busy = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
        assert!(matches!(live(busy).next(), Err(Trouble::Refused(_))));
        let other = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: hello\n\n";
        assert!(matches!(live(other).next(), Err(Trouble::Away(_))));
    }
}
