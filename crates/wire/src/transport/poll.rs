//! Long poll: one JSON answer with what came after the asked place, and the place to ask for next.

use super::{Tools, Transport, json};
use crate::http::Answer;
use crate::{Close, Lost, Message, Since};

pub(super) struct Poll;

impl Transport for Poll {
    fn name(&self) -> &'static str {
        "poll"
    }

    /// A poll is answered from the recent window, from its own place on: nothing is shared.
    fn encode(&self, _message: &Message, _tools: &mut Tools, _out: &mut Vec<u8>) {}

    fn heartbeat(&self, _out: &mut Vec<u8>) {}

    fn goodbye(&self, close: Close, retry_ms: u32, out: &mut Vec<u8>) {
        let message = format!("the server ended the poll: {}; ask again", close.name());
        let body = crate::http::error_body(close.name(), &message);
        let seconds = retry_ms.div_ceil(1_000);
        let headers = format!("Retry-After: {seconds}\r\nAccess-Control-Allow-Origin: *\r\n");
        Answer {
            status: 503,
            headers: &headers,
            content_type: "application/json",
            body: &body,
            keep_alive: false,
            head_only: false,
        }
        .write(out);
    }
}

/// The body of an answer: `{"messages":[…],"since":"epoch:offset","recovered":true}`. `recovered`
/// is there when the request had a `since`: false when messages in between may be lost, and then
/// `"reason":"too_old"` says why, if that is known. `since` is what to ask with next.
pub fn answer<'a>(
    messages: impl Iterator<Item = &'a Message>,
    since: &Since,
    recovered: Option<bool>,
    reason: Option<Lost>,
) -> Vec<u8> {
    let mut out = b"{\"messages\":[".to_vec();
    for (at, message) in messages.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        json::message(message, &mut out);
    }
    out.extend_from_slice(b"],\"since\":\"");
    json::push_display(since, &mut out);
    out.push(b'"');
    if let Some(recovered) = recovered {
        out.extend_from_slice(b",\"recovered\":");
        json::push_display(&recovered, &mut out);
    }
    if let (Some(false), Some(reason)) = (recovered, reason) {
        out.extend_from_slice(b",\"reason\":");
        json::string(reason.name(), &mut out);
    }
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_told_where_something_is_lost() {
        let text = |recovered, reason| {
            let since = "0000000a:7/9-0000000b.8".parse().unwrap();
            String::from_utf8(answer(std::iter::empty(), &since, recovered, reason)).unwrap()
        };
        let head = r#"{"messages":[],"since":"0000000a:7/9-0000000b.8""#;
        assert_eq!(text(None, Some(Lost::TooOld)), format!("{head}}}"));
        assert_eq!(text(Some(true), Some(Lost::TooOld)), format!("{head},\"recovered\":true}}"));
        let why = r#","recovered":false,"reason":"epoch_changed"}"#;
        assert_eq!(text(Some(false), Some(Lost::Epoch)), format!("{head}{why}"));
        assert_eq!(text(Some(false), None), format!("{head},\"recovered\":false}}"));
    }
}
