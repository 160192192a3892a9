//! Requests that wait for decisions of the application. The engine consumes none of their bytes and does not read their
//! socket meanwhile. When the decisions have come, it reads the same bytes again.

use model::{ErrorCode, Name};
use protocol::http::Rejection;
use protocol::request::{ConnectDecision, ConnectRequest, TopicDecision};

use crate::connection::{PendingRequest, Phase};
use crate::engine::Engine;
use crate::webhook::pending_hook::PendingHook;
use crate::webhook::request::{HookRequest, NotSent, busy, send_requests};
use crate::webhook::{Connecting, Refusal, RequestDetails, WebhookKind, WebhookResponse};

impl Engine {
    /// Makes a request, of which no byte is consumed, wait for decisions whether these users may subscribe to these
    /// topics. `out` has the replies to earlier requests.
    pub(crate) fn await_subscribe_decision(
        &mut self,
        slot: u32,
        (topics, users, transport): (Vec<Name>, Vec<Name>, &'static str),
        out: &mut Vec<u8>,
    ) {
        let requests = |number| {
            let requests = topics.iter().map(|topic| {
                let hook = PendingHook::HttpSubscribe(number, topic.clone());
                HookRequest::subscribe(topic.clone(), users.clone(), transport, hook)
            });
            requests.collect()
        };
        let Err(number) = self.make_pending(slot, (false, &topics), requests, out) else {
            return;
        };
        let allowed = self.core.settings.silence_allows;
        for topic in topics {
            let result = if allowed { Ok(None) } else { Err(rejection(busy())) };
            self.on_decision(slot, number, |pending| {
                pending.topic(TopicDecision { topic, result })
            });
        }
    }

    /// Makes a request wait for the decision which users its client has.
    pub(crate) fn await_connect_decision(
        &mut self,
        slot: u32,
        mut request: ConnectRequest,
        out: &mut Vec<u8>,
    ) {
        let core = &self.core;
        let address = core.peers.address(slot);
        let topics_max = core.settings.session.topics_per_connection_max;
        let (users, transport) = (std::mem::take(&mut request.users), request.transport);
        let requests = |number| {
            let details = RequestDetails::new(WebhookKind::Connect, None, users, transport);
            let connect = Some(Box::new(Connecting { address, request, topics_max }));
            let hook = PendingHook::Connect(number);
            vec![HookRequest { details: RequestDetails { connect, ..details }, hook }]
        };
        if let Err(number) = self.make_pending(slot, (true, &[]), requests, out) {
            let refusal = WebhookResponse::Error(busy().into());
            let allowed = self.core.settings.silence_allows;
            let silent = WebhookResponse::Silent("the application is busy: try again later");
            self.on_connect_reply(slot, number, if allowed { silent } else { refusal });
        }
    }

    /// Makes a request wait for decisions, and sends the requests for these. Returns its number as an error if they
    /// could not be sent.
    fn make_pending(
        &mut self,
        slot: u32,
        (connect, topics): (bool, &[Name]),
        requests: impl FnOnce(u32) -> Vec<HookRequest>,
        out: &mut Vec<u8>,
    ) -> Result<(), u32> {
        let found = self.core.table.get(slot);
        let open = found.is_some_and(|connection| connection.phase() == Phase::Open);
        // Earlier replies are sent before the request waits.
        if !self.wait_for_reply(slot, out) {
            return Ok(());
        }
        let core = &mut self.core;
        let number = core.joins.number();
        if let Some(cold) = core.table.cold_or_new(slot) {
            // Earlier decisions about the same request still count.
            let decisions =
                cold.pending.take().map(|pending| pending.decisions).unwrap_or_default();
            let waiting = topics.to_vec();
            cold.pending =
                Some(Box::new(PendingRequest { number, connect, waiting, decisions, open }));
        }
        send_requests(core, slot, requests(number)).map_err(|NotSent { .. }| number)
    }

    /// The application has decided about a topic.
    pub(crate) fn on_subscribe_decision(
        &mut self,
        slot: u32,
        number: u32,
        topic: Name,
        response: WebhookResponse,
    ) {
        let result = response.entered(&self.core.settings);
        let result = result.map(|(_, meta)| meta).map_err(|refusal| rejection(*refusal));
        self.on_decision(slot, number, |pending| pending.topic(TopicDecision { topic, result }));
    }

    /// The application has named the users of a request.
    pub(crate) fn on_connect_reply(&mut self, slot: u32, number: u32, response: WebhookResponse) {
        let allowed = self.core.settings.silence_allows;
        let result = match response {
            WebhookResponse::Ok { changes, .. } => Ok(Some(changes.admission.unwrap_or_default())),
            WebhookResponse::Silent(_) if allowed => Ok(None),
            WebhookResponse::Silent(why) => {
                Err(rejection(Refusal::silent(ErrorCode::NoApplicationReply, why)))
            }
            WebhookResponse::Error(refusal) if refusal.code == ErrorCode::Unauthorized => {
                Err(Rejection { status: 401, ..rejection(*refusal) })
            }
            WebhookResponse::Error(refusal) => Err(rejection(*refusal)),
        };
        let at_s = self.core.unix_s();
        self.on_decision(slot, number, |pending| {
            pending.connected(ConnectDecision { result, at_s })
        });
    }

    /// A decision has come. The request goes on after the first rejection, or when all decisions have allowed it.
    fn on_decision(&mut self, slot: u32, number: u32, note: impl FnOnce(&mut PendingRequest)) {
        let core = &mut self.core;
        let Some(pending) = core.table.cold_mut(slot).and_then(|cold| cold.pending.as_mut()) else {
            return;
        };
        // The response is for an earlier request of the connection, which no longer waits.
        if pending.number != number || !pending.waits() {
            return;
        }
        note(pending);
        if !pending.waits() {
            let phase = if pending.open { Phase::Open } else { Phase::Request };
            let now_s = core.now_wrapping_s();
            core.enter(slot, phase);
            if let Some(connection) = core.table.get_mut(slot) {
                connection.last_received_s = now_s;
            }
            core.resumed.push(slot);
        }
    }
}

fn rejection(refusal: Refusal) -> Rejection {
    Rejection::by_application(refusal.status, refusal.code, refusal.message.into())
}
