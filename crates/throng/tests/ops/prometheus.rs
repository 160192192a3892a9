//! Debian's Prometheus, which `scripts/install` unpacks: it scrapes a server by `ops/prometheus/scrape.yml`, and
//! evaluates each expression of the alerts and of the dashboard.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{FILES, named, ops};
use crate::application::Application;
use crate::support::tls::Authority;
use crate::support::{
    Mark, Scratch, Server, Signal, TIMEOUT, end_by, free_port, json, output_within, text,
};
use serde_json::{Value, json as object};

const KEY: &str = "a-key-of-some-length";

/// On a host without these figures the metrics exist without a value.
const OF_THE_HOST: [&str; 8] = [
    "throng_kernel_conntrack_entries",
    "throng_kernel_conntrack_entries_max",
    "throng_kernel_files",
    "throng_kernel_files_max",
    "throng_kernel_pressure_ratio",
    "throng_kernel_softnet_dropped",
    "throng_kernel_tcp_memory_bytes",
    "throng_kernel_tcp_memory_max_bytes",
];

fn program(name: &str) -> Command {
    let folder = std::env::var_os("TEST_PROMETHEUS");
    let folder = folder.expect("TEST_PROMETHEUS, the folder of prometheus: scripts/test sets it");
    Command::new(PathBuf::from(folder).join(name))
}

#[track_caller]
fn promtool(arguments: &[&str]) {
    let output = output_within(program("promtool").args(arguments));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}{errors}");
}

fn file(name: &str) -> String {
    ops().join("prometheus").join(name).to_str().unwrap().to_owned()
}

/// Returns the names of the alerts, each with its tests: the parts of `alerts_test.yml` with the alert's name.
fn tests_of_alerts() -> Vec<(String, Vec<String>)> {
    let read = |name| std::fs::read_to_string(file(name)).unwrap();
    let (alerts, tests) = (read("alerts.yml"), read("alerts_test.yml"));
    let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let of = |name: &str| {
        let tests = tests.split("\n  - name: ").skip(1);
        let named = tests.filter(|test| test.split_whitespace().next() == Some(name));
        named.map(Into::into).collect()
    };
    names.map(|name| (name.to_owned(), of(name))).collect()
}

#[test]
fn each_alert_fires_when_it_should_and_not_before() {
    promtool(&["check", "rules", &file("alerts.yml")]);
    promtool(&["test", "rules", &file("alerts_test.yml")]);
    let alerts = tests_of_alerts();
    assert!(alerts.len() >= 20, "{alerts:?}");
    for (name, tests) in alerts {
        assert!(!tests.is_empty(), "{name} has no test");
        for test in tests {
            let fires = format!("alertname=\"{name}\", instance=\"bad\"");
            assert!(test.contains(&fires) && test.contains("exp_samples: []"), "{name}: {test}");
        }
    }
}

/// A server behind a key, each of whose metrics has a value.
struct Watched {
    server: Server,
    // The server needs these until it ends.
    _app: Application,
    _authority: Authority,
    _data: Scratch,
}

impl Watched {
    fn start() -> Watched {
        let (app, authority) = (Application::replying(|_| object!({})), Authority::new());
        let data = Scratch::new("watched");
        let forward = format!(
            "[[forward]]\nfilter = \"sensors/#\"\nurl = \"{}\"\n\
             [[topics]]\npattern = \"kept:*\"\nhistory_messages_max = 20\njoin = \"webhook\"\n",
            app.url()
        );
        let config = data.write("throng.toml", &forward);
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--shards", "1", "--config"]).arg(config);
        let (store, url) = (data.path().join("store"), app.url());
        let mut settings = authority.settings();
        settings.extend([
            ("THRONG_STORE_DATA", store.to_str().unwrap().to_owned()),
            ("THRONG_WEBHOOK_URL", url),
            ("THRONG_ADMIN_API_KEY", KEY.to_owned()),
        ]);
        let settings: Vec<_> = settings.iter().map(|(key, value)| (*key, &value[..])).collect();
        let server = Server::run(command, &settings);
        Watched { server, _app: app, _authority: authority, _data: data }
    }

    fn api(&self, method: &str, target: &str, body: Option<Value>) -> Value {
        let key = format!("Authorization: Bearer {KEY}\r\n");
        let (status, body) = json(self.server.admin, method, target, body, &key);
        assert_eq!(status, 200, "{target}: {body}");
        body
    }

    fn metrics(&self) -> String {
        let key = format!("Authorization: Bearer {KEY}\r\n");
        text(self.server.admin, "GET", "/metrics", None, &key).1
    }

    /// Makes a client join, which calls the webhook, and publishes a message that the store writes.
    fn publish(&self) {
        drop(self.server.listen("/sse?user=bob&topic=kept:1"));
        let message = object!({"topic": "kept:1", "data": "x"});
        let receipt = self.api("POST", "/api/publish", Some(message));
        assert!(receipt["id"].is_string(), "{receipt}");
    }
}

/// A Prometheus that scrapes one server; killed at the end of the test.
struct Prometheus {
    child: Child,
    port: u16,
    _mark: Mark,
    _folder: Scratch,
}

impl Prometheus {
    /// Uses `ops/prometheus/scrape.yml` with another address, another key file, and a shorter interval.
    fn start(server: &Server) -> Prometheus {
        let folder = Scratch::new("prometheus");
        let key = folder.write("throng.key", KEY);
        let config = std::fs::read_to_string(file("scrape.yml")).unwrap();
        let mut replaced = config.clone();
        for (old, new) in [
            ("scrape_interval: 10s", "scrape_interval: 500ms\n  evaluation_interval: 500ms".into()),
            ("- alerts.yml", format!("- {}", file("alerts.yml"))),
            ("/etc/prometheus/throng.key", key.display().to_string()),
            ("127.0.0.1:8001", server.admin.to_string()),
        ] {
            assert_eq!(replaced.matches(old).count(), 1, "{old}: {config}");
            replaced = replaced.replace(old, &new);
        }
        let config = folder.write("prometheus.yml", &replaced);
        promtool(&["check", "config", config.to_str().unwrap()]);
        let (port, mark) = (free_port(), Mark::new());
        let mut command = program("prometheus");
        mark.put(&mut command);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=warn")
            .stdin(Stdio::null());
        let child = command.spawn().unwrap();
        Prometheus { child, port, _mark: mark, _folder: folder }
    }

    /// Returns the `data` of a call's response, or `None` while Prometheus is not ready.
    fn get(&self, target: &str) -> Option<Value> {
        let address = ([127, 0, 0, 1], self.port).into();
        std::net::TcpStream::connect(address).ok()?;
        let (status, body) = text(address, "GET", target, None, "");
        if status == 503 {
            return None;
        }
        let body: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"));
        assert_eq!((status, &body["status"]), (200, &object!("success")), "{target}: {body}");
        Some(body["data"].clone())
    }

    /// Returns the series of an expression at this moment.
    fn query(&self, expression: &str) -> Vec<Value> {
        let encoded = form_urlencoded(expression);
        let data = self.get(&format!("/api/v1/query?query={encoded}"));
        data.and_then(|data| data["result"].as_array().cloned()).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        end_by(self.child.id(), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn form_urlencoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Splits an alert's expression into parts that have a value of 0 or 1 wherever there is data. The alert itself has
/// no value where its condition is false.
fn with_data(expression: &str) -> Vec<String> {
    let compared = [" > ", " < ", " == "].iter().fold(expression.to_owned(), |all, operator| {
        all.replace(operator, &format!("{operator}bool "))
    });
    compared.split(" or ").map(Into::into).collect()
}

/// Returns the expressions of the dashboard, with a value for each variable.
fn dashboard() -> Vec<String> {
    let content = std::fs::read_to_string(ops().join(FILES[0])).unwrap();
    let dashboard: Value = serde_json::from_str(&content).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let annotations = dashboard["annotations"]["list"].as_array().into_iter().flatten();
    let expressions = targets.chain(annotations).filter_map(|it| it["expr"].as_str());
    let replaced = expressions.map(|expression| {
        let text = expression.replace("$__rate_interval", "1m").replace("$__interval", "1m");
        let text = text.replace("$instance", ".*");
        assert!(!text.contains('$'), "{text}");
        text
    });
    replaced.collect()
}

/// Returns true if a series has a number.
fn has_number(series: &Value) -> bool {
    let number = series["value"][1].as_str().and_then(|text| text.parse::<f64>().ok());
    number.is_some_and(f64::is_finite)
}

/// Returns true if this host has the metrics of the expression.
fn is_of_this_host(expression: &str, metrics: &str) -> bool {
    let has_value = |name: &str| {
        let names = [name.to_owned(), format!("{name}_total")];
        let value_of = |line: &str| line.split(['{', ' ']).next().map(str::to_owned);
        metrics.lines().any(|line| value_of(line).is_some_and(|it| names.contains(&it)))
    };
    let named: BTreeSet<String> = named(expression);
    named.iter().all(|name| !OF_THE_HOST.contains(&&name[..]) || has_value(name))
}

#[test]
fn prometheus_has_data_for_each_alert_and_each_panel() {
    let watched = Watched::start();
    let member = watched.server.listen("/sse?user=alice&topic=kept:1");
    let prometheus = Prometheus::start(&watched.server);
    let metrics = watched.metrics();
    // Waits until Prometheus has loaded the rules.
    let groups = wait("the rules", || prometheus.get("/api/v1/rules?type=alert"));
    let rules = groups["groups"][0]["rules"].as_array().unwrap().clone();
    assert_eq!(rules.len(), tests_of_alerts().len());
    let alerts = rules.iter().flat_map(|rule| with_data(rule["query"].as_str().unwrap()));
    let panels = dashboard();
    assert!(panels.len() > 50, "{panels:?}");
    let all: Vec<String> = alerts.chain(panels.iter().flat_map(|panel| with_data(panel))).collect();
    let of_host: Vec<_> = all.iter().filter(|it| is_of_this_host(it, &metrics)).collect();
    assert!(all.len() - of_host.len() <= OF_THE_HOST.len(), "{of_host:?}");
    for expression in of_host {
        wait(expression, || {
            // A rate needs events to count.
            watched.publish();
            prometheus.query(expression).iter().any(has_number).then_some(())
        });
    }
    // Prometheus has evaluated all rules, their annotations name existing labels, and only alerts fire that are about
    // this host.
    let groups = wait("evaluations", || {
        let groups = prometheus.get("/api/v1/rules?type=alert")?;
        let rules = groups["groups"][0]["rules"].as_array()?;
        rules.iter().all(|rule| rule["health"] != "unknown").then_some(groups.clone())
    });
    for rule in groups["groups"][0]["rules"].as_array().unwrap() {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    let expression = "up{job=\"throng\"}";
    assert_eq!(prometheus.query(expression)[0]["value"][1], "1");
    drop(watched.server);
    let alert = wait("ThrongDown", || {
        let alerts = prometheus.get("/api/v1/alerts")?["alerts"].clone();
        alerts.as_array()?.iter().find(|it| it["labels"]["alertname"] == "ThrongDown").cloned()
    });
    // The minute of the alert's `for` has not passed.
    assert_eq!(alert["state"], "pending", "{alert}");
    let summary = alert["annotations"]["summary"].as_str().unwrap();
    assert!(summary.ends_with(" answers no scrape") && summary.starts_with("127.0.0.1:"));
    drop(member);
}

/// Converts OpenMetrics to Prometheus' older format, which promtool checks: there a counter has the name of its
/// samples.
fn plain_text(metrics: &str) -> String {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: BTreeSet<&str> = types.filter_map(|line| line.strip_suffix(" counter")).collect();
    let line = |line: &str| {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", what @ ("TYPE" | "HELP"), name, rest] if counters.contains(name) => {
                format!("# {what} {name}_total {rest}\n")
            }
            _ => format!("{line}\n"),
        }
    };
    metrics.lines().map(line).collect()
}

#[test]
fn the_metrics_have_the_form_that_prometheus_wants() {
    let watched = Watched::start();
    let mut check = program("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped());
    check.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = check.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, plain_text(&watched.metrics()).as_bytes()).unwrap();
    drop(input);
    let output = crate::support::printed_within(child);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
}

fn wait<T>(what: &str, mut read: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = read() {
            return value;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
