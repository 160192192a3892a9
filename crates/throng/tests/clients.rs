//! Clients that people really have: curl, and a browser's EventSource, WebSocket and fetch.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use support::*;

/// Ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(program: &str, args: &[&str]) -> Killed {
    let child =
        Command::new(program).args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    Killed(child.unwrap_or_else(|error| panic!("{program}: {error}; scripts/test installs it")))
}

#[test]
fn curl_listens_and_publishes_as_the_start_up_text_says() {
    let server = Server::start();
    let (client, admin) = (server.client, server.admin);
    let mut listener =
        spawn("curl", &["-sN", &format!("http://{client}/sse?topic=news&user=alice")]);
    server.until_members("news", 1);
    let publish = |path: &str, body: &str| {
        let url = format!("http://{admin}/api/{path}");
        let output = Command::new("curl").args(["-sf", &url, "-d", body]).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    assert_eq!(publish("publish", r#"{"topic":"news","data":"hello"}"#)["members"], 1);
    assert_eq!(publish("send", r#"{"user":"alice","data":"hello, alice"}"#)["members"], 1);
    let lines = BufReader::new(listener.0.stdout.take().unwrap()).lines();
    let data: Vec<String> = lines
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("data: ").map(str::to_string))
        .take(2)
        .collect();
    assert_eq!(data, ["hello", "hello, alice"]);
}

/// A page that listens in three ways, publishes, and tells what it heard.
const PAGE: &str = r#"<!doctype html><script>
const base = 'http://THRONG', heard = {};
const done = () => fetch('/heard', { method: 'POST', body: JSON.stringify(heard) });
const note = (key, value) => {
  heard[key] = value;
  if (['sse', 'named', 'ws', 'poll', 'reply', 'hidden'].every(key => key in heard)) done();
};
const source = new EventSource(`${base}/sse?topic=chat/1`);
source.onmessage = event => note('sse', [event.data, event.lastEventId]);
source.addEventListener('tick', event => note('named', event.data));
const socket = new WebSocket(`ws://THRONG/ws?user=bob`);
socket.onopen = () => socket.send(JSON.stringify({ type: 'subscribe', id: 1, topic: 'chat/1' }));
socket.onmessage = async event => {
  const message = JSON.parse(event.data);
  if (message.type === 'reply') {
    note('reply', [message, socket.extensions]);
    const since = (await (await fetch(`${base}/poll?topic=chat/1&timeout=0`)).json()).since;
    await fetch(`${base}/publish?topic=chat/1`, { method: 'POST', body: 'two\nlines' });
    await fetch(`${base}/publish?topic=chat/1&event=tick`, { method: 'POST', body: '7' });
    const poll = await (await fetch(`${base}/poll?topic=chat/1&since=${since}`)).json();
    note('poll', poll.messages.length);
    const refused = await fetch(`${base}/publish?topic=closed`, { method: 'POST', body: 'x', headers: { 'X-Preflight': '1' } });
    note('hidden', [refused.status, (await refused.json()).error.code]);
  } else if (message.type === 'message') note('ws', message.data);
};
</script>"#;

#[test]
fn a_browser_listens_by_event_source_websocket_and_poll() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "chat/")]);
    let pages = TcpListener::bind("127.0.0.1:0").unwrap();
    let page = format!("http://{}/", pages.local_addr().unwrap());
    let folder = std::env::temp_dir().join(format!("throng-chromium-{}", std::process::id()));
    let _chromium = spawn(
        "chromium",
        &[
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--remote-debugging-port=0",
            &format!("--user-data-dir={}", folder.display()),
            &page,
        ],
    );
    let heard = serve_until_heard(&pages, &PAGE.replace("THRONG", &server.client.to_string()));
    assert_eq!(heard["sse"][0], "two\nlines");
    assert!(heard["sse"][1].as_str().unwrap().contains(':'), "{heard}");
    assert_eq!(heard["named"], "7");
    assert_eq!(heard["reply"][0]["ok"]["topic"], "chat/1");
    assert!(heard["reply"][1].as_str().unwrap().starts_with("permessage-deflate"), "{heard}");
    assert!(heard["ws"] == "two\nlines" || heard["ws"] == "7", "{heard}");
    assert_eq!(heard["poll"], 2);
    assert_eq!(heard["hidden"], json!([403, "forbidden"]));
    let _ = std::fs::remove_dir_all(folder);
}

/// Gives the page to whoever asks, until it reports.
fn serve_until_heard(pages: &TcpListener, page: &str) -> serde_json::Value {
    loop {
        let (socket, _) = pages.accept().unwrap();
        let mut stream = Stream::new(socket);
        // Browsers open connections that they may never use.
        let head = stream.head_if_any();
        if head.is_empty() {
            continue;
        }
        if head.starts_with("POST /heard ") {
            let length = header(&head, "content-length").unwrap().parse().unwrap();
            let mut body = vec![0; length];
            stream.reader.read_exact(&mut body).unwrap();
            return serde_json::from_slice(&body).unwrap();
        }
        let body = if head.starts_with("GET / ") { page } else { "" };
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.reader.get_mut().write_all(answer.as_bytes()).unwrap();
    }
}
