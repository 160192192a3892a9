//! Which address a connection comes from, and which ports servers may use.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, bail};

/// Connections from one source address to one server port. The kernel's range has 28,232 ports
/// (32768 to 60999), and its search for a free one grows long as the range fills: half is plenty.
pub const CONNECTIONS_PER_SOURCE_MAX: usize = 14_000;

/// Connections to one server port that there are source addresses for.
pub const CONNECTIONS_MAX: usize = CONNECTIONS_PER_SOURCE_MAX * 254;

/// Source address of the connection with this number: 127.0.1.1 and up.
///
/// # Panics
/// From [`CONNECTIONS_MAX`] on.
pub fn source_address(number: usize) -> Ipv4Addr {
    let host = number / CONNECTIONS_PER_SOURCE_MAX + 1;
    let host = u8::try_from(host)
        .ok()
        .filter(|host| *host < 255)
        .expect("a connection number below CONNECTIONS_MAX");
    Ipv4Addr::new(127, 0, 1, host)
}

/// Leaves the choice of the source port to `connect`, which knows the destination and so may use
/// a port again that is taken only towards another one (`IP_BIND_ADDRESS_NO_PORT`, ip(7)).
///
/// # Errors
/// What setsockopt(2) says.
pub fn bind_address_without_port(socket: impl AsFd) -> std::io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open while borrowed; the kernel reads one int from `on`, whose
    // size is given, and keeps no pointer.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// A loopback address with a port that nobody listens on, below the range that connections take
/// theirs from: a port of that range could be gone to one of our own clients before the server
/// binds it.
///
/// # Errors
/// If all ports tried are taken.
pub fn free_server_address() -> Result<SocketAddrV4> {
    const PORTS: std::ops::Range<u16> = 20_000..32_000;
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Two bench processes begin at different places, and one never gives a port twice.
    let begin = std::process::id() as u16 % PORTS.len() as u16;
    for _ in 0..100 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + (begin.wrapping_add(step)) % PORTS.len() as u16;
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        match TcpListener::bind(address) {
            Ok(_) => return Ok(address),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error).context("binding a loopback port"),
        }
    }
    bail!("no free port for a server among 100 tried")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn no_source_has_more_than_its_share() {
        let mut per_source = HashMap::<_, usize>::new();
        for number in 0..100_000 {
            *per_source.entry(source_address(number)).or_default() += 1;
        }
        assert_eq!(per_source.len(), 8);
        assert!(per_source.values().all(|n| *n <= CONNECTIONS_PER_SOURCE_MAX));
        assert!(per_source.keys().all(|source| source.octets()[..3] == [127, 0, 1]));
    }

    #[test]
    fn last_number_has_a_source() {
        assert_eq!(source_address(CONNECTIONS_MAX - 1), Ipv4Addr::new(127, 0, 1, 254));
    }

    #[test]
    #[should_panic(expected = "below CONNECTIONS_MAX")]
    fn numbers_without_a_source_are_refused() {
        source_address(CONNECTIONS_MAX);
    }

    #[test]
    fn server_ports_differ_and_lie_below_the_clients() {
        let a = free_server_address().expect("a port");
        let b = free_server_address().expect("a port");
        assert_ne!(a, b);
        assert!(a.port() < 32_768);
    }

    #[test]
    fn a_socket_takes_the_option() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        bind_address_without_port(&listener).expect("the option");
    }
}
