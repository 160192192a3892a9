//! The stream of samples, one each second, as server-sent events.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use admin::{AdminError, Connection, Target};
use client::{Client, ClientError, Event, Feed, State, by_name};

use crate::AGENT;
use crate::sample::Sample;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the stream may be silent, although the node sends a sample every second.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A sample, and the JSON that it was read from.
#[derive(Clone, Debug)]
pub struct LiveSample {
    /// The JSON as the node wrote it, without a line end.
    pub json: String,
    /// The parsed sample.
    pub sample: Sample,
}

/// An open stream.
pub struct Live {
    stream: Box<dyn Connection>,
    name: String,
    client: &'static dyn Client,
    state: State,
    pending: Vec<u8>,
    ready: VecDeque<Result<LiveSample, String>>,
}

impl Live {
    /// Connects and sends the request. [`Live::next`] shows whether the node accepts it.
    ///
    /// # Errors
    /// If the node can't be reached.
    pub fn open(target: &Target) -> Result<Self, AdminError> {
        let name = target.name().to_owned();
        let away =
            |error: std::io::Error| AdminError::Unreachable(format!("can't reach {name}: {error}"));
        let mut stream = target.connect(CONNECT_TIMEOUT).map_err(|error| {
            let cause = error.root_cause();
            AdminError::Unreachable(format!("can't reach {name}: {cause}"))
        })?;
        stream.socket().set_read_timeout(Some(SILENCE_MAX)).map_err(away)?;
        stream.socket().set_write_timeout(Some(SILENCE_MAX)).map_err(away)?;
        let key = target.key();
        let key = key.map_or(String::new(), |key| format!("Authorization: Bearer {key}\r\n"));
        let request = format!(
            "GET {}/api/live HTTP/1.1\r\nHost: {name}\r\nUser-Agent: {AGENT}\r\n\
             Accept: text/event-stream\r\n{key}\r\n",
            target.url().path
        );
        stream.write_all(request.as_bytes()).and_then(|()| stream.flush()).map_err(away)?;
        let client = by_name("sse");
        let client = client.ok_or_else(|| AdminError::Rejected("no reader of events".into()))?;
        let (state, pending, ready) = Default::default();
        Ok(Live { stream, name, client, state, pending, ready })
    }

    /// Waits for the next sample.
    ///
    /// # Errors
    /// If the stream ended or is no stream of samples. The caller must open another one then.
    pub fn next(&mut self) -> Result<LiveSample, AdminError> {
        loop {
            if let Some(sample) = self.ready.pop_front() {
                return sample.map_err(AdminError::Unreachable);
            }
            self.read()?;
        }
    }

    fn read(&mut self) -> Result<(), AdminError> {
        let mut bytes = [0; 16 * 1024];
        let read = match self.stream.read(&mut bytes) {
            Ok(0) => {
                return Err(AdminError::Unreachable(format!(
                    "{} closed the connection",
                    self.name
                )));
            }
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let (name, seconds) = (&self.name, SILENCE_MAX.as_secs());
                return Err(AdminError::Unreachable(format!(
                    "no sample from {name} in {seconds} s"
                )));
            }
            Err(error) => {
                return Err(AdminError::Unreachable(format!(
                    "the connection to {} broke: {error}",
                    self.name
                )));
            }
        };
        let Live { name, client, state, pending, ready, .. } = self;
        // The client for server-sent events never replies.
        let mut out = Vec::new();
        let mut feed = Feed { client: *client, number: 0, pending, out: &mut out };
        let fed = state.feed(&mut feed, &bytes[..read], &mut |event| match event {
            Event::Message(block) => ready.push_back(parse(block)),
            Event::End => ready.push_back(Err(format!("{name} ended the stream"))),
            _ => {}
        });
        fed.map_err(|error| match error {
            ClientError::Status(503) => AdminError::Rejected(format!(
                "{name} gives no live figures now: it is shutting down, or too many clients read \
                 them"
            )),
            ClientError::Status(401 | 403) => {
                AdminError::Forbidden(format!("{name} rejects the key for its live figures"))
            }
            error => AdminError::NotThrong(format!("{name} gives no live figures: {error}")),
        })
    }
}

/// Parses an event whose data is a sample.
fn parse(block: &[u8]) -> Result<LiveSample, String> {
    let text = std::str::from_utf8(block).map_err(|_| "a sample that is not UTF-8".to_owned())?;
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let json = data.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<String>();
    let sample =
        serde_json::from_str(&json).map_err(|error| format!("a broken sample: {error}"))?;
    Ok(LiveSample { json, sample })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Opens a stream from a server that writes this and closes.
    fn live(response: &'static str) -> Live {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let read = stream.read(&mut [0; 4096]).expect("a request");
            assert!(read > 0);
            stream.write_all(response.as_bytes()).expect("written");
        });
        Live::open(
            &Target::parse(&address, Some("k".into()), admin::tls::Trust::System).expect("a URL"),
        )
        .expect("open")
    }

    #[test]
    fn samples_arrive_in_order() {
        let mut live = live(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n\
             event: sample\ndata: {\"at\":1000,\"connections\":7}\n\n: still here\n\n\
             event: sample\ndata: {\"at\":2000,\"connections\":8}\n\n",
        );
        let first = live.next().unwrap();
        assert_eq!(first.json, "{\"at\":1000,\"connections\":7}");
        assert_eq!((first.sample.at, live.next().unwrap().sample.connections), (1_000, 8.0));
        assert!(matches!(live.next(), Err(AdminError::Unreachable(_))));
    }

    #[test]
    fn other_responses_are_errors() {
        let page = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>\n\n";
        assert!(matches!(live(page).next(), Err(AdminError::NotThrong(_))));
        let busy = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
        assert!(matches!(live(busy).next(), Err(AdminError::Rejected(_))));
        let other = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: hello\n\n";
        assert!(matches!(live(other).next(), Err(AdminError::Unreachable(_))));
    }
}
