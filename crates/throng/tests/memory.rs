//! Memory is freed: the server must not reject new clients because of the memory of a past crowd or burst.

use std::io::Write;
use std::net::TcpStream;

use crate::support::{Server, TIMEOUT, longpoll_session};

/// Unfinished requests, and the bytes and pieces of the body that each sends. They send pieces in
/// turn, so that their buffers interleave in memory.
const BODIES: usize = 400;
const PIECES: usize = 30;
const PIECE_BYTES: usize = 30_000;

/// The memory limit. It is far over the server's own memory, and under that of such a burst without
/// other limits.
const LIMIT: &str = "110MiB";

fn half_read(server: &Server) -> Vec<TcpStream> {
    let token = longpoll_session(server);
    let head = format!(
        "POST /socket/longpoll?vsn=2.0.0&token={token} HTTP/1.1\r\nHost: t\r\n\
         Content-Length: {}\r\n\r\n",
        PIECES * PIECE_BYTES + 1
    );
    let mut sockets: Vec<TcpStream> = (0..BODIES).map(|_| server.connect()).collect();
    let piece = vec![b'x'; PIECE_BYTES];
    for at in 0..=PIECES {
        for socket in &mut sockets {
            socket.set_write_timeout(Some(TIMEOUT)).unwrap();
            // The server may reject the rest and close.
            let _ = socket.write_all(if at == 0 { head.as_bytes() } else { &piece });
        }
    }
    sockets
}

fn welcomes(server: &Server) -> bool {
    let request = b"GET /poll?topic=a&timeout=0 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    server.exchange(request).starts_with("HTTP/1.1 200 ")
}

#[test]
fn memory_of_a_past_burst_does_not_block_new_clients() {
    // No other limit applies to unfinished input here.
    let bounds = [
        ("THRONG_LIMITS_MEMORY_BYTES_MAX", LIMIT),
        ("THRONG_LIMITS_INPUT_BYTES_MAX", "4GiB"),
        ("THRONG_TIMEOUTS_HEAD_SECONDS", "600"),
        ("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "60"),
    ];
    let server = Server::with(&[], &bounds);
    for _ in 0..2 {
        let burst = half_read(&server);
        server.until("it is full", |server| server.metric("throng_memory_full") == 1.0);
        let (status, reply) = server.api("GET", "/readyz", None);
        assert_eq!((status, &reply["error"]["code"]), (503, &"memory_full".into()));
        drop(burst);
        server.until("new connections are welcome after the burst", welcomes);
        server.until("it says so", |server| server.api("GET", "/readyz", None).0 == 200);
    }
    let crowd: Vec<_> = (0..3_000).map(|_| server.listen("/sse?topic=a")).collect();
    assert_eq!(server.publish("a", 1.into())["members"], 3_000);
    drop(crowd);
    server.until("new connections are welcome after the crowd", welcomes);
    server.until_members("a", 0);
}
