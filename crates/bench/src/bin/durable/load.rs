//! The publishers: one thread and one poller for all of them, so that they take little of the
//! processor from the server beside them.

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

/// Bytes of what a server answers to one request; a thousand results of a batch fit in.
const INPUT_BYTES_MAX: usize = 256 * 1024;
/// How long no publisher may have an answer.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long one wait for events may take.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// One publisher's side of a protocol.
pub(crate) trait Publisher {
    /// The bytes of the next request.
    fn request(&mut self) -> &[u8];

    /// Reads the first thing that a server said, if all of it is there.
    ///
    /// # Errors
    /// If it is none of what the publisher expects.
    fn hear(&mut self, input: &[u8]) -> Result<Heard>;
}

/// What was at the head of the input.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// Bytes of it; 0 if more must come.
    pub(crate) bytes: usize,
    /// What must be said back at once.
    pub(crate) reply: &'static [u8],
    /// What became of messages.
    pub(crate) answer: Option<Answer>,
}

/// What became of a request's messages, or of some of them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Messages that are kept.
    pub(crate) published: u64,
    /// Messages that the server had no room for.
    pub(crate) refused: u64,
    /// Nothing more is to come to this request.
    pub(crate) last: bool,
}

/// What a server has used.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Usage {
    /// CPU time of all its threads.
    pub(crate) cpu: Duration,
    /// Bytes that it caused to be written to disk.
    pub(crate) written_bytes: u64,
}

/// How long publishers are at it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// Before anything is counted.
    pub(crate) warm_up: Duration,
    /// What is counted.
    pub(crate) measured: Duration,
}

/// What was counted.
#[derive(Debug)]
pub(crate) struct Measured {
    /// The measured time as it came out.
    pub(crate) time: Duration,
    /// Messages kept in it.
    pub(crate) published: u64,
    /// Messages refused in it.
    pub(crate) refused: u64,
    /// Messages kept from the first to the last, warm-up included.
    pub(crate) total: u64,
    /// From a request made in it to its answer, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// What the server used in it.
    pub(crate) server: Usage,
    /// CPU time of the publishers in it.
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
    /// What the socket had no room for.
    unsent: Vec<u8>,
    input: Box<[u8]>,
    input_bytes: usize,
    asked_ns: u64,
}

impl Connection {
    fn ask(&mut self) -> Result<()> {
        self.asked_ns = now_ns();
        send(&mut self.stream, &mut self.unsent, self.publisher.request())
    }

    /// Goes on with what was not sent, and reads what is there; one call for each event.
    fn go_on(&mut self, mut answered: impl FnMut(Answer, u64) -> bool) -> Result<()> {
        if !self.unsent.is_empty() {
            let unsent = std::mem::take(&mut self.unsent);
            send(&mut self.stream, &mut self.unsent, &unsent)?;
        }
        loop {
            let room = &mut self.input[self.input_bytes..];
            ensure!(!room.is_empty(), "an answer of more than {INPUT_BYTES_MAX} bytes");
            let room_bytes = room.len();
            let read = match self.stream.read(room) {
                Ok(0) => bail!("the server closed a publisher's connection"),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("reading an answer"),
            };
            self.input_bytes += read;
            self.understand(&mut answered)?;
            // A short read of a stream socket has taken all (epoll(7)); what comes later is an
            // event of its own.
            if read < room_bytes {
                return Ok(());
            }
        }
    }

    fn understand(&mut self, answered: &mut impl FnMut(Answer, u64) -> bool) -> Result<()> {
        let mut at = 0;
        while at < self.input_bytes {
            let heard = self.publisher.hear(&self.input[at..self.input_bytes])?;
            if heard.bytes == 0 {
                break;
            }
            at += heard.bytes;
            if !heard.reply.is_empty() {
                send(&mut self.stream, &mut self.unsent, heard.reply)?;
            }
            if let Some(answer) = heard.answer
                && answered(answer, self.asked_ns)
            {
                self.ask()?;
            }
        }
        self.input.copy_within(at..self.input_bytes, 0);
        self.input_bytes -= at;
        Ok(())
    }
}

/// Sends after what is still unsent.
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

/// Counts while publishers are at it.
struct Count {
    /// When the measured time began, and when publishers stop; known once the measured time has begun.
    begin_ns: u64,
    end_ns: u64,
    counting: bool,
    waiting: usize,
    published: u64,
    refused: u64,
    total: u64,
    latency: Histogram<u64>,
    last_answer_ns: u64,
}

impl Count {
    /// Takes an answer; says whether its publisher shall ask anew.
    fn answered(&mut self, answer: Answer, asked_ns: u64) -> bool {
        let now = now_ns();
        self.last_answer_ns = now;
        self.total += answer.published;
        if self.counting {
            self.published += answer.published;
            self.refused += answer.refused;
        }
        if !answer.last {
            return false;
        }
        // Also those that were answered after the measured time: they are the slow ones.
        if asked_ns >= self.begin_ns {
            self.latency.saturating_record(now - asked_ns);
        }
        let more = now < self.end_ns;
        self.waiting -= usize::from(!more);
        more
    }
}

/// Has all publishers publish for as long as the span says, each as soon as its last request is
/// answered, and waits for the last answers. The measured time is longer than asked for if a server
/// answers nothing in it.
///
/// # Errors
/// If a server closes a connection, is silent for 60 seconds, or says what a publisher doesn't
/// expect.
pub(crate) fn run(
    publishers: Vec<(TcpStream, Box<dyn Publisher>)>,
    span: Span,
    usage: &dyn Fn() -> Result<Usage>,
) -> Result<Measured> {
    let poller = epoll::create(CreateFlags::CLOEXEC).context("a poller")?;
    let mut connections = stand(&poller, publishers)?;
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
        last_answer_ns: now_ns(),
    };
    let mut before = None;
    let mut after = None;
    let mut events = Vec::with_capacity(256);
    for connection in &mut connections {
        connection.ask()?;
    }
    while count.waiting > 0 || after.is_none() {
        events.clear();
        match epoll::wait(&poller, rustix::buffer::spare_capacity(&mut events), Some(&WAIT)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for answers"),
        }
        for event in &events {
            let index = event.data.u64() as usize;
            connections[index].go_on(|answer, asked_ns| count.answered(answer, asked_ns))?;
        }
        // After the events: once the publishers have stopped there may be none to wait for.
        let now = now_ns();
        if before.is_none() && now >= warm_ns {
            before = Some((now, usage()?, cpu()?));
            count.counting = true;
            count.begin_ns = now;
            count.end_ns = now + span.measured.as_nanos() as u64;
        }
        // A rate needs an answer: where none comes in time, the first one ends the measured time.
        if after.is_none() && now >= count.end_ns && count.published > 0 {
            after = Some((now, usage()?, cpu()?));
            count.counting = false;
        }
        ensure!(
            now.saturating_sub(count.last_answer_ns) < SILENCE_MAX.as_nanos() as u64,
            "no answer for {SILENCE_MAX:?}; {} publishers wait",
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

fn stand(
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
            asked_ns: 0,
        });
    }
    Ok(connections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Says a byte, and hears one.
    struct Byte;

    impl Publisher for Byte {
        fn request(&mut self) -> &[u8] {
            b"?"
        }

        fn hear(&mut self, input: &[u8]) -> Result<Heard> {
            ensure!(input[0] == b'!', "another byte");
            let answer = Some(Answer { published: 1, refused: 0, last: true });
            Ok(Heard { bytes: 1, reply: b"", answer })
        }
    }

    fn echo(byte: u8) -> (TcpStream, std::thread::JoinHandle<u64>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut stream, _) = listener.accept().expect("a client");
        let server = std::thread::spawn(move || {
            let mut answers = 0;
            while matches!(stream.read(&mut [0]), Ok(1)) && stream.write_all(&[byte]).is_ok() {
                answers += 1;
            }
            answers
        });
        (client, server)
    }

    #[test]
    fn every_answer_is_counted_once() {
        let span =
            Span { warm_up: Duration::from_millis(50), measured: Duration::from_millis(200) };
        let (publishers, servers): (Vec<_>, Vec<_>) = (0..3)
            .map(|_| echo(b'!'))
            .map(|(client, server)| ((client, Box::new(Byte) as Box<dyn Publisher>), server))
            .unzip();
        let measured = run(publishers, span, &|| Ok(Usage::default())).expect("a run");
        let answers: u64 = servers.into_iter().map(|server| server.join().expect("joined")).sum();
        assert_eq!(measured.total, answers);
        assert!(measured.published > 0 && measured.published < measured.total);
        // Each of the three may have one on its way at either end.
        assert!(measured.latency.len().abs_diff(measured.published) <= 3);
        assert!(measured.time >= span.measured);
    }

    #[test]
    fn an_unexpected_answer_ends_the_run() {
        let span = Span { warm_up: Duration::ZERO, measured: Duration::from_secs(5) };
        let (client, _server) = echo(b'x');
        let publishers = vec![(client, Box::new(Byte) as Box<dyn Publisher>)];
        let error = run(publishers, span, &|| Ok(Usage::default())).expect_err("another byte");
        assert_eq!(error.to_string(), "another byte");
    }
}
