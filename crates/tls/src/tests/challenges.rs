//! Challenges of an authority that verifies hosts by TLS-ALPN-01 (RFC 8737).

use std::sync::Arc;

use super::support::{Client, Signed, acceptor, client, connect, server, settings};
use crate::identity::CHALLENGE_ALPN;
use crate::{Acceptor, AlpnChallenges, HandshakeErrorKind, Settings};

fn offering(protocols: &[&[u8]]) -> Client {
    let mut config = client();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Client::new(&Arc::new(config), "localhost")
}

fn pem_of(signed: &Signed) -> Vec<u8> {
    [signed.chain_pem(), signed.key_pem()].concat()
}

#[test]
fn an_authority_that_offers_the_protocol_alone_gets_the_reply() {
    let challenges = AlpnChallenges::default();
    let acceptor =
        Acceptor::new(Settings { challenges: challenges.clone(), ..settings() }).unwrap();
    let reply = server(&["localhost"]);
    challenges.set("LocalHost", &pem_of(&reply)).unwrap();
    let certificate_of = |protocols: &[&[u8]]| {
        let mut client = offering(protocols);
        let established = connect(&acceptor, &mut client, &[]).unwrap();
        let certificate = client.0.peer_certificates().unwrap()[0].clone();
        (established.alpn, certificate == reply.certificate)
    };
    assert_eq!(certificate_of(&[CHALLENGE_ALPN]), (Some(CHALLENGE_ALPN.to_vec()), true));
    // A client that offers another protocol, too, is no authority.
    assert!(!certificate_of(&[CHALLENGE_ALPN, b"http/1.1"]).1);
    assert_eq!(certificate_of(&[b"http/1.1"]), (Some(b"http/1.1".to_vec()), false));
    assert!(!certificate_of(&[]).1);
    // The only challenge is for another host.
    challenges.clear();
    challenges.set("other.example", &pem_of(&reply)).unwrap();
    assert!(!certificate_of(&[CHALLENGE_ALPN]).1);
}

#[test]
fn without_a_challenge_the_protocol_is_not_spoken() {
    let error = connect(&acceptor(), &mut offering(&[CHALLENGE_ALPN]), &[]).unwrap_err();
    assert_eq!(error.kind, HandshakeErrorKind::Alpn);
    let challenges = AlpnChallenges::default();
    challenges.set("a.example", &pem_of(&server(&["a.example"]))).unwrap();
    assert!(challenges.set("b.example", b"nonsense").is_err());
    assert_eq!(format!("{challenges:?}"), "[\"a.example\"]");
}
