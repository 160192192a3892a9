//! Long polls: each gets its reply from recent messages, or wakes up when one is published.

use broker::Recent;
use history::{Completion, HistoryReply, Piece, Pull, Start, TopicCursor};
use model::{
    Behind, CloseReason, Frontier, Name, Position, RecoveryGap, ResumeRequest, ResumeToken,
    TopicKind,
};
use protocol::Protocol;
use protocol::http::json_reply;
use protocol::poll::{self, LongPoll};
use protocol::request;

use crate::connection::{Phase, Poll, PollHistory, PollStart};
use crate::core::command::Command;
use crate::core::count::count;
use crate::engine::Engine;
use crate::recovery::has_gap_notice;

/// The most messages with history in one reply; the next poll gets more.
const REPLY_MESSAGES: usize = if cfg!(test) { 4 } else { 256 };

impl Engine {
    /// Starts a poll. It enters its topics first and then scans: a message after the scan wakes it, and the scan
    /// finds those before. So none is missed.
    pub(crate) fn start_poll(&mut self, slot: u32, poll: request::Poll, out: &mut Vec<u8>) {
        if !self.send_earlier(slot, out) {
            return;
        }
        self.core.take_up(slot, LongPoll.encoding(), Phase::Waiting);
        self.enter_hub(slot, &poll.principal, &poll.topics);
        self.recovery.catchups.choose(&mut self.core, slot, None, &poll.tags);
        let deadline_s = self.core.now_s().saturating_add(poll.seconds);
        let mut history = self.poll_history(slot, &poll.resume);
        let resumes = !poll.resume.is_empty();
        let token = poll.resume.all.as_ref().and_then(|since| since.token());
        let epoch = self.core.broker.epoch();
        let from = token.and_then(|token| token.offset(epoch));
        let from = from.map(|offset| Position { epoch, offset });
        // An id of another epoch: the broker detects it.
        let from = from.or(token.map(|token| token.id).filter(|_| history.is_none()));
        let recent = self.recent_of_poll(slot, from);
        let no_history = resumes && from.is_none() && history.is_none();
        let no_history = no_history || self.requests_in_vain(slot, &poll.resume);
        let gap = match (&history, from) {
            (Some(history), _) if history.gap.is_some() => history.gap,
            (_, Some(from)) if !recent.complete => {
                let same = from.epoch == self.core.broker.epoch();
                Some(if same { RecoveryGap::TooOld } else { RecoveryGap::Epoch })
            }
            _ => no_history.then_some(RecoveryGap::NoHistory),
        };
        let recovered = resumes.then_some(gap.is_none());
        // A client that enters a compacted topic gets even an empty state at once; a client that resumes knows it.
        let enters = history.as_ref().is_some_and(|history| {
            let plain = history.cursors.iter().take(history.plain);
            let is_new = |cursor: &&TopicCursor| {
                cursor.whole && poll.resume.token_of(&cursor.topic).is_none()
            };
            plain.filter(is_new).any(|cursor| self.is_compact(&cursor.topic))
        });
        let now = !recent.messages.is_empty() || gap.is_some() || enters || poll.seconds == 0;
        let since = if now { from.unwrap_or(recent.top) } else { recent.top };
        if let Some(history) = &mut history {
            history.gap = gap;
        }
        let history = history.map(Box::new);
        let wait = Poll { since, recovered, deadline_s, respond: poll.respond, history };
        if let Some(cold) = self.core.table.cold_or_new(slot) {
            cold.poll = Some(Box::new(wait));
        }
        self.scan_poll(slot, Some(recent), now, gap);
    }

    /// True when a poll requests all retained messages, or the newest, of a topic that retains none.
    fn requests_in_vain(&self, slot: u32, request: &ResumeRequest) -> bool {
        let core = &self.core;
        let wants = |topic: &Name| {
            let named = request.topics.iter().any(|(name, _)| name == topic);
            let counts = named || !TopicKind::of(topic).is_personal();
            counts && request.of(topic).is_some_and(|since| since.token().is_none())
        };
        core.hub.topics_of(slot).any(|topic| wants(topic) && core.history().rule(topic).is_none())
    }

    /// Returns the topics with history of a poll that has entered its topics.
    fn poll_history(&mut self, slot: u32, request: &ResumeRequest) -> Option<PollHistory> {
        let topics: Vec<Name> = self.core.hub.topics_of(slot).cloned().collect();
        let (mut hashed, mut acknowledged) = (Vec::new(), Vec::new());
        let mut messages_max = REPLY_MESSAGES;
        for topic in &topics {
            let Some(keep) = self.core.history().rule(topic) else { continue };
            let hash = self.core.broker.hash(topic);
            let user = keep.acknowledge.as_ref().and_then(|_| self.core.user_of(slot, topic));
            match user {
                None => hashed.push((hash, topic.as_str())),
                Some(user) => {
                    let rule = keep.acknowledge.as_ref();
                    let window = rule.map_or(1, |rule| rule.window_messages_max as usize);
                    messages_max = messages_max.min(window.max(1));
                    let cursor = self.core.history().cursor(&user, topic);
                    if !self.core.history().is_begin_confirmed(&user, topic) {
                        // The poll gets its reply when it is certain where the user begins: the next one reads.
                        continue;
                    }
                    acknowledged.push((hash, topic.as_str(), cursor));
                }
            }
        }
        if hashed.is_empty() && acknowledged.is_empty() {
            return None;
        }
        let plain = hashed.len();
        hashed.extend(acknowledged.iter().map(|(hash, topic, _)| (*hash, *topic)));
        let (start, query) = self.recovery.request_start(&mut self.core, slot, &hashed, request);
        let cursors = acknowledged.iter().map(|(_, _, cursor)| *cursor).collect();
        let (reading, requester) = query.map(|query| (query.number, query.requester)).unzip();
        let from = PollStart { request: request.clone(), cursors, _requester: requester };
        let mut history = PollHistory { plain, messages_max, reading, ..PollHistory::default() };
        history.begin(start, &from);
        history.starting = reading.map(|_| from);
        Some(history)
    }

    /// Returns the recent messages of the poll's topics that are not retained: all of topics without history,
    /// presence notices of others.
    fn recent_of_poll(&self, slot: u32, since: Option<Position>) -> Recent {
        let own = self.core.hub.topics_of(slot).cloned();
        let topics: Vec<(u64, Name)> = own
            .chain(std::iter::once(model::name::BROADCAST.into()))
            .map(|topic| (self.core.broker.hash(&topic), topic))
            .collect();
        let topics: Vec<(u64, &str)> =
            topics.iter().map(|(hash, topic)| (*hash, topic.as_str())).collect();
        self.core.broker.recent(&topics, since)
    }

    /// Scans again: messages may have come for a poll, or it has timed out.
    pub(crate) fn poll_again(&mut self, slot: u32, is_timed_out: bool) {
        self.scan_poll(slot, None, is_timed_out, None);
    }

    fn scan_poll(
        &mut self,
        slot: u32,
        recent: Option<Recent>,
        now: bool,
        gap: Option<RecoveryGap>,
    ) {
        let Some(connection) = self.core.table.get(slot) else {
            return;
        };
        let Some(poll) = self.poll_of(slot) else {
            return;
        };
        let (since, serial) = (poll.since, connection.serial);
        if poll.history.as_ref().is_some_and(|history| history.reading.is_some()) {
            // The poll gets its reply after the history's, or with the next scan after that.
            if let Some(history) = self.poll_history_mut(slot) {
                (history.woken, history.now) = (true, history.now || now);
            }
            return;
        }
        let messages_max = poll.history.as_ref().map_or(0, |history| history.messages_max);
        let cursors = poll.history.as_ref().map(|history| history.cursors.clone());
        let history = self.poll_history_mut(slot);
        let was_now = history.is_some_and(|history| std::mem::take(&mut history.now));
        let now = now || was_now;
        let piece = match cursors {
            None => None,
            Some(cursors) => {
                let bytes_max = self.core.settings.outbox_bytes_max / 2;
                let pull = Pull { topics: cursors, messages_max, bytes_max };
                match self.poll_piece(slot, serial, pull, now) {
                    Some(piece) => Some(piece),
                    None => return,
                }
            }
        };
        let recent = match recent {
            Some(recent) => recent,
            None => self.recent_of_poll(slot, Some(since)),
        };
        let gone = piece.as_ref().and_then(|piece| self.poll_gone(slot, piece));
        let gap = gap.or(gone).or((!recent.complete).then_some(RecoveryGap::TooOld));
        if let Some(gap) = gap
            && self.begin_states_anew(slot, gap)
        {
            return self.scan_poll(slot, Some(recent), true, Some(gap));
        }
        self.reply_if(slot, &recent, piece, now, gap);
    }

    /// Returns the next piece for a poll, if it is available at once.
    fn poll_piece(&mut self, slot: u32, serial: u32, pull: Pull, now: bool) -> Option<Piece> {
        let (handle, query) = (self.core.handle.clone(), self.recovery.catchups.query());
        let numbers = vec![query];
        let completion = Completion::new(move |piece: Result<Piece, _>| {
            handle.send(Command::Pulled { slot, serial, numbers, piece: piece.ok() });
        });
        match self.core.history.read(pull, completion) {
            Ok(HistoryReply::Now(piece)) => return Some(piece),
            Ok(HistoryReply::Later) => {
                if let Some(history) = self.poll_history_mut(slot) {
                    (history.reading, history.woken, history.now) = (Some(query), false, now);
                }
            }
            Err(_) => self.recover(|recovery, core| recovery.come_back_later(core, slot)),
        }
        None
    }

    /// The history has reported where a poll begins.
    pub(crate) fn poll_started(&mut self, slot: u32, query: u32, start: Start) {
        let history = self.poll_history_mut(slot).filter(|history| history.reading == Some(query));
        let Some(history) = history else {
            return;
        };
        history.reading = None;
        if let Some(from) = history.starting.take() {
            history.begin(start, &from);
        }
        let (gap, now) = (history.gap, std::mem::take(&mut history.now));
        self.scan_poll(slot, None, now || gap.is_some(), gap);
    }

    /// Returns the gap of a poll, if retained messages were dropped while it waited.
    fn poll_gone(&self, slot: u32, piece: &Piece) -> Option<RecoveryGap> {
        let history = self.poll_of(slot)?.history.as_ref()?;
        let has_gap_notice = |(at, cursor): (usize, &TopicCursor)| match at < history.plain {
            true => piece.is_gone(at),
            false => !history.is_quiet && has_gap_notice(piece.gone_at(at), true, cursor.after),
        };
        history.cursors.iter().enumerate().any(has_gap_notice).then_some(RecoveryGap::TooOld)
    }

    /// Returns the gap in messages that waited for a client which did not say how far it has them. The gap notice
    /// accompanies a reply and causes none: otherwise a client that repeats such polls would get each reply at once.
    /// No notice is sent if it would make a state begin anew.
    fn poll_gone_unrequested(&self, slot: u32, piece: &Piece) -> Option<RecoveryGap> {
        let history = self.poll_of(slot)?.history.as_ref()?;
        let (plain, acknowledged) = history.cursors.split_at(history.plain);
        let mut cursors = acknowledged.iter().zip(history.plain..);
        let is_gone = cursors.any(|(it, at)| has_gap_notice(piece.gone_at(at), false, it.after));
        let anew = plain.iter().any(|it| !it.whole && self.is_compact(&it.topic));
        (is_gone && history.is_quiet && !anew).then_some(RecoveryGap::TooOld)
    }

    /// A reply with a gap does not name the topics: its client forgets all states, and gets them all again. True when
    /// some state was not to be read from its beginning.
    fn begin_states_anew(&mut self, slot: u32, gap: RecoveryGap) -> bool {
        let history = self.core.history.clone();
        let Some(poll) = self.poll_history_mut(slot) else {
            return false;
        };
        let (mut any, top) = (false, history.top().offset);
        for cursor in poll.cursors.iter_mut().take(poll.plain) {
            if !cursor.whole && history.rule(&cursor.topic).is_some_and(|rule| rule.compact) {
                cursor.begin_state(top);
                any = true;
            }
        }
        if any {
            (poll.gap, poll.now) = (Some(gap), true);
        }
        any
    }

    fn poll_history_mut(&mut self, slot: u32) -> Option<&mut PollHistory> {
        self.core.table.cold_mut(slot)?.poll.as_mut()?.history.as_deref_mut()
    }

    /// The history has read a piece.
    pub(crate) fn poll_was_read(&mut self, slot: u32, number: u32, piece: Piece) {
        let (gone, unrequested) =
            (self.poll_gone(slot, &piece), self.poll_gone_unrequested(slot, &piece));
        // Ignores the reply to an earlier poll of this connection.
        let history = self.poll_history_mut(slot).filter(|history| history.reading == Some(number));
        let Some(history) = history else {
            return;
        };
        history.reading = None;
        let gap = history.gap.or(gone);
        history.gone |= unrequested.is_some();
        let (woken, now) = (std::mem::take(&mut history.woken), std::mem::take(&mut history.now));
        let Some(since) = self.poll_of(slot).map(|poll| poll.since) else {
            return;
        };
        let recent = self.recent_of_poll(slot, Some(since));
        let gap = gap.or((!recent.complete).then_some(RecoveryGap::TooOld));
        if let Some(gap) = gap
            && self.begin_states_anew(slot, gap)
        {
            return self.scan_poll(slot, Some(recent), true, Some(gap));
        }
        if piece.messages.is_empty() && (gap.is_none() || !piece.caught_up) {
            // The history has no messages up to here.
            if let Some(history) = self.poll_history_mut(slot) {
                history.gap = gap;
                // A poll for all messages gets the messages that are stored when its reply is made.
                for cursor in &mut history.cursors {
                    cursor.after = cursor.after.max(piece.through);
                }
            }
            if piece.caught_up && !woken {
                return self.reply_if(slot, &recent, Some(piece), now, None);
            }
            return self.scan_poll(slot, Some(recent), now || gap.is_some(), gap);
        }
        self.reply_if(slot, &recent, Some(piece), false, gap);
    }

    /// True while a poll waits for the reply to this query.
    pub(crate) fn poll_awaits(&mut self, slot: u32, query: u32) -> bool {
        self.poll_history_mut(slot).is_some_and(|history| history.reading == Some(query))
    }

    /// Returns true if the connection waits for the reply to a poll.
    pub(crate) fn is_polling(&self, slot: u32) -> bool {
        self.poll_of(slot).is_some()
    }

    fn poll_of(&self, slot: u32) -> Option<&Poll> {
        self.core.table.cold(slot)?.poll.as_deref()
    }

    /// Replies if the poll has messages, a gap, or no time left.
    fn reply_if(
        &mut self,
        slot: u32,
        recent: &Recent,
        piece: Option<Piece>,
        now: bool,
        gap: Option<RecoveryGap>,
    ) {
        let found = piece.as_ref().is_some_and(|piece| !piece.messages.is_empty());
        let has_reply = now || gap.is_some() || found;
        if has_reply || !recent.messages.is_empty() || !recent.complete {
            self.reply_poll(slot, recent, piece, gap);
        }
    }

    /// Returns the compacted topics of a poll.
    fn poll_states(&self, slot: u32) -> Vec<Name> {
        let history = self.poll_of(slot).and_then(|poll| poll.history.as_ref());
        let plain = history.map_or(&[][..], |history| &history.cursors[..history.plain]);
        plain
            .iter()
            .filter(|cursor| self.is_compact(&cursor.topic))
            .map(|cursor| cursor.topic.clone())
            .collect()
    }

    fn is_compact(&self, topic: &str) -> bool {
        self.core.history().rule(topic).is_some_and(|rule| rule.compact)
    }

    /// Returns the position of a poll after a piece that ends at an offset: some of its topics may have been ahead of
    /// it.
    fn poll_position(&self, mut cursors: Vec<TopicCursor>, piece: &Piece) -> Frontier {
        let epoch = self.core.history().epoch();
        let through = piece.through;
        for (at, topic) in cursors.iter_mut().enumerate() {
            piece.begin(at, topic);
            topic.after = topic.after.max(through);
        }
        let ahead = cursors.iter().map(|topic| topic.after).max().unwrap_or(through);
        let behind = cursors.iter().filter(|topic| topic.after < ahead);
        let behind = behind
            .map(|topic| Behind { topic: model::resume::mark(&topic.topic), through: topic.after });
        let states = cursors.iter().filter(|topic| !piece.caught_up && topic.state_top > 0);
        let states = states.map(|topic| {
            let mark = model::resume::state_mark(&topic.topic);
            Behind { topic: mark, through: topic.state_top }
        });
        let mut behind: Vec<Behind> = behind.collect();
        if behind.len() > model::resume::BEHIND_MAX {
            // Too many to name: a duplicate is better than a loss.
            return Frontier::at(Position { epoch, offset: through });
        }
        // Without its mark a topic may have a gap that is none, and its client begins the state anew.
        behind.extend(states.take(model::resume::BEHIND_MAX - behind.len()));
        Frontier { through: Position { epoch, offset: ahead }, behind }
    }

    fn reply_poll(
        &mut self,
        slot: u32,
        recent: &Recent,
        piece: Option<Piece>,
        gap: Option<RecoveryGap>,
    ) {
        let mut messages = recent.messages.clone();
        messages.extend(piece.iter().flat_map(|piece| piece.messages.iter().cloned()));
        messages.retain(|message| self.recovery.catchups.chooses(slot, message));
        let history = self.poll_of(slot).and_then(|poll| poll.history.as_ref());
        let acknowledged = history.map(|history| history.cursors[history.plain..].to_vec());
        if let Some(acknowledged) = acknowledged.filter(|topics| !topics.is_empty()) {
            self.recovery.count_polled(&mut self.core, slot, &acknowledged, &mut messages);
        }
        let states = match &piece {
            Some(piece) if piece.caught_up => self.poll_states(slot),
            _ => Vec::new(),
        };
        let was_gone = self.poll_of(slot).and_then(|poll| poll.history.as_ref());
        let was_gone = was_gone.is_some_and(|history| history.gone).then_some(RecoveryGap::TooOld);
        let unrequested = piece.as_ref().and_then(|piece| self.poll_gone_unrequested(slot, piece));
        let gap = gap.or(was_gone).or(unrequested);
        let Some(cold) = self.core.table.cold_mut(slot) else {
            return;
        };
        let Some(poll) = cold.poll.take() else {
            return;
        };
        let gap = gap.or((!recent.complete).then_some(RecoveryGap::TooOld));
        let recovered = if gap.is_some() { Some(false) } else { poll.recovered };
        let position = match (&piece, poll.history) {
            (Some(piece), Some(history)) => Some(self.poll_position(history.cursors, piece)),
            _ => None,
        };
        let since = ResumeToken { id: recent.top, frontier: position };
        let messages_of = messages.iter().map(|message| &message.message);
        let body = poll::reply(messages_of, &since, recovered, gap, &states);
        let mut reply = Vec::with_capacity(body.len() + 256);
        json_reply(&poll.respond, &body, &mut reply);
        self.core.trace_delivered(slot, messages.iter().map(|it| &it.message));
        self.core.trace_closed(slot, CloseReason::Replied);
        self.leave_topics(slot);
        self.core.metrics.delivered.add(messages.len() as u64);
        self.core.await_request(slot);
        self.core.count_reply(&reply);
        if poll.respond.keep_alive {
            self.send(slot, &reply, count(messages.len()));
            self.rest_or_close(slot, true, &mut Vec::new());
            self.core.resumed.push(slot);
        } else {
            self.close(slot, CloseReason::Replied, &reply);
        }
    }

    /// Repeats the pending query of a poll whose connection has come from another engine. `reads` is true if that was
    /// for a piece.
    pub(crate) fn restart_poll(&mut self, slot: u32, reads: bool) {
        let Some(history) = self.poll_history_mut(slot) else {
            return;
        };
        let gap = history.gap;
        let Some(from) = history.starting.take() else {
            if reads {
                self.scan_poll(slot, None, gap.is_some(), gap);
            }
            return;
        };
        let topics = history.cursors.clone();
        let hashed: Vec<(u64, &str)> =
            topics.iter().map(|cursor| (cursor.hash, cursor.topic.as_str())).collect();
        let (start, query) =
            self.recovery.request_start(&mut self.core, slot, &hashed, &from.request);
        let Some(history) = self.poll_history_mut(slot) else {
            return;
        };
        match query {
            Some(query) => {
                history.reading = Some(query.number);
                history.starting = Some(PollStart { _requester: Some(query.requester), ..from });
            }
            None => {
                history.begin(start, &from);
                let gap = history.gap;
                self.scan_poll(slot, None, gap.is_some(), gap);
            }
        }
    }
}
