//! Long polls: answered from what was published, and woken when more is.

use broker::{Piece, Pull, Recent, Wanted};
use wire::session::{self, Asked};
use wire::{Behind, Close, Id, Lost, Position, Since, Variant};

use crate::command::Command;
use crate::connection::Poll;
use crate::shard::Shard;

/// Messages with history in one answer; the next poll gets more.
const ANSWER_MESSAGES: usize = if cfg!(test) { 4 } else { 256 };

/// The topics of a poll that have history.
#[derive(Default)]
pub(crate) struct PollKept {
    /// They, and how far it has them.
    pub wanted: Vec<Wanted>,
    /// So many of them, the first, are not acknowledged.
    plain: usize,
    /// What the client asked for and can't be given.
    pub lost: Option<Lost>,
    /// Messages in one answer: a poll has a new window with each, for it says how far it has
    /// everything.
    pub messages_max: usize,
    /// The disk was asked; with the number of the question.
    pub reading: Option<u32>,
}

impl Shard {
    /// A poll enters its topics first and then looks: whatever is published after the look wakes
    /// it, and whatever was before is found. So nothing falls between.
    pub(crate) fn poll(&mut self, slot: u32, poll: session::Poll, out: &mut Vec<u8>) {
        if !self.send_earlier(slot, out) {
            return;
        }
        self.become_variant(slot, Variant::Poll);
        self.enter_hub(slot, &poll.users, &poll.topics);
        self.choose(slot, None, &poll.tags);
        let deadline_s = self.now_s().saturating_add(poll.seconds);
        let kept = self.poll_kept(slot, &poll.since);
        let asked = !poll.since.is_empty();
        let from = poll.since.all.as_ref().and_then(|since| since.offset(self.broker.epoch()));
        let from = from.map(|offset| Id { epoch: self.broker.epoch(), offset });
        // An id of another life: the broker says so.
        let from =
            from.or(poll.since.all.as_ref().map(|since| since.id).filter(|_| kept.is_none()));
        let recent = self.recent(slot, from);
        let no_history = asked && from.is_none() && kept.is_none();
        let lost = match (&kept, from) {
            (Some(kept), _) if kept.lost.is_some() => kept.lost,
            (_, Some(from)) if !recent.complete => {
                let same = from.epoch == self.broker.epoch();
                Some(if same { Lost::TooOld } else { Lost::Epoch })
            }
            _ => no_history.then_some(Lost::NoHistory),
        };
        let recovered = asked.then_some(lost.is_none());
        let now = !recent.messages.is_empty() || lost.is_some() || poll.seconds == 0;
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        let since = if now { from.unwrap_or(recent.top) } else { recent.top };
        let kept = kept.map(Box::new);
        let wait = Poll { since, recovered, deadline_s, respond: poll.respond, kept };
        connection.extra().poll = Some(Box::new(wait));
        self.look(slot, Some(recent), now, lost);
    }

    /// The topics with history of a poll that has entered its topics.
    fn poll_kept(&mut self, slot: u32, asked: &Asked) -> Option<PollKept> {
        let topics: Vec<wire::Name> = self.hub.topics_of(slot).cloned().collect();
        let (mut hashed, mut acknowledged) = (Vec::new(), Vec::new());
        let mut messages_max = ANSWER_MESSAGES;
        for topic in &topics {
            let Some(keep) = self.kept().rule(topic) else { continue };
            let hash = self.broker.hash(topic);
            let user = keep.acknowledge.as_ref().and_then(|_| self.user_of(slot, topic));
            match user {
                None => hashed.push((hash, topic.as_str())),
                Some(user) => {
                    let rule = keep.acknowledge.as_ref();
                    let window = rule.map_or(1, |rule| rule.window_messages_max as usize);
                    messages_max = messages_max.min(window.max(1));
                    let cursor = self.kept().cursor(&user, topic);
                    acknowledged.push((hash, topic.as_str(), cursor));
                }
            }
        }
        if hashed.is_empty() && acknowledged.is_empty() {
            return None;
        }
        let plain = hashed.len();
        hashed.extend(acknowledged.iter().map(|(hash, topic, _)| (*hash, *topic)));
        let start = self.kept().start(&hashed, asked);
        let lost = start.lost.iter().take(plain).flatten().next().copied();
        let mut wanted = start.topics;
        for (at, (_, topic, cursor)) in acknowledged.into_iter().enumerate() {
            let it = &mut wanted[plain + at];
            // A poll says how far it has everything with each request.
            let says = asked.of(topic).is_some() && start.lost[plain + at] != Some(Lost::Epoch);
            it.after = if says { it.after.max(cursor) } else { cursor };
        }
        Some(PollKept { wanted, plain, lost, messages_max, reading: None })
    }

    /// What was published lately to the poll's topics without history.
    fn recent(&self, slot: u32, since: Option<Id>) -> Recent {
        let own =
            self.hub.topics_of(slot).filter(|topic| self.kept().rule(topic).is_none()).cloned();
        let topics: Vec<(u64, wire::Name)> = own
            .chain(std::iter::once(wire::message::BROADCAST.into()))
            .map(|topic| (self.broker.hash(&topic), topic))
            .collect();
        let topics: Vec<(u64, &str)> =
            topics.iter().map(|(hash, topic)| (*hash, topic.as_str())).collect();
        self.broker.recent(&topics, since)
    }

    /// Something may have come for a poll, or its time is over.
    pub(crate) fn look_after_poll(&mut self, slot: u32, over: bool) {
        self.look(slot, None, over, None);
    }

    fn look(&mut self, slot: u32, recent: Option<Recent>, now: bool, lost: Option<Lost>) {
        let Some(connection) = self.table.get(slot) else {
            return;
        };
        let Some(poll) = connection.extra.as_ref().and_then(|extra| extra.poll.as_ref()) else {
            return;
        };
        let (since, serial) = (poll.since, connection.serial);
        if poll.kept.as_ref().is_some_and(|kept| kept.reading.is_some()) {
            // Answered when the disk has, or with the next look after that.
            return;
        }
        let messages_max = poll.kept.as_ref().map_or(0, |kept| kept.messages_max);
        let wanted = poll.kept.as_ref().map(|kept| kept.wanted.clone());
        let piece = match wanted {
            None => None,
            Some(wanted) => {
                let bytes_max = self.settings.outbox_bytes_max / 2;
                match self.kept().pull(&wanted, messages_max, bytes_max) {
                    Pull::Piece(piece) => Some(piece),
                    Pull::Disk => {
                        let handle = self.handle.clone();
                        let number = self.following.question();
                        let numbers = vec![number];
                        let reply = Box::new(move |piece| {
                            handle.send(Command::Pulled { slot, serial, numbers, piece });
                        });
                        let kept = self.kept();
                        if kept.pull_later(wanted, messages_max, bytes_max, reply).is_ok() {
                            if let Some(kept) = self.poll_kept_mut(slot) {
                                kept.reading = Some(number);
                            }
                            return;
                        }
                        return self.come_back_later(slot);
                    }
                }
            }
        };
        let recent = match recent {
            Some(recent) => recent,
            None => self.recent(slot, Some(since)),
        };
        let lost = lost.or(piece.as_ref().and_then(|piece| self.gone(slot, piece)));
        self.answer_if(slot, &recent, piece, now, lost);
    }

    /// What a poll can't be given, since it is gone while the poll waited.
    fn gone(&self, slot: u32, piece: &Piece) -> Option<Lost> {
        let plain = self.poll_of(slot)?.kept.as_ref()?.plain;
        piece.gone.iter().take(plain).any(|gone| *gone).then_some(Lost::TooOld)
    }

    fn poll_kept_mut(&mut self, slot: u32) -> Option<&mut PollKept> {
        let extra = self.table.get_mut(slot)?.extra.as_mut()?;
        extra.poll.as_mut()?.kept.as_deref_mut()
    }

    /// The disk has answered.
    pub(crate) fn poll_was_read(&mut self, slot: u32, number: u32, piece: Piece) {
        let gone = self.gone(slot, &piece);
        // Not what another poll of this connection asked before.
        let kept = self.poll_kept_mut(slot).filter(|kept| kept.reading == Some(number));
        let Some(kept) = kept else {
            return;
        };
        kept.reading = None;
        let lost = kept.lost.or(gone);
        let Some(since) = self.poll_of(slot).map(|poll| poll.since) else {
            return;
        };
        let recent = self.recent(slot, Some(since));
        if piece.messages.is_empty() && lost.is_none() {
            // The disk has nothing up to here: memory has the rest.
            if let Some(kept) = self.poll_kept_mut(slot) {
                for wanted in &mut kept.wanted {
                    wanted.after = wanted.after.max(piece.through);
                }
            }
            return self.look(slot, Some(recent), false, None);
        }
        self.answer_if(slot, &recent, Some(piece), false, lost);
    }

    fn poll_of(&self, slot: u32) -> Option<&Poll> {
        self.table.get(slot)?.extra.as_ref()?.poll.as_deref()
    }

    /// Answers when there is something to say.
    fn answer_if(
        &mut self,
        slot: u32,
        recent: &Recent,
        piece: Option<Piece>,
        now: bool,
        lost: Option<Lost>,
    ) {
        let found = piece.as_ref().is_some_and(|piece| !piece.messages.is_empty());
        let tells = now || lost.is_some() || found;
        if tells || !recent.messages.is_empty() || !recent.complete {
            self.answer_poll(slot, recent, piece, lost);
        }
    }

    /// How far a poll has everything with a piece that goes up to an offset: some of its topics may
    /// have been ahead of it.
    fn poll_position(&self, mut wanted: Vec<Wanted>, through: u64) -> Position {
        let epoch = self.kept().epoch();
        wanted.iter_mut().for_each(|topic| topic.after = topic.after.max(through));
        let ahead = wanted.iter().map(|topic| topic.after).max().unwrap_or(through);
        let behind: Vec<Behind> = wanted
            .iter()
            .filter(|topic| topic.after < ahead)
            .map(|topic| Behind { topic: wire::since::mark(&topic.topic), through: topic.after })
            .collect();
        if behind.len() > wire::since::BEHIND_MAX {
            // Too many to name: better some twice than one not at all.
            return Position::at(Id { epoch, offset: through });
        }
        Position { through: Id { epoch, offset: ahead }, behind }
    }

    fn answer_poll(
        &mut self,
        slot: u32,
        recent: &Recent,
        piece: Option<Piece>,
        lost: Option<Lost>,
    ) {
        let mut messages = recent.messages.clone();
        messages.extend(piece.iter().flat_map(|piece| piece.messages.iter().cloned()));
        messages.retain(|message| self.chooses(slot, message));
        let kept = self.poll_of(slot).and_then(|poll| poll.kept.as_ref());
        let acknowledged = kept.map(|kept| kept.wanted[kept.plain..].to_vec());
        if let Some(acknowledged) = acknowledged.filter(|topics| !topics.is_empty()) {
            self.count_polled(slot, &acknowledged, &mut messages);
        }
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        let Some(extra) = &mut connection.extra else {
            return;
        };
        let Some(poll) = extra.poll.take() else {
            return;
        };
        let mut rest = std::mem::take(&mut extra.input);
        let lost = lost.or((!recent.complete).then_some(Lost::TooOld));
        let recovered = if lost.is_some() { Some(false) } else { poll.recovered };
        let position = match (&piece, poll.kept) {
            (Some(piece), Some(kept)) => Some(self.poll_position(kept.wanted, piece.through)),
            _ => None,
        };
        let since = Since { id: recent.top, position };
        let body = wire::transport::poll_answer(
            messages.iter().map(|message| &**message),
            &since,
            recovered,
            lost,
        );
        let mut answer = Vec::with_capacity(body.len() + 256);
        session::json_answer(&poll.respond, &body, &mut answer);
        self.leave_hub(slot);
        self.metrics.delivered.add(messages.len() as u64);
        self.become_http(slot);
        self.count_answer(&answer);
        if poll.respond.keep_alive {
            self.send(slot, &answer, messages.len() as u32);
            self.rest_or_close(slot, true, &mut Vec::new());
            self.understand(slot, &mut rest);
        } else {
            self.close(slot, Close::Answered, &answer);
        }
    }
}
