//! MQTT sessions that outlive their connections and the server, what they may have, and the topics that all transports
//! share.

mod kept;
mod kill;
mod limits;
mod transports;

use std::process::Command;

use crate::support::*;

/// A server with MQTT. Its client port takes MQTT as well.
fn serve(settings: &[(&str, &str)]) -> Server {
    let quiet = [("THRONG_LOG_LEVEL", "error")];
    Server::with(&["--mqtt", "127.0.0.1:0", "--shards", "2"], &[&quiet, settings].concat())
}

/// A folder for servers with a store, one after the other.
struct Folder(Scratch);

impl Folder {
    fn new() -> Self {
        Folder(Scratch::new("mqtt-sessions"))
    }

    fn serve(&self, settings: &[(&str, &str)]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--mqtt", "127.0.0.1:0", "--shards", "2", "--max-connections", "1000"]);
        command.arg("--data").arg(self.0.path()).env("THRONG_LOG_LEVEL", "error");
        Server::run(command, &[&[("THRONG_TIMEOUTS_DRAIN_SECONDS", "0")], settings].concat())
    }
}
