//! Long poll: one JSON reply with the messages after the request's resume token, and the next token.

use crate::http::{
    ANY_ORIGIN, Endpoint, Grant, HttpReply, Listener, Method, Needs, Rejection, Route, error_body,
    reject,
};
use crate::protocol::{Delivery, Liveness, Protocol, Read, Reader};
use crate::request::{Interrupt, Poll, Request};
use crate::{Codecs, Settings, json};
use model::{CloseReason, Encoding, ErrorCode, Message, Name, RecoveryGap, ResumeToken};

/// The long poll: a request that waits.
pub struct LongPoll;

impl Protocol for LongPoll {
    fn name(&self) -> &'static str {
        "poll"
    }

    fn encoding(&self) -> Encoding {
        Encoding(4)
    }

    fn delivery(&self) -> Delivery {
        Delivery::Woken
    }

    /// A poll has its own timeout.
    fn liveness(&self, _settings: &Settings) -> Liveness {
        Liveness::Unchecked
    }

    fn endpoints(&self) -> &'static [Endpoint] {
        const { &[Endpoint::new("GET", "/poll", Needs::Grants(&[Grant::Subscribe]))] }
    }

    fn route(&self, route: &Route<'_>, _out: &mut Vec<u8>) -> Option<Result<Request, Interrupt>> {
        (route.request.path == "/poll").then(|| poll(route))
    }

    /// The server reads the next request after the reply to this one.
    fn read(&self, _reader: &mut Reader<'_>, _bytes: &mut [u8], _out: &mut Vec<u8>) -> Read {
        Read::MORE
    }

    /// Appends nothing: each poll gets the messages after its own token, from the recent window, so polls share no
    /// bytes.
    fn encode(&self, _message: &Message, _codecs: &mut Codecs, _out: &mut Vec<u8>) {}

    fn goodbye(&self, close: CloseReason, retry_ms: u32, out: &mut Vec<u8>) {
        let of_tokens = [
            (CloseReason::TokenExpired, ErrorCode::TokenExpired),
            (CloseReason::TokenRevoked, ErrorCode::TokenRevoked),
        ];
        if let Some((_, code)) = of_tokens.into_iter().find(|(reason, _)| *reason == close) {
            let message =
                "the poll's token has expired or was revoked: get a new one from its issuer";
            return reject(&Rejection::new(code, message), ANY_ORIGIN, false, false, out);
        }
        let message = format!("the server ended the poll: {}; poll again", close.name());
        let body = error_body(close.name(), &message);
        let seconds = retry_ms.div_ceil(1_000);
        let headers = format!("Retry-After: {seconds}\r\n{ANY_ORIGIN}");
        HttpReply {
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

fn poll(route: &Route<'_>) -> Result<Request, Interrupt> {
    route.get()?;
    let Listener { principal, topics, query, .. } = route.listener()?;
    if principal.users.is_empty() && topics.is_empty() {
        let message =
            "name a topic or a user: /poll?topic=news or /poll?user=alice; both may be repeated";
        return Err(Rejection::new(ErrorCode::NoTopic, message).into());
    }
    // The reply to HEAD has no messages, so the server does not wait for any.
    let is_head = route.request.method == Method::Head;
    let seconds = if is_head { 0 } else { query.seconds.unwrap_or(route.settings.poll_seconds) };
    Ok(Request::Poll(Box::new(Poll {
        principal,
        topics,
        resume: query.resume,
        tags: query.tags,
        seconds: seconds.min(route.settings.poll_seconds_max),
        respond: route.respond(),
    })))
}

/// Returns the body of a reply: `{"messages":[…],"since":"epoch:offset","recovered":true}`. `since` is the token of
/// the next request. If the request had a `since`, the body has `recovered`: false if messages in between may be
/// lost, with the reason `"reason":"too_old"` if it is known. `"state_complete":["state:lamp"]` lists the compacted
/// topics, if any, whose state is complete with this reply.
pub fn reply<'a>(
    messages: impl Iterator<Item = &'a Message>,
    token: &ResumeToken,
    recovered: Option<bool>,
    reason: Option<RecoveryGap>,
    states: &[Name],
) -> Vec<u8> {
    let mut out = b"{\"messages\":[".to_vec();
    for (at, message) in messages.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        json::message(message, &mut out);
    }
    out.extend_from_slice(b"],\"since\":\"");
    json::push_display(token, &mut out);
    out.push(b'"');
    if let Some(recovered) = recovered {
        out.extend_from_slice(b",\"recovered\":");
        json::push_display(&recovered, &mut out);
    }
    if let (Some(false), Some(reason)) = (recovered, reason) {
        out.extend_from_slice(b",\"reason\":");
        json::string(reason.name(), &mut out);
    }
    if !states.is_empty() {
        out.extend_from_slice(b",\"state_complete\":");
        json::strings(states, &mut out);
    }
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_with_a_recovery_gap_gives_the_reason() {
        let text = |recovered, reason| {
            let token = "0000000a:7/9-0000000b.8".parse().unwrap();
            let reply = reply(std::iter::empty(), &token, recovered, reason, &[]);
            String::from_utf8(reply).unwrap()
        };
        let head = r#"{"messages":[],"since":"0000000a:7/9-0000000b.8""#;
        assert_eq!(text(None, Some(RecoveryGap::TooOld)), format!("{head}}}"));
        assert_eq!(
            text(Some(true), Some(RecoveryGap::TooOld)),
            format!("{head},\"recovered\":true}}")
        );
        let gap = r#","recovered":false,"reason":"epoch_changed"}"#;
        assert_eq!(text(Some(false), Some(RecoveryGap::Epoch)), format!("{head}{gap}"));
        assert_eq!(text(Some(false), None), format!("{head},\"recovered\":false}}"));
        let token = "0000000a:7".parse().unwrap();
        let states = ["a\"b".into(), "c".into()];
        let states = reply(std::iter::empty(), &token, None, None, &states);
        let want = r#"{"messages":[],"since":"0000000a:7","state_complete":["a\"b","c"]}"#;
        assert_eq!(String::from_utf8(states).unwrap(), want);
    }
}
