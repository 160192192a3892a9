//! Long poll: ask, wait for one JSON answer, ask again from the place that it names.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Client, Event, Fault, Head, Request, get, place, since};
use crate::Since;

pub(super) struct Poll;

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    since: &'a str,
    recovered: Option<bool>,
}

impl Client for Poll {
    fn name(&self) -> &'static str {
        "poll"
    }

    fn default_target(&self) -> &'static str {
        "/poll?user={user}&topic={topic}"
    }

    fn request(&self, request: &Request<'_>, out: &mut Vec<u8>) {
        get(&Request { target: &since(request), ..*request }, "", out);
    }

    fn head(&self, head: &Head<'_>) -> Result<(), Fault> {
        head.expect(200)
    }

    fn answers_at_once(&self) -> bool {
        false
    }

    fn has_one_place(&self) -> bool {
        true
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
        answer.since.parse::<Since>().map_err(|_| WRONG)?;
        answer.recovered.into_iter().for_each(|recovered| emit(Event::Recovered(recovered)));
        for message in &answer.messages {
            let message = message.get().as_bytes();
            emit(Event::Message(message));
            place(message).into_iter().for_each(|place| emit(Event::Place(place)));
        }
        emit(Event::Again(answer.since));
        Ok(body.len())
    }
}
