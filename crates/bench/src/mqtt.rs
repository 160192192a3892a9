//! The parts of MQTT 3.1.1 that the bench needs: a publisher, and other brokers for comparison with Throng.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use flood::source::free_server_address;
use rustix::process::{Resource, getrlimit};

use crate::process::ServerProcess;

/// How long a broker may take until it is ready, or for a response.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Descriptors that a broker needs beside those of its clients.
const DESCRIPTORS_SLACK: u64 = 100;

/// A client that publishes.
#[derive(Debug)]
pub struct Publisher {
    socket: TcpStream,
    id: u16,
}

impl Publisher {
    /// Connects, with a clean session.
    ///
    /// # Errors
    /// If the broker can't be reached, or responds without success.
    pub fn connect(broker: SocketAddrV4) -> Result<Self> {
        let mut socket = TcpStream::connect(broker).context("connecting to the broker")?;
        socket.set_nodelay(true).context("the publisher's socket")?;
        socket.set_read_timeout(Some(TIMEOUT)).context("the publisher's socket")?;
        socket.write_all(b"\x10\x0f\0\x04MQTT\x04\x02\0\0\0\x03pub").context("CONNECT")?;
        let mut reply = [0; 4];
        socket.read_exact(&mut reply).context("CONNACK")?;
        ensure!(reply == [0x20, 2, 0, 0], "the broker answered CONNECT with {reply:?}");
        Ok(Self { socket, id: 0 })
    }

    /// Publishes with QoS 1, and waits for PUBACK.
    ///
    /// # Errors
    /// If the connection ends, or another packet comes.
    pub fn publish(&mut self, topic: &str, payload: &str) -> Result<()> {
        self.id = self.id.checked_add(1).unwrap_or(1);
        let [high, low] = self.id.to_be_bytes();
        let mut rest = vec![0, u8::try_from(topic.len()).context("a short topic")?];
        rest.extend_from_slice(topic.as_bytes());
        rest.extend_from_slice(&[high, low]);
        rest.extend_from_slice(payload.as_bytes());
        let mut packet = vec![0x32];
        let mut length = rest.len();
        while length > 0x7f {
            packet.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        packet.push(length as u8);
        packet.extend_from_slice(&rest);
        self.socket.write_all(&packet).context("PUBLISH")?;
        let mut reply = [0; 4];
        self.socket.read_exact(&mut reply).context("PUBACK")?;
        ensure!(reply == [0x40, 2, high, low], "the broker answered PUBLISH with {reply:?}");
        Ok(())
    }
}

/// Another broker, as a child process.
#[derive(Debug)]
pub struct Broker {
    /// Its process.
    pub process: ServerProcess,
    /// The address for clients.
    pub clients: SocketAddrV4,
}

impl Broker {
    /// Checks that the limit on open files allows this many clients: other brokers have one limit for all of them.
    ///
    /// # Errors
    /// If it does not.
    pub fn check_descriptors(connections: usize) -> Result<()> {
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let needed = connections as u64 + DESCRIPTORS_SLACK;
        ensure!(needed <= most, "{needed} open files are needed, and the limit is {most}");
        Ok(())
    }

    /// Starts Mosquitto (Debian's package `mosquitto`).
    ///
    /// # Errors
    /// If it is not installed, or not ready in time.
    pub fn mosquitto() -> Result<Self> {
        let clients = free_server_address()?;
        let folder = std::env::temp_dir().join(format!("throng-bench-{}", clients.port()));
        std::fs::create_dir_all(&folder).context("a folder for Mosquitto")?;
        let file = folder.join("mosquitto.conf");
        let (ip, port) = (clients.ip(), clients.port());
        // As root, Mosquitto would switch to another user, which can't read the file.
        let config = format!(
            "listener {port} {ip}\nallow_anonymous true\nuser root\nlog_type none\n\
             set_tcp_nodelay true\nmax_queued_messages 0\n"
        );
        std::fs::write(&file, config).context("Mosquitto's configuration")?;
        let found = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"];
        let binary = found.iter().map(Path::new).find(|path| path.is_file());
        let binary = binary.context("no mosquitto: install Debian's package mosquitto")?;
        let mut command = Command::new(binary);
        command.arg("-c").arg(&file);
        let broker = Self::start(command, clients);
        // Mosquitto has read the file by now, or never will.
        let _ = std::fs::remove_dir_all(folder);
        broker
    }

    /// Builds and starts Mochi (mochi-mqtt, from the Go module proxy).
    ///
    /// # Errors
    /// If no Go compiler is installed, or Mochi can't be built, or is not ready in time.
    pub fn mochi() -> Result<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("mochi");
        let binary = std::env::temp_dir().join("throng-bench-mochi");
        let go = [PathBuf::from("/usr/local/go/bin/go"), PathBuf::from("/usr/bin/go")];
        let go = go.iter().find(|path| path.is_file()).context("no Go compiler")?;
        let mut build = Command::new(go);
        build.args(["build", "-o"]).arg(&binary).arg(".").current_dir(source);
        ensure!(build.status().context("go build")?.success(), "Mochi could not be built");
        let clients = free_server_address()?;
        let mut command = Command::new(binary);
        command.arg(clients.to_string());
        Self::start(command, clients)
    }

    fn start(mut command: Command, clients: SocketAddrV4) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = ServerProcess::start(command)?;
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            if let Some(status) = process.ended()? {
                bail!("the broker ended at its start: {status}");
            }
            if Publisher::connect(clients).is_ok() {
                return Ok(Self { process, clients });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the broker was not ready within {TIMEOUT:?}")
    }
}
