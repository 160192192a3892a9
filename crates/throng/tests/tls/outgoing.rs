//! Requests to applications by TLS, and the certificates that the server trusts for them.

use serde_json::{Value, json};

use crate::application::Application;
use crate::support::tls::{Authority, terminate};
use crate::support::*;
use crate::tls::certificates::start_error;

/// The application: it gives each client a user, and accepts everything.
fn named(event: &Value) -> Value {
    match event["kind"].as_str() {
        Some("connect") => json!({"user": "alice"}),
        _ => json!({"status": "ok"}),
    }
}

#[test]
fn an_application_behind_tls_is_trusted_by_the_authority_in_a_file() {
    let authority = Authority::new();
    let app = Application::replying(named);
    let address = terminate(authority.server_config("server"), app.address);
    let url = format!("https://localhost:{}/hook", address.port());
    let ca = authority.path("ca.pem").display().to_string();
    let settings = [
        ("THRONG_WEBHOOK_URL", &*url),
        ("THRONG_WEBHOOK_CONNECT", "true"),
        ("THRONG_WEBHOOK_EVENTS", "connected"),
        ("THRONG_WEBHOOK_TIMEOUT_MILLISECONDS", "60000"),
    ];
    let with_ca = [&settings[..], &[("THRONG_WEBHOOK_CA_FILE", &*ca)]].concat();
    let server = Server::with(&[], &with_ca);
    let mut stream = Stream::new(server.connect());
    stream.send("GET /sse?topic=news HTTP/1.1\r\nHost: t\r\n\r\n");
    server.until_members("news", 1);
    let events = app.until("the event has come", |events| {
        events.iter().any(|event| event["kind"] == "connected")
    });
    let event = events.iter().find(|event| event["kind"] == "connected").unwrap();
    assert_eq!(event["user"], "alice", "{event}");
    // No authority that this host trusts has signed the application's certificate.
    let requests = app.events().len();
    let server = Server::with(&[], &settings);
    assert_eq!(server.get("/poll?topic=news&timeout=0").0, 503);
    assert_eq!(app.events().len(), requests, "nothing came through");
}

#[test]
fn a_file_without_a_certificate_is_named_at_the_start() {
    let authority = Authority::new();
    let path = |name: &str| authority.path(name).display().to_string();
    for (variable, setting) in [
        ("THRONG_WEBHOOK_CA_FILE", "webhook.ca_file"),
        ("THRONG_AUTH_JWKS_CA_FILE", "auth.jwks_ca_file"),
    ] {
        let text = start_error(&[(variable, path("missing.pem"))]);
        assert!(
            text.contains(&format!("{setting}: {}: can't be read", path("missing.pem"))),
            "{text}"
        );
        let text = start_error(&[(variable, path("server.key"))]);
        assert!(
            text.contains(&format!("{setting}: {}: there is no certificate", path("server.key"))),
            "{text}"
        );
    }
}
