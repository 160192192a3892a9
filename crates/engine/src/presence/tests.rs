//! A registry that replies later, as one on another node would.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use model::{Rule, Rules};
use presence::{Batch, Limits, Local, NodeId, Presence, Ref, Stats};
use protocol::websocket::frame::{Opcode, encode_masked};

use super::*;
use crate::core::handle::{Handle, Shared};
use crate::testing::{self, ClientEnd, Driver};

/// Delays each snapshot until the test releases it.
struct Late {
    local: Local,
    pending: Mutex<Vec<(Completion<List>, List)>>,
}

impl Late {
    fn release(&self) -> usize {
        let pending = std::mem::take(&mut *self.pending.lock().unwrap());
        let count = pending.len();
        pending.into_iter().for_each(|(later, list)| later(list));
        count
    }
}

impl Presence for Late {
    fn enter(&self, topic: &str, user: &str, meta: &str, now_us: u64) -> Ref {
        self.local.enter(topic, user, meta, now_us)
    }

    fn update(&self, topic: &str, user: &str, of: Ref, meta: &str, now_us: u64) -> Option<Ref> {
        self.local.update(topic, user, of, meta, now_us)
    }

    fn leave(&self, topic: &str, user: &str, of: Ref, now_us: u64) {
        self.local.leave(topic, user, of, now_us);
    }

    fn list(
        &self,
        topic: &str,
        own: Option<(&str, Ref)>,
        later: Completion<List>,
    ) -> PresenceReply<List> {
        if let PresenceReply::Now(list) = self.local.list(topic, own, Box::new(|_| ())) {
            self.pending.lock().unwrap().push((later, list));
        }
        PresenceReply::Later
    }

    fn take(&self, now_us: u64, topics_max: usize) -> Vec<Batch> {
        self.local.take(now_us, topics_max)
    }

    fn confirm(&self, batches: Vec<Batch>, now_us: u64) {
        self.local.confirm(batches, now_us);
    }

    fn connections(&self) -> usize {
        self.local.connections()
    }

    fn expire(&self, node: NodeId, now_us: u64) {
        self.local.expire(node, now_us);
    }

    fn set_limits(&self, limits: Limits, now_us: u64) {
        self.local.set_limits(limits, now_us);
    }

    fn stats(&self) -> Stats {
        self.local.stats()
    }
}

struct World {
    driver: Driver,
    presence: Arc<Late>,
}

impl World {
    fn new() -> World {
        let handle = testing::handle(10);
        let limits = broker::Limits {
            recent_messages_max: 10,
            recent_bytes_max: 1 << 20,
            recent_seconds_max: 1,
        };
        let started = Instant::now();
        let router = Arc::new(broker::Router::new(vec![Handle::inbox(&handle)]));
        let begin = history_local::Begin::in_memory(broker::epoch(&[7; 20]));
        let history_limits = history_local::HistoryLimits::default();
        let history = Arc::new(history_local::Local::new(
            router.clone(),
            begin,
            started,
            history_limits,
            limits,
        ));
        let log = history.clone();
        let broker = Arc::new(broker::Local::new(router, [7; 20], started, limits, log));
        let limits = Limits {
            users_max: 10,
            list_bytes_max: 10_000,
            interval_us: 1_000_000,
            members_per_ms: 0,
        };
        let local = Local::new(limits, NodeId(0x5f3a_91c2));
        let presence = Arc::new(Late { local, pending: Mutex::default() });
        let shared = Arc::new(Shared::new(
            NodeId(0x5f3a_91c2),
            protocol::standard(),
            presence.clone(),
            Arc::default(),
            sessions::in_memory(NodeId(0x5f3a_91c2)),
        ));
        let mut settings = crate::recovery::simulation::settings();
        let rule = Rule { pattern: "room:*".into(), presence: true, ..Rule::default() };
        let rules = Rules { rules: vec![rule], ..Rules::default() };
        settings.session.policy = auth::Policy::new(rules, auth::LoginRule::Allow);
        let drivers = testing::drivers(&[handle], settings, broker, history, shared);
        World { driver: drivers.into_iter().next().unwrap(), presence }
    }

    fn connect(&mut self) -> ClientEnd {
        let (ours, theirs) = testing::pair();
        self.driver.connect(theirs);
        ours
    }

    /// Writes to the engine, lets it work, and reads what it wrote.
    fn exchange(&mut self, socket: &mut ClientEnd, bytes: &[u8]) -> String {
        socket.send(bytes);
        for _ in 0..3 {
            self.driver.resume();
            let (sockets, _) = self.driver.events();
            self.driver.engine.take_commands();
            sockets.into_iter().for_each(|slot| self.driver.ready(slot));
            self.driver.engine.run_commands();
            self.driver.perform();
        }
        let bytes = socket.read(usize::MAX).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Returns the request that begins a WebSocket, for this path.
fn upgrade(target: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
}

fn frame(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    encode_masked(Opcode::Text, false, text.as_bytes(), [1, 2, 3, 4], &mut out);
    out
}

#[test]
fn a_request_waits_for_a_list_that_comes_later() {
    let mut world = World::new();
    world.presence.enter("room:1", "alice", "{}", 0);
    let mut socket = world.connect();
    let request = "GET /presence?topic=room:1 HTTP/1.1\r\nHost: t\r\n\r\n";
    let two = request.repeat(2);
    assert_eq!(world.exchange(&mut socket, two.as_bytes()), "");
    assert_eq!(world.presence.release(), 1, "the second request waits for the first");
    let body = r#"{"topic":"room:1","users":1,"connections":1,"presences":{}}"#;
    let first = world.exchange(&mut socket, b"");
    assert!(first.starts_with("HTTP/1.1 200 ") && first.ends_with(body), "{first}");
    assert_eq!(world.presence.release(), 1);
    assert_eq!(world.exchange(&mut socket, b""), first);
    assert_eq!(world.presence.release(), 0);
}

#[test]
fn a_list_for_a_request_that_is_gone_harms_no_client() {
    let mut world = World::new();
    let mut socket = world.connect();
    let request = b"GET /presence?topic=room:1 HTTP/1.1\r\nHost: t\r\n\r\n";
    assert_eq!(world.exchange(&mut socket, request), "");
    drop(socket);
    let mut other = world.connect();
    assert_eq!(world.exchange(&mut other, b""), "");
    assert_eq!(world.presence.release(), 1);
    assert_eq!(world.exchange(&mut other, b""), "");
}

#[test]
fn a_member_gets_the_list_of_its_last_join_when_it_comes_later() {
    let mut world = World::new();
    let mut socket = world.connect();
    let request = upgrade("/socket/websocket?vsn=2.0.0&user=alice");
    let greeting = world.exchange(&mut socket, request.as_bytes());
    assert!(greeting.starts_with("HTTP/1.1 101 "), "{greeting}");
    for join_ref in 1..3 {
        let join = format!(r#"["{join_ref}","{join_ref}","room:1","phx_join",{{}}]"#);
        let joined = world.exchange(&mut socket, &frame(&join));
        assert!(joined.contains("phx_reply") && !joined.contains("presence"), "{joined}");
    }
    assert_eq!(world.presence.release(), 2);
    let lists = world.exchange(&mut socket, b"");
    assert_eq!(lists.matches("presence_state").count(), 1, "{lists}");
    let list = r#"["2",null,"room:1","presence_state",{"alice":{"metas":[{"phx_ref":"5f3a91c2"#;
    assert!(lists.contains(list), "{lists}");
}

/// The beginning of a member's snapshot of `room:1`, as an unpublished message.
const PRESENCE_STATE: &str =
    r#"{"type":"message","topic":"room:1","event":"presence_state","data":{"#;

#[test]
fn members_on_other_transports_get_a_list_that_comes_later() {
    let mut world = World::new();
    world.presence.enter("room:1", "alice", "{}", 0);
    for (path, event) in [("/sse?format=json", "event: presence_state\ndata: "), ("/stream?", "")] {
        let mut socket = world.connect();
        let request = format!("GET {path}&topic=room:1&user=al HTTP/1.1\r\nHost: t\r\n\r\n");
        let greeting = world.exchange(&mut socket, request.as_bytes());
        let came = greeting.starts_with("HTTP/1.1 200 ") && !greeting.contains("presence");
        assert!(came, "{greeting}");
        assert_eq!(world.presence.release(), 1);
        let list = world.exchange(&mut socket, b"");
        assert!(list.contains(&format!("{event}{PRESENCE_STATE}\"al\":")), "{list}");
    }
    let mut socket = world.connect();
    world.exchange(&mut socket, upgrade("/ws?user=al").as_bytes());
    let subscribe = frame(r#"{"type":"subscribe","id":1,"topic":"room:1"}"#);
    let reply = world.exchange(&mut socket, &subscribe);
    assert!(reply.contains(r#"{"type":"reply","id":1,"ok":{"topic":"room:1"}}"#), "{reply}");
    assert!(!reply.contains("presence"), "{reply}");
    // The client leaves before the reply, and a command waits for another.
    world.exchange(&mut socket, &frame(r#"{"type":"unsubscribe","id":2,"topic":"room:1"}"#));
    world.exchange(&mut socket, &frame(r#"{"type":"presence","id":3,"topic":"room:1"}"#));
    assert_eq!(world.presence.release(), 2);
    let reply = world.exchange(&mut socket, b"");
    let want = r#"{"type":"reply","id":3,"ok":{"topic":"room:1","users":1,"connections":1,"#;
    assert!(reply.contains(want) && !reply.contains("presence_state"), "{reply}");
    // A snapshot for a connection that has ended harms no client.
    world.exchange(&mut socket, &subscribe);
    world.exchange(&mut socket, &frame(r#"{"type":"presence","id":4,"topic":"room:1"}"#));
    drop(socket);
    let mut other = world.connect();
    assert_eq!(world.exchange(&mut other, b""), "");
    assert_eq!(world.presence.release(), 2);
    assert_eq!(world.exchange(&mut other, b""), "");
}
