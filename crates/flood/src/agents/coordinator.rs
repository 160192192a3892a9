//! The coordinator: gives each agent its share, synchronizes the agents, and adds up their measurements.

use std::collections::HashSet;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use admin::Url;
use anyhow::{Context, Result, anyhow, ensure};

use super::clocks::AgentClock;
use super::frame::{FRAME_BYTES_MAX, receive, send};
use super::hello::{self, HELLO_TIMEOUT};
use super::{Job, SILENCE_MAX, ToAgent, ToCoordinator};
use crate::clock::now_ns;
use crate::crowd::{Part, PublishedHere, Times, lock};
use crate::record::{self, Sample, Summary};
use crate::run::{Point, Results, RunError, SAMPLE_EVERY, Series, add_sample, watch, with_times};
use crate::scenario::Scenario;
use crate::server::Watches;
use crate::setup::Setup;
use crate::show::{Phase, Show};
use crate::{backend, host};

/// The limit on the agents of one run.
const AGENTS_MAX: usize = 64;
/// How long an agent may take to resolve hosts and get ready.
const READY_MAX: Duration = Duration::from_secs(60);
/// Pings to each agent before the start. A pong has the agent's time.
const PINGS_BEFORE_START: u32 = 20;
/// Time between two later pings to an agent.
const PING_INTERVAL: Duration = Duration::from_millis(500);
/// How long after the order all agents begin: the order must have reached all of them by then.
const START_AFTER: Duration = Duration::from_millis(500);
/// How long to wait for news before checking what is due.
const WAIT: Duration = Duration::from_millis(20);

/// News from the agent with this number: its message, or the reason why it is lost.
type News = (usize, Result<ToCoordinator>);

/// An agent as the coordinator knows it.
struct Member {
    name: String,
    socket: TcpStream,
    part: Part,
    clock: Arc<Mutex<AgentClock>>,
    /// The largest error of the measured clock, in nanoseconds.
    clock_error_ns: u64,
    is_ready: bool,
    phase: Phase,
    reached: HashSet<Point>,
    published: Option<PublishedHere>,
    last: Sample,
    times: Times,
    results: Option<Results>,
    lost: Option<String>,
}

impl Member {
    /// Returns true if the agent will send more news.
    fn is_under_way(&self) -> bool {
        self.results.is_none() && self.lost.is_none()
    }

    fn say(&mut self, message: &ToAgent) {
        if self.lost.is_none()
            && let Err(error) = send(&mut self.socket, message)
        {
            self.lose(&error);
        }
    }

    fn lose(&mut self, why: &anyhow::Error) {
        if !self.is_under_way() {
            return;
        }
        self.lost = Some(format!("{why:#}"));
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        // Its open connections are gone. The counts of its connections stay.
        self.last.counts.open = 0;
        (self.last.memory_bytes, self.last.available_bytes) = (0, 0);
    }
}

/// Runs a scenario on agents. `setup` is for the whole run.
///
/// # Errors
/// If an agent can't be reached or can't run its share. An agent that is lost later is no error: the summary shows
/// it.
pub fn coordinate(
    scenario: &Scenario,
    setup: Setup,
    stop: &AtomicBool,
    command: String,
    show: &mut dyn Show,
) -> Result<(Vec<Sample>, Summary), RunError> {
    let common = scenario.common();
    let key = common.agents_key_file.as_deref().map(files::read_secret).transpose();
    let key = key.map_err(|error| RunError::Usage(anyhow!("--agents-key-file {error}")))?;
    let count = common.agents.len();
    if count > AGENTS_MAX {
        return Err(RunError::Usage(anyhow!(
            "--agents: {count} agents, but at most {AGENTS_MAX} are allowed"
        )));
    }
    let all: HashSet<&String> = common.agents.iter().collect();
    if all.len() < count {
        return Err(RunError::Usage(anyhow!("--agents: an agent is named twice")));
    }
    let (sender, news) = channel();
    let mut members = Vec::new();
    for (number, name) in common.agents.iter().enumerate() {
        let part = Part { number: number as u32, of: count as u32 };
        let job = Job {
            scenario: scenario.clone(),
            part,
            run: setup.plan.run,
            key: setup.key.clone(),
            ca: setup.ca.clone(),
        };
        let member = enlist(name, number, job, key.as_deref(), &sender);
        members.push(member.with_context(|| format!("agent {name}")).map_err(RunError::Runtime)?);
    }
    let watch = watch(common, &setup.admins, setup.key.as_deref());
    let mut run = Together { members, news, watch, passed: HashSet::new(), arrived: None };
    run.make_ready()?;
    run.measure_clocks().map_err(RunError::Runtime)?;
    if let Some(address) = setup.shape.backend {
        backend::start(address).map_err(RunError::Runtime)?;
    }
    let started_unix_seconds = host::unix_seconds();
    let samples = run.follow(setup.plan.connections, stop, show);
    let results = run.results(started_unix_seconds, samples.1, stop.load(Ordering::Relaxed));
    let agents = run.agents(setup.plan.connections);
    let samples = samples.0.end(results.last);
    let summary = results.summary(scenario.name(), command, setup.plan.connections);
    Ok((samples, Summary { agents, ..summary }))
}

/// Connects to an agent, and gives it its job.
fn enlist(
    name: &str,
    number: usize,
    job: Job,
    key: Option<&str>,
    news: &Sender<News>,
) -> Result<Member> {
    let address = Url::parse(name)?.address;
    let mut socket = TcpStream::connect_timeout(&address, HELLO_TIMEOUT)
        .context("can't be reached: does throng flood agent run there, with --listen?")?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(SILENCE_MAX))?;
    hello::meet(&socket, key)?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    let part = job.part;
    send(&mut socket, &ToAgent::Job(Box::new(job)))?;
    let clock: Arc<Mutex<AgentClock>> = Arc::default();
    let (listening, news, shared) = (socket.try_clone()?, news.clone(), clock.clone());
    std::thread::Builder::new()
        .name(format!("agent-{number}"))
        .spawn(move || listen(listening, number, &news, &shared))
        .context("starting a thread")?;
    Ok(Member {
        name: name.to_string(),
        socket,
        part,
        clock,
        clock_error_ns: 0,
        is_ready: false,
        phase: Phase::Arriving,
        reached: HashSet::new(),
        published: None,
        last: Sample::default(),
        times: Times::new(),
        results: None,
        lost: None,
    })
}

/// Receives an agent's messages until it ends. Pongs go to its clock, not to the news.
fn listen(mut socket: TcpStream, number: usize, news: &Sender<News>, clock: &Mutex<AgentClock>) {
    loop {
        let said = match receive(&mut socket, FRAME_BYTES_MAX) {
            Ok(Some(ToCoordinator::Pong { number, at_ns })) => {
                lock(clock).on_pong(number, at_ns, now_ns());
                continue;
            }
            Ok(Some(said)) => Ok(said),
            Ok(None) => Err(anyhow!("it closed the connection")),
            Err(error) => Err(error),
        };
        let is_over = said.is_err();
        if news.send((number, said)).is_err() || is_over {
            return;
        }
    }
}

/// The agents of a run under way.
struct Together {
    members: Vec<Member>,
    news: Receiver<News>,
    watch: Option<Watches>,
    passed: HashSet<Point>,
    /// The sample at the moment when all had arrived.
    arrived: Option<Sample>,
}

impl Together {
    /// Waits until all agents can begin.
    fn make_ready(&mut self) -> Result<(), RunError> {
        let begin = Instant::now();
        let mut times = Times::new();
        while !self.members.iter().all(|member| member.is_ready) {
            match self.news.recv_timeout(WAIT) {
                Ok((from, Ok(ToCoordinator::Refused { why, is_usage }))) => {
                    let error = anyhow!("agent {}: {why}", self.members[from].name);
                    return Err(match is_usage {
                        true => RunError::Usage(error),
                        false => RunError::Runtime(error),
                    });
                }
                Ok(news) => self.on_message(news, &mut times),
                Err(_) => {}
            }
            let member = self.members.iter().find(|it| it.lost.is_some() || !it.is_ready);
            let Some(Member { name, lost, .. }) = member else { break };
            if let Some(why) = lost {
                return Err(RunError::Runtime(anyhow!("agent {name}: {why}")));
            }
            if begin.elapsed() > READY_MAX {
                return Err(RunError::Runtime(anyhow!("agent {name} does not become ready")));
            }
        }
        Ok(())
    }

    /// Measures how far the clock of each agent is ahead.
    fn measure_clocks(&mut self) -> Result<()> {
        for _ in 0..PINGS_BEFORE_START {
            self.ping();
            std::thread::sleep(WAIT / 4);
        }
        std::thread::sleep(WAIT);
        self.send_clocks();
        for Member { name, clock, .. } in &self.members {
            ensure!(lock(clock).ahead().is_some(), "agent {name} does not send its time");
        }
        Ok(())
    }

    fn ping(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.is_under_way()) {
            let number = lock(&member.clock).ping(now_ns());
            member.say(&ToAgent::Ping { number });
        }
    }

    fn send_clocks(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.is_under_way()) {
            let ahead = lock(&member.clock).ahead();
            if let Some((ahead_ns, error_ns)) = ahead {
                member.clock_error_ns = error_ns;
                member.say(&ToAgent::Clock { ahead_ns });
            }
        }
    }

    /// Runs until each agent has given its results or is lost. Returns the samples, and the last one.
    fn follow(
        &mut self,
        connections: u32,
        stop: &AtomicBool,
        show: &mut dyn Show,
    ) -> (Series, Sample) {
        let at_ns = now_ns() + START_AFTER.as_nanos() as u64;
        self.say(&ToAgent::Start { at_ns });
        std::thread::sleep(START_AFTER);
        let (begin, mut times) = (Instant::now(), Times::new());
        let mut last = Sample { server: self.server(), ..Sample::default() };
        let mut series = Series::begin(last);
        let (mut sampled, mut pinged, mut is_stopped) = (begin, begin, false);
        while self.members.iter().any(Member::is_under_way) {
            match self.news.recv_timeout(WAIT) {
                Ok(news) => self.on_message(news, &mut times),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if stop.load(Ordering::Relaxed) && !std::mem::replace(&mut is_stopped, true) {
                self.say(&ToAgent::Stop);
            }
            if pinged.elapsed() >= PING_INTERVAL {
                pinged = Instant::now();
                self.ping();
                self.send_clocks();
            }
            self.pass(begin);
            if sampled.elapsed() >= SAMPLE_EVERY {
                sampled = Instant::now();
                let times = std::mem::take(&mut times);
                let sample = with_times(self.sum(begin), &times, self.server());
                show.sample(self.phase(), &last, &sample, connections);
                series.store(sample);
                last = sample;
            }
        }
        self.say(&ToAgent::End);
        // A call returns the figures of the poll before, and requests a new poll.
        self.server();
        std::thread::sleep(Duration::from_millis(200));
        let at_seconds = begin.elapsed().as_secs_f64();
        (series, Sample { at_seconds, server: self.server(), ..last })
    }

    fn say(&mut self, message: &ToAgent) {
        self.members.iter_mut().for_each(|member| member.say(message));
    }

    fn server(&self) -> Option<record::Server> {
        self.watch.as_ref().and_then(Watches::take)
    }

    /// Processes an agent's message. `times` collects the times since the last common sample.
    fn on_message(&mut self, (from, said): News, times: &mut Times) {
        let member = &mut self.members[from];
        match said {
            Ok(ToCoordinator::Ready) => member.is_ready = true,
            Ok(ToCoordinator::Reached { point, published }) => {
                member.reached.insert(point);
                if point == Point::Published {
                    member.published = Some(published);
                }
            }
            Ok(ToCoordinator::Sample { phase, sample, times: more }) => {
                (member.phase, member.last) = (phase, *sample);
                member.times.add(&more);
                times.add(&more);
            }
            Ok(ToCoordinator::Done(results)) => {
                member.last = results.last;
                member.results = Some(*results);
            }
            Ok(ToCoordinator::Failed { why } | ToCoordinator::Refused { why, .. }) => {
                self.lose(from, &anyhow!(why));
            }
            Ok(ToCoordinator::Pong { .. }) => {}
            Err(error) => self.lose(from, &error),
        }
    }

    fn lose(&mut self, from: usize, why: &anyhow::Error) {
        let member = &mut self.members[from];
        if !member.is_under_way() {
            return;
        }
        member.lose(why);
        if member.is_ready {
            let name = &member.name;
            let _ = writeln!(std::io::stderr(), "warning: agent {name} is lost: {why:#}");
        }
    }

    /// Releases the agents from each point that all agents under way have reached.
    fn pass(&mut self, begin: Instant) {
        let points: HashSet<Point> =
            self.members.iter().flat_map(|member| member.reached.iter().copied()).collect();
        for point in points {
            let mut waited_for = self.members.iter().filter(|member| member.is_under_way());
            let all = waited_for.all(|member| member.reached.contains(&point));
            if !all || !self.passed.insert(point) {
                continue;
            }
            if point == Point::Arrived {
                self.arrived = Some(Sample { server: self.server(), ..self.sum(begin) });
            }
            let published = match point {
                Point::Published => {
                    let of = |it: &Member| Some((it.part, it.published.clone()?));
                    self.members.iter().filter_map(of).collect()
                }
                _ => Vec::new(),
            };
            self.say(&ToAgent::Pass { point, published });
        }
    }

    /// Returns the sum of all agents' last samples.
    fn sum(&self, begin: Instant) -> Sample {
        let mut sum = Sample::default();
        self.members.iter().for_each(|member| add_sample(&mut sum, &member.last));
        Sample { at_seconds: begin.elapsed().as_secs_f64(), ..sum }
    }

    /// Returns the phase of the slowest agent.
    fn phase(&self) -> Phase {
        let mut phases = self.members.iter().filter(|it| it.is_under_way()).map(|it| it.phase);
        let of = |phase| move |other: Phase| other == phase;
        match () {
            () if phases.clone().any(of(Phase::Arriving)) => Phase::Arriving,
            () if phases.any(of(Phase::Holding)) => Phase::Holding,
            () => Phase::Settling,
        }
    }

    /// Returns the sum of all agents' results. A lost agent has no results, so its last sample is added.
    fn results(&mut self, started_unix_seconds: u64, last: Sample, interrupted: bool) -> Results {
        let kernels = self.watch.as_ref().map_or(Vec::new(), Watches::kernel_findings);
        let mut sum = Results { started_unix_seconds, interrupted, kernels, ..Results::default() };
        for member in &mut self.members {
            sum.add(member.results.take().unwrap_or_else(|| Results {
                last: member.last,
                times: std::mem::take(&mut member.times),
                ..Results::default()
            }));
        }
        sum.arrived.server = self.arrived.and_then(|arrived| arrived.server);
        sum.last.server = last.server;
        sum.last.at_seconds = last.at_seconds;
        sum.last = with_times(sum.last, &Times::new(), sum.last.server);
        sum
    }

    fn agents(&self, connections: u32) -> Vec<record::Agent> {
        let agent = |member: &Member| record::Agent {
            agent: member.name.clone(),
            connections: u64::from(member.part.share(connections)),
            open: member.last.counts.open,
            messages: member.last.counts.messages,
            clock_error_us: member.clock_error_ns.div_ceil(1_000),
            lost: member.lost.clone(),
        };
        self.members.iter().map(agent).collect()
    }
}
