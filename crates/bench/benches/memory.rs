//! Memory as it grows and shrinks: of idle connections by transport, of crowds that come and go, of requests that
//! never end, and of topics that come and go.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::Args;
use bench::baseline::{self, Baseline};
use bench::crowd::{Crowd, Plan};
use bench::pause::{Found, Pauses};
use bench::process::{KernelMemory, ServerProcess};
use bench::report::{Table, thousands};
use bench::throng::{Sender, Throng};

const TRANSPORTS: [&str; 6] = ["sse", "stream", "poll", "ws", "phoenix", "mqtt"];

/// How long a server may take to return memory.
const PATIENCE: Duration = Duration::from_secs(60);

/// The part of the growth that must come back.
const ENOUGH: f64 = 0.8;

/// How long to wait after that for more memory to come back. A server trims its memory every five seconds.
const SETTLES: Duration = Duration::from_secs(6);

/// Unfinished requests of a burst, and the sent bytes of each.
const BODIES: usize = 1_500;
const BODY_BYTES: usize = 1_000_000;

/// Topics of the crowd that brings many, and the most of one connection.
const TOPICS: usize = 1_000_000;
const TOPICS_EACH: usize = 50;

/// A part of the bench, which prints its own table.
type Part = fn(&Args) -> Result<()>;

fn main() -> ExitCode {
    bench::main(run)
}

fn run(args: &Args) -> Result<()> {
    let few = args.baseline_only || !args.transports.is_empty();
    let parts = [("up", up as Part), ("crowds", crowds), ("bodies", bodies), ("topics", topics)];
    for (name, part) in parts {
        let is_selected = match args.parts.is_empty() {
            true => !few || name == "up",
            false => args.parts.iter().any(|part| part == name),
        };
        if is_selected {
            part(args)?;
        }
    }
    Ok(())
}

/// Growth over a whole crowd, in bytes.
struct Growth {
    user: f64,
    slab: f64,
    tcp: f64,
}

/// Measures the cost of an idle connection by transport.
fn up(args: &Args) -> Result<()> {
    let (connections, shards, cores) = (args.connections(), args.shards(), args.cores_note());
    let mut table = Table::new(&[
        "transport",
        "user bytes/connection",
        "slab bytes, both ends",
        "TCP buffers, both ends",
        "given back",
    ]);
    let mut add = |name: &str, growth: &Growth, back: String| {
        let each = |bytes: f64| bytes / connections as f64;
        table.row([
            name.to_owned(),
            format!("{:.1}", each(growth.user)),
            thousands(each(growth.slab)),
            thousands(each(growth.tcp)),
            back,
        ]);
    };
    let is_selected =
        |name: &&str| args.transports.is_empty() || args.transports.iter().any(|t| t == name);
    if !args.baseline_only {
        for name in TRANSPORTS.into_iter().filter(is_selected) {
            let server = Throng::start(shards, connections, Sender::IoUring)?;
            let before = server.process.anonymous_bytes()?;
            let plan = Plan::idle(name, server.clients, connections);
            let (growth, crowd) =
                measure(&server.process, plan).with_context(|| name.to_owned())?;
            drop(crowd);
            let down = Down::watch(&server.process, before, growth.user)?;
            add(name, &growth, down.to_string());
        }
    }
    let server = Baseline::start(shards, baseline::Sender::Write)?;
    let (growth, _) = measure(&server.process, Plan::idle("sse", server.clients, connections))?;
    add("bare loop", &growth, "-".into());
    println!("\nmemory: {connections} idle connections, {shards} shards{cores}, one run each");
    println!("{table}");
    Ok(())
}

fn measure(process: &ServerProcess, plan: Plan) -> Result<(Growth, Crowd)> {
    let waits = plan.status.is_none();
    process.wait_idle(Duration::from_secs(10))?;
    let (user, kernel) = (process.anonymous_bytes()?, KernelMemory::now()?);
    let (crowd, _) = Crowd::open_all(plan)?;
    // This also waits until the server has read requests with later responses.
    process.wait_idle(Duration::from_secs(30))?;
    let user = process.anonymous_bytes()? as f64 - user as f64;
    let after = KernelMemory::now()?;
    let totals = crowd.totals();
    ensure!(totals.closed == 0, "{} connections were closed", totals.closed);
    ensure!(!waits || totals.bytes == 0, "polls got responses before a message was published");
    let growth = Growth {
        user,
        slab: after.slab_bytes as f64 - kernel.slab_bytes as f64,
        tcp: after.tcp_bytes as f64 - kernel.tcp_bytes as f64,
    };
    Ok((growth, crowd))
}

/// How memory came back.
struct Down {
    share: f64,
    /// The time until enough of it was back.
    enough: Option<Duration>,
}

impl Down {
    /// Polls until enough memory is back and a little longer for the rest, or until the timeout.
    fn watch(process: &ServerProcess, before: u64, growth: f64) -> Result<Self> {
        let begin = Instant::now();
        let mut down = Down { share: 0.0, enough: None };
        while down.enough.map_or(PATIENCE, |after| after + SETTLES) > begin.elapsed() {
            std::thread::sleep(Duration::from_millis(250));
            let left = process.anonymous_bytes()? as f64 - before as f64;
            down.share = 1.0 - left / growth.max(1.0);
            if down.share >= ENOUGH && down.enough.is_none() {
                down.enough = Some(begin.elapsed());
            }
        }
        Ok(down)
    }
}

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.enough {
            Some(after) => write!(f, "{:.0} %, 80 % after {after:.1?}", self.share * 100.0),
            None => write!(f, "{:.0} %", self.share * 100.0),
        }
    }
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn waits(found: Found) -> String {
    format!("{} ({})", ms(found.longest), ms(found.p999))
}

/// The columns for things that come and go.
const PASSING: [&str; 5] =
    ["", "MB taken", "given back", "waits as they leave", "waits after, up to a minute"];

/// Creates something with `come`, drops it, and adds a row about the memory. The waits are the longest
/// and the 99.9th percentile of small requests to all shards.
fn pass<T>(
    table: &mut Table,
    name: String,
    server: &Throng,
    before: u64,
    shards: usize,
    come: impl FnOnce() -> Result<T>,
) -> Result<()> {
    let created = come()?;
    server.process.wait_idle(Duration::from_secs(60))?;
    let taken = server.process.anonymous_bytes()? as f64 - before as f64;
    let pauses = Pauses::watch(server.clients, shards)?;
    drop(created);
    std::thread::sleep(Duration::from_secs(2));
    let leaving = pauses.end()?;
    let pauses = Pauses::watch(server.clients, shards)?;
    let down = Down::watch(&server.process, before, taken)?;
    let after = pauses.end()?;
    table.row([
        name,
        format!("{:.1}", taken / 1e6),
        down.to_string(),
        waits(leaving),
        waits(after),
    ]);
    Ok(())
}

/// Adds the waits that a probe of an idle server finds, which are the machine's own pauses.
fn quiet(table: &mut Table, server: &Throng, shards: usize) -> Result<()> {
    let pauses = Pauses::watch(server.clients, shards)?;
    std::thread::sleep(Duration::from_secs(10));
    let none = || "-".to_owned();
    table.row(["nothing, 10 s".into(), none(), none(), none(), waits(pauses.end()?)]);
    Ok(())
}

/// Opens and closes the same crowd again and again.
fn crowds(args: &Args) -> Result<()> {
    let (connections, shards) = (args.connections(), args.shards());
    let server = Throng::start(shards, connections, Sender::IoUring)?;
    let mut table = Table::new(&PASSING);
    quiet(&mut table, &server, shards)?;
    let before = server.process.anonymous_bytes()?;
    for number in 1..=args.rounds_or(10) {
        let plan = Plan::idle("sse", server.clients, connections);
        let come = || Ok(Crowd::open_all(plan)?.0);
        pass(&mut table, format!("crowd {number}"), &server, before, shards, come)?;
    }
    println!("\nmemory: crowds of {connections} SSE connections, {shards} shards");
    println!("{table}");
    Ok(())
}

/// Sends requests that begin and never end.
fn bodies(args: &Args) -> Result<()> {
    let shards = args.shards();
    let server = Throng::start(shards, BODIES, Sender::IoUring)?;
    let mut table = Table::new(&PASSING);
    let before = server.process.anonymous_bytes()?;
    for number in 1..=6 {
        let come = || half_read(server.clients);
        pass(&mut table, format!("burst {number}"), &server, before, shards, come)?;
    }
    println!(
        "\nmemory: {BODIES} requests with {BODY_BYTES} bytes of an unfinished body, in bursts"
    );
    println!("{table}");
    Ok(())
}

/// Returns the token of a new long-poll session. The server does not read bodies without one.
fn token(clients: SocketAddrV4) -> Result<String> {
    let mut socket = TcpStream::connect(clients).context("a session's connection")?;
    let head = "GET /socket/longpoll?vsn=2.0.0 HTTP/1.1\r\nConnection: close";
    write!(socket, "{head}\r\nHost: {clients}\r\n\r\n")?;
    let mut response = String::new();
    socket.read_to_string(&mut response)?;
    let token = response.split("\"token\":\"").nth(1).and_then(|rest| rest.split('"').next());
    Ok(token.with_context(|| format!("no session: {response}"))?.to_owned())
}

/// Sends requests with the largest allowed bodies, all but the last byte.
fn half_read(clients: SocketAddrV4) -> Result<Vec<TcpStream>> {
    let token = token(clients)?;
    let head = format!(
        "POST /socket/longpoll?vsn=2.0.0&token={token} HTTP/1.1\r\nHost: {clients}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        BODY_BYTES + 1
    );
    let request = [head.as_bytes(), &vec![b'x'; BODY_BYTES]].concat();
    let mut sockets = Vec::new();
    for _ in 0..BODIES {
        let mut socket = TcpStream::connect(clients).context("a request's connection")?;
        socket.set_write_timeout(Some(Duration::from_secs(10)))?;
        // A server may reject requests when it has too many.
        let _ = socket.write_all(&request);
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Topics that come and go.
fn topics(args: &Args) -> Result<()> {
    let connections = TOPICS / TOPICS_EACH;
    let shards = args.shards().max(connections.div_ceil(bench::args::CONNECTIONS_PER_SHARD_MAX));
    let server = Throng::start(shards, connections, Sender::IoUring)?;
    let names: Vec<String> = (0..TOPICS_EACH).map(|of| format!("topic=t{of}/{{n}}")).collect();
    let mut table = Table::new(&PASSING);
    let before = server.process.anonymous_bytes()?;
    for number in 1..=3 {
        let plan = Plan::get(server.clients, connections, &format!("/sse?{}", names.join("&")));
        let come = || Ok(Crowd::open_all(plan)?.0);
        pass(&mut table, format!("time {number}"), &server, before, shards, come)?;
    }
    println!("\nmemory: {TOPICS} topics of {connections} connections, {shards} shards");
    println!("{table}");
    Ok(())
}
