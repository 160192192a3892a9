//! Long poll: ask, wait for one JSON answer, ask again from the place that it names.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Client, Event, Fault, Head, Request, get};
use crate::Id;

pub(super) struct Poll;

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    since: &'a str,
}

impl Client for Poll {
    fn name(&self) -> &'static str {
        "poll"
    }

    fn default_target(&self) -> &'static str {
        "/poll?user={user}&topic={topic}"
    }

    fn request(&self, request: &Request<'_>, out: &mut Vec<u8>) {
        let Some(since) = request.since else {
            return get(request, "", out);
        };
        let join = if request.target.contains('?') { '&' } else { '?' };
        let target = format!("{}{join}since={since}", request.target);
        get(&Request { target: &target, ..*request }, "", out);
    }

    fn head(&self, head: &Head<'_>) -> Result<(), Fault> {
        head.expect(200)
    }

    fn answers_at_once(&self) -> bool {
        false
    }

    fn body(
        &self,
        body: &[u8],
        ended: bool,
        _out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> Result<usize, Fault> {
        if !ended {
            return Ok(0);
        }
        const WRONG: Fault = Fault::BadBody("the answer is no {\"messages\":[…],\"since\":…}");
        let answer: Answer<'_> = serde_json::from_slice(body).map_err(|_| WRONG)?;
        let since: Id = answer.since.parse().map_err(|_| WRONG)?;
        for message in &answer.messages {
            emit(Event::Message(message.get().as_bytes()));
        }
        emit(Event::Again(since));
        Ok(body.len())
    }
}
