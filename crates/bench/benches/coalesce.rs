//! Measures how much of their cost several messages share when they go to the same crowd at once.

use std::process::ExitCode;

use anyhow::Result;
use bench::Args;
use bench::report::{Table, median, range, thousands};
use bench::served_crowd::ServedCrowd;
use bench::throng::{Sender, Throng};

/// Messages in one batch.
const MESSAGES: usize = 20;
/// Batches of one server's turn.
const BATCHES: usize = 3;

fn main() -> ExitCode {
    bench::main(run)
}

struct Contender {
    sender: Sender,
    standing: ServedCrowd,
    cpu: Vec<f64>,
    per_second: Vec<f64>,
}

fn run(args: &Args) -> Result<()> {
    if args.baseline_only {
        return Ok(());
    }
    let (connections, shards, cores) = (args.connections(), args.shards(), args.cores_note());
    let rounds = args.rounds_or(5);
    let mut contenders = Vec::new();
    for sender in Sender::ALL {
        let server = Throng::start(shards, connections, sender)?;
        contenders.push(Contender {
            sender,
            standing: ServedCrowd::new(server, connections)?,
            cpu: Vec::new(),
            per_second: Vec::new(),
        });
    }
    for contender in &mut contenders {
        contender.standing.publish(MESSAGES)?;
    }
    for _ in 0..rounds {
        for contender in &mut contenders {
            let cost = contender.standing.cost(MESSAGES, BATCHES)?;
            contender.cpu.push(cost.cpu_us);
            contender.per_second.push(cost.per_second);
        }
    }
    println!(
        "\ncoalesce: {connections} connections, {shards} shards{cores}, {MESSAGES} messages at once, \
         medians of {rounds} rounds of {BATCHES} batches"
    );
    let mut table = Table::new(&["sender", "µs CPU/message", "low–high", "messages/s"]);
    for contender in &contenders {
        table.row([
            contender.sender.word().to_owned(),
            format!("{:.3}", median(&contender.cpu)),
            range(&contender.cpu),
            thousands(median(&contender.per_second)),
        ]);
    }
    println!("{table}");
    Ok(())
}
