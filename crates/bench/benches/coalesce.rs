//! Many messages at once to the same crowd: how much of their cost they share.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use bench::Args;
use bench::crowd::{Crowd, Plan};
use bench::marker::{Kind, payload};
use bench::report::{Table, median, range, thousands};
use bench::throng::{Sender, Throng};
use flood::clock::now_ns;
use serde_json::{Value, json};

/// Messages in one batch.
const MESSAGES: usize = 20;
/// Batches of one server's turn.
const BATCHES: usize = 3;

fn main() -> ExitCode {
    bench::main(run)
}

struct Contender {
    sender: Sender,
    server: Throng,
    crowd: Crowd,
    cpu: Vec<f64>,
    per_second: Vec<f64>,
}

impl Contender {
    fn batch(&mut self) -> Result<()> {
        let connections = self.crowd.connections();
        self.crowd.reset();
        let publish = || {
            let data = payload(Kind::Counted, now_ns(), 80);
            json!({"publish": {"topic": "all", "data": data}})
        };
        let commands: Vec<Value> = (0..MESSAGES).map(|_| publish()).collect();
        let answer = self.server.api.post("/api/batch", &json!({"commands": commands}))?;
        ensure!(!answer.to_string().contains("\"error\""), "a batch was refused in part: {answer}");
        let messages = (connections * MESSAGES) as u64;
        let timeout = Duration::from_secs(20 + messages / 100_000);
        self.crowd.wait_messages(messages, timeout)?;
        Ok(())
    }

    fn turn(&mut self) -> Result<()> {
        self.server.process.wait_idle(Duration::from_secs(10))?;
        let (before, begin) = (self.server.cpu()?, now_ns());
        for _ in 0..BATCHES {
            self.batch()?;
        }
        let took = Duration::from_nanos(now_ns() - begin);
        self.server.process.wait_idle(Duration::from_secs(10))?;
        let cpu = self.server.cpu()? - before;
        let messages = self.crowd.received().messages;
        ensure!(
            messages == (self.crowd.connections() * MESSAGES) as u64,
            "{messages} messages came of one batch"
        );
        let delivered = (self.crowd.connections() * MESSAGES * BATCHES) as f64;
        self.cpu.push(cpu.as_secs_f64() * 1e6 / delivered);
        self.per_second.push(delivered / took.as_secs_f64());
        Ok(())
    }
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
        let plan = Plan::get(server.clients, connections, "/sse?user=u{n}&topic=all");
        contenders.push(Contender {
            sender,
            crowd: Crowd::stand(plan)?.0,
            server,
            cpu: Vec::new(),
            per_second: Vec::new(),
        });
    }
    for contender in &mut contenders {
        contender.batch()?;
    }
    for _ in 0..rounds {
        for contender in &mut contenders {
            contender.turn()?;
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
