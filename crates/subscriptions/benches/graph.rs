//! Measures a follower graph: memory for each edge, processor time to import it and to load it at a start, and the
//! duration of a login and of a page of a topic's subscribers (in wall-clock time: on a busy machine its highest
//! percentiles are the scheduler's).
//!
//! `cargo bench -p subscriptions -- --users 1000000 --edges 50`, and with `--by-topic 0` without the table of each
//! topic's followers.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use random::Random;
use subscriptions::generate::Graph;
use subscriptions::{Change, Subscriptions, csv};

/// Bytes of CSV that are imported at a time, as `throng subscriptions import` sends them.
const CHUNK_BYTES: usize = 1 << 20;

fn main() {
    let graph = Graph {
        users: argument("--users", 1_000_000),
        edges_per_user: argument("--edges", 50),
        seed: argument("--seed", 1).into(),
    };
    let by_topic = argument("--by-topic", 1) != 0;
    let before = resident();
    let table = Subscriptions::new(by_topic);
    let mut spent = Spent::default();
    let mut text = String::with_capacity(CHUNK_BYTES + 1024);
    let mut edges = 0u64;
    let mut followers = vec![0u32; graph.users as usize];
    for (follower, followed) in graph.edges() {
        followers[followed as usize] += 1;
        edges += 1;
        // Writing to a String can't fail.
        let _ = writeln!(text, "u{follower},feed:u{followed}");
        if text.len() >= CHUNK_BYTES {
            spent.import(&table, &text);
            text.clear();
        }
    }
    spent.import(&table, &text);
    assert_eq!(table.edges(), edges);
    let most = followers.iter().max().copied().unwrap_or(0);
    drop((text, followers));
    println!("users           {}", table.users());
    println!("edges           {edges}");
    println!("most followers  {most}");
    let (resident, counted) = (resident() - before, table.memory_bytes());
    let each = |bytes: usize| bytes as f64 / edges as f64;
    println!("memory counted  {:.1} MB, {:.2} B an edge", counted as f64 / 1e6, each(counted));
    println!("memory resident {:.1} MB, {:.2} B an edge", resident as f64 / 1e6, each(resident));
    let rate = |spent: Duration| edges as f64 / spent.as_secs_f64() / 1e6;
    println!("import of CSV   {:.2} M edges/s", rate(spent.plan + spent.apply));
    println!("  parse, plan   {:.2} M edges/s", rate(spent.plan));
    println!("  apply         {:.2} M edges/s", rate(spent.apply));
    println!("  slowest chunk {:.1} ms", spent.slowest.as_secs_f64() * 1e3);
    println!(
        "saved rows      {:.1} MB, {:.2} B an edge",
        spent.saved as f64 / 1e6,
        each(spent.saved)
    );
    logins(&table, graph.users);
    if by_topic {
        pages(&table, graph);
    }
    load(&table, graph.users, by_topic);
}

/// Reads pages of the subscribers of topics with many and with few.
fn pages(table: &Subscriptions, graph: Graph) {
    for rank in [0, 100, 10_000].into_iter().filter(|rank| *rank < graph.users) {
        let topic = format!("feed:u{}", graph.popular(rank));
        let (mut longest, began) = (Duration::ZERO, Instant::now());
        let mut search = table.search(&topic, "", 1_000).expect("it is known");
        loop {
            let began = Instant::now();
            let goes_on = search.step();
            longest = longest.max(began.elapsed());
            if !goes_on {
                break;
            }
        }
        let (page, spent) = (search.page(), began.elapsed());
        println!(
            "page            of {} subscribers {:.2} ms, {:.2} ms at a time",
            page.count,
            spent.as_secs_f64() * 1e3,
            longest.as_secs_f64() * 1e3
        );
    }
}

/// Rows that are loaded between two reads of the clock, which take long.
const ROWS_AT_ONCE: usize = 4_096;

/// Loads all rows into another table, as at a start.
fn load(table: &Subscriptions, users: u32, by_topic: bool) {
    let again = Subscriptions::new(by_topic);
    let (mut spent, mut rows) = (Duration::ZERO, Vec::new());
    let mut text = String::new();
    let mut numbers = std::collections::HashMap::new();
    for user in 0..users {
        text.clear();
        // Writing to a String can't fail.
        let _ = write!(text, "u{user}");
        let mut row: Vec<u32> = Vec::new();
        for name in table.of(&text) {
            let next = numbers.len() as u32;
            let number = *numbers.entry(name.clone()).or_insert_with(|| {
                again.load_name(next, &name).expect("a good name");
                next
            });
            row.push(number);
        }
        row.sort_unstable();
        rows.push((text.clone(), pack(&row)));
        if rows.len() == ROWS_AT_ONCE || user == users - 1 {
            let began = processor();
            for (user, packed) in rows.drain(..) {
                again.load_row(&user, &packed).expect("a good row");
            }
            spent += processor() - began;
        }
    }
    let began = processor();
    again.loaded();
    spent += processor() - began;
    assert_eq!(again.edges(), table.edges());
    println!("load            {:.2} s, {} edges", spent.as_secs_f64(), again.edges());
}

/// Packs numbers as the crate packs rows.
fn pack(numbers: &[u32]) -> Vec<u8> {
    let (mut packed, mut next) = (Vec::new(), 0);
    for number in numbers {
        let mut delta = number - next;
        while delta >= 0x80 {
            packed.push(delta as u8 | 0x80);
            delta >>= 7;
        }
        packed.push(delta as u8);
        next = number + 1;
    }
    packed
}

#[derive(Default)]
struct Spent {
    plan: Duration,
    apply: Duration,
    slowest: Duration,
    saved: usize,
}

impl Spent {
    fn import(&mut self, table: &Subscriptions, text: &str) {
        let began = processor();
        let change = plan(table, text);
        let planned = processor();
        table.apply(&change);
        let done = processor();
        self.plan += planned - began;
        self.apply += done - planned;
        self.slowest = self.slowest.max(done - began);
        self.saved += change.puts.iter().map(|(_, packed)| packed.len()).sum::<usize>();
    }
}

fn plan(table: &Subscriptions, text: &str) -> Change {
    let mut plan = table.plan(usize::MAX);
    let mut rows = csv::rows(text.as_bytes()).map(|row| row.expect("a good line")).peekable();
    while let Some(first) = rows.next() {
        let mut topics = vec![first.topic];
        while let Some(row) = rows.next_if(|row| row.user == first.user) {
            topics.push(row.topic);
        }
        let topics: Vec<&str> = topics.iter().map(|topic| &**topic).collect();
        plan.edit(&first.user, &topics, &[]).expect("a good edit");
    }
    plan.change()
}

/// Measures logins of users with about 50 topics, in an order that defeats the processor's caches.
fn logins(table: &Subscriptions, users: u32) {
    let logins_max = argument("--logins", 50_000) as usize;
    let mut times: Vec<Duration> = Vec::new();
    let (mut random, mut topics, mut attempts) = (Random::new(1), 0, 0);
    while times.len() < logins_max && attempts < logins_max * 100 {
        attempts += 1;
        let user = format!("u{}", random.below(users));
        let began = Instant::now();
        let of = table.of(&user);
        let spent = began.elapsed();
        if (45..=55).contains(&of.len()) {
            topics += of.len();
            times.push(spent);
        }
    }
    times.sort_unstable();
    if times.is_empty() {
        return println!("login           nobody has about 50 topics");
    }
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6;
    let mean = topics as f64 / times.len() as f64;
    println!(
        "login           p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs ({} logins, {mean:.1} topics)",
        at(0.5),
        at(0.99),
        at(0.999),
        times.len()
    );
}

/// Returns the processor time of this thread, because other processes may be busy on the machine.
fn processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let spent = text.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_nanos(spent.expect("/proc/thread-self/schedstat"))
}

/// Returns the anonymous memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0 kB");
    line.trim().trim_end_matches("kB").trim().parse().map_or(0, |kilobytes: usize| kilobytes * 1024)
}

fn argument(name: &str, default: u32) -> u32 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name).skip(1);
    arguments.next().map_or(default, |text| text.parse().expect("a number"))
}
