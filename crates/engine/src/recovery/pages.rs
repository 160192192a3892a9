//! Pages of a topic's history that clients read.
//!
//! A connection reads one page at a time. The next page waits until the history has replied and the connection has sent
//! the one before. So a client can't make the server read more with few bytes than the server sends. Only the count of
//! the newest messages for `last:N` may read more: the history bounds it, lets other queries in between, and cancels it
//! when the connection ends.

use std::collections::{HashMap, VecDeque};

use history::{Completion, HistoryError, HistoryReply, Page, PageFrom, PageQuery, Requester};
use minicbor::{Decode, Encode};
use model::{CodedError, ErrorCode, Name, Position, Since};
use protocol::history::{NO_HISTORY, PageHead, page};
use protocol::request::PageRequest;

use crate::core::Core;
use crate::core::command::Command;
use crate::core::count::count;
use crate::core::reply_target::ReplyTarget;
use crate::core::shrink::Shrink;
use crate::handover::value::{ReplyTargetRecord, Text};

/// The limit on requests for pages of one connection that wait.
const PAGES_PENDING_MAX: usize = 16;

/// The pages that connections wait for, by slot.
#[derive(Default)]
pub(crate) struct Pages {
    by_slot: HashMap<u32, VecDeque<Pending>>,
}

/// A page that a connection waits for.
struct Pending {
    request: PageRequest,
    to: ReplyTarget,
    requested: Option<PendingQuery>,
}

/// A query for a page.
struct PendingQuery {
    /// The number of the query.
    query: u32,
    /// The last position that had been delivered when the query was made.
    top: Position,
    /// Is dropped with the connection, so that the history reads nothing for one that has ended.
    _requester: Requester,
}

/// A request for a page, as it is exported to another engine, which makes the query again.
#[derive(Encode, Decode)]
#[cbor(map)]
pub(crate) struct PageRecord {
    #[n(0)]
    topic: Text<Name>,
    #[n(1)]
    since: Option<Text<Since>>,
    #[n(2)]
    reverse: bool,
    #[n(3)]
    limit: u32,
    #[n(4)]
    to: ReplyTargetRecord,
}

/// A page as it is written to the client, or why there is none.
pub(crate) type PageResult = Result<String, CodedError>;

/// The error of a client that comes with an id of another log.
const OTHER_EPOCH: &str = "since has another epoch: it is from before a restart of the server, or \
                           from a topic without history; leave it out, or use start";

impl Pages {
    /// Gives memory back after many connections have ended.
    pub fn shrink(&mut self) {
        self.by_slot.shrink();
    }

    /// The connection has left.
    pub fn forget(&mut self, slot: u32) {
        self.by_slot.remove(&slot);
    }

    /// Exports the requests of a connection, if it has any.
    pub fn export(&self, slot: u32) -> Option<Vec<PageRecord>> {
        let pending = self.by_slot.get(&slot)?;
        Some(pending.iter().map(Pending::export).collect())
    }

    /// Imports such requests. No query is made yet.
    pub fn import(&mut self, slot: u32, records: Option<Vec<PageRecord>>) {
        let pending: VecDeque<Pending> =
            records.into_iter().flatten().map(PageRecord::import).collect();
        if !pending.is_empty() {
            self.by_slot.insert(slot, pending);
        }
    }

    /// Queues a request, which has its turn by [`Pages::next`]. Returns the request if the connection has reached the
    /// limit.
    pub fn push(
        &mut self,
        slot: u32,
        request: PageRequest,
        to: ReplyTarget,
    ) -> Result<(), ReplyTarget> {
        let pending = self.by_slot.entry(slot).or_default();
        if pending.len() >= PAGES_PENDING_MAX {
            return Err(to);
        }
        pending.push_back(Pending { request, to, requested: None });
        Ok(())
    }

    /// Queries the history for the next request of a connection, unless a query is pending. Returns the reply if it is
    /// available at once.
    pub fn next(
        &mut self,
        core: &Core,
        slot: u32,
        query: u32,
    ) -> Option<(ReplyTarget, PageResult)> {
        let pending = self.by_slot.get_mut(&slot)?;
        let first = pending.front_mut().filter(|first| first.requested.is_none())?;
        let serial = core.table.get(slot)?.serial;
        let handle = core.handle.clone();
        let requester = Requester::default();
        let completion = Completion::of(&requester, move |page| {
            handle.send(Command::Paged { slot, serial, query, page });
        });
        // Read before the lookup: a message that the lookup does not find came after this position.
        let top = core.history().top();
        let result = match query_of(core, &first.request) {
            Err(refusal) => Err(refusal),
            Ok(requested) => match core.history.page(requested, completion) {
                Ok(HistoryReply::Later) => {
                    first.requested = Some(PendingQuery { query, top, _requester: requester });
                    return None;
                }
                Ok(HistoryReply::Now(page)) => written(core, &first.request, top, Ok(page)),
                Err(error) => written(core, &first.request, top, Err(error)),
            },
        };
        self.pop(slot).map(|Pending { to, .. }| (to, result))
    }

    /// Returns true if the next request of a connection is by HTTP.
    pub fn is_request(&self, slot: u32) -> bool {
        let first = self.by_slot.get(&slot).and_then(|pending| pending.front());
        matches!(first, Some(Pending { to: ReplyTarget::Http(_), .. }))
    }

    /// The history has replied. Returns the reply to the connection's first request, if that made this query.
    pub fn was_read(
        &mut self,
        core: &Core,
        slot: u32,
        query: u32,
        page: Result<Page, HistoryError>,
    ) -> Option<(ReplyTarget, PageResult)> {
        let first = self.by_slot.get(&slot)?.front()?;
        let top = first.requested.as_ref().filter(|requested| requested.query == query)?.top;
        let result = written(core, &first.request, top, page);
        self.pop(slot).map(|Pending { to, .. }| (to, result))
    }

    fn pop(&mut self, slot: u32) -> Option<Pending> {
        let pending = self.by_slot.get_mut(&slot)?;
        let first = pending.pop_front();
        if pending.is_empty() {
            self.by_slot.remove(&slot);
        }
        first
    }
}

impl Pending {
    fn export(&self) -> PageRecord {
        let Pending { request: PageRequest { topic, since, reverse, limit }, to, requested: _ } =
            self;
        let to = to.into();
        let (topic, since) = (Text(topic.clone()), since.clone().map(Text));
        PageRecord { topic, since, reverse: *reverse, limit: count(*limit), to }
    }
}

impl PageRecord {
    fn import(self) -> Pending {
        let to = self.to.into();
        let (topic, since) = (self.topic.0, self.since.map(|since| since.0));
        let limit = (self.limit as usize).clamp(1, protocol::history::PAGE_MESSAGES_MAX);
        let request = PageRequest { topic, since, reverse: self.reverse, limit };
        Pending { request, to, requested: None }
    }
}

/// The query of a request.
fn query_of(core: &Core, request: &PageRequest) -> Result<PageQuery, CodedError> {
    let PageRequest { topic, since, reverse, limit } = request;
    if core.history().rule(topic).is_none() {
        return Err(CodedError::new(ErrorCode::NoHistory, NO_HISTORY));
    }
    let from = match since {
        None | Some(Since::Start) => PageFrom::End,
        Some(Since::Last(messages)) => PageFrom::Newest(*messages as usize),
        Some(Since::Token(token)) => match token.offset(core.history().epoch()) {
            Some(offset) => PageFrom::Offset(offset),
            None => return Err(CodedError::new(ErrorCode::EpochChanged, OTHER_EPOCH)),
        },
    };
    let (hash, topic) = (core.broker.hash(topic), topic.clone());
    let bytes_max = page_bytes(core);
    Ok(PageQuery { hash, topic, from, backwards: *reverse, limit: *limit, bytes_max })
}

/// The limit on bytes of a page's messages. It leaves capacity for others in an outbox.
fn page_bytes(core: &Core) -> usize {
    core.settings.outbox_bytes_max / 2
}

/// A page as it is sent.
fn written(
    core: &Core,
    request: &PageRequest,
    top: Position,
    found: Result<Page, HistoryError>,
) -> PageResult {
    let found = found?;
    let head = PageHead {
        topic: &request.topic,
        top,
        more: found.more,
        complete: !found.gone || (request.reverse && found.gap.is_none()),
        lost: found.gap,
    };
    let (messages, mut out) = (found.messages.iter().map(|found| &found.message), Vec::new());
    page(head, messages, page_bytes(core), &mut out);
    // The bytes were text before.
    Ok(String::from_utf8_lossy(&out).into_owned())
}
