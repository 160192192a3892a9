//! The smallest HTTP client that can talk to the application side: blocking, one connection kept
//! alive, answers with a length.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Bytes of an answer, head and body.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long one answer may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client of the application side.
#[derive(Debug)]
pub struct Api {
    address: SocketAddrV4,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

impl Api {
    /// A client that connects when it is first used.
    pub fn new(address: SocketAddrV4) -> Self {
        Self { address, stream: None, buffer: Vec::new() }
    }

    /// Posts JSON and reads the JSON answer.
    ///
    /// # Errors
    /// If the server is gone, or answers with anything but 2xx and JSON.
    pub fn post(&mut self, path: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        let (status, answer) =
            self.exchange("POST", path, &body).with_context(|| format!("POST {path}"))?;
        ensure!(
            (200..300).contains(&status),
            "POST {path} was answered {status}: {}",
            String::from_utf8_lossy(&answer)
        );
        serde_json::from_slice(&answer).with_context(|| format!("the answer of POST {path}"))
    }

    /// Gets a text; its status too.
    ///
    /// # Errors
    /// If the server is gone, or speaks no HTTP.
    pub fn get(&mut self, path: &str) -> Result<(u16, String)> {
        let (status, answer) =
            self.exchange("GET", path, "").with_context(|| format!("GET {path}"))?;
        Ok((status, String::from_utf8_lossy(&answer).into_owned()))
    }

    fn exchange(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, Vec<u8>)> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let mut stream = self.connected()?;
        stream.write_all(request.as_bytes())?;
        let (status, head_bytes, body_bytes) = self.read_head(&mut stream)?;
        while self.buffer.len() < head_bytes + body_bytes {
            self.read_some(&mut stream)?;
        }
        let answer = self.buffer[head_bytes..head_bytes + body_bytes].to_vec();
        // Kept only after a whole answer: what is left on a broken stream belongs to no request.
        self.stream = Some(stream);
        Ok((status, answer))
    }

    /// The kept connection, if the server hasn't closed it, or a new one.
    fn connected(&mut self) -> Result<TcpStream> {
        self.buffer.clear();
        if let Some(stream) = self.stream.take() {
            stream.set_nonblocking(true)?;
            let alive =
                matches!(stream.peek(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock);
            if alive {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
        }
        let stream = TcpStream::connect(self.address).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(stream)
    }

    /// Status, length of the head and length of the body.
    fn read_head(&mut self, stream: &mut TcpStream) -> Result<(u16, usize, usize)> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 64];
            let mut response = httparse::Response::new(&mut headers);
            let parsed = response.parse(&self.buffer).context("the answer's head")?;
            if let httparse::Status::Complete(head_bytes) = parsed {
                let status = response.code.context("a status")?;
                let length = response
                    .headers
                    .iter()
                    .find(|header| header.name.eq_ignore_ascii_case("content-length"))
                    .context("an answer without Content-Length")?;
                let body_bytes = std::str::from_utf8(length.value)?.trim().parse()?;
                ensure!(body_bytes <= ANSWER_BYTES_MAX, "an answer too long");
                return Ok((status, head_bytes, body_bytes));
            }
            self.read_some(stream)?;
        }
    }

    fn read_some(&mut self, stream: &mut TcpStream) -> Result<()> {
        ensure!(self.buffer.len() <= ANSWER_BYTES_MAX, "an answer too long");
        let have = self.buffer.len();
        self.buffer.resize(have + 16 * 1024, 0);
        let read = stream.read(&mut self.buffer[have..]);
        self.buffer.truncate(have + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => bail!("closed in the middle of an answer"),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error).context("reading an answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::net::{SocketAddr, TcpListener};
    use std::thread::JoinHandle;

    /// A server that reads one request a connection's script says and writes the pieces, each
    /// inner list on one connection.
    fn server(script: Vec<Vec<Vec<&'static str>>>) -> (SocketAddrV4, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let SocketAddr::V4(address) = listener.local_addr().expect("an address") else {
            panic!("bound to IPv4");
        };
        let thread = std::thread::spawn(move || {
            let mut requests = Vec::new();
            for connection in script {
                let (mut stream, _) = listener.accept().expect("a client");
                for answer in connection {
                    let mut request = vec![0; 4096];
                    let bytes = stream.read(&mut request).expect("a request");
                    requests.push(String::from_utf8_lossy(&request[..bytes]).into_owned());
                    for piece in answer {
                        stream.write_all(piece.as_bytes()).expect("an answer");
                    }
                }
            }
            requests
        });
        (address, thread)
    }

    #[test]
    fn connection_is_kept_and_replaced_when_closed() {
        let ok = |body| vec!["HTTP/1.1 200 OK\r\nContent-", "Length: 7\r\n\r\n{\"n", body];
        let (address, server) = server(vec![vec![ok("\":1}"), ok("\":2}")], vec![ok("\":3}")]]);
        let mut api = Api::new(address);
        for n in 1..=3 {
            if n == 3 {
                // Lets the close of the first connection arrive.
                std::thread::sleep(Duration::from_millis(100));
            }
            let answer = api.post("/api/x", &json!({"a": n})).expect("an answer");
            assert_eq!(answer["n"], n);
        }
        let requests = server.join().expect("no panic");
        assert!(requests[2].starts_with("POST /api/x HTTP/1.1\r\n"));
        assert!(requests[2].ends_with("\r\n\r\n{\"a\":3}"));
    }

    #[test]
    fn a_refusal_tells_its_body() {
        let (address, _server) =
            server(vec![vec![vec!["HTTP/1.1 503 Full\r\ncontent-length: 4\r\n\r\nfull"]]]);
        let error = Api::new(address).post("/", &json!({})).expect_err("503");
        assert!(error.to_string().contains("503: full"), "{error}");
    }

    #[test]
    fn an_answer_cut_off_is_an_error() {
        let (address, _server) =
            server(vec![vec![vec!["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"]]]);
        assert!(Api::new(address).get("/").is_err());
    }
}
