//! Security headers on both ports: what browsers and proxies may do with a response.

use crate::support::*;

/// Returns the head of the response to a request on one of the ports.
fn head(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = Stream::new(connect(address));
    stream.send(request);
    stream.head()
}

fn get(address: std::net::SocketAddr, target: &str) -> String {
    head(address, &format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}

/// Header names with the text that each value must contain.
type ExpectedHeaders = &'static [(&'static str, &'static str)];

fn check(what: &str, head: &str, expected: ExpectedHeaders) {
    for (name, part) in expected {
        let values: Vec<&str> = head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .filter(|(of, _)| of.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect();
        // Exactly once: clients disagree on which of several values counts.
        assert!(values.len() == 1 && values[0].contains(part), "{what}: {name}: {part} in\n{head}");
    }
}

const JSON: ExpectedHeaders =
    &[("x-content-type-options", "nosniff"), ("cache-control", "no-store")];

const PAGE: ExpectedHeaders = &[
    ("x-content-type-options", "nosniff"),
    ("content-security-policy", "frame-ancestors 'none'"),
    ("content-security-policy", "base-uri 'none'"),
    ("content-security-policy", "default-src"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
];

const STREAM: ExpectedHeaders = &[
    ("x-content-type-options", "nosniff"),
    ("x-accel-buffering", "no"),
    ("cache-control", "no-store, no-transform"),
];

/// Pages of the admin port that a browser shows by themselves.
const SHOWN: ExpectedHeaders = &[
    ("x-content-type-options", "nosniff"),
    ("content-security-policy", "frame-ancestors 'none'"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
];

#[test]
fn replies_on_the_client_port_say_what_browsers_and_proxies_may_do() {
    let settings = [("THRONG_CLIENT_STATUS_PAGE", "true"), ("THRONG_CLIENT_PUBLISH_PREFIXES", "*")];
    let server = Server::with(&["--demo"], &settings);
    for target in ["/sse?topic=a", "/stream?topic=a"] {
        check(target, &get(server.client, target), STREAM);
    }
    for target in ["/", "/status", "/chat.js", "/chat.css"] {
        check(target, &get(server.client, target), PAGE);
    }
    for target in [
        "/healthz",
        "/status?format=json",
        "/poll?topic=a&timeout=0",
        "/presence?topic=room:a",
        "/presence?topic=a",
        "/history?topic=room:a",
        "/socket/longpoll?vsn=2.0.0",
        "/nothing",
        "/sse",
        "/poll?topic=",
        "/ws",
        "/publish",
    ] {
        check(target, &get(server.client, target), JSON);
    }
    let post = "POST /publish?topic=a HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\n7";
    let reply = head(server.client, post);
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    check("publish", &reply, JSON);
}

#[test]
fn replies_on_the_admin_port_are_framed_by_no_page() {
    let server = Server::start();
    for target in ["/", "/dashboard/app.js", "/dashboard/style.css"] {
        let head = get(server.admin, target);
        check(target, &head, PAGE);
        check(target, &head, SHOWN);
    }
    for target in ["/healthz", "/api/stats", "/metrics", "/api/nothing", "/api/openapi.json"] {
        let head = get(server.admin, target);
        check(target, &head, JSON);
        check(target, &head, SHOWN);
    }
    let live = get(server.admin, "/api/live");
    check("/api/live", &live, STREAM);
    check("/api/live", &live, SHOWN);
    let body = "{\"topic\":\"a\",\"data\":1}";
    let length = body.len();
    let post = format!(
        "POST /api/publish HTTP/1.1\r\nHost: {}\r\nContent-Length: {length}\r\n\r\n{body}",
        server.admin
    );
    check("publish", &head(server.admin, &post), JSON);
}
