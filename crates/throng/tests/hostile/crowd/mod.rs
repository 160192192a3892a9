//! A bounded crowd of attackers beside a few well-behaved clients.

mod attacks;
pub(crate) mod good;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use attacks::Dice;

/// The number of attackers. Each holds a few connections at a time.
const ATTACKERS: u64 = 60;
/// The attacks of each attacker.
const ATTACKS: u64 = 40;

/// The rules for attackers.
const RULES: &str = r#"
[[topics]]
pattern = "good"
publish = "refuse"
presence = true

[[topics]]
pattern = "loud"
publish = "others"
history_messages_max = 100
presence = true

[[topics]]
pattern = "chat:*"
publish = "allow"
"#;

/// Limits that well-behaved clients on a slow machine do not reach while a server is under attack.
pub(crate) const PATIENT: [(&str, &str); 8] = [
    // A long-poll session lasts for more than twice this time without a poll.
    ("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "30"),
    ("THRONG_TIMEOUTS_PHOENIX_SILENCE_SECONDS", "600"),
    // Attackers' messages must not push messages of others out of the window that a poll resumes from.
    ("THRONG_LIMITS_RECENT_MESSAGES_MAX", "200000"),
    ("THRONG_LIMITS_RECENT_SECONDS_MAX", "600"),
    // All attackers are one user.
    ("THRONG_LIMITS_COMMANDS_PER_SECOND_PER_USER_MAX", "0"),
    ("THRONG_LIMITS_BYTES_PER_SECOND_PER_USER_MAX", "0"),
    ("THRONG_LIMITS_PUBLISHES_PER_SECOND_PER_USER_MAX", "0"),
    ("THRONG_LIMITS_JOINS_PER_SECOND_PER_USER_MAX", "0"),
];

/// Returns the seed. It decides what the attackers do, but not when.
fn seed() -> u64 {
    let seed = std::env::var("HOSTILE_SEED");
    seed.map_or(1, |seed| seed.parse().expect("HOSTILE_SEED is a number"))
}

#[test]
fn well_behaved_clients_get_every_message_during_attacks() {
    let seed = seed();
    // The output shows the seed if the test fails.
    println!("HOSTILE_SEED={seed}");
    // The attackers' presence must not make slow consumers of the others.
    let own = [
        ("THRONG_LIMITS_RECENT_BYTES_MAX", "256MiB"),
        ("THRONG_LIMITS_OUTBOX_BYTES_MAX", "1MiB"),
        ("THRONG_LIMITS_OUTBOX_MESSAGES_MAX", "10000"),
    ];
    let scratch = Scratch::new("crowd");
    let rules = scratch.write("throng.toml", RULES);
    let flags = ["--demo", "--shards", "2", "--config", rules.to_str().unwrap()];
    let server = Server::with(&flags, &[&PATIENT[..], &own].concat());
    let done = AtomicBool::new(false);
    let (attacks, requested) = (AtomicU64::new(0), AtomicU64::new(0));
    let before = descriptors(&server);
    let published = std::thread::scope(|scope| {
        let _end = Unless { done: &done, server: &server };
        let mut good = good::Clients::spawn(scope, &server);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(server.get("/healthz"), (200, json!({"status": "ok"})));
                requested.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        });
        let crowd: Vec<_> = (0..ATTACKERS)
            .map(|n| {
                let dice = Dice::new(seed, n);
                let (server, done, attacks) = (&server, &done, &attacks);
                scope.spawn(move || attacks::attack(server, dice, done, attacks))
            })
            .collect();
        while good.published() < 50 || !crowd.iter().all(|it| it.is_finished()) {
            good.publish(&server);
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        crowd.into_iter().for_each(|it| it.join().unwrap());
        server.until("only the good ones are there", |server| {
            // Late messages of attackers may open sessions for a while.
            server.post("/api/disconnect", json!({"user": attacks::USER}));
            good::are_alone(server)
        });
        let published = good.published();
        good.end(&server);
        published
    });
    let (attacks, requested) = (attacks.into_inner(), requested.into_inner());
    println!("{attacks} attacks, {published} messages, {requested} times healthy");
    assert_eq!(attacks, ATTACKERS * ATTACKS);
    assert!(requested > 0);
    server.post("/api/disconnect", json!({"user": good::USER}));
    server.until("all are gone", |server| super::slow::is_at_rest(server, 0));
    server.until("their descriptors are closed", |server| descriptors(server) <= before);
    let mut server = server;
    assert!(server.child.try_wait().unwrap().is_none(), "the server has ended");
}

/// Stops the other threads when this one fails.
pub(crate) struct Unless<'a> {
    pub done: &'a AtomicBool,
    pub server: &'a Server,
}

impl Drop for Unless<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            println!("{:?}", good::gauges(self.server));
            self.server.signal("-KILL");
        }
    }
}

/// Returns the number of the shards' open descriptors. Each shard has a table of its own.
fn descriptors(server: &Server) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    let shards = tasks.map(|task| task.unwrap().path()).filter(|task| {
        let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        name.starts_with("shard-")
    });
    shards.map(|task| std::fs::read_dir(task.join("fd")).unwrap().count()).sum()
}
