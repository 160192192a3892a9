//! Spans of traces, as a collector decodes them: `spans/collector.py`, with OpenTelemetry's own protobuf messages in
//! Python.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::application::{Application, Reserved};
use crate::mqtt::client::{Connect, V5, filter};
use crate::support::tls::Authority;
use crate::support::{
    Lines, Scratch, Server, command, header, installed, json as call, output_within, wait_within,
    websocket,
};

/// The ids that the caller of the API sends.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A collector; killed at the end of the test.
struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Value>>>,
    process: Child,
}

impl Collector {
    fn start() -> Self {
        Collector::on(TcpListener::bind("127.0.0.1:0").unwrap(), &[])
    }

    /// Starts a collector at a listener whose port the test knows before. With a certificate and its key it serves
    /// HTTPS.
    fn on(listener: TcpListener, tls: &[&Path]) -> Self {
        let address = listener.local_addr().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spans/collector.py");
        let mut python = Command::new("python3");
        python.arg(script).args(tls).env("PYTHONPATH", installed("opentelemetry-proto"));
        python.stdin(OwnedFd::from(listener)).stdout(Stdio::piped());
        let mut process = python.spawn().expect("python3");
        let lines = Lines::of(process.stdout.take().unwrap());
        let spans: Arc<Mutex<Vec<Value>>> = Arc::default();
        let received = spans.clone();
        std::thread::spawn(move || {
            for line in lines.rest() {
                received.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Collector { address, spans, process }
    }

    fn url(&self) -> String {
        url(self.address)
    }

    fn spans(&self) -> Vec<Value> {
        self.spans.lock().unwrap().clone()
    }

    /// Waits until `is_so` is true of all spans so far, and returns them.
    fn until(&self, server: &Server, what: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        server.until(what, |_| is_so(&self.spans()));
        self.spans()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn url(collector: SocketAddr) -> String {
    format!("http://{collector}/v1/traces")
}

fn serve(url: &str, sample_per_million: &str, flags: &[&str]) -> Server {
    let sample = ("THRONG_TRACING_SAMPLE_PER_MILLION", sample_per_million);
    Server::with(flags, &[("THRONG_TRACING_OTLP_URL", url), sample])
}

fn count(spans: &[Value], name: &str) -> usize {
    spans.iter().filter(|span| span["name"] == name).count()
}

fn find<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    spans.iter().find(|span| span["name"] == name).unwrap()
}

/// Calls the API in the caller's trace. The flags `01` mean that the caller records it.
fn call_in_trace(server: &Server, path: &str, body: Value, flags: &str) -> (u16, Value) {
    let parent = format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\n");
    call(server.admin, "POST", path, Some(body), &parent)
}

#[test]
fn a_publish_is_followed_to_the_last_socket() {
    let collector = Collector::start();
    let server = serve(&collector.url(), "0", &["--shards", "2"]);
    let mut members: Vec<_> = (0..20).map(|_| server.listen("/sse?topic=news")).collect();
    server.until_members("news", 20);
    // The caller does not record the first call, and the node samples no trace of its own.
    call_in_trace(&server, "/api/publish", json!({"topic": "news", "data": "first"}), "00");
    server.publish("news", json!("second"));
    let (status, receipt) =
        call_in_trace(&server, "/api/publish", json!({"topic": "news", "data": "third"}), "01");
    assert_eq!((status, &receipt["members"]), (200, &json!(20)));
    for member in &mut members {
        let data: Vec<_> = (0..3).map(|_| member.data()).collect();
        assert_eq!(data, ["first", "second", "third"]);
    }
    // The kernel spreads the members over both shards, or gives all to one.
    let of_members = |spans: &[Value]| -> u64 {
        let delivered = spans.iter().filter(|span| span["name"] == "deliver");
        delivered.map(|span| span["attributes"]["throng.members"].as_u64().unwrap()).sum()
    };
    let spans = collector.until(&server, "all spans are there", |spans| {
        of_members(spans) == 20 && count(spans, "POST /api/publish") == 1
    });
    assert_eq!(spans.len(), 1 + count(&spans, "deliver"), "{spans:?}");
    assert!(spans.iter().all(|span| span["trace"] == TRACE), "{spans:?}");
    let publish = find(&spans, "POST /api/publish");
    assert_eq!(publish["parent"], PARENT);
    assert_eq!((&publish["kind"], &publish["flags"]), (&json!("SPAN_KIND_SERVER"), &json!(0x301)));
    assert_eq!(
        (&publish["status"], &publish["scope"]),
        (&json!("STATUS_CODE_UNSET"), &json!("throng"))
    );
    assert_eq!(publish["resource"]["service.name"], "throng");
    assert_eq!(publish["resource"]["service.version"], env!("CARGO_PKG_VERSION"));
    let attributes = json!({
        "messaging.system": "throng", "messaging.destination.name": "news", "messaging.message.id": receipt["id"],
        "throng.members": 20, "http.request.method": "POST", "http.response.status_code": 200,
    });
    assert_eq!(publish["attributes"], attributes);
    for span in spans.iter().filter(|span| span["name"] == "deliver") {
        assert_eq!(
            (&span["parent"], &span["kind"]),
            (&publish["id"], &json!("SPAN_KIND_INTERNAL"))
        );
        assert_eq!(span["attributes"]["messaging.destination.name"], "news");
        // The API and the shards have the same clock, in steps of a microsecond.
        let start = |span: &Value| span["start"].as_u64().unwrap();
        assert!(start(span) + 1_000 >= start(publish), "{spans:?}");
        assert!(span["end"].as_u64().unwrap() >= start(span), "{spans:?}");
    }
}

/// A process; killed at the end of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "long: OpenTelemetry's own collector, which scripts/install long builds"]
fn opentelemetrys_own_collector_takes_the_spans() {
    let binary = std::env::var_os("TEST_OTELCOL").expect("TEST_OTELCOL: scripts/test-long sets it");
    let folder = Scratch::new("otelcol");
    let address = SocketAddr::from(([127, 0, 0, 1], crate::support::free_port()));
    let config = format!(
        "receivers: {{otlp: {{protocols: {{http: {{endpoint: \"{address}\"}}}}}}}}\n\
         exporters: {{debug: {{verbosity: detailed}}}}\n\
         service:\n  telemetry: {{metrics: {{level: none}}}}\n  \
         pipelines: {{traces: {{receivers: [otlp], exporters: [debug]}}}}\n"
    );
    let config = folder.write("otelcol.yaml", &config);
    let log = folder.write("otelcol.log", "");
    let mut command = Command::new(binary);
    command.arg("--config").arg(config).stderr(std::fs::File::create(&log).unwrap());
    let _collector = Killed(command.spawn().expect("otelcol"));
    let server = serve(&url(address), "0", &["--shards", "1"]);
    server.until("the collector listens", |_| std::net::TcpStream::connect(address).is_ok());
    let mut member = server.listen("/sse?topic=news");
    server.until_members("news", 1);
    call_in_trace(&server, "/api/publish", json!({"topic": "news", "data": "hello"}), "01");
    assert_eq!(member.data(), "hello");
    // A name and a value are on one line, with spaces between them.
    let printed = || -> Vec<String> {
        let text = std::fs::read_to_string(&log).unwrap();
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let has = |line: &str| printed().iter().any(|it| it == line);
    server.until("both spans are there", |_| {
        has("Name : deliver") && has("Name : POST /api/publish")
    });
    let trace = format!("Trace ID : {TRACE}");
    assert_eq!(printed().iter().filter(|line| **line == trace).count(), 2, "{:?}", printed());
    for line in [
        &*format!("Parent ID : {PARENT}"),
        "-> service.name: Str(throng)",
        "-> messaging.destination.name: Str(news)",
        "-> throng.members: Int(1)",
    ] {
        assert!(has(line), "{line} in {:?}", printed());
    }
}

#[test]
fn each_call_that_publishes_has_a_span() {
    let collector = Collector::start();
    let server = serve(&collector.url(), "0", &["--shards", "1"]);
    let _member = server.listen("/sse?topic=news");
    server.until_members("news", 1);
    let destinations = |spans: &[Value], parent: &Value| {
        let children = spans.iter().filter(|span| span["parent"] == *parent);
        let mut names: Vec<_> = children
            .map(|it| it["attributes"]["messaging.destination.name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    // A user without connections has no delivery.
    let sent = json!({"user": "nobody", "data": 1});
    assert_eq!(call_in_trace(&server, "/api/send", sent, "01").0, 200);
    assert_eq!(call_in_trace(&server, "/api/broadcast", json!({"data": 1}), "01").0, 200);
    let commands = json!({"commands": [
        {"publish": {"topic": "news", "data": 1}}, {"broadcast": {"data": 2}}, {"publish": {"topic": "", "data": 3}},
    ]});
    assert_eq!(call_in_trace(&server, "/api/batch", commands, "01").0, 200);
    // The code of a rejection is an attribute. The status is an error only where the node is at fault.
    assert_eq!(
        call_in_trace(&server, "/api/publish", json!({"topic": "", "data": 1}), "01").0,
        400
    );
    let spans = collector.until(&server, "all spans are there", |spans| spans.len() == 7);
    let send = find(&spans, "POST /api/send");
    assert_eq!(send["attributes"]["messaging.destination.name"], "@nobody");
    assert_eq!(send["attributes"]["throng.members"], 0);
    let broadcast = find(&spans, "POST /api/broadcast");
    assert_eq!(destinations(&spans, &broadcast["id"]), ["*"]);
    let batch = find(&spans, "POST /api/batch");
    assert_eq!(destinations(&spans, &batch["id"]), ["*", "news"]);
    let rejected = find(&spans, "POST /api/publish");
    assert_eq!(rejected["attributes"]["error.type"], "bad_topic");
    assert_eq!(rejected["attributes"]["http.response.status_code"], 400);
    assert_eq!(rejected["status"], "STATUS_CODE_UNSET");
    server.until("all are counted", |server| {
        server.metric("throng_spans_total{result=\"sent\"}") == 7.0
    });
    assert_eq!(server.metric("throng_spans_total{result=\"failed\"}"), 0.0);
    assert_eq!(server.metric("throng_spans_total{result=\"dropped\"}"), 0.0);
}

#[test]
fn a_message_to_a_group_has_a_span_for_the_one_member_that_gets_it() {
    let collector = Collector::start();
    let server = serve(&collector.url(), "0", &["--shards", "1", "--mqtt", "127.0.0.1:0"]);
    let _members = ["a", "b", "c"].map(|name| {
        let mut client = Connect::new(V5, name).open(server.client);
        client.subscribe(&[filter("$share/g/news", 0)]);
        client
    });
    let message = json!({"topic": "news", "data": "x"});
    let (status, receipt) = call_in_trace(&server, "/api/publish", message, "01");
    assert_eq!((status, &receipt["members"]), (200, &json!(1)));
    let spans = collector.until(&server, "all spans are there", |spans| spans.len() == 2);
    let deliver = find(&spans, "deliver");
    assert_eq!(deliver["parent"], find(&spans, "POST /api/publish")["id"]);
    assert_eq!(deliver["attributes"]["throng.members"], 1);
}

#[test]
fn a_node_that_samples_all_begins_a_trace_for_each_call() {
    let collector = Collector::start();
    let mut server = serve(&collector.url(), "1000000", &["--shards", "1"]);
    for number in 0..50 {
        server.publish("news", json!(number));
    }
    // The node sends the spans that wait before it ends.
    server.signal("-TERM");
    assert!(wait_within(&mut server.child).success());
    let spans = collector.until(&server, "50 calls are there", |spans| spans.len() == 50);
    assert!(spans.iter().all(|it| it["name"] == "POST /api/publish" && it["parent"] == ""));
    let traces: std::collections::BTreeSet<_> =
        spans.iter().map(|it| it["trace"].as_str()).collect();
    assert_eq!(traces.len(), 50);
}

/// Starts a server with this configuration.
fn serve_file(text: &str) -> (Server, Scratch) {
    let folder = Scratch::new("spans");
    let file = folder.write("throng.toml", text);
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "1"]);
    command.arg("--config").arg(file);
    (Server::run(command, &[]), folder)
}

#[test]
fn the_application_continues_the_trace_of_each_request_to_it() {
    let collector = Collector::start();
    let app = Application::replying(
        |_| json!({"user": "alice", "grants": {"subscribe": ["news"], "publish": ["requests/*"]}}),
    );
    // The server forwards to the same application, which accepts everything.
    let (server, _folder) = serve_file(&format!(
        "[tracing]\notlp_url = \"{}\"\nsample_per_million = 1_000_000\n\
         [webhook]\nurl = \"{1}\"\nconnect = true\nevents = [\"connected\"]\ntimeout_milliseconds = 60_000\n\
         [[topics]]\npattern = \"requests/*\"\npublish = \"allow\"\n\
         [[forward]]\nfilter = \"requests/#\"\nurl = \"{1}\"\ntimeout_milliseconds = 60_000\n",
        collector.url(),
        app.url(),
    ));
    let mut socket = websocket(&server, "topic=news");
    let publish = json!({"type": "publish", "id": 1, "topic": "requests/1", "data": 1});
    let reply = command(&mut socket, publish);
    assert!(reply["ok"].is_object(), "{reply}");
    let names = ["forward", "webhook", "webhook events"];
    let spans = collector.until(&server, "each kind of request is there", |spans| {
        names.iter().all(|name| count(spans, name) > 0)
    });
    let requests = app.requests.lock().unwrap();
    let sent: Vec<_> =
        requests.iter().map(|it| header(&it.head, "traceparent").unwrap().to_owned()).collect();
    for name in names {
        let span = find(&spans, name);
        let text = |key: &str| span[key].as_str().unwrap();
        let context = format!("00-{}-{}-01", text("trace"), text("id"));
        assert!(sent.contains(&context), "{context} is in none of {sent:?}");
        let attributes = json!({
            "http.request.method": "POST", "http.response.status_code": 200,
            "server.address": "127.0.0.1", "server.port": app.address.port(),
        });
        assert_eq!((&span["kind"], &span["attributes"]), (&json!("SPAN_KIND_CLIENT"), &attributes));
        assert_eq!((&span["parent"], &span["status"]), (&json!(""), &json!("STATUS_CODE_UNSET")));
    }
}

#[test]
fn a_request_to_an_application_that_fails_has_an_error() {
    let collector = Collector::start();
    let away = Reserved::new();
    let (server, _folder) = serve_file(&format!(
        "[tracing]\notlp_url = \"{}\"\nsample_per_million = 1_000_000\n\
         [webhook]\nurl = \"http://{}/\"\nconnect = true\ntimeout_milliseconds = 60_000\n",
        collector.url(),
        away.address,
    ));
    server.exchange_once(b"GET /sse?topic=news HTTP/1.1\r\nHost: t\r\n\r\n");
    let spans = collector.until(&server, "a request is there", |spans| count(spans, "webhook") > 0);
    let span = find(&spans, "webhook");
    assert_eq!(span["status"], "STATUS_CODE_ERROR");
    assert!(span["message"].as_str().unwrap().contains("refused"), "{span}");
}

#[test]
fn without_sampling_requests_have_no_trace() {
    let collector = Collector::start();
    let app = Application::replying(|_| json!({"user": "alice"}));
    let (server, _folder) = serve_file(&format!(
        "[tracing]\notlp_url = \"{}\"\nsample_per_million = 0\n\
         [webhook]\nurl = \"{}\"\nconnect = true\ntimeout_milliseconds = 60_000\n",
        collector.url(),
        app.url(),
    ));
    let _member = websocket(&server, "");
    server.publish("news", json!(1));
    let requests = app.requests.lock().unwrap();
    assert_eq!(header(&requests[0].head, "traceparent"), None);
    // A call that its caller records comes after all others, and alone.
    call_in_trace(&server, "/api/publish", json!({"topic": "news", "data": 2}), "01");
    let spans = collector.until(&server, "the call is there", |spans| !spans.is_empty());
    assert_eq!((spans.len(), &spans[0]["trace"]), (1, &json!(TRACE)));
}

#[test]
fn messages_go_out_while_the_collector_is_away() {
    let reserved = Reserved::new();
    let server = serve(&url(reserved.address), "1000000", &["--shards", "1"]);
    let mut member = server.listen("/sse?topic=news");
    server.until_members("news", 1);
    let failed = |server: &Server| server.metric("throng_spans_total{result=\"failed\"}");
    for number in 0..200 {
        assert_eq!(server.publish("news", json!(number))["members"], 1);
        assert_eq!(member.data(), number.to_string());
    }
    server.until("spans are lost", |server| failed(server) > 0.0);
    // The collector comes back and gets the spans from then on.
    let collector = Collector::on(reserved.listen(), &[]);
    server.until("spans arrive", |server| {
        server.publish("news", json!("x"));
        !collector.spans().is_empty()
    });
}

#[test]
fn spans_beyond_the_queue_are_dropped_and_counted_while_the_collector_hangs() {
    // The kernel accepts connections, but no process responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = serve(&url(silent.local_addr().unwrap()), "1000000", &["--shards", "1"]);
    let mut member = server.listen("/sse?topic=news");
    server.until_members("news", 1);
    let commands = vec![json!({"publish": {"topic": "news", "data": "x"}}); 1_000];
    // Each batch has a span, and one for each delivery.
    let batches = 8;
    for _ in 0..batches {
        let results = server.post("/api/batch", json!({"commands": commands}));
        assert_eq!(results["results"].as_array().unwrap().len(), 1_000);
        (0..1_000).for_each(|_| assert_eq!(member.data(), "x"));
    }
    let result = |server: &Server, result: &str| {
        server.metric(&format!("throng_spans_total{{result=\"{result}\"}}"))
    };
    let made = f64::from(batches * 1_001);
    // 4,096 wait at most, and 512 are in a request.
    let least = made - 4_096.0 - 512.0;
    server.until("the rest is dropped or failed", |server| {
        result(server, "dropped") + result(server, "failed") >= least
    });
    assert!(result(&server, "dropped") > 0.0);
    assert_eq!(result(&server, "sent"), 0.0);
    // When the collector responds, the waiting spans arrive: the counters account for each span.
    let collector = Collector::on(silent, &[]);
    server.until("each span is counted", |server| {
        ["sent", "failed", "dropped"].iter().map(|it| result(server, it)).sum::<f64>() == made
    });
    let sent = result(&server, "sent") as usize;
    collector.until(&server, "those that are sent arrive", |spans| spans.len() >= sent);
}

#[test]
fn spans_go_by_https_to_a_collector_of_the_configured_authority() {
    let authority = Authority::new();
    let files = [&*authority.path("server.pem"), &*authority.path("server.key")];
    let collector = Collector::on(TcpListener::bind("127.0.0.1:0").unwrap(), &files);
    let ca_file = authority.path("ca.pem");
    let url = collector.url().replace("http:", "https:");
    let settings = [
        ("THRONG_TRACING_OTLP_URL", &*url),
        ("THRONG_TRACING_SAMPLE_PER_MILLION", "1000000"),
        ("THRONG_TRACING_CA_FILE", ca_file.to_str().unwrap()),
    ];
    let server = Server::with(&["--shards", "1"], &settings);
    server.publish("news", json!(1));
    collector.until(&server, "the call is there", |spans| spans.len() == 1);
    assert_eq!(server.metric("throng_spans_total{result=\"failed\"}"), 0.0);
}

#[test]
fn a_node_without_a_collector_makes_no_spans() {
    let server = Server::with(&["--shards", "1"], &[]);
    call_in_trace(&server, "/api/publish", json!({"topic": "news", "data": 1}), "01");
    let (_, metrics) = crate::support::text(server.admin, "GET", "/metrics", None, "");
    assert!(!metrics.contains("throng_spans"), "{metrics}");
}

#[test]
fn a_wrong_setting_is_an_error_that_names_the_file_the_key_and_the_fix() {
    let folder = Scratch::new("spans");
    let fail = |arguments: &[&str], text: &str| {
        let file = folder.write("throng.toml", text);
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(arguments).arg("--config").arg(file);
        let output = output_within(&mut command);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
        error
    };
    let check = ["config", "--check"];
    for url in ["localhost:4318", "http://user:hunter2@127.0.0.1/v1/traces", "ftp://127.0.0.1/"] {
        let error = fail(&check, &format!("[tracing]\notlp_url = \"{url}\"\n"));
        assert!(error.contains("throng.toml:2:12: tracing.otlp_url"), "{error}");
        assert!(error.contains("write http://host[:port]/v1/traces"), "{error}");
    }
    let error = fail(&check, "[tracing]\nsample_per_million = 1_000_001\n");
    assert!(error.contains("throng.toml:2:22: tracing.sample_per_million"), "{error}");
    assert!(error.contains("from 0 to 1000000"), "{error}");
    // The server reads the file when it starts.
    let serve = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let error = fail(&serve, "[tracing]\notlp_url = \"http://h/\"\nca_file = \"none.pem\"\n");
    assert!(error.contains("tracing.ca_file") && error.contains("none.pem"), "{error}");
}
