//! MQTT sessions that outlive their connections and the server, what they may have, and the topics that all transports
//! share.

#[path = "mqtt/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "mqtt_sessions/kept.rs"]
mod kept;
#[path = "mqtt_sessions/kill.rs"]
mod kill;
#[path = "mqtt_sessions/limits.rs"]
mod limits;
mod support;
#[path = "mqtt_sessions/transports.rs"]
mod transports;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use support::*;

/// A server with MQTT. Its client port takes MQTT as well.
fn serve(settings: &[(&str, &str)]) -> Server {
    let quiet = [("THRONG_LOG_LEVEL", "error")];
    Server::with(&["--mqtt", "127.0.0.1:0", "--shards", "2"], &[&quiet, settings].concat())
}

/// A folder for servers with a store, one after the other.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("throng-mqtt-sessions-{}-{number}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    }

    fn serve(&self, settings: &[(&str, &str)]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--mqtt", "127.0.0.1:0", "--shards", "2", "--max-connections", "1000"]);
        command.arg("--data").arg(&self.0).env("THRONG_LOG_LEVEL", "error");
        Server::run(command, &[&[("THRONG_TIMEOUTS_DRAIN_SECONDS", "0")], settings].concat())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        match std::thread::panicking() {
            true => eprintln!("what was stored stays in {}", self.0.display()),
            false => drop(std::fs::remove_dir_all(&self.0)),
        }
    }
}
