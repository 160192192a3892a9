//! Fields of payloads that Throng reads: of a join, a new token, an acknowledgement, a page of history.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::history::{self, PageFields};
use crate::request::PageRequest;
use crate::{data, wildcards};
use model::{Data, Name, Position, ResumeToken, Since, SinceError, tags};

/// The fields of a join's payload, from one parse. The engine may reject a join for other reasons first, so
/// [`Join::fields`] reports an invalid field only when the engine calls it.
pub struct Join<'a> {
    /// The payload has `"filter":"mqtt"`: + and # in the topic are wildcards.
    pub is_filter: bool,
    /// The position from which the client requests the topic: after the id of the last message that it saw (the
    /// second argument of `channel.on`'s callback), from the `start`, or `last:50`. The error has the reason.
    pub since: Result<Option<Since>, String>,
    tags: Result<Vec<Name>, String>,
    meta: Option<&'a str>,
    token: Option<Cow<'a, str>>,
}

/// The fields of a join, all valid.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct JoinFields<'a> {
    /// The client's meta in the topic's presence: the text of a JSON object.
    pub meta: Option<&'a str>,
    /// The position from which the client requests the topic.
    pub since: Option<Since>,
    /// The client gets only messages with one of these tags, or all messages if the list is empty.
    pub tags: Vec<Name>,
    /// A token for this topic only.
    pub token: Option<Cow<'a, str>>,
}

impl<'a> Join<'a> {
    /// Parses a join's payload.
    ///
    /// # Errors
    /// The reason why `filter` is invalid.
    pub fn parse(payload: &'a Data) -> Result<Self, String> {
        let Fields { meta, since, tags, token, filter, .. } = fields(payload);
        let check_filter = |filter: &RawValue| {
            let filter = string(filter).unwrap_or_default();
            wildcards::check_kind(&filter).map_err(|error| error.message.into_owned())
        };
        Ok(Join {
            is_filter: filter.map(check_filter).transpose()?.is_some(),
            since: since.map_or(Ok(None), join_since),
            tags: tags.map_or(Ok(Vec::new()), join_tags),
            meta: meta.map(RawValue::get),
            token: token.and_then(string),
        })
    }

    /// Returns true if the join has tags or a meta, which a filter with a wildcard can't have.
    pub fn has_tags_or_meta(&self) -> bool {
        let has_tags = self.tags.as_ref().is_ok_and(|tags| !tags.is_empty());
        has_tags || self.meta(usize::MAX).is_ok_and(|meta| meta.is_some())
    }

    /// Returns the checked fields, with a meta of at most `meta_bytes_max` bytes.
    ///
    /// # Errors
    /// The reason why a field is invalid.
    pub fn fields(self, meta_bytes_max: usize) -> Result<JoinFields<'a>, String> {
        let meta = self.meta(meta_bytes_max)?;
        let Join { is_filter: _, since, tags, meta: _, token } = self;
        Ok(JoinFields { meta, since: since?, tags: tags?, token })
    }

    fn meta(&self, bytes_max: usize) -> Result<Option<&'a str>, String> {
        self.meta.map(|meta| data::meta(meta, bytes_max)).transpose()
    }
}

fn join_since(since: &RawValue) -> Result<Option<Since>, String> {
    let text = string(since).ok_or_else(|| SinceError::Token.to_string())?;
    // The client has seen nothing yet.
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error: SinceError| error.to_string())
}

fn join_tags(tags: &RawValue) -> Result<Vec<Name>, String> {
    let names: Vec<String> = serde_json::from_str(tags.get())
        .map_err(|_| "tags must be an array of strings".to_string())?;
    tags::list(names)
}

/// Parses a client's new token, from the payload `{"access_token":"…"}` or `{"token":"…"}` of its event
/// `access_token`. The error has the reason.
pub fn access_token(payload: &Data) -> Result<Box<str>, &'static str> {
    let Fields { access_token, token, .. } = fields(payload);
    let found = access_token.or(token).and_then(string).map(Box::from);
    found.ok_or("the payload of access_token must be {\"access_token\":…} with a JSON Web Token")
}

/// Parses the position up to which a client has all messages, from the payload `{"id":"…"}` of its event `ack`. The
/// error has the reason.
pub fn ack_id(payload: &Data) -> Result<Position, String> {
    let id = fields(payload).id.and_then(string);
    let token = id.and_then(|id| id.parse::<ResumeToken>().ok());
    token.map(|token| token.id).ok_or_else(|| {
        let message = "the payload of ack must be {\"id\":…} with the id of a message exactly as \
                       it was received, like 5f3a91c2:1042";
        message.into()
    })
}

/// Parses the page of a topic's history that a client requests by its event `history`, with the payload
/// `{"limit":…,"since":…,"reverse":…}`. The error has the reason.
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
    fields.and_then(PageRequest::read).map_err(|error| error.message.into_owned())
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

/// Reads the known fields of a payload. Payloads of any other shape are the application's own, and have none of them;
/// serde would read an array as a struct.
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

/// Checks that a payload is a meta.
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
        let join_meta = |payload: &Data, bytes_max| -> Result<Option<String>, String> {
            let fields = Join::parse(payload)?.fields(bytes_max)?;
            Ok(fields.meta.map(String::from))
        };
        assert_eq!(join_meta(&json(r#"{"meta":{"a":1},"b":2}"#), 7), Ok(Some(r#"{"a":1}"#.into())));
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
        let since = |text: &str| Join::parse(&json(text)).unwrap().since;
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
        let tags = |text: &str| Join::parse(&json(text)).unwrap().tags;
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

    #[test]
    fn a_join_reports_its_first_invalid_field() {
        let payload = |text: &str| Data::Json(text.into());
        let wrong = |text: &str| {
            let payload = payload(text);
            Join::parse(&payload).and_then(|join| join.fields(7).map(|_| ())).unwrap_err()
        };
        assert!(wrong(r#"{"filter":"glob","meta":1}"#).contains("filter must be mqtt"));
        assert!(wrong(r#"{"filter":7}"#).contains("filter must be mqtt"));
        assert!(wrong(r#"{"tags":1,"since":1,"meta":1}"#).contains("meta must be"));
        assert!(wrong(r#"{"tags":1,"since":1,"meta":{"a":10}}"#).contains("at most 7 bytes"));
        assert!(wrong(r#"{"tags":1,"since":"last:0"}"#).contains("1 to 1000"));
        assert!(wrong(r#"{"tags":1}"#).contains("tags must be"));
        let (all, none) = (payload(r#"{"filter":"mqtt","token":"\u0061"}"#), payload("[]"));
        let (join, none) = (Join::parse(&all).unwrap(), Join::parse(&none).unwrap());
        assert!(join.is_filter && !join.has_tags_or_meta() && !none.is_filter);
        assert_eq!(join.fields(7).unwrap().token.as_deref(), Some("a"));
        assert_eq!(none.fields(7), Ok(JoinFields::default()));
        for (text, expected) in [
            (r#"{"tags":["a"]}"#, true),
            (r#"{"meta":{"a":10}}"#, true),
            (r#"{"tags":[],"meta":null}"#, false),
            (r#"{"tags":[""],"meta":[]}"#, false),
        ] {
            let payload = payload(text);
            assert_eq!(Join::parse(&payload).unwrap().has_tags_or_meta(), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_payload_does_harm(text in r#"[{}\[\]",:a-z0-9/-]{0,40}"#) {
            for text in [text.clone(), format!("{{\"since\":{text}}}"), format!("{{\"tags\":{text}}}")] {
                let payload = Data::Json(text.into());
                let _ = Join::parse(&payload).map(|join| join.fields(100));
                let _ = (ack_id(&payload), history_page("t", &payload), access_token(&payload));
            }
        }
    }
}
