//! Topic filters of MQTT: the cost for a publish to find the filters that match, the memory of a filter, and the cost
//! for a new subscription to find the retained messages that it matches.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use bench::Args;
use bench::report::{Table, median, thousands};
use filters::{FilterTrie, NameMap};
use random::Random;

/// Filters with wildcards, and topics that retain a message.
const FILTERS: usize = 100_000;
const NAMES: usize = 100_000;

/// Filters of the large table.
const MANY: usize = 1_000_000;

/// Matches of a round, and names in a page of retained messages.
const MATCHES: usize = 100_000;
const PAGE: usize = 256;

fn main() -> ExitCode {
    bench::main(run)
}

fn run(args: &Args) -> Result<()> {
    let rounds = args.rounds_or(5);
    println!("\nfilters: one thread, medians of {rounds} rounds\n");
    matching(rounds)?;
    table(rounds)?;
    retained(rounds)
}

/// Returns filters like those of sites with sensors: four in five are for one sensor, one site or one line, and each
/// of the others is one of ten, or of a thousand, that match the same topic.
fn filters(count: usize) -> Vec<String> {
    let plain = count / 5 * 4;
    let tens = count / 10;
    let number = |at: usize| match at {
        at if at < plain => match at % 3 {
            0 => format!("site/+/sensor/{at}/temp"),
            1 => format!("site/{at}/#"),
            _ => format!("+/{}/{at}/status", at % 1_000),
        },
        at if at < plain + tens => some_plus(&format!("ten/{}", (at - plain) / 10), 4, at % 10),
        at => {
            let at = at - plain - tens;
            some_plus(&format!("thousand/{}", at / 1_000), 10, at % 1_000)
        }
    };
    (0..count).map(number).collect()
}

/// Returns a filter for `BEGIN/x/x…` that has a `+` where a bit is 0.
fn some_plus(begin: &str, levels: usize, bits: usize) -> String {
    let level = |at: usize| if bits >> at & 1 == 0 { "/+" } else { "/x" };
    begin.to_owned() + &(0..levels).map(level).collect::<String>()
}

/// Topics by the number of filters that match, from a random number.
type Topic = fn(usize) -> String;

const TOPICS: [(&str, usize, Topic); 5] = [
    ("0, nothing begins alike", 0, |n| format!("depot/{n}")),
    ("0, all but the last level", 0, |n| format!("site/none/sensor/{}/hum", n / 3 * 3)),
    ("1", 1, |n| format!("site/none/sensor/{}/temp", n / 3 * 3)),
    ("10", 10, |n| format!("ten/{}/x/x/x/x", n % 1_000)),
    ("1,000", 1_000, |n| format!("thousand/{}{}", n % 10, "/x".repeat(10))),
];

/// Measures the cost of a publish.
fn matching(rounds: u32) -> Result<()> {
    let all = filters(FILTERS);
    let mut trie = FilterTrie::default();
    for (value, filter) in all.iter().enumerate() {
        trie.insert(filter, value);
    }
    ensure!(trie.len() == FILTERS, "all filters differ");
    let mut table =
        Table::new(&["filters that match", "ns/publish", "ns/match", "list, ns/publish"]);
    for (name, matches, topic) in TOPICS {
        let mut random = Random::new(1);
        let count = MATCHES / matches.clamp(1, 100);
        // Each kind of filter has these numbers.
        let topics: Vec<_> =
            (0..count).map(|_| topic(random.below(FILTERS / 5 * 4 / 3 * 3))).collect();
        let mut times = Vec::new();
        for _ in 0..rounds {
            let (begun, mut found) = (Instant::now(), 0);
            for topic in &topics {
                trie.matching(black_box(topic), &mut |value| {
                    black_box(value);
                    found += 1;
                });
            }
            times.push(begun.elapsed().as_nanos() as f64 / count as f64);
            ensure!(found == count * matches, "{name}: found {found}");
        }
        let begun = Instant::now();
        let listed = all.iter().filter(|filter| model::filter::matches(filter, &topics[0])).count();
        let list = begun.elapsed().as_nanos() as f64;
        ensure!(listed == matches, "{name}: listed {listed}");
        let ns = median(&times);
        let each = if matches == 0 { "-".into() } else { format!("{:.0}", ns / matches as f64) };
        table.row([name.into(), thousands(ns), each, thousands(list)]);
    }
    println!("a publish, with {} filters that have wildcards\n{table}", thousands(FILTERS as f64));
    Ok(())
}

/// Measures the memory of a filter, and the cost to insert and remove it.
fn table(rounds: u32) -> Result<()> {
    let mut table = Table::new(&[
        "filters",
        "bytes/filter",
        "insert, ns",
        "slowest, µs",
        "remove, ns",
        "left, bytes",
    ]);
    for count in [FILTERS, MANY] {
        let mut all = filters(count);
        shuffle(&mut all);
        let (mut inserts, mut removes, mut slowest) = (Vec::new(), Vec::new(), Vec::new());
        let (mut bytes, mut left) = (0, 0);
        for _ in 0..rounds {
            let mut trie = FilterTrie::default();
            let (begun, mut most) = (Instant::now(), 0);
            for filter in &all {
                let at = Instant::now();
                trie.insert(filter, 0_u32);
                most = most.max(at.elapsed().as_nanos());
            }
            inserts.push(begun.elapsed().as_nanos() as f64 / count as f64);
            slowest.push(most as f64 / 1e3);
            bytes = trie.bytes();
            let begun = Instant::now();
            let gone = all.iter().filter(|filter| trie.remove(filter).is_some()).count();
            removes.push(begun.elapsed().as_nanos() as f64 / count as f64);
            ensure!(gone == count, "all filters go");
            trie.shrink();
            left = trie.bytes();
        }
        table.row([
            thousands(count as f64),
            format!("{:.1}", bytes as f64 / count as f64),
            thousands(median(&inserts)),
            thousands(median(&slowest)),
            thousands(median(&removes)),
            thousands(left as f64),
        ]);
    }
    println!("the table of filters, with a number of 4 bytes under each\n{table}");
    Ok(())
}

/// Measures the cost for a subscription to find retained messages.
fn retained(rounds: u32) -> Result<()> {
    let mut all: Vec<_> = (0..NAMES)
        .map(|n| {
            let (site, number) = (n / 100, n % 50);
            let kind = if n % 100 < 50 { "sensor" } else { "door" };
            format!("site/{site}/{kind}/{number}/state")
        })
        .collect();
    shuffle(&mut all);
    let mut names = NameMap::default();
    for name in &all {
        names.insert(name.as_str().into(), 0_u64);
    }
    ensure!(names.len() == NAMES, "all names differ");
    let mut table = Table::new(&["filter", "names", "pages", "µs", "ns/name", "slowest page, µs"]);
    for filter in
        ["#", "site/+/sensor/#", "site/17/sensor/#", "site/+/sensor/7/state", "+/+/+/+/none"]
    {
        let (mut times, mut slowest, mut sizes) = (Vec::new(), Vec::new(), (0, 0));
        for _ in 0..rounds {
            let (begun, mut after, mut most) = (Instant::now(), None, 0);
            sizes = (0, 0);
            loop {
                let at = Instant::now();
                let page = black_box(names.matching(filter, after, PAGE));
                most = most.max(at.elapsed().as_nanos());
                sizes = (sizes.0 + page.found.len(), sizes.1 + 1);
                after = page.after;
                if after.is_none() {
                    break;
                }
            }
            times.push(begun.elapsed().as_nanos() as f64);
            slowest.push(most as f64 / 1e3);
        }
        let listed = all.iter().filter(|name| model::filter::matches(filter, name)).count();
        ensure!(sizes.0 == listed, "{filter}: found {}", sizes.0);
        let ns = median(&times);
        let each = if listed == 0 { "-".into() } else { format!("{:.0}", ns / listed as f64) };
        table.row([
            filter.into(),
            thousands(listed as f64),
            thousands(f64::from(sizes.1)),
            format!("{:.1}", ns / 1e3),
            each,
            format!("{:.1}", median(&slowest)),
        ]);
    }
    println!(
        "retained messages of {} topics, in pages of {PAGE}\n{table}",
        thousands(NAMES as f64)
    );
    Ok(())
}

fn shuffle<T>(items: &mut [T]) {
    let mut random = Random::new(7);
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at + 1));
    }
}
