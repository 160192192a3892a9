//! Attempts to bypass the key, and requests by other sites' web pages.

use serde_json::json;

use crate::support::*;

const KEY: &str = "0123456789abcdef";

fn guarded() -> Server {
    Server::with(&[], &[("THRONG_ADMIN_API_KEY", KEY)])
}

/// Sends these bytes to the admin port. Returns the status and everything until it closes.
fn reply(server: &Server, bytes: &str) -> (u16, String) {
    let mut stream = Stream::new(connect(server.admin));
    stream.send(bytes);
    let text = stream.rest();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or(0), text)
}

/// Returns true if the response holds something that needs the key.
fn is_secret(reply: &str) -> bool {
    ["connections_by_transport", "throng_connections", "delivered", "\"toml\"", "\"topics\":"]
        .into_iter()
        .any(|secret| reply.contains(secret))
}

#[test]
fn no_form_of_a_path_bypasses_the_key() {
    let server = guarded();
    for path in [
        "/api/stats",
        "//api/stats",
        "/./api/stats",
        "/healthz/../api/stats",
        "/readyz/..;/metrics",
        "/dashboard/../api/stats",
        "/dashboard/..%2fapi/stats",
        "/dashboard/%2e%2e/api/stats",
        "/dashboard/%2e%2e%2fapi%2fconfig",
        "/dashboard/..\\api\\stats",
        "/%61pi/stats",
        "/api%2fstats",
        "/API/stats",
        "/api/stats/",
        "/api/stats?/healthz",
        "/api/stats%00/healthz",
        "/healthz%2f..%2fapi%2fstats",
        "/healthz;/api/stats",
        "/healthz?/../api/stats=1",
        "/metrics/",
        "/metrics?x=/healthz",
        "/api/config",
        "/api/topics",
        "http://127.0.0.1/api/stats",
        "http://127.0.0.1/healthz/../api/stats",
        "*",
    ] {
        for method in ["GET", "HEAD", "POST", "OPTIONS", "get"] {
            let head = format!(
                "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\
                 Connection: close\r\n\r\n"
            );
            let (status, reply) = reply(&server, &head);
            let is_open = path.starts_with("/healthz?") && status == 200;
            assert!(is_open || (400..500).contains(&status), "{method} {path}: {reply}");
            assert!(!is_secret(&reply), "{method} {path}: {reply}");
        }
    }
}

#[test]
fn no_other_header_replaces_the_key() {
    let server = guarded();
    for (path, headers) in [
        ("/healthz", "X-Original-URL: /api/stats"),
        ("/healthz", "X-Rewrite-URL: /api/stats"),
        ("/api/stats", "X-Forwarded-For: 127.0.0.1"),
        ("/api/stats", "X-Forwarded-Host: localhost\r\nForwarded: for=127.0.0.1"),
        ("/api/stats", "Authorization:"),
        ("/api/stats", "Authorization: Bearer"),
        ("/api/stats", "Authorization: Bearer "),
        ("/api/stats", "Authorization: 0123456789abcdef"),
        ("/api/stats", "Authorization: Basic 0123456789abcdef"),
        ("/api/stats", "Authorization: Bearer 0123456789abcde"),
        ("/api/stats", "Authorization: Bearer 0123456789abcdef0"),
        ("/api/stats", "Authorization: Bearer 0123456789ABCDEF"),
        ("/api/stats", "Authorization: Bearer x\r\nAuthorization: Bearer 0123456789abcdef"),
        ("/api/stats", "Authorization: Bearer x, Bearer 0123456789abcdef"),
        ("/api/stats", "Cookie: api_key=0123456789abcdef"),
        ("/api/stats?api_key=0123456789abcdef", "X-Api-Key: 0123456789abcdef"),
        (
            "/api/stats?access_token=0123456789abcdef",
            "Proxy-Authorization: Bearer 0123456789abcdef",
        ),
    ] {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{headers}\r\n\r\n"
        );
        let (status, reply) = reply(&server, &request);
        let want = if path == "/healthz" { 200 } else { 401 };
        assert_eq!(status, want, "{path} {headers}: {reply}");
        assert!(!is_secret(&reply), "{path} {headers}: {reply}");
    }
    let right = "Authorization: Bearer 0123456789abcdef\r\n";
    assert_eq!(text(server.admin, "GET", "/api/stats", None, right).0, 200);
}

#[test]
fn a_smuggled_request_needs_the_key_as_well() {
    let server = guarded();
    let mut listener = server.listen("/sse?topic=a");
    let body = r#"{"data":"smuggled"}"#;
    let inner = format!(
        "POST /api/broadcast HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    for outer in [
        format!("Content-Length: {}\r\nTransfer-Encoding: chunked", 5 + inner.len()),
        "Transfer-Encoding: chunked\r\nContent-Length: 5".into(),
        "Transfer-Encoding: chunked, identity".into(),
        "Transfer-Encoding: xchunked".into(),
        "Transfer-Encoding : chunked".into(),
        " Transfer-Encoding: chunked".into(),
        "Content-Length: 5\r\nContent-Length: 6".into(),
        "Content-Length: +5".into(),
        "Content-Length: 5, 5".into(),
    ] {
        for open in ["/healthz", "/dashboard/app.js"] {
            let request = format!(
                "POST {open} HTTP/1.1\r\nHost: localhost\r\n{outer}\r\n\r\n0\r\n\r\n{inner}"
            );
            let mut stream = Stream::new(connect(server.admin));
            stream.send(&request);
            let _ = stream.reader.get_ref().shutdown(std::net::Shutdown::Write);
            let reply = stream.rest();
            assert!(!reply.contains(" 200 ") && !is_secret(&reply), "{outer}: {reply}");
        }
    }
    let right = "Authorization: Bearer 0123456789abcdef\r\n";
    let body = json!({"data": "from the operator"});
    assert_eq!(text(server.admin, "POST", "/api/broadcast", Some(body), right).0, 200);
    assert_eq!(listener.data(), "from the operator", "and nothing before it");
}

#[test]
fn other_sites_pages_can_not_use_a_port_without_a_key() {
    let server = Server::start();
    let mut listener = server.listen("/sse?topic=a");
    let port = server.admin.port();
    let local = format!("127.0.0.1:{port}");
    let body = r#"{"data":"from a page"}"#;
    for (host, headers) in [
        (local.clone(), "Origin: http://evil.example".to_string()),
        (local.clone(), "Origin: null".into()),
        (local.clone(), format!("Origin: http://127.0.0.1:{}", port ^ 1)),
        (local.clone(), format!("Origin: http://127.0.0.1.evil.example:{port}")),
        (local.clone(), format!("Origin: http://evil.example#{local}")),
        (local.clone(), format!("Origin: http://{local}\r\nOrigin: http://evil.example")),
        (local.clone(), "Origin: http://evil\u{ff}.example".into()),
        (local.clone(), "Origin:".into()),
        // These host names resolve to this host, as in DNS rebinding.
        ("evil.example".into(), String::new()),
        (format!("evil.example:{port}"), format!("Origin: http://evil.example:{port}")),
        (format!("127.0.0.1.evil.example:{port}"), String::new()),
        (format!("localhost.evil.example:{port}"), String::new()),
        (format!("[::1].evil.example:{port}"), String::new()),
        (format!("evil.example@{local}"), String::new()),
        (String::new(), String::new()),
        (format!("{local}\r\nHost: evil.example"), String::new()),
        (format!("evil.example\r\nHost: {local}"), String::new()),
    ] {
        let headers =
            if headers.is_empty() { headers } else { format!("{}\r\n", headers.trim_end()) };
        for (method, path) in
            [("POST", "/api/broadcast"), ("GET", "/api/stats"), ("GET", "/metrics"), ("GET", "/")]
        {
            // A form, or fetch() without preflight, can send this.
            let request = format!(
                "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Type: text/plain\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let (status, reply) = reply(&server, &request);
            assert!([400, 403].contains(&status), "{host:?} {headers:?} {path}: {reply}");
            assert!(!is_secret(&reply), "{reply}");
            assert!(!reply.to_lowercase().contains("access-control-allow"), "{reply}");
        }
    }
    let preflight = format!(
        "OPTIONS /api/publish HTTP/1.1\r\nHost: {local}\r\nOrigin: http://evil.example\r\n\
         Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n"
    );
    let (status, reply) = reply(&server, &preflight);
    assert_eq!(status, 403, "{reply}");
    server.post("/api/broadcast", json!({"data": "from the operator"}));
    assert_eq!(listener.data(), "from the operator", "and nothing before it");
}

#[test]
fn admin_responses_are_neither_cached_nor_sniffed() {
    let server = guarded();
    for (request, status) in [
        ("GET /healthz", 200),
        ("GET /readyz", 200),
        ("GET /", 200),
        ("GET /dashboard/app.js", 200),
        ("GET /dashboard/none.js", 404),
        ("GET /api/stats", 401),
        ("GET /nothing", 401),
        ("POST /healthz", 405),
    ] {
        let head = format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let (found, reply) = reply(&server, &head);
        assert_eq!(found, status, "{request}: {reply}");
        assert_eq!(header(&reply, "x-content-type-options"), Some("nosniff"), "{request}");
        let is_page = status == 200 && (request == "GET /" || request.contains("dashboard"));
        let cache = if is_page { "no-cache" } else { "no-store" };
        assert_eq!(header(&reply, "cache-control"), Some(cache), "{request}");
    }
}
