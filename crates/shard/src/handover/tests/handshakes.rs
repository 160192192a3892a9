//! TLS handshakes in progress at the time of a switch: rustls can't pass them on.

use std::io::BufReader;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

/// A client whose handshake goes on only when the test says so.
struct Client {
    tls: ClientConnection,
    peer: Peer,
}

impl Client {
    /// Connects, and sends the first message of the handshake.
    fn connect(shard: &mut Shard) -> Client {
        let certificate = CertificateDer::from_pem_slice(tls::testing::CERTIFICATE.as_bytes());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.unwrap()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let tls = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap());
        let mut client = Client { tls: tls.unwrap(), peer: connect_to(shard, true) };
        client.send();
        client
    }

    /// Sends what the handshake has to send.
    fn send(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.peer.socket).unwrap();
        }
    }

    /// Takes what the server has sent.
    fn receive(&mut self) {
        let socket = &mut BufReader::new(&mut self.peer.socket);
        while self.tls.read_tls(socket).is_ok_and(|bytes| bytes > 0) {
            self.tls.process_new_packets().unwrap();
        }
    }

    /// Finishes the handshake and reads a response. Calls `work` in each round.
    fn exchange(&mut self, mut work: impl FnMut()) {
        self.tls.writer().write_all(REQUEST).unwrap();
        let (began, mut response) = (Instant::now(), Vec::new());
        while response.is_empty() {
            assert!(began.elapsed() < PATIENCE, "the response takes too long");
            self.send();
            work();
            self.receive();
            let _ = self.tls.reader().read_to_end(&mut response);
        }
        assert!(response.starts_with(b"HTTP/1.1 200 "));
    }
}

/// A shard that has copied its connections and begins no handshake: one client's handshake is in progress, the other
/// client has to wait.
fn finishing() -> (Shard, New, [Client; 2]) {
    let mut old = shard();
    let begun = Client::connect(&mut old);
    some_turns(&mut old);
    assert_eq!(old.tls.handshake_count(), 1);
    let new = begin(&mut old);
    turns(&mut old, "copy", |old| old.giver.stage() == GiverStage::Copied);
    assert!(!old.giver.has_finished_handshakes());
    old.giver.order(Give::FinishHandshakes);
    some_turns(&mut old);
    let late = Client::connect(&mut old);
    some_turns(&mut old);
    assert_eq!(old.tls.handshake_count(), 1);
    assert!(!old.giver.has_finished_handshakes());
    (old, new, [begun, late])
}

#[test]
fn one_that_has_begun_is_finished_and_another_begins_at_the_new_shard() {
    let (mut old, mut new, [mut begun, mut late]) = finishing();
    begun.receive();
    begun.send();
    turns(&mut old, "the handshake", |old| old.giver.has_finished_handshakes());
    switch(&mut old);
    new.reports.recv_timeout(PATIENCE).unwrap().1.unwrap();
    new.going.decide(true);
    old.giver.order(Give::Release);
    turns(&mut old, "release", |old| old.released);
    drop(old);
    begun.exchange(std::thread::yield_now);
    late.exchange(std::thread::yield_now);
    assert_eq!(new.end(), 2);
}

#[test]
fn one_that_waits_begins_when_the_shard_serves_before_another_attempt() {
    let (mut old, _new, [mut begun, mut late]) = finishing();
    begun.receive();
    begun.send();
    turns(&mut old, "the handshake", |old| old.giver.has_finished_handshakes());
    old.giver.order(Give::StandStill);
    old.giver.order(Give::GoOn);
    turns(&mut old, "going on", |old| old.giver.stage() == GiverStage::Copied);
    late.exchange(|| some_turns(&mut old));
    begun.exchange(|| some_turns(&mut old));
    // The next attempt counts anew.
    old.giver.order(Give::FinishHandshakes);
    assert!(!old.giver.has_finished_handshakes());
    turns(&mut old, "no handshake", |old| old.giver.has_finished_handshakes());
}

#[test]
fn one_that_waits_begins_when_the_upgrade_has_failed() {
    let (mut old, mut new, [mut begun, mut late]) = finishing();
    switch(&mut old);
    new.abandon();
    old.giver.order(Give::Resume);
    late.exchange(|| some_turns(&mut old));
    begun.exchange(|| some_turns(&mut old));
    assert_eq!(old.engine.slots().count(), 2);
}
