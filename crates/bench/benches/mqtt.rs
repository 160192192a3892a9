//! MQTT: CPU per delivered message and memory per idle client, Throng beside the bare io_uring loop and beside other
//! brokers, each with its own crowd, in turns. One publisher speaks MQTT to all of them, and the members of QoS 1
//! acknowledge each message.

use std::net::SocketAddrV4;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use bench::Args;
use bench::baseline::{self, Baseline};
use bench::crowd::{Crowd, Plan};
use bench::marker::{Kind, payload};
use bench::mqtt::{Broker, Publisher};
use bench::process::ServerProcess;
use bench::report::{Table, median, range, thousands};
use bench::throng::{self, Throng};
use flood::clock::now_ns;

/// Messages of one server's turn.
const MESSAGES: u32 = 4;
/// Bytes of the payload.
const PAYLOAD_BYTES: usize = 80;
/// The topic, which must be this short for [`Plan::acknowledge`].
const TOPIC: &str = "all";
/// A filter with a wildcard that matches it.
const WILDCARD: &str = "+";

fn main() -> ExitCode {
    bench::main(run)
}

enum Server {
    Bare(Baseline),
    Throng(Box<Throng>),
    Broker(Broker),
}

/// A server with its crowd and its rounds.
struct Contender {
    name: String,
    server: Server,
    publisher: Option<Publisher>,
    crowd: Crowd,
    /// Bytes of user space for each member.
    bytes: f64,
    /// µs of server CPU per delivered message.
    cpu: Vec<f64>,
    per_second: Vec<f64>,
}

impl Contender {
    fn new(
        name: &str,
        server: Server,
        connections: usize,
        (filter, qos): (&str, u8),
    ) -> Result<Self> {
        let target = clients(&server);
        let (plan, publisher) = match server {
            Server::Bare(_) => (Plan::get(target, connections, "/sse?user=u{n}&topic=all"), None),
            Server::Throng(_) | Server::Broker(_) => {
                (Plan::mqtt(target, connections, filter, qos), Some(Publisher::connect(target)?))
            }
        };
        let before = process(&server).anonymous_bytes()?;
        let crowd = Crowd::open_all(plan)?.0;
        process(&server).wait_idle(Duration::from_secs(10))?;
        let taken = process(&server).anonymous_bytes()?.saturating_sub(before);
        let (cpu, per_second) = (Vec::new(), Vec::new());
        let bytes = taken as f64 / connections as f64;
        Ok(Self { name: name.into(), server, publisher, crowd, bytes, cpu, per_second })
    }

    /// Sends one message to all, and returns when all have received it.
    fn broadcast(&mut self, bytes: usize) -> Result<()> {
        let connections = self.crowd.connections();
        self.crowd.reset();
        match (&mut self.server, &mut self.publisher) {
            (Server::Bare(bare), _) => {
                let fanned = bare.fan(bytes)?;
                ensure!(fanned.rejected == 0, "{} sockets took nothing", fanned.rejected);
            }
            (Server::Throng(_) | Server::Broker(_), publisher) => {
                let data = payload(Kind::Counted, now_ns(), PAYLOAD_BYTES);
                if let Some(publisher) = publisher {
                    publisher.publish(TOPIC, &data)?;
                }
            }
        }
        self.crowd.wait_messages(connections as u64, Duration::from_secs(30))?;
        Ok(())
    }

    fn turn(&mut self, bytes: usize) -> Result<()> {
        process(&self.server).wait_idle(Duration::from_secs(10))?;
        let (before, begin) = (process(&self.server).cpu()?, now_ns());
        for _ in 0..MESSAGES {
            self.broadcast(bytes)?;
        }
        let took = Duration::from_nanos(now_ns() - begin);
        process(&self.server).wait_idle(Duration::from_secs(10))?;
        let cpu = process(&self.server).cpu()? - before;
        let delivered = self.crowd.connections() as f64 * f64::from(MESSAGES);
        self.cpu.push(cpu.as_secs_f64() * 1e6 / delivered);
        self.per_second.push(delivered / took.as_secs_f64());
        Ok(())
    }
}

fn process(server: &Server) -> &ServerProcess {
    match server {
        Server::Bare(bare) => &bare.process,
        Server::Throng(throng) => &throng.process,
        Server::Broker(broker) => &broker.process,
    }
}

fn clients(server: &Server) -> SocketAddrV4 {
    match server {
        Server::Bare(bare) => bare.clients,
        Server::Throng(throng) => throng.clients,
        Server::Broker(broker) => broker.clients,
    }
}

fn run(args: &Args) -> Result<()> {
    let (connections, shards, cores) = (args.connections(), args.shards(), args.cores_note());
    let rounds = args.rounds_or(7);
    let bare = Server::Bare(Baseline::start(shards, baseline::Sender::IoUring)?);
    let mut contenders = vec![Contender::new("bare io_uring", bare, connections, (TOPIC, 0))?];
    for (name, filter, qos) in
        [("QoS 0", TOPIC, 0), ("QoS 0, wildcard", WILDCARD, 0), ("QoS 1", TOPIC, 1)]
    {
        let throng = Throng::start(shards, connections, throng::Sender::IoUring)?;
        let (throng, name) = (Server::Throng(Box::new(throng)), format!("throng, {name}"));
        contenders.push(Contender::new(&name, throng, connections, (filter, qos))?);
    }
    for (name, start) in
        [("mosquitto", Broker::mosquitto as fn() -> Result<Broker>), ("mochi", Broker::mochi)]
    {
        if let Err(error) = Broker::check_descriptors(connections) {
            eprintln!("without {name}: {error:#}");
            continue;
        }
        for qos in [0, 1] {
            let name = format!("{name}, QoS {qos}");
            match start() {
                Ok(broker) => {
                    let broker = Server::Broker(broker);
                    contenders.push(Contender::new(&name, broker, connections, (TOPIC, qos))?);
                }
                Err(error) => eprintln!("without {name}: {error:#}"),
            }
        }
    }
    // The length of a packet with this topic and payload; the packet of QoS 1 is longer by two bytes.
    let bytes = 2 + 2 + TOPIC.len() + PAYLOAD_BYTES;
    for contender in &mut contenders {
        contender.broadcast(bytes)?;
    }
    for _ in 0..rounds {
        for contender in &mut contenders {
            contender.turn(bytes)?;
        }
    }
    println!(
        "\nmqtt: {connections} clients with a user and one subscription, {shards} shards{cores}, payloads of \
         {PAYLOAD_BYTES} bytes, medians of {rounds} rounds of {MESSAGES} messages to all"
    );
    let bare = contenders.first().map_or(f64::NAN, |bare| median(&bare.cpu));
    let mut table = Table::new(&[
        "server",
        "user bytes/client",
        "µs CPU/message",
        "low–high",
        "received/s",
        "of bare io_uring",
    ]);
    for contender in &contenders {
        let cpu = median(&contender.cpu);
        table.row([
            contender.name.clone(),
            thousands(contender.bytes),
            format!("{cpu:.2}"),
            range(&contender.cpu),
            thousands(median(&contender.per_second)),
            format!("{:.2}", cpu / bare),
        ]);
    }
    println!("{table}");
    Ok(())
}
