//! MQTT sessions that outlive their connections and the server, their limits, and the topics that all transports
//! share.

mod kill;
mod limits;
mod persistent;
mod strict;
mod transports;

use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::support::*;
use model::{Data, Epoch, Message, Position, Publication};

/// Starts a server with MQTT, at the client port as well.
fn serve(settings: &[(&str, &str)]) -> Server {
    let quiet = [("THRONG_LOG_LEVEL", "error")];
    Server::with(&["--mqtt", "127.0.0.1:0", "--shards", "2"], &[&quiet, settings].concat())
}

/// A data folder for servers that run one after the other.
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

    /// Writes a retained message into the folder while no server uses it.
    fn retain(&self, topic: &str) {
        let record: Arc<Mutex<Option<Vec<u8>>>> = Arc::default();
        let written = record.clone();
        let write = move |_: &str, value, _| *written.lock().unwrap() = value;
        let publication =
            Publication { retain: true, ..Publication::new(topic, Data::Text("x".into())) };
        let id = Position { epoch: Epoch(1), offset: 1 };
        let message = Message::new(publication, id, 0, 0);
        sessions::LocalRetained::new(Some(Box::new(write))).retain(&Arc::new(message.into()));
        let record = record.lock().unwrap().take().unwrap();
        let options = store::Options {
            dir: self.0.path().into(),
            new_epoch: 1,
            queue_messages_max: 10,
            queue_bytes_max: 1 << 20,
            cache_bytes_max: 1 << 20,
            verify_bytes_max: 0,
            idempotency_seconds_max: 1,
        };
        let (store, ..) = store::Store::open(options).unwrap();
        let puts = vec![(topic.into(), Some(record.into()))];
        store.put_records(sessions::RETAINED, puts, Box::new(|_| ())).unwrap();
        store.close().unwrap();
    }
}
