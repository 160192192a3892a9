//! Behind a real nginx: as a TCP proxy that sends the PROXY protocol, and as an HTTP proxy that names the client in a
//! header.

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::*;
use serde_json::json;

const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";
const HINT: &str = "scripts/test installs the Debian packages nginx and libnginx-mod-stream";

/// Connections of clients and of the proxy come from different loopback addresses.
const PROXY: &str = "127.0.0.1";
const CLIENT: &str = "127.0.0.5";

/// From nginx's documentation. It keeps an earlier header of the client in front.
const FORWARDED: &str = "
  map $remote_addr $forwarded_for {
    ~^[0-9.]+$ \"for=$remote_addr\";
    ~^[0-9A-Fa-f:.]+$ \"for=\\\"[$remote_addr]\\\"\";
    default \"for=unknown\";
  }
  map $http_forwarded $forwarded {
    default \"$http_forwarded, $forwarded_for\";
    \"\" $forwarded_for;
  }";

/// How nginx passes on its client's address.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    ProxyProtocol,
    ForwardedFor,
    Forwarded,
}

impl How {
    /// The value of client.proxy_header.
    fn name(self) -> &'static str {
        match self {
            How::ProxyProtocol => "proxy-protocol",
            How::ForwardedFor => "x-forwarded-for",
            How::Forwarded => "forwarded",
        }
    }

    /// Returns the configuration of a proxy that listens here and forwards there.
    fn configuration(self, listen: &[SocketAddr], upstream: SocketAddr) -> String {
        let listen: String = listen.iter().map(|it| format!("    listen {it};\n")).collect();
        let header = match self {
            How::ProxyProtocol => {
                return format!(
                    "load_module {MODULE};\nevents {{ worker_connections 256; }}\nstream {{\n  server {{\n{listen}    \
                     proxy_bind {PROXY};\n    proxy_pass {upstream};\n    proxy_protocol on;\n  }}\n}}\n"
                );
            }
            How::ForwardedFor => "X-Forwarded-For $proxy_add_x_forwarded_for",
            How::Forwarded => "Forwarded $forwarded",
        };
        format!(
            "events {{ worker_connections 256; }}\nhttp {{\n  access_log off;\n  client_body_temp_path body;\n  \
             proxy_temp_path proxy;\n  fastcgi_temp_path fastcgi;\n  uwsgi_temp_path uwsgi;\n  scgi_temp_path \
             scgi;{FORWARDED}\n  server {{\n{listen}    location / {{\n      proxy_bind {PROXY};\n      proxy_pass \
             http://{upstream};\n      proxy_http_version 1.1;\n      proxy_set_header Upgrade $http_upgrade;\n      \
             proxy_set_header Connection $http_connection;\n      proxy_set_header {header};\n      proxy_buffering \
             off;\n    }}\n  }}\n}}\n"
        )
    }
}

/// nginx in one process; killed at the end of the test.
struct Nginx {
    child: Child,
    folder: Scratch,
    v4: SocketAddr,
    v6: SocketAddr,
}

impl Nginx {
    fn start(how: How, server: &Server) -> Self {
        Nginx::before(how, server.client)
    }

    /// Starts nginx in front of this port.
    fn before(how: How, upstream: SocketAddr) -> Self {
        assert!(Path::new(MODULE).exists(), "{MODULE} is missing: {HINT}");
        let port = free_port();
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), port);
        let (v4, v6) = (at("127.0.0.1"), at("::1"));
        let folder = Scratch::new("nginx");
        let process = "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log error.log;\n";
        // nginx loads modules before its other directives.
        let text = how.configuration(&[v4, v6], upstream).replacen(
            "events",
            &format!("{process}events"),
            1,
        );
        folder.write("nginx.conf", &text);
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).args(["-c", "nginx.conf", "-e", "error.log"]);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("nginx: {error}: {HINT}"));
        let mut nginx = Nginx { child, folder, v4, v6 };
        let end = Instant::now() + TIMEOUT;
        while TcpStream::connect(v4).is_err() {
            let ended = nginx.child.try_wait().unwrap();
            let log = fs::read_to_string(nginx.folder.path().join("error.log"));
            let log = log.unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < end, "{ended:?}: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// curl with a stream that stays open, from a chosen address; killed at the end of the test.
struct Curl(Child);

impl Curl {
    fn open(from: &str, url: &str, headers: &[&str]) -> Self {
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--max-time",
            &TIMEOUT.as_secs().to_string(),
            "--no-buffer",
            "--globoff",
            "--noproxy",
            "*",
            "--interface",
            from,
            url,
        ]);
        for header in headers {
            command.args(["--header", header]);
        }
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        Curl(child.unwrap_or_else(|error| panic!("curl: {error}: scripts/test installs it")))
    }

    /// Reads until this text has arrived.
    fn until(&mut self, text: &str) {
        let (mut all, mut buffer) = (Vec::new(), [0; 1024]);
        let output = self.0.stdout.as_mut().unwrap();
        while !String::from_utf8_lossy(&all).contains(text) {
            let count = output.read(&mut buffer).unwrap();
            assert!(count > 0, "{text:?} is not in {:?}", String::from_utf8_lossy(&all));
            all.extend(&buffer[..count]);
        }
    }
}

impl Drop for Curl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(how: How, more: &[(&str, &str)]) -> Server {
    let settings =
        [("THRONG_CLIENT_TRUSTED_PROXIES", PROXY), ("THRONG_CLIENT_PROXY_HEADER", how.name())];
    Server::with(&["--shards", "2"], &[&settings, more].concat())
}

/// Returns the address that the server has for a user, without the port.
fn address(server: &Server, user: &str) -> String {
    let mut found = String::new();
    server.until("the user is connected", |server| {
        let (_, reply) = server.api("GET", &format!("/api/users/{user}"), None);
        found = reply["connections"][0]["address"].as_str().unwrap_or_default().to_string();
        !found.is_empty()
    });
    match found.parse::<SocketAddr>() {
        Ok(address) => address.ip().to_string(),
        Err(_) => found,
    }
}

fn clients_are_where_they_come_from(how: How) {
    let server = serve(how, &[]);
    let nginx = Nginx::start(how, &server);
    // The server ignores headers that the client itself sends.
    let forged = ["X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1"];
    let url = |at: SocketAddr, user: &str| format!("http://{at}/sse?topic=a&user={user}");
    let mut al = Curl::open(CLIENT, &url(nginx.v4, "al"), &forged);
    let mut bo = Curl::open("::1", &url(nginx.v6, "bo"), &[]);
    assert_eq!((&*address(&server, "al"), &*address(&server, "bo")), (CLIENT, "::1"));
    server.publish("a", json!("through nginx"));
    al.until("data: through nginx\n");
    bo.until("data: through nginx\n");
    // A WebSocket.
    let socket = TcpStream::connect(nginx.v6).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let url = format!("ws://{}/ws?user=carol&topic=a", nginx.v6);
    let (mut socket, _) = tungstenite::client(url, socket).unwrap();
    assert_eq!(receive(&mut socket)["type"], "welcome");
    assert_eq!(address(&server, "carol"), "::1");
    server.publish("a", json!("and again"));
    while receive(&mut socket)["data"] != "and again" {}
}

fn limits_are_of_each_client(how: How) {
    let limit = [("THRONG_LIMITS_CONNECTIONS_PER_ADDRESS_MAX", "2")];
    let server = serve(how, &limit);
    let nginx = Nginx::start(how, &server);
    let url = |user: &str| format!("http://{}/sse?topic=a&user={user}", nginx.v4);
    let _open = [Curl::open(CLIENT, &url("al"), &[]), Curl::open(CLIENT, &url("bo"), &[])];
    assert_eq!((&*address(&server, "al"), &*address(&server, "bo")), (CLIENT, CLIENT));
    let mut third = Curl::open(CLIENT, &url("carol"), &[]);
    third.until("\"error\"");
    let _other = Curl::open("127.0.0.6", &url("dan"), &[]);
    assert_eq!(address(&server, "dan"), "127.0.0.6");
    assert_eq!(server.api("GET", "/api/users/carol", None).1["count"].as_u64().unwrap_or(0), 0);
}

#[test]
fn a_proxy_of_connections_says_by_the_proxy_protocol_whose_they_are() {
    clients_are_where_they_come_from(How::ProxyProtocol);
    limits_are_of_each_client(How::ProxyProtocol);
}

#[test]
fn a_proxy_of_requests_says_by_x_forwarded_for_whose_they_are() {
    clients_are_where_they_come_from(How::ForwardedFor);
    limits_are_of_each_client(How::ForwardedFor);
}

#[test]
fn a_proxy_of_requests_says_by_forwarded_whose_they_are() {
    clients_are_where_they_come_from(How::Forwarded);
    limits_are_of_each_client(How::Forwarded);
}

#[test]
fn a_proxy_that_says_nothing_gets_an_error() {
    // nginx speaks HTTP where the server expects the PROXY protocol first.
    let server = serve(How::ProxyProtocol, &[]);
    let nginx = Nginx::start(How::ForwardedFor, &server);
    let mut curl = Curl::open(CLIENT, &format!("http://{}/sse?topic=a", nginx.v4), &[]);
    curl.until("bad_proxy_header");
}

/// nginx passes TLS through without decrypting it. It sends the PROXY protocol's header before the TLS bytes.
#[test]
fn a_proxy_that_passes_tls_through_says_whose_connections_are() {
    let authority = crate::support::tls::Authority::new();
    let how = How::ProxyProtocol;
    let server = authority.server(
        &["--shards", "2"],
        &[("THRONG_CLIENT_TRUSTED_PROXIES", PROXY), ("THRONG_CLIENT_PROXY_HEADER", how.name())],
    );
    let nginx = Nginx::before(how, server.client_tls.unwrap());
    let port = nginx.v4.port();
    let ca = authority.path("ca.pem").display().to_string();
    let mut command = Command::new("curl");
    command.args(["-sN", "--noproxy", "*", "--max-time", &TIMEOUT.as_secs().to_string()]);
    command.args(["--interface", CLIENT, "--cacert", &ca]);
    command.arg(format!("https://localhost:{port}/sse?topic=a&user=al"));
    command.args(["--resolve", &format!("localhost:{port}:127.0.0.1")]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut al = Curl(child.unwrap_or_else(|error| panic!("curl: {error}: {HINT}")));
    assert_eq!(address(&server, "al"), CLIENT);
    server.publish("a", json!("through nginx, unread"));
    al.until("data: through nginx, unread\n");
}
