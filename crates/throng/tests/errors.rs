//! The responses of both ports to requests that they reject: the same shape everywhere, with a code that
//! docs/errors.md has.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use crate::support::*;
use serde_json::{Value, json};

const SECRET: &str = "a secret of more than 32 bytes for tests";

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Returns the requests in the first column of the tables of docs/access.md: methods and a path.
fn requests(heading: &str) -> Vec<(String, String)> {
    let page = page("access.md");
    let (_, below) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = below.split("\n## ").next().unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut all = Vec::new();
    for cell in cells {
        let (methods, path) = cell.rsplit_once(' ').unwrap();
        let methods = methods.split(", ").map(|method| (method.to_string(), path.to_string()));
        all.extend(methods);
    }
    all
}

/// Checks each rejection of a server.
struct Walk {
    codes: BTreeSet<String>,
    statuses: BTreeSet<u16>,
    documented: BTreeSet<String>,
    refused: usize,
}

impl Walk {
    fn new() -> Self {
        let page = page("errors.md");
        let documented = page.split('`').skip(1).step_by(2).map(String::from).collect();
        Walk { codes: BTreeSet::new(), statuses: BTreeSet::new(), documented, refused: 0 }
    }

    /// Makes a request, and checks the response if it is a rejection. Returns the status.
    fn send(&mut self, address: SocketAddr, request: &str) -> u16 {
        let what: String = request.chars().take(120).collect();
        let mut stream = Stream::new(connect(address));
        // The server may reject the request before it has read all of it.
        let _ = std::io::Write::write_all(stream.reader.get_mut(), request.as_bytes());
        let head = stream.head();
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        if status < 400 {
            return status;
        }
        let field = |name: &str| header(&head, name);
        let is_json = field("content-type").is_some_and(|it| it.starts_with("application/json"));
        assert!(is_json, "{what}: {head}");
        assert_eq!(field("x-content-type-options"), Some("nosniff"), "{what}: {head}");
        let length = field("content-length").unwrap_or_else(|| panic!("{what}: {head}"));
        let mut body = vec![0; length.parse().unwrap()];
        if what.starts_with("HEAD ") {
            return status;
        }
        std::io::Read::read_exact(&mut stream.reader, &mut body).unwrap();
        let body: Value = serde_json::from_slice(&body)
            .unwrap_or_else(|error| panic!("{what}: {error}: {}", String::from_utf8_lossy(&body)));
        let error = body["error"].as_object().unwrap_or_else(|| panic!("{what}: {body}"));
        let text = |key: &str| error[key].as_str().filter(|it| !it.is_empty());
        let code = text("code").unwrap_or_else(|| panic!("{what}: {body}"));
        assert!(text("message").is_some(), "{what}: {body}");
        assert_eq!(body.as_object().unwrap().len(), 1, "{what}: {body}");
        assert!(self.documented.contains(code), "{code} is not in docs/errors.md: {what}");
        let challenge = field("www-authenticate");
        match status {
            401 => assert!(challenge.is_some_and(|it| it.starts_with("Bearer")), "{what}: {head}"),
            405 => assert!(field("allow").is_some(), "{what}: {head}"),
            426 => assert!(field("upgrade").is_some(), "{what}: {head}"),
            429 | 503 => assert!(field("retry-after").is_some(), "{what}: {head}"),
            _ => {}
        }
        self.codes.insert(code.to_string());
        self.statuses.insert(status);
        self.refused += 1;
        status
    }

    fn get(&mut self, address: SocketAddr, target: &str, headers: &str) -> u16 {
        self.send(address, &format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n"))
    }

    /// Makes each request of a page with these headers, with invalid bodies and parameters, and by methods that it
    /// does not have.
    fn walk(&mut self, address: SocketAddr, requests: &[(String, String)], headers: &[&str]) {
        let names = [("{topic}", "a"), ("{user}", "al"), ("{file}", "app.js")];
        for (method, path) in requests {
            let path = names.iter().fold(path.clone(), |path, (from, to)| path.replace(from, to));
            let targets = [
                // Without the timeout a poll would wait.
                format!("{path}?timeout=0"),
                path.replace("/poll", "/poll?timeout=0"),
                format!("{path}?topic=%ff&limit=x&since=x&timeout=x"),
                format!("{path}?topic=@al&user=%0a"),
                format!("{path}?topicc=a&tag=%zz"),
                format!("{path}/nothing"),
            ];
            for headers in headers {
                for target in &targets {
                    for method in [method.as_str(), "PATCH", "DELETE", "POST"] {
                        for body in ["", "[", "{\"nothing\":1}"] {
                            let length = match method {
                                "GET" => String::new(),
                                _ => format!("Content-Length: {}\r\n", body.len()),
                            };
                            let body = if method == "GET" { "" } else { body };
                            self.send(
                                address,
                                &format!(
                                    "{method} {target} HTTP/1.1\r\nHost: {address}\r\n\
                                     Connection: close\r\n{headers}{length}\r\n{body}"
                                ),
                            );
                            if method == "GET" {
                                break;
                            }
                        }
                    }
                }
            }
        }
    }

    /// Makes requests whose heads are invalid for any target.
    fn walk_heads(&mut self, address: SocketAddr) {
        let long = "x".repeat(70_000);
        for (request, status) in [
            ("GET / HTTP/3.0\r\nHost: t\r\n\r\n".to_string(), 0),
            ("GET /\0 HTTP/1.1\r\nHost: t\r\n\r\n".into(), 400),
            ("GET / HTTP/1.1\r\n\r\n".into(), 0),
            ("GET / HTTP/1.1\r\nHost: t\r\nX y: z\r\n\r\n".into(), 400),
            (format!("GET / HTTP/1.1\r\nHost: t\r\nX: {long}\r\n\r\n"), 431),
            (format!("GET / HTTP/1.1\r\nHost: t\r\n{}\r\n", "a: b\r\n".repeat(1_000)), 431),
            ("POST /publish?topic=a HTTP/1.1\r\nHost: t\r\n\r\n".into(), 0),
        ] {
            let got = self.send(address, &request);
            assert!(got >= 400 && (status == 0 || got == status), "{request:.60}: {got}");
        }
    }
}

/// Starts a server with tokens, keys, and low limits.
fn server() -> Server {
    let key = "0123456789abcdef0123456789abcdef";
    let settings = [
        ("THRONG_AUTH_HMAC_KEY", SECRET),
        ("THRONG_AUTH_REQUIRED", "true"),
        ("THRONG_ADMIN_API_KEY", key),
        ("THRONG_CLIENT_STATUS_PAGE", "true"),
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "a"),
        ("THRONG_CLIENT_CORS_ORIGINS", "https://a.example"),
    ];
    Server::with(&["--ws-echo", "--shards", "1"], &settings)
}

#[test]
fn every_refusal_of_the_client_port_has_the_shape_of_an_error() {
    let server = server();
    let mut walk = Walk::new();
    let requests = requests("The client port");
    assert!(requests.len() > 10, "{requests:?}");
    let signer = token::Signer::new(SECRET, "HS256".parse().unwrap(), None).unwrap();
    let bearer =
        |claims: &Value| format!("Authorization: Bearer {}\r\n", signer.sign(claims).unwrap());
    let all = ["*"];
    let grants = json!({"subscribe": all, "publish": all, "presence": all, "history": all});
    let good = bearer(&json!({"sub": "al", "throng": grants}));
    let expired = bearer(&json!({"sub": "al", "exp": 1_000_000_000}));
    let headers = ["", "Authorization: Bearer x\r\n", &expired, &good];
    walk.walk(server.client, &requests, &headers);
    walk.walk_heads(server.client);
    for (headers, status) in [
        (
            "Origin: https://evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            403,
        ),
        ("Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 7\r\n", 426),
    ] {
        let headers = format!("{headers}{good}");
        assert_eq!(walk.get(server.client, "/ws", &headers), status, "{headers}");
    }
    let basic = "Authorization: Basic eA==\r\n";
    assert_eq!(walk.get(server.client, "/sse?topic=a", basic), 401);
    for (body, status) in [
        ("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        ("Content-Length: 99999999\r\n\r\n", 413),
        ("Content-Length: x\r\n\r\n", 400),
    ] {
        let head = format!("POST /publish?topic=a HTTP/1.1\r\nHost: t\r\n{good}");
        assert_eq!(walk.send(server.client, &format!("{head}{body}")), status, "{body}");
    }
    // A request that does not arrive in time needs a server with a shorter timeout.
    let impatient = Server::with(&[], &[("THRONG_TIMEOUTS_HEAD_SECONDS", "1")]);
    assert_eq!(walk.send(impatient.client, "GET /sse?topic=a HTTP/1.1\r\nHost: t\r\n"), 408);
    println!("{} refusals: {:?} {:?}", walk.refused, walk.statuses, walk.codes);
    for status in [400, 401, 403, 404, 405, 408, 411, 413, 426, 431, 505] {
        assert!(walk.statuses.contains(&status), "{status}: {:?}", walk.statuses);
    }
}

#[test]
fn every_refusal_of_the_admin_port_has_the_shape_of_an_error() {
    let server = server();
    let mut walk = Walk::new();
    let requests = requests("The admin port");
    assert!(requests.len() > 30, "{requests:?}");
    // With the right key the other parts of the request are still wrong.
    let good = "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n";
    let headers = ["", "Authorization: Bearer x\r\n", "Cookie: throng_session=x\r\n", good];
    let live = |it: &&(String, String)| !it.1.ends_with("/live");
    let ending: Vec<_> = requests.iter().filter(live).cloned().collect();
    walk.walk(server.admin, &ending, &headers);
    for target in ["/api/nothing", "/nothing", "/api/live?x=1", "/metrics/1"] {
        for headers in headers {
            walk.get(server.admin, target, headers);
        }
    }
    let evil = format!("{good}Origin: https://evil.example\r\nSec-Fetch-Site: cross-site\r\n");
    assert!(walk.get(server.admin, "/api/stats", &evil) < 500);
    let large = format!(
        "POST /api/publish HTTP/1.1\r\nHost: {}\r\n{good}Content-Type: application/json\r\n\
         Content-Length: 99999999999\r\n\r\n",
        server.admin
    );
    assert_eq!(walk.send(server.admin, &large), 413);
    println!("{} refusals: {:?} {:?}", walk.refused, walk.statuses, walk.codes);
    for status in [400, 401, 404, 405, 413] {
        assert!(walk.statuses.contains(&status), "{status}: {:?}", walk.statuses);
    }
}
