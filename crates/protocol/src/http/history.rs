//! `GET /history`: a page of a topic's history.

use super::parameter_typo::Meant;
use super::parameters::not_utf8;
use super::{Rejection, Route};
use crate::history::{self, PageFields};
use crate::query;
use crate::request::PageRequest;
use crate::request::{Interrupt, ReplyTo, Request};
use model::name::check_name;
use model::{ErrorCode, Name, TopicKind};

impl Route<'_> {
    pub(super) fn history(&self) -> Result<Request, Interrupt> {
        let (mut topic, mut since) = (None, None);
        let (mut users, mut limit, mut reverse) = (Vec::<Name>::new(), None, false);
        let (mut meant, mut topic_tokens) = (Meant::default(), Vec::new());
        for pair in query::pairs(self.request.query) {
            let (key, value) = pair.map_err(not_utf8)?;
            match &*key {
                "topic" if topic.is_some() => {
                    let message = "name exactly one topic: ?topic=… or ?user=…";
                    return Err(Rejection::new(ErrorCode::NoTopic, message).into());
                }
                "topic" => topic = Some(value),
                "user" => {
                    check_name(&value)
                        .map_err(|error| Rejection::new(ErrorCode::BadUser, error))?;
                    users.push(value.into());
                }
                "since" => since = Some(value),
                "limit" => limit = Some(history::limit(&value).map_err(Rejection::from)?),
                "reverse" => reverse = history::reverse(&value).map_err(Rejection::from)?,
                "topic_token" => topic_tokens.push(value.into()),
                // Others belong to the page: a cache breaker, a tracking tag.
                other => meant.note(self.request.path, other),
            }
        }
        self.check_meant(&meant)?;
        let user = users.first().cloned();
        let (topic, since, user) = (topic.as_deref(), since.as_deref(), user.as_deref());
        let page = PageRequest::read(PageFields { topic, user, since, limit, reverse })
            .map_err(Rejection::from)?;
        // As in an acknowledgement, a user's own topic by its name names the user as well.
        if let Some(own) = TopicKind::of(&page.topic).user()
            && users.is_empty()
        {
            users.push(own.into());
        }
        let principal = self.principal(users)?;
        let tokens = self.topic_tokens(&topic_tokens)?;
        self.reads(&principal, &tokens, &page.topic)?;
        Ok(Request::History { page, members_only: false, to: ReplyTo::Http(self.respond()) })
    }
}
