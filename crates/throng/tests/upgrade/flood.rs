//! Upgrades under the load generator, which checks the sequence of every connection.
//! `UPGRADE_ROUNDS=n cargo test -p throng --test server upgrade::flood` sets the number of upgrades in each run.

use crate::flooding::{Ended, Flood, LONG, at};
use crate::upgrade::node::{Node, Options, Storage};

/// The upgrades of a run, unless `UPGRADE_ROUNDS` says otherwise.
const ROUNDS: u64 = 3;

fn rounds() -> u64 {
    let Ok(text) = std::env::var("UPGRADE_ROUNDS") else { return ROUNDS };
    text.parse().unwrap_or_else(|_| panic!("UPGRADE_ROUNDS is a number, and not {text:?}"))
}

/// Topics of the load generator that have a history.
const TOPICS: &str = "[[topics]]\npattern = \"room-*\"\nhistory_messages_max = 1000000\n";

/// Runs a scenario. The next upgrade begins each time this count has grown by `step`.
fn flooded(storage: Storage, scenario: &str, count: &str, step: u64) -> Ended {
    // Messages for users would come again until they are acknowledged.
    let settings = vec![("THRONG_INBOX_ENABLED", "false")];
    let node = Node::with(Options { storage, more: TOPICS.into(), settings, ..Options::default() });
    let mut flood = Flood::start(&format!("{scenario} {} --hold {LONG}", at(&node)));
    flood.until_all_arrived();
    for round in 1..=rounds() {
        flood.until_count(count, round * step);
        node.upgrade();
    }
    flood.until_count(count, (rounds() + 1) * step);
    flood.stop()
}

/// Checks that the server has closed no connection, and that every connect and publish has succeeded.
fn has_no_failures(ended: &Ended) {
    ended.reasons("closes", &[]).reasons("failures", &[]);
    ended.counts([("closed", 0), ("failed", 0), ("publish_failed", 0)]);
}

fn connections_that_stay_miss_nothing(storage: Storage) {
    let run = "hold -t sse,stream,poll,ws,phoenix,mqtt --qos 1 -c 240 --topic-template room-{room} \
               --users-per-topic 12 --topic-rate 60 --send-rate 60 --broadcast-every 0.5 \
               --publishers 4";
    let ended = flooded(storage, run, "messages", 500);
    has_no_failures(&ended);
    ended.is_clean(240);
}

#[test]
fn connections_that_stay_miss_nothing_in_memory() {
    connections_that_stay_miss_nothing(Storage::Memory);
}

#[test]
fn connections_that_stay_miss_nothing_on_disk() {
    connections_that_stay_miss_nothing(Storage::Disk);
}

const CUT: &str = "cut -c 240 --topics 24 --messages 60 --cuts-per-second 40 --away 0.3";

#[test]
fn connections_that_are_cut_miss_nothing() {
    let run = format!("{CUT} -t sse,stream,poll,ws,phoenix");
    let ended = flooded(Storage::Disk, &run, "cuts", 30);
    has_no_failures(&ended);
    ended.all_recovered(240);
}

/// A client that is cut while it connects may try again before its first attempt arrives. Then it takes over its own
/// session, and the server closes one of the two, with and without upgrades.
#[test]
fn sessions_that_are_cut_miss_nothing() {
    let ended = flooded(Storage::Memory, &format!("{CUT} -t mqtt --qos 1"), "cuts", 30);
    ended.all_recovered(240).counts([("publish_failed", 0)]);
}

#[test]
fn messages_are_acknowledged_throughout() {
    let run =
        "random-users -c 100 -t sse,stream,poll,ws,phoenix --messages 20 --interval 0.1 --ack";
    let node = Node::with(Options {
        storage: Storage::Disk,
        settings: vec![("THRONG_INBOX_REDELIVERY_SECONDS", "60")],
        ..Options::default()
    });
    let mut flood = Flood::start(&format!("{run} {}", at(&node)));
    flood.until_all_arrived();
    (0..3).for_each(|_| node.upgrade());
    let ended = flood.end();
    ended.errors([]).counts([("open", 100), ("ack_failed", 0)]);
    assert_eq!(ended.count("messages"), ended.count("published") + ended.count("redelivered"));
}
