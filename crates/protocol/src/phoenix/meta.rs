//! The fields of joins' and acknowledgements' payloads that Throng reads: the meta that a member shows
//! in its presence, its resume token, and the tags of the messages that it wants.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::history::{self, PageFields};
use crate::request::PageRequest;
use crate::{data, wildcards};
use model::{Data, Name, Position, ResumeToken, Since, SinceError, tags};

/// The `meta` of a join's payload, the text of a JSON object; `None` without one. The error says
/// what is invalid.
pub fn join_meta(payload: &Data, bytes_max: usize) -> Result<Option<&str>, String> {
    let Some(meta) = fields(payload).meta else {
        return Ok(None);
    };
    data::meta(meta.get(), bytes_max).map(Some)
}

/// The `since` of a join's payload, from where the client wants the topic: behind the id of the message
/// that it saw last, which clients get as the second argument of `channel.on`'s callback, from the
/// `start`, or `last:50`. `None` without one. The error says what is invalid.
pub fn join_since(payload: &Data) -> Result<Option<Since>, String> {
    let Some(since) = fields(payload).since else {
        return Ok(None);
    };
    let text: Cow<'_, str> = string(since).ok_or_else(|| SinceError::Token.to_string())?;
    // The client has seen nothing yet.
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error: SinceError| error.to_string())
}

/// Whether a join's payload has `"filter":"mqtt"`: + and # in the topic are wildcards then. The error says what
/// is invalid.
pub fn join_filters(payload: &Data) -> Result<bool, String> {
    let Some(filter) = fields(payload).filter else {
        return Ok(false);
    };
    let filter = string(filter).unwrap_or_default();
    wildcards::check_kind(&filter).map(|()| true).map_err(|(_, wrong)| wrong)
}

/// The `token` of a join's payload, which is for the topic alone.
pub fn join_token(payload: &Data) -> Option<Box<str>> {
    fields(payload).token.and_then(string).map(Box::from)
}

/// The new token of a client, from the payload `{"access_token":"…"}` or `{"token":"…"}` of its event
/// `access_token`. The error says what is invalid.
pub fn access_token(payload: &Data) -> Result<Box<str>, &'static str> {
    let Fields { access_token, token, .. } = fields(payload);
    let found = access_token.or(token).and_then(string).map(Box::from);
    found.ok_or("an access_token is {\"access_token\":…} with a JSON Web Token")
}

/// The `tags` of a join's payload: the client wants only messages that have one of them, and all
/// without any. The error says what is invalid.
pub fn join_tags(payload: &Data) -> Result<Vec<Name>, String> {
    let Some(given) = fields(payload).tags else {
        return Ok(Vec::new());
    };
    let given: Vec<String> = serde_json::from_str(given.get())
        .map_err(|_| "tags must be an array of strings".to_string())?;
    tags::list(given)
}

/// The message up to which a client has all messages, from the payload `{"id":"…"}` of its event `ack`.
/// The error says what is invalid.
pub fn ack_id(payload: &Data) -> Result<Position, String> {
    let id = fields(payload).id.and_then(string);
    let token = id.and_then(|id| id.parse::<ResumeToken>().ok());
    token.map(|token| token.id).ok_or_else(|| {
        "an ack is {\"id\":…} with the id of a message as it came, like 5f3a91c2:1042".into()
    })
}

/// The page of a topic's history that a client asks for by its event `history`, with the payload
/// `{"limit":…,"since":…,"reverse":…}`. The error says what is invalid.
pub fn history_page(topic: &str, payload: &Data) -> Result<PageRequest, String> {
    let Fields { since, limit, reverse, .. } = fields(payload);
    let since = since.map(|since| string(since).ok_or_else(|| SinceError::Token.to_string()));
    let since = since.transpose()?;
    let limit = limit.map(|limit| history::limit(limit.get())).transpose();
    let reverse = reverse.map(|reverse| history::reverse(reverse.get())).transpose();
    let fields = limit.and_then(|limit| {
        let (since, reverse) = (since.as_deref(), reverse?.unwrap_or(false));
        Ok(PageFields { topic: Some(topic), user: None, since, limit, reverse })
    });
    fields.and_then(PageRequest::read).map_err(|(_, wrong)| wrong)
}

#[derive(Default, Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    meta: Option<&'a RawValue>,
    #[serde(borrow)]
    since: Option<&'a RawValue>,
    #[serde(borrow)]
    tags: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    limit: Option<&'a RawValue>,
    #[serde(borrow)]
    reverse: Option<&'a RawValue>,
    #[serde(borrow)]
    token: Option<&'a RawValue>,
    #[serde(borrow)]
    access_token: Option<&'a RawValue>,
    #[serde(borrow)]
    filter: Option<&'a RawValue>,
}

/// What Throng reads of a payload. Payloads of any other shape are the application's own, and have
/// none of it; serde would take an array for a struct.
fn fields(payload: &Data) -> Fields<'_> {
    match payload {
        Data::Json(text) if text.starts_with('{') => serde_json::from_str(text).unwrap_or_default(),
        Data::Json(_) | Data::Text(_) | Data::Binary(_) => Fields::default(),
    }
}

fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str(raw.get()).ok().map(|text: Text<'_>| text.0)
}

/// A payload that is a meta as a whole.
pub fn meta(payload: &Data, bytes_max: usize) -> Result<&str, String> {
    match payload {
        Data::Json(text) => data::meta(text, bytes_max),
        Data::Text(_) | Data::Binary(_) => Err(data::NO_META.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meta_is_an_object_within_its_limit() {
        let json = |text: &str| Data::Json(text.into());
        assert_eq!(join_meta(&json(r#"{"meta":{"a":1},"b":2}"#), 7), Ok(Some(r#"{"a":1}"#)));
        assert_eq!(join_meta(&json(r#"{"b":2}"#), 7), Ok(None));
        assert_eq!(join_meta(&json(r#"{"meta":null}"#), 7), Ok(None));
        assert_eq!(join_meta(&json("[]"), 7), Ok(None));
        assert_eq!(join_meta(&json("[{}]"), 7), Ok(None));
        assert_eq!(join_meta(&json("[1]"), 7), Ok(None));
        assert_eq!(join_meta(&Data::Binary([1].into()), 7), Ok(None));
        assert!(join_meta(&json(r#"{"meta":{"a":10}}"#), 7).is_err());
        assert!(join_meta(&json(r#"{"meta":[]}"#), 7).is_err());
        assert_eq!(meta(&json("{}"), 2), Ok("{}"));
        assert!(meta(&json("1"), 2).is_err());
        assert!(meta(&Data::Text("{}".into()), 2).is_err());
    }

    #[test]
    fn a_join_says_what_it_saw_and_wants_and_an_ack_what_it_has() {
        let json = |text: &str| Data::Json(text.into());
        let since = |text: &str| join_since(&json(text));
        let token: ResumeToken = "5f3a91c2:7/9-0000000b.8".parse().unwrap();
        assert_eq!(
            since(r#"{"since":"5f3a91c2:7\/9-0000000b.8","x":1}"#),
            Ok(Some(Since::Token(token)))
        );
        assert_eq!(since(r#"{"since":"start"}"#), Ok(Some(Since::Start)));
        assert_eq!(since(r#"{"since":"last:50"}"#), Ok(Some(Since::Last(50))));
        assert!(since(r#"{"since":"last:0"}"#).unwrap_err().contains("1 to 1000"));
        for none in ["{}", r#"{"since":null}"#, r#"{"since":""}"#, r#"["5f3a91c2:7"]"#, "7"] {
            assert_eq!(since(none), Ok(None), "{none}");
        }
        for bad in [r#"{"since":7}"#, r#"{"since":"7"}"#, r#"{"since":["5f3a91c2:7"]}"#] {
            assert!(since(bad).is_err(), "{bad}");
        }
        let tags = |text: &str| join_tags(&json(text));
        assert_eq!(tags(r#"{"tags":["a","\u0062","a"]}"#), Ok(vec!["a".into(), "b".into()]));
        assert_eq!((tags("{}"), tags("[]")), (Ok(vec![]), Ok(vec![])));
        for bad in [r#"{"tags":"a"}"#, r#"{"tags":[1]}"#, r#"{"tags":[""]}"#] {
            assert!(tags(bad).is_err(), "{bad}");
        }
        let id = "5f3a91c2:7".parse().unwrap();
        for good in [r#"{"id":"5f3a91c2:7"}"#, r#"{"id":"5f3a91c2:7/9-0000000b.8","more":1}"#] {
            assert_eq!(ack_id(&json(good)), Ok(id));
        }
        for bad in ["{}", r#"{"id":7}"#, r#"{"id":"7"}"#, "[]"] {
            assert!(ack_id(&json(bad)).is_err(), "{bad}");
        }
        assert!(ack_id(&Data::Text("5f3a91c2:7".into())).is_err());
        let page = |text: &str| history_page("t", &json(text));
        let whole = PageRequest { topic: "t".into(), since: None, reverse: false, limit: 100 };
        assert_eq!(page("{}"), Ok(whole.clone()));
        assert_eq!(page(r#"{"since":null,"limit":null}"#), Ok(whole.clone()));
        let last = PageRequest { since: Some(Since::Last(5)), limit: 7, ..whole.clone() };
        assert_eq!(page(r#"{"since":"last:5","limit":7,"x":1}"#), Ok(last));
        assert_eq!(page(r#"{"reverse":true}"#), Ok(PageRequest { reverse: true, ..whole }));
        for bad in [r#"{"limit":0}"#, r#"{"limit":"7"}"#, r#"{"since":7}"#, r#"{"reverse":"x"}"#] {
            assert!(page(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_payload_does_harm(text in r#"[{}\[\]",:a-z0-9/-]{0,40}"#) {
            for text in [text.clone(), format!("{{\"since\":{text}}}"), format!("{{\"tags\":{text}}}")] {
                let payload = Data::Json(text.into());
                let _ = (join_since(&payload), join_tags(&payload), ack_id(&payload));
                let _ = (join_meta(&payload, 100), history_page("t", &payload));
                let _ = (join_token(&payload), access_token(&payload));
            }
        }
    }
}
