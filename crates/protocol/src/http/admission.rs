//! The connect webhook's part of a request: what the application gets, and what its decision means.

use auth::{Permit, Principal, Source, TokenMark};
use model::{ErrorCode, Name};

use super::identity::TOKEN_PARAMETER;
use super::{LONGPOLL, Rejection, Route};
use crate::query;
use crate::request::{Admission, ConnectDecision, ConnectRequest, Entry, Interrupt, Pending};

/// The query parameters with tokens of this server.
const TOKENS: [&str; 2] = [TOKEN_PARAMETER, "topic_token"];

impl Route<'_> {
    /// The name of the transport that the request is for.
    pub(super) fn transport(&self) -> &'static str {
        match self.request.path {
            "/sse" => "sse",
            "/stream" => "stream",
            "/poll" => "poll",
            "/ws" => "ws",
            "/socket/websocket" => "phoenix",
            LONGPOLL => "phoenix_longpoll",
            _ => "http",
        }
    }

    /// Returns the principal that the application gives this request, which names these users; `None` if the settings
    /// have no such webhook, or the application leaves the decision to the server.
    ///
    /// # Errors
    /// 403 if the application rejects the request, or gives it another user. `Interrupt::Pending` until it replies.
    pub(super) fn admitted(&self, named: &[Name]) -> Result<Option<Principal>, Interrupt> {
        let Some(headers) = &self.settings.connect_headers else {
            return Ok(None);
        };
        let Some(ConnectDecision { result, at_s }) = &self.decisions.connect else {
            return Err(Interrupt::Pending(Pending::Connect(
                self.connect_request(named, headers).into(),
            )));
        };
        let Some(admission) = result.as_ref().map_err(Clone::clone)? else {
            return Ok(None);
        };
        let Admission { users, grants, topics: _, info, seconds: _ } = &**admission;
        if let Some(users) = users
            && named.iter().any(|user| !users.contains(user))
        {
            let message = "user is not one of the users that the application assigned to this \
                           client: remove user";
            return Err(Rejection::new(ErrorCode::NotYourUser, message).into());
        }
        let users = users.clone().unwrap_or_else(|| named.to_vec());
        let anonymous = match &self.settings.auth {
            Some(auth) => Principal::stranger(auth.anonymous_grants()),
            None => Principal::anonymous(Vec::new()),
        };
        let grants = grants.clone().unwrap_or(anonymous.grants);
        let mark = TokenMark { issued_s: u32::try_from(*at_s).unwrap_or(u32::MAX), id_hash: 0 };
        let expires = admission.expires_s(*at_s);
        let (info, source) = (info.clone(), Source::Hook);
        Ok(Some(Principal { users, client: None, grants, info, expires, mark, source }))
    }

    /// Returns true if the application rejected this request.
    pub(crate) fn is_turned_away(&self) -> bool {
        self.decisions.connect.as_ref().is_some_and(|decision| decision.result.is_err())
    }

    /// The topics that the application gives the connection.
    pub(crate) fn admission_topics(&self) -> &[Name] {
        let decision = self.decisions.connect.as_ref();
        let admission = decision.and_then(|decision| decision.result.as_ref().ok()?.as_ref());
        admission.map_or(&[], |admission| &admission.topics)
    }

    /// The entry of a topic that the application gives.
    pub(crate) fn by_word(&self, topic: Name) -> Entry {
        let permit = Permit::of(&self.settings.policy.topic(&topic));
        Entry { topic, permit, meta: None }
    }

    /// The request to the application. A browser sends a cookie by itself, also when a foreign page makes the
    /// request: then this request leaves it out, because a token in it would not count.
    fn connect_request(&self, named: &[Name], headers: &[String]) -> ConnectRequest {
        let tokens = self.settings.auth.is_some();
        let is_ours = |key: &str, value: &str| {
            TOKENS.contains(&key) && (tokens || self.settings.longpoll_key.verify(value).is_some())
        };
        let query = query::pairs(self.request.query).flatten();
        let query = query.filter(|(key, value)| !is_ours(key, value));
        let header = |name: &String| {
            let foreign = name == "cookie" && self.cookie_page().is_err();
            let values: Vec<&str> = self.request.values(name).filter(|_| !foreign).collect();
            // RFC 6265, section 4.2.1, and RFC 9110, section 5.3.
            let between = if name == "cookie" { "; " } else { ", " };
            let found = !values.is_empty();
            found.then(|| (name.as_str().into(), values.join(between).into_boxed_str()))
        };
        ConnectRequest {
            transport: self.transport(),
            users: named.to_vec(),
            path: self.request.path.into(),
            query: query.map(|(key, value)| (key.into(), value.into())).collect(),
            headers: headers.iter().filter_map(header).collect(),
            credentials: None,
        }
    }
}
