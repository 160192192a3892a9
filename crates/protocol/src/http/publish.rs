//! `POST /publish`.

use super::media::Media;
use super::parameters::Query;
use super::{Rejection, Route};
use crate::data;
use crate::request::{Interrupt, ReplyTo, Request};
use auth::Consent;
use model::event::check_event;
use model::name::check_name;
use model::{Attributes, Data, ErrorCode, Name, Publication};

impl Route<'_> {
    /// Reads from the head where and how a request publishes.
    pub(super) fn parse_publish_head(&self) -> Result<(Name, Query, Consent), Interrupt> {
        self.page()?;
        if self.media() == Media::Multipart {
            let message = "a message must be a single body, and this request has several parts: \
                           send text, or JSON with the header Content-Type: application/json, or \
                           bytes with Content-Type: application/octet-stream";
            return Err(Rejection::new(ErrorCode::BadMediaType, message).into());
        }
        let mut query = self.query()?;
        let [topic] = query.topics.as_mut_slice() else {
            return Err(Rejection::new(
                ErrorCode::NoTopic,
                "name the topic to publish to: ?topic=…, exactly once",
            )
            .into());
        };
        let topic = std::mem::take(topic);
        let principal = self.principal(std::mem::take(&mut query.users))?;
        let consent = self.decide(&principal, auth::Action::Publish, &topic)?;
        query.users = principal.users;
        if let Some(error) = query.event.as_deref().and_then(|it| check_event(it).err()) {
            let is_reserved = error.code == ErrorCode::ReservedEvent;
            let status = if is_reserved { 403 } else { error.code.status() };
            return Err(Rejection::with_status(status, error.code, error.message).into());
        }
        if let Some(error) = query.key.as_deref().and_then(|key| check_name(key).err()) {
            return Err(Rejection::new(ErrorCode::BadKey, error).into());
        }
        Ok((topic, query, consent))
    }

    pub(super) fn publish(&self) -> Result<Request, Interrupt> {
        let (topic, query, consent) = self.parse_publish_head()?;
        let body = self.request.body;
        if body.len() > self.settings.message_bytes_max {
            let message = crate::data::too_large(self.settings.message_bytes_max);
            return Err(Rejection::new(ErrorCode::MessageTooLarge, message).into());
        }
        let data = self.body_data(body)?;
        let attributes = Attributes::of(query.tags, query.key);
        let publication =
            Publication { event: query.event, attributes, ..Publication::new(topic, data) };
        let publication = publication.sent_by(query.users.into_iter().next());
        Ok(Request::Publish { publication, consent, to: ReplyTo::Http(self.respond()) })
    }

    fn media(&self) -> Media {
        Media::of(self.request.header("content-type"))
    }

    /// Reads the body as JSON or bytes if its media type says so, and otherwise as text.
    fn body_data(&self, body: &[u8]) -> Result<Data, Rejection> {
        let media = self.media();
        if media == Media::Bytes {
            return Ok(Data::Binary(body.into()));
        }
        let not_utf8 = |_| {
            let message = "the body is not UTF-8: send bytes with the header Content-Type: \
                           application/octet-stream";
            Rejection::new(ErrorCode::BadData, message)
        };
        let text = std::str::from_utf8(body).map_err(not_utf8)?;
        if media != Media::Json {
            return Ok(Data::Text(text.into()));
        }
        let raw: &serde_json::value::RawValue = serde_json::from_str(text).map_err(|error| {
            Rejection::new(ErrorCode::BadData, format!("the body is not JSON: {error}"))
        })?;
        data::from_json(raw, None).map_err(|error| Rejection::new(ErrorCode::BadData, error))
    }
}
