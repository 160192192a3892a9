//! Crowds that connect by TLS.

use crate::flooding::*;
use crate::support::tls::Authority;
use crate::support::{Scratch, Server, free_port, output_within};

use super::HISTORY;
use super::agents::{agents, among};

/// Returns the arguments for the target with TLS, the authority to trust, and the admin port.
fn by_tls(server: &Server, authority: &Authority) -> String {
    let (target, ca) = (server.client_tls.unwrap(), authority.path("ca.pem"));
    format!("https://{target} --ca {} --admin http://{}", ca.display(), server.admin)
}

/// Starts a server with TLS and this configuration.
fn configured(name: &str, config: &str, authority: &Authority, flags: &[&str]) -> Server {
    let scratch = Scratch::new(&format!("flood-tls-{name}"));
    let file = scratch.write("throng.toml", config);
    let flags = [&["--config", file.to_str().unwrap()], flags].concat();
    authority.server(&flags, &[])
}

#[test]
fn every_transport_receives_each_message_once_by_tls() {
    let authority = Authority::new();
    let transports = ["sse", "stream", "ws", "phoenix", "mqtt", "sse,stream,ws,phoenix,mqtt"];
    all_at_once(&transports, |transport| {
        let server = authority.server(&["--mqtt", "127.0.0.1:0"], &[]);
        let run = format!("one-topic -t {transport} -c 40 --messages 20 --hold {LONG}");
        let mut run = Flood::start(&format!("{run} {}", by_tls(&server, &authority)));
        run.until_all_arrived();
        server.until("all have TLS", |server| server.metric("throng_tls_connections") == 40.0);
        run.until_count("messages", 200);
        let end = run.stop();
        end.is_clean(40).delivered_to(40);
        assert_eq!(end.summary["tls"], "verified");
        let full = server.metric("throng_tls_handshakes_total{result=\"full\"}");
        assert_eq!(full, 40.0, "{transport}");
    });
}

#[test]
fn polls_receive_each_message_once_by_tls() {
    let authority = Authority::new();
    let server = authority.server(&[], &[]);
    let run = format!("one-topic -t poll -c 40 --messages 20 --hold {LONG}");
    let mut run = Flood::start(&format!("{run} {}", by_tls(&server, &authority)));
    run.until_count("messages", 40 * 10);
    run.stop().is_clean(40);
}

#[test]
fn connections_by_tls_that_are_cut_or_storm_recover_what_they_missed() {
    let authority = Authority::new();
    let transports = "-t sse,stream,poll,ws,phoenix";
    let server = configured("cut", HISTORY, &authority, &[]);
    let mut run = Flood::start(&format!(
        "cut {} -c 200 {transports} --topics 20 --messages 60 --cuts-per-second 60 --away 0.3 \
         --send-rate 60 --hold {LONG}",
        by_tls(&server, &authority)
    ));
    for (count, least) in [("cuts", 100), ("caught_up", 100), ("messages", 1_000)] {
        run.until_count(count, least);
    }
    run.stop().all_recovered(200);
    let storm = format!("storm -c 100 --times 1 --every 0.5 --recover {transports}");
    let end = flood(&format!("{storm} {}", by_tls(&server, &authority)));
    end.all_recovered(100).counts([("messages", 1_000), ("caught_up", 1_000)]);
}

/// `POST /ack`, a gateway's requests, and `--publish-mqtt` have connections of their own.
#[test]
fn connections_beside_the_crowd_speak_tls_as_well() {
    let authority = Authority::new();
    let inbox = "[inbox]\nenabled = true\nredelivery_seconds = 1\ntries_max = 0\n";
    let server = configured("ack", inbox, &authority, &[]);
    let many = "random-users -c 50 -t sse,stream,poll,ws,phoenix --messages 20 --interval 0.1";
    let end = flood(&format!("{many} --ack {}", by_tls(&server, &authority)));
    end.errors([]).counts([("published", 200), ("open", 50)]);
    assert!(end.count("acked") > 0, "{:#}", end.summary);

    let backend = format!("127.0.0.1:{}", free_port());
    let config = format!("[[forward]]\nfilter = \"requests/#\"\nurl = \"http://{backend}/\"\n");
    let server = configured("gateway", &config, &authority, &["--mqtt", "127.0.0.1:0"]);
    let gateway = format!(
        "gateway -t mqtt --qos 1 -c 50 --logins 10 --pushes 20 --requests 50 --backend {backend} --hold {LONG}"
    );
    let mut run = Flood::start(&format!("{gateway} {}", by_tls(&server, &authority)));
    run.until_count("left", 10);
    run.until_count("messages", 51);
    server.until("requests are forwarded", |server| {
        server.metric("throng_forward_taken_total{filter=\"requests/#\"}") > 10.0
    });
    run.stop().errors([]);

    let target = server.client_tls.unwrap();
    let publish = format!("--publish-mqtt mqtts://{target} --qos 1");
    let probe = format!("--probe https://{target}/healthz");
    let run = format!("one-topic -t mqtt,sse -c 40 --messages 20 --hold {LONG} {publish} {probe}");
    let mut run = Flood::start(&format!("{run} {}", by_tls(&server, &authority)));
    run.until_count("messages", 400);
    run.until_count("probes", 10);
    run.stop().is_clean(40).delivered_to(40);
}

#[test]
fn agents_trust_the_authority_of_the_coordinator() {
    let authority = Authority::new();
    let server = authority.server(&[], &[]);
    let agents = agents::<2>();
    let run = format!("one-topic -t sse,ws -c 40 --messages 20 --hold 2 {}", among(&agents));
    let end = flood(&format!("{run} {}", by_tls(&server, &authority)));
    end.is_clean(40).delivered_to(40);
    assert_eq!(end.summary["tls"], "verified");
}

#[test]
fn a_certificate_that_is_not_trusted_fails_connections_with_the_reason() {
    const AUTHORITY: &str = "the server's certificate is not signed by a trusted authority: name the file of its \
                             authority with --ca";
    const NAME: &str = "the server's certificate is for another host: write the target with a host name that is in \
                        the certificate";
    let (authority, other) = (Authority::new(), Authority::new());
    authority.sign("server", &["example.com", "127.0.0.1"], 2099);
    let server = authority.server(&["--mqtt", "127.0.0.1:0"], &[]);
    let target = server.client_tls.unwrap();
    let (right, wrong) = (authority.path("ca.pem"), other.path("ca.pem"));
    let (right, wrong) = (right.display(), wrong.display());
    let at_name = format!("https://localhost:{}", target.port());
    let runs = [
        (format!("https://{target} --ca {wrong}"), Some(AUTHORITY)),
        (format!("{at_name} --ca {right}"), Some(NAME)),
        (format!("{target} --tls --ca {right}"), None),
        (format!("wss://{target} --insecure-tls"), None),
        (format!("{at_name} --insecure-tls"), None),
    ];
    for (run, reason) in &runs {
        let end = flood(&format!("hold {run} -t sse,ws,mqtt -c 30 --hold 0"));
        match reason {
            Some(reason) => {
                end.errors([("failed", 30)]).counts([("opened", 0)]);
                end.reasons("failures", &[(reason, 30)]);
            }
            None => drop(end.is_clean(30)),
        }
        let tls = if run.contains("insecure") { "unverified" } else { "verified" };
        assert_eq!(end.summary["tls"], tls, "{run}");
    }
    // An agent reports the same reason as a run without agents.
    let agents = agents::<1>();
    let run = format!("hold https://{target} --ca {wrong} -c 30 --hold 0");
    let end = flood(&format!("{run} {}", among(&agents)));
    end.errors([("failed", 30)]).reasons("failures", &[(AUTHORITY, 30)]);
}

#[test]
fn a_port_of_the_other_kind_is_named_in_the_reason() {
    let authority = Authority::new();
    let server = authority.server(&["--mqtt", "127.0.0.1:0"], &[]);
    for (target, transports, reason) in [
        (
            format!("http://{}", server.client_tls.unwrap()),
            "sse,ws,mqtt",
            "closed without a response: if the server speaks TLS at this port, write https://, or add \
             --tls",
        ),
        (
            format!("https://{} --insecure-tls", server.client),
            "sse,ws",
            "the server does not speak TLS at this port: use its TLS port, or connect without TLS",
        ),
    ] {
        let end = flood(&format!("hold {target} -t {transports} -c 30 --hold 0"));
        end.errors([("failed", 30)]).reasons("failures", &[(reason, 30)]);
    }
}

#[test]
fn the_result_says_that_connections_use_tls() {
    let authority = Authority::new();
    let server = authority.server(&[], &[]);
    let report = Scratch::new("flood-tls-report");
    let run = format!("one-topic {} -c 5 --hold 1 -q", by_tls(&server, &authority));
    let output =
        output_within(&mut command(&format!("{run} --report {}", report.path().display())));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("run           one-topic, ") && text.contains(" s, by TLS\n"),
        "{text}"
    );
    let page = std::fs::read_to_string(report.path().join("index.html")).unwrap();
    assert!(page.contains("5 connections by TLS"), "{page}");
}
