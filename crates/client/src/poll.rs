//! Long poll: request, wait for one JSON response, request again with its resume token.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Client, ClientError, Event, Head, Request, get, message_id, target};
use model::ResumeToken;

pub(super) struct Poll;

#[derive(Deserialize)]
struct ReplyBody<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    since: &'a str,
    recovered: Option<bool>,
    reason: Option<&'a str>,
}

impl Client for Poll {
    fn name(&self) -> &'static str {
        "poll"
    }

    fn default_target(&self) -> &'static str {
        "/poll?user={user}&topic={topic}"
    }

    fn request(&self, request: &Request<'_>, out: &mut Vec<u8>) {
        get(&Request { target: &target(request), ..*request }, "", out);
    }

    fn head(&self, head: &Head<'_>) -> Result<(), ClientError> {
        head.expect(200)
    }

    fn replies_at_once(&self) -> bool {
        false
    }

    fn has_one_token(&self) -> bool {
        true
    }

    fn body(
        &self,
        body: &[u8],
        ended: bool,
        _out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, ClientError> {
        if !ended {
            return Ok(0);
        }
        const INVALID: ClientError =
            ClientError::InvalidBody("the response is not {\"messages\":[…],\"since\":…}");
        let reply: ReplyBody<'_> = serde_json::from_slice(body).map_err(|_| INVALID)?;
        reply.since.parse::<ResumeToken>().map_err(|_| INVALID)?;
        reply.reason.into_iter().for_each(|reason| emit(Event::Gap(reason)));
        reply.recovered.into_iter().for_each(|recovered| emit(Event::Recovered(recovered)));
        for message in &reply.messages {
            let message = message.get().as_bytes();
            emit(Event::Message(message));
            message_id(message).into_iter().for_each(|id| emit(Event::Token(id)));
        }
        emit(Event::Again(reply.since));
        Ok(body.len())
    }
}
