//! Requests that are held until the application has spoken: nothing of them is taken, their connection
//! is left unread, and the same bytes are read again when it is known.

use model::Name;
use protocol::http::Rejection;
use protocol::request::Verdict;

use crate::ask::{Ask, ask, busy};
use crate::command::PendingHook;
use crate::connection::{Held, Phase};
use crate::connections::Connections;
use crate::webhook::{Refusal, Webhook, WebhookResponse};

/// The held requests of an engine.
pub(crate) struct Holds<'a> {
    pub connections: &'a mut Connections,
    pub webhook: Option<&'a dyn Webhook>,
}

impl Holds<'_> {
    /// Holds a request, of which nothing was taken. `out` has the answers to those before it.
    /// What it waits for is whether these users may enter these topics.
    pub(crate) fn hold(
        &mut self,
        slot: u32,
        (topics, users, transport): (Vec<Name>, Vec<Name>, &'static str),
        out: &mut Vec<u8>,
    ) {
        // The request waits, and is not in the way of what came before it.
        if !self.connections.wait_for_answer(slot, out) {
            return;
        }
        let core = &mut self.connections.core;
        let number = core.joins.number();
        let asks = topics.iter().map(|topic| {
            let hook = PendingHook::Hold(number, topic.clone());
            Ask::subscribe(topic.clone(), users.clone(), transport, hook)
        });
        let asks = asks.collect();
        if let Some(cold) = core.table.cold_or_new(slot) {
            // What it has said of other topics counts still.
            let verdicts = cold.held.take().map(|held| held.verdicts).unwrap_or_default();
            let waiting = topics.clone();
            cold.held = Some(Box::new(Held { number, waiting, verdicts }));
        }
        if ask(core, self.webhook, slot, asks).is_err() {
            let allowed = core.settings.silence_allows;
            for topic in topics {
                let result = if allowed { Ok(None) } else { Err(rejection(busy())) };
                self.said(slot, number, Verdict { topic, result });
            }
        }
    }

    /// The application has answered.
    pub(crate) fn answered(
        &mut self,
        slot: u32,
        number: u32,
        topic: Name,
        response: WebhookResponse,
    ) {
        let settings = &self.connections.core.settings;
        let meta_bytes_max = settings.presence_meta_bytes_max;
        let result = match response.decided(settings.silence_allows) {
            Err(refusal) => Err(rejection(*refusal)),
            Ok((_, changes)) => match changes.meta {
                Some(meta) if meta.len() > meta_bytes_max => Err(rejection(too_large_meta())),
                meta => Ok(meta),
            },
        };
        self.said(slot, number, Verdict { topic, result });
    }

    /// A verdict is there. The request goes on with the first no, or the last yes.
    fn said(&mut self, slot: u32, number: u32, verdict: Verdict) {
        let core = &mut self.connections.core;
        let Some(held) = core.table.cold_mut(slot).and_then(|cold| cold.held.as_mut()) else {
            return;
        };
        // An answer to an earlier question, of a request that went on without it.
        if held.number != number || held.waiting.is_empty() {
            return;
        }
        let refused = verdict.result.is_err();
        held.waiting.retain(|topic| *topic != verdict.topic);
        held.verdicts.push(verdict);
        if refused {
            held.waiting.clear();
        }
        if held.waiting.is_empty() {
            let now_s = core.now_wrapping_s();
            core.enter(slot, Phase::Request);
            if let Some(connection) = core.table.get_mut(slot) {
                connection.heard_s = now_s;
            }
            core.resumed.push(slot);
        }
    }
}

/// A meta of the application's that is larger than one may be.
pub(crate) fn too_large_meta() -> Refusal {
    Refusal::silent("unanswered", "the application's answer has a larger meta than may be")
}

fn rejection(refusal: Refusal) -> Rejection {
    Rejection::new(refusal.status, String::from(refusal.code), String::from(refusal.message))
}
