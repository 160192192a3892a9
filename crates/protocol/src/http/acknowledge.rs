//! `POST /ack`: a user acknowledges messages.

use std::borrow::Cow;

use model::ErrorCode;
use serde::Deserialize;

use super::media;
use super::parameters::not_utf8;
use super::{Rejection, Route};
use crate::request::{Acknowledgement, Interrupt, ReplyTo, Request};
use crate::{object, query};

/// The body of a request, or its query.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow)]
    user: Option<Cow<'a, str>>,
    #[serde(borrow)]
    topic: Option<Cow<'a, str>>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
}

impl Route<'_> {
    /// A body replaces the query. A beacon, or a client that can only give a URL, has the same fields in the query. A
    /// user in the query counts in any case: a proxy that guards users reads only the query, so the body must not
    /// name another.
    pub(super) fn acknowledge(&self) -> Result<Request, Interrupt> {
        self.check_acknowledge_head()?;
        let query = self.query_body()?;
        let guarded = query.user.clone();
        let body = match self.request.body {
            [] => query,
            json => object::read(json).map_err(|error| {
                let message = format!(
                    "the body is not {{\"user\":…,\"topic\":…,\"id\":…}} (topic is optional): \
                     {error}"
                );
                Rejection::new(ErrorCode::BadRequest, message)
            })?,
        };
        let (user, topic, id) = (body.user.as_deref(), body.topic.as_deref(), body.id.as_deref());
        let acknowledgement = Acknowledgement::read(user, topic, id).map_err(Rejection::from)?;
        let Some(user) = acknowledgement.user.clone() else {
            let message = "the user who acknowledges the messages is missing: add user";
            return Err(Rejection::new(ErrorCode::BadUser, message).into());
        };
        if guarded.is_some_and(|guarded| *guarded != *user) {
            let message = "the query and the body name different users: name one user, in the \
                           query or in the body";
            return Err(Rejection::new(ErrorCode::BadUser, message).into());
        }
        let principal = self.principal(vec![user])?;
        let to = ReplyTo::Http(self.respond());
        Ok(Request::Acknowledge { acknowledgement, to, principal: Some(principal) })
    }

    /// Checks that the head of the request is valid for an acknowledgement.
    pub(super) fn check_acknowledge_head(&self) -> Result<(), Rejection> {
        self.page()?;
        media::expect(self.request.header("content-type"), "application/json")
            .map_err(|message| Rejection::new(ErrorCode::BadMediaType, message))
    }

    fn query_body(&self) -> Result<Body<'_>, Rejection> {
        let mut body = Body::default();
        for pair in query::pairs(self.request.query) {
            let (key, value) = pair.map_err(not_utf8)?;
            match &*key {
                "user" if body.user.as_ref().is_some_and(|user| *user != value) => {
                    let message = "an acknowledgement is for exactly one user: name only one";
                    return Err(Rejection::new(ErrorCode::BadUser, message));
                }
                "user" => body.user = Some(value),
                "topic" => body.topic = Some(value),
                "id" => body.id = Some(value),
                // Other parameters belong to the page.
                _ => {}
            }
        }
        Ok(body)
    }
}
