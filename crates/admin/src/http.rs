//! A minimal HTTP client for APIs: blocking, with one persistent connection, for responses that have a length.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::chunks::Chunks;
use crate::url::Url;

/// The limit on the bytes of a response, head and body.
const RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long one response may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be idle before the client replaces it. A server may close idle connections, and must not
/// do so just when the next request leaves.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The client got no connection, so the server certainly did not get the request.
#[derive(Debug, thiserror::Error)]
#[error("connecting")]
pub struct NotConnectedError;

/// A connection to a server: a socket, or a layer on one, such as TLS.
pub trait Connection: Read + Write + Send {
    /// The socket below.
    fn socket(&self) -> &TcpStream;
}

impl Connection for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

/// Puts a layer on a new socket.
pub type Layer = Arc<dyn Fn(TcpStream) -> Result<Box<dyn Connection>> + Send + Sync>;

/// Connects, and puts the layer on the socket. The error's chain has a [`NotConnectedError`].
///
/// # Errors
/// If the server can't be reached within `timeout`, or the layer can't be put on.
pub fn connect(
    address: &SocketAddr,
    timeout: Duration,
    layer: Option<&Layer>,
) -> Result<Box<dyn Connection>> {
    let connect = || -> Result<Box<dyn Connection>> {
        let stream = TcpStream::connect_timeout(address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        match layer {
            Some(layer) => layer(stream),
            None => Ok(Box::new(stream)),
        }
    };
    connect().context(NotConnectedError)
}

/// A client of one server.
pub struct Http {
    address: SocketAddr,
    layer: Option<Layer>,
    /// The headers of every request. One of them may contain a key.
    head: String,
    stream: Option<(Box<dyn Connection>, Instant)>,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Http {
    /// Leaves out the headers, because they may contain a key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Http {
    /// Returns a client with this `User-Agent`, which servers may write to their logs. It connects at
    /// its first request. It sends the key, if any, with each request as a bearer token.
    pub fn new(url: &Url, key: Option<&str>, agent: &str) -> Self {
        let mut head = format!("Host: {}\r\nUser-Agent: {agent}\r\n", url.host);
        if let Some(key) = key {
            head.push_str(&format!("Authorization: Bearer {key}\r\n"));
        }
        Self { address: url.address, layer: None, head, stream: None, buffer: Vec::new() }
    }

    /// Returns the client with a layer, if any, on each of its connections.
    #[must_use]
    pub fn with_layer(self, layer: Option<Layer>) -> Self {
        Self { layer, ..self }
    }

    /// Makes one request and returns the status and body of the response. The body of a response
    /// without a length is empty.
    ///
    /// # Errors
    /// If the server can't be reached or does not respond with HTTP in time. The error's chain has a
    /// [`NotConnectedError`] if the request was not sent.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> Result<(u16, Vec<u8>)> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{}Content-Type: {content_type}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.head,
            body.len()
        );
        self.exchange(&request).with_context(|| format!("{method} {path} at {}", self.address))
    }

    /// Makes one request on a connection of its own, and passes each line of the response's body to `each` as it
    /// arrives, without its end. A response with another status than 200 is returned whole.
    ///
    /// # Errors
    /// As [`Http::request`], and if nothing comes for `silence`, or the body ends too early.
    pub fn lines(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        silence: Duration,
        each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(u16, Vec<u8>)> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{}Content-Type: application/json\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            self.head,
            body.len()
        );
        let result = self.exchange_lines(&request, silence, each);
        result.with_context(|| format!("{method} {path} at {}", self.address))
    }

    fn exchange_lines(
        &mut self,
        request: &str,
        silence: Duration,
        each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(u16, Vec<u8>)> {
        self.stream = None;
        let mut stream = self.connected()?;
        stream.socket().set_read_timeout(Some(silence))?;
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        let (status, head_bytes, body_bytes) = self.read_head(&mut *stream)?;
        if let Some(body_bytes) = body_bytes {
            while self.buffer.len() < head_bytes + body_bytes {
                self.read_some(&mut *stream)?;
            }
            let body = self.buffer[head_bytes..head_bytes + body_bytes].to_vec();
            if status == 200 {
                let _ = body
                    .split(|byte| *byte == b'\n')
                    .filter(|line| !line.is_empty())
                    .try_for_each(each);
            }
            return Ok((status, body));
        }
        let (mut chunks, mut rest) = (Chunks::new(), Vec::new());
        self.buffer.drain(..head_bytes);
        loop {
            chunks.read(&self.buffer, &mut rest)?;
            self.buffer.clear();
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                if status == 200 && each(&rest[..end]).is_break() {
                    return Ok((status, Vec::new()));
                }
                rest.drain(..=end);
            }
            ensure!(rest.len() <= RESPONSE_BYTES_MAX, "the response has a line that is too long");
            if chunks.has_ended() {
                return Ok((status, rest));
            }
            self.read_some(&mut *stream)?;
        }
    }

    fn exchange(&mut self, request: &str) -> Result<(u16, Vec<u8>)> {
        let mut stream = self.connected()?;
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        let (status, head_bytes, body_bytes) = self.read_head(&mut *stream)?;
        let Some(body_bytes) = body_bytes else {
            // A response without a length ends with the connection. The status is enough.
            return Ok((status, Vec::new()));
        };
        while self.buffer.len() < head_bytes + body_bytes {
            self.read_some(&mut *stream)?;
        }
        let body = self.buffer[head_bytes..head_bytes + body_bytes].to_vec();
        // The connection is reused only after a complete response. Otherwise the next request might read the rest of
        // this one. A connection that the server is about to close is not reused: another process serves the next
        // request.
        if !says_close(&self.buffer[..head_bytes]) {
            self.stream = Some((stream, Instant::now()));
        }
        Ok((status, body))
    }

    /// Returns the idle connection if the server hasn't closed it, or a new one.
    fn connected(&mut self) -> Result<Box<dyn Connection>> {
        self.buffer.clear();
        if let Some((stream, used)) = self.stream.take()
            && used.elapsed() < IDLE_MAX
        {
            let socket = stream.socket();
            socket.set_nonblocking(true)?;
            let alive =
                matches!(socket.peek(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock);
            if alive {
                socket.set_nonblocking(false)?;
                return Ok(stream);
            }
        }
        connect(&self.address, CONNECT_TIMEOUT, self.layer.as_ref())
    }

    /// Reads the head. Returns the status, the length of the head, and the length of the body if the
    /// head has one.
    fn read_head(&mut self, stream: &mut dyn Connection) -> Result<(u16, usize, Option<usize>)> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 64];
            let mut response = httparse::Response::new(&mut headers);
            let parsed = response.parse(&self.buffer).context("the head of the response")?;
            if let httparse::Status::Complete(head_bytes) = parsed {
                let status = response.code.context("a status")?;
                let length = response
                    .headers
                    .iter()
                    .find(|header| header.name.eq_ignore_ascii_case("content-length"));
                let body_bytes = match length {
                    Some(length) => Some(std::str::from_utf8(length.value)?.trim().parse()?),
                    None if matches!(status, 204 | 304) => Some(0),
                    None => None,
                };
                ensure!(body_bytes.unwrap_or(0) <= RESPONSE_BYTES_MAX, "the response is too long");
                return Ok((status, head_bytes, body_bytes));
            }
            self.read_some(stream)?;
        }
    }

    fn read_some(&mut self, stream: &mut dyn Connection) -> Result<()> {
        ensure!(self.buffer.len() <= RESPONSE_BYTES_MAX, "the response is too long");
        let have = self.buffer.len();
        self.buffer.resize(have + 16 * 1024, 0);
        let read = stream.read(&mut self.buffer[have..]);
        self.buffer.truncate(have + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => bail!("the server closed the connection in the middle of a response"),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                bail!("the server did not respond in time")
            }
            Err(error) => Err(error).context("reading a response"),
        }
    }
}

/// Returns true if a response's head ends its connection.
fn says_close(head: &[u8]) -> bool {
    head.split(|byte| *byte == b'\n').any(|line| {
        let line = line.trim_ascii();
        let (name, value) = line.split_at(line.len().min("connection:".len()));
        name.eq_ignore_ascii_case(b"connection:")
            && value.trim_ascii().eq_ignore_ascii_case(b"close")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    /// Starts a server that follows a script: a list of connections, each a list of responses, each
    /// a list of pieces to write. It reads one request before each response, and returns the
    /// requests.
    fn server(script: Vec<Vec<Vec<&'static str>>>) -> (Http, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let thread = std::thread::spawn(move || {
            let mut requests = Vec::new();
            for connection in script {
                let (mut stream, _) = listener.accept().expect("a client");
                for reply in connection {
                    let mut request = vec![0; 4096];
                    let bytes = stream.read(&mut request).expect("a request");
                    requests.push(String::from_utf8_lossy(&request[..bytes]).into_owned());
                    for piece in reply {
                        stream.write_all(piece.as_bytes()).expect("an answer");
                    }
                }
            }
            requests
        });
        let url = Url::parse(&format!("http://{address}")).expect("a URL");
        (Http::new(&url, Some("secret"), "throng-test"), thread)
    }

    #[test]
    fn a_connection_that_is_to_be_closed_is_not_used_again() {
        for (head, closes) in [
            ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nconnection:  Close\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
        ] {
            assert_eq!(says_close(head.as_bytes()), closes, "{head}");
        }
    }

    #[test]
    fn a_connection_is_reused_and_replaced_when_closed() {
        let ok = |body| vec!["HTTP/1.1 200 OK\r\nContent-", "Length: 7\r\n\r\n{\"n", body];
        let (mut http, server) = server(vec![vec![ok("\":1}"), ok("\":2}")], vec![ok("\":3}")]]);
        for n in 1..=3 {
            if n == 3 {
                // The close of the first connection arrives meanwhile.
                std::thread::sleep(Duration::from_millis(100));
            }
            let (status, reply) =
                http.request("POST", "/x", "application/json", "{}").expect("an answer");
            assert_eq!((status, reply), (200, format!("{{\"n\":{n}}}").into_bytes()));
        }
        let requests = server.join().expect("no panic");
        assert!(requests[2].starts_with("POST /x HTTP/1.1\r\n"));
        assert!(requests[2].contains("\r\nAuthorization: Bearer secret\r\n"));
        assert!(requests[2].contains("\r\nUser-Agent: throng-test\r\n"));
        assert!(requests[2].ends_with("\r\n\r\n{}"));
    }

    #[test]
    fn lines_are_given_as_they_come() {
        let reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nb\r\n";
        let rejection = "HTTP/1.1 501 No\r\nContent-Length: 2\r\n\r\n{}";
        let (mut http, server) = server(vec![
            vec![vec![reply, "2\r\nc\n\r\n0\r\n\r\n"]],
            vec![vec![rejection]],
            vec![vec![reply]],
            vec![vec![reply, "6\r\nc\nd\ne\n\r\n"]],
        ]);
        let mut lines = Vec::new();
        let silence = Duration::from_secs(5);
        let mut exchange = || {
            let mut each = |line: &[u8]| {
                lines.push(String::from_utf8_lossy(line).into_owned());
                if lines.len() < 5 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            http.lines("POST", "/x", "{}", silence, &mut each)
        };
        assert_eq!(exchange().expect("an answer").0, 200);
        assert_eq!(exchange().expect("an answer"), (501, b"{}".to_vec()));
        assert!(exchange().is_err(), "it broke off");
        assert_eq!(exchange().expect("it goes on").0, 200, "the reader had enough");
        assert_eq!(lines, ["a", "bc", "a", "a", "bc"]);
        let requests = server.join().expect("no panic");
        assert!(requests[0].starts_with("POST /x HTTP/1.1\r\n"));
    }

    #[test]
    fn debug_output_hides_the_key_and_requests_name_the_agent() {
        let url = Url::parse("http://127.0.0.1:1").expect("a URL");
        let http = Http::new(&url, Some("secret"), "throng-top");
        let shown = format!("{http:?}");
        assert!(shown.contains("127.0.0.1:1") && !shown.contains("secret"), "{shown}");
        assert!(http.head.contains("\r\nUser-Agent: throng-top\r\n"), "{}", http.head);
    }

    #[test]
    fn a_truncated_response_is_an_error() {
        let (mut http, _server) =
            server(vec![vec![vec!["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"]]]);
        assert!(http.request("GET", "/", "", "").is_err());
    }
}
