//! `kill -9` in the middle of load, again and again on one data directory.

use std::time::{Duration, Instant};

use random::Random;

use crate::store::folder::{Caller, Folder, end};
use crate::store::ledger::Ledger;
use crate::store::listener::Listener;
use crate::store::load::{Door, Publisher, Sent};
use crate::support::Server;

const TOPICS: &str = r#"
[client]
publish_prefixes = ["d:", "h:"]
[timeouts]
drain_seconds = 0
[[topics]]
pattern = "d:*"
history_messages_max = 1000000
history_bytes_max = "1GiB"
durable = true
[[topics]]
pattern = "h:*"
history_messages_max = 1000000
history_bytes_max = "1GiB"
"#;

/// The publishers and their topics. Two of them share topics.
const PUBLISHERS: [(Door, &str); 7] = [
    (Door::Api, "d:one"),
    (Door::Keys, "d:one"),
    (Door::Client, "d:two"),
    (Door::Ws, "d:two"),
    (Door::Batch, "d:three"),
    (Door::Api, "h:one"),
    (Door::Ws, "h:one"),
];

/// How often a server is killed, unless `KILL_ROUNDS` says otherwise.
const ROUNDS: u64 = 20;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, and not {text:?}")))
}

/// Runs publishers, and kills the server after a time.
fn load_and_kill(server: Server, round: u64, after: Duration) -> Vec<Vec<Sent>> {
    let (client, admin) = (server.client, server.admin);
    let publishers = PUBLISHERS.iter().enumerate().map(|(at, (door, topic))| {
        let publisher = Publisher { door: *door, topic, name: format!("{round}.{at}") };
        std::thread::spawn(move || publisher.run(client, admin))
    });
    let publishers: Vec<_> = publishers.collect();
    std::thread::sleep(after);
    // Dropping the helper kills the server with SIGKILL.
    drop(server);
    publishers.into_iter().map(|publisher| publisher.join().unwrap()).collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn a_kill_loses_no_acknowledged_message() {
    let rounds = number("KILL_ROUNDS").unwrap_or(ROUNDS);
    let seed = number("KILL_SEED").unwrap_or(1);
    println!("KILL_SEED={seed} KILL_ROUNDS={rounds}");
    let mut random = Random::new(seed);
    let folder = Folder::new("kill", TOPICS);
    let mut ledger = Ledger::new(&["d:one", "d:two", "d:three", "h:one"]);
    let mut listeners = listeners(&folder);
    let (mut starts, mut whole, mut sent) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let begun = Instant::now();
        if random.below(8) == 0 {
            // Sometimes a kill interrupts a start.
            folder.begin_and_kill(Duration::from_micros(random.below(60_000)));
        }
        let starting = Instant::now();
        let server = folder.serve();
        starts.push(starting.elapsed());
        let mut caller = Caller::new(server.admin).unwrap();
        ledger.check(&mut caller, &sent);
        // Some listeners reconnect at once, others miss a few rounds.
        let here: Vec<_> =
            listeners.iter_mut().filter(|_| round == 0 || random.below(3) > 0).collect();
        for listener in here {
            listener.connect(server.client);
            listener.check(&ledger);
        }
        let repeated = ledger.repeat(&mut caller, &sent);
        let after = Duration::from_micros(2_000 + random.below(58_000));
        sent = load_and_kill(server, round, after);
        sent.extend(repeated);
        whole.push(begun.elapsed());
    }
    let server = folder.serve();
    let mut caller = Caller::new(server.admin).unwrap();
    ledger.check(&mut caller, &sent);
    for listener in &mut listeners {
        listener.connect(server.client);
        listener.check(&ledger);
    }
    assert_eq!(end(server), Some(0));
    let server = folder.serve();
    ledger.check_all(&mut Caller::new(server.admin).unwrap());
    println!(
        "{rounds} rounds: {:?} each, of which the start {:?} (medians); {:?}",
        median(whole),
        median(starts),
        ledger.counts
    );
}

fn listeners(folder: &Folder) -> [Listener; 3] {
    let server = folder.serve();
    let mut caller = Caller::new(server.admin).unwrap();
    let first = caller.call("GET", "/api/history/d:one", "", "").unwrap().body;
    let first = first["last"].as_str().unwrap();
    [&["d:one"][..], &["d:one", "d:two", "h:one"], &["d:three", "h:one"]]
        .map(|topics| Listener::new(topics, first))
}

#[test]
fn a_kill_during_the_creation_leaves_an_openable_store() {
    let mut random = Random::new(7);
    for _ in 0..number("KILL_ROUNDS").unwrap_or(ROUNDS) {
        let folder = Folder::new("new", TOPICS);
        folder.begin_and_kill(Duration::from_micros(random.below(80_000)));
        let server = folder.serve();
        server.publish("d:one", "first".into());
        assert_eq!(Caller::new(server.admin).unwrap().history("d:one", None, 10).len(), 1);
    }
}
