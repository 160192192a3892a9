//! One run from its begin to its end: the crowd connects, stays, and is checked.

mod results;
mod series;
mod storm;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use admin::Url;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::agents;
use crate::args::Common;
use crate::backend;
use crate::crowd::{Crowd, Published, PublishedHere, Times, lock};
use crate::host::{self, Host};
use crate::kernels::KernelWatch;
use crate::preflight;
use crate::probe::{self, Probes};
use crate::publisher::{self, PublishContext, Stream};
use crate::record::{Counts, Sample, Summary, TlsUse};
use crate::report;
use crate::scenario::{Scenario, Shape};
use crate::server::Watches;
use crate::setup::{Setup, Share};
use crate::show::{Phase, Show};

pub use results::{Results, StormTimes, add_sample, with_times};
pub use series::Series;

/// Time between two samples.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// After this time without a message the run assumes that all have arrived.
const QUIET: Duration = Duration::from_millis(1_500);
/// How long the run waits for messages on their way, unless the user says otherwise.
const SETTLE: Duration = Duration::from_secs(30);
/// How long a run that was stopped waits for messages on their way, unless the user says otherwise.
const SETTLE_STOPPED: Duration = Duration::from_secs(5);
/// Time between two checks for what is due.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// The outcome of a run.
pub struct Outcome {
    /// All measurements.
    pub summary: Summary,
    /// False when connections were missing at the end, or an agent was lost. Always true if users come and go, if
    /// memory was short, and if the run was stopped: missing connections mean nothing then.
    pub complete: bool,
    /// The path of the report's page, or the reason why it could not be written. `None` without `--report`.
    pub report: Option<Result<PathBuf>>,
}

/// The reason why a run did not begin, or did not get to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The command line requires something impossible.
    #[error(transparent)]
    Usage(anyhow::Error),
    /// The kernel denied the crowd a resource.
    #[error(transparent)]
    Runtime(anyhow::Error),
}

/// Runs a scenario. `stop` ends it early, with all that it measured so far. `command` is the command
/// line as the user typed it.
///
/// # Errors
/// See [`RunError`]. A mistake of the server is no error: the outcome counts it.
pub fn run(
    scenario: &Scenario,
    stop: &AtomicBool,
    command: String,
    show: &mut dyn Show,
) -> Result<Outcome, RunError> {
    let common = scenario.common();
    if let Some(folder) = &common.report {
        // An error must show now, not after an hour.
        std::fs::create_dir_all(folder)
            .with_context(|| format!("--report {}", folder.display()))
            .map_err(RunError::Usage)?;
    }
    let setup = Setup::new(scenario, Share::all()).map_err(RunError::Usage)?;
    preflight::check(&setup, common).map_err(RunError::Runtime)?;
    let (recover, connections) = (setup.plan.recover, setup.plan.connections);
    let is_tls = setup.plan.servers.iter().any(|server| server.is_tls);
    let tls = is_tls.then_some(match common.insecure_tls {
        true => TlsUse::Unverified,
        false => TlsUse::Verified,
    });
    let (samples, summary) = match common.agents.is_empty() {
        true => {
            let (samples, results) =
                run_to_end(setup, common, None, stop, show).map_err(RunError::Runtime)?;
            (samples, results.summary(scenario.name(), command, connections))
        }
        false => agents::coordinate(scenario, setup, stop, command, show)?,
    };
    let summary = Summary { recover, tls, ..summary };
    let report = common.report.as_ref().map(|folder| report::write(folder, &samples, &summary));
    let stays = scenario.shape().lifetime.stay_seconds.is_none();
    let all_open = summary.counts.open == summary.connections;
    let complete = (!stays || summary.full || summary.interrupted || all_open)
        && summary.agents.iter().all(|agent| agent.lost.is_none());
    Ok(Outcome { summary, complete, report })
}

/// A point that all parts of a run reach before any part goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub enum Point {
    /// All connections have arrived.
    Arrived,
    /// All connections were dropped in the storm with this number.
    Dropped(u32),
    /// The messages that the connections miss in this storm were published.
    Missed(u32),
    /// All publishers have ended.
    Published,
}

/// The other parts of a run that agents divide among them.
pub trait Others {
    /// Notifies the others that this part has reached a point, and has published this much until then.
    ///
    /// # Errors
    /// If the others can't be reached: the run ends.
    fn reach(&mut self, point: Point, published: &PublishedHere) -> Result<()>;

    /// Returns true if all have reached this point. At the end `published` learns how much the others have published.
    ///
    /// # Errors
    /// If the run has ended.
    fn have_reached(&mut self, point: Point, published: &Published) -> Result<bool>;

    /// Sends a sample to the others, with the times since the one before.
    ///
    /// # Errors
    /// If the others can't be reached: the run ends.
    fn sample(&mut self, phase: Phase, sample: &Sample, times: &Times) -> Result<()>;
}

/// Runs a part of a run, or all of it, to its end.
///
/// # Errors
/// If the kernel denied the crowd a resource, or the others are gone.
pub fn run_to_end(
    setup: Setup,
    common: &Common,
    others: Option<&mut dyn Others>,
    stop: &AtomicBool,
    show: &mut dyn Show,
) -> Result<(Vec<Sample>, Results)> {
    let mut run = Run::start(setup, common, others)?;
    run.arrive_and_wait(stop, show)?;
    run.finish(stop, show)?;
    run.results(stop.load(Ordering::Relaxed))
}

/// A run under way.
struct Run<'a> {
    others: Option<&'a mut dyn Others>,
    published: Arc<Published>,
    shape: Shape,
    hold: Duration,
    settle: Duration,
    settle_stopped: Duration,
    response_timeout: Duration,
    keep_memory_bytes: u64,
    /// Set when the run opened no more connections because memory was short.
    full: bool,
    connections: u32,
    rooms: u32,
    recover: bool,
    storms: Vec<StormTimes>,
    crowd: Option<Crowd>,
    context: Option<Arc<PublishContext>>,
    streams: Vec<Stream>,
    publishers_each: u32,
    publishers: Vec<JoinHandle<()>>,
    watch: Option<Watches>,
    probes: Arc<Probes>,
    begin: Instant,
    begin_unix_seconds: u64,
    host_before: Host,
    /// Watches the kernel of this host.
    own_kernel: KernelWatch,
    /// The samples so far.
    series: Option<Series>,
    /// The sample with the most connections.
    fullest: Sample,
    times: Times,
    /// Messages that were published and never arrived, counted at the end.
    lost_at_end: u64,
    /// The sample at the moment when all connections had arrived.
    arrived: Option<Sample>,
    last: Sample,
    next_sample: Instant,
}

impl<'a> Run<'a> {
    fn start(setup: Setup, common: &Common, others: Option<&'a mut dyn Others>) -> Result<Self> {
        let Setup {
            shape, plan, context, streams, admins, key, probes: probe_urls, published, ..
        } = setup;
        let probes: Arc<Probes> = Arc::default();
        for probe in probe_urls {
            let per_second = common.probe_rate / f64::from(plan.part.of);
            probe::start(&probes, probe, key.clone(), per_second)?;
        }
        // If agents share the run, the coordinator watches the server.
        let watch = match others {
            None => watch(common, &admins, key.as_deref()),
            Some(_) => None,
        };
        let host_before = Host::now();
        // The memory in use before the first connection, to measure the growth from.
        let before = of_host(&host_before, watch.as_ref());
        let (connections, rooms, recover) = (plan.own_connections(), plan.rooms(), plan.recover);
        if shape.publish_at_once {
            published.begin();
        }
        let crowd = Crowd::open(plan, published.clone())?;
        Ok(Self {
            others,
            published,
            shape,
            hold: Duration::from_secs_f64(common.hold),
            settle: common.settle.map_or(SETTLE, Duration::from_secs_f64),
            settle_stopped: common.settle.map_or(SETTLE_STOPPED, Duration::from_secs_f64),
            response_timeout: Duration::from_secs_f64(common.response_timeout),
            keep_memory_bytes: common.keep_memory.unwrap_or(0),
            full: false,
            connections,
            rooms,
            recover,
            storms: Vec::new(),
            crowd: Some(crowd),
            context: context.map(Arc::new),
            streams,
            publishers_each: common.publishers,
            publishers: Vec::new(),
            watch,
            probes,
            begin: Instant::now(),
            begin_unix_seconds: host::unix_seconds(),
            host_before,
            own_kernel: KernelWatch::own(),
            series: Some(Series::begin(before)),
            fullest: before,
            times: Times::new(),
            lost_at_end: 0,
            arrived: None,
            last: before,
            next_sample: Instant::now() + SAMPLE_EVERY,
        })
    }

    fn crowd(&self) -> Result<&Crowd> {
        let crowd = self.crowd.as_ref().context("the crowd is gone")?;
        if let Some(why) = crowd.thread_error() {
            bail!("the crowd can't go on: {why}");
        }
        Ok(crowd)
    }

    /// Opens the crowd, and waits until the run is over.
    fn arrive_and_wait(&mut self, stop: &AtomicBool, show: &mut dyn Show) -> Result<()> {
        let ended = || stop.load(Ordering::Relaxed);
        if self.shape.publish_at_once {
            self.publish()?;
        }
        let mut all_begun = Instant::now();
        while !ended() && !self.full && !self.crowd()?.has_arrived() {
            self.pause(Phase::Arriving, show)?;
            if !self.crowd()?.all_begun() {
                all_begun = Instant::now();
            }
            // The run goes on even if the server hangs.
            if all_begun.elapsed() > self.response_timeout + QUIET {
                break;
            }
            self.full =
                self.keep_memory_bytes > 0 && Host::now().free_bytes < self.keep_memory_bytes;
        }
        if self.full || ended() {
            self.crowd()?.open_no_more();
        }
        if ended() {
            return Ok(());
        }
        self.sample(Phase::Holding, show)?;
        self.meet(Point::Arrived, Phase::Holding, stop, show)?;
        self.arrived = Some(self.last);
        self.published.begin();
        if !self.shape.publish_at_once {
            self.publish()?;
        }
        let (begin, mut storms) = (Instant::now(), 0);
        loop {
            let elapsed = begin.elapsed();
            let mut done = elapsed >= self.hold;
            if let Some((times, every)) = self.shape.storms {
                let over = elapsed.as_secs_f64() - every * f64::from(times + 1);
                let timeout = self.response_timeout.as_secs_f64();
                let back = self.crowd()?.has_arrived() || over >= timeout;
                done = storms == times && over >= 0.0 && back;
                if storms < times && elapsed.as_secs_f64() >= every * f64::from(storms + 1) {
                    storms += 1;
                    match self.shape.missed {
                        0 => self.crowd()?.storm(),
                        _ => self.storm(storms, stop, show)?,
                    }
                }
            }
            if self.shape.ends_when_published {
                done = self.publishers.iter().all(JoinHandle::is_finished);
            }
            if done || ended() {
                return Ok(());
            }
            self.pause(Phase::Holding, show)?;
        }
    }

    fn publish(&mut self) -> Result<()> {
        // If agents share the run, the coordinator is the back end.
        if let Some(address) = self.shape.backend.filter(|_| self.others.is_none()) {
            backend::start(address)?;
        }
        if let Some(context) = &self.context {
            for stream in &self.streams {
                self.publishers.extend(publisher::start(context, *stream, self.publishers_each)?);
            }
        }
        Ok(())
    }

    /// Waits until all parts of the run have reached a point, or the run is stopped.
    fn meet(
        &mut self,
        point: Point,
        phase: Phase,
        stop: &AtomicBool,
        show: &mut dyn Show,
    ) -> Result<()> {
        let Some(others) = &mut self.others else {
            return Ok(());
        };
        others.reach(point, &self.published.own())?;
        // A stopped part still learns how much the others have published.
        while point == Point::Published || !stop.load(Ordering::Relaxed) {
            if let Some(others) = &mut self.others
                && others.have_reached(point, &self.published)?
            {
                break;
            }
            self.pause(phase, show)?;
        }
        Ok(())
    }

    fn pause(&mut self, phase: Phase, show: &mut dyn Show) -> Result<()> {
        let left = self.next_sample.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(POLL_EVERY));
        if Instant::now() >= self.next_sample {
            self.sample(phase, show)?;
        }
        Ok(())
    }

    /// Ends the publishers, waits for the messages on their way, and counts those that never arrive. If the run was
    /// stopped, it waits less, unless the user has said how long. A stop during the wait ends it at once.
    fn finish(&mut self, stop: &AtomicBool, show: &mut dyn Show) -> Result<()> {
        let stopped = stop.load(Ordering::Relaxed);
        if let Some(context) = &self.context {
            context.stop.store(true, Ordering::Relaxed);
        }
        self.probes.stop.store(true, Ordering::Relaxed);
        self.crowd()?.end_cuts();
        if self.others.is_some() {
            let begin = Instant::now();
            while begin.elapsed() < self.settle
                && !self.publishers.iter().all(JoinHandle::is_finished)
            {
                self.pause(Phase::Settling, show)?;
            }
            self.meet(Point::Published, Phase::Settling, stop, show)?;
        }
        let publishes = !self.streams.is_empty() || self.shape.missed > 0;
        let settle = if stopped { self.settle_stopped } else { self.settle };
        let begin = Instant::now();
        let (mut messages, mut since) = (self.crowd()?.counts().messages, Instant::now());
        while publishes && begin.elapsed() < settle && (stopped || !stop.load(Ordering::Relaxed)) {
            self.pause(Phase::Settling, show)?;
            let now = self.crowd()?.counts().messages;
            if now != messages {
                (messages, since) = (now, Instant::now());
            }
            // Silence may mean that all messages have arrived, or that the server is slow.
            let finished = self.publishers.iter().all(JoinHandle::is_finished);
            let back = !self.recover || self.crowd()?.all_open();
            if since.elapsed() >= QUIET && finished && back {
                if self.crowd()?.missing() == 0 {
                    break;
                }
                since = Instant::now();
            }
        }
        // A publisher that still waits for a response ends with the process.
        self.publishers.retain(|publisher| !publisher.is_finished());
        if publishes {
            self.crowd()?.describe_missing();
            self.lost_at_end = self.crowd()?.missing();
        }
        // A sample has the server's figures of the sample before. The last one needs the final ones.
        self.poll_server();
        self.sample(Phase::Settling, show)
    }

    fn poll_server(&self) {
        if let Some(watch) = &self.watch {
            watch.take();
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn counts(&self) -> Result<Counts> {
        let mut counts = self.crowd()?.counts();
        counts.lost += self.lost_at_end;
        if let Some(context) = &self.context {
            counts.published = context.accepted.load(Ordering::Relaxed);
            counts.publish_failed = context.failed.load(Ordering::Relaxed);
            counts.publish_unsure = context.unsure.load(Ordering::Relaxed);
        }
        counts.probes = self.probes.succeeded.load(Ordering::Relaxed);
        counts.probes_failed = self.probes.failed.load(Ordering::Relaxed);
        Ok(counts)
    }

    fn sample(&mut self, phase: Phase, show: &mut dyn Show) -> Result<()> {
        let times = self.crowd()?.take_times();
        let host = Host::now();
        let sample = Sample {
            at_seconds: self.begin.elapsed().as_secs_f64(),
            counts: self.counts()?,
            ..of_host(&host, self.watch.as_ref())
        };
        let sample = with_times(sample, &times, sample.server);
        if let Some(others) = &mut self.others {
            others.sample(phase, &sample, &times)?;
        }
        self.times.add(&times);
        show.sample(phase, &self.last, &sample, self.connections);
        if let Some(series) = &mut self.series {
            series.store(sample);
        }
        // On equal counts the last sample is taken, when memory has settled.
        if sample.counts.open >= self.fullest.counts.open {
            self.fullest = sample;
        }
        self.last = sample;
        self.next_sample = Instant::now() + SAMPLE_EVERY;
        Ok(())
    }

    fn results(mut self, interrupted: bool) -> Result<(Vec<Sample>, Results)> {
        let (mut failures, closes) = self.crowd()?.reasons();
        if let Some(context) = &self.context {
            let failed = self.last.counts.publish_failed + self.last.counts.publish_unsure;
            let error = lock(&context.last_error).clone();
            failures.extend(error.map(|why| (format!("publish: {why}"), failed)));
        }
        failures.extend(self.crowd()?.causes());
        self.own_kernel.update_own();
        let mut kernels = self.watch.as_ref().map_or(Vec::new(), Watches::kernel_findings);
        kernels.push(self.own_kernel.findings());
        let samples = self.series.take().map_or(Vec::new(), |series| series.end(self.last));
        let results = Results {
            started_unix_seconds: self.begin_unix_seconds,
            full: self.full,
            interrupted,
            arrived: self.arrived.unwrap_or_default(),
            last: self.last,
            memory_bytes_before: self.host_before.own_bytes,
            fullest: (self.fullest.memory_bytes, self.fullest.counts.open),
            targets: self.crowd()?.targets(true),
            failures,
            closes,
            faults: self.crowd()?.anomalies(),
            kernels,
            storms: std::mem::take(&mut self.storms),
            times: std::mem::take(&mut self.times),
            probe: lock(&self.probes.times).clone(),
            publish: match &self.context {
                Some(context) => lock(&context.times).clone(),
                None => crate::crowd::histogram(),
            },
            silence: self.crowd()?.silences(),
        };
        if let Some(crowd) = self.crowd.take() {
            crowd.close()?;
        }
        Ok((samples, results))
    }
}

impl Drop for Run<'_> {
    /// Stops the threads of a run that breaks off, because an agent's process goes on.
    fn drop(&mut self) {
        if let Some(context) = &self.context {
            context.stop.store(true, Ordering::Relaxed);
        }
        self.probes.stop.store(true, Ordering::Relaxed);
        if let Some(crowd) = self.crowd.take() {
            // The caller has the reason already.
            let _ = crowd.close();
        }
    }
}

/// Starts to watch the servers, and warns if --admin names none that can be watched.
pub fn watch(common: &Common, admins: &[Url], key: Option<&str>) -> Option<Watches> {
    let watch = Watches::start(admins, key);
    if !common.admin.is_empty() && watch.is_none() {
        use std::io::Write;
        let _ = writeln!(
            std::io::stderr(),
            "warning: --admin does not respond with Throng's metrics: the server's memory and \
             processor time are left out"
        );
    }
    watch
}

/// Returns a sample with the figures of the host and the server alone.
fn of_host(host: &Host, watch: Option<&Watches>) -> Sample {
    Sample {
        memory_bytes: host.own_bytes,
        cpu_seconds: host.own_cpu.as_secs_f64(),
        slab_bytes: host.slab_bytes,
        tcp_bytes: host.tcp_bytes,
        available_bytes: host.available_bytes,
        server: watch.and_then(Watches::take),
        ..Sample::default()
    }
}
