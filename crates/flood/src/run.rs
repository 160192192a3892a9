//! One run from its begin to its end: the crowd connects, stays, and is checked.

mod storm;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;

use crate::args::Common;
use crate::backend;
use crate::crowd::{Crowd, Times, lock};
use crate::host::{self, Host};
use crate::kernels::{HostFindings, KernelWatch, distinct};
use crate::preflight;
use crate::probe::{self, Probes};
use crate::publisher::{self, PublishContext, Stream};
use crate::record::{self, Counts, Percentiles, Sample, Summary};
use crate::report;
use crate::scenario::{Scenario, Shape};
use crate::server::Watch;
use crate::setup::Setup;
use crate::show::{Phase, Show};

/// How often the run takes a sample.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// The limit on stored samples: a longer run stores every second one, then every fourth, and so on.
const SAMPLES_MAX: usize = 7_200;
/// How long no message may arrive until the run takes it that all have arrived.
const QUIET: Duration = Duration::from_millis(1_500);
/// How long messages on their way may take when the run was stopped.
const SETTLE_STOPPED: Duration = Duration::from_secs(5);
/// How often the run checks whether something is due.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// The outcome of a run.
pub struct Outcome {
    /// All that was measured.
    pub summary: Summary,
    /// False when connections were missing at the end. Always true where users come and go, where
    /// memory was short, and where the run was stopped, since nobody can tell there.
    pub complete: bool,
    /// The path of the report's page, or why it could not be written. `None` without `--report`.
    pub report: Option<Result<PathBuf>>,
}

/// Why a run did not begin, or did not get to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The command line asks for something impossible.
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
    let setup = Setup::new(scenario).map_err(RunError::Usage)?;
    preflight::check(&setup, common).map_err(RunError::Runtime)?;
    let stay = setup.plan.lifetime.stay_seconds.is_none();
    let (samples, summary) =
        run_to_end(scenario, setup, stop, command, show).map_err(RunError::Runtime)?;
    let report = common.report.as_ref().map(|folder| report::write(folder, &samples, &summary));
    let complete =
        !stay || summary.full || summary.interrupted || summary.counts.open == summary.connections;
    Ok(Outcome { summary, complete, report })
}

fn run_to_end(
    scenario: &Scenario,
    setup: Setup,
    stop: &AtomicBool,
    command: String,
    show: &mut dyn Show,
) -> Result<(Vec<Sample>, Summary)> {
    let mut run = Run::start(setup, scenario.common())?;
    run.arrive_and_hold(stop, show)?;
    run.finish(stop, show)?;
    let interrupted = stop.load(Ordering::Relaxed);
    run.summary(scenario, command, interrupted)
}

/// A run under way.
struct Run {
    shape: Shape,
    hold: Duration,
    settle: Duration,
    answer_timeout: Duration,
    keep_memory_bytes: u64,
    /// Set when the run opened no more connections because memory was short.
    full: bool,
    connections: u32,
    rooms: u32,
    recover: bool,
    storms: Vec<record::Storm>,
    crowd: Option<Crowd>,
    context: Option<Arc<PublishContext>>,
    streams: Vec<Stream>,
    publishers_each: u32,
    publishers: Vec<JoinHandle<()>>,
    watch: Option<Watch>,
    probes: Arc<Probes>,
    begin: Instant,
    begin_unix_seconds: u64,
    host_before: Host,
    /// The kernel of this host.
    own_kernel: KernelWatch,
    samples: Vec<Sample>,
    /// One of so many samples is stored.
    thinned: usize,
    taken: usize,
    times: Times,
    /// Messages that were published and never arrived, counted at the end.
    lost_at_end: u64,
    /// The sample of the moment when all connections had arrived.
    arrived: Option<Sample>,
    last: Sample,
    next_sample: Instant,
}

impl Run {
    fn start(setup: Setup, common: &Common) -> Result<Self> {
        let Setup { shape, plan, context, streams, admin, key, probes: probe_urls, published } =
            setup;
        let probes: Arc<Probes> = Arc::default();
        for url in probe_urls {
            probe::start(&probes, url, key.clone(), common.probe_rate)?;
        }
        let watch = admin.and_then(|url| Watch::start(&url, key.as_deref()));
        if common.admin.is_some() && watch.is_none() {
            use std::io::Write;
            let _ = writeln!(
                std::io::stderr(),
                "warning: --admin doesn't answer with Throng's metrics: the server's memory and \
                 processor time are left out"
            );
        }
        let host_before = Host::now();
        // The memory in use before the first connection, to measure the growth from.
        let before = of_host(&host_before, watch.as_ref());
        let (connections, rooms, recover) = (plan.connections, plan.rooms(), plan.recover);
        let crowd = Crowd::open(plan, published)?;
        Ok(Self {
            shape,
            hold: Duration::from_secs_f64(common.hold),
            settle: Duration::from_secs_f64(common.settle),
            answer_timeout: Duration::from_secs_f64(common.answer_timeout),
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
            samples: vec![before],
            thinned: 1,
            taken: 0,
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

    /// Opens the crowd and holds it.
    fn arrive_and_hold(&mut self, stop: &AtomicBool, show: &mut dyn Show) -> Result<()> {
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
            if all_begun.elapsed() > self.answer_timeout + QUIET {
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
        self.arrived = Some(self.last);
        if !self.shape.publish_at_once {
            self.publish()?;
        }
        let (begin, mut storms) = (Instant::now(), 0);
        loop {
            let held = begin.elapsed();
            let mut done = held >= self.hold;
            if let Some((times, every)) = self.shape.storms {
                let over = held.as_secs_f64() - every * f64::from(times + 1);
                let timeout = self.answer_timeout.as_secs_f64();
                let back = self.crowd()?.has_arrived() || over >= timeout;
                done = storms == times && over >= 0.0 && back;
                if storms < times && held.as_secs_f64() >= every * f64::from(storms + 1) {
                    storms += 1;
                    match self.shape.missed {
                        0 => self.crowd()?.storm(),
                        _ => self.storm(stop, show)?,
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
        if let Some(address) = self.shape.backend {
            backend::start(address)?;
        }
        if let Some(context) = &self.context {
            for stream in &self.streams {
                self.publishers.extend(publisher::start(context, *stream, self.publishers_each)?);
            }
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

    /// Ends the publishers, waits for the messages on their way, and counts those that never arrive.
    /// When the run was stopped, it waits less. A stop while it waits ends it at once.
    fn finish(&mut self, stop: &AtomicBool, show: &mut dyn Show) -> Result<()> {
        let stopped = stop.load(Ordering::Relaxed);
        if let Some(context) = &self.context {
            context.stop.store(true, Ordering::Relaxed);
        }
        self.probes.stop.store(true, Ordering::Relaxed);
        self.crowd()?.end_cuts();
        let publishes = !self.streams.is_empty() || self.shape.missed > 0;
        let settle = if stopped { self.settle.min(SETTLE_STOPPED) } else { self.settle };
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

    /// What went wrong in the kernels of the server's host and of this one since the run's begin.
    fn kernels(&mut self) -> Vec<HostFindings> {
        self.own_kernel.update_own();
        let server = self.watch.as_mut().and_then(Watch::kernel_findings);
        distinct(server.into_iter().chain([self.own_kernel.findings()]))
    }

    fn counts(&self) -> Result<Counts> {
        let mut counts = self.crowd()?.counts();
        counts.lost += self.lost_at_end;
        if let Some(context) = &self.context {
            counts.published = context.accepted.load(Ordering::Relaxed);
            counts.publish_failed = context.failed.load(Ordering::Relaxed);
        }
        counts.probes = self.probes.answered.load(Ordering::Relaxed);
        counts.probes_failed = self.probes.failed.load(Ordering::Relaxed);
        Ok(counts)
    }

    fn sample(&mut self, phase: Phase, show: &mut dyn Show) -> Result<()> {
        let times = self.crowd()?.take_times();
        let host = Host::now();
        let sample = Sample {
            at_seconds: self.begin.elapsed().as_secs_f64(),
            counts: self.counts()?,
            delivery: percentiles(&times.delivery),
            delivery_user: percentiles(&times.delivery_user),
            connect: percentiles(&times.connect),
            ..of_host(&host, self.watch.as_ref())
        };
        self.times.add(&times);
        show.sample(phase, &self.last, &sample, self.connections);
        self.store(sample);
        self.last = sample;
        self.next_sample = Instant::now() + SAMPLE_EVERY;
        Ok(())
    }

    /// Stores a sample, and thins the stored ones when they are too many.
    fn store(&mut self, sample: Sample) {
        self.taken += 1;
        if !self.taken.is_multiple_of(self.thinned) {
            return;
        }
        self.samples.push(sample);
        if self.samples.len() >= SAMPLES_MAX {
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.thinned *= 2;
        }
    }

    fn summary(
        mut self,
        scenario: &Scenario,
        command: String,
        interrupted: bool,
    ) -> Result<(Vec<Sample>, Summary)> {
        let (mut failures, closes) = self.crowd()?.reasons();
        if let Some(context) = &self.context {
            let failed = self.last.counts.publish_failed;
            let error = lock(&context.last_error).clone();
            failures.extend(error.map(|why| (format!("publish: {why}"), failed)));
        }
        failures.extend(self.crowd()?.causes());
        if self.samples.last() != Some(&self.last) {
            self.samples.push(self.last);
        }
        let fullest = self.samples.iter().chain([&self.last]).max_by_key(|s| s.counts.open);
        let grown =
            fullest.map_or(0, |s| s.memory_bytes.saturating_sub(self.host_before.own_bytes));
        let open = fullest.map_or(0, |s| s.counts.open).max(1);
        let arrived = self.arrived.unwrap_or_default();
        let per = |seconds: f64, messages: u64| {
            if messages == 0 { 0.0 } else { seconds * 1e6 / messages as f64 }
        };
        let since_arrival = |count: fn(&Counts) -> u64| {
            count(&self.last.counts).saturating_sub(count(&arrived.counts))
        };
        // A heartbeat costs as much as a message, so it counts as one.
        let heartbeats = since_arrival(|counts| counts.heartbeats);
        let received = since_arrival(|counts| counts.messages) + heartbeats;
        let server_cpu = self.last.server.zip(arrived.server).map(|(last, first)| {
            let delivered = last.delivered.saturating_sub(first.delivered) + heartbeats;
            per(last.cpu_seconds - first.cpu_seconds, delivered)
        });
        let probe = percentiles(&lock(&self.probes.times));
        let summary = Summary {
            command,
            scenario: scenario.name().to_string(),
            started_unix_seconds: self.begin_unix_seconds,
            seconds: self.last.at_seconds,
            interrupted,
            full: self.full,
            connections: u64::from(self.connections),
            counts: self.last.counts,
            failures,
            closes,
            delivery: percentiles(&self.times.delivery),
            delivery_user: percentiles(&self.times.delivery_user),
            connect: percentiles(&self.times.connect),
            probe,
            recover: self.recover,
            storms: std::mem::take(&mut self.storms),
            faults: self.crowd()?.anomalies(),
            memory_per_connection_bytes: grown as f64 / open as f64,
            cpu_per_message_us: per(self.last.cpu_seconds - arrived.cpu_seconds, received),
            server_cpu_per_message_us: server_cpu,
            host: host::facts(),
            kernels: self.kernels(),
            settings: host::settings(),
        };
        if let Some(crowd) = self.crowd.take() {
            crowd.close()?;
        }
        Ok((self.samples, summary))
    }
}

/// Returns a sample with the figures of the host and the server alone.
fn of_host(host: &Host, watch: Option<&Watch>) -> Sample {
    Sample {
        memory_bytes: host.own_bytes,
        cpu_seconds: host.own_cpu.as_secs_f64(),
        slab_bytes: host.slab_bytes,
        tcp_bytes: host.tcp_bytes,
        available_bytes: host.available_bytes,
        server: watch.and_then(Watch::take),
        ..Sample::default()
    }
}

/// Returns the percentiles of a histogram in microseconds.
fn percentiles(times: &Histogram<u64>) -> Percentiles {
    if times.is_empty() {
        return Percentiles::default();
    }
    let at = |quantile: f64| times.value_at_quantile(quantile);
    Percentiles {
        count: times.len(),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: times.max(),
    }
}
