//! `throng flood` against a real Throng, against defective servers, and against nginx.
//!
//! No test asserts that something takes less than a certain time. Where a test waits, it waits for
//! the expected result.

mod agents;
mod several;
mod tls;

use std::path::Path;

use crate::flooding::*;
use crate::support::{Scratch, Server, free_port, kernel, output_within, write_secret};
use serde_json::Value;

#[test]
fn every_transport_receives_each_message_once_also_in_a_mix() {
    let transports = ["sse", "stream", "ws", "phoenix", "sse,ws", "sse,stream,ws,phoenix"];
    all_at_once(&transports, |transport| {
        let server = Server::start();
        let run = format!("one-topic {} -t {transport} -c 120 --messages 20", at(&server));
        flood(&format!("{run} --hold 2")).is_clean(120).delivered_to(120);
    });
}

#[test]
fn mqtt_clients_of_any_qos_and_publishers_receive_and_confirm() {
    let runs = [
        "one-topic -c 120 --messages 20 --hold 2",
        "one-topic -c 120 --messages 20 --hold 2 --qos 1 --session kept",
        "one-topic -c 120 --messages 20 --hold 2 --qos 2 --no-heartbeats",
        "hold -c 120 --topic-template= --broadcast-every 0.1 --hold 2 --qos 1",
        "hold -c 120 --topic-template room-{room} --send-rate 40 --hold 2 --qos 2",
    ];
    all_at_once(&runs, |run| {
        let server = Server::with(&["--mqtt", "127.0.0.1:0"], &[]);
        let to = if run.contains("send-rate") { 1 } else { 120 };
        flood(&format!("{run} -t mqtt {}", at(&server))).is_clean(120).delivered_to(to);
    });
    all_at_once(&[0, 1, 2], |qos| {
        let server = Server::with(&["--mqtt", "127.0.0.1:0"], &[]);
        let publish = format!("--publish-mqtt {} --qos {qos}", server.client);
        let run = format!("one-topic {} -t mqtt,sse -c 60 --messages 20", at(&server));
        flood(&format!("{run} --hold 2 {publish}")).is_clean(60).delivered_to(60);
    });
}

#[test]
fn mqtt_clients_that_are_cut_miss_nothing_and_log_in_and_out() {
    all_at_once(&[1, 2], |qos| {
        let server = Server::with(&["--mqtt", "127.0.0.1:0"], &[]);
        let mut run = Flood::start(&format!(
            "cut {} -c 200 -t mqtt --qos {qos} --topics 20 --messages 60 --cuts-per-second 60 \
             --away 0.3 --send-rate 60 --hold {LONG}",
            at(&server)
        ));
        run.until_count("cuts", 100);
        run.until_count("caught_up", 1);
        run.stop().all_recovered(200);
    });
    let server = Server::with(&["--mqtt", "127.0.0.1:0"], &[]);
    let gateway = "gateway -t mqtt --qos 1 -c 200 --logins 40 --pushes 50 --away 0.5";
    let gateway = format!("{gateway} --hold {LONG}");
    let mut run = Flood::start(&format!("{gateway} {}", at(&server)));
    run.until_count("left", 40);
    run.until_count("messages", 1);
    run.stop().errors([]);
    let backend = format!("127.0.0.1:{}", free_port());
    let config = format!("[[forward]]\nfilter = \"requests/#\"\nurl = \"http://{backend}/\"\n");
    let server = configured("gateway", &config, &["--mqtt", "127.0.0.1:0"]);
    let mut run =
        Flood::start(&format!("{gateway} --requests 50 --backend {backend} {}", at(&server)));
    run.until_count("messages", 51);
    server.until("requests are forwarded", |server| {
        server.metric("throng_forward_taken_total{filter=\"requests/#\"}") > 50.0
    });
    run.stop().errors([]);
    let output = output_within(&mut command(&format!("cut {} -t mqtt --qos 0", at(&server))));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("--qos 1 or 2"), "{text}");
}

/// The tool can't tell when a server reads the first request of a poll. Messages before that do not arrive, and all
/// later ones must.
#[test]
fn polls_receive_each_message_once_from_the_first_on() {
    let server = Server::start();
    let run = format!("one-topic {} -t poll -c 120 --messages 20 --hold {LONG}", at(&server));
    let mut run = Flood::start(&run);
    run.until_count("messages", 120 * 10);
    let end = run.stop();
    end.is_clean(120);
    assert!(end.count("messages") <= end.count("published") * 120, "{:#}", end.summary);
}

#[test]
fn each_scenario_receives_what_it_publishes() {
    /// Arguments, connections, and how many connections receive each message.
    type Case = (&'static str, u64, u64);
    let cases: [Case; 10] = [
        ("rooms --topics 6 --users 20 --messages 40 --hold 2 -t sse,stream,ws", 120, 20),
        ("rooms -c 100 --users 25 --messages 40 --hold 2 --publishers 4", 100, 25),
        ("random-users -c 100 --senders 10 --messages 20 --interval 0.1", 100, 1),
        ("random-users -c 100 --messages 20 --interval 0.1 --long-tail -t sse,ws", 100, 1),
        ("hold -c 100 --broadcast-every 0.1 --hold 2 -t stream", 100, 100),
        ("hold -c 100 --broadcast-every 0.1 --hold 2 -t phoenix --topic-template=", 100, 100),
        ("hold -c 100 --send-rate 40 --hold 2 --topic-template room-{room}", 100, 1),
        ("hold -c 100 --send-rate 40 --hold 2 --topic-template room:{room} -t phoenix", 100, 1),
        (
            "one-topic -c 100 --hold 2 --message-bytes 5000 --first 1000 --user-template x.{n}",
            100,
            100,
        ),
        (
            "hold -c 100 --topic-template t{n} --topic-rate 40 --hold 2 --user-template= -t ws",
            100,
            1,
        ),
    ];
    all_at_once(&cases, |(arguments, connections, members)| {
        let server = Server::start();
        let end = flood(&format!("{arguments} {}", at(&server)));
        end.is_clean(*connections).delivered_to(*members);
        assert_eq!(end.summary["interrupted"], false);
        assert_eq!(end.summary["scenario"], arguments.split(' ').next().unwrap());
        if arguments.contains("random-users") {
            end.counts([("published", 200)]);
        }
    });
}

#[test]
fn messages_to_absent_users_do_not_count_as_lost() {
    let server = Server::start();
    let many = "random-users -c 50 --max-id 400 --messages 20 --interval 0.1";
    let end = flood(&format!("{many} {}", at(&server)));
    end.is_clean(50).counts([("published", 200)]);
    assert!(end.count("messages") < 200, "{:#}", end.summary);
}

#[test]
fn users_who_come_and_go_lose_no_message_while_connected() {
    let server = Server::start();
    let people = "churn -c 100 --users 10 --stay 1 --away 0.2 --talk 0.5 -t sse,stream,ws,phoenix";
    let mut run = Flood::start(&format!("{people} --hold {LONG} {}", at(&server)));
    run.until_count("left", 200);
    run.until_count("messages", 1_000);
    let end = run.stop();
    end.errors([]);
    assert_eq!(end.count("opened"), end.count("left") + end.count("open"), "{:#}", end.summary);
}

#[test]
fn all_connections_return_after_a_storm() {
    let server = Server::start();
    let end = flood(&format!("storm -c 100 --times 2 --every 5 -t sse,ws {}", at(&server)));
    end.errors([]).counts([("open", 100), ("opened", 100 + end.count("left"))]);
    // The second storm drops the connections that are back by then.
    assert!((101..=200).contains(&end.count("left")), "{:#}", end.summary);
    server.until("the server counts them so", |server| {
        server.metric("throng_connections{transport=\"sse\"}") == 0.0
    });
}

/// The server would close a silent WebSocket before the end of the run, since it gets not even pongs.
#[test]
fn heartbeats_of_all_kinds_are_counted_and_pings_replied() {
    let settings = [
        ("THRONG_TIMEOUTS_SSE_HEARTBEAT_SECONDS", "1"),
        ("THRONG_TIMEOUTS_STREAM_HEARTBEAT_SECONDS", "1"),
        ("THRONG_TIMEOUTS_WS_PING_SECONDS", "1"),
        ("THRONG_TIMEOUTS_WS_SILENCE_SECONDS", "8"),
    ];
    // Phoenix clients send heartbeats themselves, each every 30 s, but not all at the same time.
    let beats = [("sse", 300), ("stream", 300), ("ws", 300), ("phoenix", 5)];
    all_at_once(&beats, |(transport, beats)| {
        let server = Server::with(&[], &settings);
        let run = format!("hold {} -t {transport} -c 100 --hold {LONG}", at(&server));
        let mut run = Flood::start(&run);
        run.until_count("heartbeats", *beats);
        run.until("ten seconds", |line| line["sample"]["at_seconds"].as_f64().unwrap() > 10.0);
        run.stop().is_clean(100).counts([("messages", 0)]);
    });
}

#[test]
fn phoenix_joins_the_topics_of_the_url_and_reports_rejections() {
    let config = "[[topics]]\npattern = \"secret-*\"\njoin = \"refuse\"\n";
    let server = configured("rejections", config, &[]);
    let end = flood(&format!(
        "hold {} -t phoenix -c 20 --hold 0 --topic-template secret-{{room}}",
        at(&server)
    ));
    end.errors([("failed", 20)]).counts([("opened", 0), ("open", 0)]);
    end.reasons("failures", &[("a join was refused: unauthorized", 20)]);
    let url = format!("http://{}/socket/websocket?user=u{{n}}&topic=a&topic=b", server.client);
    let mut run = Flood::start(&format!("hold {url} -t phoenix -c 20 --hold {LONG}"));
    run.until_all_arrived();
    for topic in ["a", "b"] {
        assert_eq!(server.api("GET", &format!("/api/topics/{topic}"), None).1["members"], 20);
    }
    run.stop().is_clean(20);
}

#[test]
fn connections_use_a_list_of_urls_in_turn() {
    let server = Server::start();
    let list = |users: &[&str]| -> String {
        users.iter().map(|user| format!("http://{}/sse?user={user}\n", server.client)).collect()
    };
    let here = |user: &str| {
        let (_, reply) = server.api("GET", &format!("/api/users/{user}"), None);
        reply["connections"].as_array().unwrap().len()
    };
    let scratch = Scratch::new("flood-urls");
    let file = scratch.write("urls", &format!("# a crowd\n\n{}", list(&["ann", "bob", "cid"])));
    let mut run = Flood::start(&format!("hold --urls {} --hold {LONG}", file.display()));
    run.until_all_arrived();
    assert_eq!(["ann", "bob", "cid"].map(here), [1, 1, 1]);
    run.stop().is_clean(3);
    // There are more connections than lines, so the list begins again.
    let run = format!("hold --urls - -c 5 --hold {LONG}");
    let mut run = Flood::with_input(&run, &list(&["dan", "eve"]));
    run.until_all_arrived();
    assert_eq!(["dan", "eve"].map(here), [3, 2]);
    run.stop().is_clean(5);
}

#[test]
fn connections_come_from_the_addresses_given() {
    let server = Server::start();
    let address = |user: &str| {
        let (_, reply) = server.api("GET", &format!("/api/users/{user}"), None);
        reply["connections"][0]["address"].as_str().unwrap().to_string()
    };
    for (source, from) in [
        ("--source 127.0.2.0/24", "127.0.2.1:"),
        ("--source 127.0.3.9,127.0.3.10", "127.0.3.9:"),
        ("", "127.0.1.1:"),
    ] {
        let run = format!("hold {} -c 5 {source} --hold {LONG}", at(&server));
        let mut run = Flood::start(&run);
        run.until_all_arrived();
        for user in ["u1", "u5"] {
            assert!(address(user).starts_with(from), "{source}: {}", address(user));
        }
        run.stop().is_clean(5);
    }
}

#[test]
fn several_servers_and_transports_take_turns() {
    let (one, two) = (Server::start(), Server::start());
    let run = format!(
        "hold http://{} http://{} -t sse,sse,ws,ws -c 120 --hold {LONG}",
        one.client, two.client
    );
    let mut run = Flood::start(&run);
    run.until_all_arrived();
    for server in [&one, &two] {
        for transport in ["sse", "ws"] {
            let name = format!("throng_connections{{transport=\"{transport}\"}}");
            server.until(&format!("30 of {transport}"), |server| server.metric(&name) == 30.0);
        }
    }
    run.stop().is_clean(120);
}

#[test]
fn arrivals_are_spread_over_the_ramp() {
    let server = Server::start();
    let end = flood(&format!("hold {} -c 50 --ramp 2 --hold 0", at(&server)));
    end.is_clean(50);
    let first = end.samples.iter().find(|line| line["phase"] == "holding").unwrap();
    // The last of 50 connections is due after 49/50 of the time, or a moment earlier.
    assert!(first["sample"]["at_seconds"].as_f64().unwrap() >= 1.9, "{first:#}");
    assert_eq!(end.samples[0]["phase"], "arriving");
}

#[test]
fn the_results_include_probes_and_the_servers_own_figures() {
    let server = Server::start();
    let run = format!(
        "one-topic {} -c 100 --hold {LONG} --probe http://{}/healthz --probe http://{}/metrics",
        at(&server),
        server.client,
        server.admin
    );
    let mut run = Flood::start(&run);
    run.until_count("probes", 40);
    run.until_count("messages", 1_000);
    run.until("the server has reported them", |line| {
        let server = &line["sample"]["server"];
        // The server counts the probe's connection as well.
        server["connections"].as_u64() >= Some(100) && server["delivered"].as_u64() > Some(0)
    });
    let end = run.stop();
    end.is_clean(100).delivered_to(100);
    let probes = end.count("probes");
    assert_eq!(end.summary["probe"]["count"], probes);
    assert!(end.summary["server_cpu_per_message_us"].as_f64() >= Some(0.0), "{:#}", end.summary);
    for line in &end.samples {
        let sample = &line["sample"];
        assert!(sample["server"]["memory_bytes"].as_u64() > Some(0), "{line:#}");
        for name in ["memory_bytes", "slab_bytes", "available_bytes"] {
            assert!(sample[name].as_u64() > Some(0), "{name} in {line:#}");
        }
    }
}

#[test]
fn failed_probes_count_as_errors() {
    let server = Server::start();
    let run = format!("hold {} -c 5 --hold {LONG}", at(&server));
    let mut run = Flood::start(&format!("{run} --probe http://{}/nothing-here", server.client));
    run.until_count("probes_failed", 5);
    let end = run.stop();
    end.errors([("probes_failed", end.count("probes_failed"))]).counts([("probes", 0)]);
}

#[test]
fn the_api_key_is_sent_and_an_invalid_one_is_an_error() {
    let server = Server::with(&[], &[("THRONG_ADMIN_API_KEY", "0123456789abcdef")]);
    let scratch = Scratch::new("flood-keys");
    let (right, wrong) = (scratch.path().join("right"), scratch.path().join("wrong"));
    write_secret(&right, "0123456789abcdef\n");
    write_secret(&wrong, "0123456789abcdex\n");
    let start = |topic: &str, key: &Path| {
        let run = format!("one-topic {} -c 20 --hold {LONG} --messages 5", at(&server));
        Flood::start(&format!("{run} --topic-template={topic} --api-key-file {}", key.display()))
    };
    let (mut with_right, mut with_wrong) = (start("right", &right), start("wrong", &wrong));
    with_right.until_count("published", 5);
    with_wrong.until_count("publish_failed", 5);
    let end = with_right.stop();
    end.is_clean(20).delivered_to(20);
    assert!(end.samples[0]["sample"]["server"].is_object(), "{:#}", end.samples[0]);
    assert!(!end.summary.to_string().contains("0123456789abcdef"));
    let end = with_wrong.stop();
    let failed = end.count("publish_failed");
    end.errors([("publish_failed", failed)]).counts([("published", 0), ("messages", 0)]);
    let reason = end.summary["failures"][0][0].as_str().unwrap();
    assert!(reason.starts_with("publish: a publish was answered with status 401: "), "{reason}");
}

#[test]
fn the_report_is_complete_and_self_contained() {
    let server = Server::start();
    let scratch = Scratch::new("flood-report");
    let folder = scratch.path().join("made/anew");
    let run = format!("one-topic {} -c 100 --hold 3 --report {}", at(&server), folder.display());
    let end = flood(&run);
    end.is_clean(100).delivered_to(100);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let summary: Value = serde_json::from_str(&read("summary.json")).unwrap();
    assert_eq!(summary, end.summary);
    assert_eq!(summary["command"], format!("throng flood {run} --json"));
    let samples: Value = serde_json::from_str(&read("samples.json")).unwrap();
    let samples = samples.as_array().unwrap();
    // The report may have one sample more than the output: the one before the first connection.
    let printed: Vec<_> = end.samples.iter().map(|line| line["sample"].clone()).collect();
    assert!(printed.len() >= 2 && samples.ends_with(&printed), "{samples:#?} {printed:#?}");
    let table = read("samples.csv");
    assert_eq!(table.lines().count(), samples.len() + 1);
    let columns = table.lines().next().unwrap().split(',').count();
    assert!(columns > 20 && table.lines().all(|line| line.split(',').count() == columns));
    let page = read("index.html");
    assert!(page.trim_end().ends_with("</html>") && page.contains("<svg"));
    // The page loads nothing else.
    for loads in ["src=", "<link", "<script src", "@import", "url(", "<iframe", "<object"] {
        assert!(!page.contains(loads), "{loads}");
    }
    for (at, _) in page.match_indices("href=") {
        let target = page[at + 5..].trim_start_matches(['"', '\'']);
        assert!(target.starts_with('#') || !target.contains("://"), "{}", &page[at..at + 60]);
    }
}

#[test]
fn an_interrupt_ends_a_run_with_the_results_so_far() {
    let server = Server::start();
    let mut run = Flood::start(&format!("one-topic {} -c 150 --hold {LONG}", at(&server)));
    // An interrupt works while connections arrive as well. This run has a topic of its own, so that it
    // doesn't receive the other run's messages.
    let early = format!("hold {} -c 1000 --rate 10 --topic-template early", at(&server));
    let mut early = Flood::start(&early);
    early.until_count("open", 5);
    let end = early.stop();
    end.errors([]);
    assert_eq!(end.summary["interrupted"], true);
    assert_eq!(end.count("open"), end.count("opened"));
    assert!((5..1_000).contains(&end.count("open")), "{:#}", end.summary);
    run.until_count("messages", 1_500);
    let end = run.stop();
    assert_eq!(end.summary["interrupted"], true);
    end.is_clean(150).delivered_to(150);
}

#[test]
fn a_killed_server_closes_all_connections_without_a_reason() {
    let mut server = Server::start();
    let run = format!("hold {} -t sse,stream,ws,phoenix -c 120 --hold {LONG}", at(&server));
    let mut run = Flood::start(&run);
    run.until_all_arrived();
    server.child.kill().unwrap();
    run.until_count("closed", 120);
    let end = run.stop();
    end.errors([("closed", 120)]).counts([("opened", 120), ("open", 0)]);
    end.reasons("failures", &[]).reasons("closes", &[("closed without a reason", 120)]);
}

#[test]
fn a_draining_server_gives_its_reason_on_each_transport() {
    let server = Server::with(&[], &[("THRONG_TIMEOUTS_DRAIN_SECONDS", "60")]);
    let run = format!("hold {} -t sse,stream,ws,phoenix -c 120 --hold {LONG}", at(&server));
    let mut run = Flood::start(&run);
    run.until_all_arrived();
    server.signal("-TERM");
    run.until_count("closed", 120);
    let end = run.stop();
    end.errors([("closed", 120)]);
    end.reasons("closes", &[("closed with code 1012", 60), ("closed with drain", 60)]);
}

#[test]
fn closed_connections_reconnect_with_the_flag() {
    let server = Server::start();
    let run = format!("hold {} -c 50 --hold {LONG} --reconnect 0.1", at(&server));
    let mut run = Flood::start(&run);
    run.until_all_arrived();
    for number in 1..=10 {
        let user = format!("u{number}");
        server.post("/api/disconnect", serde_json::json!({"user": user}));
    }
    run.until_count("opened", 60);
    run.stop().errors([("closed", 10)]).counts([("opened", 60), ("open", 50)]);
}

/// Gives topics and users' own topics a history.
const HISTORY: &str = "[[topics]]\npattern = \"*\"\nhistory_messages_max = 100000\n";

/// Starts a server with this configuration and further flags.
fn configured(name: &str, config: &str, flags: &[&str]) -> Server {
    let scratch = Scratch::new(&format!("flood-{name}"));
    let file = scratch.write("throng.toml", config);
    let flags = [&["--config", file.to_str().unwrap()], flags].concat();
    Server::with(&flags, &[])
}

#[test]
fn connections_cut_at_random_receive_each_message_once() {
    let scratch = Scratch::new("flood-cut-data");
    let on_disk = ["--data", scratch.path().to_str().unwrap()];
    all_at_once(&[("cut-memory", &[][..]), ("cut-disk", &on_disk)], |(name, flags)| {
        let server = configured(name, HISTORY, flags);
        let mut run = Flood::start(&format!(
            "cut {} -c 300 -t sse,stream,poll,ws,phoenix --topics 20 --messages 60 \
             --cuts-per-second 60 --away 0.3 --send-rate 60 --hold {LONG}",
            at(&server)
        ));
        for (count, least) in [("cuts", 100), ("caught_up", 100), ("messages", 1_000)] {
            run.until_count(count, least);
        }
        run.stop().all_recovered(300);
    });
}

#[test]
fn connections_closed_by_the_server_recover_the_rest() {
    let server = configured("closed", HISTORY, &[]);
    let run = format!("one-topic {} -c 50 --messages 50 --recover", at(&server));
    let mut run = Flood::start(&format!("{run} -t sse,stream,ws,phoenix --hold {LONG}"));
    run.until_all_arrived();
    run.until_count("messages", 500);
    for number in 1..=20 {
        let user = format!("u{number}");
        server.post("/api/disconnect", serde_json::json!({"user": user}));
    }
    run.until_count("opened", 70);
    let end = run.stop();
    end.counts([("closed", 20)]).all_recovered(50);
    assert!(end.count("caught_up") > 0, "{:#}", end.summary);
}

/// The tool does not wait for messages that the server does not retain.
#[test]
fn a_run_that_needs_history_is_not_begun_without_and_says_why() {
    let server = Server::start();
    let topics = "topic \"all\" has no history, as the server says (no_history)";
    let cases = [
        ("storm --recover --missed 10", topics, "history_messages_max"),
        ("one-topic --recover", topics, "--topic-template"),
        ("cut", "topic \"room-0\" has no history", "history_messages_max"),
        ("random-users --ack --messages 1", "no messages for user \"u1\"", "[inbox]"),
    ];
    all_at_once(&cases, |(scenario, why, advice)| {
        let output = output_within(&mut command(&format!("{scenario} -c 20 {}", at(&server))));
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{scenario}: {text}");
        assert!(text.contains(why) && text.contains(advice), "{scenario}: {text}");
    });
    assert_eq!(server.api("GET", "/api/stats", None).1["opened"], 0, "nothing has begun");
    // A run without messages needs no history.
    flood(&format!("hold -c 20 --hold 1 --recover {}", at(&server))).all_recovered(20);
}

#[test]
fn a_refused_acknowledgement_is_named_with_its_cause() {
    // Users' topics with a history, but without an inbox, need no acknowledgements.
    let rules = "[[topics]]\npattern = \"@*\"\nhistory_messages_max = 100\n";
    let server = configured("unacknowledged", rules, &[]);
    let end =
        flood(&format!("random-users -c 20 --messages 5 --interval 0.1 --ack {}", at(&server)));
    assert_eq!(end.code, Some(3), "{:#}", end.summary);
    let failed = end.count("ack_failed");
    let named = end.summary["failures"].as_array().unwrap().iter();
    let named: Vec<_> = named
        .filter(|cause| {
            cause[0].as_str().unwrap().starts_with("acknowledgement: not_acknowledged: ")
        })
        .map(|cause| cause[1].as_u64().unwrap())
        .collect();
    assert!(failed > 0 && named == [failed], "{:#}", end.summary);
}

#[test]
fn messages_that_are_no_longer_stored_are_reported_as_not_recovered() {
    let short = "[[topics]]\npattern = \"room-*\"\nhistory_messages_max = 1\n";
    let server = configured("short", short, &[]);
    let run = format!("cut {} -c 60 --topics 4 --messages 50 --cuts-per-second 30", at(&server));
    let mut run = Flood::start(&format!("{run} -t stream,ws,phoenix --hold {LONG}"));
    run.until_count("not_recovered", 5);
    let end = run.stop();
    end.counts([("lost", 0), ("duplicated", 0)]);
    assert_eq!(end.code, Some(3), "{:#}", end.summary);
    let causes = end.summary["failures"].to_string();
    assert!(causes.contains("recovery: too_old: the history is too short"), "{causes}");
}

#[test]
fn all_connections_recover_missed_messages_after_a_storm() {
    let server = configured("storm", HISTORY, &[]);
    let storm = "storm -c 500 --times 2 --every 0.5 --recover -t sse,stream,poll,ws,phoenix";
    let end = flood(&format!("{storm} {}", at(&server)));
    end.all_recovered(500);
    end.counts([("published", 20), ("messages", 10_000), ("caught_up", 10_000)]);
    let storms = end.summary["storms"].as_array().unwrap();
    assert_eq!(storms.len(), 2);
    for storm in storms {
        for (name, count) in [("connections", 500), ("recovered", 500), ("missed", 10)] {
            assert_eq!(storm[name], count, "{storm:#}");
        }
        assert_eq!(storm["recovery"]["count"], 500);
        assert!(storm["seconds"].as_f64() > Some(0.0), "{storm:#}");
        assert!(storm["server_cpu_seconds"].as_f64() >= Some(0.0), "{storm:#}");
    }
}

#[test]
fn unacknowledged_messages_are_redelivered_and_all_arrive_at_least_once() {
    let inbox = "[inbox]\nenabled = true\nredelivery_seconds = 1\ntries_max = 0\n";
    let server = configured("ack", inbox, &[]);
    let many = "random-users -c 100 -t sse,stream,poll,ws,phoenix --messages 20 --interval 0.1";
    let end = flood(&format!("{many} --ack --ack-skip 30 {}", at(&server)));
    end.errors([]).counts([("published", 200), ("open", 100)]);
    let again = end.count("redelivered");
    assert!(again > 0 && end.count("acked") > 0, "{:#}", end.summary);
    assert_eq!(end.count("messages"), 200 + again, "{:#}", end.summary);
    assert!(end.count("acked") <= end.count("messages"), "{:#}", end.summary);
}

#[test]
fn attempts_without_a_server_fail_with_the_reason() {
    let unused = flood::source::free_server_address().unwrap();
    let end = flood(&format!("hold http://{unused} -t sse,poll -c 100 --hold 0"));
    end.errors([("failed", 100)]).counts([("opened", 0), ("open", 0)]);
    end.reasons("failures", &[("refused: no server listens there", 100)]);
}

#[test]
fn an_invalid_command_line_is_explained() {
    let here = "http://127.0.0.1:1";
    for (arguments, want) in [
        (format!("hold {here} -t carrier-pigeon"), "choose from sse, stream, poll, ws, phoenix"),
        (format!("hold {here} --ca /dev/null"), "--ca /dev/null: "),
        (format!("hold {here} --insecure-tls"), "no target has it: write https://"),
        (
            format!("hold {here} --tls --ca /nonexistent"),
            "--ca /nonexistent: can't be read: No such file",
        ),
        (format!("hold {here} --tls --ca x --insecure-tls"), "cannot be used with"),
        (format!("hold {here} --admin https://127.0.0.1:1"), "this command does not speak TLS"),
        ("hold 8000".into(), "Write the host, too: localhost:8000"),
        (format!("one-topic {here}"), "--admin http://host:8001"),
        (format!("hold {here} --send-rate 1"), "--publish URL"),
        ("hold".into(), "<URL>"),
        (format!("hold {here} -c 0"), "--connections"),
        (format!("hold {here} --hold soon"), "a time like 30, 90s, 15m or 1h"),
        (format!("hold {here} --urls /nonexistent/list"), "--urls"),
        ("hold --urls /nonexistent/list".into(), "/nonexistent/list: No such file"),
        (format!("hold {here} --source 1.2.3"), "127.0.1.0/24"),
        (format!("hold {here} --user-template {{x}}"), "use {n} or {room}"),
        (format!("hold {here} --first 4294967295"), "exceed the largest number of a user"),
        (format!("hold {here} --api-key-file /nonexistent"), "--api-key-file /nonexistent"),
        (format!("hold {here} --report /proc/x"), "--report /proc/x: No such file"),
        (format!("hold {here} --probe x"), "write a URL like"),
        (format!("hold {here} --ack-skip 5"), "--ack"),
        (format!("hold {here} --ack --ack-skip 101"), "a number from 0 to 100"),
        (format!("cut {here} --admin {here} --topic-template all"), "must have {room} in it"),
        (format!("storm {here} --recover"), "--admin http://host:8001"),
        (format!("stampede {here}"), "unrecognized subcommand"),
    ] {
        let output = output_within(&mut command(&arguments));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(matches!(output.status.code(), Some(2)), "{arguments}: {:?}", output.status);
        assert!(text.starts_with("error: ") && text.contains(want), "{arguments}: {text}");
        assert!(!text.contains("panicked"), "{arguments}: {text}");
    }
}

#[test]
fn the_result_is_printed_as_text_as_well() {
    let server = Server::start();
    all_at_once(&["", "-q"], |quiet| {
        let topic = format!("topic{quiet}");
        let run = format!("one-topic {} -c 20 --hold 1 --topic-template {topic}", at(&server));
        let output = output_within(&mut command(&format!("{run} {quiet}")));
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("20 open of 20; 20 opened, 0 failed"), "{text}");
        assert!(text.contains("0 lost, 0 duplicated, 0 out of order, 0 strayed"), "{text}");
        assert_eq!(text.contains("holding"), quiet.is_empty(), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    });
}

#[test]
fn attempts_to_connect_that_the_kernel_drops_in_a_run_are_in_its_result_once() {
    let server = Server::start();
    let report = Scratch::new("flood-kernel");
    let folder = report.path().display();
    let run = format!("hold {} -c 20 --hold {LONG} --report {folder}", at(&server));
    let mut run = Flood::start(&run);
    run.until_all_arrived();
    let listener = kernel::short_queue();
    let _queued = kernel::overflow(listener.local_addr().unwrap());
    let end = run.stop();
    // The load generator runs on the server's kernel, so the report has that kernel once.
    let [host] = &end.summary["kernels"].as_array().unwrap()[..] else {
        panic!("{:#}", end.summary)
    };
    assert_eq!(host["host"], format!("server {}", server.admin));
    let findings = host["findings"].as_array().unwrap().iter();
    let kinds: Vec<_> = findings.map(|it| it["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"listen_overflows"), "{host:#}");
    // A finding explains a run, and does not make it fail.
    end.is_clean(20);
    let page = std::fs::read_to_string(report.path().join("index.html")).unwrap();
    let want = "because a listener&#39;s queue was full: raise net.core.somaxconn";
    assert!(page.contains(want), "{page}");
}

#[test]
fn a_run_without_an_admin_port_watches_its_own_kernel() {
    let server = Server::start();
    let run = format!("hold http://{} -c 20 --hold {LONG} --topic-template=", server.client);
    let mut run = Flood::start(&run);
    run.until_all_arrived();
    let listener = kernel::short_queue();
    let _queued = kernel::overflow(listener.local_addr().unwrap());
    let end = run.stop();
    let host = &end.summary["kernels"][0];
    assert!(host["host"].as_str().unwrap().starts_with("load generator "), "{:#}", end.summary);
    assert!(host["findings"].to_string().contains("listen_overflows"), "{host:#}");
}
