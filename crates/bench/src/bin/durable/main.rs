//! Durable publishes per second: compares Throng with a store, and with its history in PostgreSQL, to NATS JetStream with
//! file storage and to a bare file, on one machine in one run.
//!
//! Publishers are persistent connections. Each waits for the response to its request before it sends the next. Each
//! cell has a server of its own, started on an empty folder. The cells to compare run one after the other in each
//! round.
//!
//! `bench/durable` builds what this needs and runs it.

#![forbid(unsafe_code)]

mod floor;
mod http;
mod load;
mod nats;
mod postgres;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::report::{Table, latency_histogram, median, milliseconds, thousands};
use clap::Parser;
use hdrhistogram::Histogram;

use load::{Measured, Span};
use server::{History, Nats, Setting};

/// Bytes of one message.
const PAYLOAD_BYTES: usize = 128;
/// The limit on messages under way at a time for a server that syncs them one by one.
const IN_FLIGHT_MAX: usize = 1_000;
/// The payload of all messages. It contains letters only, so that it is the same in JSON.
const PAYLOAD: &str = {
    const BYTES: &[u8; PAYLOAD_BYTES] = &[b'x'; PAYLOAD_BYTES];
    match std::str::from_utf8(BYTES) {
        Ok(text) => text,
        Err(_) => "",
    }
};

#[derive(Parser, Debug)]
#[command(about = "Durable publishes per second: Throng compared with NATS JetStream and a bare \
                   file.")]
struct Args {
    /// The Throng server; without one it is left out.
    #[arg(long)]
    throng: Option<PathBuf>,

    /// The NATS server; without one it is left out.
    #[arg(long)]
    nats: Option<PathBuf>,

    /// The folder of PostgreSQL's programs; without one, Throng with its history there is left out.
    #[arg(long)]
    postgres: Option<PathBuf>,

    /// Where servers have their folders, one at a time. Not a memory file system, if the figures
    /// are to mean something.
    #[arg(long)]
    dir: PathBuf,

    /// Alternating rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Measured seconds of a cell.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,

    /// Seconds of a cell before it is measured.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=60))]
    warm_up: u64,

    /// Publishers at a time, one cell for each number.
    #[arg(long, value_delimiter = ',', default_value = "1,64", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    publishers: Vec<u16>,

    /// Messages of a batch.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(2..=1_000))]
    batch: u16,

    /// Throng without store and history too: what its part without the disk costs.
    #[arg(long)]
    memory: bool,

    /// Only Throng without store and history.
    #[arg(long, conflicts_with = "memory")]
    memory_only: bool,
}

/// How many messages a publisher sends at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// One message, then its response.
    One,
    /// This many messages, then their responses.
    Pipelined(u16),
    /// This many messages in one request with one response and one write to disk.
    Batch(u16),
}

impl Mode {
    /// Returns the messages of one request.
    fn messages(self) -> u16 {
        match self {
            Self::One => 1,
            Self::Pipelined(messages) | Self::Batch(messages) => messages,
        }
    }

    fn name(self) -> String {
        match self {
            Self::One => "one".to_owned(),
            Self::Pipelined(messages) => format!("{messages} pipelined"),
            Self::Batch(messages) => format!("batch of {messages}"),
        }
    }
}

/// One line of the table.
struct Cell {
    setting: Setting,
    mode: Mode,
    publishers: usize,
    rounds: Vec<Measured>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("durable: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    std::fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    let dir = args.dir.canonicalize().context("--dir")?;
    let nats = args.nats.as_deref().map(Nats::at).transpose()?;
    println!("throng: {}", args.throng.as_deref().map_or(Ok("left out".into()), server::version)?);
    println!("nats:   {}", nats.as_ref().map_or("left out", |nats| nats.version.as_str()));
    let mut cells = cells(args, nats.as_ref());
    let span = Span {
        warm_up: Duration::from_secs(args.warm_up),
        measured: Duration::from_secs(args.seconds),
    };
    let mut floor = Vec::new();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        floor.push(floor::run(&dir, span)?);
        for cell in &mut cells {
            let (name, mode) = (cell.setting.name(), cell.mode.name());
            let measured = server::cell(&dir, &cell.setting, cell.mode, cell.publishers, span)
                .with_context(|| format!("{name}, {mode}, {} publishers", cell.publishers))?;
            eprintln!(
                "  {name}, {mode}, {} publishers: {}/s",
                cell.publishers,
                thousands(measured.per_second())
            );
            cell.rounds.push(measured);
        }
    }
    print(args, &floor, &cells)
}

/// Returns all cells. Those to compare are next to each other.
fn cells(args: &Args, nats: Option<&Nats>) -> Vec<Cell> {
    let mut cells = Vec::new();
    let modes = [Mode::One, Mode::Pipelined(args.batch), Mode::Batch(args.batch)];
    for mode in modes {
        for publishers in args.publishers.iter().map(|publishers| usize::from(*publishers)) {
            let mut cell = |setting| {
                cells.push(Cell { setting, mode, publishers, rounds: Vec::new() });
            };
            // An HTTP server responds in order, one request after the other.
            if let (Some(throng), false) = (&args.throng, matches!(mode, Mode::Pipelined(_))) {
                let mut throng =
                    |history| cell(Setting::Throng { binary: throng.clone(), history });
                if !args.memory_only {
                    throng(History::Store);
                    args.postgres.clone().map(History::Postgres).into_iter().for_each(&mut throng);
                }
                if args.memory || args.memory_only {
                    throng(History::Nowhere);
                }
            }
            let Some(nats) = nats else { continue };
            if matches!(mode, Mode::Batch(_)) && !nats.has_batches() {
                continue;
            }
            // NATS syncs after each message, so thousands under way would take longer than a cell.
            let in_flight = publishers * usize::from(mode.messages());
            let too_many = matches!(mode, Mode::Pipelined(_)) && in_flight > IN_FLIGHT_MAX;
            if nats.has_sync_always() && !too_many {
                cell(Setting::Nats { nats: nats.clone(), sync_always: true });
            }
            cell(Setting::Nats { nats: nats.clone(), sync_always: false });
        }
    }
    cells
}

fn print(args: &Args, floor: &[Measured], cells: &[Cell]) -> Result<()> {
    println!(
        "\ndurable publishes: {PAYLOAD_BYTES} B each, {} s measured after {} s, medians of {} \
         alternating rounds; times are of one request and its response",
        args.seconds, args.warm_up, args.rounds
    );
    let mut table = Table::new(&[
        "server",
        "at once",
        "publishers",
        "publishes/s",
        "low-high",
        "p50 ms",
        "p99 ms",
        "server CPU µs",
        "client CPU µs",
        "written B",
    ]);
    table.row(row("bare file, append and fdatasync", Mode::One, 1, floor)?);
    for cell in cells {
        table.row(row(cell.setting.name(), cell.mode, cell.publishers, &cell.rounds)?);
    }
    println!("{table}");
    println!(
        "CPU time and bytes written (as /proc/PID/io counts them) are for each message, and those of \
         PostgreSQL are the server's."
    );
    let refused: u64 = cells.iter().flat_map(|cell| &cell.rounds).map(|round| round.refused).sum();
    if refused > 0 {
        println!("{refused} publishes were rejected (503); the figures above do not include them.");
    }
    Ok(())
}

fn row(name: &str, mode: Mode, publishers: usize, rounds: &[Measured]) -> Result<[String; 10]> {
    ensure!(!rounds.is_empty(), "no round was measured");
    let of = |value: fn(&Measured) -> f64| -> Vec<f64> { rounds.iter().map(value).collect() };
    let rates = of(Measured::per_second);
    let low = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let high = rates.iter().copied().fold(0.0, f64::max);
    let mut latency: Histogram<u64> = latency_histogram();
    for round in rounds {
        latency.add(&round.latency)?;
    }
    let quantile = |quantile| match latency.len() {
        // All requests took longer than the measured time.
        0 => "-".to_owned(),
        _ => milliseconds(latency.value_at_quantile(quantile)),
    };
    let microseconds = |values: Vec<f64>| format!("{:.1}", median(&values));
    Ok([
        name.to_owned(),
        mode.name(),
        publishers.to_string(),
        thousands(median(&rates)),
        format!("{}-{}", thousands(low), thousands(high)),
        quantile(0.5),
        quantile(0.99),
        microseconds(of(|round| round.per_publish(round.server.cpu.as_secs_f64() * 1e6))),
        microseconds(of(|round| round.per_publish(round.client_cpu.as_secs_f64() * 1e6))),
        thousands(median(&of(|round| round.per_publish(round.server.written_bytes as f64)))),
    ])
}
