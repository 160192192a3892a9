//! Reads the application's responses: JSON, no I/O.

use std::sync::Arc;

use model::name::{check_name, check_topic};
use model::{Data, ErrorCode, Name, ReplyCode};
use protocol::request::Admission;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use shard::{Changes, HookRefusal, WebhookKind, WebhookRequest, WebhookResponse};

/// The response of a reply that has none.
const NO_RESPONSE: &str = "{}";

#[derive(Deserialize)]
struct ResponseBody<'a> {
    #[serde(borrow)]
    replies: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct HookReply<'a> {
    #[serde(default)]
    status: HookReplyStatus,
    // `default` applies if the field is missing: a null is a response.
    #[serde(borrow, default, deserialize_with = "some")]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    meta: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "some")]
    payload: Option<&'a RawValue>,
    /// The encoding of the payload.
    encoding: Option<String>,
    tags: Option<Vec<String>>,
    key: Option<String>,
    /// A rejection, in the form of errors for clients.
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The fields of a reply about a connection that is admitted, or that may stay.
#[derive(Deserialize)]
struct Admitted<'a> {
    user: Option<String>,
    users: Option<Vec<String>>,
    #[serde(borrow)]
    grants: Option<&'a RawValue>,
    topics: Option<Vec<String>>,
    #[serde(borrow)]
    info: Option<&'a RawValue>,
    expires: Option<u32>,
}

/// The fields of an error response for clients that are not Phoenix clients.
#[derive(Deserialize)]
struct Reason<'a> {
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    reason: Option<&'a RawValue>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum HookReplyStatus {
    #[default]
    Ok,
    Error,
}

fn some<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// Why a response, or one reply in it, can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResponseError {
    #[error("{0}")]
    Json(String),
    #[error("{0}")]
    Value(String),
    #[error("the request has {events} events, and the response {replies} replies")]
    Count { events: usize, replies: usize },
}

/// For each event its response, or why its reply can't be read.
pub(super) type Responses = Vec<Result<WebhookResponse, ResponseError>>;

/// What a reply may have besides its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expects {
    /// Changes of a message, or of a user's meta in a topic.
    Changes,
    /// An admission, with at most this many users and topics together.
    Connect(usize),
    /// How long a connection may stay, and its grants.
    Refresh,
}

impl Expects {
    /// Returns what this request expects of its reply.
    pub fn of(hook_request: &WebhookRequest) -> Self {
        match (&hook_request.details.connect, hook_request.details.kind) {
            (Some(connect), _) => Expects::Connect(connect.topics_max),
            (None, WebhookKind::Refresh) => Expects::Refresh,
            (
                None,
                WebhookKind::Connect
                | WebhookKind::Subscribe
                | WebhookKind::Message
                | WebhookKind::Publish,
            ) => Expects::Changes,
        }
    }
}

/// Reads the responses to events, in their order. A reply that can't be read fails its own event only.
pub(super) fn read(body: &[u8], events: &[Expects]) -> Result<Responses, ResponseError> {
    if body.trim_ascii().is_empty() {
        return Ok(vec![Ok(WebhookResponse::yes()); events.len()]);
    }
    let outcome: ResponseBody = object(body)?;
    let replies = outcome.replies;
    if replies.len() != events.len() {
        return Err(ResponseError::Count { events: events.len(), replies: replies.len() });
    }
    let reply = |(raw, expects): (&RawValue, &Expects)| {
        let response = response(object(raw.get().as_bytes())?)?;
        let WebhookResponse::Ok { response, mut changes } = response else {
            return Ok(response);
        };
        let admitted = || object(raw.get().as_bytes());
        changes.admission = match expects {
            Expects::Changes => None,
            Expects::Connect(topics_max) => Some(Box::new(admission(admitted()?, *topics_max)?)),
            Expects::Refresh => Some(Box::new(renewal(admitted()?)?)),
        };
        Ok(WebhookResponse::Ok { response, changes })
    };
    Ok(replies.into_iter().zip(events).map(reply).collect())
}

fn object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ResponseError> {
    protocol::object::read(body).map_err(|error| ResponseError::Json(error.to_string()))
}

fn response(reply: HookReply) -> Result<WebhookResponse, ResponseError> {
    let response = reply.response.map_or_else(|| NO_RESPONSE.into(), compact);
    if let Some(error) = reply.error {
        return Ok(WebhookResponse::Error(Box::new(refusal(compact(error)))));
    }
    if reply.status == HookReplyStatus::Error {
        return Ok(WebhookResponse::Error(Box::new(refusal(response))));
    }
    let meta = reply.meta.map(compact);
    if meta.as_ref().is_some_and(|meta| !meta.starts_with('{')) {
        return Err(ResponseError::Value("meta is not an object".into()));
    }
    let data = |raw| protocol::data::from_json(raw, reply.encoding.as_deref());
    let payload = reply.payload.map(data).transpose().map_err(ResponseError::Value)?;
    let tags = reply.tags.map(model::tags::list).transpose().map_err(ResponseError::Value)?;
    if let Some(error) = reply.key.as_deref().and_then(|key| check_name(key).err()) {
        return Err(ResponseError::Value(format!("key: {error}")));
    }
    let changes = Changes { meta, payload, tags, key: reply.key.map(Name::from), admission: None };
    Ok(WebhookResponse::Ok { response, changes: Box::new(changes) })
}

/// Users that a reply may name, at most.
pub(super) const USERS_MAX: usize = 100;

/// Reads an admission, with at most `topics_max` users and topics together.
fn admission(admitted: Admitted<'_>, topics_max: usize) -> Result<Admission, ResponseError> {
    let named = admitted.user.is_some() || admitted.users.is_some();
    let mut users: Vec<Name> = Vec::new();
    for user in admitted.user.iter().chain(admitted.users.iter().flatten()) {
        check_name(user).map_err(|error| ResponseError::Value(format!("user: {error}")))?;
        if !users.iter().any(|known| known == user) {
            users.push(user.into());
        }
    }
    let mut topics: Vec<Name> = Vec::new();
    for topic in admitted.topics.iter().flatten() {
        check_topic(topic).map_err(|error| ResponseError::Value(format!("topics: {error}")))?;
        if !topics.iter().any(|known| known == topic) {
            topics.push(topic.into());
        }
    }
    if users.len() > USERS_MAX || users.len() + topics.len() > topics_max {
        return Err(ResponseError::Value(format!(
            "users and topics: a connection may have at most {USERS_MAX} users, and be in at most \
             {topics_max} topics, including each user's own"
        )));
    }
    let renewal = renewal(admitted)?;
    Ok(Admission { users: named.then_some(users), topics, ..renewal })
}

/// Reads how long a connection may stay, its grants and its info.
fn renewal(admitted: Admitted<'_>) -> Result<Admission, ResponseError> {
    if admitted.expires == Some(0) {
        return Err(ResponseError::Value("expires must be a number of seconds, at least 1".into()));
    }
    let grants = admitted.grants.map(|raw| token::grants(raw.get())).transpose();
    let grants = grants.map_err(|error| ResponseError::Value(format!("grants: {error}")))?;
    let info = admitted.info.map(|raw| token::info(&compact(raw))).transpose();
    Ok(Admission {
        grants: grants.map(Arc::new),
        info: info.map_err(ResponseError::Value)?,
        seconds: admitted.expires,
        ..Admission::default()
    })
}

/// The text of a JSON value in one line.
fn compact(raw: &RawValue) -> Box<str> {
    match protocol::data::from_json(raw, Some("json")) {
        Ok(Data::Json(text)) => text,
        // Unreachable with this encoding.
        _ => raw.get().into(),
    }
}

/// The longest code of the application, in bytes.
pub(super) const CODE_BYTES_MAX: usize = 64;

/// The longest message of the application, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 10;

/// Reads a rejection: its `code`, and its `message` or `reason`. Defaults replace missing and invalid ones.
fn refusal(response: Box<str>) -> HookRefusal {
    let reason: Option<Reason> = object(response.as_bytes()).ok();
    let text = |raw: Option<&RawValue>| -> Option<String> { serde_json::from_str(raw?.get()).ok() };
    let code = reason.as_ref().and_then(|reason| text(reason.code));
    let code = code.filter(|code| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        (1..=CODE_BYTES_MAX).contains(&code.len()) && code.bytes().all(plain)
    });
    let message = reason.and_then(|reason| text(reason.message).or_else(|| text(reason.reason)));
    let message = message.filter(|message| message.len() <= MESSAGE_BYTES_MAX);
    HookRefusal {
        status: 403,
        code: code.as_deref().map_or(ErrorCode::Forbidden.into(), ReplyCode::parse),
        message: message.as_deref().unwrap_or("the application rejected the request").into(),
        response,
    }
}

#[cfg(test)]
mod tests {
    use auth::Grants;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::webhook::check_response;

    /// Returns whether a response is ok, and its text.
    fn plain(response: WebhookResponse) -> (bool, String) {
        match response {
            WebhookResponse::Ok { response, .. } => (true, response.into()),
            WebhookResponse::Error(refusal) => (false, refusal.response.into()),
            WebhookResponse::Silent(reason) => panic!("{reason}"),
        }
    }

    fn events(count: usize) -> Vec<Expects> {
        vec![Expects::Changes; count]
    }

    fn responses(body: &str) -> Vec<Option<(bool, String)>> {
        let responses = read(body.as_bytes(), &[Expects::Changes]).unwrap().into_iter();
        responses.map(|v| v.ok().map(plain)).collect()
    }

    #[test]
    fn a_reply_may_leave_out_what_it_does_not_say() {
        for (body, ok, response) in [
            ("", true, "{}"),
            (" \r\n", true, "{}"),
            (r#"{"replies":[{}]}"#, true, "{}"),
            (r#"{"replies":[{"status":"error"}]}"#, false, "{}"),
            (r#"{"replies":[{"status":"ok","response":null}]}"#, true, "null"),
            (r#"{"replies":[{"response":"a \n\u00e9"}]}"#, true, r#""a \n\u00e9""#),
            ("{\"replies\":[{\"response\":{ \"a\" :\n[1, 2.50]}}]}", true, r#"{"a":[1,2.50]}"#),
            (r#" {"replies":[{"more":1}],"more":[]} "#, true, "{}"),
        ] {
            assert_eq!(responses(body), [Some((ok, response.to_string()))], "{body}");
        }
    }

    #[test]
    fn a_reply_that_can_not_be_read_leaves_the_others() {
        for reply in ["1", "null", "[]", r#"["ok",1]"#, r#"{"status":"later"}"#] {
            let body = format!(r#"{{"replies":[{{}},{reply},{{"status":"error"}}]}}"#);
            let responses = read(body.as_bytes(), &events(3)).unwrap();
            let oks: Vec<_> = responses.into_iter().map(|v| v.ok().map(|v| plain(v).0)).collect();
            assert_eq!(oks, [Some(true), None, Some(false)], "{reply}");
        }
    }

    /// Reads the admission in a reply, with at most this many users and topics together.
    fn admitted(reply: &str, topics_max: usize) -> Result<Admission, ResponseError> {
        let body = format!(r#"{{"replies":[{reply}]}}"#);
        let response = read(body.as_bytes(), &[Expects::Connect(topics_max)])?.remove(0)?;
        match response {
            WebhookResponse::Ok { changes, .. } => Ok(*changes.admission.unwrap()),
            other => panic!("{reply}: {other:?}"),
        }
    }

    fn names(names: &[&str]) -> Vec<Name> {
        names.iter().map(|name| Name::from(*name)).collect()
    }

    #[test]
    fn who_comes_is_read_or_an_error() {
        let some = |reply: &str| admitted(reply, 9).unwrap_or_else(|it| panic!("{reply}: {it}"));
        assert_eq!(some("{}"), Admission::default());
        assert_eq!(some(r#"{"user":"al","users":["bo","al"]}"#).users, Some(names(&["al", "bo"])));
        assert_eq!(some(r#"{"users":[]}"#).users, Some(Vec::new()));
        assert_eq!(some(r#"{"topics":["a","b","a"]}"#).topics, names(&["a", "b"]));
        assert_eq!(some(r#"{"expires":60}"#).seconds, Some(60));
        assert_eq!(some(r#"{"info":{ "a": 1 }}"#).info.as_deref(), Some(r#"{"a":1}"#));
        let grants = some(r#"{"grants":{"subscribe":["a:*"]}}"#).grants.unwrap();
        let Grants::Patterns(patterns) = &*grants else { panic!("{grants:?}") };
        assert_eq!((&*patterns.subscribe[0], patterns.publish.len()), ("a:*", 0));
        assert!(some(r#"{"grants":{}}"#).grants.is_some(), "nothing is granted");
        // Each user has a topic of its own, which counts.
        let full = r#"{"user":"al","topics":["a","b"]}"#;
        assert!(admitted(full, 3).is_ok());
        let error = admitted(full, 2).unwrap_err().to_string();
        assert!(error.contains("at most 2 topics"), "{error}");
        // Replies to other requests have no admission: these fields may have any value there.
        assert_eq!(responses(r#"{"replies":[{"user":7,"topics":{}}]}"#).len(), 1);
    }

    #[test]
    fn who_may_stay_is_read_without_names() {
        let body =
            br#"{"replies":[{"user":7,"topics":[""],"expires":9,"grants":{"publish":["a"]}}]}"#;
        let response = read(body, &[Expects::Refresh]).unwrap().remove(0);
        assert!(response.is_err(), "a user is a text");
        let body = br#"{"replies":[{"user":"bo","expires":9,"grants":{"publish":["a"]}}]}"#;
        let response = read(body, &[Expects::Refresh]).unwrap().remove(0).unwrap();
        let WebhookResponse::Ok { changes, .. } = response else { panic!("{response:?}") };
        let admission = changes.admission.unwrap();
        assert_eq!((admission.seconds, &admission.users), (Some(9), &None));
        assert!(admission.grants.is_some());
    }

    #[test]
    fn an_error_refuses_in_either_form() {
        for reply in [
            r#"{"status":"error","response":{"code":"banned","message":"m"}}"#,
            r#"{"error":{"code":"banned","message":"m"}}"#,
            r#"{"status":"ok","user":"al","error":{"code":"banned","message":"m"}}"#,
        ] {
            let body = format!(r#"{{"replies":[{reply}]}}"#);
            for expects in [Expects::Changes, Expects::Connect(9), Expects::Refresh] {
                let response = read(body.as_bytes(), &[expects]).unwrap().remove(0).unwrap();
                let WebhookResponse::Error(refusal) = response else { panic!("{reply}") };
                assert_eq!((refusal.code.text(), &*refusal.message), ("banned", "m"), "{reply}");
            }
        }
        for reply in [r#"{"error":true}"#, r#"{"error":""}"#, r#"{"error":{}}"#] {
            let refused = responses(&format!(r#"{{"replies":[{reply}]}}"#));
            assert!(!refused[0].as_ref().unwrap().0, "{reply}");
        }
    }

    #[test]
    fn what_the_application_changes_is_read_or_an_error() {
        let changes = |reply: &str| {
            let body = format!(r#"{{"replies":[{reply}]}}"#);
            match read(body.as_bytes(), &[Expects::Changes]).unwrap().remove(0) {
                Ok(WebhookResponse::Ok { changes, .. }) => Some(*changes),
                other => other.err().map(|_| None).unwrap_or_else(|| panic!("{reply}")),
            }
        };
        let some = |reply| changes(reply).unwrap_or_else(|| panic!("{reply}"));
        assert_eq!(some("{}"), Changes::default());
        assert_eq!(some(r#"{"meta":{ "a": 1 }}"#).meta.as_deref(), Some(r#"{"a":1}"#));
        assert_eq!(some(r#"{"payload":"hi"}"#).payload, Some(Data::Text("hi".into())));
        assert_eq!(some(r#"{"payload":null}"#).payload, Some(Data::Json("null".into())));
        let bytes = some(r#"{"payload":"AP8=","encoding":"base64"}"#).payload;
        assert_eq!(bytes, Some(Data::Binary([0, 255].into())));
        let named = some(r#"{"tags":["a","a"],"key":"k"}"#);
        assert_eq!((named.tags, named.key), (Some(vec!["a".into()]), Some("k".into())));
        for wrong in [
            r#"{"meta":1}"#,
            r#"{"meta":"{}"}"#,
            r#"{"payload":1,"encoding":"base64"}"#,
            r#"{"payload":"?","encoding":"base64"}"#,
            r#"{"payload":1,"encoding":"gzip"}"#,
            r#"{"tags":[""]}"#,
            r#"{"tags":"a"}"#,
            r#"{"key":"a\nb"}"#,
            r#"{"key":""}"#,
        ] {
            assert_eq!(changes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_refusal_says_what_the_application_says_as_far_as_that_may_be_said() {
        let long = format!(r#"{{"message":"{}"}}"#, "x".repeat(MESSAGE_BYTES_MAX + 1));
        let none = ("forbidden", "the application rejected the request");
        for (response, want) in [
            (r#"{"code":"muted_1","message":"be quiet"}"#, ("muted_1", "be quiet")),
            (r#"{"reason":"members only"}"#, ("forbidden", "members only")),
            (r#"{"code":"No Code\r\n","message":1}"#, none),
            (r#"{"code":""}"#, none),
            (r#""members only""#, none),
            ("{}", none),
            (long.as_str(), none),
        ] {
            let body = format!(r#"{{"replies":[{{"status":"error","response":{response}}}]}}"#);
            let read = read(body.as_bytes(), &[Expects::Changes]).unwrap().remove(0).unwrap();
            let WebhookResponse::Error(refusal) = read else { panic!("{read:?}") };
            assert_eq!((refusal.code.text(), &*refusal.message), want, "{response}");
            assert_eq!((refusal.status, &*refusal.response), (403, response));
        }
    }

    #[test]
    fn a_response_without_a_reply_for_each_event_is_an_error() {
        for body in [
            "ok",
            "{}",
            "[[{}]]",
            r#"{"replies":{}}"#,
            r#"{"replies":[]}"#,
            r#"{"replies":[{},{}]}"#,
            r#"{"replies":[{}]"#,
            r#"{"replies":[{}]}{}"#,
        ] {
            assert!(read(body.as_bytes(), &[Expects::Changes]).is_err(), "{body}");
        }
        assert!(read(b"{\"replies\":[{\"response\":\"\xff\"}]}", &[Expects::Changes]).is_err());
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// An admission is read as it was written, and is within the limits.
        #[test]
        fn an_admission_is_read_as_written(
            users in proptest::collection::vec(".{0,6}", 0..5),
            topics in proptest::collection::vec("[a-c@* ]{0,4}", 0..5),
            patterns in proptest::collection::vec(".{0,8}", 0..4),
            seconds in proptest::option::of(0..3u32),
            topics_max in 0..8usize,
        ) {
            let reply = json!({
                "users": users, "topics": topics, "grants": {"subscribe": patterns},
                "expires": seconds,
            });
            let valid = users.iter().all(|it| check_name(it).is_ok())
                && topics.iter().all(|it| check_topic(it).is_ok())
                && seconds != Some(0);
            let unique = |list: &[String]| {
                let mut list = list.to_vec();
                list.sort();
                list.dedup();
                list.len()
            };
            let fits = unique(&users) + unique(&topics) <= topics_max;
            match admitted(&reply.to_string(), topics_max) {
                Err(_) => prop_assert!(!(valid && fits)),
                Ok(admission) => {
                    prop_assert!(valid && fits);
                    prop_assert_eq!(admission.users.unwrap().len(), unique(&users));
                    prop_assert_eq!(admission.topics.len(), unique(&topics));
                    let Grants::Patterns(granted) = &*admission.grants.unwrap() else { panic!() };
                    prop_assert!(granted.subscribe.iter().map(|it| &**it).eq(&patterns));
                    prop_assert_eq!(admission.seconds, seconds);
                }
            }
        }

        #[test]
        fn no_response_admits_a_client_by_mistake(
            body in r#"\{"replies":\[\{("(user|users|topics|grants|info|expires|error|status)":("ok"|"error"|"a"|\[\]|\["a"\]|\{\}|null|0|7),?){0,4}\}\]\}"#,
        ) {
            let refused = body.contains(r#""status":"error""#);
            for expects in [Expects::Connect(3), Expects::Refresh] {
                if let Ok(mut responses) = read(body.as_bytes(), &[expects])
                    && let Ok(WebhookResponse::Ok { changes, .. }) = responses.remove(0)
                {
                    prop_assert!(!refused, "{}", body);
                    let admission = changes.admission.unwrap();
                    prop_assert!(admission.seconds != Some(0));
                    prop_assert!(admission.topics.len() + admission.users.map_or(0, |it| it.len()) <= 3);
                }
            }
        }

        #[test]
        fn replies_are_read_as_they_were_written(
            replies in prop::collection::vec((any::<bool>(), any_value()), 1..6),
        ) {
            let written: Vec<Value> = replies
                .iter()
                .map(|(ok, value)| {
                    json!({"status": if *ok { "ok" } else { "error" }, "response": value})
                })
                .collect();
            let body = serde_json::to_vec_pretty(&json!({"replies": written})).unwrap();
            let responses = read(&body, &events(replies.len())).unwrap();
            prop_assert_eq!(responses.len(), replies.len());
            for (response, (ok, value)) in responses.into_iter().zip(replies) {
                let (is_ok, response) = plain(response.unwrap());
                prop_assert_eq!(is_ok, ok);
                prop_assert!(!response.contains(['\n', '\r']));
                let read: Value = serde_json::from_str(&response).unwrap();
                prop_assert_eq!(read, value);
            }
        }

        #[test]
        fn whatever_comes_is_an_error_or_whole(body in any::<Vec<u8>>(), events in 0usize..5) {
            check_response(&body, events);
        }

        #[test]
        fn what_resembles_a_response_is_an_error_or_whole(
            body in r#"\{"replies":\[(\{("status":"(ok|error|no)"),?("(response|meta|payload|key|users|grants|info|expires)":[0-9{}\[\]"nul]{0,6})?\},?){0,3}\]\}?"#,
            events in 0usize..4,
        ) {
            check_response(body.as_bytes(), events);
        }
    }
}
