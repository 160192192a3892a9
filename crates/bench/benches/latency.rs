//! Times from before `POST /api/send` until the user's connection has the message, until the application has its
//! reply, and from before a connect until the new connection has its response: idle, while a whole crowd gets a
//! message twice a second, and while broadcasts run back to back. Without `--shards` for one, two and six shards a
//! core.
//!
//! These users have connections of their own, outside of the crowd's topic and in a thread of their own. In the
//! crowd's thread a message would wait behind thousands of others that the *client* has not read yet. Both ends share
//! the cores, so the figures still include the client's work.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::Args;
use bench::api::Api;
use bench::args::CONNECTIONS_PER_SHARD_MAX;
use bench::crowd::{Crowd, Plan};
use bench::marker::{Kind, payload};
use bench::report::{Table, latency_histogram, milliseconds, thousands};
use bench::throng::{Sender, Throng};
use flood::clock::now_ns;
use hdrhistogram::Histogram;
use serde_json::json;

/// Users that receive messages.
const PROBES: usize = 64;
/// Sends of one part.
const SENDS: u64 = 1_000;
/// Sends for each connection that is opened.
const SENDS_PER_CONNECT: u64 = 10;
/// The period of a crowd that gets two messages a second.
const HALF_SECOND: Duration = Duration::from_millis(500);
/// Shards per core, if the command line names no number.
const SHARDS_PER_CORE: [usize; 3] = [1, 2, 6];
/// The pause between two sends. It is not in step with the broadcasts.
const PAUSE: Duration = Duration::from_micros(3_700);

fn main() -> ExitCode {
    bench::main(run)
}

/// The messages of the crowd meanwhile.
#[derive(Clone, Copy)]
enum Load {
    /// Nothing.
    Idle,
    /// A message in each of these periods, but none before all have received the one before.
    Every(Duration),
}

impl Load {
    const ALL: [(&'static str, Load); 3] = [
        ("idle", Load::Idle),
        ("twice a second", Load::Every(HALF_SECOND)),
        ("back to back", Load::Every(Duration::ZERO)),
    ];
}

/// Times in nanoseconds.
struct Times {
    /// Until the user's connection had the message.
    received: Histogram<u64>,
    /// Until the application had its reply.
    replied: Histogram<u64>,
    /// Until a new connection had its response.
    connected: Histogram<u64>,
    /// Messages per second that the crowd received meanwhile.
    crowd_per_second: f64,
}

fn run(args: &Args) -> Result<()> {
    if args.baseline_only {
        return Ok(());
    }
    let connections = args.connections();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let least = connections.div_ceil(CONNECTIONS_PER_SHARD_MAX);
    let mut cells: Vec<usize> = match args.shards {
        Some(shards) => vec![shards as usize],
        None => SHARDS_PER_CORE.iter().map(|it| (it * cores).max(least)).collect(),
    };
    cells.dedup();
    println!("\nlatency: {connections} connections{}, {SENDS} sends", args.cores_note());
    let mut table = Table::new(&[
        "shards",
        "the crowd gets",
        "received p50 ms",
        "p99",
        "max",
        "answered p50",
        "p99",
        "connected p50",
        "p99",
        "crowd received/s",
    ]);
    for shards in cells {
        measure_shards(args, shards, &mut table)?;
    }
    println!("{table}");
    Ok(())
}

/// Measures with this many shards.
fn measure_shards(args: &Args, shards: usize, table: &mut Table) -> Result<()> {
    let connections = args.connections();
    let mut server = Throng::start(shards, connections, Sender::IoUring)?;
    let (mut crowd, _) =
        Crowd::open_all(Plan::get(server.clients, connections, "/sse?user=u{n}&topic=all"))?;
    let probes = Plan::get(server.clients, PROBES, "/sse?user=u{n}&topic=probe");
    let (mut probes, _) = Crowd::open_all(probes.numbered_from(connections))?;
    server.process.wait_idle(Duration::from_secs(10))?;
    for (name, load) in Load::ALL {
        for _ in 0..args.rounds_or(1) {
            let times = measure(&mut server, load, &mut probes, &mut crowd)?;
            let at =
                |times: &Histogram<u64>, quantile| milliseconds(times.value_at_quantile(quantile));
            table.row([
                shards.to_string(),
                name.to_owned(),
                at(&times.received, 0.5),
                at(&times.received, 0.99),
                milliseconds(times.received.max()),
                at(&times.replied, 0.5),
                at(&times.replied, 0.99),
                at(&times.connected, 0.5),
                at(&times.connected, 0.99),
                thousands(times.crowd_per_second),
            ]);
        }
    }
    Ok(())
}

/// Sends to probes and opens connections, with messages to the crowd meanwhile.
fn measure(
    server: &mut Throng,
    load: Load,
    probes: &mut Crowd,
    crowd: &mut Crowd,
) -> Result<Times> {
    let stop = AtomicBool::new(false);
    let broadcasts = AtomicU64::new(0);
    let (admin, members) = (server.admin, crowd.connections());
    probes.reset();
    let begin = now_ns();
    let (replied, connected) = std::thread::scope(|scope| {
        let broadcaster = match load {
            Load::Idle => None,
            Load::Every(period) => {
                let (stop, broadcasts) = (&stop, &broadcasts);
                Some(
                    scope
                        .spawn(move || broadcast(Api::new(admin), crowd, period, stop, broadcasts)),
                )
            }
        };
        let times = send_all(server, members, probes);
        stop.store(true, Ordering::Relaxed);
        if let Some(broadcaster) = broadcaster {
            broadcaster.join().map_err(|_| anyhow::anyhow!("the broadcaster panicked"))??;
        }
        times
    })?;
    let seconds = Duration::from_nanos(now_ns() - begin).as_secs_f64();
    let received = probes.take_latencies();
    ensure!(received.len() == SENDS, "{} of {SENDS} times were recorded", received.len());
    let crowd_per_second = broadcasts.load(Ordering::Relaxed) as f64 * members as f64 / seconds;
    Ok(Times { received, replied, connected, crowd_per_second })
}

/// Returns the times until the application had its replies, and until new connections had their responses.
fn send_all(
    server: &mut Throng,
    first_probe: usize,
    probes: &Crowd,
) -> Result<(Histogram<u64>, Histogram<u64>)> {
    let (mut replied, mut connected) = (latency_histogram(), latency_histogram());
    for i in 0..SENDS {
        // The step is coprime to the number of probes, so this visits each in an order that doesn't
        // match the shards.
        let user = format!("u{}", first_probe + (i as usize * 37) % PROBES);
        let begin = now_ns();
        server.send(&user, &payload(Kind::Timed, begin, 80))?;
        replied.saturating_record(now_ns() - begin);
        // One at a time, so that a slow delivery doesn't delay the next.
        probes.wait_messages(i + 1, Duration::from_secs(20))?;
        if i % SENDS_PER_CONNECT == 0 {
            connected.saturating_record(connect(server)?);
        }
        std::thread::sleep(PAUSE);
    }
    Ok((replied, connected))
}

/// Opens a stream, and returns the nanoseconds until its response began.
fn connect(server: &Throng) -> Result<u64> {
    let begin = now_ns();
    let mut stream = TcpStream::connect(server.clients).context("a new connection")?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(b"GET /sse?topic=new HTTP/1.1\r\nHost: t\r\n\r\n")?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).context("the response to a new connection")?;
    let elapsed_ns = now_ns() - begin;
    ensure!(&status == b"HTTP/1.1 200", "a new connection got {status:?}");
    Ok(elapsed_ns)
}

/// Broadcasts once a period until `stop` is set, but never before all have received the message before.
fn broadcast(
    mut api: Api,
    crowd: &mut Crowd,
    period: Duration,
    stop: &AtomicBool,
    broadcasts: &AtomicU64,
) -> Result<()> {
    let members = crowd.connections() as u64;
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        crowd.reset();
        let data = payload(Kind::Counted, now_ns(), 80);
        api.post("/api/publish", &json!({"topic": "all", "data": data}))?;
        crowd
            .wait_messages(members, Duration::from_secs(10 + members / 5_000))
            .context("a broadcast")?;
        broadcasts.fetch_add(1, Ordering::Relaxed);
        due = (due + period).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}
