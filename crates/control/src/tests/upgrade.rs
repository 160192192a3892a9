//! A node that is passed to another process: its requests, and the progress that callers see.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::Publication;
use serde_json::Value;
use tokio::sync::watch;

use super::fake::{Mood, bench, node, webhook, with_upgrader};
use crate::{
    Gate, Running, Runtime, UpgradeProgress, UpgradeRejection, UpgradeRequest, UpgradeStage,
    Upgrader,
};

/// A node on a port.
struct Served {
    running: Running,
    gate: Arc<Gate>,
    published: Arc<Mutex<Vec<Publication>>>,
}

impl Served {
    fn start(listener: &TcpListener, forwarded: Option<UnixListener>) -> Self {
        Served::start_with(&[], listener, forwarded)
    }

    /// Like [`Served::start`], with keys of these names and scopes.
    fn start_with(
        keys: &[(&str, &[&str])],
        listener: &TcpListener,
        forwarded: Option<UnixListener>,
    ) -> Self {
        let published = Arc::default();
        let mut node = node(Mood::Willing, Arc::clone(&published), Arc::default());
        node.access = crate::Access::new(super::fake::access(keys));
        *node.upgrades.forwarded.lock().unwrap() = forwarded;
        let gate = node.upgrades.gate.clone();
        let listener = listener.try_clone().unwrap();
        let running = crate::spawn(
            Runtime::new().unwrap(),
            crate::Listeners { plain: listener, tls: None },
            node,
            webhook().1,
            None,
        )
        .unwrap();
        Served { running, gate, published }
    }

    fn count(&self) -> usize {
        self.published.lock().unwrap().len()
    }
}

/// A client with one connection, until that is closed.
struct Client {
    address: SocketAddr,
    stream: Option<TcpStream>,
}

impl Client {
    fn new(address: SocketAddr) -> Self {
        Client { address, stream: None }
    }

    /// Returns the status of the response.
    fn call(&mut self, method: &str, path: &str, body: &str) -> u16 {
        self.send(&request(method, path, body));
        self.read_reply()
    }

    fn send(&mut self, text: &str) {
        let address = self.address;
        let stream = self.stream.get_or_insert_with(|| {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream
        });
        stream.write_all(text.as_bytes()).unwrap();
    }

    fn read_reply(&mut self) -> u16 {
        let mut stream = self.stream.take().unwrap();
        let mut reply = Vec::new();
        let head = loop {
            let mut buffer = [0; 4096];
            let length = stream.read(&mut buffer).unwrap();
            assert!(length > 0, "no reply: {}", String::from_utf8_lossy(&reply));
            reply.extend_from_slice(&buffer[..length]);
            let text = String::from_utf8_lossy(&reply).to_lowercase();
            let Some((head, rest)) = text.split_once("\r\n\r\n") else { continue };
            let length = head
                .split_once("content-length: ")
                .map_or(0, |(_, rest)| rest.split("\r\n").next().unwrap().parse().unwrap());
            if rest.len() >= length {
                break head.to_owned();
            }
        };
        if !head.contains("\r\nconnection: close") {
            self.stream = Some(stream);
        }
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

fn request(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns requests of which the head and some of the body are sent, and the rest of each.
fn halves(address: SocketAddr) -> Vec<(Client, String)> {
    let whole = request("POST", "/api/publish", r#"{"topic":"news","data":"x"}"#);
    let (head, body) = whole.split_once("\r\n\r\n").unwrap();
    let (head, _) = head.split_once("\r\nContent-Length").unwrap();
    let chunked = format!(
        "{head}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        &body[..5],
        body.len() - 5,
        &body[5..]
    );
    let cut = |text: &str, left: usize| {
        let mut client = Client::new(address);
        let (sent, rest) = text.split_at(text.len() - left);
        client.send(sent);
        (client, rest.to_owned())
    };
    let all = vec![cut(&whole, body.len()), cut(&whole, 1), cut(&chunked, 5), cut(&chunked, 20)];
    rest();
    all
}

/// Publishes on one connection until `stop` is set, and counts; every publish must succeed.
fn publisher(address: SocketAddr, stop: &Arc<AtomicBool>) -> JoinHandle<usize> {
    let stop = stop.clone();
    std::thread::spawn(move || {
        let mut client = Client::new(address);
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let status = client.call("POST", "/api/publish", r#"{"topic":"news","data":"x"}"#);
            assert_eq!(status, 200);
            count += 1;
        }
        count
    })
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn rest() {
    std::thread::sleep(Duration::from_millis(100));
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("throng-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn requests_wait_and_go_on_at_the_new_process() {
    let folder = Folder::new("forward");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let old = Served::start(&listener, None);
    let stop = Arc::default();
    let publishers: Vec<_> = (0..3).map(|_| publisher(address, &stop)).collect();
    until("publishes", || old.count() > 20);
    let mut same_connection = Client::new(address);
    assert_eq!(same_connection.call("GET", "/api/stats", ""), 200);
    old.gate.pause();
    until("quiet", || old.gate.is_quiet());
    let at_pause = old.count();
    let mut watcher = Client::new(address);
    for path in ["/healthz", "/readyz", "/metrics", "/api/upgrade"] {
        assert_eq!(watcher.call("GET", path, ""), 200, "{path}");
    }
    rest();
    let socket = folder.0.join("admin");
    let forwarded = UnixListener::bind(&socket).unwrap();
    let new = Served::start(&listener, Some(forwarded));
    assert_eq!(old.count(), at_pause);
    old.gate.forward(socket);
    until("publishes at the new one", || new.count() > 20);
    // The server still serves a connection that was silent in all this time.
    assert_eq!(same_connection.call("GET", "/api/stats", ""), 200);
    assert!(
        same_connection.stream.is_none() && same_connection.call("GET", "/api/stats", "") == 200
    );
    assert_eq!(watcher.call("GET", "/healthz", ""), 200);
    stop.store(true, Ordering::Relaxed);
    let count: usize = publishers.into_iter().map(|publisher| publisher.join().unwrap()).sum();
    assert_eq!((old.count(), old.count() + new.count()), (at_pause, count));
    old.running.end_forwarding();
    assert_eq!(Client::new(address).call("GET", "/api/stats", ""), 200);
    new.running.stop();
}

#[test]
fn requests_wait_and_go_on_here_when_nothing_has_moved() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let node = Served::start(&listener, None);
    let stop = Arc::default();
    let publishers: Vec<_> = (0..3).map(|_| publisher(address, &stop)).collect();
    for round in 1..4 {
        let before = node.count();
        until("publishes", || node.count() > before + 20);
        node.gate.pause();
        until("quiet", || node.gate.is_quiet());
        let at_pause = node.count();
        rest();
        assert_eq!(node.count(), at_pause, "{round}");
        node.gate.release();
    }
    let before = node.count();
    until("publishes", || node.count() > before + 20);
    stop.store(true, Ordering::Relaxed);
    let count: usize = publishers.into_iter().map(|publisher| publisher.join().unwrap()).sum();
    assert_eq!(node.count(), count);
    node.running.stop();
}

#[test]
fn a_request_with_half_a_body_delays_no_other_and_goes_on_at_the_new_process() {
    let folder = Folder::new("halves");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let old = Served::start(&listener, None);
    let (mut pending_requests, mut later) = (halves(address), halves(address));
    old.gate.pause();
    assert!(old.gate.is_quiet());
    // The rest of some comes while the gate is paused.
    pending_requests.iter_mut().for_each(|(client, rest)| client.send(rest));
    rest();
    assert_eq!((old.count(), old.gate.is_quiet()), (0, true));
    let socket = folder.0.join("admin");
    let forwarded = UnixListener::bind(&socket).unwrap();
    let new = Served::start(&listener, Some(forwarded));
    old.gate.forward(socket);
    for (client, _) in &mut pending_requests {
        assert_eq!(client.read_reply(), 200);
    }
    // Another process may replace the next one as well.
    rest();
    new.gate.pause();
    assert!(new.gate.is_quiet());
    new.gate.release();
    for (client, rest) in &mut later {
        client.send(rest);
        assert_eq!((client.read_reply(), client.stream.is_none()), (200, true));
    }
    assert_eq!((old.count(), new.count()), (0, 8));
    old.running.end_forwarding();
    new.running.stop();
}

#[test]
fn what_has_half_a_body_goes_on_here_when_nothing_has_moved() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let node = Served::start(&listener, None);
    let (mut pending_requests, mut later) = (halves(address), halves(address));
    node.gate.pause();
    pending_requests.iter_mut().for_each(|(client, rest)| client.send(rest));
    rest();
    assert_eq!((node.count(), node.gate.is_quiet()), (0, true));
    node.gate.release();
    for (client, _) in &mut pending_requests {
        assert_eq!(client.read_reply(), 200);
    }
    for (client, rest) in &mut later {
        client.send(rest);
        assert_eq!((client.read_reply(), client.stream.is_some()), (200, true));
    }
    assert_eq!(node.count(), 8);
    node.running.stop();
}

#[test]
fn streams_of_figures_end_where_another_process_serves() {
    let folder = Folder::new("live");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let old = Served::start(&listener, None);
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    old.gate.pause();
    assert!(old.gate.is_quiet());
    old.gate.forward(folder.0.join("nobody"));
    let mut all = String::new();
    while !all.ends_with("0\r\n\r\n") {
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "the stream is cut off");
        all.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    // The next stream ends at once, and its connection with it.
    stream.write_all(b"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    old.running.end_forwarding();
}

/// A stream that ends at once needs the same key as one that continues.
#[test]
fn streams_need_their_key_where_another_process_serves_too() {
    let folder = Folder::new("live-key");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let keys: [(&str, &[&str]); 2] = [("read", &["read"]), ("publish", &["publish:*"])];
    let old = Served::start_with(&keys, &listener, None);
    let calls = ["/api/live", "/api/trace?user=al"].map(|path| {
        [("readread", 200), ("publishpublish", 403), ("wrong", 401)]
            .map(|(key, status)| (path, key, status))
    });
    // The port accepts no more connections once requests are forwarded.
    let connected = calls.concat().into_iter().map(|call| {
        let mut client = Client::new(listener.local_addr().unwrap());
        assert_eq!(client.call("GET", "/healthz", ""), 200);
        (client, call)
    });
    let connected: Vec<_> = connected.collect();
    old.gate.forward(folder.0.join("nobody"));
    for (mut client, (path, key, status)) in connected {
        let head = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}");
        client.send(&format!("{head}\r\n\r\n"));
        assert_eq!(client.read_reply(), status, "{path}, {key}");
    }
    old.running.end_forwarding();
}

#[test]
fn a_new_process_that_does_not_reply_is_an_error() {
    let folder = Folder::new("nobody");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let old = Served::start(&listener, None);
    let mut client = Client::new(listener.local_addr().unwrap());
    assert_eq!(client.call("GET", "/api/stats", ""), 200);
    old.gate.forward(folder.0.join("nobody"));
    assert_eq!(client.call("GET", "/api/stats", ""), 503);
    old.running.end_forwarding();
}

/// Begins every upgrade that is requested; the test sets the progress.
struct FakeUpgrader {
    progress: watch::Sender<UpgradeProgress>,
    requests: Mutex<Vec<UpgradeRequest>>,
}

impl Upgrader for FakeUpgrader {
    fn begin(&self, request: UpgradeRequest) -> Result<(), UpgradeRejection> {
        if request.to.is_some() {
            return Err(UpgradeRejection::Bad("nobody waits at this socket".into()));
        }
        if !self.progress.borrow().stage.is_rest() {
            return Err(UpgradeRejection::UnderWay);
        }
        self.requests.lock().unwrap().push(request);
        self.progress.send_modify(|progress| {
            (progress.stage, progress.begun) = (UpgradeStage::Starting, progress.begun + 1);
        });
        Ok(())
    }

    fn progress(&self) -> watch::Receiver<UpgradeProgress> {
        self.progress.subscribe()
    }
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_is_reported_line_by_line() {
    let progress = watch::Sender::new(UpgradeProgress::default());
    let upgrader = Arc::new(FakeUpgrader { progress, requests: Mutex::default() });
    let bench = with_upgrader(upgrader.clone());
    assert_eq!(bench.get("/api/upgrade").await.json()["stage"], "idle");
    assert_eq!(bench.post("/api/upgrade", r#"{"to":"/a"}"#).await.code(), "bad_upgrade");
    let set = |progress: UpgradeProgress| upgrader.progress.send_replace(progress);
    let of = |stage| UpgradeProgress {
        stage,
        begun: 1,
        shards_done: 1,
        shards: 2,
        connections_copied: 5,
        connections: 9,
        ..UpgradeProgress::default()
    };
    let steps = async {
        while upgrader.requests.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(bench.post("/api/upgrade", "{}").await.code(), "upgrade_under_way");
        for stage in [UpgradeStage::Copying, UpgradeStage::Switching] {
            tokio::time::sleep(Duration::from_millis(150)).await;
            set(of(stage));
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
        set(UpgradeProgress { pause_us: Some(1_500), ..of(UpgradeStage::Done) });
    };
    let (reply, ()) = tokio::join!(bench.post("/api/upgrade", r#"{"binary":"/b"}"#), steps);
    assert_eq!(reply.headers["content-type"], "application/x-ndjson");
    let lines: Vec<Value> =
        reply.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stages: Vec<_> = lines.iter().map(|line| line["stage"].as_str().unwrap()).collect();
    assert_eq!(stages, ["starting", "copying", "switching", "done"]);
    assert_eq!(lines[1]["text"], "shard 1 of 2, 5 of 9 connections, 0 lost");
    assert!(lines[..3].iter().all(|line| line.get("result").is_none()));
    assert_eq!(lines[3]["result"], "done");
    assert_eq!(upgrader.requests.lock().unwrap()[0].binary, Some("/b".into()));
    assert_eq!(bench.get("/api/upgrade").await.json()["result"], "done");
    let metrics = bench.get("/metrics").await.text;
    for line in ["upgrade_stage 4", "upgrade_pause_seconds 0.0015", "upgrades_total 1"] {
        assert!(metrics.contains(&format!("throng_{line}")), "{line}");
    }
    let mut sampler = bench.sampler;
    sampler.sample();
    let event = bench.monitor.newest.borrow().clone();
    assert!(String::from_utf8_lossy(&event).contains("\"upgrade\":{\"result\":\"done\""));
}

#[tokio::test]
async fn a_server_without_upgrades_says_so() {
    let bench = bench(Mood::Willing);
    let reply = bench.post("/api/upgrade", "{}").await;
    assert_eq!((reply.status, reply.code()), (501, "no_upgrade".into()));
    assert_eq!(bench.get("/api/upgrade").await.json()["result"], "nothing_moved");
}
