//! The publishers. One thread and one poller serve all of them, so that they take little processor time from the
//! server.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bench::report::latency_histogram;
use flood::clock::{now_ns, process_cpu};
use hdrhistogram::Histogram;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

/// The limit on the bytes of a response. The results of a batch of a thousand messages fit.
const INPUT_BYTES_MAX: usize = 256 * 1024;
/// How long all publishers may be without a response.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long one wait for events may take.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// One publisher's side of a protocol.
pub(crate) trait Publisher {
    /// Returns the bytes of the next request.
    fn request(&mut self) -> &[u8];

    /// Parses the first message of the input, if it is complete.
    ///
    /// # Errors
    /// If the publisher does not expect such a message.
    fn receive(&mut self, input: &[u8]) -> Result<ReadOutcome>;
}

/// The first message of the input.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadOutcome {
    /// Its bytes; 0 if it is incomplete.
    pub(crate) bytes: usize,
    /// A reply that the publisher must send at once.
    pub(crate) reply: &'static [u8],
    /// The results of published messages.
    pub(crate) response: Option<PublishResponse>,
}

/// The results of a request's messages, or of some of them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublishResponse {
    /// Messages that the server has stored.
    pub(crate) published: u64,
    /// Messages that the server rejected because it was overloaded.
    pub(crate) refused: u64,
    /// The request is complete.
    pub(crate) last: bool,
}

/// The resources that a server has used.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Usage {
    /// CPU time of all its threads.
    pub(crate) cpu: Duration,
    /// Bytes that it caused to be written to disk.
    pub(crate) written_bytes: u64,
}

/// The times of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// The time before the measurement.
    pub(crate) warm_up: Duration,
    /// The measured time.
    pub(crate) measured: Duration,
}

/// The results of a measurement.
#[derive(Debug)]
pub(crate) struct Measured {
    /// The actual measured time.
    pub(crate) time: Duration,
    /// Messages stored in the measured time.
    pub(crate) published: u64,
    /// Messages rejected in the measured time.
    pub(crate) refused: u64,
    /// Messages stored in the whole run, warm-up included.
    pub(crate) total: u64,
    /// Times from a request made in the measured time to its response, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// The resources that the server used in the measured time.
    pub(crate) server: Usage,
    /// CPU time of the publishers in the measured time.
    pub(crate) client_cpu: Duration,
}

impl Measured {
    pub(crate) fn per_second(&self) -> f64 {
        self.published as f64 / self.time.as_secs_f64()
    }

    pub(crate) fn per_publish(&self, value: f64) -> f64 {
        value / self.published as f64
    }
}

struct Connection {
    stream: TcpStream,
    publisher: Box<dyn Publisher>,
    /// Bytes for which the socket's buffer had no capacity.
    unsent: Vec<u8>,
    input: Box<[u8]>,
    input_bytes: usize,
    requested_ns: u64,
}

impl Connection {
    fn send_request(&mut self) -> Result<()> {
        self.requested_ns = now_ns();
        send(&mut self.stream, &mut self.unsent, self.publisher.request())
    }

    /// Handles an event: sends the unsent bytes, and reads the input.
    fn process_event(
        &mut self,
        mut on_response: impl FnMut(PublishResponse, u64) -> bool,
    ) -> Result<()> {
        if !self.unsent.is_empty() {
            let unsent = std::mem::take(&mut self.unsent);
            send(&mut self.stream, &mut self.unsent, &unsent)?;
        }
        loop {
            let buffer = &mut self.input[self.input_bytes..];
            ensure!(!buffer.is_empty(), "a response larger than {INPUT_BYTES_MAX} bytes");
            let buffer_bytes = buffer.len();
            let read = match self.stream.read(buffer) {
                Ok(0) => bail!("the server closed a publisher's connection"),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("reading a response"),
            };
            self.input_bytes += read;
            self.process_input(&mut on_response)?;
            // A short read of a stream socket has emptied it (epoll(7)). Later input is another
            // event.
            if read < buffer_bytes {
                return Ok(());
            }
        }
    }

    fn process_input(
        &mut self,
        on_response: &mut impl FnMut(PublishResponse, u64) -> bool,
    ) -> Result<()> {
        let mut at = 0;
        while at < self.input_bytes {
            let outcome = self.publisher.receive(&self.input[at..self.input_bytes])?;
            if outcome.bytes == 0 {
                break;
            }
            at += outcome.bytes;
            if !outcome.reply.is_empty() {
                send(&mut self.stream, &mut self.unsent, outcome.reply)?;
            }
            if let Some(response) = outcome.response
                && on_response(response, self.requested_ns)
            {
                self.send_request()?;
            }
        }
        self.input.copy_within(at..self.input_bytes, 0);
        self.input_bytes -= at;
        Ok(())
    }
}

/// Sends bytes, after the bytes that are still unsent.
fn send(stream: &mut TcpStream, unsent: &mut Vec<u8>, mut bytes: &[u8]) -> Result<()> {
    while unsent.is_empty() && !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("sending a request"),
        }
    }
    unsent.extend_from_slice(bytes);
    Ok(())
}

/// The counts while publishers work.
struct Count {
    /// When the measured time begins, and when publishers stop. Both are set at the begin of the measured time.
    begin_ns: u64,
    end_ns: u64,
    counting: bool,
    waiting: usize,
    published: u64,
    refused: u64,
    total: u64,
    latency: Histogram<u64>,
    last_response_ns: u64,
}

impl Count {
    /// Counts a response. Returns true if its publisher must send another request.
    fn on_response(&mut self, response: PublishResponse, requested_ns: u64) -> bool {
        let now = now_ns();
        self.last_response_ns = now;
        self.total += response.published;
        if self.counting {
            self.published += response.published;
            self.refused += response.refused;
        }
        if !response.last {
            return false;
        }
        // Responses after the measured time count as well, since they are the slow ones.
        if requested_ns >= self.begin_ns {
            self.latency.saturating_record(now - requested_ns);
        }
        let more = now < self.end_ns;
        self.waiting -= usize::from(!more);
        more
    }
}

/// Runs all publishers for the span, and waits for the last responses. Each publisher sends a request as soon as it
/// has the response to the one before. The measured time is longer than in the span if a server sends no response in
/// it.
///
/// # Errors
/// If a server closes a connection, is silent for 60 seconds, or sends something unexpected.
pub(crate) fn run(
    publishers: Vec<(TcpStream, Box<dyn Publisher>)>,
    span: Span,
    usage: &dyn Fn() -> Result<Usage>,
) -> Result<Measured> {
    let poller = epoll::create(CreateFlags::CLOEXEC).context("a poller")?;
    let mut connections = register(&poller, publishers)?;
    let cpu = || process_cpu(std::process::id());
    let warm_ns = now_ns() + span.warm_up.as_nanos() as u64;
    let mut count = Count {
        begin_ns: u64::MAX,
        end_ns: u64::MAX,
        counting: false,
        waiting: connections.len(),
        published: 0,
        refused: 0,
        total: 0,
        latency: latency_histogram(),
        last_response_ns: now_ns(),
    };
    let mut before = None;
    let mut after = None;
    let mut events = Vec::with_capacity(256);
    for connection in &mut connections {
        connection.send_request()?;
    }
    while count.waiting > 0 || after.is_none() {
        events.clear();
        match epoll::wait(&poller, rustix::buffer::spare_capacity(&mut events), Some(&WAIT)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for responses"),
        }
        for event in &events {
            let index = event.data.u64() as usize;
            connections[index].process_event(|response, requested_ns| {
                count.on_response(response, requested_ns)
            })?;
        }
        // This comes after the events, since no more may come once the publishers have stopped.
        let now = now_ns();
        if before.is_none() && now >= warm_ns {
            before = Some((now, usage()?, cpu()?));
            count.counting = true;
            count.begin_ns = now;
            count.end_ns = now + span.measured.as_nanos() as u64;
        }
        // A rate needs a response. If none arrives in time, the first one ends the measured time.
        if after.is_none() && now >= count.end_ns && count.published > 0 {
            after = Some((now, usage()?, cpu()?));
            count.counting = false;
        }
        ensure!(
            now.saturating_sub(count.last_response_ns) < SILENCE_MAX.as_nanos() as u64,
            "no response for {SILENCE_MAX:?}; {} publishers wait",
            count.waiting
        );
    }
    let (Some(before), Some(after)) = (before, after) else { bail!("nothing was measured") };
    Ok(Measured {
        time: Duration::from_nanos(after.0 - before.0),
        published: count.published,
        refused: count.refused,
        total: count.total,
        latency: count.latency,
        server: Usage {
            cpu: after.1.cpu.saturating_sub(before.1.cpu),
            written_bytes: after.1.written_bytes.saturating_sub(before.1.written_bytes),
        },
        client_cpu: after.2.saturating_sub(before.2),
    })
}

fn register(
    poller: &OwnedFd,
    publishers: Vec<(TcpStream, Box<dyn Publisher>)>,
) -> Result<Vec<Connection>> {
    let mut connections = Vec::with_capacity(publishers.len());
    for (index, (stream, publisher)) in publishers.into_iter().enumerate() {
        stream.set_nodelay(true).context("TCP_NODELAY")?;
        stream.set_nonblocking(true).context("O_NONBLOCK")?;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(poller, &stream, EventData::new_u64(index as u64), flags)?;
        connections.push(Connection {
            stream,
            publisher,
            unsent: Vec::new(),
            input: vec![0; INPUT_BYTES_MAX].into_boxed_slice(),
            input_bytes: 0,
            requested_ns: 0,
        });
    }
    Ok(connections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Sends a byte and receives one.
    struct Byte;

    impl Publisher for Byte {
        fn request(&mut self) -> &[u8] {
            b"?"
        }

        fn receive(&mut self, input: &[u8]) -> Result<ReadOutcome> {
            ensure!(input[0] == b'!', "another byte");
            let response = Some(PublishResponse { published: 1, refused: 0, last: true });
            Ok(ReadOutcome { bytes: 1, reply: b"", response })
        }
    }

    fn echo(byte: u8) -> (TcpStream, std::thread::JoinHandle<u64>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut stream, _) = listener.accept().expect("a client");
        let server = std::thread::spawn(move || {
            let mut replies = 0;
            while matches!(stream.read(&mut [0]), Ok(1)) && stream.write_all(&[byte]).is_ok() {
                replies += 1;
            }
            replies
        });
        (client, server)
    }

    #[test]
    fn every_response_is_counted_once() {
        let span =
            Span { warm_up: Duration::from_millis(50), measured: Duration::from_millis(200) };
        let (publishers, servers): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| echo(b'!'))
            .map(|(client, server)| ((client, Box::new(Byte) as Box<dyn Publisher>), server))
            .unzip();
        let measured = run(publishers, span, &|| Ok(Usage::default())).expect("a run");
        let replies: u64 = servers.into_iter().map(|server| server.join().expect("joined")).sum();
        assert_eq!(measured.total, replies);
        assert!(measured.published > 0 && measured.published < measured.total);
        // Each of the three publishers may have a request under way at either end.
        assert!(measured.latency.len().abs_diff(measured.published) <= 3);
        assert!(measured.time >= span.measured);
    }

    #[test]
    fn an_unexpected_response_ends_the_run() {
        let span = Span { warm_up: Duration::ZERO, measured: Duration::from_secs(5) };
        let (client, _server) = echo(b'x');
        let publishers = vec![(client, Box::new(Byte) as Box<dyn Publisher>)];
        let error = run(publishers, span, &|| Ok(Usage::default())).expect_err("another byte");
        assert_eq!(error.to_string(), "another byte");
    }
}
