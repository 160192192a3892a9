//! A server with an open crowd: all connections use SSE and are in one topic.

use std::time::Duration;

use anyhow::{Result, ensure};
use flood::clock::now_ns;
use serde_json::{Value, json};

use crate::crowd::{Crowd, Plan};
use crate::marker::{Kind, payload};
use crate::process::ServerProcess;
use crate::throng::Throng;

/// Bytes of the payload; about 120 on the wire.
const PAYLOAD_BYTES: usize = 80;

/// The cost of some work for each unit of it.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// µs of server CPU for each unit.
    pub cpu_us: f64,
    /// Units a second.
    pub per_second: f64,
}

impl Cost {
    /// Measures `work` of this many units, on a server that is idle before and after.
    ///
    /// # Errors
    /// If the work fails, or the server is not idle or has ended.
    pub fn of<T>(
        subject: &mut T,
        process: fn(&T) -> &ServerProcess,
        units: f64,
        work: impl FnOnce(&mut T) -> Result<()>,
    ) -> Result<Self> {
        process(subject).wait_idle(Duration::from_secs(10))?;
        let (before, begin) = (process(subject).cpu()?, now_ns());
        work(subject)?;
        let took = Duration::from_nanos(now_ns() - begin);
        process(subject).wait_idle(Duration::from_secs(10))?;
        let cpu = process(subject).cpu()? - before;
        Ok(Self { cpu_us: cpu.as_secs_f64() * 1e6 / units, per_second: units / took.as_secs_f64() })
    }
}

/// A server and its crowd.
#[derive(Debug)]
pub struct ServedCrowd {
    /// The server.
    pub server: Throng,
    crowd: Crowd,
}

impl ServedCrowd {
    /// Opens a crowd of this many connections to the server.
    ///
    /// # Errors
    /// If one of them can't connect.
    pub fn new(server: Throng, connections: usize) -> Result<Self> {
        let plan = Plan::get(server.clients, connections, "/sse?user=u{n}&topic=all");
        Ok(Self { crowd: Crowd::open_all(plan)?.0, server })
    }

    /// Publishes this many messages to the whole crowd at once, and waits until all have arrived.
    ///
    /// # Errors
    /// If the server rejects a message, or one does not arrive in time.
    pub fn publish(&mut self, messages: usize) -> Result<()> {
        let connections = self.crowd.connections();
        self.crowd.reset();
        let data = || payload(Kind::Counted, now_ns(), PAYLOAD_BYTES);
        if messages == 1 {
            self.server.publish("all", &data(), connections)?;
        } else {
            let publish = || json!({"publish": {"topic": "all", "data": data()}});
            let commands: Vec<Value> = (0..messages).map(|_| publish()).collect();
            let response = self.server.api.post("/api/batch", &json!({"commands": commands}))?;
            let rejected = response.to_string().contains("\"error\"");
            ensure!(!rejected, "a batch was rejected in part: {response}");
        }
        let expected = (connections * messages) as u64;
        let timeout = Duration::from_secs(20 + expected / 5_000);
        self.crowd.wait_messages(expected, timeout)?;
        Ok(())
    }

    /// Measures the cost of a delivered message when `messages` are published at once, `times` times.
    ///
    /// # Errors
    /// As [`ServedCrowd::publish`], and if a message arrives twice.
    pub fn cost(&mut self, messages: usize, times: usize) -> Result<Cost> {
        let once = (self.crowd.connections() * messages) as f64;
        let process: fn(&Self) -> &ServerProcess = |standing| &standing.server.process;
        let cost = Cost::of(self, process, once * times as f64, |standing| {
            (0..times).try_for_each(|_| standing.publish(messages))
        })?;
        let received = self.crowd.received().messages;
        ensure!(received == once as u64, "{received} messages arrived, but {once} were expected");
        Ok(cost)
    }
}
