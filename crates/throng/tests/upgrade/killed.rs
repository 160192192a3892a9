//! The new process is killed or stopped, or a signal ends the old one, at any moment of an upgrade: afterwards one
//! process serves, and never two. Clients only notice if the new process is killed when it has everything.
//! `KILL_ROUNDS=n KILL_SEED=s cargo test -p throng --test server upgrade::killed` sets the number of kills and their
//! times.

use std::time::Duration;

use random::Random;

use crate::mqtt::client::{Connect, V5, filter};
use crate::support::{Server, Signal, end_by, wait_within};
use crate::upgrade::api::Api;
use crate::upgrade::member::{Kind, Member, numbers};
use crate::upgrade::node::{Node, Outcome, Storage, signal};

/// The rounds of each test, unless `KILL_ROUNDS` says otherwise.
const ROUNDS: u64 = 6;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, and not {text:?}")))
}

/// Returns the number of rounds, and the source of random times.
fn rounds() -> (u64, Random) {
    let (rounds, seed) = (number("KILL_ROUNDS"), number("KILL_SEED").unwrap_or(15));
    println!("KILL_SEED={seed}");
    (rounds.unwrap_or(ROUNDS), Random::new(seed))
}

fn crowd(node: &Node) -> Vec<Member> {
    let kinds = [Kind::Sse, Kind::Stream, Kind::Ws, Kind::Phoenix, Kind::Mqtt5(1), Kind::Poll];
    let many = kinds.iter().cycle().take(30);
    many.map(|kind| Member::open(node, *kind, "h:crowd")).collect()
}

/// Checks that all members receive a message, and no other before it.
fn all_receive(node: &Node, members: &mut [Member], text: &str) {
    Api::new(node.admin).publish("h:crowd", text);
    for member in members {
        assert_eq!(member.next(), text, "{:?}", member.kind);
    }
}

fn the_new_process_may_be_killed_at_any_moment(storage: Storage) {
    let (rounds, mut random) = rounds();
    let mut node = Node::new(storage);
    let mut members = crowd(&node);
    let before = node.only();
    let outcome = node.try_upgrade(&[]);
    assert_ne!(node.only(), before, "{outcome:?}");
    // The latest time of a kill. It adapts to the speed of the machine.
    let mut latest_us = outcome.took.as_micros() as u64;
    for round in 0..rounds {
        let binary = node.waiting_binary(&format!("new-{round}"));
        let before = node.only();
        let upgrade = node.begin(&["--binary", binary.path()]);
        let new = binary.process();
        // In the first round the process is killed before it is a server.
        if round > 0 {
            binary.go();
            std::thread::sleep(Duration::from_micros(random.below(latest_us)));
        }
        signal(new, "-KILL");
        let outcome = upgrade.end();
        println!("{storage:?}, round {round}: {:?}", outcome.code);
        if outcome.code == Some(3) {
            latest_us = latest_us * 3 / 2;
            assert_eq!(node.only(), before, "{outcome:?}");
            all_receive(&node, &mut members, &format!("after round {round}"));
        } else {
            // The new process already had everything.
            assert!(round > 0, "{outcome:?}");
            latest_us = (latest_us / 2).max(1_000);
            node.until_all_ended();
            node = Node::new(storage);
            members = crowd(&node);
        }
    }
}

#[test]
fn the_new_process_may_be_killed_at_any_moment_in_memory() {
    the_new_process_may_be_killed_at_any_moment(Storage::Memory);
}

#[test]
fn the_new_process_may_be_killed_at_any_moment_on_disk() {
    the_new_process_may_be_killed_at_any_moment(Storage::Disk);
}

/// The old server gives up a stopped process. When that process runs again, it must not serve beside the old one.
#[test]
#[ignore = "long: the server waits for up to a minute for each process"]
fn the_new_process_may_stand_still_at_any_moment() {
    let node = Node::new(Storage::Memory);
    let mut members = crowd(&node);
    for (round, wait) in [None, Some(0), Some(60), Some(250)].into_iter().enumerate() {
        let binary = node.waiting_binary(&format!("still-{round}"));
        let upgrade = node.begin(&["--binary", binary.path()]);
        let new = binary.process();
        if let Some(wait) = wait {
            binary.go();
            std::thread::sleep(Duration::from_millis(wait));
        }
        signal(new, "-STOP");
        let Outcome { code, took, .. } = upgrade.end();
        println!("stopped after {wait:?} ms: {code:?} after {took:?}");
        signal(new, "-CONT");
        let one = node.only();
        assert_eq!(code == Some(0), one == new, "{code:?}");
        assert!([Some(0), Some(3)].contains(&code), "{code:?}");
        all_receive(&node, &mut members, &format!("after round {round}"));
    }
    node.upgrade();
    all_receive(&node, &mut members, "in the end");
}

/// SIGTERM ends an upgrade, the server, and the process that the server has started.
#[test]
fn sigterm_ends_a_server_during_an_upgrade() {
    let mut node = Node::new(Storage::Disk);
    let mut member = Member::open(&node, Kind::Stream, "h:a");
    Api::new(node.admin).publish("h:a", "before");
    assert_eq!(member.next(), "before");
    let binary = node.waiting_binary("waits");
    let upgrade = node.begin(&["--binary", binary.path()]);
    binary.process();
    node.signal("-TERM");
    let outcome = upgrade.end();
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(wait_within(&mut node.server.child).success(), "{}", node.log());
    node.until_all_ended();
}

/// At any moment of an upgrade SIGTERM leaves either no server, or the new one, which the next SIGTERM ends.
#[test]
fn sigterm_at_any_moment_leaves_one_server_or_none() {
    let (rounds, mut random) = rounds();
    // The latest time of a signal.
    let mut latest_us = 200_000;
    for _ in 0..rounds {
        let node = Node::new(Storage::Memory);
        let upgrade = node.begin(&[]);
        std::thread::sleep(Duration::from_micros(random.below(latest_us)));
        node.signal("-TERM");
        let outcome = upgrade.end();
        println!("{:?}: {}", outcome.code, outcome.text().lines().last().unwrap_or_default());
        latest_us =
            if outcome.code == Some(0) { (latest_us / 2).max(1_000) } else { latest_us * 3 / 2 };
        let left_max = usize::from(outcome.code == Some(0));
        node.until("only the new server is left, if any", |_| node.processes().len() <= left_max);
        for last in node.processes() {
            assert!(end_by(last, Signal::TERM), "it does not end: {outcome:?}");
        }
        assert!(node.processes().is_empty());
    }
}

/// If the new process crashes directly after the switch, the store has everything that got a response.
#[test]
fn a_crash_after_the_switch_keeps_what_is_on_disk() {
    let node = Node::new(Storage::Disk);
    let mut keeper = Connect::persistent(V5, "keeper").open(node.client);
    keeper.subscribe(&[filter("kept/#", 1)]);
    keeper.disconnect();
    let publish = |range| {
        let mut api = Api::new(node.admin);
        numbers(range).iter().for_each(|number| _ = api.publish("d:kept", number));
    };
    publish(0..20);
    node.upgrade();
    publish(20..40);
    // The next server needs the lock of the store.
    assert!(end_by(node.only(), Signal::KILL));
    let again = Server::run(node.another(Storage::Disk), &[]);
    assert_eq!(Api::new(again.admin).history("d:kept"), numbers(0..40));
    assert!(Connect::persistent(V5, "keeper").open(again.client).session_present);
}

#[test]
fn a_new_process_ends_whose_old_one_has_died() {
    let node = Node::new(Storage::Memory);
    let binary = node.waiting_binary("orphan");
    let old = node.only();
    let upgrade = node.begin(&["--binary", binary.path()]);
    binary.process();
    assert!(end_by(old, Signal::KILL));
    binary.go();
    // The command would wait for a server that will not come back.
    drop(upgrade);
    node.until_all_ended();
}
