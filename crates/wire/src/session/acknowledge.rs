//! What a user says that it has got.

use std::borrow::Cow;

use serde::Deserialize;

use super::query::not_utf8;
use super::route::Route;
use super::{Acknowledged, Action};
use crate::http::{Refused, refused};
use crate::message::{PERSONAL, check_name, check_topic};
use crate::{Name, Since, object, query};

impl Acknowledged {
    /// Checks what a client says. The topic may be a user's own by its name (`@alice`), which then
    /// names the user as well; an id that says more than a message's place (an SSE client has such)
    /// counts for its message. The error is its code and what is wrong.
    pub fn read(
        user: Option<&str>,
        topic: Option<&str>,
        id: Option<&str>,
    ) -> Result<Self, (&'static str, String)> {
        if let Some(wrong) = user.and_then(|user| check_name(user).err()) {
            return Err(("bad_user", wrong.into()));
        }
        let own = topic.and_then(|topic| topic.strip_prefix(PERSONAL));
        let checked = match (own, topic) {
            (Some(own), _) if user.is_some_and(|user| user != own) => {
                return Err(("bad_topic", "this is another user's own topic".into()));
            }
            (Some(own), _) => check_name(own),
            (None, Some(topic)) => check_topic(topic),
            (None, None) => Ok(()),
        };
        checked.map_err(|wrong| ("bad_topic", wrong.into()))?;
        let wrong = "say which message was the last one: its id as it came, like 5f3a91c2:1042";
        let since = id.and_then(|id| id.parse::<Since>().ok());
        let since = since.ok_or_else(|| ("bad_id", wrong.into()))?;
        Ok(Acknowledged {
            user: user.or(own).map(Name::from),
            topic: topic.filter(|_| own.is_none()).map(Name::from),
            id: since.id,
        })
    }
}

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
    /// The body counts if there is one: a beacon, or a client that can only give a URL, has the
    /// same in the query.
    pub(super) fn acknowledge(&self) -> Result<Action, Refused> {
        let body = match self.request.body {
            [] => self.query_body()?,
            json => object::read(json).map_err(|error| {
                let message = format!(
                    "the body is not {{\"user\":…,\"topic\":…,\"id\":…}} (topic may be left out): {error}"
                );
                refused(400, "bad_request", message)
            })?,
        };
        let (user, topic, id) = (body.user.as_deref(), body.topic.as_deref(), body.id.as_deref());
        let acknowledged = Acknowledged::read(user, topic, id);
        let acknowledged = acknowledged.map_err(|(code, wrong)| refused(400, code, wrong))?;
        if acknowledged.user.is_none() {
            return Err(refused(400, "bad_user", "say who has got the message: user"));
        }
        Ok(Action::Acknowledge { acknowledged, respond: self.respond() })
    }

    fn query_body(&self) -> Result<Body<'_>, Refused> {
        let mut body = Body::default();
        for pair in query::pairs(self.request.query) {
            let (key, value) = pair.map_err(not_utf8)?;
            match &*key {
                "user" => body.user = Some(value),
                "topic" => body.topic = Some(value),
                "id" => body.id = Some(value),
                // Others are the page's own.
                _ => {}
            }
        }
        Ok(body)
    }
}
