//! Public keys of issuers, served by this test: they come late, change, or do not come.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::application::Reserved;
use crate::support::tls::{Authority, terminate};
use crate::support::*;
use crate::tokens::support::*;

/// Converts a public key in PEM to a JSON Web Key.
fn jwk(pem: &str, id: &str) -> Value {
    let text: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = STANDARD.decode(text).unwrap();
    let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let (end, common) = (der.len(), json!({"kid": id, "use": "sig"}));
    match end {
        // The key is at the end.
        44 => with(common, json!({"kty": "OKP", "crv": "Ed25519", "x": part(&der[12..])})),
        // A modulus of 2,048 bits, and the exponent.
        294 => {
            let (n, e) = (part(&der[end - 261..end - 5]), part(&der[end - 3..]));
            with(common, json!({"kty": "RSA", "n": n, "e": e}))
        }
        other => panic!("a key of {other} bytes"),
    }
}

/// The response of an issuer.
#[derive(Clone)]
enum IssuerReply {
    Keys(Vec<Value>),
    Text(&'static str),
    Error,
    /// Never responds. The server sets the flag when it closes the connection.
    Silence(Arc<AtomicBool>),
}

/// Returns the response for a path.
type Responder = Box<dyn Fn(&str) -> IssuerReply + Send>;

/// Issuers at paths like `/a/keys`.
struct Issuers {
    address: SocketAddr,
    responder: Arc<Mutex<Responder>>,
    requests: Arc<AtomicUsize>,
}

impl Issuers {
    fn new(responder: impl Fn(&str) -> IssuerReply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Issuers::on(listener, responder)
    }

    fn on(listener: TcpListener, responder: impl Fn(&str) -> IssuerReply + Send + 'static) -> Self {
        let address = listener.local_addr().unwrap();
        let responder: Arc<Mutex<Responder>> = Arc::new(Mutex::new(Box::new(responder)));
        let requests = Arc::new(AtomicUsize::new(0));
        let (responders, counter) = (responder.clone(), requests.clone());
        thread::spawn(move || {
            for socket in listener.incoming() {
                let (responders, counter) = (responders.clone(), counter.clone());
                thread::spawn(move || {
                    let mut stream = Stream::new(socket.unwrap());
                    loop {
                        let head = stream.head_if_any();
                        let Some(path) = head.split(' ').nth(1) else { return };
                        counter.fetch_add(1, Ordering::Relaxed);
                        let response = responders.lock().unwrap()(path);
                        let (status, body) = match response {
                            IssuerReply::Keys(keys) => {
                                ("200 OK", json!({"keys": keys}).to_string())
                            }
                            IssuerReply::Text(text) => ("200 OK", text.into()),
                            IssuerReply::Error => ("500 Internal Server Error", String::new()),
                            IssuerReply::Silence(is_closed) => {
                                stream.rest();
                                is_closed.store(true, Ordering::Relaxed);
                                return;
                            }
                        };
                        let length = body.len();
                        let text =
                            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
                        let _ = stream.reader.get_mut().write_all(text.as_bytes());
                    }
                });
            }
        });
        Issuers { address, responder, requests }
    }

    fn set(&self, responder: impl Fn(&str) -> IssuerReply + Send + 'static) {
        *self.responder.lock().unwrap() = Box::new(responder);
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    fn serve(&self, paths: &[&str], issuers: &[&str]) -> Server {
        let list =
            |paths: &[&str]| paths.iter().map(|path| self.url(path)).collect::<Vec<_>>().join(",");
        let (urls, issuers) = (list(paths), list(issuers));
        let urls = ("THRONG_AUTH_JWKS_URLS", &*urls);
        serve_with(&[REQUIRED, urls, ("THRONG_AUTH_ISSUERS", &issuers)])
    }
}

fn at_once(keys: Vec<Value>) -> impl Fn(&str) -> IssuerReply {
    move |_| IssuerReply::Keys(keys.clone())
}

fn rsa(id: &str) -> String {
    signed("RS256", RSA.0, Some(id), listener("al", &["room:*"]))
}

fn ed(id: &str) -> String {
    signed("EdDSA", ED.0, Some(id), listener("al", &["room:*"]))
}

fn poll(server: &Server, token: &str) -> (u16, String) {
    let reply = get(server, &format!("/poll?topic=room:1&timeout=0&token={token}"));
    (reply.status, reply.error().1.into())
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.into())
}

#[test]
fn a_token_waits_on_every_transport_until_its_keys_have_come() {
    let sent = Arc::new(AtomicBool::new(false));
    let flag = sent.clone();
    let issuers = Issuers::new(move |_| {
        // The clients connect during this second.
        thread::sleep(Duration::from_secs(1));
        flag.store(true, Ordering::Relaxed);
        IssuerReply::Keys(vec![jwk(RSA.1, "1")])
    });
    let server = issuers.serve(&["/a/keys"], &[]);
    let token = rsa("1");
    let assert_sent = || assert!(sent.load(Ordering::Relaxed), "the keys have not come yet");
    thread::scope(|scope| {
        for transport in LASTING {
            let (server, token, assert_sent) = (&server, &token, &assert_sent);
            scope.spawn(move || {
                let topic = if transport.is_phoenix() { "" } else { "&topic=room:1" };
                let opened = Client::open(server, transport, &format!("token={token}{topic}"), "");
                let mut client = opened.unwrap_or_else(|reply| panic!("{transport:?}: {reply:?}"));
                assert_sent();
                if transport.is_phoenix() {
                    assert_eq!(client.join("room:1", json!({}))["status"], "ok", "{transport:?}");
                }
            });
        }
        scope.spawn(|| {
            assert_eq!(poll(&server, &token).0, 200);
            assert_sent();
        });
        // The server reads the body before it knows whether the token is valid.
        scope.spawn(|| {
            let reply = request(&server, "POST", "/publish?topic=room:1", &bearer(&token), "hi");
            assert_eq!(reply.error(), (403, "not_granted"));
            assert_sent();
        });
        // A command, and another one directly behind it.
        scope.spawn(|| {
            let mut client = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
            let Wire::Ws(socket) = &mut client.wire else { panic!() };
            for command in [
                json!({"type": "connect", "token": token, "id": 1}),
                json!({"type": "subscribe", "topic": "room:1", "id": 2}),
            ] {
                socket.send(tungstenite::Message::text(command.to_string())).unwrap();
            }
            assert_eq!(client.until("reply")["ok"]["users"], json!(["al"]));
            assert_sent();
            assert_eq!(client.until("reply")["ok"]["topic"], "room:1");
        });
    });
    assert_eq!(issuers.requests(), 1);
}

/// The server fetches keys at most once in this time.
const FETCH_MIN: Duration = Duration::from_secs(5);

#[test]
fn a_key_that_is_new_is_fetched_and_one_that_is_gone_counts_no_more() {
    let issuers = Issuers::new(at_once(vec![jwk(RSA.1, "1")]));
    let (server, mut ws, mut phoenix) = (0..5)
        .find_map(|_| {
            issuers.set(at_once(vec![jwk(RSA.1, "1")]));
            let before = issuers.requests();
            // The server's clocks count whole seconds.
            let end = Instant::now() + FETCH_MIN - Duration::from_secs(1);
            let server = issuers.serve(&["/keys"], &[]);
            server.until("the keys are there", |server| poll(server, &rsa("1")).0 == 200);
            let query = format!("token={}", rsa("1"));
            let ws = Client::open(&server, Transport::Ws, &query, "").ok().unwrap();
            let phoenix = Client::open(&server, Transport::Phoenix, &query, "").ok().unwrap();
            issuers.set(at_once(vec![jwk(ED.1, "2")]));
            let response = poll(&server, &ed("2"));
            // On a slow machine the server may already have fetched again.
            (Instant::now() < end).then(|| {
                assert_eq!(
                    response,
                    refused(401, "invalid_token"),
                    "they were fetched a moment ago"
                );
                assert_eq!(issuers.requests(), before + 1, "they were not fetched again");
                (server, ws, phoenix)
            })
        })
        .expect("this machine is too slow");
    let before = issuers.requests();
    thread::sleep(FETCH_MIN);
    assert_eq!(issuers.requests(), before, "no token has requested them");
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(poll(&server, &ed("2")).0, 200));
        scope.spawn(|| {
            let response = ws.command(json!({"type": "refresh", "token": ed("2")}));
            assert_eq!(response["users"], json!(["al"]));
        });
        scope.spawn(|| {
            let payload = json!({"access_token": ed("2")});
            let response = phoenix.push("room:1", "access_token", payload);
            assert_eq!(response["status"], "ok", "{response}");
        });
    });
    assert_eq!(issuers.requests(), before + 1);
    assert_eq!(poll(&server, &rsa("1")), refused(401, "invalid_token"));
    // The key's name alone does not make a token valid.
    let named = signed("RS256", RSA.0, Some("2"), json!({"sub": "al"}));
    assert_eq!(poll(&server, &named).0, 401);
}

/// No client can make the server send many requests to the issuer.
#[test]
fn a_flood_of_unknown_keys_leads_to_few_fetches() {
    let issuers = Issuers::new(at_once(vec![jwk(RSA.1, "1")]));
    let begun = Instant::now();
    let server = issuers.serve(&["/keys"], &[]);
    server.until("the keys are there", |server| poll(server, &rsa("1")).0 == 200);
    // One flood directly after a fetch, and one when the next fetch may begin.
    for flood in 0..2 {
        thread::scope(|scope| {
            for part in 0..4 {
                let server = &server;
                scope.spawn(move || {
                    for at in 0..50 {
                        let forged = ed(&format!("{flood}-{part}-{at}"));
                        assert_eq!(poll(server, &forged), refused(401, "invalid_token"));
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(poll(&server, &rsa("1")).0, 200, "known keys are not waited for");
                }
            });
        });
        if flood == 0 {
            thread::sleep(FETCH_MIN);
        }
    }
    // The server's clocks count whole seconds.
    let (fetches, seconds) = (issuers.requests(), begun.elapsed().as_secs() as usize);
    let most = 1 + seconds / (FETCH_MIN.as_secs() as usize - 1);
    assert!((2..=most).contains(&fetches), "{fetches} fetches in {seconds} s");
}

#[test]
fn an_issuer_that_is_down_is_not_the_tokens_fault() {
    let reserved = Reserved::new();
    let url = format!("http://{}/keys", reserved.address);
    let server = serve_with(&[REQUIRED, ("THRONG_AUTH_JWKS_URLS", &url)]);
    server.until("it is known", |server| poll(server, &rsa("1")).0 == 503);
    let reply = get(&server, &format!("/sse?topic=room:1&token={}", rsa("1")));
    assert_eq!(reply.error(), (503, "keys_unavailable"));
    assert!(header(&reply.head, "retry-after").is_some(), "{reply:?}");
    let mut stranger = Client::open(&server, Transport::Ws, "", "").ok().unwrap();
    let response = stranger.command(json!({"type": "connect", "token": rsa("1")}));
    assert_eq!(response, "keys_unavailable");
    // Other requests go on.
    assert_eq!(poll(&server, "x.y.z"), refused(401, "invalid_token"));
    let _issuers = Issuers::on(reserved.listen(), at_once(vec![jwk(RSA.1, "1")]));
    server.until("its keys have come", |server| poll(server, &rsa("1")).0 == 200);
}

#[test]
fn an_issuer_that_never_replies_delays_no_client_for_ever() {
    // The server gives up a slow issuer after five seconds. A slower machine gets another attempt.
    let has_replied = (0..5).any(|_| {
        let is_closed = Arc::new(AtomicBool::new(false));
        let flag = is_closed.clone();
        let issuers = Issuers::new(move |path| match path.starts_with("/slow") {
            true => IssuerReply::Silence(flag.clone()),
            false => IssuerReply::Keys(vec![jwk(RSA.1, "1")]),
        });
        let server = issuers.serve(&["/slow/keys", "/quick/keys"], &[]);
        assert_eq!(poll(&server, &rsa("1")).0, 200);
        if is_closed.load(Ordering::Relaxed) {
            return false;
        }
        assert_eq!(poll(&server, &ed("2")), refused(503, "keys_unavailable"));
        true
    });
    assert!(has_replied, "a token with a known key has waited for the slow issuer");
}

#[test]
fn what_is_no_set_of_keys_changes_nothing() {
    let issuers = Issuers::new(at_once(vec![jwk(RSA.1, "1")]));
    let server = issuers.serve(&["/keys"], &[]);
    server.until("the keys are there", |server| poll(server, &rsa("1")).0 == 200);
    for response in [
        IssuerReply::Text("{\"keys\":[{\"kty\":\"oct\",\"k\":\"AAAA\",\"kid\":\"2\"}]}"),
        IssuerReply::Error,
    ] {
        issuers.set(move |_| response.clone());
        let before = issuers.requests();
        server.until("they are fetched again", |server| {
            let _ = poll(server, &ed("2"));
            issuers.requests() > before
        });
        assert_eq!(poll(&server, &rsa("1")).0, 200);
        // A published key is no shared key.
        let forged = signed("HS256", "\0\0\0", Some("2"), listener("al", &["*"]));
        assert_eq!(poll(&server, &forged), refused(401, "invalid_token"));
    }
}

#[test]
fn no_issuer_speaks_for_another() {
    let issuers = Issuers::new(|path| {
        let key = if path.starts_with("/a/") { jwk(RSA.1, "1") } else { jwk(ED.1, "1") };
        IssuerReply::Keys(vec![key])
    });
    let server = issuers.serve(&["/a/keys", "/b/keys"], &["/a", "/b"]);
    let by = |issuer: &str| with(listener("al", &["room:*"]), json!({"iss": issuers.url(issuer)}));
    let a = |issuer| signed("RS256", RSA.0, Some("1"), by(issuer));
    let b = |issuer| signed("EdDSA", ED.0, Some("1"), by(issuer));
    server.until("the keys of both are there", |server| {
        (poll(server, &a("/a")).0, poll(server, &b("/b")).0) == (200, 200)
    });
    for forged in [a("/b"), b("/a"), a("/c"), b(""), rsa("1")] {
        assert_eq!(poll(&server, &forged), refused(401, "invalid_token"));
    }
}

#[test]
fn an_issuer_behind_tls_is_trusted_by_the_authority_in_a_file() {
    let authority = Authority::new();
    let issuers = Issuers::new(at_once(vec![jwk(RSA.1, "1")]));
    let address = terminate(authority.server_config("server"), issuers.address);
    let url = format!("https://localhost:{}/keys", address.port());
    let ca = authority.path("ca.pem").display().to_string();
    let settings = [REQUIRED, ("THRONG_AUTH_JWKS_URLS", &url)];
    let with_ca = [&settings[..], &[("THRONG_AUTH_JWKS_CA_FILE", &ca)]].concat();
    let server = serve_with(&with_ca);
    assert_eq!(poll(&server, &rsa("1")).0, 200);
    // No authority that this host trusts has signed the issuer's certificate.
    let before = issuers.requests();
    let server = serve_with(&settings);
    assert_eq!(poll(&server, &rsa("1")), refused(503, "keys_unavailable"));
    assert_eq!(issuers.requests(), before);
}
