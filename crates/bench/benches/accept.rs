//! Connections per second and CPU per connection: Throng beside a bare loop of accept, read and reply.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use bench::Args;
use bench::baseline::{self, Baseline};
use bench::crowd::{Crowd, Plan};
use bench::process::ServerProcess;
use bench::report::{Table, median, range, thousands};
use bench::throng::{self, Throng};

fn main() -> ExitCode {
    bench::main(run)
}

/// One server's rounds.
#[derive(Default)]
struct Rounds {
    name: &'static str,
    /// µs of server CPU per connection.
    cpu: Vec<f64>,
    per_second: Vec<f64>,
}

impl Rounds {
    /// Opens a crowd and adds it as a round.
    fn take(&mut self, process: &ServerProcess, plan: Plan) -> Result<()> {
        let connections = plan.connections as f64;
        process.wait_idle(Duration::from_secs(10))?;
        let before = process.cpu()?;
        let (crowd, took) = Crowd::open_all(plan)?;
        process.wait_idle(Duration::from_secs(10))?;
        let cpu = process.cpu()? - before;
        drop(crowd);
        self.cpu.push(cpu.as_secs_f64() * 1e6 / connections);
        self.per_second.push(connections / took.as_secs_f64());
        Ok(())
    }
}

fn run(args: &Args) -> Result<()> {
    let (connections, shards, cores) = (args.connections(), args.shards(), args.cores_note());
    let rounds = args.rounds_or(5);
    let mut bare = Rounds { name: "bare loop", ..Rounds::default() };
    let mut ours = Rounds { name: "throng", ..Rounds::default() };
    for _ in 0..rounds {
        let server = Baseline::start(shards, baseline::Sender::Write)?;
        bare.take(&server.process, plan(server.clients, connections))?;
        drop(server);
        if !args.baseline_only {
            let server = Throng::start(shards, connections, throng::Sender::IoUring)?;
            ours.take(&server.process, plan(server.clients, connections))?;
        }
    }
    println!(
        "\naccept: {connections} connections, {shards} shards{cores}, medians of {rounds} rounds"
    );
    let mut table = Table::new(&["server", "µs CPU/connection", "low–high", "per second", "ratio"]);
    for server in [&bare, &ours] {
        if !server.cpu.is_empty() {
            table.row([
                server.name.to_owned(),
                format!("{:.2}", median(&server.cpu)),
                range(&server.cpu),
                thousands(median(&server.per_second)),
                format!("{:.2}", median(&server.cpu) / median(&bare.cpu)),
            ]);
        }
    }
    println!("{table}");
    Ok(())
}

fn plan(target: std::net::SocketAddrV4, connections: usize) -> Plan {
    Plan::get(target, connections, "/sse?user=u{n}&topic=all")
}
