//! A bounded crowd of attackers beside a few well-behaved clients.

mod attacks;
pub(crate) mod good;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::*;
use attacks::Dice;

/// The number of attackers. Each holds a few connections at a time.
const ATTACKERS: u64 = 60;
/// How long the attackers work, in seconds.
const SECONDS: u64 = 9;

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

/// Returns the seed. It decides what the attackers do, but not when.
fn seed() -> u64 {
    match std::env::var("HOSTILE_SEED") {
        Ok(seed) => seed.parse().expect("HOSTILE_SEED is a number"),
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.unwrap().as_nanos() as u64
        }
    }
}

#[test]
fn well_behaved_clients_get_every_message_during_attacks() {
    let seed = seed();
    // The output shows the seed if the test fails.
    println!("HOSTILE_SEED={seed}");
    let settings = [
        ("THRONG_TIMEOUTS_LONGPOLL_SECONDS", "2"),
        // Attackers' messages must not push those out of the window that a poll resumes from.
        ("THRONG_LIMITS_RECENT_MESSAGES_MAX", "200000"),
        ("THRONG_LIMITS_RECENT_BYTES_MAX", "256MiB"),
    ];
    let rules = std::env::temp_dir().join(format!("throng-crowd-{}.toml", std::process::id()));
    std::fs::write(&rules, RULES).unwrap();
    let flags = ["--demo", "--shards", "2", "--config", rules.to_str().unwrap()];
    let server = Server::with(&flags, &settings);
    std::fs::remove_file(rules).unwrap();
    let done = AtomicBool::new(false);
    let (attacks, asked) = (AtomicU64::new(0), AtomicU64::new(0));
    let before = descriptors(&server);
    let published = std::thread::scope(|scope| {
        let _end = Unless { done: &done, server: &server };
        let good = good::Clients::spawn(scope, &server);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(server.get("/healthz"), (200, json!({"status": "ok"})));
                asked.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        });
        let end = Instant::now() + std::time::Duration::from_secs(SECONDS);
        let crowd: Vec<_> = (0..ATTACKERS)
            .map(|n| {
                let dice = Dice::new(seed, n);
                let (server, attacks) = (&server, &attacks);
                scope.spawn(move || attacks::attack(server, dice, end, attacks))
            })
            .collect();
        let mut published = 0;
        while !crowd.iter().all(|it| it.is_finished()) {
            server.publish(good::TOPIC, json!(published));
            published += 1;
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        crowd.into_iter().for_each(|it| it.join().unwrap());
        server.post("/api/disconnect", json!({"user": attacks::USER}));
        server.until("only the good ones are there", good::are_alone);
        good.end(&server, published);
        published
    });
    let (attacks, asked) = (attacks.into_inner(), asked.into_inner());
    println!("{attacks} attacks, {published} messages, {asked} times healthy");
    assert!(attacks >= ATTACKERS && published > 20 && asked > 10);
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
