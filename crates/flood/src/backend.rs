//! A back end that replies to each request with the request's own data, sent to the user that its topic names.
//!
//! It implements the part of HTTP/1.1 that a forwarding server needs: `POST` with a length, on persistent
//! connections. Its threads end with the process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;

use crate::publisher::REQUESTS;

/// Bytes of a batch of requests, at most.
const BODY_BYTES_MAX: usize = 64 << 20;
/// Bytes of a head, at most.
const HEAD_BYTES_MAX: u64 = 64 << 10;

#[derive(Deserialize)]
struct Batch {
    messages: Vec<Request>,
}

#[derive(Deserialize)]
struct Request {
    topic: String,
    data: serde_json::Value,
}

/// Listens at this address.
///
/// # Errors
/// If another program does, or the address is none of this machine's.
pub(crate) fn start(address: SocketAddr) -> Result<()> {
    let name = || format!("--backend {address}");
    let listener = TcpListener::bind(address).with_context(name)?;
    let accept = move || {
        for socket in listener.incoming().flatten() {
            // A connection that can't be served is closed, and the server tries again.
            let serve = move || drop(serve(&socket));
            let _ = std::thread::Builder::new().name("backend".into()).spawn(serve);
        }
    };
    std::thread::Builder::new().name("backend".into()).spawn(accept).with_context(name)?;
    Ok(())
}

fn serve(socket: &TcpStream) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut reader = BufReader::new(socket);
    while let Some(body) = body(&mut reader)? {
        let (status, reply) = match reply(&body) {
            Ok(reply) => ("200 OK", reply),
            Err(error) => ("400 Bad Request", format!("{error:#}")),
        };
        let length = reply.len();
        let response = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{reply}");
        (&mut &*socket).write_all(response.as_bytes())?;
    }
    Ok(())
}

/// Returns the body of the next request, or `None` if the connection has ended.
fn body(reader: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let (mut length, mut line) = (0, String::new());
    let mut head = reader.by_ref().take(HEAD_BYTES_MAX);
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().context("Content-Length")?;
        }
    }
    ensure!(length <= BODY_BYTES_MAX, "a body of {length} bytes");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(body))
}

/// Returns the reply to a batch.
fn reply(body: &[u8]) -> Result<String> {
    let batch: Batch = serde_json::from_slice(body).context("a batch of requests")?;
    let message = |request: Request| {
        let user = request.topic.strip_prefix(REQUESTS)?.to_string();
        Some(json!({"user": user, "data": request.data}))
    };
    let messages: Vec<_> = batch.messages.into_iter().filter_map(message).collect();
    Ok(json!({ "messages": messages }).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_go_to_the_user_whom_the_topic_names() {
        let body =
            br#"{"messages":[{"id":"1","topic":"requests/u7","data":"x"},{"topic":"a","data":1}]}"#;
        assert_eq!(reply(body).unwrap(), r#"{"messages":[{"data":"x","user":"u7"}]}"#);
        assert!(reply(b"{}").is_err());
        let request = [b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc".as_slice(); 2].concat();
        let mut reader = BufReader::new(request.as_slice());
        assert_eq!(self::body(&mut reader).unwrap().as_deref(), Some(b"abc".as_slice()));
        assert_eq!(self::body(&mut reader).unwrap().as_deref(), Some(b"abc".as_slice()));
        assert_eq!(self::body(&mut reader).unwrap(), None);
    }
}
