//! A simulated client: the positions that it comes back with, and checks of the messages that it gets.

mod commands;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::Position;

use crate::testing::ClientEnd;

use super::log::{
    AGAIN, ALL, Log, PASSING, TOPICS, WINDOW, What, conflates, count, name as name_of, what,
};
use super::newest::Newest;
use super::progress::{Begins, Progress, RequestedHistory};
use super::read::{self, Kind, Reader, Unit};
use super::state::State;

/// The state of one connection in an acknowledged topic.
#[derive(Debug, Default)]
pub(super) struct Acks {
    next: usize,
    /// The client must get a notice that queued messages were dropped.
    lost: bool,
    /// All messages that came on this connection.
    delivered: BTreeSet<usize>,
    /// The received messages that are not acknowledged.
    pub received: BTreeSet<usize>,
    /// The positions of the user's cursor since the connection began.
    pub cursors: Vec<usize>,
}

#[derive(Debug)]
enum Command {
    /// Enter a topic.
    Enter {
        from: From,
        was_in: bool,
    },
    Leave,
}

#[derive(Clone, Copy, Debug)]
enum From {
    Now,
    Position(usize),
    WhatIsThere(Begins),
}

#[derive(Debug)]
struct Pending {
    id: u64,
    topic: usize,
    command: Command,
    /// The number of messages in the topic when the command was sent.
    requested: usize,
}

pub(super) struct Connection {
    pub socket: ClientEnd,
    reader: Reader,
    /// The next message of each topic that has no history or that the application put the connection in.
    live: BTreeMap<usize, usize>,
    /// The number of messages in each topic when the connection entered it. Of topics without history, the client may
    /// still get some of these earlier messages.
    joined: Vec<usize>,
    /// The application takes the connection out of topics.
    pub loose: bool,
    pub acks: BTreeMap<usize, Acks>,
    pending: VecDeque<Pending>,
    /// The topics that the connection is in.
    inside: BTreeSet<usize>,
    /// Topics that the connection entered or left by a command. The reply to the command overrides an earlier recovery
    /// whose result comes later.
    commanded: BTreeSet<usize>,
    /// A poll waits for its reply.
    pub polls: bool,
    /// The client requested only stored messages, and has no reply yet.
    fresh: bool,
}

pub(super) struct Client {
    pub name: usize,
    pub kind: Kind,
    pub user: String,
    /// The topics that the client names when it connects.
    pub topics: Vec<usize>,
    /// The stored messages that the client requests as long as it knows no position.
    requested: Option<RequestedHistory>,
    /// The position that the client comes back with, if one position covers all topics.
    position: Option<String>,
    /// The positions of single topics.
    since: BTreeMap<usize, String>,
    pub progress: BTreeMap<usize, Progress>,
    /// What the client has of compacted topics.
    states: BTreeMap<usize, State>,
    /// What the client has of topics with `conflate` that aren't compacted.
    newest: BTreeMap<usize, Newest>,
    pub connection: Option<Connection>,
    /// The application has put it into a topic.
    pub is_put_in: bool,
    commands: u64,
}

/// Returns how many of a topic's oldest messages the limits have dropped.
fn dropped(log: &Log, topic: usize) -> usize {
    match what(topic) {
        What::Small(retained) | What::Ack(retained) => log[topic].len().saturating_sub(retained),
        What::Big
        | What::Plain
        | What::State(_)
        | What::Newest { .. }
        | What::Extra
        | What::All
        | What::Passing => 0,
    }
}

/// Returns the key in a message. In topics that aren't compacted, messages with key 0 have none: they conflate as if
/// they shared a key.
pub(super) fn key_of(topic: usize, key: usize) -> Option<String> {
    (key > 0 || is_state(topic)).then(|| format!("k{key}"))
}

/// Returns true for a topic that isn't compacted and of which the client must get only the newest message of each key.
fn is_newest(topic: usize) -> bool {
    matches!(what(topic), What::Newest { .. })
}

fn is_state(topic: usize) -> bool {
    matches!(what(topic), What::State(_))
}

impl Client {
    pub fn new(
        name: usize,
        kind: Kind,
        user: String,
        topics: Vec<usize>,
        requested: Option<RequestedHistory>,
    ) -> Self {
        Client {
            name,
            kind,
            user,
            topics,
            requested,
            position: None,
            since: BTreeMap::new(),
            progress: BTreeMap::new(),
            states: BTreeMap::new(),
            newest: BTreeMap::new(),
            connection: None,
            is_put_in: false,
            commands: 0,
        }
    }

    /// Returns the request with which the client connects or polls. With `reload`, the URL has a position for each
    /// topic, as after a reload of the page.
    pub fn request(&self, seconds: u32, reload: bool) -> String {
        let path = match self.kind {
            Kind::Sse => "/sse?",
            Kind::SseJson => "/sse?format=json&",
            Kind::Stream => "/stream?",
            Kind::Poll => "/poll?",
            Kind::Ws => "/ws?",
            Kind::Phoenix => "/socket/websocket?vsn=2.0.0&",
        };
        let mut target = format!("{path}user={}", self.user);
        let mut headers = String::new();
        if self.kind != Kind::Phoenix {
            self.topics.iter().for_each(|it| target += &format!("&topic={}", TOPICS[*it].0));
        }
        let each = matches!(self.kind, Kind::Stream | Kind::Ws) || reload;
        // An event stream reconnects with its first URL.
        let repeats = self.kind.is_sse() || self.position.is_none();
        if let Some(requested) = self.requested.filter(|_| repeats && self.kind != Kind::Phoenix) {
            target += &format!("&since={requested}");
        }
        if each {
            for (topic, since) in self.since.iter().filter(|it| self.topics.contains(it.0)) {
                target += &format!("&since:{}={since}", TOPICS[*topic].0);
            }
        } else if let Some(position) = &self.position {
            match self.kind {
                Kind::Poll => target += &format!("&since={position}"),
                Kind::Sse | Kind::SseJson | Kind::Stream | Kind::Ws | Kind::Phoenix => {
                    headers += &format!("Last-Event-ID: {position}\r\n");
                }
            }
        }
        if self.kind == Kind::Poll {
            target += &format!("&timeout={seconds}");
        }
        if self.kind.is_socket() {
            headers += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        }
        format!("GET {target} HTTP/1.1\r\nHost: h\r\n{headers}\r\n")
    }

    /// Returns true for an event stream that knows its position in each topic, so that its page can be reloaded.
    pub fn may_reload(&self) -> bool {
        let retained = self.topics.iter().filter(|it| what(**it).has_history());
        self.kind.is_sse() && retained.clone().all(|it| self.since.contains_key(it))
    }

    /// The server is about to read the request: from now on the client gets the messages that it lacks. `at_once` is
    /// true if the history replies before anything else happens.
    pub fn begin(
        &mut self,
        log: &Log,
        socket: ClientEnd,
        cursor: &dyn Fn(usize) -> usize,
        at_once: bool,
    ) {
        let poll = self.kind == Kind::Poll;
        let mut connection = Connection {
            socket,
            reader: Reader::default(),
            live: BTreeMap::new(),
            joined: log.offsets.iter().map(Vec::len).collect(),
            loose: false,
            acks: BTreeMap::new(),
            pending: VecDeque::new(),
            inside: self.topics.iter().copied().collect(),
            commanded: BTreeSet::new(),
            polls: poll,
            fresh: false,
        };
        if self.kind == Kind::Phoenix {
            connection.inside.clear();
        }
        let single = matches!(self.kind, Kind::Stream | Kind::Ws);
        let passing = self.topics.iter().filter(|it| poll && what(**it).is_retained());
        let passing: Vec<usize> = passing.map(|it| PASSING + it).collect();
        for topic in self.topics.iter().copied().chain(poll.then_some(ALL)).chain(passing) {
            let knows = match single {
                true => self.since.contains_key(&topic),
                false => self.position.is_some(),
            };
            let next = match what(topic) {
                What::Ack(_) => cursor(topic),
                What::Big
                | What::Small(_)
                | What::Plain
                | What::State(_)
                | What::Newest { .. }
                | What::Extra
                | What::All
                | What::Passing => log[topic].len(),
            };
            if is_newest(topic) && !(knows && what(topic).has_history()) {
                let from = match self.requested.filter(|_| what(topic).has_history()) {
                    Some(RequestedHistory::Start) => 0,
                    _ => next,
                };
                self.newest.insert(topic, Newest::new(from));
            }
            if is_state(topic) {
                self.states.entry(topic).or_default().enter(log[topic].len(), !knows);
            } else if what(topic).is_acknowledged() && !poll {
                let lost = self.requested.is_none() && next < dropped(log, topic);
                let acks = Acks { next, lost, cursors: vec![next], ..Acks::default() };
                connection.acks.insert(topic, acks);
            } else if (what(topic).has_history() || poll) && !knows && self.kind != Kind::Phoenix {
                let requested = self.requested.filter(|_| what(topic).has_history());
                // A poll may wait, and begins with the messages that are stored when its reply is made.
                let exact = at_once && !poll;
                let begins_at_once =
                    matches!(what(topic), What::Big | What::Newest { retained: true });
                let progress = match requested
                    .map(|requested| Begins::new(log, topic, requested, exact))
                {
                    Some(begins) if poll || !begins_at_once => Progress::with_what_is_there(begins),
                    Some(begins) => {
                        let latest = log[topic].len();
                        Progress::with_what_is_there(begins.by(latest))
                    }
                    // A client that requests stored messages gets no gap notice for queued messages that were dropped.
                    None => Progress::new(
                        next,
                        what(topic).is_acknowledged() && self.requested.is_some(),
                    ),
                };
                self.progress.insert(topic, progress);
            } else if let Some(begins) =
                self.progress.get_mut(&topic).and_then(|it| it.begins.as_mut())
            {
                // The connection was cut before the client learned where the topic begins. Its position may be older
                // than the history's reply.
                if !at_once {
                    (begins.exact, begins.low) = (false, 0);
                }
            }
        }
        let says = self.position.is_some() || (single && !self.since.is_empty());
        connection.fresh = self.requested.is_some() && !says;
        self.connection = Some(connection);
    }

    /// Reads some bytes. Returns false if the server has closed the connection.
    pub fn read(&mut self, log: &Log, bytes_max: usize) -> bool {
        let Some(connection) = &mut self.connection else {
            return true;
        };
        let open = match connection.socket.read(bytes_max) {
            Some(bytes) => {
                connection.reader.push(&bytes);
                true
            }
            None => false,
        };
        while let Some(unit) = self.connection.as_mut().and_then(|it| it.reader.next(self.kind)) {
            self.process_input(log, unit);
        }
        if !open {
            self.connection = None;
        }
        open
    }

    fn process_input(&mut self, log: &Log, unit: Unit) {
        super::trace(|| format!("  client {} {:?} hears {unit:?}", self.name, self.kind));
        match unit {
            Unit::Message(message) => {
                let topic = self.message(log, &message);
                let read::ReadMessage { id, .. } = message;
                let passes = what(topic) == What::Passing;
                assert!(!(passes && id.is_some()), "it names a place where it isn't");
                if self.kind.is_sse() && !passes {
                    let id = id.expect("an event has an id");
                    self.know(topic, id.split('/').next().unwrap());
                    self.position = Some(id);
                } else if let Some(id) = id {
                    self.know(topic, &id);
                }
            }
            Unit::Position(position) => self.position = Some(position),
            Unit::State(topic) => self.complete(log, &topic),
            Unit::Recovery { since, recovered, lost } => {
                self.recovery(log, &since, recovered, &lost);
            }
            Unit::Reply { id, ok, since, recovered, why } => {
                assert!(ok, "client {}: {why}", self.name);
                self.reply(log, id, since, recovered, &why);
            }
            Unit::Poll { messages, since, recovered, why, states } => {
                let fresh = std::mem::take(&mut self.connection.as_mut().unwrap().fresh);
                if fresh {
                    let in_vain = self.topics.iter().any(|it| !what(*it).is_retained());
                    assert_eq!(recovered, Some(!in_vain), "client {}", self.name);
                    assert_eq!(why == "no_history", in_vain, "client {}: {why}", self.name);
                } else if recovered == Some(false) {
                    assert_eq!(why, "too_old", "client {}", self.name);
                    let topics = self.topics.clone();
                    let lost: Vec<usize> =
                        topics.into_iter().filter(|it| self.has_lost(log, *it)).collect();
                    assert!(!lost.is_empty(), "client {}: nothing was lost", self.name);
                    lost.into_iter().for_each(|topic| self.jump(topic));
                }
                if recovered == Some(false) {
                    self.states.values_mut().for_each(State::forget);
                }
                for message in &messages {
                    self.message(log, message);
                }
                self.states.values_mut().for_each(|state| state.is_sent = false);
                states.iter().for_each(|topic| self.complete(log, topic));
                self.position = Some(since);
                self.connection.as_mut().unwrap().polls = false;
            }
        }
    }

    /// The client has the whole state of a topic.
    fn complete(&mut self, log: &Log, topic: &str) {
        let topic = TOPICS.iter().position(|it| it.0 == topic).unwrap();
        assert!(is_state(topic) && self.connection.as_ref().unwrap().inside.contains(&topic));
        self.states.get_mut(&topic).unwrap().complete(&log.changes[topic]);
    }

    fn jump(&mut self, topic: usize) {
        if let Some(state) = self.states.get_mut(&topic) {
            return state.forget();
        }
        let progress = self.progress.get_mut(&topic).unwrap();
        (progress.jump, progress.begins) = (true, None);
    }

    fn know(&mut self, topic: usize, id: &str) {
        if what(topic).has_history() {
            self.since.insert(topic, id.into());
        }
    }

    /// Returns true if the limits have dropped messages that the client has not received.
    fn has_lost(&self, log: &Log, topic: usize) -> bool {
        if let What::State(_) = what(topic) {
            return log.changes[topic].floor(log[topic].len()) > 0;
        }
        let acks = self.connection.as_ref().and_then(|connection| connection.acks.get(&topic));
        let progress = self.progress.get(&topic).map(|it| it.next);
        let position = acks.map(|acks| acks.cursors[0]).or(progress);
        position.is_some_and(|position| position < dropped(log, topic))
    }

    /// Checks the id of a message: it is always the same, and has no more parts than necessary.
    fn check_id(&self, log: &Log, topic: usize, number: usize, id: &str) {
        let own: Position = id.split('/').next().unwrap().parse().unwrap();
        assert_eq!(own.offset, log[topic][number], "client {}: {id}", self.name);
        let histories = self.topics.iter().filter(|it| what(**it).has_history()).count();
        let is_only = histories == 0 || (histories == 1 && what(topic).has_history());
        let is_plain = !id.contains('/');
        assert!(is_plain || (self.kind.is_sse() && (self.is_put_in || !is_only)), "{id}");
    }

    /// Checks a message, and returns its topic.
    fn message(&mut self, log: &Log, message: &read::ReadMessage) -> usize {
        let read::ReadMessage { topic_and_number, ref id, ref key } = *message;
        let (topic, number) = topic_and_number.unwrap_or_else(|| {
            let id = id.as_ref().expect("who removes a key has a place");
            log.find(id.split('/').next().unwrap().parse::<Position>().unwrap().offset)
        });
        let is_plain = self.kind == Kind::Sse;
        let want = (is_state(topic) || is_newest(topic))
            .then(|| key_of(topic, log.changes[topic].of(number).key))
            .flatten();
        assert_eq!(*key, want.filter(|_| !is_plain), "client {}", self.name);
        if let Some(id) = id {
            self.check_id(log, topic, number, id);
        }
        let Client { name, kind, .. } = *self;
        let connection = self.connection.as_mut().unwrap();
        let wrong = |what: &str, next: usize| -> ! {
            let topic = name_of(topic);
            panic!("client {name} {kind:?}: {what}: {topic} {number}, where {next} was next")
        };
        // A slow client gets only the newest messages; a poll gets all.
        let skips = conflates(topic) && kind != Kind::Poll;
        let live = matches!(
            what(topic),
            What::Plain
                | What::Newest { retained: false }
                | What::All
                | What::Extra
                | What::Passing
        );
        if live && kind != Kind::Poll {
            let next = connection.live.entry(topic).or_insert(number);
            match number.cmp(next) {
                std::cmp::Ordering::Less => wrong("a duplicate", *next),
                std::cmp::Ordering::Greater
                    if !connection.loose && !skips && number > connection.joined[topic] =>
                {
                    wrong("a gap", *next)
                }
                std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => *next = number + 1,
            }
            if let Some(newest) = self.newest.get_mut(&topic) {
                newest.observe(&log.changes[topic], number);
            }
            return topic;
        }
        assert!(number < log[topic].len() || topic == ALL);
        if topic != ALL && !connection.inside.contains(&(topic % PASSING)) {
            wrong("not subscribed", 0);
        }
        if is_state(topic) {
            self.states.get_mut(&topic).unwrap().observe(&log.changes[topic], number, skips);
            return topic;
        }
        if let Some(acks) = connection.acks.get_mut(&topic) {
            // A message that another connection of the user has acknowledged is not missed.
            if acks.lost && acks.cursors.len() == 1 {
                wrong("not told what is gone", acks.next);
            }
            let is_again = !acks.delivered.insert(number);
            if is_again && !(topic == AGAIN && kind.is_socket()) {
                wrong("twice on one connection", acks.next);
            }
            let gone = dropped(log, topic);
            let is_passed = (acks.next..=gone).contains(&number);
            if !is_again && number != acks.next && !acks.cursors.contains(&number) && !is_passed {
                wrong("not from the cursor", acks.next);
            }
            acks.next = acks.next.max(number + 1);
            acks.received.insert(number);
            // Dropped messages take no capacity.
            let cursor = gone.max(*acks.cursors.last().unwrap());
            let flight = acks.received.range(cursor..).count();
            assert!(flight <= WINDOW, "client {name}: {flight} in flight");
            return topic;
        }
        let progress = self.progress.get_mut(&topic).expect("a topic that it hears");
        if let Some(begins) = progress.begins.take() {
            let may_be = skips || begins.may_be(number, log[topic].len());
            assert!(may_be, "client {name} {kind:?}: {topic} begins with {number}: {begins:?}");
            progress.next = number;
        }
        match number.cmp(&progress.next) {
            std::cmp::Ordering::Less => wrong("a duplicate", progress.next),
            std::cmp::Ordering::Greater
                if !progress.jump && !skips && number > progress.acknowledged =>
            {
                wrong("a gap", progress.next)
            }
            std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => {
                *progress = Progress { next: number + 1, jump: false, ..*progress }
            }
        }
        if let Some(newest) = self.newest.get_mut(&topic).filter(|_| skips) {
            newest.observe(&log.changes[topic], number);
        }
        topic
    }

    fn recovery(
        &mut self,
        log: &Log,
        since: &str,
        recovered: Option<bool>,
        lost: &[(String, String)],
    ) {
        let name = self.name;
        assert_eq!(recovered == Some(false), !lost.is_empty(), "client {name}");
        let fresh = std::mem::take(&mut self.connection.as_mut().unwrap().fresh);
        if fresh {
            let in_vain = self.topics.iter().filter(|it| !what(**it).is_retained()).count();
            // Without topics in the request, the user's personal topic counts.
            let in_vain = if self.topics.is_empty() { 1 } else { in_vain };
            assert_eq!((recovered, lost.len()), (Some(in_vain == 0), in_vain), "client {name}");
        }
        for (topic, acks) in &mut self.connection.as_mut().unwrap().acks {
            let is_notified = lost.iter().any(|(name, _)| *name == TOPICS[*topic].0);
            let must_be = std::mem::take(&mut acks.lost);
            let must_be = must_be && acks.cursors.len() == 1;
            assert!(is_notified || !must_be, "client {name}: of {topic} something is gone");
        }
        for (topic, why) in lost {
            let topic = TOPICS.iter().position(|it| it.0 == topic).unwrap_or(ALL);
            if why == "no_history" {
                assert!(!what(topic).has_history(), "client {name}");
                continue;
            }
            assert_eq!(why, "too_old", "client {name}");
            assert!(self.has_lost(log, topic), "client {name}: nothing of {topic} was lost");
            if !what(topic).is_acknowledged() {
                self.jump(topic);
            }
        }
        if recovered.is_none() && !self.kind.is_sse() {
            let commanded = self.connection.as_ref().unwrap().commanded.clone();
            let plain =
                |it: &usize| what(*it).has_history() && !is_state(*it) && !commanded.contains(it);
            for topic in self.topics.clone().into_iter().filter(plain) {
                assert_eq!(count(&log[topic], since), self.progress[&topic].next);
                self.know(topic, since);
            }
        }
    }

    /// Polls again on the same connection.
    pub fn poll_again(&mut self, log: &Log, seconds: u32) {
        for (topic, state) in &mut self.states {
            state.enter(log[*topic].len(), false);
        }
        let request = self.request(seconds, false);
        self.connection.as_mut().unwrap().polls = true;
        self.send(request.as_bytes());
    }

    fn send(&mut self, bytes: &[u8]) {
        let connection = self.connection.as_ref().unwrap();
        connection.socket.send(bytes);
    }

    /// Everything was published and read: checks that the client has all of it.
    pub fn has_all(&self, log: &Log) -> Result<(), String> {
        let Some(connection) = &self.connection else {
            return Err(format!("client {} is not connected", self.name));
        };
        if !connection.pending.is_empty() {
            return Err(format!("client {}: unanswered {:?}", self.name, connection.pending));
        }
        let inside = connection.inside.iter().copied();
        let passing = inside.clone().filter(|it| what(*it).is_retained()).map(|it| PASSING + it);
        for topic in &inside.chain(passing).collect::<Vec<_>>() {
            if is_state(*topic) {
                let (name, kind) = (self.name, self.kind);
                match self.states[topic].has_all(&log.changes[*topic]) {
                    true => continue,
                    false => {
                        return Err(format!("client {name} {kind:?}: {:?}", self.states[topic]));
                    }
                }
            }
            let newest = self.newest.get(topic).filter(|_| self.kind != Kind::Poll);
            if let Some(newest) = newest.filter(|it| !it.has_all(&log.changes[*topic])) {
                return Err(format!("client {} {:?}: {newest:?}", self.name, self.kind));
            }
            let next = match (self.progress.get(topic), connection.acks.get(topic)) {
                (_, Some(acks)) => *acks.cursors.last().unwrap(),
                (Some(progress), _) => progress.next.max(progress.acknowledged),
                _ => match connection.live.get(topic) {
                    Some(next) => connection.joined[*topic].max(*next),
                    None => log[*topic].len(),
                },
            };
            if next != log[*topic].len() {
                let (name, topic, len) = (self.name, name_of(*topic), log[*topic].len());
                let kind = self.kind;
                return Err(format!("client {name} {kind:?}: {next} of {len} of {topic}"));
            }
        }
        Ok(())
    }
}
