//! Compares two builds of the server side by side, to show what a change costs or saves.
//!
//! `cargo bench -p bench --bench compare -- --before PATH [--after PATH]`, where the paths are executables of
//! `throng`; without `--after` the second is this tree's own. They take turns within each round, and alternate in
//! going first, so that a slow minute of the machine affects both alike.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::Args;
use bench::api::Api;
use bench::crowd::{Crowd, Plan};
use bench::process::ServerProcess;
use bench::report::{Table, median};
use bench::served_crowd::{Cost, ServedCrowd};
use bench::throng::{self, Sender, Throng};
use serde_json::json;

/// Broadcasts of one build's turn.
const BROADCASTS: usize = 4;
/// Messages of a batch, and batches of one build's turn.
const MESSAGES: usize = 20;
const BATCHES: usize = 3;
/// Publishers over HTTP, and the publishes of each in a turn, one after the other.
const PUBLISHERS: usize = 8;
const PUBLISHES: usize = 5_000;
/// Transports whose idle connections are measured.
const TRANSPORTS: [&str; 4] = ["sse", "stream", "ws", "phoenix"];

fn main() -> ExitCode {
    bench::main(run)
}

/// One figure of both builds, over the rounds.
struct Figure {
    name: String,
    of: [Vec<f64>; 2],
}

/// All figures, in the order in which they were first measured.
#[derive(Default)]
struct Figures(Vec<Figure>);

impl Figures {
    fn add(&mut self, name: &str, build: usize, value: f64) {
        let at = self.0.iter().position(|figure| figure.name == name).unwrap_or_else(|| {
            self.0.push(Figure { name: name.to_owned(), of: [Vec::new(), Vec::new()] });
            self.0.len() - 1
        });
        self.0[at].of[build].push(value);
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&["figure", "before", "after", "after / before", "by round"]);
        for Figure { name, of: [before, after] } in &self.0 {
            let ratios: Vec<f64> = after.iter().zip(before).map(|(a, b)| a / b).collect();
            let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let high = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            table.row([
                name.clone(),
                format!("{:.2}", median(before)),
                format!("{:.2}", median(after)),
                format!("{:.3}", median(after) / median(before)),
                format!("{low:.3}–{high:.3}"),
            ]);
        }
        table
    }
}

fn run(args: &Args) -> Result<()> {
    let Some(before) = &args.before else {
        println!("\ncompare: skipped; it needs another build: -- --before PATH");
        return Ok(());
    };
    let after = args.after.clone().map_or_else(throng::binary, Ok)?;
    let builds = [absolute(before)?, absolute(&after)?];
    let (connections, shards, cores) = (args.connections(), args.shards(), args.cores_note());
    let rounds = args.rounds_or(7);
    let start =
        |build: usize| Throng::start_build(&builds[build], shards, connections, Sender::Auto);
    let mut figures = Figures::default();
    for round in 0..rounds as usize {
        for build in order(round) {
            weigh(
                &start(build)?,
                &mut figures,
                build,
                connections,
                TRANSPORTS[round % TRANSPORTS.len()],
            )?;
            accept(start(build)?, &mut figures, build, connections)?;
        }
    }
    let mut standing = Vec::new();
    for build in 0..builds.len() {
        let mut crowd = ServedCrowd::new(start(build)?, connections)?;
        crowd.publish(1)?;
        standing.push(crowd);
    }
    for round in 0..rounds as usize {
        for build in order(round) {
            let cost = standing[build].cost(1, BROADCASTS)?;
            figures.add("fan-out, µs CPU a message", build, cost.cpu_us);
        }
        for build in order(round) {
            let cost = standing[build].cost(MESSAGES, BATCHES)?;
            figures.add("20 at once, µs CPU a message", build, cost.cpu_us);
        }
        for build in order(round) {
            let cost = publish(&mut standing[build].server)?;
            figures.add("HTTP publish, µs CPU", build, cost.cpu_us);
            figures.add("HTTP publishes a second", build, cost.per_second);
        }
    }
    println!(
        "\ncompare: {connections} connections, {shards} shards{cores}, medians of {rounds} rounds"
    );
    println!("{}", figures.table());
    Ok(())
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| path.display().to_string())
}

/// Returns the order of the two builds in this round.
fn order(round: usize) -> [usize; 2] {
    if round.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

/// Measures the memory of an idle connection.
fn weigh(
    server: &Throng,
    figures: &mut Figures,
    build: usize,
    connections: usize,
    transport: &str,
) -> Result<()> {
    let process = &server.process;
    process.wait_idle(Duration::from_secs(10))?;
    let before = process.anonymous_bytes()?;
    let (_crowd, _) = Crowd::open_all(Plan::idle(transport, server.clients, connections))?;
    process.wait_idle(Duration::from_secs(30))?;
    let grown = process.anonymous_bytes()? as f64 - before as f64;
    figures.add(&format!("{transport}, B a connection"), build, grown / connections as f64);
    Ok(())
}

/// Measures the processor time of a new connection.
fn accept(
    mut server: Throng,
    figures: &mut Figures,
    build: usize,
    connections: usize,
) -> Result<()> {
    let plan = Plan::get(server.clients, connections, "/sse?user=u{n}&topic=all");
    let process: fn(&Throng) -> &ServerProcess = |server| &server.process;
    let mut crowd = None;
    let cost = Cost::of(&mut server, process, connections as f64, |_| {
        crowd = Some(Crowd::open_all(plan)?);
        Ok(())
    })?;
    figures.add("accept, µs CPU a connection", build, cost.cpu_us);
    Ok(())
}

/// Measures the processor time of a publish over HTTP, to topics without members. Each publish has a topic of its
/// own: by the hash of the name and the secret of the start, some wake a shard unnecessarily. A single topic might do
/// so in one build and not in the other.
fn publish(server: &mut Throng) -> Result<Cost> {
    let process: fn(&Throng) -> &ServerProcess = |server| &server.process;
    Cost::of(server, process, (PUBLISHERS * PUBLISHES) as f64, |server| {
        let admin = server.admin;
        let publisher = move |number: usize| -> Result<()> {
            let mut api = Api::new(admin);
            (0..PUBLISHES).try_for_each(|at| {
                let topic = format!("nobody:{number}:{at}");
                let body = json!({"topic": topic, "data": "x".repeat(80)});
                api.post("/api/publish", &body).map(drop)
            })
        };
        let threads: Vec<_> =
            (0..PUBLISHERS).map(|number| std::thread::spawn(move || publisher(number))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("a publisher panicked"))?
        })
    })
}
