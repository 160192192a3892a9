//! Phoenix Channels under `/socket`: the WebSocket, and the long poll with its sessions.

use super::query::{Query, not_utf8};
use super::route::Route;
use super::{Action, Asked, ConnectionId, Open, Respond, json_answer};
use crate::http::{Method, Refused, refused};
use crate::phoenix::longpoll::{self, Line, Status};
use crate::phoenix::{Incoming, Payload, Serializer, VSN_DEFAULT};
use crate::ws::handshake;
use crate::{Data, Name, Variant, query};

/// The subprotocol that newer clients offer when they send a token in the handshake.
const SUBPROTOCOL: &str = "phoenix";

/// A message of a Phoenix client, with a payload of its own: JSON, text where it was a JSON string,
/// or bytes. Topic and event are not checked.
pub type Heard = Incoming<Data>;

impl From<Incoming<Payload<'_>>> for Heard {
    fn from(incoming: Incoming<Payload<'_>>) -> Self {
        let Incoming { join_ref, ref_, topic, event, payload } = incoming;
        let payload = match payload {
            Payload::Json(raw) => Data::of_json(&raw),
            Payload::Binary(bytes) => Data::Binary(bytes.into()),
        };
        Heard { join_ref, ref_, topic, event, payload }
    }
}

/// A request of a Phoenix long poll.
#[derive(Debug)]
pub struct Longpoll {
    /// What it wants.
    pub op: Op,
    /// How to answer.
    pub respond: Respond,
}

/// What a request of a long poll wants.
#[derive(Debug)]
pub enum Op {
    /// A session: there is none yet, or it is gone.
    Open {
        /// How the session's messages are written.
        variant: Variant,
        /// Its users.
        users: Vec<Name>,
    },
    /// What has come for the session.
    Poll {
        /// Which one.
        session: ConnectionId,
        /// What becomes of it when this one is gone.
        variant: Variant,
        /// The users of a new one.
        users: Vec<Name>,
    },
    /// Messages of the client.
    Post {
        /// Of which session.
        session: ConnectionId,
        /// In order.
        heard: Vec<Heard>,
    },
    /// Messages for a session that never was, or of another run.
    Gone,
    /// The client speaks a version that nobody here does.
    Forbidden,
}

/// Appends the answer that refuses a request of a long poll, in the form that its client reads.
pub fn longpoll_refusal(refused: &Refused, method: Method, respond: &Respond, out: &mut Vec<u8>) {
    let status = match (refused.status, method) {
        (500.., _) => Status::Error,
        // Of the others, a poll knows just this one.
        (_, Method::Get) => Status::Forbidden,
        _ => Status::BadRequest,
    };
    let mut body = Vec::new();
    longpoll::refusal(status, refused.code, &refused.message, &mut body);
    json_answer(respond, &body, out);
}

/// What the parameters of a Phoenix client say.
struct Parameters {
    serializer: Option<Serializer>,
    users: Vec<Name>,
    token: Option<String>,
}

impl Route<'_> {
    /// All parameters but these are the application's own.
    fn parameters(&self) -> Result<Parameters, Refused> {
        let mut found = Query::default();
        let (mut vsn, mut token) = (None, None);
        for pair in query::pairs(self.request.query) {
            let (key, value) = pair.map_err(not_utf8)?;
            match &*key {
                "user" => self.parameter(&mut found, &key, &value)?,
                "vsn" => vsn = Some(value.into_owned()),
                longpoll::TOKEN_PARAMETER => token = Some(value.into_owned()),
                _ => {}
            }
        }
        // The API puts every user into a topic; the limit is the connection's.
        let max = self.settings.topics_per_connection_max;
        if found.users.len() > max {
            let message = format!("a connection may be in at most {max} topics, users included");
            return Err(refused(400, "too_many_topics", message));
        }
        if let Some(sent) = self.request.header(longpoll::TOKEN_HEADER) {
            token = Some(sent.into());
        }
        let serializer = Serializer::from_vsn(vsn.as_deref().unwrap_or(VSN_DEFAULT));
        Ok(Parameters { serializer, users: found.users, token })
    }

    pub(super) fn phoenix_websocket(&self, out: &mut Vec<u8>) -> Result<Action, Refused> {
        let accept = self.upgrade()?;
        let Parameters { serializer, users, .. } = self.parameters()?;
        let Some(serializer) = serializer else {
            let message = "this version of the protocol is not spoken here: vsn is 1.0.0 or 2.0.0";
            return Err(refused(403, "bad_vsn", message));
        };
        let offered = self.request.values("sec-websocket-protocol");
        let phoenix = offered.flat_map(|line| line.split(',')).any(|it| it.trim() == SUBPROTOCOL);
        handshake::response(&accept, phoenix.then_some(SUBPROTOCOL), None, out);
        let variant = Variant::of_phoenix(serializer, false);
        // Its topics are joined, each from its own place.
        let since = Asked::default();
        Ok(Action::Open(Open { variant, users, topics: Vec::new(), since, tags: Vec::new() }))
    }

    pub(super) fn phoenix_longpoll(&self) -> Result<Action, Refused> {
        let Parameters { serializer, users, token } = self.parameters()?;
        let respond = self.respond();
        let Some(serializer) = serializer else {
            return Ok(Action::Longpoll(Longpoll { op: Op::Forbidden, respond }));
        };
        let variant = Variant::of_phoenix(serializer, true);
        let session = token.and_then(|token| self.settings.longpoll_key.verify(&token));
        let op = match (self.request.method, session) {
            (Method::Post, Some(session)) => {
                Op::Post { session, heard: self.longpoll_messages(serializer)? }
            }
            (Method::Post, None) => Op::Gone,
            (_, Some(session)) => Op::Poll { session, variant, users },
            (_, None) => Op::Open { variant, users },
        };
        Ok(Action::Longpoll(Longpoll { op, respond }))
    }

    /// Whether the body of a POST will be looked at: it is for a session that this process made.
    pub(super) fn longpoll_wanted(&self) -> Result<bool, Refused> {
        let Parameters { serializer, token, .. } = self.parameters()?;
        let session = token.and_then(|token| self.settings.longpoll_key.verify(&token));
        Ok(serializer.is_some() && session.is_some())
    }

    /// Answers a POST whose body is not wanted; gives true.
    pub(super) fn longpoll_gone(&self, out: &mut Vec<u8>) -> bool {
        let known = self.parameters().is_ok_and(|found| found.serializer.is_some());
        let status = if known { Status::Gone } else { Status::Forbidden };
        let mut body = Vec::new();
        longpoll::answer(status, &mut body);
        json_answer(&self.respond(), &body, out);
        true
    }

    fn longpoll_messages(&self, serializer: Serializer) -> Result<Vec<Heard>, Refused> {
        let media = self.request.header("content-type");
        let wrong = |error: crate::phoenix::Error| refused(400, "bad_message", error.to_string());
        let lines = longpoll::lines(media, self.request.body).map_err(wrong)?;
        let parse = |line: &Line<'_>| line.parse(serializer).map(Heard::from);
        lines.iter().map(parse).collect::<Result<_, _>>().map_err(wrong)
    }
}
