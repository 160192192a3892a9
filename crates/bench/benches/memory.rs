//! Memory of an idle connection with its own user id and one shared topic, by transport.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::Args;
use bench::baseline::{self, Baseline};
use bench::crowd::{Crowd, Plan};
use bench::process::{KernelMemory, ServerProcess};
use bench::report::{Table, thousands};
use bench::throng::{Sender, Throng};

const TRANSPORTS: [&str; 5] = ["sse", "stream", "poll", "ws", "phoenix"];

fn main() -> ExitCode {
    bench::main(run)
}

/// Growth over a whole crowd, in bytes.
struct Growth {
    user: f64,
    slab: f64,
    tcp: f64,
}

fn run(args: &Args) -> Result<()> {
    let (connections, shards, cores) = (args.connections(), args.shards(), args.cores_note());
    let mut table = Table::new(&[
        "transport",
        "user bytes/connection",
        "slab bytes, both ends",
        "TCP buffers, both ends",
    ]);
    let mut add = |name: &str, growth: &Growth| {
        let each = |bytes: f64| bytes / connections as f64;
        table.row([
            name.to_owned(),
            format!("{:.1}", each(growth.user)),
            thousands(each(growth.slab)),
            thousands(each(growth.tcp)),
        ]);
    };
    let wanted =
        |name: &&str| args.transports.is_empty() || args.transports.iter().any(|t| t == name);
    if !args.baseline_only {
        for name in TRANSPORTS.into_iter().filter(wanted) {
            let server = Throng::start(shards, connections, Sender::IoUring)?;
            let plan = Plan::idle(name, server.clients, connections);
            let growth = measure(&server.process, plan).with_context(|| name.to_owned())?;
            add(name, &growth);
        }
    }
    let server = Baseline::start(shards, baseline::Sender::Write)?;
    let growth = measure(&server.process, Plan::idle("sse", server.clients, connections))?;
    add("bare loop", &growth);
    println!("\nmemory: {connections} idle connections, {shards} shards{cores}, one run each");
    println!("{table}");
    Ok(())
}

fn measure(process: &ServerProcess, plan: Plan) -> Result<Growth> {
    let waits = plan.status.is_none();
    process.wait_idle(Duration::from_secs(10))?;
    let (user, kernel) = (process.anonymous_bytes()?, KernelMemory::now()?);
    let (crowd, _) = Crowd::stand(plan)?;
    // Also until a request whose answer comes later is read.
    process.wait_idle(Duration::from_secs(30))?;
    let growth =
        Growth { user: process.anonymous_bytes()? as f64 - user as f64, slab: 0.0, tcp: 0.0 };
    let after = KernelMemory::now()?;
    let totals = crowd.totals();
    ensure!(totals.closed == 0, "{} connections were closed", totals.closed);
    ensure!(!waits || totals.bytes == 0, "polls were answered before anything was published");
    Ok(Growth {
        slab: after.slab_bytes as f64 - kernel.slab_bytes as f64,
        tcp: after.tcp_bytes as f64 - kernel.tcp_bytes as f64,
        ..growth
    })
}
