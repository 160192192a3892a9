//! Tests with real clients: curl, and a browser's EventSource, WebSocket and fetch.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::*;
use serde_json::json;

/// A process that is killed at the end of the test.
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

/// Runs curl with these arguments, and gives up after [`TIMEOUT`].
fn curl(args: &[&str]) -> std::process::Output {
    output_within(Command::new("curl").args(args))
}

#[test]
fn curl_works_as_the_start_up_text_says() {
    let server = Server::start();
    let (client, admin) = (server.client, server.admin);
    let mut listener =
        spawn("curl", &["-sN", &format!("http://{client}/sse?topic=news&user=alice")]);
    server.until_members("news", 1);
    let publish = |path: &str, body: &str| {
        let url = format!("http://{admin}/api/{path}");
        let output = curl(&["-sf", &url, "-d", body]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    assert_eq!(publish("publish", r#"{"topic":"news","data":"hello"}"#)["members"], 1);
    assert_eq!(publish("send", r#"{"user":"alice","data":"hello, alice"}"#)["members"], 1);
    let lines = Lines::of(listener.0.stdout.take().unwrap());
    let data: Vec<String> =
        lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_string)).take(2).collect();
    assert_eq!(data, ["hello", "hello, alice"]);
}

/// Posts with node's fetch, which is a browser's, and reports the status and the error's text of each.
const FETCH: &str = r#"
const [client, admin] = process.argv.slice(1);
const answers = [];
const post = async (url, body, type) => {
  const headers = type === undefined ? {} : { 'Content-Type': type };
  const response = await fetch(url, { method: 'POST', body, headers });
  answers.push([response.status, (await response.json()).error?.message ?? '']);
};
const all = (body) => [
  [body], [new Blob([body])], [new TextEncoder().encode(body)], [new TextEncoder().encode(body).buffer],
  [body, 'application/json'], [body, 'application/x-www-form-urlencoded'], [body, 'application/octet-stream'],
];
(async () => {
  for (const of of all('{"topic":"chat/1","data":1}')) await post(`http://${admin}/api/publish`, ...of);
  for (const of of all('{"n":2}')) await post(`http://${client}/publish?topic=chat/1`, ...of);
  for (const of of all('{"user":"al","topic":"log","id":"00000001:1"}')) await post(`http://${client}/ack`, ...of);
  const form = new FormData();
  form.set('topic', 'chat/1');
  for (const url of [`http://${admin}/api/publish`, `http://${client}/publish?topic=chat/1`, `http://${client}/ack`]) {
    await post(url, form);
  }
  await post(`http://${admin}/api/publish`, '{"topic":"chat/1","data":1}', 'text/html');
  console.log(JSON.stringify(answers));
})();
"#;

#[test]
fn bodies_are_read_as_the_tools_send_them() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "chat/")]);
    let mut stream = server.listen("/stream?topic=chat/1");
    assert_eq!(stream.object()["type"], "welcome");
    let (client, admin) = (server.client.to_string(), server.admin.to_string());
    let output = output_within(Command::new("node").args(["-e", FETCH, &client, &admin]));
    let replies: Vec<(u16, String)> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let statuses: Vec<u16> = replies.iter().map(|(status, _)| *status).collect();
    // The topic `log` has no history, so the server rejects each acknowledgement after it has parsed it.
    let want = [&[200; 14][..], &[400; 7], &[415; 4]].concat();
    assert_eq!(statuses, want, "{replies:?}");
    for (_, error) in &replies[14..21] {
        assert!(error.contains("acknowledge") || error.contains("history"), "{error}");
    }
    for (_, error) in &replies[21..] {
        assert!(error.contains("Content-Type: application/json"), "{error}");
    }
    let mut received = || stream.next_object()["data"].clone();
    for _ in 0..7 {
        assert_eq!(received(), json!(1));
    }
    // The content type decides how the server reads a client's message: as text if the client set no type.
    let (text, bytes) = (json!("{\"n\":2}"), json!("eyJuIjoyfQ=="));
    let want = [&text, &text, &text, &text, &json!({"n": 2}), &text, &bytes];
    for want in want {
        assert_eq!(received(), *want);
    }
    // curl sends everything with the content type of a form.
    let post = |url: &str, body: &str| {
        assert!(curl(&["-sf", url, "-d", body]).status.success(), "{url}");
    };
    post(&format!("http://{admin}/api/publish"), r#"{"topic":"chat/1","data":"curl"}"#);
    assert_eq!(received(), "curl");
    post(&format!("http://{client}/publish?topic=chat/1"), "a=b&c");
    assert_eq!(received(), "a=b&c");
}

/// A page that receives in three ways, publishes, and reports the messages that it received.
const PAGE: &str = r#"<!doctype html><script>
const base = 'http://THRONG', received = {};
const done = () => fetch('/received', { method: 'POST', body: JSON.stringify(received) });
const note = (key, value) => {
  received[key] = value;
  if (['sse', 'named', 'ws', 'poll', 'reply', 'hidden'].every(key => key in received)) done();
};
const source = new EventSource(`${base}/sse?topic=chat/1`);
source.onmessage = event => note('sse', [event.data, event.lastEventId]);
source.addEventListener('tick', event => note('named', event.data));
const listens = new Promise(done => source.onopen = done);
const socket = new WebSocket(`ws://THRONG/ws?user=bob`);
socket.onopen = () => socket.send(JSON.stringify({ type: 'subscribe', id: 1, topic: 'chat/1' }));
socket.onmessage = async event => {
  const message = JSON.parse(event.data);
  if (message.type === 'reply') {
    note('reply', [message, socket.extensions]);
    const since = (await (await fetch(`${base}/poll?topic=chat/1&timeout=0`)).json()).since;
    await listens;
    await fetch(`${base}/publish?topic=chat/1`, { method: 'POST', body: 'two\nlines' });
    await fetch(`${base}/publish?topic=chat/1&event=tick`, { method: 'POST', body: '7' });
    const poll = await (await fetch(`${base}/poll?topic=chat/1&since=${since}`)).json();
    note('poll', poll.messages.length);
    const refused = await fetch(`${base}/publish?topic=closed`, { method: 'POST', body: 'x', headers: { 'X-Preflight': '1' } });
    note('hidden', [refused.status, (await refused.json()).error.code]);
  } else if (message.type === 'message') note('ws', message.data);
};
</script>"#;

/// A browser with an open page and a folder of its own.
struct Browser {
    // It ends before its folder goes.
    _process: Killed,
    _folder: Scratch,
}

impl Browser {
    fn open(name: &str, page: &str) -> Self {
        let folder = Scratch::new(&format!("chromium-{name}"));
        let process = spawn(
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
                &format!("--user-data-dir={}", folder.path().display()),
                page,
            ],
        );
        Browser { _process: process, _folder: folder }
    }
}

#[test]
fn a_browser_receives_by_event_source_websocket_and_poll() {
    let server = Server::with(&[], &[("THRONG_CLIENT_PUBLISH_PREFIXES", "chat/")]);
    let pages = TcpListener::bind("127.0.0.1:0").unwrap();
    let page = format!("http://{}/", pages.local_addr().unwrap());
    let _browser = Browser::open("all", &page);
    let page = PAGE.replace("THRONG", &server.client.to_string());
    let received = serve_until_reported(&pages, &page, |_| ());
    assert_eq!(received["sse"][0], "two\nlines");
    assert!(received["sse"][1].as_str().unwrap().contains(':'), "{received}");
    assert_eq!(received["named"], "7");
    assert_eq!(received["reply"][0]["ok"]["topic"], "chat/1");
    assert!(received["reply"][1].as_str().unwrap().starts_with("permessage-deflate"), "{received}");
    assert!(received["ws"] == "two\nlines" || received["ws"] == "7", "{received}");
    assert_eq!(received["poll"], 2);
    assert_eq!(received["hidden"], json!([403, "forbidden"]));
}

/// A page with alice's inbox, which shows each message once. The page reloads itself three times: once with no
/// message acknowledged, once early, while messages arrive, and once with the first message acknowledged. At the end
/// it reports the messages of each load, and the messages that it has shown.
const INBOX: &str = r#"<!doctype html><script>
const base = 'http://THRONG', events = [], shown = new Map();
const loads = JSON.parse(sessionStorage.loads ?? '[]');
const source = new EventSource(`${base}/sse?user=alice`);
const pause = seconds => new Promise(done => setTimeout(done, seconds * 1000));
source.onmessage = ({ data, lastEventId }) => {
  events.push([data, lastEventId]);
  shown.set(lastEventId, data);
};
(async () => {
  while (events.length < (loads.length < 3 ? 2 : 1)) await pause(0.05);
  if (loads.length === 1) {
    await fetch('/cut');
    while (events.length < 4) await pause(0.05);
  }
  // The time after which the server would deliver again has passed twice. Later loads get what is unread in its order.
  if (loads.length === 0) await pause(2.2);
  sessionStorage.loads = JSON.stringify([...loads, { events, shown: [...shown.values()] }]);
  if (loads.length === 2) {
    await fetch(`${base}/ack`, { method: 'POST', body: JSON.stringify({ user: 'alice', id: events[0][1] }) });
  }
  if (loads.length === 3) fetch('/received', { method: 'POST', body: sessionStorage.loads });
  else location.reload();
})();
</script>"#;

#[test]
fn an_inbox_in_a_browser_shows_each_message_once_until_it_is_read() {
    let settings = [
        ("THRONG_INBOX_ENABLED", "true"),
        ("THRONG_INBOX_REDELIVERY_SECONDS", "1"),
        ("THRONG_TIMEOUTS_SSE_RETRY_MILLISECONDS", "100"),
    ];
    let server = Server::with(&[], &settings);
    let send = |data| server.post("/api/send", json!({"user": "alice", "data": data}));
    let ids = ["one", "two"].map(|data| send(data)["id"].clone());
    let pages = TcpListener::bind("127.0.0.1:0").unwrap();
    let page = format!("http://{}/", pages.local_addr().unwrap());
    let _browser = Browser::open("inbox", &page);
    let page = INBOX.replace("THRONG", &server.client.to_string());
    let loads = serve_until_reported(&pages, &page, |head| {
        if head.starts_with("GET /cut ") {
            server.post("/api/disconnect", json!({"user": "alice"}));
        }
    });
    let (one, two) = (json!(["one", ids[0]]), json!(["two", ids[1]]));
    assert_eq!(loads[0]["events"], json!([one, two]), "it stays open, and nothing is repeated");
    let again = json!([one, two, one, two]);
    assert_eq!(loads[1]["events"], again, "unread: they come again to a new connection");
    assert_eq!(loads[1]["shown"], json!(["one", "two"]), "as the same ones");
    assert_eq!(loads[2]["events"], json!([one, two]), "still unread");
    assert_eq!(loads[3]["events"], json!([two]), "the first was read");
    let (_, cursor) = server.api("GET", "/api/cursors/alice", None);
    assert_eq!((&cursor["acknowledged"], &cursor["given_up"]), (&ids[0], &json!(null)));
}

/// Serves the page until it reports its result. Calls `check_head` with each other request.
fn serve_until_reported(
    pages: &TcpListener,
    page: &str,
    check_head: impl Fn(&str),
) -> serde_json::Value {
    pages.set_nonblocking(true).unwrap();
    // Browsers open connections that they may never use.
    let mut silent: Vec<TcpStream> = Vec::new();
    let mut end = Instant::now() + TIMEOUT;
    loop {
        assert!(Instant::now() < end, "the browser requests nothing more, and has not reported");
        if let Ok((socket, _)) = pages.accept() {
            socket.set_nonblocking(true).unwrap();
            silent.push(socket);
        }
        let speaks = |socket: &TcpStream| socket.peek(&mut [0]).is_ok_and(|bytes| bytes > 0);
        let Some(at) = silent.iter().position(speaks) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let socket = silent.swap_remove(at);
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut stream = Stream::new(socket);
        let head = stream.head();
        end = Instant::now() + TIMEOUT;
        if head.starts_with("POST /received ") {
            let length = header(&head, "content-length").unwrap().parse().unwrap();
            let mut body = vec![0; length];
            stream.reader.read_exact(&mut body).unwrap();
            return serde_json::from_slice(&body).unwrap();
        }
        check_head(&head);
        let body = if head.starts_with("GET / ") { page } else { "" };
        let outcome = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.reader.get_mut().write_all(outcome.as_bytes()).unwrap();
    }
}
