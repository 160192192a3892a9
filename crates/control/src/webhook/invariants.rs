//! Invariants of responses, whatever the application sends: for property tests and for fuzzing.

use auth::Grants;
use model::Data;
use model::name::{check_name, check_topic};
use protocol::request::Admission;
use serde_json::Value;
use shard::{Changes, HookRefusal, WebhookResponse};
use token::{INFO_BYTES_MAX, PATTERNS_MAX};

use super::response::{CODE_BYTES_MAX, Expects, MESSAGE_BYTES_MAX, USERS_MAX, read};

/// Users and topics of a connection, together, at most.
const TOPICS_MAX: usize = 10;

/// What requests expect of their replies.
const EXPECTS: [Expects; 3] = [Expects::Changes, Expects::Connect(TOPICS_MAX), Expects::Refresh];

/// Reads bytes as the response to this many events, with the kinds in turn. The result must be an error, or for each
/// event a decision or an error that every transport can carry.
///
/// # Panics
/// If a check fails.
pub fn check_response(body: &[u8], events: usize) {
    for first in 0..EXPECTS.len() {
        let kinds: Vec<Expects> = EXPECTS.into_iter().cycle().skip(first).take(events).collect();
        let Ok(responses) = read(body, &kinds) else { return };
        assert_eq!(responses.len(), events, "a reply for each event");
        let read = responses.into_iter().zip(kinds);
        read.for_each(|(response, expects)| drop(response.map(|it| check(it, expects))));
    }
}

fn check(response: WebhookResponse, expects: Expects) {
    match response {
        WebhookResponse::Ok { response, changes } => {
            json(&response);
            let Changes { meta, payload, tags, key, admission } = *changes;
            if let Some(meta) = meta {
                assert!(json(&meta).is_object(), "{meta}");
            }
            if let Some(Data::Json(text)) = payload {
                json(&text);
            }
            let names = tags.iter().flatten().chain(&key);
            names.for_each(|name| assert_eq!(check_name(name), Ok(())));
            if let Some(admission) = admission {
                assert_ne!(
                    expects,
                    Expects::Changes,
                    "the response has an admission that was not requested"
                );
                admitted(*admission, expects);
            }
        }
        WebhookResponse::Error(refusal) => {
            let HookRefusal { status, code, message, response } = *refusal;
            let code = code.text();
            json(&response);
            assert_eq!(status, 403);
            let plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(
                (1..=CODE_BYTES_MAX).contains(&code.len()) && code.bytes().all(plain),
                "{code}"
            );
            assert!(message.len() <= MESSAGE_BYTES_MAX, "{} bytes", message.len());
        }
        WebhookResponse::Silent(reason) => panic!("a response was read as silence: {reason}"),
    }
}

/// Checks an admission.
fn admitted(admission: Admission, expects: Expects) {
    let Admission { users, grants, topics, info, seconds } = admission;
    let users = users.unwrap_or_default();
    users.iter().for_each(|user| assert_eq!(check_name(user), Ok(())));
    topics.iter().for_each(|topic| assert_eq!(check_topic(topic), Ok(())));
    assert!(users.len() <= USERS_MAX && users.len() + topics.len() <= TOPICS_MAX);
    if expects == Expects::Refresh {
        assert!(users.is_empty() && topics.is_empty(), "a refresh changes no user or topic");
    }
    if let Some(info) = info {
        assert!(json(&info).is_object() && info.len() <= INFO_BYTES_MAX, "{info}");
    }
    assert_ne!(seconds, Some(0));
    if let Some(Grants::Patterns(patterns)) = grants.as_deref() {
        for list in [&patterns.subscribe, &patterns.publish, &patterns.presence, &patterns.history]
        {
            assert!(list.len() <= PATTERNS_MAX);
        }
    }
}

/// The value of a JSON text, which must be one line.
fn json(text: &str) -> Value {
    assert!(!text.contains(['\n', '\r']), "{text}");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
