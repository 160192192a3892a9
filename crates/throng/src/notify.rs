//! Notifies the service manager of the server's state: sd_notify(3), for units with `Type=notify`.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// The variable that names the manager's socket: a path, or `@` and an abstract name.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The states that the server sends to the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The server serves clients; also after a reload, whether it changed anything or not.
    Ready,
    /// The server reads its configuration again.
    Reloading,
    /// The server has begun to end.
    Stopping,
    /// From now on the process with this number is the service, and serves. Only the process that was the service so
    /// far may send this.
    MainPid(u32),
}

/// Notifies the manager, if one runs the service. A failure is logged only: the server works without the manager.
pub fn notify(state: State) {
    let Some(socket) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else { return };
    let text = match state {
        State::Ready => "READY=1".to_string(),
        // The time distinguishes this reload from the one before.
        State::Reloading => format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_us()),
        State::Stopping => "STOPPING=1".to_string(),
        State::MainPid(pid) => format!("MAINPID={pid}\nREADY=1"),
    };
    if let Err(error) = send(socket.as_bytes(), &text) {
        tracing::warn!(text, %error, "can't notify the service manager ({SOCKET})");
    }
}

fn send(name: &[u8], text: &str) -> io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(drop)
}

fn monotonic_us() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_socket_get_the_text() {
        let path = std::env::temp_dir().join(format!("throng-notify-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("throng-notify-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&abstract_name).unwrap();
        let named = format!("@{name}");
        for (name, socket) in [(path.to_str().unwrap(), by_path), (named.as_str(), by_name)] {
            send(name.as_bytes(), "READY=1").unwrap();
            socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.to_str().unwrap().as_bytes(), "READY=1").is_err());
        assert!(send(&[b'a'; 200], "READY=1").is_err());
    }
}
