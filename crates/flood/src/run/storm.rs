//! A storm with missed messages: all connections drop, messages are published, and all connections
//! return for them in the same moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Point, Run, StormTimes};
use crate::clock::now_ns;
use crate::publisher;
use crate::record::{Percentiles, Storm};
use crate::show::{Phase, Show};

/// The longest time for dropping all connections.
const DROP_MAX: Duration = Duration::from_secs(60);

impl Run<'_> {
    /// Runs one such storm to its end. Gives up when it takes longer than `--answer-timeout` and
    /// `--settle` together.
    pub(super) fn storm(
        &mut self,
        number: u32,
        stop: &AtomicBool,
        show: &mut dyn Show,
    ) -> Result<()> {
        let connections = self.crowd()?.counts().open;
        self.crowd()?.storm();
        let begin = Instant::now();
        self.wait(stop, show, |run| {
            Ok(run.crowd()?.counts().open == 0 || begin.elapsed() > DROP_MAX)
        })?;
        self.meet(Point::Dropped(number), Phase::Holding, stop, show)?;
        let missed = self.shape.missed;
        if let Some(context) = self.context.clone() {
            let rooms = self.rooms;
            let publishing = std::thread::Builder::new()
                .name("publisher-storm".into())
                .spawn(move || publisher::publish_each(&context, rooms, missed))
                .context("starting a publisher thread")?;
            self.wait(stop, show, |_| Ok(publishing.is_finished()))?;
        }
        self.meet(Point::Missed(number), Phase::Holding, stop, show)?;
        let cpu_before = self.server_cpu_seconds();
        let recovered_before = self.crowd()?.recovered();
        self.crowd()?.take_recovery();
        let (begin, begin_ns) = (Instant::now(), now_ns());
        self.crowd()?.end_storm();
        let most = self.response_timeout + self.settle;
        self.wait(stop, show, |run| {
            let recovered = run.crowd()?.recovered() - recovered_before;
            Ok(recovered >= connections || begin.elapsed() > most)
        })?;
        let cpu_after = self.server_cpu_seconds();
        let recovered = self.crowd()?.recovered() - recovered_before;
        let (times, last_ns) = self.crowd()?.take_recovery();
        let storm = Storm {
            connections,
            recovered,
            missed: u64::from(missed),
            seconds: last_ns.saturating_sub(begin_ns) as f64 / 1e9,
            recovery: Percentiles::default(),
            server_cpu_seconds: cpu_after.zip(cpu_before).map(|(after, before)| after - before),
        };
        self.storms.push(StormTimes { storm, recovery: times });
        Ok(())
    }

    fn wait(
        &mut self,
        stop: &AtomicBool,
        show: &mut dyn Show,
        is_done: impl Fn(&Self) -> Result<bool>,
    ) -> Result<()> {
        while !stop.load(Ordering::Relaxed) && !is_done(self)? {
            self.pause(Phase::Holding, show)?;
        }
        Ok(())
    }

    fn server_cpu_seconds(&self) -> Option<f64> {
        self.poll_server();
        self.watch.as_ref()?.take().map(|server| server.cpu_seconds)
    }
}
