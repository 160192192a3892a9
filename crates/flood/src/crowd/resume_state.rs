//! The resume state of a connection, which outlives its reconnects: how far it has received each of
//! its topics, and where it resumes. Only connections that recover or acknowledge have one.

use std::collections::VecDeque;

use model::Position;

use super::connection::Trackers;
use crate::sequence::Tracker;

/// How long an acknowledgement may take to reach all parts of the server. Until then a delivery from before the
/// acknowledgement may still be on its way to the connection.
const CONFIRMED_AFTER_NS: u64 = 2_000_000_000;

/// Names one of a connection's sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequence {
    /// The messages to its user.
    User,
    /// The topic at this index of [`ResumeState::topics`].
    Topic(usize),
    /// A sequence that the resume state doesn't cover.
    Other,
}

/// How far a connection has received one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// The topic's number; meaningless for the messages to the user.
    pub room: u32,
    pub tracker: Tracker,
    /// The last message's id, if each topic has a position of its own.
    pub position: Option<Position>,
}

impl Progress {
    fn new(room: u32, tracker: Tracker) -> Self {
        Self { room, tracker, position: None }
    }
}

/// How a connection's transport resumes. The names appear in the descriptions of anomalies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResumeStyle {
    /// It does not resume.
    Nothing,
    /// One opaque token covers all topics.
    One,
    /// One position covers all topics, and each topic that had a message has another of its own.
    Each,
    /// The server has the session, and knows what the client has received.
    Session,
    /// Each topic that the client joins has a position. The messages to the user have none: the
    /// server sends them without a join.
    Joins,
}

#[derive(Debug)]
pub(super) struct ResumeState {
    pub style: ResumeStyle,
    /// The last resume token, as the server wrote it.
    pub token: Option<Box<str>>,
    /// The position of all topics without a position of their own.
    pub base: Option<Position>,
    pub user: Progress,
    pub topics: Box<[Progress]>,
    /// The sequence of the last message, until its position arrives.
    current: Option<Sequence>,
    /// The sequence that the server's next position or recovery gap is about.
    announced: Option<Sequence>,
    /// When the attempt under way began.
    pub begun_ns: u64,
    /// Messages that the connection missed in a storm and has not received yet.
    pub missed_left: u32,
    /// Attempts that have begun.
    pub attempts: u32,
    pub acks: Option<Box<Acks>>,
    /// The connection was open before, so the server should have its session.
    pub was_open: bool,
    /// The server has reported that it has the session.
    pub has_session: bool,
    /// Identifiers of messages that come exactly once, and have come.
    pub unreleased: Vec<u16>,
}

impl ResumeState {
    /// Returns the state of a connection that was never open. A connection that acknowledges expects
    /// the messages to its user from the first on.
    pub fn new(style: ResumeStyle, rooms: impl Iterator<Item = u32>, acknowledges: bool) -> Self {
        let any = Tracker::anywhere();
        let user = if acknowledges { Tracker::begin(0) } else { any };
        Self {
            style,
            token: None,
            base: None,
            user: Progress::new(0, user),
            topics: rooms.map(|room| Progress::new(room, any)).collect(),
            current: None,
            announced: None,
            begun_ns: 0,
            missed_left: 0,
            attempts: 0,
            acks: acknowledges.then(Box::default),
            was_open: false,
            has_session: false,
            unreleased: Vec::new(),
        }
    }

    /// Begins an attempt to connect. Sequences without a position to resume from may begin anywhere.
    /// Returns false when a topic had messages but has no position although it should have one.
    pub fn begin_attempt(&mut self, now_ns: u64) -> bool {
        self.begun_ns = now_ns;
        self.attempts += 1;
        self.has_session = false;
        (self.current, self.announced) = (None, None);
        let (style, base, last) = (self.style, self.base.is_some(), self.token.is_some());
        let returns = |progress: &Progress| match style {
            ResumeStyle::Nothing => false,
            ResumeStyle::Session => true,
            ResumeStyle::One => last,
            ResumeStyle::Each => base || progress.position.is_some(),
            ResumeStyle::Joins => progress.position.is_some(),
        };
        let mut all = true;
        for progress in &mut self.topics {
            if !returns(progress) {
                all &= style == ResumeStyle::Nothing || !progress.tracker.has_any();
                progress.tracker = Tracker::anywhere();
            }
        }
        if self.acks.is_none() && (style == ResumeStyle::Joins || !returns(&self.user)) {
            self.user.tracker = Tracker::anywhere();
        }
        if let Some(acks) = &mut self.acks {
            acks.disconnected();
        }
        all
    }

    /// Called when the server subscribes the connection. Sequences that may begin anywhere and had no message yet
    /// begin here.
    pub fn opened(&mut self, now: &Trackers, topic_now: impl Fn(u32) -> Tracker) {
        let begin = |tracker: &mut Tracker, now: Tracker| {
            if tracker.is_anywhere() {
                *tracker = now;
            }
        };
        begin(&mut self.user.tracker, now.user);
        for progress in &mut self.topics {
            begin(&mut progress.tracker, topic_now(progress.room));
        }
    }

    /// Notes that a message of this sequence arrived. Returns the sequence's progress.
    pub fn message_of(&mut self, sequence: Sequence) -> Option<&mut Progress> {
        self.current = Some(sequence);
        self.announced = None;
        match sequence {
            Sequence::User => Some(&mut self.user),
            Sequence::Topic(at) => self.topics.get_mut(at),
            Sequence::Other => None,
        }
    }

    /// Notes that the server's next position or recovery gap is about this sequence.
    pub fn topic_announced(&mut self, sequence: Sequence) {
        (self.current, self.announced) = (None, Some(sequence));
    }

    /// Returns the sequence of the topic with this number.
    pub fn topic(&self, room: u32) -> Option<Sequence> {
        self.topics.iter().position(|progress| progress.room == room).map(Sequence::Topic)
    }

    /// Handles a recovery gap: the server can't deliver the missed messages, so the next message may be any.
    pub fn recovery_gap(&mut self) {
        match self.announced {
            Some(Sequence::Topic(at)) => self.topics[at].tracker = Tracker::anywhere(),
            Some(_) => {}
            None => {
                let any = |progress: &mut Progress| progress.tracker = Tracker::anywhere();
                self.topics.iter_mut().for_each(any);
                if self.acks.is_none() {
                    self.user.tracker = Tracker::anywhere();
                }
            }
        }
    }

    /// Describes where the connection resumes, for the list of anomalies.
    pub fn describe(&self) -> String {
        let id = |position: Option<Position>| {
            position.map_or("-".to_string(), |position| position.to_string())
        };
        let last = self.token.as_deref().unwrap_or("-");
        let mut text = format!("{:?}: {last}, base {}", self.style, id(self.base));
        for progress in &self.topics {
            let position = id(progress.position);
            text.push_str(&format!(
                ", topic {} at {position}, {:?}",
                progress.room, progress.tracker
            ));
        }
        text
    }

    /// Sets a position or token that arrived, after a message or alone. Returns the sequence of the
    /// message if there was one.
    pub fn set_position(&mut self, text: &str) -> Option<Sequence> {
        let (behind, entered) = (self.current.take(), self.announced.take());
        match self.style {
            ResumeStyle::Nothing | ResumeStyle::Session => {}
            // An empty id makes the client come back without a token.
            ResumeStyle::One => {
                self.token = Some(text).filter(|text| !text.is_empty()).map(Box::from)
            }
            ResumeStyle::Each | ResumeStyle::Joins => {
                if let Ok(id) = text.parse::<Position>() {
                    self.set_position_of(behind, entered, id);
                }
            }
        }
        behind
    }

    fn set_position_of(
        &mut self,
        behind: Option<Sequence>,
        entered: Option<Sequence>,
        id: Position,
    ) {
        let known = self.base.map(|base| base.epoch);
        let (sequence, is_message) = (behind.or(entered), behind.is_some());
        let progress = match sequence {
            Some(Sequence::User) => &mut self.user,
            Some(Sequence::Topic(at)) => &mut self.topics[at],
            Some(Sequence::Other) => return,
            None => {
                if known != Some(id.epoch) {
                    // Positions of another epoch are useless.
                    self.base = Some(id);
                    let all = self.topics.iter_mut().chain([&mut self.user]);
                    all.for_each(|progress| progress.position = None);
                }
                return;
            }
        };
        let epoch = progress.position.map(|position| position.epoch).or(known);
        match progress.position {
            // A message of a topic without history: nothing of that topic can be recovered.
            _ if is_message && epoch != Some(id.epoch) => {}
            Some(position) if position.epoch == id.epoch && position.offset >= id.offset => {}
            _ => progress.position = Some(id),
        }
    }
}

/// The acknowledgements of one connection.
#[derive(Debug, Default)]
pub(super) struct Acks {
    /// Messages since the last acknowledgement.
    pub unacknowledged: u32,
    /// Acknowledgements on their way: the id and the message's number.
    sent: VecDeque<(Position, u32)>,
    /// The server has accepted everything up to this number, and when it confirmed that, in nanoseconds.
    confirmed: (u32, u64),
    /// The number that was confirmed at least [`CONFIRMED_AFTER_NS`] ago.
    confirmed_before: u32,
}

impl Acks {
    /// Notes that an acknowledgement is on its way.
    pub fn send(&mut self, id: Position, number: u32) {
        self.sent.push_back((id, number));
    }

    /// The server has accepted the acknowledgements up to this id. Returns how many messages this newly acknowledges.
    pub fn confirm(&mut self, id: Position, now_ns: u64) -> u32 {
        let mut done = 0;
        while let Some((_, number)) =
            self.sent.pop_front_if(|(of, _)| of.epoch == id.epoch && of.offset <= id.offset)
        {
            done += self.done(number, now_ns);
        }
        done
    }

    /// The server has accepted the acknowledgement of all messages up to this number. Returns how many messages this
    /// newly acknowledges.
    pub fn done(&mut self, number: u32, now_ns: u64) -> u32 {
        let before = self.confirmed.0;
        if number <= before {
            return 0;
        }
        self.age_confirmed(now_ns);
        self.confirmed = (number, now_ns);
        number - before
    }

    fn age_confirmed(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.confirmed.1) >= CONFIRMED_AFTER_NS {
            self.confirmed_before = self.confirmed.0;
        }
    }

    /// Returns whether a message may arrive again. It may not when its acknowledgement was confirmed
    /// long enough ago.
    pub fn may_be_redelivered(&mut self, number: u32, now_ns: u64) -> bool {
        self.age_confirmed(now_ns);
        number > self.confirmed_before
    }

    /// Forgets the acknowledgements that were on their way on a connection that has ended.
    fn disconnected(&mut self) {
        self.sent.clear();
        self.unacknowledged = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Epoch;

    fn id(text: &str) -> Option<Position> {
        text.parse().ok()
    }

    #[test]
    fn an_opaque_token_is_stored_unchanged() {
        let mut state = ResumeState::new(ResumeStyle::One, [3].into_iter(), false);
        state.begin_attempt(1);
        assert!(state.topics[0].tracker.is_anywhere());
        assert_eq!(state.set_position("0000000a:7/9-0000000b.8"), None);
        state.topics[0].tracker = Tracker::begin(4);
        state.begin_attempt(2);
        assert_eq!(state.token.as_deref(), Some("0000000a:7/9-0000000b.8"));
        assert_eq!(state.topics[0].tracker, Tracker::begin(4));
        state.set_position("");
        state.begin_attempt(3);
        assert!(state.token.is_none() && state.topics[0].tracker.is_anywhere());
    }

    #[test]
    fn each_topic_has_its_own_position_beside_the_common_one() {
        let mut state = ResumeState::new(ResumeStyle::Each, [3, 5].into_iter(), false);
        state.begin_attempt(1);
        state.set_position("0000000a:7");
        let five = state.topic(5).unwrap();
        state.message_of(five).unwrap().tracker = Tracker::begin(2);
        assert_eq!(state.set_position("0000000a:9"), Some(five));
        // A message of a topic without history, and one that the state doesn't cover.
        state.message_of(Sequence::Topic(0));
        state.set_position("0000000b:1");
        state.message_of(Sequence::Other);
        state.set_position("0000000a:12");
        // The common position does not move once it is set.
        state.set_position("0000000a:8");
        let positions = |state: &ResumeState| [state.topics[0].position, state.topics[1].position];
        assert_eq!((state.base, positions(&state)), (id("0000000a:7"), [None, id("0000000a:9")]));
        state.begin_attempt(2);
        assert_eq!(state.topics[1].tracker, Tracker::begin(2));
        // The server has begun a new epoch.
        state.recovery_gap();
        state.set_position("0000000c:1");
        assert_eq!((state.base, positions(&state)), (id("0000000c:1"), [None, None]));
        assert!(state.topics[1].tracker.is_anywhere());
    }

    #[test]
    fn announced_positions_and_gaps_affect_only_their_topic() {
        let mut state = ResumeState::new(ResumeStyle::Joins, [3, 5].into_iter(), false);
        state.begin_attempt(1);
        state.topic_announced(Sequence::Topic(1));
        state.set_position("0000000a:7");
        state.topics[0].tracker = Tracker::begin(1);
        state.topics[1].tracker = Tracker::begin(1);
        state.user.tracker = Tracker::begin(1);
        assert_eq!((state.base, state.topics[0].position), (None, None));
        assert_eq!(state.topics[1].position, id("0000000a:7"));
        assert!(state.begin_attempt(2));
        assert!(state.topics[0].tracker.is_anywhere() && state.user.tracker.is_anywhere());
        assert_eq!(state.topics[1].tracker, Tracker::begin(1));
        state.topic_announced(Sequence::Topic(1));
        state.recovery_gap();
        assert!(state.topics[1].tracker.is_anywhere());
        // A message without a position.
        state.topics[0].tracker.arrive(1);
        assert!(!state.begin_attempt(3) && state.begin_attempt(4));
    }

    #[test]
    fn a_message_acknowledged_long_ago_may_not_be_redelivered() {
        let mut state = ResumeState::new(ResumeStyle::Nothing, [].into_iter(), true);
        state.begin_attempt(1);
        assert_eq!(state.user.tracker, Tracker::begin(0));
        let mut acks = state.acks.take().unwrap();
        let at = |offset| Position { epoch: Epoch(1), offset };
        acks.send(at(10), 3);
        acks.send(at(20), 5);
        assert!(acks.may_be_redelivered(1, 5));
        assert_eq!((acks.confirm(at(15), 6), acks.confirm(at(15), 6)), (3, 0));
        assert!(acks.may_be_redelivered(3, 7));
        let later = 6 + CONFIRMED_AFTER_NS;
        assert!(!acks.may_be_redelivered(3, later) && acks.may_be_redelivered(4, later));
        assert_eq!((acks.done(5, later), acks.done(4, later)), (2, 0));
        assert!(acks.may_be_redelivered(5, later) && !acks.may_be_redelivered(3, later));
    }
}
