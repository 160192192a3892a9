//! A history that replies later, as one in another process would.

use history_local::Local;
use std::sync::{Arc, Mutex};

use broker::{Activity, Append, Done, HistoryLog, Latest, PublishError};
use history::{
    AcknowledgeError, Completion, Cursor, GivenUp, Gone, History, HistoryError, HistoryReply,
    HistoryStats, Implicit, Matching, Page, PageQuery, Piece, Pull, Start, TopicHash,
};
use model::{AcknowledgeRule, Envelope, Epoch, HistoryRule, Name, Position, ResumeRequest, Rules};
use random::Random;

/// Replies with what the local history has, some turns later.
pub(crate) struct Late {
    local: Local,
    state: Mutex<State>,
}

/// Gives a reply if it is awaited, and returns whether it is.
type LateReply = Box<dyn FnOnce() -> bool + Send>;

struct State {
    random: Random,
    /// Never replies at once.
    always: bool,
    /// Always replies in the next turn, with the state of that moment.
    steady: bool,
    /// Always replies at once.
    at_once: bool,
    /// Pending replies, each with the number of turns until it comes.
    waiting: Vec<(usize, LateReply)>,
    /// The number of replies that came later.
    replies: usize,
    /// Replies that no requester awaited any more.
    abandoned: usize,
    /// No reply comes now.
    is_paused: bool,
}

impl State {
    /// Returns true if memory can answer queries that would otherwise need a later reply.
    fn knows(&self) -> bool {
        self.at_once || self.steady || !self.always
    }
}

impl Late {
    pub fn new(local: Local, seed: u64) -> Arc<Self> {
        let (random, always) = (Random::of(seed, 1), seed.is_multiple_of(2));
        let (waiting, steady, at_once) = (Vec::new(), false, false);
        let (replies, abandoned, is_paused) = (0, 0, false);
        let state =
            State { random, always, steady, at_once, waiting, replies, abandoned, is_paused };
        Arc::new(Late { local, state: Mutex::new(state) })
    }

    /// Creates a history that always replies in the next turn.
    pub fn steady(local: Local) -> Arc<Self> {
        let late = Late::new(local, 0);
        late.state.lock().unwrap().steady = true;
        late
    }

    /// From now on every reply comes at once.
    pub fn reply_at_once(&self) {
        self.state.lock().unwrap().at_once = true;
    }

    /// Holds all replies back, or releases them.
    pub fn pause(&self, is_paused: bool) {
        self.state.lock().unwrap().is_paused = is_paused;
    }

    /// A turn is over: some replies come, not in the order of their queries.
    pub fn turn(&self) {
        let mut state = self.state.lock().unwrap();
        if state.is_paused {
            return;
        }
        state.waiting.iter_mut().for_each(|(turns, _)| *turns = turns.saturating_sub(1));
        let due: Vec<_> = state.waiting.extract_if(.., |(turns, _)| *turns == 0).collect();
        state.replies += due.len();
        drop(state);
        let abandoned = due.into_iter().rev().filter_map(|(_, reply)| (!reply()).then_some(()));
        let abandoned = abandoned.count();
        self.state.lock().unwrap().abandoned += abandoned;
    }

    /// Returns true while replies are pending.
    pub fn waits(&self) -> bool {
        !self.state.lock().unwrap().waiting.is_empty()
    }

    /// Returns the number of replies that no requester awaited when they came.
    pub fn abandoned(&self) -> usize {
        self.state.lock().unwrap().abandoned
    }

    /// Returns the number of replies that came later.
    pub fn replies(&self) -> usize {
        self.state.lock().unwrap().replies
    }

    /// Replies with the state of this moment or of a later one, after some turns.
    fn reply<T: Send + 'static>(
        &self,
        completion: Completion<T>,
        query: impl FnOnce(&Local) -> T + Send + 'static,
    ) -> Result<HistoryReply<T>, HistoryError> {
        let mut state = self.state.lock().unwrap();
        if state.at_once {
            return Ok(HistoryReply::Now(query(&self.local)));
        }
        let always = state.always;
        let turns = 1 + state.random.below(30);
        // While replies are held back, none comes earlier in another way.
        let way = if state.is_paused || state.steady { 9 } else { state.random.below(10) };
        let turns = if state.steady { 1 } else { turns };
        let reply: Box<dyn FnOnce() -> Result<T, HistoryError> + Send> = match way {
            0 if !always => return Ok(HistoryReply::Now(query(&self.local))),
            1 => return Err(HistoryError::Busy),
            2 => Box::new(|| Err(HistoryError::Unavailable("no answer".into()))),
            3 => {
                completion.complete(Ok(query(&self.local)));
                return Ok(HistoryReply::Later);
            }
            4..7 => {
                let found = query(&self.local);
                Box::new(move || Ok(found))
            }
            _ => {
                let local = self.local.clone();
                Box::new(move || Ok(query(&local)))
            }
        };
        let reply = Box::new(move || {
            let is_awaited = completion.is_awaited();
            if is_awaited {
                completion.complete(reply());
            }
            is_awaited
        });
        state.waiting.push((turns, reply));
        Ok(HistoryReply::Later)
    }
}

fn now<T>(reply: Result<HistoryReply<T>, HistoryError>) -> T {
    match reply {
        Ok(HistoryReply::Now(now)) => now,
        _ => panic!("without a store everything is answered at once"),
    }
}

fn never<T>() -> Completion<T> {
    Completion::new(|_| panic!("it was answered at once"))
}

impl HistoryLog for Late {
    fn rule(&self, topic: &str) -> Option<Arc<HistoryRule>> {
        self.local.rule(topic)
    }

    fn append(&self, append: Append, done: Done) {
        self.local.append(append, done);
    }

    fn append_now(&self, append: Append) -> Result<Position, PublishError> {
        self.local.append_now(append)
    }

    fn latest(&self, limit: usize) -> Vec<Arc<Envelope>> {
        self.local.latest(limit)
    }

    fn latest_of(&self, hash: u64, topic: &str, limit: usize) -> Latest {
        self.local.latest_of(hash, topic, limit)
    }

    fn count_newest(&self, from_us: u64, messages_max: usize, activity: &mut Activity) -> u64 {
        self.local.count_newest(from_us, messages_max, activity)
    }
}

impl History for Late {
    fn epoch(&self) -> Epoch {
        self.local.epoch()
    }

    fn top(&self) -> Position {
        self.local.top()
    }

    fn retains_any(&self) -> bool {
        self.local.retains_any()
    }

    fn set_rules(&self, rules: Arc<Rules>, idempotency_seconds_max: u64) {
        self.local.set_rules(rules, idempotency_seconds_max);
    }

    fn stats(&self) -> HistoryStats {
        self.local.stats()
    }

    fn sweep(&self) {
        self.local.sweep();
    }

    fn age_ms(&self) -> u64 {
        self.local.age_ms()
    }

    fn start(
        &self,
        topics: &[(u64, &str)],
        request: &ResumeRequest,
        completion: Completion<Start>,
    ) -> Result<HistoryReply<Start>, HistoryError> {
        let topics: Vec<(u64, String)> =
            topics.iter().map(|(hash, name)| (*hash, name.to_string())).collect();
        let request = request.clone();
        self.reply(completion, move |local| {
            let topics: Vec<(u64, &str)> =
                topics.iter().map(|(hash, name)| (*hash, name.as_str())).collect();
            now(local.start(&topics, &request, never()))
        })
    }

    fn read(
        &self,
        pull: Pull,
        completion: Completion<Piece>,
    ) -> Result<HistoryReply<Piece>, HistoryError> {
        self.reply(completion, move |local| now(local.read(pull, never())))
    }

    fn set_implicit(&self, implicit: Option<Implicit>) {
        self.local.set_implicit(implicit);
    }

    fn matching(
        &self,
        filters: &[Name],
        after: u64,
        completion: Completion<Matching>,
        hash: TopicHash,
    ) -> Result<HistoryReply<Matching>, HistoryError> {
        let filters = filters.to_vec();
        self.reply(completion, move |local| now(local.matching(&filters, after, never(), hash)))
    }

    fn page(
        &self,
        query: PageQuery,
        completion: Completion<Page>,
    ) -> Result<HistoryReply<Page>, HistoryError> {
        self.reply(completion, move |local| now(local.page(query, never())))
    }

    fn delete(
        &self,
        hash: u64,
        topic: &str,
        completion: Completion<()>,
    ) -> Result<HistoryReply<()>, HistoryError> {
        self.local.delete(hash, topic, completion)
    }

    fn gone(&self, hash: u64, topic: &str, after: u64) -> Option<Gone> {
        let state = self.state.lock().unwrap();
        let knows = state.knows();
        self.local.gone(hash, topic, after).filter(|_| knows)
    }

    fn retained(&self, hash: u64, topic: &str, offsets: &[u64]) -> Option<Vec<u64>> {
        if !self.state.lock().unwrap().knows() {
            return None;
        }
        self.local.retained(hash, topic, offsets)
    }

    fn cursor(&self, user: &str, topic: &str) -> u64 {
        self.local.cursor(user, topic)
    }

    fn progress(&self, user: &str, topic: &str) -> Cursor {
        self.local.progress(user, topic)
    }

    fn acknowledge(&self, user: &str, topic: &str, id: Position) -> Result<u64, AcknowledgeError> {
        self.local.acknowledge(user, topic, id)
    }

    fn delivered(
        &self,
        user: &str,
        topic: &str,
        offset: u64,
        now_s: u32,
        rule: &AcknowledgeRule,
    ) -> u32 {
        self.local.delivered(user, topic, offset, now_s, rule)
    }

    fn delivered_again(&self) {
        self.local.delivered_again();
    }

    fn give_up(&self, user: &str, topic: &str, offset: u64, given_up: GivenUp) {
        self.local.give_up(user, topic, offset, given_up);
    }
}
