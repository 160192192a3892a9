//! One run from its begin to its end: the crowd arrives, stays, and is audited.

mod storm;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;

use crate::args::Common;
use crate::crowd::{Crowd, Times};
use crate::host::{self, Host};
use crate::probe::{self, Probes};
use crate::publisher::{self, Desk, Stream};
use crate::record::{self, Counts, Percentiles, Sample, Summary};
use crate::report;
use crate::scenario::{Scenario, Shape};
use crate::server::Watch;
use crate::setup::Setup;
use crate::show::{Phase, Show};

/// How often a sample is taken.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Samples kept: a longer run keeps every second one, then every fourth, and so on.
const SAMPLES_MAX: usize = 7_200;
/// How long nothing may come until all is taken to have come.
const QUIET: Duration = Duration::from_millis(1_500);
/// How long messages on their way may take when the run was stopped.
const SETTLE_STOPPED: Duration = Duration::from_secs(5);
/// How long a look at the clock may take.
const LOOK: Duration = Duration::from_millis(20);

/// What a run came to.
pub struct Outcome {
    /// All of it.
    pub summary: Summary,
    /// True when everyone who should be there was there at the end. Where users come and go, where
    /// memory was short and where the run was stopped, it can't be told and isn't asked.
    pub complete: bool,
    /// The page of the report, when one was asked for, or why it couldn't be written.
    pub report: Option<Result<PathBuf>>,
}

/// Why there was no run, or no end of it.
#[derive(Debug)]
pub enum Error {
    /// The command line can't be carried out.
    Usage(anyhow::Error),
    /// The kernel refused the crowd something.
    Runtime(anyhow::Error),
}

/// Runs a scenario. `stop` ends it early, with all that it measured so far; `command` is what was
/// typed.
///
/// # Errors
/// See [`Error`]. What the server does wrong is no error, but in the outcome.
pub fn run(
    scenario: &Scenario,
    stop: &AtomicBool,
    command: String,
    show: &mut dyn Show,
) -> Result<Outcome, Error> {
    let common = scenario.common();
    if let Some(folder) = &common.report {
        // Now, not after an hour.
        std::fs::create_dir_all(folder)
            .with_context(|| format!("--report {}", folder.display()))
            .map_err(Error::Usage)?;
    }
    let setup = Setup::new(scenario).map_err(Error::Usage)?;
    let stay = setup.plan.life.stay_seconds.is_none();
    let (samples, summary) = whole(scenario, setup, stop, command, show).map_err(Error::Runtime)?;
    let report = common.report.as_ref().map(|folder| report::write(folder, &samples, &summary));
    let complete =
        !stay || summary.full || summary.interrupted || summary.counts.open == summary.connections;
    Ok(Outcome { summary, complete, report })
}

fn whole(
    scenario: &Scenario,
    setup: Setup,
    stop: &AtomicBool,
    command: String,
    show: &mut dyn Show,
) -> Result<(Vec<Sample>, Summary)> {
    let mut run = Run::start(setup, scenario.common())?;
    run.go(stop, show)?;
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
    /// No more connections were opened, for memory.
    full: bool,
    connections: u32,
    rooms: u32,
    recover: bool,
    storms: Vec<record::Storm>,
    crowd: Option<Crowd>,
    desk: Option<Arc<Desk>>,
    streams: Vec<Stream>,
    publishers_each: u32,
    publishers: Vec<JoinHandle<()>>,
    watch: Option<Watch>,
    probes: Arc<Probes>,
    begin: Instant,
    begin_unix_seconds: u64,
    host_before: Host,
    samples: Vec<Sample>,
    /// One of so many samples is kept.
    thinned: usize,
    taken: usize,
    times: Times,
    /// What was published and never came, counted at the end.
    lost_at_end: u64,
    /// When the crowd stood.
    stood: Option<Sample>,
    last: Sample,
    next_sample: Instant,
}

impl Run {
    fn start(setup: Setup, common: &Common) -> Result<Self> {
        let Setup { shape, plan, desk, streams, admin, key, probes: probe_urls, published } = setup;
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
        // What was there before the first connection, to measure from.
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
            desk: desk.map(Arc::new),
            streams,
            publishers_each: common.publishers,
            publishers: Vec::new(),
            watch,
            probes,
            begin: Instant::now(),
            begin_unix_seconds: host::unix_seconds(),
            host_before,
            samples: vec![before],
            thinned: 1,
            taken: 0,
            times: Times::new(),
            lost_at_end: 0,
            stood: None,
            last: before,
            next_sample: Instant::now() + SAMPLE_EVERY,
        })
    }

    fn crowd(&self) -> Result<&Crowd> {
        let crowd = self.crowd.as_ref().context("the crowd is gone")?;
        if let Some(why) = crowd.broken() {
            bail!("the crowd can't go on: {why}");
        }
        Ok(crowd)
    }

    /// Arrival and hold.
    fn go(&mut self, stop: &AtomicBool, show: &mut dyn Show) -> Result<()> {
        let ended = || stop.load(Ordering::Relaxed);
        if self.shape.publish_at_once {
            self.publish()?;
        }
        let mut all_begun = Instant::now();
        while !ended() && !self.full && !self.crowd()?.stands() {
            self.pause(Phase::Arriving, show)?;
            if !self.crowd()?.all_begun() {
                all_begun = Instant::now();
            }
            // A server that hangs must not keep the run from going on.
            if all_begun.elapsed() > self.answer_timeout + QUIET {
                break;
            }
            self.full =
                self.keep_memory_bytes > 0 && Host::now().free_bytes < self.keep_memory_bytes;
        }
        if self.full || ended() {
            self.crowd()?.full();
        }
        if ended() {
            return Ok(());
        }
        self.sample(Phase::Holding, show)?;
        self.stood = Some(self.last);
        if !self.shape.publish_at_once {
            self.publish()?;
        }
        let (begin, mut storms) = (Instant::now(), 0);
        loop {
            let held = begin.elapsed();
            let mut done = held >= self.hold;
            if let Some((times, every)) = self.shape.storms {
                let over = held.as_secs_f64() - every * f64::from(times + 1);
                let back = self.crowd()?.stands() || over >= self.answer_timeout.as_secs_f64();
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
        if let Some(desk) = &self.desk {
            for stream in &self.streams {
                self.publishers.extend(publisher::start(desk, *stream, self.publishers_each)?);
            }
        }
        Ok(())
    }

    fn pause(&mut self, phase: Phase, show: &mut dyn Show) -> Result<()> {
        let left = self.next_sample.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(LOOK));
        if Instant::now() >= self.next_sample {
            self.sample(phase, show)?;
        }
        Ok(())
    }

    /// Publishers end, what is on its way arrives, and what never came is counted. When the run was
    /// stopped, what is on its way has less time, and a stop now ends it at once.
    fn finish(&mut self, stop: &AtomicBool, show: &mut dyn Show) -> Result<()> {
        let stopped = stop.load(Ordering::Relaxed);
        if let Some(desk) = &self.desk {
            desk.stop.store(true, Ordering::Relaxed);
        }
        self.probes.stop.store(true, Ordering::Relaxed);
        self.crowd()?.calm();
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
            // Quiet may mean that all has come, or that the server takes its time.
            let finished = self.publishers.iter().all(JoinHandle::is_finished);
            let back = !self.recover || self.crowd()?.all_there();
            if since.elapsed() >= QUIET && finished && back {
                if self.crowd()?.missing() == 0 {
                    break;
                }
                since = Instant::now();
            }
        }
        // One that still waits for its answer ends with the process.
        self.publishers.retain(|publisher| !publisher.is_finished());
        if publishes {
            self.crowd()?.tell_missing();
            self.lost_at_end = self.crowd()?.missing();
        }
        // The server is asked after each sample: the last one must know the end.
        self.ask_server();
        self.sample(Phase::Settling, show)
    }

    fn ask_server(&self) {
        if let Some(watch) = &self.watch {
            watch.take();
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn counts(&self) -> Result<Counts> {
        let mut counts = self.crowd()?.counts();
        counts.lost += self.lost_at_end;
        if let Some(desk) = &self.desk {
            counts.published = desk.taken.load(Ordering::Relaxed);
            counts.publish_failed = desk.failed.load(Ordering::Relaxed);
        }
        counts.probes = self.probes.good.load(Ordering::Relaxed);
        counts.probes_failed = self.probes.bad.load(Ordering::Relaxed);
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
        self.keep(sample);
        self.last = sample;
        self.next_sample = Instant::now() + SAMPLE_EVERY;
        Ok(())
    }

    fn keep(&mut self, sample: Sample) {
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
        let (failures, closes) = self.crowd()?.reasons();
        let mut failures = failures;
        if let Some(desk) = &self.desk {
            let failure = desk.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            failures.extend(
                failure
                    .iter()
                    .map(|why| (format!("publish: {why}"), self.last.counts.publish_failed)),
            );
        }
        if self.samples.last() != Some(&self.last) {
            self.samples.push(self.last);
        }
        let fullest = self.samples.iter().chain([&self.last]).max_by_key(|s| s.counts.open);
        let grown =
            fullest.map_or(0, |s| s.memory_bytes.saturating_sub(self.host_before.own_bytes));
        let open = fullest.map_or(0, |s| s.counts.open).max(1);
        let stood = self.stood.unwrap_or_default();
        let per = |seconds: f64, messages: u64| {
            if messages == 0 { 0.0 } else { seconds * 1e6 / messages as f64 }
        };
        // A heartbeat costs what a message costs.
        let since_stood = |count: fn(&Counts) -> u64| {
            count(&self.last.counts).saturating_sub(count(&stood.counts))
        };
        let heartbeats = since_stood(|counts| counts.heartbeats);
        let received = since_stood(|counts| counts.messages) + heartbeats;
        let server_cpu = self.last.server.zip(stood.server).map(|(last, first)| {
            let delivered = last.delivered.saturating_sub(first.delivered) + heartbeats;
            per(last.cpu_seconds - first.cpu_seconds, delivered)
        });
        let probe = self.probes.times.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
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
            probe: percentiles(&probe),
            recover: self.recover,
            storms: std::mem::take(&mut self.storms),
            faults: self.crowd()?.faults(),
            memory_per_connection_bytes: grown as f64 / open as f64,
            cpu_per_message_us: per(self.last.cpu_seconds - stood.cpu_seconds, received),
            server_cpu_per_message_us: server_cpu,
            host: host::facts(),
            settings: host::settings(),
        };
        drop(probe);
        if let Some(crowd) = self.crowd.take() {
            crowd.close()?;
        }
        Ok((self.samples, summary))
    }
}

/// A sample of what host and server say of themselves.
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

/// Of a histogram in microseconds.
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
