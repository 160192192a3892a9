//! Pages of a topic's history: requests of clients, and replies.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::json;
use crate::request::PageRequest;
use model::name::{check_name, check_topic, personal};
use model::{CodedError, Data, ErrorCode, Message, Name, Position, Since, SinceError, TopicKind};

/// Messages in a page, if the request has no limit.
pub const PAGE_MESSAGES: usize = 100;

/// Messages in a page, at most.
pub const PAGE_MESSAGES_MAX: usize = 1_000;

/// The error for a topic without history.
pub const NO_HISTORY: &str = "this topic has no history: the server's configuration has no \
                              [[topics]] table for it with history_messages_max (for a user's own \
                              topic: inbox.enabled)";

/// The unchecked fields of a request for a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageFields<'a> {
    /// The topic.
    pub topic: Option<&'a str>,
    /// The user whose own topic it is, instead of the topic.
    pub user: Option<&'a str>,
    /// The position where the page begins.
    pub since: Option<&'a str>,
    /// The number of messages, at most.
    pub limit: Option<u64>,
    /// The newest messages come first.
    pub reverse: bool,
}

impl PageRequest {
    /// Checks a client's request.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub fn read(fields: PageFields<'_>) -> Result<Self, CodedError> {
        let PageFields { topic, user, since, limit, reverse } = fields;
        let topic = match (topic, user) {
            (Some(topic), _) => {
                let checked = match TopicKind::of(topic).user() {
                    Some(own) => check_name(own),
                    None => check_topic(topic),
                };
                checked.map_err(|error| CodedError::new(ErrorCode::BadTopic, error))?;
                Name::from(topic)
            }
            (None, Some(user)) => {
                check_name(user).map_err(|error| CodedError::new(ErrorCode::BadUser, error))?;
                personal(user)
            }
            (None, None) => {
                let message = "name the topic whose history you request: topic, or user for the \
                               messages sent to a user";
                return Err(CodedError::new(ErrorCode::NoTopic, message));
            }
        };
        let since = since.filter(|since| !since.is_empty()).map(str::parse::<Since>).transpose();
        let since = since
            .map_err(|error: SinceError| CodedError::new(ErrorCode::BadSince, error.to_string()))?;
        if reverse && since.as_ref().is_some_and(|since| since.token().is_none()) {
            let message = "start and last:N read forwards: remove since or reverse";
            return Err(CodedError::new(ErrorCode::BadSince, message));
        }
        let limit = limit.unwrap_or(PAGE_MESSAGES as u64);
        let limit =
            usize::try_from(limit).ok().filter(|limit| (1..=PAGE_MESSAGES_MAX).contains(limit));
        Ok(PageRequest { topic, since, reverse, limit: limit.ok_or_else(bad_limit)? })
    }
}

/// Parses the limit from the JSON text of a command.
pub(crate) fn limit(json: &str) -> Result<u64, CodedError> {
    json.parse().map_err(|_| bad_limit())
}

fn bad_limit() -> CodedError {
    let message = format!("limit must be a number from 1 to {PAGE_MESSAGES_MAX}");
    CodedError::new(ErrorCode::BadLimit, message)
}

/// Parses `reverse` from the JSON text of a command.
pub(crate) fn reverse(json: &str) -> Result<bool, CodedError> {
    json.parse()
        .map_err(|_| CodedError::new(ErrorCode::BadReverse, "reverse must be true or false"))
}

/// A page without its messages.
#[derive(Clone, Copy, Debug)]
pub struct PageHead<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The last position that members had been sent when the page was looked up.
    pub top: Position,
    /// The topic has more messages in this direction.
    pub more: bool,
    /// No message of the requested range is gone.
    pub complete: bool,
    /// Messages after the first offset and up to the second may have been lost.
    pub lost: Option<(u64, u64)>,
}

/// Appends a page in the format of `GET /api/history/{topic}`:
/// `{"topic":…,"epoch":…,"messages":[…],"more":…,"next":…,"last":…,"complete":…}`. It ends before the message with
/// which its messages would exceed `bytes_max`; it has at least one message, if any matches.
pub fn page<'a>(
    head: PageHead<'_>,
    messages: impl Iterator<Item = &'a Message>,
    bytes_max: usize,
    out: &mut Vec<u8>,
) {
    let PageHead { topic, top, mut more, complete, lost } = head;
    out.extend_from_slice(b"{\"topic\":");
    json::string(topic, out);
    out.extend_from_slice(b",\"epoch\":\"");
    json::push_display(&top.epoch, out);
    out.extend_from_slice(b"\",\"messages\":[");
    let (from, mut end, mut newest) = (out.len(), None, top.offset);
    for message in messages {
        let before = out.len();
        if end.is_some() {
            out.push(b',');
        }
        row(message, out);
        if end.is_some() && out.len() - from > bytes_max {
            out.truncate(before);
            more = true;
            break;
        }
        end = Some(message.id);
        newest = newest.max(message.id.offset);
    }
    out.extend_from_slice(b"],\"more\":");
    json::push_display(&more, out);
    out.extend_from_slice(b",\"next\":");
    match end.filter(|_| more) {
        Some(next) => quoted(next, out),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"last\":");
    quoted(Position { offset: newest, ..top }, out);
    out.extend_from_slice(b",\"complete\":");
    json::push_display(&complete, out);
    if let Some((after, through)) = lost {
        out.extend_from_slice(b",\"lost\":{\"after\":");
        quoted(Position { offset: after, ..top }, out);
        out.extend_from_slice(b",\"through\":");
        quoted(Position { offset: through, ..top }, out);
        out.push(b'}');
    }
    out.push(b'}');
}

/// Appends a message of a page.
fn row(message: &Message, out: &mut Vec<u8>) {
    let publication = &message.publication;
    out.extend_from_slice(b"{\"id\":");
    quoted(message.id, out);
    out.extend_from_slice(b",\"offset\":");
    json::push_display(&message.id.offset, out);
    out.extend_from_slice(b",\"topic\":");
    json::string(&publication.topic, out);
    out.extend_from_slice(b",\"event\":");
    json::string(message.event(), out);
    out.extend_from_slice(b",\"data\":");
    match &publication.data {
        Data::Json(json) => out.extend_from_slice(json.as_bytes()),
        Data::Text(text) => json::string(text, out),
        Data::Binary(bytes) => {
            json::string(&STANDARD.encode(bytes), out);
            out.extend_from_slice(b",\"encoding\":\"base64\"");
        }
    }
    if let Some(sender) = publication.sender() {
        out.extend_from_slice(b",\"sender\":");
        json::string(sender, out);
    }
    if !publication.tags().is_empty() {
        out.extend_from_slice(b",\"tags\":");
        json::strings(publication.tags(), out);
    }
    if let Some(key) = publication.key() {
        out.extend_from_slice(b",\"key\":");
        json::string(key, out);
    }
    out.extend_from_slice(b",\"published_at\":");
    json::push_display(&message.at_ms, out);
    out.push(b'}');
}

fn quoted(position: Position, out: &mut Vec<u8>) {
    out.push(b'"');
    json::push_display(&position, out);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Attributes, Epoch, Publication, Retention};

    const EPOCH: Epoch = Epoch(10);

    fn message(offset: u64, data: Data) -> Message {
        let id = Position { epoch: EPOCH, offset };
        Message::new(Publication::new("t", data), id, 0, 0).retained(Retention::History, 99)
    }

    fn text(head: PageHead<'_>, messages: &[Message], bytes_max: usize) -> serde_json::Value {
        let mut out = Vec::new();
        page(head, messages.iter(), bytes_max, &mut out);
        serde_json::from_slice(&out).unwrap()
    }

    const HEAD: PageHead<'_> = PageHead {
        topic: "t",
        top: Position { epoch: EPOCH, offset: 9 },
        more: false,
        complete: true,
        lost: None,
    };

    #[test]
    fn a_page_is_what_the_api_replies() {
        let mut tagged = message(8, Data::Binary([0, 255].into()));
        tagged.publication.attributes = Attributes::of(vec!["red".into()], Some("k".into()));
        tagged.publication.event = Some("tick".into());
        let messages = [message(7, Data::Json("{\"n\":1}".into())), tagged];
        let lost = Some((3, 5));
        let head = PageHead { lost, complete: false, ..HEAD };
        let want = serde_json::json!({
            "topic": "t", "epoch": "0000000a",
            "messages": [
                {"id": "0000000a:7", "offset": 7, "topic": "t", "event": "message",
                    "data": {"n": 1}, "published_at": 99},
                {"id": "0000000a:8", "offset": 8, "topic": "t", "event": "tick", "data": "AP8=",
                    "encoding": "base64", "tags": ["red"], "key": "k", "published_at": 99},
            ],
            "more": false, "next": null, "last": "0000000a:9", "complete": false,
            "lost": {"after": "0000000a:3", "through": "0000000a:5"},
        });
        assert_eq!(text(head, &messages, 1 << 20), want);
        let empty = serde_json::json!({"topic": "t", "epoch": "0000000a", "messages": [],
            "more": false, "next": null, "last": "0000000a:9", "complete": true});
        assert_eq!(text(HEAD, &[], 0), empty);
    }

    #[test]
    fn a_page_is_cut_short_and_says_where_it_goes_on() {
        let messages: Vec<Message> =
            (1..=20).map(|offset| message(offset, Data::Text("x".repeat(100).into()))).collect();
        for (bytes_max, count) in [(0, 1), (300, 1), (500, 2), (1_900, 10), (1 << 20, 20)] {
            let page = text(HEAD, &messages, bytes_max);
            let rows = page["messages"].as_array().unwrap().len();
            assert_eq!(rows, count, "{bytes_max}");
            let next = (count < 20).then(|| format!("0000000a:{count}"));
            assert_eq!(page["next"].as_str().map(String::from), next);
            assert_eq!(page["more"], count < 20);
            // The whole page is newer than `top`.
            assert_eq!(page["last"], format!("0000000a:{}", 9.max(count)));
        }
        let more = PageHead { more: true, ..HEAD };
        assert_eq!(text(more, &messages[..3], 1 << 20)["next"], "0000000a:3");
    }

    #[test]
    fn requested_parameters_are_checked() {
        let fields = PageFields { topic: Some("t"), ..PageFields::default() };
        let code = |fields| PageRequest::read(fields).unwrap_err().code;
        let whole = PageRequest::read(fields).unwrap();
        assert_eq!((whole.since, whole.limit, whole.reverse), (None, PAGE_MESSAGES, false));
        let own = PageFields { topic: None, user: Some("al"), ..fields };
        assert_eq!(PageRequest::read(own).unwrap().topic, "@al");
        let last = PageFields { since: Some("last:7"), limit: Some(1_000), ..fields };
        let last = PageRequest::read(last).unwrap();
        assert_eq!((last.since, last.limit), (Some(Since::Last(7)), PAGE_MESSAGES_MAX));
        assert!(PageRequest::read(PageFields { topic: Some("@al"), ..fields }).is_ok());
        assert_eq!(code(PageFields::default()), "no_topic");
        for topic in ["", "@", "a\n"] {
            assert_eq!(code(PageFields { topic: Some(topic), ..fields }), "bad_topic", "{topic:?}");
        }
        assert_eq!(code(PageFields { topic: None, user: Some(""), ..fields }), "bad_user");
        for limit in [0, 1_001, u64::MAX] {
            assert_eq!(code(PageFields { limit: Some(limit), ..fields }), "bad_limit");
        }
        for since in ["x", "last:0"] {
            assert_eq!(code(PageFields { since: Some(since), ..fields }), "bad_since");
        }
        for since in ["start", "last:5"] {
            let fields = PageFields { since: Some(since), reverse: true, ..fields };
            assert_eq!(code(fields), "bad_since", "{since}");
        }
    }
}
