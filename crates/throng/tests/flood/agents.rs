//! Runs that are divided among agents, which are processes of their own.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::flood::{HISTORY, configured};
use crate::flooding::*;
use crate::support::{
    Lines, Scratch, Server, connect, free_port, output_within, wait_within, write_secret,
};

/// A `throng flood agent`; killed at the end of the test.
pub(super) struct Agent {
    child: Child,
    address: SocketAddr,
    lines: Lines,
}

impl Agent {
    fn start(flags: &str) -> Self {
        Agent::run(command(&format!("agent --listen 127.0.0.1:0 {flags}")))
    }

    fn run(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = Lines::of(child.stdout.take().unwrap());
        let line = lines.next().unwrap();
        let address = line.rsplit(' ').next().unwrap().parse().unwrap();
        Agent { child, address, lines }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        wait_within(&mut self.child);
    }

    /// Waits until its first run has ended.
    fn until_free(&mut self) {
        let begun = self.lines.find(|line| line.contains(", share ")).unwrap();
        let (coordinator, _) = begun.split_once(": ").unwrap();
        self.lines.find(|line| line.starts_with(coordinator)).unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the flag that divides a run among these agents.
pub(super) fn among(agents: &[Agent]) -> String {
    let all: Vec<String> = agents.iter().map(|agent| agent.address.to_string()).collect();
    format!("--agents {}", all.join(","))
}

pub(super) fn agents<const N: usize>() -> [Agent; N] {
    std::array::from_fn(|_| Agent::start(""))
}

#[test]
fn agents_together_receive_what_they_publish_in_every_scenario() {
    /// Arguments, connections, and how many connections receive each message.
    type Case = (&'static str, u64, u64);
    let cases: [Case; 7] = [
        ("one-topic -c 100 --messages 20 --hold 2 -t sse,ws", 100, 100),
        ("rooms --topics 6 --users 20 --messages 40 --hold 2 --publishers 4", 120, 20),
        ("random-users -c 100 --senders 10 --messages 20 --interval 0.1", 100, 1),
        ("random-users -c 101 --messages 20 --interval 0.1 --long-tail", 101, 1),
        ("hold -c 100 --broadcast-every 0.1 --hold 2 -t stream", 100, 100),
        ("hold -c 100 --send-rate 40 --hold 2 --topic-template room-{room} --publishers 7", 100, 1),
        ("one-topic -c 90 --messages 30 --hold 2 -t mqtt --qos 1", 90, 90),
    ];
    all_at_once(&cases, |(arguments, connections, members)| {
        let server = Server::with(&["--mqtt", "127.0.0.1:0"], &[]);
        let agents = agents::<3>();
        let end = flood(&format!("{arguments} {} {}", at(&server), among(&agents)));
        end.is_clean(*connections).delivered_to(*members);
        if arguments.contains("random-users") {
            end.counts([("published", 200)]);
        }
        let shares = end.summary["agents"].as_array().unwrap();
        assert_eq!(shares.len(), 3);
        let sum = |of: &str| shares.iter().map(|share| share[of].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("connections"), sum("open")), (*connections, *connections));
        assert_eq!(sum("messages"), end.count("messages"));
        assert!(shares.iter().all(|share| share["clock_error_us"].is_u64()), "{shares:#?}");
        let publish = end.summary["publish"]["count"].as_u64();
        assert_eq!(publish, Some(end.count("published")), "{:#}", end.summary);
    });
}

/// A time namespace gives an agent the clock of another machine.
#[test]
fn messages_are_timed_right_where_clocks_differ() {
    let elsewhere = |seconds: &str| {
        let mut command = Command::new("unshare");
        command.args(["--time", "--fork", "--kill-child", "--monotonic", seconds]);
        command
    };
    if !elsewhere("9000").arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no namespace of time can be made here");
        return;
    }
    let server = Server::start();
    let agent = |seconds| {
        let mut command = elsewhere(seconds);
        command.args([env!("CARGO_BIN_EXE_throng"), "flood", "agent", "--listen", "127.0.0.1:0"]);
        Agent::run(command)
    };
    let agents = [agent("9000"), agent("500")];
    let run = "rooms --topics 2 --users 20 --messages 40 --hold 2 -t sse,stream,ws";
    let end = flood(&format!("{run} {} {}", at(&server), among(&agents)));
    end.is_clean(40).delivered_to(20);
    // A wrong clock would show as at least 500 s here, which is longer than any test may take.
    let delivery = &end.summary["delivery"];
    assert!(delivery["max_us"].as_u64() < Some(400_000_000), "{delivery:#}");
    assert!(delivery["p50_us"].as_u64() > Some(5), "{delivery:#}");
}

#[test]
fn agents_connections_are_cut_and_come_back_and_storms_come_at_one_time() {
    let server = configured("agents-cut", HISTORY, &[]);
    let agents = agents::<2>();
    let mut run = Flood::start(&format!(
        "cut {} {} -c 200 -t sse,stream,poll,ws,phoenix --topics 20 --messages 60 \
         --cuts-per-second 60 --away 0.3 --send-rate 60 --hold {LONG}",
        at(&server),
        among(&agents)
    ));
    run.until_count("cuts", 100);
    run.until_count("caught_up", 1);
    run.stop().all_recovered(200);
    // The same agents take the next run.
    let storm = "storm -c 200 --times 2 --every 0.5 --recover -t sse,stream,poll,ws,phoenix";
    let end = flood(&format!(
        "{storm} --topic-template r{{room}} --users-per-topic 10 {} {}",
        at(&server),
        among(&agents)
    ));
    end.all_recovered(200);
    end.counts([
        ("published", 2 * 10 * 20),
        ("messages", 2 * 10 * 200),
        ("caught_up", 2 * 10 * 200),
    ]);
    for storm in end.summary["storms"].as_array().unwrap() {
        for (name, count) in [("connections", 200), ("recovered", 200), ("missed", 10)] {
            assert_eq!(storm[name], count, "{storm:#}");
        }
        assert_eq!(storm["recovery"]["count"], 200);
    }
}

#[test]
fn users_of_agents_come_and_go_and_are_served_by_the_coordinator() {
    let backend = format!("127.0.0.1:{}", free_port());
    let config = format!("[[forward]]\nfilter = \"requests/#\"\nurl = \"http://{backend}/\"\n");
    let server = configured("agents-gateway", &config, &["--mqtt", "127.0.0.1:0"]);
    let run = "gateway -t mqtt --qos 1 -c 200 --logins 40 --pushes 50 --away 0.5";
    let agents = agents::<2>();
    let mut run = Flood::start(&format!(
        "{run} --hold {LONG} --requests 50 --backend {backend} {} {}",
        at(&server),
        among(&agents)
    ));
    run.until_count("messages", 51);
    run.until_count("left", 40);
    server.until("requests are forwarded", |server| {
        server.metric("throng_forward_taken_total{filter=\"requests/#\"}") > 50.0
    });
    run.stop().errors([]);
    let people = "churn -c 100 --users 10 --stay 1 --away 0.2 --talk 0.5 -t sse,stream,ws";
    let mut run =
        Flood::start(&format!("{people} --hold {LONG} {} {}", at(&server), among(&agents)));
    run.until_count("left", 51);
    run.until_count("messages", 101);
    run.stop().errors([]);
}

#[test]
fn an_interrupt_ends_the_run_of_all_agents_with_the_results_so_far() {
    let server = Server::start();
    let agents = agents::<2>();
    let mut run =
        Flood::start(&format!("one-topic {} {} -c 150 --hold {LONG}", at(&server), among(&agents)));
    run.until_count("messages", 1_500);
    let end = run.stop();
    assert_eq!(end.summary["interrupted"], true);
    end.is_clean(150).delivered_to(150);
}

#[test]
fn a_lost_agent_is_reported_with_its_share_and_the_others_go_on() {
    let server = Server::start();
    let mut agents = agents::<3>();
    let mut run =
        Flood::start(&format!("one-topic {} {} -c 90 --hold {LONG}", at(&server), among(&agents)));
    run.until_all_arrived();
    agents[2].kill();
    run.until("its connections are gone", |line| line["sample"]["counts"]["open"] == 60);
    let before = run.count("messages");
    run.until_count("messages", before + 180);
    let end = run.stop();
    assert_eq!(end.code, Some(3), "{:#}", end.summary);
    let shares = &end.summary["agents"];
    assert!(shares[0]["lost"].is_null() && shares[1]["lost"].is_null(), "{shares:#}");
    assert!(shares[2]["lost"].is_string() && shares[2]["connections"] == 30, "{shares:#}");
    end.counts([("open", 60), ("lost", 0), ("duplicated", 0), ("publish_failed", 0)]);
}

#[test]
fn a_run_ends_with_its_coordinator_and_the_agent_takes_the_next_one() {
    let server = Server::start();
    let mut agents = agents::<2>();
    let arguments = format!("one-topic {} {} -c 60", at(&server), among(&agents));
    let mut run = Flood::start(&format!("{arguments} --hold {LONG}"));
    run.until_all_arrived();
    // While a run goes on, the agents reject another one.
    let output = output_within(&mut command(&arguments));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("another run"), "{text}");
    server.until_members("all", 60);
    drop(run);
    server.until_members("all", 0);
    agents.iter_mut().for_each(Agent::until_free);
    flood(&format!("{arguments} --hold 1")).is_clean(60).delivered_to(60);
}

#[test]
fn an_agent_serves_only_those_with_its_key() {
    let server = Server::start();
    let scratch = Scratch::new("flood-agents-keys");
    let (right, wrong) = (scratch.path().join("right"), scratch.path().join("wrong"));
    write_secret(&right, "0123456789abcdef\n");
    write_secret(&wrong, "0123456789abcdex\n");
    let with = [Agent::start(&format!("--key-file {}", right.display()))];
    let without = [Agent::start("")];
    let run = |agents: &[Agent], key: Option<&std::path::Path>| {
        let key = key.map_or(String::new(), |key| format!("--agents-key-file {}", key.display()));
        let run = format!("hold {} {} -c 10 --hold 0 {key}", at(&server), among(agents));
        let output = output_within(&mut command(&run));
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let good = run(&with, Some(&right));
    assert_eq!(good.0, Some(0), "{good:?}");
    for (agents, key, want) in [
        (&with, Some(wrong.as_path()), "another key"),
        (&with, None, "--agents-key-file"),
        (&without, Some(right.as_path()), "--key-file"),
    ] {
        let (code, text) = run(agents, key);
        assert!(code == Some(1) && text.contains(want), "{want}: {text}");
        assert!(!text.contains("0123456789"), "{text}");
    }
}

#[test]
fn what_agents_can_not_do_is_explained() {
    let server = Server::start();
    let agents = agents::<1>();
    let to = among(&agents);
    let here = at(&server);
    let free_address = format!("127.0.0.1:{}", free_port());
    for (arguments, code, want) in [
        ("agent --listen 0.0.0.0:0".to_string(), 2, "--key-file"),
        ("agent --listen nowhere".into(), 2, "write a host and a port"),
        (format!("hold {here} --agents {free_address}"), 1, "does throng flood agent run there"),
        (format!("hold {here} --agents {}", server.client), 1, "no agent responds there"),
        (format!("hold {here} {to},{}", agents[0].address), 2, "named twice"),
        (format!("hold {here} -c 0 {to}"), 2, "--connections"),
        (format!("hold --urls x {to}"), 2, "--urls"),
        (format!("cut {here} {to}"), 1, "has no history"),
        // Only the agent finds this error.
        (format!("hold {here} {to} --source 1.2.3"), 2, "127.0.1.0/24"),
    ] {
        let output = output_within(&mut command(&arguments));
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {text}");
        assert!(text.contains(want) && !text.contains("panicked"), "{arguments}: {text}");
    }
}

/// Connections that are no coordinators must not keep coordinators away.
#[test]
fn agents_that_say_nothing_or_nonsense_keep_no_other_away() {
    use std::io::{Read, Write};
    let server = Server::start();
    let agents = agents::<1>();
    let mut idle: Vec<_> = (0..40)
        .map(|number| {
            let mut socket = connect(agents[0].address);
            if number % 2 == 0 {
                let _ = socket.write_all(b"GET / HTTP/1.1\r\n\r\n");
            }
            socket
        })
        .collect();
    // The agent closes each of them, even one that still writes.
    for socket in &mut idle {
        let end = socket.read_to_end(&mut Vec::new());
        let is_late = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        assert!(!end.as_ref().is_err_and(is_late), "{end:?}");
        let _ = socket.write_all(&[0; 9]);
    }
    let end = flood(&format!("hold {} {} -c 10 --hold 0", at(&server), among(&agents)));
    end.is_clean(10);
    assert_eq!(end.summary["agents"][0]["lost"], json!(null));
}
