//! What the parameters of a request ask for.

use super::route::Route;
use super::{Asked, join_refusal};
use crate::http::{Refused, refused};
use crate::message::{PERSONAL, check_name, check_topic};
use crate::since::BadSince;
use crate::{Name, Since, query, tags};

#[derive(Default)]
pub(super) struct Query {
    pub users: Vec<Name>,
    pub topics: Vec<Name>,
    pub since: Asked,
    pub tags: Vec<Name>,
    pub seconds: Option<u32>,
    pub event: Option<Name>,
    pub json: bool,
    /// As it came: only who publishes means it.
    pub key: Option<Name>,
}

impl Query {
    fn asks_for(&self, topic: &str) -> bool {
        let own = topic.strip_prefix(PERSONAL);
        self.topics.iter().any(|it| it == topic) || self.users.iter().any(|it| Some(&**it) == own)
    }
}

impl Route<'_> {
    /// What somebody who listens asks for.
    pub(super) fn listener(&self) -> Result<Query, Refused> {
        let query = self.query()?;
        match query.topics.iter().find_map(|topic| join_refusal(self.settings, topic)) {
            Some(why) => Err(refused(403, "forbidden", why)),
            None => Ok(query),
        }
    }

    pub(super) fn query(&self) -> Result<Query, Refused> {
        let mut query = Query::default();
        for pair in query::pairs(self.request.query) {
            let (key, value) = pair.map_err(not_utf8)?;
            self.parameter(&mut query, &key, &value)?;
        }
        let topics = query.users.len() + query.topics.len();
        if topics > self.settings.topics_per_connection_max {
            let max = self.settings.topics_per_connection_max;
            let message = format!("a connection may be in at most {max} topics, users included");
            return Err(refused(400, "too_many_topics", message));
        }
        if let Some((topic, _)) = query.since.topics.iter().find(|it| !query.asks_for(&it.0)) {
            let message = format!("since:{topic} is of a topic that this request doesn't name");
            return Err(refused(400, "bad_since", message));
        }
        // Any server's id may come here, from before this page talked to Throng: one that is not
        // ours asks for nothing.
        let last = self.request.header("last-event-id").and_then(|id| id.parse().ok());
        if let Some(last) = last {
            // A browser comes back with the URL that it began with, so that this is newer than
            // all that the URL says.
            query.since = Asked { all: Some(last), topics: Vec::new() };
        }
        Ok(query)
    }

    pub(super) fn parameter(
        &self,
        query: &mut Query,
        key: &str,
        value: &str,
    ) -> Result<(), Refused> {
        match key {
            "topic" => {
                check_topic(value).map_err(|wrong| refused(400, "bad_topic", wrong))?;
                if !query.topics.iter().any(|topic| topic == value) {
                    query.topics.push(value.into());
                }
            }
            "user" => {
                check_name(value).map_err(|wrong| refused(400, "bad_user", wrong))?;
                if !query.users.iter().any(|user| user == value) {
                    query.users.push(value.into());
                }
            }
            // As it came: only who publishes means it.
            "event" => {
                query.event = Some(value).filter(|event| *event != "message").map(Name::from);
            }
            "tag" => {
                tags::add(&mut query.tags, value)
                    .map_err(|wrong| refused(400, "bad_tag", wrong))?;
            }
            "key" => query.key = Some(value.into()),
            "since" | "lastEventID" if !value.is_empty() => query.since.all = Some(since(value)?),
            "timeout" => {
                let wrong = |_| refused(400, "bad_timeout", "timeout is a whole number of seconds");
                query.seconds = Some(value.parse().map_err(wrong)?);
            }
            "format" => {
                query.json = match value {
                    "json" => true,
                    "data" => false,
                    _ => return Err(refused(400, "bad_format", "format is data or json")),
                };
            }
            _ => {
                let topic = key.strip_prefix("since:").filter(|_| !value.is_empty());
                if let Some(topic) = topic {
                    let since = since(value)?;
                    query.since.topics.retain(|(known, _)| known != topic);
                    query.since.topics.push((topic.into(), since));
                }
                // Others are the page's own: a cache breaker, a tracking tag.
            }
        }
        Ok(())
    }
}

fn since(value: &str) -> Result<Since, Refused> {
    value.parse().map_err(|bad: BadSince| refused(400, "bad_since", bad.to_string()))
}

pub(super) fn not_utf8(_: query::NotUtf8) -> Refused {
    refused(400, "bad_query", "the query string does not decode to UTF-8")
}
