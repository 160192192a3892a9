//! Clients without a token may publish if only programs on this machine can connect.

use std::net::Shutdown;

use tungstenite::Error;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::http::HeaderValue;

use crate::application::Application;
use crate::mqtt::client::*;
use crate::mqtt::raw::BOTH;
use crate::mqtt::server;
use crate::support::Server;

/// Returns true if a client may publish to a topic for which no rule decides.
fn is_open(server: &Server) -> bool {
    let codes = BOTH.map(|version| {
        let mut client = Connect::new(version, "c").open(server.client);
        client.send(&Publish::new("any/topic", "x", 1).bytes(version));
        match client.next() {
            Event::Confirm("PUBACK", 1, code) => code < 0x80,
            // MQTT 3 has no packet for a rejection.
            Event::Closed => false,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(codes[0], codes[1]);
    codes[0]
}

#[test]
fn a_client_of_this_machine_may_publish_everywhere() {
    assert!(is_open(&server(&[])));
}

#[test]
fn it_may_not_where_tokens_name_the_user() {
    let key = ("THRONG_AUTH_HMAC_KEY", "0123456789abcdef0123456789abcdef");
    let grants = ("THRONG_AUTH_ANONYMOUS_GRANTS", "publish:*");
    assert!(!is_open(&server(&[key, grants])));
}

#[test]
fn it_may_not_where_the_application_says_who_comes() {
    let app = Application::replying(|_| serde_json::json!({}));
    let url = app.url();
    let settings = [("THRONG_WEBHOOK_URL", url.as_str()), ("THRONG_WEBHOOK_CONNECT", "true")];
    assert!(!is_open(&server(&settings)));
}

#[test]
fn it_may_not_where_a_proxy_brings_others() {
    // The proxy's address is not this test's, since the addresses of its clients do not matter here.
    assert!(!is_open(&server(&[("THRONG_CLIENT_TRUSTED_PROXIES", "127.0.0.2")])));
    assert!(!is_open(&server(&[("THRONG_CLIENT_PROXY_HEADER", "forwarded")])));
}

/// Opens a WebSocket with this header. Returns the status and the body of the response.
fn opens(server: &Server, (name, value): (&'static str, &str)) -> (u16, String) {
    let mut request = format!("ws://{}/mqtt", server.client).into_client_request().unwrap();
    let headers = request.headers_mut();
    headers.insert("sec-websocket-protocol", HeaderValue::from_static("mqtt"));
    headers.insert(name, HeaderValue::from_str(value).unwrap());
    match tungstenite::client(request, server.connect()) {
        Ok((socket, reply)) => {
            let _ = socket.get_ref().shutdown(Shutdown::Both);
            (reply.status().as_u16(), String::new())
        }
        Err(tungstenite::HandshakeError::Failure(Error::Http(reply))) => {
            let body = reply.body().clone().unwrap_or_default();
            (reply.status().as_u16(), String::from_utf8(body).unwrap())
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_page_of_another_site_opens_no_mqtt_on_this_machine() {
    let server = server(&[]);
    let own = format!("http://{}", server.client);
    for origin in [own.as_str(), "http://localhost:3000", "http://[::1]:5173"] {
        assert_eq!(opens(&server, ("origin", origin)).0, 101, "{origin}");
    }
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("x-forwarded-for", "203.0.113.7"),
        ("forwarded", "for=203.0.113.7"),
    ] {
        let (status, body) = opens(&server, (name, value));
        assert!(status == 403 && body.contains("bad_origin"), "{name}: {value}: {status} {body}");
        assert!(body.contains("client.cors_origins") && body.contains("[auth]"), "{body}");
    }
}

#[test]
fn a_page_that_is_named_may_use_it_and_so_may_all_where_publishing_needs_a_request() {
    let named = server(&[("THRONG_CLIENT_CORS_ORIGINS", "*,https://www.example.com")]);
    assert_eq!(opens(&named, ("origin", "https://www.example.com")).0, 101);
    assert_eq!(opens(&named, ("origin", "https://evil.example")).0, 403);
    let proxied = server(&[("THRONG_CLIENT_TRUSTED_PROXIES", "127.0.0.2")]);
    assert_eq!(opens(&proxied, ("origin", "https://www.example.com")).0, 101);
}
