//! Invalid frames, compression bombs, and endless fragments.

use std::io::{Read, Write};

use super::*;

const TEXT: u8 = 0x81;
const PING: u8 = 0x89;
const MASKED: u8 = 0x80;

/// Returns a client's frame with its length in the shortest form and a mask of zeros.
pub(super) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        length @ 0..126 => out.push(MASKED | length as u8),
        length @ 126..65_536 => {
            out.push(MASKED | 126);
            out.extend((length as u16).to_be_bytes());
        }
        length => {
            out.push(MASKED | 127);
            out.extend((length as u64).to_be_bytes());
        }
    }
    out.extend([0; 4]);
    out.extend(payload);
    out
}

/// Opens a WebSocket by hand; the next byte is the welcome's first.
fn open(server: &Server, target: &str, headers: &str) -> Stream {
    let mut stream = Stream::new(server.connect());
    stream.send(&upgrade(target, headers));
    let head = stream.head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream
}

/// Reads the server's next frame, but for pings, which come at their own time. Returns its first byte and payload.
fn next(stream: &mut Stream) -> (u8, Vec<u8>) {
    loop {
        let mut head = [0; 2];
        stream.reader.read_exact(&mut head).unwrap();
        let length = match head[1] {
            127 => panic!("so long a frame was not asked for"),
            126 => {
                let mut length = [0; 2];
                stream.reader.read_exact(&mut length).unwrap();
                u16::from_be_bytes(length).into()
            }
            length => usize::from(length),
        };
        let mut payload = vec![0; length];
        stream.reader.read_exact(&mut payload).unwrap();
        if head[0] != PING {
            return (head[0], payload);
        }
    }
}

/// Sends bytes after the welcome, in pieces. Returns the code with which the server closes.
fn close_code(server: &Server, headers: &str, pieces: &[&[u8]]) -> u16 {
    let mut stream = open(server, "/ws?topic=a", headers);
    next(&mut stream);
    for piece in pieces {
        // The server may have closed already.
        let _ = stream.reader.get_mut().write_all(piece);
    }
    loop {
        let (first, payload) = next(&mut stream);
        if first == 0x88 {
            return u16::from_be_bytes([payload[0], payload[1]]);
        }
    }
}

#[test]
fn an_invalid_frame_closes_its_own_connection_only() {
    let server = Server::start();
    let mut witness = Witness::new(&server);
    let long_ping = frame(PING, &[0; 126]);
    let whole = frame(TEXT, b"{}");
    let begun = frame(0x01, b"{");
    let cases: [(&str, &[&[u8]], u16); 20] = [
        ("not masked", &[&[TEXT, 2, b'{', b'}']], 1002),
        ("not masked, and cut", &[&[TEXT, 2]], 1002),
        ("RSV1 without an extension", &[&[0xc1, MASKED, 0, 0, 0, 0]], 1002),
        ("RSV2", &[&[0xa1, MASKED, 0, 0, 0, 0]], 1002),
        ("RSV3", &[&[0x91, MASKED, 0, 0, 0, 0]], 1002),
        ("a reserved opcode", &[&[0x83, MASKED, 0, 0, 0, 0]], 1002),
        ("a reserved control opcode", &[&[0x8b, MASKED, 0, 0, 0, 0]], 1002),
        ("a ping in fragments", &[&[0x09, MASKED, 0, 0, 0, 0]], 1002),
        ("a ping that is too long", &[&long_ping], 1002),
        ("a continuation of nothing", &[&[0x80, MASKED, 0, 0, 0, 0]], 1002),
        ("a message in a message", &[&begun, &whole], 1002),
        ("two bytes of length for five", &[&[TEXT, MASKED | 126, 0, 5, 0, 0, 0, 0]], 1002),
        ("eight bytes of length for five", &[&[TEXT, MASKED | 127, 0, 0, 0, 0, 0, 0, 0, 5]], 1002),
        (
            "a negative length",
            &[&[TEXT, MASKED | 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]],
            1002,
        ),
        ("an exabyte", &[&[TEXT, MASKED | 127, 0x0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]], 1009),
        ("4 GiB", &[&[0x82, MASKED | 127, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]], 1009),
        ("a close of one byte", &[&[0x88, MASKED | 1, 0, 0, 0, 0, 3]], 1002),
        ("a close that may not be sent", &[&[0x88, MASKED | 2, 0, 0, 0, 0, 3, 0xed]], 1002),
        ("half a character", &[&frame(TEXT, b"\"\xf0\x9f\x98")], 1007),
        (
            "a surrogate, as soon as it is one",
            &[&[TEXT, MASKED | 100, 0, 0, 0, 0, 0xed, 0xa0, 0x80]],
            1007,
        ),
    ];
    for (what, pieces, code) in cases {
        assert_eq!(close_code(&server, "", pieces), code, "{what}");
        // The same, a byte at a time.
        let bytes = pieces.concat();
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(close_code(&server, "", &single), code, "{what}, byte by byte");
    }
    witness.assert_receives(&server);
}

#[test]
fn fragments_cost_no_more_than_their_message() {
    let server = Server::start();
    let mut witness = Witness::new(&server);
    let mut stream = open(&server, "/ws", "");
    next(&mut stream);
    // Ten thousand empty fragments, with pings in between, are one message.
    let mut bytes = frame(0x01, b"{\"type\":");
    let mut pongs = 0;
    for n in 0..10_000 {
        bytes.extend(frame(0x00, b""));
        if n % 1_000 == 0 {
            bytes.extend(frame(PING, b"between"));
            pongs += 1;
        }
    }
    bytes.extend(frame(0x80, b"\"ping\",\"id\":7}"));
    stream.reader.get_mut().write_all(&bytes).unwrap();
    for _ in 0..pongs {
        assert_eq!(next(&mut stream), (0x8a, b"between".to_vec()));
    }
    let (first, response) = next(&mut stream);
    assert_eq!((first, &response[..]), (TEXT, &br#"{"type":"reply","id":7,"ok":{}}"#[..]));
    // A character may be split over three frames.
    for piece in [
        frame(0x01, b"{\"type\":\"ping\",\"id\":\"\xe2"),
        frame(0x00, b"\x82"),
        frame(0x80, b"\xac\"}"),
    ] {
        stream.reader.get_mut().write_all(&piece).unwrap();
    }
    assert!(String::from_utf8(next(&mut stream).1).unwrap().contains("\"id\":\"€\""));
    // The limit applies to the whole message and not to each fragment.
    let piece = frame(0x00, &[b' '; 40_000]);
    assert_eq!(
        close_code(&server, "", &[&frame(0x01, b" "), &piece, &piece, &piece, &piece]),
        1009
    );
    witness.assert_receives(&server);
}

/// Returns `zeros` zero bytes, compressed as in permessage-deflate.
pub(super) fn bomb(zeros: usize) -> Vec<u8> {
    let mut deflate = flate2::Compress::new(flate2::Compression::best(), false);
    let mut packed = Vec::with_capacity(zeros / 500 + 1024);
    let input = vec![b' '; zeros];
    deflate.compress_vec(&input, &mut packed, flate2::FlushCompress::Sync).unwrap();
    assert_eq!(deflate.total_in(), zeros as u64);
    packed.truncate(packed.len() - 4);
    packed
}

#[test]
fn a_deflate_bomb_is_rejected_at_the_limit() {
    let server = Server::start();
    let mut witness = Witness::new(&server);
    let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    let bomb = bomb(32 << 20);
    assert!(bomb.len() < 100 << 10, "{}", bomb.len());
    let before = server.metric("throng_process_anonymous_memory_bytes");
    for _ in 0..10 {
        assert_eq!(close_code(&server, offer, &[&frame(0xc1, &bomb)]), 1009);
        // The same in fragments, where the first one has the bit for compression.
        let (first, rest) = bomb.split_at(7);
        assert_eq!(close_code(&server, offer, &[&frame(0x41, first), &frame(0x80, rest)]), 1009);
    }
    let grown = server.metric("throng_process_anonymous_memory_bytes") - before;
    assert!(grown < f64::from(24 << 20), "{grown} bytes");
    for (what, payload) in [
        ("noise", &[0xff; 50][..]),
        ("a stored block that is cut", &[0x00, 0x05, 0x00, 0xfa, 0xff, b'a']),
        ("a reference to before the beginning", &[0x4b, 0x84, 0x83, 0x11]),
    ] {
        let code = close_code(&server, offer, &[&frame(0xc1, payload)]);
        assert!(matches!(code, 1007 | 1002), "{what}: {code}");
    }
    // Continuations and pings must not have the bit for compression.
    for again in [frame(0xc0, b""), frame(0xc9, b"")] {
        assert_eq!(close_code(&server, offer, &[&frame(0x41, b"\0"), &again]), 1002);
    }
    witness.assert_receives(&server);
}
