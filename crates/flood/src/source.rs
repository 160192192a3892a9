//! Which address a connection comes from, and which ports servers may use.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, bail, ensure};

/// Connections from one source address. The kernel's usual range has 28,232 ports (32768 to 60999)
/// towards one server port, and its search for a free one grows long as the range fills: half is
/// plenty.
pub const CONNECTIONS_PER_SOURCE_MAX: usize = 14_000;

/// Connections that there are loopback sources for, from 127.0.1.1 on.
pub const CONNECTIONS_MAX: usize = CONNECTIONS_PER_SOURCE_MAX * 254 * 254;

/// The addresses that a crowd comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    /// The kernel chooses.
    Any,
    /// These in turn, [`CONNECTIONS_PER_SOURCE_MAX`] connections each, and round again.
    List(Vec<Ipv4Addr>),
    /// As many of a block of addresses as it takes, from its first host on.
    Block {
        /// The first address that is used.
        first: Ipv4Addr,
        /// How many there are.
        count: u32,
    },
}

impl Sources {
    /// What `--source` says: a block like `127.0.1.0/24`, or addresses with commas between.
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
            bits.parse().with_context(|| format!("--source {text}: no number of bits"))?;
        ensure!((8..=32).contains(&bits), "--source {text}: a block has 8 to 32 bits");
        let size = 1u32 << (32 - bits);
        let base = u32::from(address(base)?) & !(size - 1);
        // The first and last address of a block are no hosts.
        let (first, count) = if size > 2 { (base + 1, size - 2) } else { (base, size) };
        Ok(Self::Block { first: first.into(), count })
    }

    /// What is right for a server at this address: the whole loopback net for one on it.
    pub fn for_server(server: IpAddr) -> Self {
        match server {
            IpAddr::V4(address) if address.is_loopback() => {
                Self::Block { first: Ipv4Addr::new(127, 0, 1, 1), count: 254 * 256 }
            }
            _ => Self::Any,
        }
    }

    /// The address of the connection with this index; none where the kernel chooses.
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

/// Source address of the connection with this number: 127.0.1.1 and up.
pub fn source_address(number: usize) -> Ipv4Addr {
    let loopback = Sources::for_server(IpAddr::V4(Ipv4Addr::LOCALHOST));
    loopback.address(number).unwrap_or(Ipv4Addr::LOCALHOST)
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
    // Two processes begin at different places, and one never gives a port twice.
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
    fn sources_are_read() {
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
        for wrong in ["", "x", "127.0.0.0/33", "127.0.0.0/y", "::1"] {
            assert!(Sources::parse(wrong).is_err(), "{wrong}");
        }
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
