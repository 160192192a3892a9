//! The effect of attackers on honest clients: delivery times, losses and closed connections, without an attack, under
//! each attack and under all at once; and the server's resources meanwhile. Some of the honest clients compare the
//! ids of their messages with the published ones.
//!
//! Half of `--connections` are honest; the attackers are in proportion (10,000 honest clients: 15,000 that dribble
//! heads, 15,000 that never read, 5,000 half handshakes, 50 that flood with joins, 50 with bombs). All of it runs on
//! the same cores, where the attackers' own threads have the lowest priority: real attackers have other machines. The
//! work that they cause in the server and the kernel counts.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::Args;
use bench::api::Api;
use bench::attack::{Attack, BUSY, Running};
use bench::crowd::{Crowd, Plan};
use bench::marker::{Kind, payload};
use bench::report::{Table, milliseconds};
use bench::throng::{Sender, Throng};
use bench::witness::Witnesses;
use flood::clock::now_ns;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// The measured time of each part.
const SPAN: Duration = Duration::from_secs(15);

/// Time between messages to one honest user each, to all honest users, and to the busy topic.
const SEND_EVERY: Duration = Duration::from_millis(10);
const BROADCAST_EVERY: Duration = Duration::from_secs(1);
const BUSY_EVERY: Duration = Duration::from_millis(200);

/// Clients that compare ids, and how long they wait for late messages.
const WITNESSES: usize = 16;
const PATIENCE: Duration = Duration::from_secs(20);

/// The time for an attack to get under way.
const WARM_UP: Duration = Duration::from_secs(8);

/// The limit on the server's own memory, in bytes: the limits of its outboxes and of unfinished input (256 MiB and
/// 128 MiB by default), and the cost of connections.
const MEMORY_MAX: u64 = 512 << 20;

/// The p99 under attack may be at most this many times the p99 without an attack.
const P99_TIMES_MAX: u64 = 3;

const WITHIN_LIMITS: &str = "kept";

fn main() -> ExitCode {
    bench::main(run)
}

struct Part {
    name: String,
    delivery: Histogram<u64>,
    lost: u64,
    closed: u64,
    /// Witnesses with ids that differ from the published ones.
    wrong: u64,
    dialled: u64,
    memory: u64,
    cpu: f64,
}

fn run(args: &Args) -> Result<()> {
    if args.baseline_only {
        return Ok(());
    }
    let honest = args.connections() / 2;
    let attackers: usize = Attack::ALL.iter().map(|attack| attack.connections(honest)).sum();
    let shards = args.shards.map_or(args.shards().max(4), |shards| shards as usize);
    let mut server = Throng::start(shards, honest + attackers, Sender::Auto)?;
    let (mut crowd, _) =
        Crowd::open_all(Plan::get(server.clients, honest, "/sse?user=u{n}&topic=all"))?;
    server.process.wait_idle(Duration::from_secs(10))?;

    let mut parts = vec![part("peace", &[], &mut server, &mut crowd)?];
    for attack in Attack::ALL {
        parts.push(part(attack.name(), &[attack], &mut server, &mut crowd)?);
    }
    parts.push(part("all together", &Attack::ALL, &mut server, &mut crowd)?);

    println!("\nattack: {honest} honest clients, {attackers} attackers, {shards} shards");
    let mut table = Table::new(&[
        "",
        "p50 ms",
        "p99 ms",
        "max ms",
        "lost",
        "closed",
        "wrong ids",
        "attackers dialled",
        "memory MB",
        "cores",
    ]);
    for part in &parts {
        table.row([
            part.name.clone(),
            milliseconds(part.delivery.value_at_quantile(0.5)),
            milliseconds(part.delivery.value_at_quantile(0.99)),
            milliseconds(part.delivery.max()),
            part.lost.to_string(),
            part.closed.to_string(),
            part.wrong.to_string(),
            part.dialled.to_string(),
            format!("{:.1}", part.memory as f64 / 1e6),
            format!("{:.2}", part.cpu),
        ]);
    }
    println!("{table}");
    let mut all_within_limits = true;
    let peace = parts[0].delivery.value_at_quantile(0.99).max(1_000_000);
    for part in &parts {
        let p99 = part.delivery.value_at_quantile(0.99);
        let intact = part.lost == 0 && part.closed == 0 && part.wrong == 0;
        let verdict = match (intact, p99 <= P99_TIMES_MAX * peace, part.memory <= MEMORY_MAX) {
            (true, true, true) => WITHIN_LIMITS,
            (false, ..) => {
                "NOT KEPT: honest clients lost connections or messages, or got wrong ids"
            }
            (_, false, _) => "NOT KEPT: the p99 is over three times that without attackers",
            (.., false) => "NOT KEPT: the memory is over its limit",
        };
        println!("{}: {verdict}", part.name);
        all_within_limits &= verdict == WITHIN_LIMITS;
    }
    ensure!(all_within_limits, "a limit was exceeded");
    Ok(())
}

fn part(name: &str, attacks: &[Attack], server: &mut Throng, crowd: &mut Crowd) -> Result<Part> {
    let honest = crowd.connections();
    let start =
        |attack: &Attack| Running::start(*attack, server.clients, attack.connections(honest));
    let running = attacks.iter().map(start).collect::<Result<Vec<_>>>()?;
    if !running.is_empty() {
        std::thread::sleep(WARM_UP);
    }
    let mut witnesses = Witnesses::start(server.clients, WITNESSES)?;
    crowd.reset();
    let (begin, cpu) = (Instant::now(), server.cpu()?);
    let (mut expected, mut memory, mut sent) = (0, 0, 0usize);
    let mut api = Api::new(server.admin);
    let (mut broadcast_at, mut busy_at) = (Duration::ZERO, Duration::ZERO);
    while begin.elapsed() < SPAN {
        let due = SEND_EVERY * (sent as u32 + 1);
        if begin.elapsed() >= broadcast_at {
            let data = payload(Kind::Timed, now_ns(), 80);
            let response = api.post("/api/publish", &json!({"topic": "all", "data": data}));
            witnesses.published(id(&response.context("all")?)?);
            expected += honest as u64;
            broadcast_at += BROADCAST_EVERY;
        }
        if begin.elapsed() >= busy_at {
            let data = ".".repeat(1_000);
            api.post("/api/publish", &json!({"topic": BUSY, "data": data})).context(BUSY)?;
            let message = json!({"user": witnesses.user(sent), "data": "to you alone"});
            witnesses.published_to(sent, id(&api.post("/api/send", &message).context("own")?)?);
            memory = memory.max(server.process.anonymous_bytes()?);
            busy_at += BUSY_EVERY;
        }
        // The order doesn't match the shards.
        let user = format!("u{}", (sent * 37) % honest);
        server.send(&user, &payload(Kind::Timed, now_ns(), 80))?;
        (expected, sent) = (expected + 1, sent + 1);
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
    }
    let cpu = (server.cpu()? - cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
    // A late message is not lost.
    let _ = crowd.wait_messages(expected, PATIENCE);
    let received = crowd.received();
    let dialled = running
        .iter()
        .map(|attack| attack.dialled.load(std::sync::atomic::Ordering::Relaxed))
        .sum();
    let part = Part {
        name: name.to_string(),
        delivery: crowd.take_latencies(),
        lost: expected.saturating_sub(received.messages),
        closed: received.closed,
        wrong: witnesses.end(PATIENCE)?,
        dialled,
        memory: memory.max(server.process.anonymous_bytes()?),
        cpu,
    };
    drop(running);
    server.process.wait_idle(Duration::from_secs(30))?;
    Ok(part)
}

/// Returns the id in the reply to a publish.
fn id(response: &Value) -> Result<&str> {
    response["id"].as_str().with_context(|| format!("an answer without an id: {response}"))
}
