//! The parameters of a request.

use super::identity::{token_rejected, token_required};
use super::parameter_typo::{self, Meant};
use super::{Method, Rejection, Route};
use crate::request::{Entry, Interrupt, Open, Pending, Request, TopicDecision};
use crate::{query, wildcards};
use auth::{Action, Consent, Permit, Principal, TokenError, TopicToken};
use model::name::{check_name, check_topic};
use model::{
    CodedError, ELSEWHERE, Encoding, ErrorCode, Name, ResumeRequest, ResumeToken, ResumeTokenError,
    Since, SinceError, TopicKind, tags,
};

#[derive(Default)]
pub(crate) struct Query {
    pub users: Vec<Name>,
    pub topics: Vec<Name>,
    pub resume: ResumeRequest,
    /// The id of the last event, which is newer than the rest of the URL.
    last: Option<ResumeToken>,
    /// The request has a last event id in a format that is not Throng's, such as one from the page's former server.
    is_foreign: bool,
    pub tags: Vec<Name>,
    pub seconds: Option<u32>,
    pub event: Option<Name>,
    pub json: bool,
    /// The topics are topic filters of MQTT.
    filters: bool,
    /// Unchecked: only a publish request uses it.
    pub key: Option<Name>,
    /// Unverified tokens for single topics.
    pub topic_tokens: Vec<Box<str>>,
    /// Unknown names, and what they probably mean.
    meant: Meant,
}

impl Query {
    fn requests(&self, topic: &str) -> bool {
        let own = TopicKind::of(topic).user();
        self.topics.iter().any(|it| it == topic) || self.users.iter().any(|it| Some(&**it) == own)
    }
}

/// A listener that the policy allows.
pub(crate) struct Listener {
    pub principal: Principal,
    /// The topics that it enters, first those that the request names.
    pub topics: Vec<Entry>,
    /// The number of topics that the request names.
    pub named: usize,
    /// The other parameters, without users and topics.
    pub query: Query,
    /// The client has to authenticate later.
    pub stranger: bool,
}

impl Listener {
    /// Opens the connection for messages in this encoding.
    pub fn open(self, encoding: Encoding) -> Request {
        let Listener { principal, topics, query, stranger, named: _ } = self;
        let Query { resume, tags, .. } = query;
        Request::Open(Open { encoding, principal, topics, resume, tags, stranger })
    }
}

impl Route<'_> {
    /// Decides whether the principal may do this with the topic; the application may have to decide.
    pub(crate) fn decide(
        &self,
        principal: &Principal,
        action: Action<'_>,
        topic: &str,
    ) -> Result<Consent, Rejection> {
        self.decide_with(principal, action, topic, &[])
    }

    /// Decides whether the principal may do this with the topic; the application may have to decide. One of these
    /// tokens for single topics may grant what the principal's own token does not.
    pub(crate) fn decide_with(
        &self,
        principal: &Principal,
        action: Action<'_>,
        topic: &str,
        tokens: &[TopicToken],
    ) -> Result<Consent, Rejection> {
        let policy = &self.settings.policy;
        let decision = policy.decide_with(principal, action, &policy.topic(topic), tokens);
        decision.undenied().map_err(|deny| CodedError::from(deny).into())
    }

    /// Verifies the request's tokens for single topics.
    pub(crate) fn topic_tokens(&self, tokens: &[Box<str>]) -> Result<Vec<TopicToken>, Interrupt> {
        let Some(auth) = &self.settings.auth else {
            return Ok(Vec::new());
        };
        let verified = tokens.iter().map(|token| auth.verify_topic(token, self.now_s));
        verified.collect::<Result<_, TokenError>>().map_err(token_rejected)
    }

    /// Decides whether the principal may enter these topics, and read the history of those for which `past` is true:
    /// all of them, or none. While the application has to decide, the request is pending.
    pub(crate) fn entries(
        &self,
        principal: &Principal,
        tokens: &[TopicToken],
        names: Vec<Name>,
        past: impl Fn(&Name) -> bool,
    ) -> Result<Vec<Entry>, Interrupt> {
        let (mut entries, mut undecided) = (Vec::with_capacity(names.len()), Vec::new());
        for topic in names {
            let consent = self.decide_with(principal, Action::Subscribe, &topic, tokens)?;
            if past(&topic) {
                // One request to the application covers both.
                let _ = self.decide_with(principal, Action::History, &topic, tokens)?;
            }
            match (consent, self.decision(&topic)) {
                (Consent::Given(permit), _) => entries.push(Entry { topic, permit, meta: None }),
                (Consent::Requested(_), None) => undecided.push(topic),
                (Consent::Requested(_), Some(decision)) => {
                    let meta = decision.result.clone()?;
                    let permit = Permit::of(&self.settings.policy.topic(&topic));
                    entries.push(Entry { topic, permit, meta });
                }
            }
        }
        match undecided.is_empty() {
            true => Ok(entries),
            false => Err(self.pending_subscribe(undecided, principal)),
        }
    }

    /// Decides whether the principal may read a topic's history.
    pub(crate) fn reads(
        &self,
        principal: &Principal,
        tokens: &[TopicToken],
        topic: &Name,
    ) -> Result<(), Interrupt> {
        match (self.decide_with(principal, Action::History, topic, tokens)?, self.decision(topic)) {
            (Consent::Given(_), _) => Ok(()),
            (Consent::Requested(_), Some(decision)) => Ok(decision.result.clone().map(|_| ())?),
            (Consent::Requested(_), None) => {
                Err(self.pending_subscribe(vec![topic.clone()], principal))
            }
        }
    }

    /// The application's decision about a topic.
    fn decision(&self, topic: &str) -> Option<&TopicDecision> {
        self.decisions.topics.iter().find(|decision| decision.topic == topic)
    }

    fn pending_subscribe(&self, topics: Vec<Name>, principal: &Principal) -> Interrupt {
        let (users, transport) = (principal.users.clone(), self.transport());
        Interrupt::Pending(Pending::Subscribe { topics, users, transport })
    }

    /// Reads the parameters of a listener's request and decides about each topic.
    pub(crate) fn listener(&self) -> Result<Listener, Interrupt> {
        let mut query = self.query()?;
        let principal = self.principal(std::mem::take(&mut query.users))?;
        let admitted = self.admission_topics();
        let mut names = std::mem::take(&mut query.topics);
        let known: Vec<Name> = names.extract_if(.., |it| admitted.contains(it)).collect();
        // A token can have more users than the request names.
        self.check_topics(principal.users.len() + names.len() + admitted.len())?;
        let tokens = self.topic_tokens(&query.topic_tokens)?;
        let past = |topic: &Name| query.resume.reads_history(topic);
        let mut topics = self.entries(&principal, &tokens, names, past)?;
        let named = topics.len() + known.len();
        let others: Vec<Name> = admitted.iter().filter(|it| !known.contains(it)).cloned().collect();
        topics.extend(known.into_iter().chain(others).map(|topic| self.by_word(topic)));
        Ok(Listener { principal, topics, named, query, stranger: false })
    }

    /// Reads the parameters of a connection that may authenticate later, and decides about each topic. A client that
    /// lacks a required token is a stranger, and may name no users or topics yet, unless the application admits it.
    pub(crate) fn listener_or_stranger(&self) -> Result<Listener, Interrupt> {
        if !self.lacks_token()? {
            return self.listener();
        }
        let undecided = match self.settings.connect_headers.is_some() {
            true => Some(self.listener()),
            false => None,
        };
        let query = self.query()?;
        match undecided {
            // A client that lacks credentials may authenticate later.
            Some(Err(Interrupt::Rejection(rejection)))
                if rejection.status == 401 && query.users.is_empty() && query.topics.is_empty() => {
            }
            Some(listener) => return listener,
            None => {}
        }
        if !(query.users.is_empty() && query.topics.is_empty()) {
            return Err(token_required(true).into());
        }
        let principal = Principal::anonymous(Vec::new());
        Ok(Listener { principal, topics: Vec::new(), named: 0, query, stranger: true })
    }

    /// Begins an endless reply: `begin` writes its head and first messages, and returns the encoding of its messages.
    /// HEAD gets only the head, and the connection ends.
    pub(crate) fn listen(
        &self,
        out: &mut Vec<u8>,
        head: impl FnOnce(&str, &mut Vec<u8>),
        begin: impl FnOnce(&Listener, &mut Vec<u8>) -> Encoding,
    ) -> Result<Request, Interrupt> {
        let listener = self.listener()?;
        if self.request.method == Method::Head {
            head(self.cors, out);
            return Ok(Request::Replied { keep_alive: false });
        }
        let encoding = begin(&listener, out);
        Ok(listener.open(encoding))
    }

    pub(crate) fn query(&self) -> Result<Query, Rejection> {
        let mut query = Query::default();
        for pair in query::pairs(self.request.query) {
            let (key, value) = pair.map_err(not_utf8)?;
            self.parameter(&mut query, &key, &value)?;
        }
        self.check_meant(&query.meant)?;
        if query.filters {
            self.take_filters(&mut query)?;
        }
        self.check_topics(query.users.len() + query.topics.len())?;
        if let Some((topic, _)) = query.resume.topics.iter().find(|it| !query.requests(&it.0)) {
            let message = format!("since:{topic} is for a topic that this request does not name");
            return Err(Rejection::new(ErrorCode::BadSince, message));
        }
        if let Some(last) = query.last.take() {
            query.resume.all = Some(last.into());
            query.resume.topics.retain(|(_, since)| since.token().is_some());
        }
        let header = self.request.bytes("last-event-id").find(|id| !id.is_empty());
        match header.map(|id| std::str::from_utf8(id).ok()?.parse::<ResumeToken>().ok()) {
            // A browser reconnects with its first URL, so this header is newer than the URL.
            Some(Some(last)) => {
                query.resume = ResumeRequest { all: Some(last.into()), topics: Vec::new() };
            }
            Some(None) => query.is_foreign = true,
            None => {}
        }
        if query.is_foreign {
            // If the URL gives no position, the client gets a notice that it has missed messages.
            query.resume.all.get_or_insert_with(|| ResumeToken::from(ELSEWHERE).into());
        }
        Ok(query)
    }

    /// Turns the topics of a query with `filter` into topic filters.
    fn take_filters(&self, query: &mut Query) -> Result<(), Rejection> {
        let path = self.request.path;
        if !matches!(path, "/sse" | "/stream" | "/ws") {
            let message =
                format!("filter is only for /sse, /stream and /ws: {path} accepts only topics");
            return Err(Rejection::new(ErrorCode::BadFilter, message));
        }
        for topic in &mut query.topics {
            *topic = wildcards::subscription_name(topic).map_err(Rejection::from)?;
            wildcards::check_allowed(topic, self.settings).map_err(Rejection::from)?;
            wildcards::check_since(topic, query.resume.of(topic)).map_err(Rejection::from)?;
        }
        Ok(())
    }

    /// Checks that a connection may be in this many topics, including the users' own.
    pub(crate) fn check_topics(&self, topics: usize) -> Result<(), Rejection> {
        let max = self.settings.topics_per_connection_max;
        match topics <= max {
            true => Ok(()),
            false => {
                let message = crate::data::too_many_topics(max);
                Err(Rejection::new(ErrorCode::TooManyTopics, message))
            }
        }
    }

    /// Rejects probable typos of parameters with the right name, unless the request has that one as well, and
    /// parameters that this path doesn't take.
    pub(super) fn check_meant(&self, meant: &Meant) -> Result<(), Rejection> {
        meant.check(self.request.path, |right| self.names(right))
    }

    /// Checks that the request has a parameter of this name.
    fn names(&self, name: &str) -> bool {
        query::pairs(self.request.query).flatten().any(|(key, _)| key == name)
    }

    pub(crate) fn parameter(
        &self,
        query: &mut Query,
        key: &str,
        value: &str,
    ) -> Result<(), Rejection> {
        match key {
            "topic" => {
                check_topic(value).map_err(|error| Rejection::new(ErrorCode::BadTopic, error))?;
                if !query.topics.iter().any(|topic| topic == value) {
                    query.topics.push(value.into());
                }
            }
            "user" => {
                check_name(value).map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
                if !query.users.iter().any(|user| user == value) {
                    query.users.push(value.into());
                }
            }
            // Unchecked: only a publish request uses it.
            "event" => {
                query.event = Some(value).filter(|event| *event != "message").map(Name::from);
            }
            "tag" => {
                tags::add(&mut query.tags, value)
                    .map_err(|error| Rejection::new(ErrorCode::BadTag, error))?;
            }
            "key" => query.key = Some(value.into()),
            "topic_token" => query.topic_tokens.push(value.into()),
            "since" => {
                if !value.is_empty() {
                    query.resume.all = Some(since(value)?);
                }
            }
            // Clients that can't set the header append it to the URL that they began with.
            _ if parameter_typo::is_last_event_id(key) => {
                match value.parse() {
                    Ok(last) => query.last = Some(last),
                    // `start` and `last:5` are values of `since`.
                    Err(ResumeTokenError) if value.parse::<Since>().is_ok() => {
                        return Err(bad_since(SinceError::Token));
                    }
                    Err(ResumeTokenError) => query.is_foreign |= !value.is_empty(),
                }
            }
            "timeout" => {
                let error = |_| {
                    let message = "timeout must be a whole number of seconds";
                    Rejection::new(ErrorCode::BadTimeout, message)
                };
                query.seconds = Some(value.parse().map_err(error)?);
            }
            "filter" => {
                wildcards::check_kind(value).map_err(Rejection::from)?;
                query.filters = true;
            }
            "format" => {
                query.json = match value {
                    "json" => true,
                    "data" => false,
                    _ => {
                        let message = "format must be data or json";
                        return Err(Rejection::new(ErrorCode::BadFormat, message));
                    }
                };
            }
            _ => {
                if let Some(topic) = key.strip_prefix("since:") {
                    if !value.is_empty() {
                        let since = since(value)?;
                        query.resume.topics.retain(|(known, _)| known != topic);
                        query.resume.topics.push((topic.into(), since));
                    }
                } else {
                    query.meant.note(self.request.path, key);
                }
                // Others belong to the page: a cache breaker, a tracking tag.
            }
        }
        Ok(())
    }
}

fn since(value: &str) -> Result<Since, Rejection> {
    value.parse().map_err(bad_since)
}

fn bad_since(error: SinceError) -> Rejection {
    Rejection::new(ErrorCode::BadSince, error.to_string())
}

pub(crate) fn not_utf8(error: query::QueryError) -> Rejection {
    Rejection::new(ErrorCode::BadQuery, error.to_string())
}
