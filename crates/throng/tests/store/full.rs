//! A disk that is really full: a small file system of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::store::folder::{Caller, Folder, HistoryMessage, end};
use crate::support::{Server, TIMEOUT};

/// A file system in memory; unmounted at the end of the test.
pub struct Mount {
    pub path: PathBuf,
}

impl Mount {
    /// Mounts it. Returns `None` and prints a line if this is not permitted.
    pub fn new(path: &Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path);
        match mount.output() {
            Ok(output) if output.status.success() => Some(Mount { path: path.into() }),
            Ok(output) => {
                println!("SKIPPED: no mount: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                println!("SKIPPED: no mount: {error}");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

const TOPICS: &str = r#"
[client]
publish_prefixes = [""]
[timeouts]
drain_seconds = 0
[[topics]]
pattern = "d:*"
history_messages_max = 1000000
history_bytes_max = "1GiB"
durable = true
[[topics]]
pattern = "h:*"
history_messages_max = 1000000
history_bytes_max = "1GiB"
"#;

/// The acknowledged messages, and a number for the next one.
#[derive(Default)]
struct Publisher {
    acknowledged: Vec<(String, String)>,
    next: usize,
}

impl Publisher {
    /// Publishes. Returns the error's body if the publish is rejected.
    fn publish(&mut self, caller: &mut Caller) -> Result<(), Value> {
        let data = format!("{}.{}", self.next, "x".repeat(60_000));
        self.next += 1;
        let message = json!({"topic": "d:a", "data": data});
        let reply = caller.post("/api/publish", &message).unwrap();
        if reply.status == 200 {
            self.acknowledged.push((reply.body["id"].as_str().unwrap().into(), data));
            return Ok(());
        }
        assert_eq!(reply.status, 503, "{}", reply.body);
        Err(reply.body)
    }

    fn until_full(&mut self, caller: &mut Caller) -> Value {
        for _ in 0..5_000 {
            if let Err(refused) = self.publish(caller) {
                return refused;
            }
        }
        panic!("the disk is never full");
    }

    /// Publishes until one is accepted again.
    fn until_space(&mut self, caller: &mut Caller) {
        let end = Instant::now() + TIMEOUT;
        while self.publish(caller).is_err() {
            assert!(Instant::now() < end, "there is room, and nothing is taken in");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Checks that the history has all acknowledged messages once, in order, and no others.
    fn check(&self, caller: &mut Caller) {
        let pairs = |message: HistoryMessage| (message.id, message.data);
        let stored = caller.history("d:a", None, 1_000).into_iter().map(pairs);
        let stored: Vec<_> = stored.collect();
        let same = stored.iter().zip(&self.acknowledged).take_while(|(a, b)| a == b).count();
        assert!(
            stored == self.acknowledged,
            "{} are there and {} were acknowledged; the first {same} are the same",
            stored.len(),
            self.acknowledged.len()
        );
    }
}

/// Returns a small disk with a large file on it, for a server.
fn small_disk(name: &str) -> Option<(Folder, Mount, PathBuf)> {
    let folder = Folder::new(name, TOPICS);
    let mount = Mount::new(&folder.data(), "size=12m")?;
    let filler = mount.path.join("filler");
    std::fs::write(&filler, vec![1; 5 << 20]).unwrap();
    Some((folder, mount, filler))
}

fn says_what_to_do(refused: &Value, folder: &Folder) {
    assert_eq!(refused["error"]["code"], "store_failed", "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    let data = folder.data();
    for want in ["the disk is full", "free space in", data.to_str().unwrap()] {
        assert!(message.contains(want), "{want:?} in {message}");
    }
}

/// Checks that everything that needs no disk still works: connections, topics without history, and reads.
fn all_else_goes_on(server: &Server, listener: &mut crate::support::Stream, number: u64) {
    let response = server.publish("plain", number.into());
    assert_eq!(response["members"], 1);
    assert_eq!(listener.data(), number.to_string());
    let mut other = server.listen("/sse?topic=d:a&topic=other");
    server.until_members("other", 1);
    server.publish("other", "new".into());
    assert_eq!(other.data(), "new");
    assert_eq!(server.get("/healthz").0, 200);
}

#[test]
fn a_full_disk_rejects_publishes_and_recovers_by_itself() {
    let Some((folder, mount, filler)) = small_disk("full") else { return };
    let server = folder.serve();
    let mut listener = server.listen("/sse?topic=plain");
    server.until_members("plain", 1);
    let (mut caller, mut publisher) = (Caller::new(server.admin).unwrap(), Publisher::default());
    for round in 0..3 {
        let refused = publisher.until_full(&mut caller);
        says_what_to_do(&refused, &folder);
        // The server also rejects a publish that would not wait for the disk.
        let (status, body) = server.api(
            "POST",
            "/api/publish",
            Some(json!({"topic": "h:a", "data": "x".repeat(60_000)})),
        );
        assert_eq!(status, 503, "{body}");
        says_what_to_do(&body, &folder);
        all_else_goes_on(&server, &mut listener, round);
        let (status, body) = server.api("GET", "/readyz", None);
        assert_eq!((status, &body["error"]["code"]), (503, &json!("store_failed")));
        assert!(!body.to_string().contains(folder.data().to_str().unwrap()), "{body}");
        assert_eq!(server.metric("throng_ready"), 0.0);
        publisher.check(&mut caller);
        match round {
            0 => std::fs::remove_file(&filler).unwrap(),
            // The store fills the whole disk, so it gets a larger one.
            _ => remount(&mount, 12 + 4 * round),
        }
        publisher.until_space(&mut caller);
        publisher.check(&mut caller);
        assert_eq!(server.api("GET", "/readyz", None).0, 200);
        assert_eq!(server.metric("throng_ready"), 1.0);
    }
    drop(server);
    let server = folder.serve();
    let mut caller = Caller::new(server.admin).unwrap();
    publisher.check(&mut caller);
    publisher.publish(&mut caller).unwrap();
    publisher.check(&mut caller);
    drop(server);
    drop(mount);
}

#[test]
fn a_deletion_frees_space_on_a_full_disk() {
    let Some((folder, mount, _)) = small_disk("delete-full") else { return };
    let server = folder.serve();
    let (mut caller, mut publisher) = (Caller::new(server.admin).unwrap(), Publisher::default());
    says_what_to_do(&publisher.until_full(&mut caller), &folder);
    // Another file fills the rest of the disk.
    let mut rest = std::fs::File::create(mount.path.join("rest")).unwrap();
    while std::io::Write::write(&mut rest, &[1; 512]).is_ok() {}
    assert!(publisher.publish(&mut caller).is_err());
    let reply = caller.call("DELETE", "/api/history/d:a", "", "").unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    publisher.acknowledged.clear();
    for _ in 0..10 {
        publisher.publish(&mut caller).unwrap();
    }
    publisher.check(&mut caller);
    drop(server);
    drop(mount);
}

fn remount(mount: &Mount, mib: u64) {
    let mut command = Command::new("mount");
    command.arg("-o").arg(format!("remount,size={mib}m")).arg(&mount.path);
    assert!(command.status().unwrap().success());
}

#[test]
fn a_restart_on_a_full_disk_reports_it_or_serves() {
    let Some((folder, mount, filler)) = small_disk("restart-full") else { return };
    for kill in [true, false] {
        let server = folder.serve();
        let (mut caller, mut publisher) =
            (Caller::new(server.admin).unwrap(), Publisher::default());
        if !filler.exists() {
            let _ = std::fs::write(&filler, vec![1; 16 << 20]);
        }
        says_what_to_do(&publisher.until_full(&mut caller), &folder);
        let had = caller.history("d:a", None, 1_000);
        match kill {
            true => drop(server),
            false => drop(end(server)),
        }
        // This fills the remaining space.
        let _ = std::fs::write(mount.path.join("rest"), vec![1; 16 << 20]);
        match folder.try_serve() {
            Some(server) => {
                println!("after kill={kill} it serves");
                assert!(Caller::new(server.admin).unwrap().history("d:a", None, 1_000) == had);
            }
            None => {
                let (code, text) = folder.serve_rejected(&folder.data());
                println!("after kill={kill}: {text}");
                assert_eq!(code, Some(1), "{text}");
                assert!(text.contains("free space in"), "{text}");
            }
        }
        std::fs::remove_file(mount.path.join("rest")).unwrap();
        std::fs::remove_file(&filler).unwrap();
        let server = folder.serve();
        let mut caller = Caller::new(server.admin).unwrap();
        assert!(caller.history("d:a", None, 1_000) == had);
        publisher.publish(&mut caller).unwrap();
    }
}
