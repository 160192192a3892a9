//! The log of a real server: fields and spans for programs, and no secrets, wherever they occur in a request.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::support::*;
use serde_json::{Value, json};
use tungstenite::Message;

/// Every secret has this text, and the log must not have it.
const MARK: &str = "s3cret";
const API_KEY: &str = "api-key-s3cret-0123456789";
const SECRET: &str = "webhook-s3cret-0123456789";

/// A server in a folder of its own, which writes its log into a file there.
struct Logged {
    server: Server,
    folder: Scratch,
}

impl Logged {
    fn start(name: &str, configuration: &str, format: &str) -> Self {
        let folder = Scratch::new(name);
        write_secret(&folder.path().join("throng.toml"), configuration);
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--shards", "1", "--data", "data"]);
        let settings = [("THRONG_LOG_LEVEL", "trace"), ("THRONG_LOG_FORMAT", format)];
        let log = Stdio::from(File::create(folder.path().join("log")).unwrap());
        Logged { server: Server::run_in(folder.path(), command, &settings, log), folder }
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Returns the lines of the log, which are JSON. The last line may be incomplete.
    fn lines(&self) -> Vec<Value> {
        let text = self.text();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        whole.lines().map(line).collect()
    }

    /// Waits for a line with this message for which `is_it` is true.
    fn line(&self, message: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        self.server.until(&format!("the log says {message:?}"), |_| {
            let of = |line: &Value| line["fields"]["message"] == message && is_it(line);
            found = self.lines().into_iter().find(of);
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits for the line that ends a request.
    fn reply_line(&self, route: &str, status: u16) -> Value {
        self.line("answered", |line| {
            line["span"]["route"] == route && line["fields"]["status"] == status
        })
    }
}

/// Sends a request, and returns the head of the response.
fn head_of(address: SocketAddr, head: &str, body: &str) -> String {
    let mut stream = Stream::new(connect(address));
    stream.send(&format!(
        "{head}\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let head = stream.head();
    stream.rest();
    head
}

/// Starts an application that accepts the first request, and responds to all others with an error. Returns its
/// address and its requests.
fn application() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for (at, socket) in listener.incoming().enumerate() {
            let mut stream = Stream::new(socket.unwrap());
            let head = stream.head();
            let length = header(&head, "content-length").unwrap().parse().unwrap();
            let mut body = vec![0; length];
            stream.reader.read_exact(&mut body).unwrap();
            let body = String::from_utf8(body).unwrap();
            let (status, outcome) = match at {
                0 => ("200 OK", r#"{"replies":[{"status":"ok","response":{"a":"s3cret"}}]}"#),
                _ => ("500 Internal Server Error", "s3cret"),
            };
            stream.send(&format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{outcome}",
                outcome.len()
            ));
            let _ = sender.send(head + &body);
        }
    });
    (address, requests)
}

fn configuration(application: SocketAddr, secret: &str) -> String {
    format!(
        "[admin]\napi_key = \"{API_KEY}\"\n\
         [webhook]\nurl = \"http://{application}/hook\"\nsecret = \"{secret}\"\n\
         timeout_milliseconds = 60000\n\
         signing_key = \"signing-s3cret-signing-s3cret-0123456789\"\n\
         [[topics]]\npattern = \"ask:*\"\njoin = \"webhook\"\n\
         [[topics]]\npattern = \"log:*\"\nhistory_messages_max = 10\ndurable = true\n"
    )
}

/// Sends valid and invalid requests of all kinds, with secrets in all places.
fn send_secrets(logged: &Logged) {
    let Server { client, admin, .. } = logged.server;
    let key = format!("Authorization: Bearer {API_KEY}");
    for (head, body) in [
        ("GET /api/users/path-s3cret?token=query-s3cret HTTP/1.1", ""),
        ("GET /path-s3cret?token=query-s3cret HTTP/1.1\r\nCookie: id=cookie-s3cret", ""),
        ("DELETE /api/publish?token=query-s3cret HTTP/1.1\r\nX-Api-Key: header-s3cret", ""),
        ("GET /api/topics?token=query-s3cret&limit=s3cret HTTP/1.1", ""),
        ("POST /api/publish HTTP/1.1", r#"{"topic":"log:a","data":"body-s3cret"}"#),
        ("POST /api/publish HTTP/1.1", r#"{"topic":"log:a","s3cret":"s3cret"}"#),
        ("POST /api/send HTTP/1.1\r\nContent-Type: text/s3cret", "s3cret"),
        ("GET /api/history/log:path-s3cret?limit=3 HTTP/1.1", ""),
    ] {
        head_of(admin, &format!("{head}\r\n{key}"), body);
        head_of(admin, &format!("{head}\r\nAuthorization: Bearer wrong-s3cret"), body);
        head_of(admin, &format!("{head}\r\nAuthorization: Basic wrong-s3cret"), body);
    }
    for target in ["/sse", "/stream", "/poll", "/publish", "/presence", "/nothing", "/ws", "/ack"] {
        for method in ["GET", "POST", "PUT"] {
            let target = format!("{method} {target}?topic=a&timeout=1&token=query-s3cret HTTP/1.1");
            let mut socket = connect(client);
            let more = "Cookie: id=cookie-s3cret\r\nAuthorization: Bearer header-s3cret\r\n\
                        Origin: https://origin-s3cret.example\r\n\
                        X-Phoenix-Longpoll-Token: token-s3cret\r\nContent-Length: 6\r\n";
            socket
                .write_all(format!("{target}\r\nHost: t\r\n{more}\r\ns3cret").as_bytes())
                .unwrap();
            // A stream has no end, so this reads once.
            let _ = socket.read(&mut [0; 1000]);
        }
    }
    let longpoll = "/socket/longpoll?vsn=2.0.0&token=query-s3cret";
    head_of(client, &format!("GET {longpoll} HTTP/1.1"), "");
    head_of(client, &format!("POST {longpoll} HTTP/1.1"), "s3cret");
    for garbage in
        ["GET /sse?token=s3cret\r\n\r\n", "s3cret\r\n\r\n", "GET s3cret HTTP/9.s3cret\r\n\r\n"]
    {
        logged.server.exchange(garbage.as_bytes());
    }
    let mut socket = websocket(&logged.server, "token=query-s3cret");
    for text in [r#"{"type":"s3cret"}"#, r#"{"type":"publish","id":1,"topic":"a","data":"s3cret"}"#]
    {
        command(&mut socket, serde_json::from_str(text).unwrap());
    }
}

/// Joins a topic whose join calls a webhook. Returns the status of the reply.
fn join(server: &Server) -> Value {
    let url = format!("ws://{}/socket/websocket?vsn=2.0.0&token=query-s3cret", server.client);
    let (mut socket, _) = tungstenite::client(url, server.connect()).unwrap();
    let join = json!(["1", "1", "ask:a", "phx_join", {"token": "payload-s3cret"}]);
    socket.send(Message::text(join.to_string())).unwrap();
    receive(&mut socket)[4]["status"].clone()
}

#[test]
fn the_log_has_spans_and_fields_and_no_secret() {
    let (application, requests) = application();
    let logged = Logged::start("log-json", &configuration(application, SECRET), "json");
    let server = &logged.server;
    send_secrets(&logged);

    assert_eq!(join(server), "ok");
    let request = requests.recv_timeout(TIMEOUT).unwrap();
    assert!(request.contains(SECRET) && request.contains("payload-s3cret"), "{request}");
    assert_eq!(join(server), "error");
    let webhook = logged.line("answered", |line| line["span"]["name"] == "webhook");
    assert_eq!(webhook["span"]["url"], format!("http://{application}/hook"));
    assert_eq!(webhook["span"]["events"], 1);
    assert!(webhook["fields"]["duration_ms"].is_f64(), "{webhook}");
    let failed = logged.line("events for the application failed", |_| true);
    assert_eq!((&failed["level"], &failed["fields"]["kind"]), (&json!("WARN"), &json!("status")));
    assert_eq!(failed["fields"]["error"], "status 500 Internal Server Error");

    // Changes the secret in the configuration. A later reload rejects an invalid one.
    write_secret(
        &logged.folder.path().join("throng.toml"),
        &configuration(application, "new-s3cret-0123456789"),
    );
    server.signal("-HUP");
    let reloaded = "the configuration was read again: these settings are in force";
    let reload = logged.line(reloaded, |_| true);
    assert_eq!(reload["fields"]["settings"], "webhook.secret");
    assert_eq!(reload["span"]["name"], "reload");
    let good = configuration(application, SECRET);
    let of_wrong_type = good.replace(&format!("\"{SECRET}\""), &format!("[\"{SECRET}\"]"));
    for (bad, why) in [
        (configuration(application, "s3cret"), "at least 16 characters"),
        (of_wrong_type, "webhook.secret"),
        (good.replace(SECRET, &format!("{SECRET}\n")), "throng.toml:"),
    ] {
        write_secret(&logged.folder.path().join("throng.toml"), &bad);
        server.signal("-HUP");
        logged.line("the configuration is unchanged", |line| {
            line["level"] == "ERROR" && line["fields"]["error"].as_str().unwrap().contains(why)
        });
    }

    let head = head_of(
        server.admin,
        &format!(
            "POST /api/publish HTTP/1.1\r\nAuthorization: Bearer {API_KEY}\r\nX-Request-Id: mine-1"
        ),
        r#"{"topic":"log:a","data":1}"#,
    );
    assert_eq!(header(&head, "x-request-id"), Some("mine-1"));
    let line = logged.line("answered", |line| line["span"]["request"] == "mine-1");
    assert_eq!((&line["level"], &line["fields"]["status"]), (&json!("DEBUG"), &json!(200)));
    assert!(line["fields"]["duration_ms"].is_f64(), "{line}");
    let span = &line["span"];
    assert_eq!((&span["name"], &span["method"]), (&json!("request"), &json!("POST")));
    assert_eq!(span["route"], "/api/publish");
    assert!(span["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{span}");
    assert_eq!(logged.reply_line("/api/users/{user}", 401)["fields"]["code"], "bad_key");
    assert_eq!(logged.reply_line("none", 404)["fields"]["code"], "not_found");
    assert_eq!(logged.reply_line("/api/publish", 405)["span"]["method"], "DELETE");
    logged.reply_line("/api/history/{topic}", 200);

    let closed = logged.line("connection closed", |line| line["fields"]["transport"] == "sse");
    let fields = &closed["fields"];
    assert!(fields["connection"].as_str().unwrap().split('-').count() == 4, "{fields}");
    assert!(fields["reason"].is_string() && fields["age_seconds"].is_u64(), "{fields}");
    let rejected = logged.line("request rejected", |line| line["fields"]["status"] == 505);
    assert_eq!(rejected["fields"]["code"], "bad_version");
    let written = logged.line("committed", |line| line["span"]["name"] == "store_write");
    assert!(written["fields"]["operations"].as_u64() >= Some(1), "{written}");
    assert_eq!(logged.line("the store is open", |_| true)["span"]["name"], "start");

    server.signal("-INT");
    let ended = logged.line("ended", |_| true);
    assert_eq!(ended["span"]["name"], "stop");
    let text = logged.text();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(MARK)).collect();
    assert!(lines.is_empty(), "{lines:#?}");
}

#[test]
fn every_reply_names_its_request() {
    let logged = Logged::start("log-ids", &format!("[admin]\napi_key = \"{API_KEY}\"\n"), "text");
    let admin = logged.server.admin;
    let mut seen = Vec::new();
    for head in [
        "GET /healthz HTTP/1.1",
        "GET /api/stats HTTP/1.1",
        "GET /nothing HTTP/1.1",
        "DELETE / HTTP/1.1",
        "GET / HTTP/1.1\r\nX-Request-Id: two words",
        "GET / HTTP/1.1\r\nX-Request-Id: a\r\nX-Request-Id: b",
        "GET / HTTP/1.1\r\nX-Request-Id:",
    ] {
        let head = head_of(admin, head, "");
        let id = header(&head, "x-request-id").unwrap_or_else(|| panic!("{head}")).to_owned();
        assert!(id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{head}");
        assert!(!seen.contains(&id), "{id} {seen:?}");
        seen.push(id);
    }
    let uuid = "0b8a1f0e-6c0e-4f6e-9d58-0f7c1b2f9a10";
    let head = head_of(admin, &format!("GET /api/stats HTTP/1.1\r\nx-request-id: {uuid}"), "");
    assert!(head.starts_with("HTTP/1.1 401 ") && header(&head, "X-Request-ID") == Some(uuid));
    let want =
        format!("request{{method=GET route=\"/api/stats\" request=\"{uuid}\" address=127.0.0.1:");
    logged.server.until("the log has the request", |_| {
        let text = logged.text();
        text.lines().any(|line| {
            line.contains(&want)
                && line.contains("answered status=401 code=\"no_key\" duration_ms=")
        })
    });
}
