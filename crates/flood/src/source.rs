//! Source addresses of connections, and ports for servers.

#![expect(unsafe_code, reason = "setsockopt(2) for IP_BIND_ADDRESS_NO_PORT")]

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, bail, ensure};

/// Connections from one source address. The kernel's default range has 28,232 ports (32768 to 60999)
/// towards one server port. Its search for a free one grows long as the range fills, so this uses
/// about half of them.
pub const CONNECTIONS_PER_SOURCE_MAX: usize = 14_000;

/// How many connections the loopback source addresses from 127.0.1.1 on allow.
pub const CONNECTIONS_MAX: usize = CONNECTIONS_PER_SOURCE_MAX * 254 * 254;

/// The addresses that a crowd connects from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    /// The kernel chooses the address.
    Any,
    /// These addresses in turn, [`CONNECTIONS_PER_SOURCE_MAX`] connections each, then again from the
    /// first.
    List(Vec<Ipv4Addr>),
    /// The addresses of a block in turn, as many as the crowd needs.
    Block {
        /// The first address to use.
        first: Ipv4Addr,
        /// The number of addresses.
        count: u32,
    },
}

impl Sources {
    /// Parses the value of `--source`: a block like `127.0.1.0/24`, or addresses separated by commas.
    ///
    /// # Errors
    /// If it is neither.
    pub fn parse(text: &str) -> Result<Self> {
        let address = |text: &str| {
            text.trim().parse::<Ipv4Addr>().with_context(|| {
                format!(
                    "--source {text}: write a block like 127.0.1.0/24, or addresses with commas"
                )
            })
        };
        let Some((base, bits)) = text.split_once('/') else {
            return Ok(Self::List(text.split(',').map(address).collect::<Result<_>>()?));
        };
        let bits: u32 =
            bits.parse().with_context(|| format!("--source {text}: no number of bits after /"))?;
        ensure!((8..=32).contains(&bits), "--source {text}: a block must have 8 to 32 bits");
        let size = 1u32 << (32 - bits);
        let base = u32::from(address(base)?) & !(size - 1);
        // The first and last address of a block are not for hosts.
        let (first, count) = if size > 2 { (base + 1, size - 2) } else { (base, size) };
        Ok(Self::Block { first: first.into(), count })
    }

    /// Returns the default for a server at this address: a large loopback block for a server on
    /// loopback, otherwise the kernel's choice.
    pub fn for_server(server: IpAddr) -> Self {
        match server {
            IpAddr::V4(address) if address.is_loopback() => {
                Self::Block { first: Ipv4Addr::new(127, 0, 1, 1), count: 254 * 256 }
            }
            _ => Self::Any,
        }
    }

    /// Returns the source address of the connection with this index; `None` if the kernel chooses it.
    pub fn address(&self, index: usize) -> Option<Ipv4Addr> {
        let at = index / CONNECTIONS_PER_SOURCE_MAX;
        match self {
            Self::Any => None,
            Self::List(list) => list.get(at % list.len().max(1)).copied(),
            Self::Block { first, count } => {
                Some(Ipv4Addr::from(u32::from(*first) + (at as u32 % count)))
            }
        }
    }
}

/// Returns the loopback source address of the connection with this number: 127.0.1.1 and up.
pub fn source_address(number: usize) -> Ipv4Addr {
    let loopback = Sources::for_server(IpAddr::V4(Ipv4Addr::LOCALHOST));
    loopback.address(number).unwrap_or(Ipv4Addr::LOCALHOST)
}

/// Leaves the choice of the source port to `connect`. It knows the destination, so it can reuse a
/// port that is in use towards another destination (`IP_BIND_ADDRESS_NO_PORT`, ip(7)).
///
/// # Errors
/// The error of setsockopt(2).
pub fn bind_address_without_port(socket: impl AsFd) -> std::io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open while borrowed; the kernel reads one int from `on`, whose
    // size is given, and retains no pointer.
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

/// Returns a loopback address with a port that no process listens on. The port is below the range
/// of source ports: a client of this process could take a port of that range before the server
/// binds it.
///
/// # Errors
/// If all ports that it tries are in use.
pub fn free_server_address() -> Result<SocketAddrV4> {
    const PORTS: std::ops::Range<u16> = 20_000..32_000;
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes with neighbouring ids begin some ports apart, and one process returns all ports before it
    // returns one again.
    let begin = (std::process::id().wrapping_mul(13) % PORTS.len() as u32) as u16;
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
    fn no_source_address_has_too_many_connections() {
        let mut per_source = HashMap::<_, usize>::new();
        for number in 0..100_000 {
            *per_source.entry(source_address(number)).or_default() += 1;
        }
        assert_eq!(per_source.len(), 8);
        assert!(per_source.values().all(|n| *n <= CONNECTIONS_PER_SOURCE_MAX));
        assert!(per_source.keys().all(|source| source.octets()[..3] == [127, 0, 1]));
    }

    #[test]
    fn sources_are_parsed() {
        let block = Sources::parse("127.0.1.7/24").unwrap();
        assert_eq!(block, Sources::Block { first: Ipv4Addr::new(127, 0, 1, 1), count: 254 });
        assert_eq!(block.address(CONNECTIONS_PER_SOURCE_MAX), Some(Ipv4Addr::new(127, 0, 1, 2)));
        assert_eq!(block.address(254 * CONNECTIONS_PER_SOURCE_MAX), block.address(0));
        let list = Sources::parse("10.0.0.1, 10.0.0.2").unwrap();
        assert_eq!(list.address(CONNECTIONS_PER_SOURCE_MAX), Some(Ipv4Addr::new(10, 0, 0, 2)));
        assert_eq!(
            Sources::parse("10.0.0.1/32").unwrap().address(99),
            Some(Ipv4Addr::new(10, 0, 0, 1))
        );
        assert_eq!(Sources::for_server("10.0.0.1".parse().unwrap()).address(0), None);
        for invalid in ["", "x", "127.0.0.0/33", "127.0.0.0/y", "::1"] {
            assert!(Sources::parse(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn server_ports_differ_and_are_below_the_source_ports() {
        let a = free_server_address().expect("a port");
        let b = free_server_address().expect("a port");
        assert_ne!(a, b);
        assert!(a.port() < 32_768);
    }

    #[test]
    fn the_kernel_accepts_the_socket_option() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        bind_address_without_port(&listener).expect("the option");
    }
}
