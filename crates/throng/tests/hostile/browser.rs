//! Pages show names and messages of users as text only, and pages of other sites can't use the server. Tested in
//! Chromium.

use std::io::{BufRead, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use super::*;

fn scenario(name: &str) {
    run(&Server::with(&["--demo"], &[]), "xss.cjs", name, json!({}));
}

fn run(server: &Server, file: &str, name: &str, mut given: serde_json::Value) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    given["client"] = json!(server.client.to_string());
    given["admin"] = json!(server.admin.to_string());
    let mut node = Command::new("node");
    let output = output_within(node.args([file, name, &given.to_string()]).current_dir(folder));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}:\n{errors}");
}

#[test]
fn the_dashboard_runs_no_script_from_names_or_messages() {
    scenario("dashboard");
}

#[test]
fn the_chat_runs_no_script_from_names_or_messages() {
    scenario("chat");
}

/// A browser sends a preflight before most requests of another site's page, but not before those that a form could
/// send: plain text, a form's content type, bytes without a type.
#[test]
fn pages_of_other_sites_publish_nothing_on_either_port() {
    // The server's configuration has this port, which the pages come from.
    let site = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = site.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in site.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve_page(socket));
        }
    });
    let origin = format!("http://localhost:{port}");
    let settings =
        [("THRONG_CLIENT_CORS_ORIGINS", &*origin), ("THRONG_CLIENT_PUBLISH_PREFIXES", "room:")];
    let server = Server::with(&[], &settings);
    run(&server, "foreign.cjs", "pages", json!({"port": port}));
}

/// Responds to one request with the page from which the browser posts.
fn serve_page(socket: TcpStream) {
    let _ = socket.set_read_timeout(Some(TIMEOUT));
    let mut stream = Stream::new(socket);
    let mut line = String::new();
    // The browser may connect ahead and send nothing.
    while line != "\r\n" {
        line.clear();
        if !stream.reader.read_line(&mut line).is_ok_and(|read| read > 0) {
            return;
        }
    }
    let page = "<!doctype html><title>t</title><iframe name=sink></iframe>";
    let _ = write!(
        stream.reader.get_mut(),
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{page}",
        page.len()
    );
}

/// Sends a page's requests without a browser, with the header that names the page's origin: the server rejects foreign
/// origins with any content type.
#[test]
fn a_foreign_origin_is_refused_whatever_the_body_is_called() {
    let origin = ("THRONG_CLIENT_CORS_ORIGINS", "http://good.example");
    let server = Server::with(&[], &[origin, ("THRONG_CLIENT_PUBLISH_PREFIXES", "room:")]);
    let mut listener = server.listen("/sse?topic=room:a");
    let post = |target: &str, headers: &str, body: &str| {
        let mut stream = Stream::new(server.connect());
        let length = body.len();
        stream.send(&format!(
            "POST {target} HTTP/1.1\r\nHost: t\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        ));
        stream.read_reply()
    };
    let media = [
        "",
        "Content-Type: text/plain;charset=UTF-8\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: application/json\r\n",
    ];
    for media in media {
        for origin in ["http://evil.example", "null", "http://good.example.evil.example", ""] {
            for target in ["/publish?topic=room:a", "/ack?user=al&id=00000001:1"] {
                let headers = format!("{media}Origin: {origin}\r\n");
                let (status, reply) = post(target, &headers, "");
                assert_eq!(status, 403, "{target} {headers}: {reply}");
                assert!(reply.contains("bad_origin"), "{reply}");
                // The server rejects the request even before the body has arrived.
                let head = format!(
                    "POST {target} HTTP/1.1\r\nHost: t\r\n{headers}Content-Length: 9\r\n\r\n"
                );
                assert_eq!(statuses(&server, head.as_bytes()), [403], "{target} {headers}");
            }
        }
        let headers = format!("{media}Origin: http://good.example\r\n");
        assert_eq!(post("/publish?topic=room:a", &headers, "7").0, 200);
        assert_eq!(listener.data(), "7", "and nothing before it");
    }
    // Programs send no origin.
    assert_eq!(post("/publish?topic=room:a", "", "8").0, 200);
    assert_eq!(listener.data(), "8");
}
