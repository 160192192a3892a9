//! The time from before `POST /api/send` until the user's connection has the message: idle, and
//! while broadcasts to a whole crowd run back to back.
//!
//! These users have connections of their own, outside of the crowd's topic and in a thread of their
//! own. In the crowd's thread a message would wait behind thousands of others that the *client* has
//! not read yet. Both ends share the cores, so the figures still include the client's work.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::Args;
use bench::api::Api;
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
/// The pause between two sends. It is not in step with the broadcasts.
const PAUSE: Duration = Duration::from_micros(3_700);

fn main() -> ExitCode {
    bench::main(run)
}

/// Times in nanoseconds.
struct Part {
    name: &'static str,
    /// Until the user's connection had the message.
    received: Histogram<u64>,
    /// Until the application had its answer.
    answered: Histogram<u64>,
    /// Messages per second that the crowd received meanwhile.
    crowd_per_second: f64,
}

fn run(args: &Args) -> Result<()> {
    if args.baseline_only {
        return Ok(());
    }
    let (connections, shards, cores) = (args.connections(), args.shards(), args.cores_note());
    let mut server = Throng::start(shards, connections, Sender::IoUring)?;
    let (mut crowd, _) =
        Crowd::open_all(Plan::get(server.clients, connections, "/sse?user=u{n}&topic=all"))?;
    let probes = Plan::get(server.clients, PROBES, "/sse?user=u{n}&topic=probe");
    let (mut probes, _) = Crowd::open_all(probes.numbered_from(connections))?;
    server.process.wait_idle(Duration::from_secs(10))?;

    let mut parts = Vec::new();
    for _ in 0..args.rounds_or(1) {
        parts.push(part("idle", &mut server, connections, &mut probes, None)?);
        parts.push(part("in broadcasts", &mut server, connections, &mut probes, Some(&mut crowd))?);
    }

    println!(
        "\nlatency: POST /api/send to one user, {connections} connections, {shards} shards{cores}, {SENDS} \
         sends"
    );
    let mut table = Table::new(&[
        "",
        "p50 ms",
        "p99 ms",
        "max ms",
        "answer p50",
        "answer p99",
        "crowd received/s",
    ]);
    for part in &parts {
        table.row([
            part.name.to_owned(),
            milliseconds(part.received.value_at_quantile(0.5)),
            milliseconds(part.received.value_at_quantile(0.99)),
            milliseconds(part.received.max()),
            milliseconds(part.answered.value_at_quantile(0.5)),
            milliseconds(part.answered.value_at_quantile(0.99)),
            thousands(part.crowd_per_second),
        ]);
    }
    println!("{table}");
    Ok(())
}

/// Sends to probes, with broadcasts to the crowd meanwhile if there is one.
fn part(
    name: &'static str,
    server: &mut Throng,
    first_probe: usize,
    probes: &mut Crowd,
    crowd: Option<&mut Crowd>,
) -> Result<Part> {
    let stop = AtomicBool::new(false);
    let broadcasts = AtomicU64::new(0);
    let admin = server.admin;
    probes.reset();
    let begin = now_ns();
    let members = crowd.as_ref().map_or(0, |crowd| crowd.connections());
    let answered = std::thread::scope(|scope| {
        let broadcaster = crowd
            .map(|crowd| scope.spawn(|| broadcast(Api::new(admin), crowd, &stop, &broadcasts)));
        let answered = send_all(server, first_probe, probes);
        stop.store(true, Ordering::Relaxed);
        if let Some(broadcaster) = broadcaster {
            broadcaster.join().map_err(|_| anyhow::anyhow!("the broadcaster panicked"))??;
        }
        answered
    })?;
    let seconds = Duration::from_nanos(now_ns() - begin).as_secs_f64();
    let received = probes.take_latencies();
    ensure!(received.len() == SENDS, "{} of {SENDS} times were recorded", received.len());
    Ok(Part {
        name,
        received,
        answered,
        crowd_per_second: broadcasts.load(Ordering::Relaxed) as f64 * members as f64 / seconds,
    })
}

fn send_all(server: &mut Throng, first_probe: usize, probes: &Crowd) -> Result<Histogram<u64>> {
    let mut answered = latency_histogram();
    for i in 0..SENDS {
        // The step is coprime to the number of probes, so this visits each in an order that doesn't
        // match the shards.
        let user = format!("u{}", first_probe + (i as usize * 37) % PROBES);
        let begin = now_ns();
        server.send(&user, &payload(Kind::Timed, begin, 80))?;
        answered.saturating_record(now_ns() - begin);
        // One at a time, so that a slow delivery doesn't delay the next.
        probes.wait_messages(i + 1, Duration::from_secs(20))?;
        std::thread::sleep(PAUSE);
    }
    Ok(answered)
}

/// Broadcasts until `stop` is set, each time when all have the message before.
fn broadcast(
    mut api: Api,
    crowd: &mut Crowd,
    stop: &AtomicBool,
    broadcasts: &AtomicU64,
) -> Result<()> {
    let members = crowd.connections() as u64;
    while !stop.load(Ordering::Relaxed) {
        crowd.reset();
        let data = payload(Kind::Counted, now_ns(), 80);
        api.post("/api/publish", &json!({"topic": "all", "data": data}))?;
        crowd
            .wait_messages(members, Duration::from_secs(10 + members / 5_000))
            .context("a broadcast")?;
        broadcasts.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
