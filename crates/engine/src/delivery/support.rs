//! An engine that a test of delivery drives by hand.

use std::sync::Arc;
use std::time::Instant;

use model::{NodeId, Rules};
use presence::Limits;
use protocol::websocket::frame::{Opcode, encode_masked};

use crate::core::handle::{Handle, Shared};
use crate::testing::{self, ClientEnd, Driver};

/// An engine with its driver. Its clients have all permissions.
pub(super) struct World {
    pub driver: Driver,
    pub handle: Handle,
}

impl World {
    pub fn new() -> Self {
        let handle = testing::handle(10);
        let limits = broker::Limits {
            recent_messages_max: 10,
            recent_bytes_max: 1 << 20,
            recent_seconds_max: 1,
        };
        let router = Arc::new(broker::Router::new(vec![Handle::inbox(&handle)]));
        let started = Instant::now();
        let history = Arc::new(history_local::Local::new(
            router.clone(),
            history_local::Begin::in_memory(broker::epoch(&[7; 20])),
            started,
            history_local::HistoryLimits::default(),
            limits,
        ));
        let log = history.clone();
        let broker = Arc::new(broker::Local::new(router, [7; 20], started, limits, log));
        let node = NodeId(0x5f3a_91c2);
        let limits =
            Limits { users_max: 9, list_bytes_max: 1_000, interval_us: 1, members_per_ms: 0 };
        let shared = Arc::new(Shared::new(
            node,
            protocol::standard(),
            Arc::new(presence::Local::new(limits, node)),
            Arc::default(),
            sessions::in_memory(node),
        ));
        let mut settings = crate::recovery::simulation::settings();
        settings.session.wildcards = true;
        settings.session.policy = auth::Policy::new(Rules::default(), auth::LoginRule::Allow);
        let handles = [handle.clone()];
        let drivers = testing::drivers(&handles, settings, broker, history, shared);
        World { driver: drivers.into_iter().next().unwrap(), handle }
    }

    /// Connects, sends a request, and reads the beginning of the response.
    pub fn open(&mut self, request: &str) -> ClientEnd {
        let (client, server) = testing::pair();
        self.driver.connect(server);
        client.send(format!("{request}\r\nHost: t\r\n").as_bytes());
        if !request.contains("/sse") && !request.contains("/stream") {
            client.send(
                b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                  Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
            );
        }
        client.send(b"\r\n");
        self.turn();
        self.read(&client);
        client
    }

    pub fn send_frame(&mut self, client: &ClientEnd, text: &str) {
        let mut out = Vec::new();
        encode_masked(Opcode::Text, false, text.as_bytes(), [1, 2, 3, 4], &mut out);
        client.send(&out);
        self.turn();
        self.read(client);
    }

    pub fn turn(&mut self) {
        for _ in 0..6 {
            self.driver.resume();
            let (sockets, _) = self.driver.events();
            self.driver.engine.take_commands();
            sockets.into_iter().for_each(|slot| self.driver.ready(slot));
            self.driver.engine.run_commands();
            while self.driver.engine.slice(true).is_some() {}
            self.driver.perform();
        }
    }

    pub fn read(&self, client: &ClientEnd) -> String {
        let bytes = client.read(usize::MAX).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
