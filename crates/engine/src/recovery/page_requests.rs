//! Requests of connections for pages of history, and the replies.

use history::{HistoryError, Page};
use model::{CodedError, ErrorCode};
use protocol::http;
use protocol::phoenix::{Content, ReplyStatus};
use protocol::request::PageRequest;
use protocol::{ProtocolRef, ReplyError};

use crate::core::Core;
use crate::core::reply_target::ReplyTarget;
use crate::core::responses::{refuse, reply};
use crate::engine::Engine;
use crate::recovery::pages::PageResult;

/// The error of a client with too many requests that wait.
const TOO_MANY: &str =
    "this connection is at its limit on pending pages of history: wait for a response";

impl Engine {
    /// A client that may read the topic's history requests a page. `out` gets the error if the client is at its limit
    /// on pending pages, and a reply by HTTP that is available at once. All other replies are sent when they are
    /// available.
    pub(crate) fn read_page(
        &mut self,
        slot: u32,
        request: PageRequest,
        to: ReplyTarget,
        from: usize,
        out: &mut Vec<u8>,
    ) {
        self.rates.has_joined(&mut self.core, slot);
        let keep_alive = match &to {
            ReplyTarget::Http(respond) => Some(respond.keep_alive),
            ReplyTarget::Id(_)
            | ReplyTarget::Phoenix(_)
            | ReplyTarget::Mqtt(_)
            | ReplyTarget::MqttAuth(_) => None,
        };
        if let Err(to) = self.pages.push(slot, request, to) {
            let Some(protocol) = self.core.protocol(slot) else {
                return;
            };
            let too_many = Err(CodedError::new(ErrorCode::TooManyReads, TOO_MANY));
            return write(&mut self.core, protocol, to, too_many, out);
        }
        if let Some(keep_alive) = keep_alive {
            let query = self.recovery.catchups.query();
            match self.pages.next(&self.core, slot, query) {
                Some((ReplyTarget::Http(respond), page)) => {
                    write_http(&respond, page, out);
                    self.on_replied(slot, from, keep_alive, out);
                }
                _ => _ = self.wait_for_reply(slot, out),
            }
            return;
        }
        // Earlier replies of the same turn go first.
        if !out.is_empty() {
            self.send(slot, out, 0);
            out.clear();
        }
        self.read_next_page(slot);
    }

    /// Everything was sent to the connection: it reads the next page, if it waits for one.
    pub(crate) fn read_next_page(&mut self, slot: u32) {
        loop {
            let Engine { core, pages, recovery, .. } = &mut *self;
            if !core.is_open(slot) || (core.is_backlogged(slot) && !pages.is_request(slot)) {
                return;
            }
            let query = recovery.catchups.query();
            let Some((to, page)) = pages.next(core, slot, query) else {
                return;
            };
            self.reply_page(slot, to, page);
        }
    }

    /// The history has replied.
    pub(crate) fn on_page_read(&mut self, slot: u32, query: u32, page: Result<Page, HistoryError>) {
        let Engine { core, pages, .. } = &mut *self;
        if let Some((to, page)) = pages.was_read(core, slot, query, page) {
            self.reply_page(slot, to, page);
            self.read_next_page(slot);
        }
    }

    fn reply_page(&mut self, slot: u32, to: ReplyTarget, page: PageResult) {
        if let ReplyTarget::Http(respond) = to {
            return self.reply_late(slot, respond.keep_alive, |out| {
                write_http(&respond, page, out);
            });
        }
        let core = &mut self.core;
        let Some(protocol) = core.protocol(slot) else {
            return;
        };
        let mut out = Vec::new();
        write(core, protocol, to, page, &mut out);
        // The next page is read when this one has been sent.
        core.send_and_wait(slot, &out);
        self.perform_effects();
    }
}

/// Appends the reply to a command or to a Phoenix client's message.
fn write(
    core: &mut Core,
    protocol: ProtocolRef,
    to: ReplyTarget,
    page: PageResult,
    out: &mut Vec<u8>,
) {
    match (to, page) {
        (ReplyTarget::Id(id), page) => {
            let result = page.as_deref().map_err(ReplyError::from);
            protocol.reply(&id, result, &mut core.codecs, out);
        }
        (ReplyTarget::Phoenix(message), Ok(page)) => {
            reply(protocol, &message, ReplyStatus::Ok, Content::Json(&page), out);
        }
        (ReplyTarget::Phoenix(message), Err(error)) => {
            refuse(protocol, &message, &error.phoenix_reason(), out);
        }
        (ReplyTarget::Http(respond), page) => write_http(&respond, page, out),
        // These protocols have no requests for pages.
        (ReplyTarget::Mqtt(_) | ReplyTarget::MqttAuth(_), _) => {}
    }
}

/// Appends the reply to an HTTP request.
fn write_http(respond: &protocol::request::Respond, page: PageResult, out: &mut Vec<u8>) {
    match page {
        Ok(page) => http::json_reply(respond, page.as_bytes(), out),
        Err(error) => http::reject_to(respond, &error.into(), out),
    }
}
