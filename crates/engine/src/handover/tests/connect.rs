//! Connections that the application admits: requests that wait for its decision, and clients that may stay or not.

use auth::{Grants, Patterns};
use model::Name;
use protocol::request::Admission;

use super::*;
use crate::auth::credentials::Expiry;
use crate::webhook::{Changes, RequestDetails, WebhookKind};

/// The changes that come with the application's yes: the user is the `as` of the query, for 7 seconds; a refresh
/// gives 20 seconds more.
pub(super) fn said(details: &RequestDetails) -> Changes {
    let mut admission = Admission::default();
    match details.kind {
        WebhookKind::Connect => {
            let query = &details.connect.as_ref().unwrap().request.query;
            let user = query.iter().find(|(name, _)| &**name == "as");
            let subscribe = vec!["a".into(), "asked/*".into()];
            let grants = Grants::Patterns(Patterns { subscribe, ..Patterns::default() });
            admission.users = Some(user.map(|(_, user)| Name::from(&**user)).into_iter().collect());
            admission.grants = Some(Arc::new(grants));
            admission.topics = vec!["given".into()];
            admission.info = Some(r#"{"name":"x"}"#.into());
            admission.seconds = Some(7);
        }
        WebhookKind::Refresh => admission.seconds = Some(20),
        WebhookKind::Subscribe | WebhookKind::Message | WebhookKind::Publish => {}
    }
    Changes { admission: Some(Box::new(admission)), ..Changes::default() }
}

fn scene() -> Scene {
    let before = settings();
    let headers = ["cookie".to_string()];
    let session = protocol::Settings { connect_headers: Some(headers.into()), ..before.session };
    let token_expiry = Expiry { warning_s: 4, spread_s: 0 };
    Scene::with(false, Settings { session, token_expiry, ..before }, Arc::default())
}

/// As `check`, where the application names the users. Returns what each client received.
fn check_requests(name: &str, steps: &[Step]) -> [String; CLIENTS] {
    compare(name, scene, steps).0
}

fn all() -> Vec<Step> {
    vec![
        Open(0, 0, get("/sse?topic=a&as=al")),
        Open(1, 1, socket("/ws?as=bo", "")),
        Open(2, 0, socket("/socket/websocket?vsn=2.0.0&as=cy", "")),
        Open(3, 1, get("/poll?topic=a&timeout=60&as=di")),
        Open(4, 0, get("/socket/longpoll?vsn=2.0.0&as=ed")),
        // Needs two decisions: on the connect, and on the topic.
        Open(5, 1, get("/stream?topic=asked/1&as=fi")),
        Publish("a", "too early".into()),
        Wait(3),
    ]
}

#[test]
fn an_admitted_client_needs_a_decision_again() {
    let mut steps = all();
    steps.extend([
        ReplyTarget(true),
        ReplyTarget(true),
        text(2, r#"["1","1","a","phx_join",{}]"#),
        text(2, r#"["1","2","b","phx_join",{}]"#),
        Publish("given", "by word".into()),
        Publish("@bo", "own".into()),
        // The poll is over by now, and the others wait for a decision.
        Wait(50),
        ReplyTarget(true),
        Wait(50),
        Publish("a", "who stayed".into()),
        Publish("given", "who stayed".into()),
    ]);
    steps.extend((0..CLIENTS).map(Read));
    steps.extend([Wait(90), ReplyTarget(false), Wait(150), Publish("given", "too late".into())]);
    steps.extend((0..CLIENTS).map(Read));
    let received = check_requests("refresh", &steps);
    for client in [0, 1, 5] {
        for text in ["by word", "who stayed"] {
            assert!(received[client].contains(text), "{client} {text}: {}", received[client]);
        }
    }
    assert!(received[1].contains("own"), "{}", received[1]);
    assert!(
        received[2].contains("who stayed") && received[2].contains("unauthorized"),
        "{}",
        received[2]
    );
    assert!(received[3].contains("200 OK") && received[3].contains("by word"), "{}", received[3]);
    assert!(received[4].contains("\\\"token\\\":"), "{}", received[4]);
    assert!(received[0].contains(": closing, token_expired"), "{}", received[0]);
    assert!(received[5].contains("token_expired"), "{}", received[5]);
    for text in &received {
        let wrong =
            ["too early", "too late", "token_expiring"].into_iter().find(|it| text.contains(it));
        assert_eq!(wrong, None, "{text}");
    }
    assert!([1, 2].into_iter().all(|client| received[client].ends_with("token_expired<end>")));
}

#[test]
fn a_rejected_client_was_never_present() {
    let mut steps = all();
    steps.extend([ReplyTarget(false), ReplyTarget(true), Publish("a", "for none".into()), Wait(5)]);
    steps.extend((0..CLIENTS).map(Read));
    // The next request needs a decision of its own.
    steps.extend([Send(0, get("/stream?topic=a&as=gi").into()), Wait(2), ReplyTarget(true)]);
    steps.extend([Publish("a", "for the next".into()), Read(0)]);
    let received = check_requests("refusal", &steps);
    for (client, text) in received.iter().enumerate() {
        assert!(text.contains("the app says no") || client == 1, "{client}: {text}");
        assert!(!text.contains("for none"), "{client}: {text}");
    }
    assert!(
        received[0].contains("403 Forbidden") && received[0].contains("for the next"),
        "{}",
        received[0]
    );
    assert!(received[1].ends_with("no<end>"), "{}", received[1]);
}

#[test]
fn no_request_waits_for_a_client_that_has_left() {
    let mut steps = all();
    steps.extend([
        Cut(0),
        Cut(1),
        Cut(4),
        Cut(5),
        Wait(3),
        ReplyTarget(true),
        ReplyTarget(true),
        Wait(3),
    ]);
    steps.extend([Publish("a", "there".into()), Read(2), Read(3)]);
    let received = check_requests("gone", &steps);
    assert!(received[3].contains("there"), "{}", received[3]);
    let scene = scene().played(&steps, |_| When::Never);
    let members: u32 = scene
        .drivers
        .iter()
        .map(|driver| {
            let core = &driver.engine.core;
            core.hub.members(core.broker.hash("given"), "given")
        })
        .sum();
    assert_eq!(members, 1, "the Phoenix client is left");
}
