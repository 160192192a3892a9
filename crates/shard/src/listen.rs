//! The listeners, one for each shard on each port, and the program by which the kernel chooses among the listeners of a
//! port.
//!
//! SO_REUSEPORT alone spreads connections by a hash and knows nothing of a shard's capacity. A classic BPF program
//! attached to the group chooses at random among the shards that are open: a shard without capacity, or with more than
//! its share, leaves the choice. Its listener stays open and it accepts what is in its queue, so that no connection is
//! lost.

#![expect(unsafe_code, reason = "setsockopt(2) for a BPF program")]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::settings::{Options, Port};
use engine::Metrics;

/// The listeners of one port, one for each shard.
pub(crate) struct Group {
    pub port: Port,
    /// With the real port where the setting is 0.
    pub address: SocketAddr,
    pub sockets: Vec<OwnedFd>,
}

/// A listener of a shard.
pub(crate) struct Listening {
    pub port: Port,
    pub socket: OwnedFd,
}

/// Makes one listener for each shard. Accepted connections inherit the options, so that no connection
/// costs a system call for them.
pub(crate) fn group(
    options: &Options,
    (port, mut address): (Port, SocketAddr),
    shards: usize,
) -> io::Result<Group> {
    claim(&address)?;
    let mut sockets = Vec::with_capacity(shards);
    for _ in 0..shards {
        let socket = bound(options, &address)?;
        listen(&socket, options.backlog)?;
        // For port 0 the kernel chooses one for the first; the others share it.
        if let Ok(bound) = SocketAddr::try_from(rustix::net::getsockname(&socket)?) {
            address = bound;
        }
        sockets.push(socket);
    }
    Ok(Group { port, address, sockets })
}

/// Adds listeners to a group that another process has begun, for so many shards in all. The new ones are bound, and
/// don't listen yet.
pub(crate) fn more(mut group: Group, options: &Options, shards: usize) -> io::Result<Group> {
    while group.sockets.len() < shards {
        group.sockets.push(bound(options, &group.address)?);
    }
    Ok(group)
}

/// Lets the kernel accept connections.
pub(crate) fn listen(socket: impl AsFd, backlog: u32) -> io::Result<()> {
    Ok(rustix::net::listen(socket, backlog.min(i32::MAX as u32) as i32)?)
}

/// Fails if the port is in use. With SO_REUSEPORT alone, a second server of the same user could bind it and would get
/// half of the first server's connections.
fn claim(address: &SocketAddr) -> io::Result<()> {
    let socket = socket(address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(rustix::net::bind(&socket, address)?)
}

fn socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

/// A socket that is bound and doesn't listen yet.
fn bound(options: &Options, address: &SocketAddr) -> io::Result<OwnedFd> {
    let socket = socket(address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if options.tcp_keepalive_seconds > 0 {
        let seconds = u64::from(options.tcp_keepalive_seconds);
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, std::time::Duration::from_secs(seconds))?;
        sockopt::set_tcp_keepintvl(&socket, std::time::Duration::from_secs(seconds.div_ceil(3)))?;
        sockopt::set_tcp_keepcnt(&socket, 4)?;
    }
    if options.tcp_user_timeout_seconds > 0 {
        sockopt::set_tcp_user_timeout(&socket, options.tcp_user_timeout_seconds * 1_000)?;
    }
    if options.send_buffer_bytes > 0 {
        sockopt::set_socket_send_buffer_size(&socket, options.send_buffer_bytes)?;
    }
    rustix::net::bind(&socket, address)?;
    Ok(socket)
}

/// The shards that get new connections, the same at every port.
pub(crate) struct Balance {
    shards: Vec<Arc<Metrics>>,
    /// A shard with so many connections leaves the choice. The rest of its capacity is for its listen queues.
    high_water: u64,
    open: Mutex<Vec<bool>>,
}

impl Balance {
    pub fn new(shards: Vec<Arc<Metrics>>, high_water: u64) -> Self {
        let open = Mutex::new(vec![true; shards.len()]);
        Balance { shards, high_water, open }
    }

    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    pub fn high_water(&self) -> u64 {
        self.high_water
    }

    /// Checks all shards and gives the kernel the new choice if it has changed: for each port, through any listener
    /// of its group. If the kernel rejects the program, connections stay spread by hash.
    pub fn adjust(&self, listeners: &[Listening]) {
        let counts: Vec<u64> =
            self.shards.iter().map(|metrics| metrics.open_connections.get()).collect();
        let chosen = choice(&counts, self.high_water);
        let mut open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *open != chosen {
            let program = program(&chosen);
            match listeners.iter().try_for_each(|it| attach(&it.socket, &program)) {
                Ok(()) => *open = chosen,
                Err(error) => tracing::debug!(
                    %error,
                    "the kernel rejected the program that spreads connections over shards"
                ),
            }
        }
    }
}

/// Chooses the shards with capacity and at most 3 % over the mean; else those with capacity; else all.
fn choice(counts: &[u64], high_water: u64) -> Vec<bool> {
    let mean = counts.iter().sum::<u64>() / counts.len().max(1) as u64;
    let fair = mean + mean * 3 / 100 + 32;
    let choose = |limit: u64| -> Vec<bool> { counts.iter().map(|count| *count < limit).collect() };
    for open in [choose(high_water.min(fair)), choose(high_water)] {
        if open.contains(&true) {
            return open;
        }
    }
    vec![true; counts.len()]
}

/// `A = random % open; return the open shard at A`.
fn program(open: &[bool]) -> Vec<libc::sock_filter> {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let indexes: Vec<u32> = (0..open.len() as u32).filter(|at| open[*at as usize]).collect();
    let random = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
    let mut program = vec![
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, random),
        op(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, 0, 0, indexes.len() as u32),
    ];
    for (at, index) in indexes.iter().enumerate() {
        program.push(op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, at as u32));
        program.push(op(libc::BPF_RET | libc::BPF_K, 0, 0, *index));
    }
    // Not reached; a program must end with a return. An index that doesn't exist means: by hash.
    program.push(op(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX));
    program
}

fn attach(listener: impl AsFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let filter =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which lives until the call returns, and doesn't
    // write to it; the length is that of the structure.
    let result = unsafe {
        libc::setsockopt(
            listener.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use engine::Listener;

    use super::*;

    #[test]
    fn full_and_heavy_shards_leave_the_choice() {
        assert_eq!(choice(&[0, 0, 0], 1000), [true, true, true]);
        assert_eq!(choice(&[1000, 1010, 2000], 5000), [true, true, false]);
        assert_eq!(choice(&[1000, 10, 1000], 1000), [false, true, false]);
        assert_eq!(choice(&[1000, 1000, 999], 1000), [false, false, true]);
        assert_eq!(choice(&[1000, 1000], 1000), [true, true]);
    }

    fn options() -> Options {
        Options {
            listen: Vec::new(),
            shards: 0,
            pin_cpus: false,
            sender: crate::settings::SenderKind::Auto,
            backlog: 16,
            send_buffer_bytes: 0,
            tcp_keepalive_seconds: 60,
            tcp_user_timeout_seconds: 30,
            mailbox_messages_max: 1,
            compression_level: 1,
            compression_bytes_min: 1,
        }
    }

    #[test]
    fn the_kernel_takes_the_program() {
        let address = ([127, 0, 0, 1], 0).into();
        // One of several groups of the same process.
        let (client, mqtt) = (Port::plain(Listener::Client), Port::plain(Listener::Mqtt));
        let other = group(&options(), (client, address), 3).unwrap();
        let Group { address, sockets, .. } = group(&options(), (mqtt, address), 3).unwrap();
        assert_ne!(address, other.address);
        attach(&sockets[2], &program(&[false, true, false])).unwrap();
        attach(&other.sockets[1], &program(&[false, false, true])).unwrap();
        for _ in 0..10 {
            let _client = std::net::TcpStream::connect(address).unwrap();
            assert!(rustix::net::accept(&sockets[1]).is_ok());
            assert!(rustix::net::accept(&sockets[0]).is_err());
            let _client = std::net::TcpStream::connect(other.address).unwrap();
            assert!(rustix::net::accept(&other.sockets[2]).is_ok());
        }
        let taken = group(&options(), (client, address), 1);
        assert_eq!(taken.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
    }

    #[test]
    fn a_shard_leaves_the_choice_at_every_port() {
        let ports = Listener::ALL.map(Port::plain);
        let groups =
            ports.map(|port| group(&options(), (port, ([127, 0, 0, 1], 0).into()), 3).unwrap());
        let addresses = groups.each_ref().map(|group| group.address);
        let mut shards: [Vec<Listening>; 3] = Default::default();
        for Group { port, sockets, .. } in groups {
            for (shard, socket) in shards.iter_mut().zip(sockets) {
                shard.push(Listening { port, socket });
            }
        }
        let metrics: Vec<Arc<Metrics>> = (0..3).map(|_| Arc::default()).collect();
        let balance = Balance::new(metrics.clone(), 100);
        for full in 0..3 {
            metrics.iter().for_each(|metrics| metrics.open_connections.set(10));
            metrics[full].open_connections.set(100);
            metrics[(full + 1) % 3].open_connections.set(101);
            balance.adjust(&shards[0]);
            for (port, address) in addresses.iter().enumerate() {
                for _ in 0..10 {
                    let _client = std::net::TcpStream::connect(address).unwrap();
                    let accepted =
                        |shard: usize| rustix::net::accept(&shards[shard][port].socket).is_ok();
                    assert!(accepted((full + 2) % 3), "{full} {port}");
                }
            }
        }
    }
}
