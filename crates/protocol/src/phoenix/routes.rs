//! Phoenix Channels under `/socket`: the WebSocket, and the long poll with its sessions.

use super::longpoll::{self, Line, LongpollStatus};
use super::{ClientMessage, PhoenixError, Serializer, VSN_DEFAULT};
use crate::http::{Method, Query, Rejection, Route, error_body, json_reply, not_utf8, short_reply};
use crate::query;
use crate::request::{Interrupt, Longpoll, Op, Open, Pending, Request, Respond};
use crate::websocket::handshake;
use auth::Principal;
use model::{ErrorCode, Name, ResumeRequest};

/// The subprotocol that newer clients offer if they send a token in the handshake.
const SUBPROTOCOL: &str = "phoenix";

/// Appends the rejection of a long poll's request, in the format of its client.
pub fn longpoll_rejection(
    rejection: &Rejection,
    method: Method,
    respond: &Respond,
    out: &mut Vec<u8>,
) {
    let status = match (rejection.status, method) {
        (500.., _) => LongpollStatus::Error,
        (401 | 403, _) => LongpollStatus::Forbidden,
        // For a poll, phoenix.js knows none of the other statuses.
        (_, Method::Get) => LongpollStatus::Forbidden,
        _ => LongpollStatus::BadRequest,
    };
    let mut body = Vec::new();
    longpoll::rejection(status, rejection.code.text(), &rejection.message, &mut body);
    json_reply(respond, &body, out);
}

/// The parameters of a Phoenix client's request.
struct Parameters {
    serializer: Option<Serializer>,
    users: Vec<Name>,
    /// The token of a long-poll session.
    token: Option<String>,
}

impl Route<'_> {
    /// Reads the parameters; unknown ones belong to the application.
    fn parameters(&self) -> Result<Parameters, Rejection> {
        let mut found = Query::default();
        let (mut vsn, mut token) = (None, None);
        for pair in query::pairs(self.request.query) {
            let (key, value) = pair.map_err(not_utf8)?;
            match &*key {
                "user" => self.parameter(&mut found, &key, &value)?,
                "vsn" => vsn = Some(value.into_owned()),
                // The client's own token may be in the same parameter.
                longpoll::TOKEN_PARAMETER
                    if token.is_none() || self.settings.longpoll_key.verify(&value).is_some() =>
                {
                    token = Some(value.into_owned());
                }
                _ => {}
            }
        }
        // Each user has a topic of its own, so the connection's limit of topics applies.
        self.check_topics(found.users.len())?;
        if let Some(sent) = self.request.header(longpoll::TOKEN_HEADER) {
            token = Some(sent.into());
        }
        let serializer = Serializer::from_vsn(vsn.as_deref().unwrap_or(VSN_DEFAULT));
        Ok(Parameters { serializer, users: found.users, token })
    }

    /// Determines the principal. Phoenix rejects every client with 403.
    fn phoenix_principal(&self, users: Vec<Name>) -> Result<Principal, Interrupt> {
        let principal = self.principal(users).map_err(|interrupt| match interrupt {
            Interrupt::Rejection(rejection) if rejection.status == 401 => {
                Rejection { status: 403, ..rejection }.into()
            }
            other @ (Interrupt::Rejection(_) | Interrupt::Pending(_)) => other,
        })?;
        self.check_topics(principal.users.len() + self.admission_topics().len())?;
        Ok(principal)
    }

    pub(super) fn phoenix_websocket(&self, out: &mut Vec<u8>) -> Result<Request, Interrupt> {
        self.get()?;
        let accept = self.upgrade()?;
        let Parameters { serializer, users, .. } = self.parameters()?;
        let Some(serializer) = serializer else {
            let message =
                "this version of the protocol is not supported: vsn must be 1.0.0 or 2.0.0";
            return Err(Rejection::new(ErrorCode::BadVsn, message).into());
        };
        let principal = self.phoenix_principal(users)?;
        let offered = self.request.values("sec-websocket-protocol");
        let phoenix = offered.flat_map(|line| line.split(',')).any(|it| it.trim() == SUBPROTOCOL);
        handshake::response(&accept, phoenix.then_some(SUBPROTOCOL), None, out);
        let encoding = serializer.encoding(false);
        // The client joins its topics later, each with its own resume token.
        let resume = ResumeRequest::default();
        let topics =
            self.admission_topics().iter().cloned().map(|topic| self.by_word(topic)).collect();
        let tags = Vec::new();
        Ok(Request::Open(Open { encoding, principal, topics, resume, tags, stranger: false }))
    }

    pub(super) fn phoenix_longpoll(&self) -> Result<Request, Interrupt> {
        let Parameters { serializer, users, token } = self.parameters()?;
        let respond = self.respond();
        let Some(serializer) = serializer else {
            return Ok(Request::Longpoll(Longpoll { op: Op::Forbidden, respond }));
        };
        let encoding = serializer.encoding(true);
        let session = token.and_then(|token| self.settings.longpoll_key.verify(&token));
        let op = match (self.request.method, session) {
            (Method::Post, Some(session)) => {
                Op::Post { session, messages: self.longpoll_messages(serializer)? }
            }
            (Method::Post, None) => Op::Gone,
            // A session has the principal of its first token, or of a refresh.
            (_, Some(session)) => match self.phoenix_principal(users) {
                Ok(principal) => Op::Poll { session, anew: Some((encoding, Some(principal))) },
                Err(Interrupt::Rejection(_)) => Op::Poll { session, anew: Some((encoding, None)) },
                // The application has decided about this session, and gets a request only for a new one.
                Err(Interrupt::Pending(Pending::Connect(_))) => Op::Poll { session, anew: None },
                Err(pending @ Interrupt::Pending(_)) => return Err(pending),
            },
            (_, None) => {
                let principal = self.phoenix_principal(users)?;
                Op::Open { encoding, principal, topics: self.admission_topics().to_vec() }
            }
        };
        Ok(Request::Longpoll(Longpoll { op, respond }))
    }

    /// Returns true if the server should read the body of a POST: only for a session of this process.
    fn has_longpoll_session(&self) -> Result<bool, Rejection> {
        let Parameters { serializer, token, .. } = self.parameters()?;
        let session = token.and_then(|token| self.settings.longpoll_key.verify(&token));
        Ok(serializer.is_some() && session.is_some())
    }

    /// Replies to a POST before its body comes, and returns true, if its session is not of this process.
    pub(super) fn reply_longpoll(&self, out: &mut Vec<u8>) -> Result<bool, Rejection> {
        if self.has_longpoll_session()? {
            return Ok(false);
        }
        let known = self.parameters().is_ok_and(|found| found.serializer.is_some());
        let status = if known { LongpollStatus::Gone } else { LongpollStatus::Forbidden };
        let mut body = Vec::new();
        longpoll::reply(status, &mut body);
        json_reply(&self.respond(), &body, out);
        Ok(true)
    }

    /// Replies to methods other than GET and POST.
    pub(super) fn longpoll_method(&self, out: &mut Vec<u8>) -> Request {
        let keep_alive = self.request.keep_alive;
        let body = error_body(ErrorCode::MethodNotAllowed.text(), "use GET or POST here");
        let headers = format!("Allow: GET, POST, OPTIONS\r\n{}", self.cors);
        let head_only = self.request.method == Method::Head;
        short_reply(405, &headers, &body, keep_alive, head_only, out);
        Request::Replied { keep_alive }
    }

    fn longpoll_messages(&self, serializer: Serializer) -> Result<Vec<ClientMessage>, Rejection> {
        let media = self.request.header("content-type");
        let rejection =
            |error: PhoenixError| Rejection::new(ErrorCode::BadMessage, error.to_string());
        let lines = longpoll::lines(media, self.request.body).map_err(rejection)?;
        let parse = |line: &Line<'_>| line.parse(serializer).map(ClientMessage::from);
        lines.iter().map(parse).collect::<Result<_, _>>().map_err(rejection)
    }
}
