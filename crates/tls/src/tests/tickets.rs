//! Sessions that clients resume with tickets.

use std::sync::Arc;

use super::support::{
    Authority, Client, NOW, Signed, acceptor, client, client_of, connect, connect_at,
    exchange_data, params, server, settings,
};
use crate::{
    Acceptor, ClientCertificates, HandshakeErrorKind, Settings, TICKET_KEY_SECONDS, TicketKeys,
    Version,
};

const VERSIONS: [Version; 2] = [Version::Tls13, Version::Tls12];

/// Connects, and returns whether the client resumed a session.
fn is_resumed(acceptor: &Acceptor, config: &Arc<rustls::ClientConfig>) -> bool {
    let mut client = Client::new(config, "localhost");
    let established = connect(acceptor, &mut client, &[]).unwrap();
    let is_resumed = established.is_resumed;
    exchange_data(&mut client, established);
    is_resumed
}

#[test]
fn clients_resume_sessions() {
    for version in VERSIONS {
        let (acceptor, config) = (acceptor(), Arc::new(client_of(version, None)));
        assert!(!is_resumed(&acceptor, &config));
        for _ in 0..3 {
            assert!(is_resumed(&acceptor, &config), "{version}");
        }
    }
}

#[test]
fn tickets_stay_valid_after_a_reload_and_an_import() {
    for version in VERSIONS {
        let tickets = TicketKeys::new(NOW).unwrap();
        let config = Arc::new(client_of(version, None));
        let with = |tickets: &TicketKeys| {
            // The certificate changes, too.
            let identities = vec![server(&["localhost"]).identity()];
            let settings = Settings { identities, ticket_keys: tickets.clone(), ..settings() };
            Acceptor::new(settings).unwrap()
        };
        assert!(!is_resumed(&with(&tickets), &config));
        assert!(is_resumed(&with(&tickets), &config), "{version}: reloaded");
        let next = TicketKeys::import(&tickets.export()).unwrap();
        assert!(is_resumed(&with(&next), &config), "{version}: imported");
        assert_eq!(next.rotate(NOW + TICKET_KEY_SECONDS), Ok(true));
        assert!(is_resumed(&with(&next), &config), "{version}: previous key");
        assert!(!is_resumed(&acceptor(), &config), "{version}: other keys");
    }
}

#[test]
fn expired_tickets_are_ignored() {
    for version in VERSIONS {
        let tickets = TicketKeys::new(NOW).unwrap();
        let acceptor =
            Acceptor::new(Settings { ticket_keys: tickets.clone(), ..settings() }).unwrap();
        let config = Arc::new(client_of(version, None));
        assert!(!is_resumed(&acceptor, &config));
        tickets.rotate(NOW + TICKET_KEY_SECONDS).unwrap();
        tickets.rotate(NOW + 2 * TICKET_KEY_SECONDS).unwrap();
        assert!(!is_resumed(&acceptor, &config), "{version}");
    }
}

/// The certificate of a client, valid until 2030.
fn client_certificate(authority: &Authority) -> Signed {
    let mut params = params(&["sensor.test"]);
    params.not_after = rcgen::date_time_ymd(2030, 1, 1);
    authority.sign(&rcgen::PKCS_ECDSA_P256_SHA256, &params)
}

#[test]
fn a_ticket_does_not_replace_a_required_certificate() {
    let authority = Authority::new("clients");
    for version in VERSIONS {
        let tickets = TicketKeys::new(NOW).unwrap();
        let open = Acceptor::new(Settings { ticket_keys: tickets.clone(), ..settings() }).unwrap();
        let client_certificates = ClientCertificates::Required { authorities: authority.pem() };
        let closed = Acceptor::new(Settings {
            ticket_keys: tickets.clone(),
            client_certificates,
            ..settings()
        });
        let config = Arc::new(client_of(version, None));
        assert!(!is_resumed(&open, &config));
        let mut client = Client::new(&config, "localhost");
        let error = connect(&closed.unwrap(), &mut client, &[]).unwrap_err();
        assert_eq!(error.kind, HandshakeErrorKind::NoCertificate, "{version}");
    }
}

#[test]
fn a_ticket_has_the_certificate_of_its_client_until_that_expires() {
    let authority = Authority::new("clients");
    let signed = client_certificate(&authority);
    for version in VERSIONS {
        let client_certificates = ClientCertificates::Required { authorities: authority.pem() };
        let acceptor = Acceptor::new(Settings { client_certificates, ..settings() }).unwrap();
        let config = Arc::new(client_of(version, Some(&signed)));
        for is_resumed in [false, true] {
            let mut client = Client::new(&config, "localhost");
            let established = connect(&acceptor, &mut client, &[]).unwrap();
            assert_eq!(established.is_resumed, is_resumed, "{version}");
            let peer = established.client_certificate.clone().unwrap();
            assert_eq!(peer.hosts().collect::<Vec<_>>(), ["sensor.test"]);
            exchange_data(&mut client, established);
        }
        let mut client = Client::new(&config, "localhost");
        let late = 1_893_456_001;
        let error = connect_at(&acceptor, &mut client, &[], late).unwrap_err();
        assert_eq!(error.kind, HandshakeErrorKind::Certificate, "{version}");
        assert_eq!(error.alert.unwrap().name(), "certificate_expired");
        assert!(error.reason.contains("ticket"), "{error}");
    }
}

#[test]
fn a_ticket_is_valid_for_its_host_only() {
    let mut settings = settings();
    settings.identities = vec![server(&["one.test", "two.test"]).identity()];
    let acceptor = Acceptor::new(settings).unwrap();
    let config = Arc::new(client());
    let mut names = Vec::new();
    for host in ["one.test", "two.test"] {
        let mut client = Client::new(&config, host);
        let established = connect(&acceptor, &mut client, &[]).unwrap();
        names.push((established.server_name.clone(), established.is_resumed));
        exchange_data(&mut client, established);
    }
    assert_eq!(names, [(Some("one.test".into()), false), (Some("two.test".into()), false)]);
}
