//! A WebSocket server that sends back what it receives, on the codec alone: blocking, a thread for
//! each connection. `bench/autobahn --codec` runs the conformance suite against it.
//!
//! `cargo run --release -p protocol --example ws_echo -- 127.0.0.1:9001`; port 0 takes a free one. The
//! address is printed once it listens.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use protocol::http::{self, HttpRequest, Parsed};
use protocol::websocket::deflate::{Deflater, Inflater};
use protocol::websocket::frame::{Opcode, encode};
use protocol::websocket::handshake::{self, Deflate};
use protocol::websocket::{Context, Decoder, Event, Limits, Role};

const LIMITS: Limits = Limits { frame_bytes_max: 32 << 20, message_bytes_max: 32 << 20 };

const HTTP_LIMITS: http::Limits = http::Limits {
    head_bytes_max: 8 << 10,
    uri_bytes_max: 2 << 10,
    body_bytes_max: 0,
    longpoll_body_bytes_max: 0,
};

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9001".into());
    let listener = TcpListener::bind(address)?;
    println!("ws://{}/echo", listener.local_addr()?);
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || {
            if let Err(error) = serve(stream) {
                eprintln!("connection lost: {error}");
            }
        });
    }
    Ok(())
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = Vec::new();
    let Some(deflate) = open(&mut stream, &mut input)? else {
        return Ok(());
    };
    let window_bits = deflate.map(|deflate| deflate.server_max_window_bits);
    let (mut decoder, mut inflater, mut deflater) =
        (Decoder::default(), Inflater::new(), Deflater::new(6));
    loop {
        let (mut out, mut last) = (Vec::new(), None);
        let inflater = window_bits.is_some().then_some(&mut inflater);
        let mut context = Context { role: Role::Server, limits: LIMITS, inflater };
        let consumed = decoder.feed(&mut context, &mut input, &mut |event| {
            let (opcode, payload) = match event {
                Event::Text(text) => (Opcode::Text, text.as_bytes()),
                Event::Binary(payload) => (Opcode::Binary, payload),
                Event::Ping(payload) => return encode(Opcode::Pong, false, payload, &mut out),
                Event::Pong(_) => return,
                Event::Close(close) => {
                    let code = close.map(|(code, _)| code.to_be_bytes().to_vec());
                    return last = Some(code.unwrap_or_default());
                }
            };
            match window_bits {
                Some(bits) => encode(opcode, true, deflater.compress(payload, bits), &mut out),
                None => encode(opcode, false, payload, &mut out),
            }
        });
        if let Err(error) = &consumed {
            last = Some([&error.code().to_be_bytes()[..], error.to_string().as_bytes()].concat());
        }
        if let Some(payload) = &last {
            encode(Opcode::Close, false, payload, &mut out);
        }
        stream.write_all(&out)?;
        if last.is_some() {
            return linger(stream);
        }
        input.drain(..consumed.unwrap_or(0));
        if read(&mut stream, &mut input)? == 0 {
            return Ok(());
        }
    }
}

/// The opening handshake; `None` when the connection is over. What came after the request stays in
/// `input`.
fn open(stream: &mut TcpStream, input: &mut Vec<u8>) -> io::Result<Option<Option<Deflate>>> {
    loop {
        match http::parse(input, &HTTP_LIMITS) {
            Ok(Parsed::Partial | Parsed::Head { .. }) => {}
            Ok(Parsed::Whole(request, consumed)) if request.upgrade => {
                let mut out = Vec::new();
                let Some(deflate) = reply(&request, &mut out) else {
                    return Ok(None);
                };
                stream.write_all(&out)?;
                input.drain(..consumed);
                return Ok(Some(deflate));
            }
            _ => return Ok(None),
        }
        if read(stream, input)? == 0 {
            return Ok(None);
        }
    }
}

fn reply(request: &HttpRequest<'_>, out: &mut Vec<u8>) -> Option<Option<Deflate>> {
    let accept = handshake::accept(request.header("sec-websocket-key")?)?;
    let deflate = handshake::negotiate(request.values("sec-websocket-extensions"));
    handshake::response(&accept, None, deflate.as_ref(), out);
    Some(deflate)
}

fn read(stream: &mut TcpStream, input: &mut Vec<u8>) -> io::Result<usize> {
    let mut piece = [0; 64 << 10];
    let length = stream.read(&mut piece)?;
    input.extend_from_slice(&piece[..length]);
    Ok(length)
}

/// Waits for the peer to be done: closing a socket with input left unread resets the connection,
/// and the peer may lose the close frame.
fn linger(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown(std::net::Shutdown::Write)?;
    while stream.read(&mut [0; 4 << 10])? > 0 {}
    Ok(())
}
