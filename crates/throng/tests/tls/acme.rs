//! Certificates that the server orders itself, from Pebble, the test authority of Let's Encrypt.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::tls::Authority;
use crate::support::*;

const HOST: &str = "push.example.com";

/// The log's words for an order that failed.
const FAILED: &str = "the certificate could not be obtained";

/// Starts a name server for Pebble, for which each host has the address 127.0.0.1. It ends with the process.
fn name_server() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve_names(socket));
        }
    });
    address
}

/// Replies to the queries on a connection, which have their length in front (RFC 1035, 4.2.2).
fn serve_names(mut socket: TcpStream) -> Option<()> {
    loop {
        let mut length = [0; 2];
        socket.read_exact(&mut length).ok()?;
        let mut query = vec![0; u16::from_be_bytes(length).into()];
        socket.read_exact(&mut query).ok()?;
        let reply = reply(&query)?;
        let length = u16::try_from(reply.len()).ok()?.to_be_bytes();
        socket.write_all(&[&length, &reply[..]].concat()).ok()?;
    }
}

/// A reply with 127.0.0.1 for type A, and with nothing for other types (RFC 1035, 4.1).
fn reply(query: &[u8]) -> Option<Vec<u8>> {
    let name = query.get(12..)?.iter().position(|byte| *byte == 0)?;
    let entry = query.get(12..12 + name + 5)?;
    let is_a = entry[name + 1..name + 3] == [0, 1];
    let mut reply = query[..2].to_vec();
    reply.extend([0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
    reply.extend(entry);
    if is_a {
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    Some(reply)
}

/// A running Pebble; killed at the end of the test.
struct Pebble {
    child: Child,
    directory: String,
}

impl Pebble {
    /// Starts Pebble. It verifies hosts at `tls_port`, and signs certificates that are valid for `seconds`.
    fn start(authority: &Authority, folder: &Path, tls_port: u16, seconds: u64) -> Self {
        Pebble::for_customers(authority, folder, (tls_port, seconds), &[])
    }

    /// Like [`Pebble::start`], but only for customers with these ids and keys, if there are any.
    fn for_customers(
        authority: &Authority,
        folder: &Path,
        (tls_port, seconds): (u16, u64),
        customers: &[(&str, &str)],
    ) -> Self {
        let binary = std::env::var_os("TEST_GO_PEBBLE");
        let binary = binary.expect("TEST_GO_PEBBLE, which scripts/test sets");
        let port = free_port();
        let config = serde_json::json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{port}"), "managementListenAddress": "",
            "certificate": authority.path("server.pem"), "privateKey": authority.path("server.key"),
            "httpPort": 0, "tlsPort": tls_port, "ocspResponderURL": "",
            "externalAccountBindingRequired": !customers.is_empty(),
            "externalAccountMACKeys": customers.iter().copied().collect::<BTreeMap<_, _>>(),
            "profiles": {"default": {"description": "of tests", "validityPeriod": seconds}},
        }});
        let path = folder.join("pebble.json");
        std::fs::write(&path, config.to_string()).unwrap();
        let mut command = Command::new(binary);
        command.arg("-config").arg(path).arg("-dnsserver").arg(name_server().to_string());
        command.envs([("PEBBLE_VA_NOSLEEP", "1"), ("PEBBLE_WFE_NONCEREJECT", "0")]);
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let mut lines = Lines::of(child.stdout.take().unwrap());
        lines
            .find(|line| line.contains("Listening on"))
            .expect("the line that says that it listens");
        std::thread::spawn(move || lines.for_each(drop));
        Pebble { child, directory: format!("https://localhost:{port}/dir") }
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server with a configuration file, and its log.
struct Node {
    server: Server,
    folder: Scratch,
    /// The configuration without ACME.
    config: String,
}

impl Node {
    fn start(authority: &Authority) -> Self {
        let folder = Scratch::new("acme");
        let config = format!(
            "[client]\nlisten = \"127.0.0.1:0\"\nlisten_tls = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [tls]\ncertificate_file = {:?}\nkey_file = {:?}\n",
            authority.path("server.pem"),
            authority.path("server.key")
        );
        folder.write("throng.toml", &config);
        let server = Node::serve(&folder);
        Node { server, folder, config }
    }

    fn serve(folder: &Scratch) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["serve", "--shards", "1"]);
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        Server::run_in(folder.path(), command, &[], log.into())
    }

    fn tls_port(&self) -> u16 {
        self.server.client_tls.unwrap().port()
    }

    /// Makes the server order certificates at this authority from now on.
    fn order_at(&self, authority: &Authority, directory: &str) {
        self.order(authority, directory, "acme");
    }

    /// Like [`Node::order_at`], with this folder for the account and the certificate.
    fn order(&self, authority: &Authority, directory: &str, folder: &str) {
        self.order_with(authority, directory, folder, "");
    }

    /// Like [`Node::order`], with more lines in `[tls]`.
    fn order_with(&self, authority: &Authority, directory: &str, folder: &str, lines: &str) {
        let more = format!(
            "acme_hosts = [\"{HOST}\", \"b.example.com\"]\nacme_directory = {directory:?}\nacme_terms_agreed = true\n\
             acme_contacts = [\"mailto:ops@example.com\"]\nacme_dir = {folder:?}\nacme_ca_file = {:?}\n",
            authority.path("ca.pem")
        );
        self.folder.write("throng.toml", &(self.config.clone() + &more + lines));
        self.server.signal("-HUP");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Waits until the log has a text.
    fn until_logged(&self, text: &str) {
        self.server.until(text, |_| {
            let log = self.log();
            assert!(text == FAILED || !log.contains(FAILED), "{log}");
            log.contains(text)
        });
    }

    /// Waits until clients get a certificate for which `is_so` is true, while no order fails.
    fn until_certificate(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let failures = |log: &str| log.matches(FAILED).count();
        let before = failures(&self.log());
        self.server.until(what, |_| {
            let log = self.log();
            assert_eq!(failures(&log), before, "{log}");
            is_so(&self.certificate())
        });
    }

    /// Returns OpenSSL's description of the certificate that a client of this host gets.
    fn certificate(&self) -> String {
        let port = self.tls_port();
        let line = format!(
            "openssl s_client -connect 127.0.0.1:{port} -servername {HOST} </dev/null 2>/dev/null \
             | openssl x509 -noout -issuer -serial -ext subjectAltName"
        );
        let output = output_within(Command::new("sh").args(["-c", &line]));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn a_certificate_is_ordered_stored_and_used_by_the_next_process() {
    let authority = Authority::new();
    let mut node = Node::start(&authority);
    let port = node.tls_port();
    let pebble = Pebble::start(&authority, node.folder.path(), port, 90 * 86_400);
    assert!(!node.certificate().contains("Pebble"), "{}", node.certificate());
    node.order_at(&authority, &pebble.directory);
    node.until_logged("the new certificate is in use");
    let certificate = node.certificate();
    assert!(certificate.contains("Pebble Intermediate CA"), "{certificate}");
    assert!(certificate.contains(HOST) && certificate.contains("b.example.com"), "{certificate}");
    // Clients of other hosts get the certificate from the file.
    let mut stream = authority.connect(node.server.client_tls.unwrap());
    let reply = crate::support::tls::exchange(&mut stream, super::HEALTHY);
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    let (_, list) = node.server.api("GET", "/api/certificates", None);
    assert_eq!(list["certificates"][1]["name"], HOST, "{list}");
    assert!([89, 90].contains(&list["certificates"][1]["days_left"].as_u64().unwrap()), "{list}");
    // The next process uses the stored certificate, and needs no authority.
    drop(pebble);
    drop(node.server);
    node.server = Node::serve(&node.folder);
    assert_eq!(node.certificate(), certificate);
    assert!(!node.log().contains("ordering"), "{}", node.log());
}

#[test]
fn a_certificate_is_renewed_before_its_end() {
    let authority = Authority::new();
    let node = Node::start(&authority);
    let pebble = Pebble::start(&authority, node.folder.path(), node.tls_port(), 20);
    node.order_at(&authority, &pebble.directory);
    node.until_logged("the new certificate is in use");
    let first = node.certificate();
    let mut member = node.server.listen("/sse?topic=news");
    node.until_certificate("another one is there", |it| it.contains("Pebble") && it != first);
    node.server.publish("news", "still here".into());
    assert_eq!(member.data(), "still here");
}

/// The server serves while there is no certificate yet and the authority can't be reached.
#[test]
fn an_authority_that_is_away_is_tried_again() {
    let authority = Authority::new();
    let node = Node::start(&authority);
    node.order_at(&authority, "https://localhost:1/dir");
    node.until_logged(FAILED);
    let log = node.log();
    assert!(log.contains("retry_seconds=300"), "{log}");
    assert!(log.contains("Connection refused"), "{log}");
    // Until then clients get a self-signed certificate.
    assert!(node.certificate().contains(HOST), "{}", node.certificate());
    assert_eq!(node.server.get("/healthz").0, 200);
}

/// Without a customer's account the authority signs nothing. Another customer id needs another account.
#[test]
fn an_authority_may_demand_accounts_of_its_customers() {
    let authority = Authority::new();
    let node = Node::start(&authority);
    let keys = ["a2V5LTEt", "a2V5LTIt"].map(|part| part.repeat(6));
    let customers = [("kid-1", &*keys[0]), ("kid-2", &*keys[1])];
    let settings = (node.tls_port(), 86_400);
    let pebble = Pebble::for_customers(&authority, node.folder.path(), settings, &customers);
    node.order_at(&authority, &pebble.directory);
    node.until_logged(FAILED);
    assert!(node.log().contains("set tls.acme_eab_key_id"), "{}", node.log());
    let order = |id: &str, folder: &str| {
        let lines = format!("acme_eab_key_id = {id:?}\nacme_eab_key_file = \"eab.key\"\n");
        node.order_with(&authority, &pebble.directory, folder, &lines);
    };
    let account = |folder: &str| {
        std::fs::read_to_string(node.folder.path().join(folder).join("account.json")).unwrap()
    };
    write_secret(&node.folder.path().join("eab.key"), &keys[0]);
    order("kid-1", "first");
    node.until_certificate("there is one", |it| it.contains("Pebble"));
    assert!(account("first").contains("kid-1"));
    // The authority rejects the key of another customer.
    order("kid-2", "second");
    node.server.until("the key does not fit", |_| node.log().matches(FAILED).count() == 2);
    write_secret(&node.folder.path().join("eab.key"), &keys[1]);
    order("kid-2", "third");
    let signed = "throng_tls_certificate_orders_total{result=\"signed\"}";
    node.server.until("another account has ordered", |server| server.metric(signed) == 2.0);
    assert!(account("third").contains("kid-2"));
    let log = node.log();
    assert!(keys.iter().all(|key| !log.contains(&**key)), "{log}");
}

/// The server orders no certificate if it could not store it.
#[test]
fn a_folder_that_cannot_be_written_is_found_before_the_order() {
    let authority = Authority::new();
    let node = Node::start(&authority);
    let pebble = Pebble::start(&authority, node.folder.path(), node.tls_port(), 86_400);
    // A folder is in the place of a file.
    std::fs::create_dir_all(node.folder.path().join("bad/orders.json")).unwrap();
    node.order(&authority, &pebble.directory, "bad");
    node.until_logged(FAILED);
    assert!(node.log().contains("bad/orders.json: "), "{}", node.log());
    // Another folder has its own schedule.
    node.order_at(&authority, &pebble.directory);
    node.until_certificate("there is one", |it| it.contains("Pebble"));
    let failed = "throng_tls_certificate_orders_total{result=\"failed\"}";
    let signed = "throng_tls_certificate_orders_total{result=\"signed\"}";
    assert_eq!((node.server.metric(failed), node.server.metric(signed)), (1.0, 1.0));
}

#[test]
fn another_authority_gets_an_order_at_once_and_a_damaged_file_changes_nothing() {
    let authority = Authority::new();
    let node = Node::start(&authority);
    let port = node.tls_port();
    let first = Pebble::start(&authority, node.folder.path(), port, 86_400);
    node.order_at(&authority, &first.directory);
    node.until_certificate("the first is there", |it| it.contains("Pebble"));
    let certificate = node.certificate();
    let path = node.folder.path().join("acme/certificate.pem");
    let pem = std::fs::read(&path).unwrap();
    std::fs::write(&path, "nonsense").unwrap();
    node.until_logged("the previous certificates stay in use");
    assert_eq!(node.certificate(), certificate);
    std::fs::remove_file(&path).unwrap();
    node.until_logged("the certificate is missing");
    assert_eq!(node.certificate(), certificate);
    std::fs::write(&path, pem).unwrap();
    let second = Pebble::start(&authority, node.folder.path(), port, 86_400);
    node.order_at(&authority, &second.directory);
    node.until_certificate("the second is there", |it| it.contains("Pebble") && it != certificate);
}
