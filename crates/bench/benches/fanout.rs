//! CPU per delivered message: Throng with either sender beside the same bare loops. Each server has
//! its own crowd. All crowds are open at once, and the servers take turns with their broadcasts.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use bench::Args;
use bench::baseline::{self, Baseline};
use bench::crowd::{Crowd, Plan};
use bench::marker::{Kind, payload};
use bench::process::ServerProcess;
use bench::report::{Table, median, range, thousands};
use bench::throng::{self, Throng};
use flood::clock::now_ns;

/// Broadcasts of one server's turn.
const BROADCASTS: u32 = 4;
/// Bytes of the payload; about 120 on the wire.
const PAYLOAD_BYTES: usize = 80;

fn main() -> ExitCode {
    bench::main(run)
}

enum Server {
    Bare(Baseline),
    Throng(Box<Throng>),
}

/// A server with its crowd and its rounds.
struct Contender {
    name: &'static str,
    server: Server,
    crowd: Crowd,
    /// µs of server CPU per delivered message.
    cpu: Vec<f64>,
    per_second: Vec<f64>,
    /// Bytes of one message on the wire.
    message_bytes: usize,
}

impl Contender {
    fn new(name: &'static str, server: Server, connections: usize) -> Result<Self> {
        let target = match &server {
            Server::Bare(bare) => bare.clients,
            Server::Throng(throng) => throng.clients,
        };
        let plan = Plan::get(target, connections, "/sse?user=u{n}&topic=all");
        Ok(Self {
            name,
            crowd: Crowd::open_all(plan)?.0,
            server,
            cpu: Vec::new(),
            per_second: Vec::new(),
            message_bytes: 0,
        })
    }

    fn process(&self) -> &ServerProcess {
        match &self.server {
            Server::Bare(bare) => &bare.process,
            Server::Throng(throng) => &throng.process,
        }
    }

    /// Sends one message to all, and returns when all have received it.
    fn broadcast(&mut self, bytes: usize) -> Result<()> {
        let connections = self.crowd.connections();
        self.crowd.reset();
        match &mut self.server {
            Server::Bare(bare) => {
                let fanned = bare.fan(bytes)?;
                ensure!(fanned.rejected == 0, "{} sockets took nothing", fanned.rejected);
            }
            Server::Throng(throng) => {
                let data = payload(Kind::Counted, now_ns(), PAYLOAD_BYTES);
                throng.publish("all", &data, connections)?;
            }
        }
        let timeout = Duration::from_secs(10 + connections as u64 / 5_000);
        self.crowd.wait_messages(connections as u64, timeout)?;
        self.message_bytes = self.crowd.received().bytes as usize / connections;
        Ok(())
    }

    /// Runs a turn of broadcasts and records their cost.
    fn turn(&mut self, bytes: usize) -> Result<()> {
        self.process().wait_idle(Duration::from_secs(10))?;
        let (before, begin) = (self.process().cpu()?, now_ns());
        for _ in 0..BROADCASTS {
            self.broadcast(bytes)?;
        }
        let took = Duration::from_nanos(now_ns() - begin);
        self.process().wait_idle(Duration::from_secs(10))?;
        let cpu = self.process().cpu()? - before;
        let messages = self.crowd.received().messages;
        ensure!(
            messages == self.crowd.connections() as u64,
            "{messages} messages came of one broadcast"
        );
        let delivered = self.crowd.connections() as f64 * f64::from(BROADCASTS);
        self.cpu.push(cpu.as_secs_f64() * 1e6 / delivered);
        self.per_second.push(delivered / took.as_secs_f64());
        Ok(())
    }
}

fn run(args: &Args) -> Result<()> {
    let (connections, shards, cores) = (args.connections(), args.shards(), args.cores_note());
    let rounds = args.rounds_or(7);
    let mut contenders = Vec::new();
    if !args.baseline_only {
        for (name, sender) in [
            ("throng, io_uring", throng::Sender::IoUring),
            ("throng, write", throng::Sender::Write),
        ] {
            let server = Throng::start(shards, connections, sender)?;
            let server = Server::Throng(Box::new(server));
            contenders.push(Contender::new(name, server, connections)?);
        }
    }
    for (name, sender) in
        [("bare io_uring", baseline::Sender::IoUring), ("bare write", baseline::Sender::Write)]
    {
        let server = Server::Bare(Baseline::start(shards, sender)?);
        contenders.push(Contender::new(name, server, connections)?);
    }

    // The first broadcast of each server does not count. Throng's determines the length for the others.
    let mut bytes = 120;
    for contender in &mut contenders {
        contender.broadcast(bytes)?;
        bytes = contender.message_bytes;
    }
    for _ in 0..rounds {
        for contender in &mut contenders {
            contender.turn(bytes)?;
        }
    }

    println!(
        "\nfanout: {connections} connections, {shards} shards{cores}, messages of {bytes} bytes, medians of \
         {rounds} rounds of {BROADCASTS} broadcasts"
    );
    print(&contenders);
    Ok(())
}

fn print(contenders: &[Contender]) {
    let cpu_of = |name| {
        let found = contenders.iter().find(|contender| contender.name == name);
        found.map_or(f64::NAN, |contender| median(&contender.cpu))
    };
    let mut table = Table::new(&[
        "server",
        "µs CPU/message",
        "low–high",
        "received/s",
        "of bare io_uring",
        "of bare write",
    ]);
    for contender in contenders {
        let cpu = median(&contender.cpu);
        table.row([
            contender.name.to_owned(),
            format!("{cpu:.2}"),
            range(&contender.cpu),
            thousands(median(&contender.per_second)),
            format!("{:.2}", cpu / cpu_of("bare io_uring")),
            format!("{:.2}", cpu / cpu_of("bare write")),
        ]);
    }
    println!("{table}");
}
