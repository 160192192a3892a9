//! Users by a header of a trusted proxy: the recipe of docs/security.md with a real nginx and a small login, and
//! clients that forge the header.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    Scratch, Server, Stream, TIMEOUT, connect, free_port, header, json as request,
};
use serde_json::{Value, json};

/// Starts a server that trusts these proxies.
fn serve(proxies: &str) -> Server {
    let settings = [
        ("THRONG_CLIENT_TRUSTED_PROXIES", proxies),
        ("THRONG_CLIENT_USER_HEADER", "X-Throng-User"),
        ("THRONG_CLIENT_LOGIN", "refuse"),
        ("THRONG_CLIENT_PUBLISH_PREFIXES", "*"),
        ("THRONG_INBOX_ENABLED", "true"),
    ];
    Server::with(&[], &settings)
}

/// Starts a login: a cookie names the user, and `guest` logs in without a user.
fn login() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = Stream::new(socket);
                let head = stream.head_if_any();
                let cookie = header(&head, "cookie").and_then(|it| it.strip_prefix("session="));
                let (status, user) = match cookie {
                    Some("guest") => ("200 OK", String::new()),
                    Some(user) => ("200 OK", format!("X-User: {user}\r\n")),
                    None => ("401 Unauthorized", String::new()),
                };
                stream.send(&format!(
                    "HTTP/1.1 {status}\r\n{user}Content-Length: 0\r\nConnection: close\r\n\r\n"
                ));
            });
        }
    });
    address
}

/// nginx with the configuration of the documentation; killed at the end of the test.
struct Nginx {
    child: Child,
    folder: Scratch,
    address: SocketAddr,
}

impl Nginx {
    fn start(server: &Server) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
        let block =
            page.split("```nginx\n").find(|text| text.contains("auth_request /who")).unwrap();
        let recipe = block.split("```").next().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let replace = |text: String, from: &str, to: String| {
            assert_eq!(text.matches(from).count(), 1, "{from}");
            text.replace(from, &to)
        };
        // This address comes first: `free_port` may give the port 30001, which begins like it.
        let recipe = replace(recipe.into(), "127.0.0.1:3000", login().to_string());
        let recipe = replace(recipe, "127.0.0.1:8000", server.client.to_string());
        let recipe = replace(recipe, "listen 80;", format!("listen {address};"));
        let folder = Scratch::new("user-header");
        let text = format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log error.log;\n\
             events {{ worker_connections 256; }}\nhttp {{\naccess_log off;\n\
             client_body_temp_path body;\nproxy_temp_path proxy;\nfastcgi_temp_path fastcgi;\n\
             uwsgi_temp_path uwsgi;\nscgi_temp_path scgi;\n{recipe}}}\n"
        );
        folder.write("nginx.conf", &text);
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).args(["-c", "nginx.conf", "-e", "error.log"]);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("nginx: {error}: scripts/test installs the Debian package nginx")
        });
        let mut nginx = Nginx { child, folder, address };
        let end = Instant::now() + TIMEOUT;
        while std::net::TcpStream::connect(address).is_err() {
            let ended = nginx.child.try_wait().unwrap();
            let log = fs::read_to_string(nginx.folder.path().join("error.log"));
            let log = log.unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < end, "{ended:?}: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        nginx
    }

    /// Opens a request with these headers. Returns its head and its stream.
    fn open(&self, target: &str, headers: &str) -> (String, Stream) {
        let mut stream = Stream::new(connect(self.address));
        stream.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n{headers}\r\n"));
        (stream.head(), stream)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const FORGED: &str = "X-Throng-User: mallory\r\nx-throng-user: mallory\r\nX_Throng_User: mallory\r\n\
                      X-User: mallory\r\n";

#[test]
fn the_recipe_with_nginx_lets_in_whom_the_login_knows() {
    let server = serve("127.0.0.1");
    let nginx = Nginx::start(&server);
    // Each transport, with the cookie and forged headers.
    let cookie = format!("Cookie: session=alice\r\n{FORGED}");
    for target in ["/sse", "/stream", "/sse?user=alice"] {
        let (head, _stream) = nginx.open(target, &cookie);
        assert!(head.starts_with("HTTP/1.1 200 "), "{target}: {head}");
        let of = |user: &str| server.api("GET", &format!("/api/users/{user}"), None).1;
        server.until("alice is there", |_| of("alice").to_string().contains("transport"));
        assert!(!of("mallory").to_string().contains("transport"), "{}", of("mallory"));
        server.post("/api/disconnect", json!({"user": "alice"}));
    }
    let url = format!("ws://{}/ws", nginx.address);
    let mut ws = tungstenite::client::IntoClientRequest::into_client_request(url.as_str()).unwrap();
    ws.headers_mut().insert("cookie", "session=alice".parse().unwrap());
    ws.headers_mut().insert("x-throng-user", "mallory".parse().unwrap());
    let (mut socket, _) = tungstenite::client(ws, connect(nginx.address)).unwrap();
    let welcome = crate::support::receive(&mut socket);
    assert_eq!(welcome["users"], json!(["alice"]), "{welcome}");
    let reply =
        crate::support::command(&mut socket, json!({"type": "login", "id": 1, "user": "mallory"}));
    assert_eq!(reply["error"]["code"], "forbidden", "{reply}");
    // The message has its sender.
    let post = |target: &str, headers: &str| {
        request(nginx.address, "POST", target, Some(json!("hi")), headers)
    };
    let mut member = server.listen("/stream?topic=room");
    member.next_object();
    assert_eq!(post("/publish?topic=room", &cookie).0, 200);
    assert_eq!(member.next_object()["sender"], "alice");
    let call = |method: &str, target: &str, body: Option<Value>, headers: &str| {
        request(nginx.address, method, target, body, headers)
    };
    // The request may not name another user in any place.
    for (method, target, body) in [
        ("GET", "/sse?user=mallory", None),
        ("GET", "/poll?user=alice&user=mallory&timeout=0", None),
        ("GET", "/stream?%75ser=mallory", None),
        ("POST", "/publish?topic=room&user=mallory", Some(json!("x"))),
        ("GET", "/history?user=mallory", None),
        ("GET", "/history?topic=@mallory", None),
        ("POST", "/ack", Some(json!({"user": "mallory", "id": "5f3a91c2:1"}))),
        ("POST", "/ack?user=alice", Some(json!({"topic": "@mallory", "id": "5f3a91c2:1"}))),
    ] {
        let (status, error) = call(method, target, body, &cookie);
        let code = error["error"]["code"].as_str().unwrap_or_default().to_string();
        assert!(
            status == 403 && code == "not_your_user" || status == 400 && code == "bad_user",
            "{target}: {status} {error}"
        );
    }
    // Phoenix, by its socket and its long poll.
    let (status, reply) = call("GET", "/socket/longpoll?vsn=2.0.0&user=mallory", None, &cookie);
    assert!(status == 403 || reply["status"] == 403, "{status} {reply}");
    // nginx rejects requests without a login. Guests have no user.
    let (head, _) = nginx.open("/sse", FORGED);
    assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
    let guest = format!("Cookie: session=guest\r\n{FORGED}");
    let (head, mut stream) = nginx.open("/stream", &guest);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(stream.next_object()["users"], json!([]), "nobody");
    assert_eq!(call("GET", "/poll?user=alice&timeout=0", None, &guest).0, 403);
    assert_eq!(call("GET", "/history?user=alice", None, &guest).0, 403);
}

#[test]
fn only_a_trusted_proxy_is_believed() {
    // The tests connect from an address that is not this proxy's.
    let server = serve("192.0.2.1");
    let get = |target: &str, headers: &str| request(server.client, "GET", target, None, headers);
    let header = "X-Throng-User: alice\r\n";
    assert_eq!(get("/poll?user=alice&timeout=0", header).0, 403);
    assert_eq!(get("/poll?user=alice&timeout=0", "").0, 403);
    let mut stream = Stream::new(server.connect());
    stream.send(&format!("GET /stream HTTP/1.1\r\nHost: t\r\n{header}\r\n"));
    stream.head();
    assert_eq!(stream.next_object()["users"], json!([]));

    let server = serve("127.0.0.0/8");
    let get = |target: &str, headers: &str| request(server.client, "GET", target, None, headers);
    assert_eq!(get("/poll?user=alice&timeout=0", header).0, 200);
    assert_eq!(get("/poll?user=bob&timeout=0", header).0, 403);
    // If a proxy adds its header to the client's, the server can't tell which is the proxy's.
    let two = format!("{header}X-Throng-User: bob\r\n");
    assert_eq!(get("/poll?timeout=0&topic=a", &two).0, 400);
    for wrong in ["alice\u{7f}", "\u{1}"] {
        let (status, _) = get("/poll?timeout=0&topic=a", &format!("X-Throng-User: {wrong}\r\n"));
        assert_eq!(status, 400, "{wrong:?}");
    }
    let (status, _) = get("/poll?timeout=0&topic=a", "X-Throng-User: \r\n");
    assert_eq!(status, 200, "no user");
}
