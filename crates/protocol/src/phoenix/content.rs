//! What a message carries, as it is written.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{Annotations, Payload};
use crate::json;
use model::Data;

/// What a message to a client carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// JSON text, which the caller knows to be valid. An object is sent as it is; another value
    /// as `{"data":…}`, since clients expect an object, except in a reply, where it is the
    /// response.
    Json(&'a str),
    /// Text, sent like the JSON string that it makes.
    Text(&'a str),
    /// Bytes: a binary message in V2; `{"data":"…","encoding":"base64"}` in V1, which has none.
    Binary(&'a [u8]),
    /// Bytes that go as `{"data":"…","encoding":"base64"}` in V2 as well, for a transport or
    /// a client that can't take binary messages.
    Base64(&'a [u8]),
}

impl<'a> From<&'a Data> for Content<'a> {
    fn from(data: &'a Data) -> Self {
        match data {
            Data::Json(text) => Content::Json(text),
            Data::Text(text) => Content::Text(text),
            Data::Binary(bytes) => Content::Binary(bytes),
        }
    }
}

impl<'a> From<&'a Payload<'_>> for Content<'a> {
    fn from(payload: &'a Payload<'_>) -> Self {
        match payload {
            Payload::Json(raw) => Content::Json(raw.get()),
            Payload::Binary(bytes) => Content::Binary(bytes),
        }
    }
}

impl Content<'_> {
    /// Appends the content as the `payload` of a push or a broadcast, always an object.
    pub(super) fn object(self, out: &mut Vec<u8>) {
        if self.is_object() {
            self.value(out);
        } else {
            out.extend_from_slice(b"{\"data\":");
            self.value(out);
            out.push(b'}');
        }
    }

    /// The same with what the server says of the message.
    pub(super) fn annotated(self, annotations: &Annotations<'_>, out: &mut Vec<u8>) {
        if let Content::Json(text) = self
            && self.is_object()
        {
            return annotations.object(text, out);
        }
        let from = out.len();
        self.object(out);
        // What is no object of the publisher's is one of ours, with a member before the brace.
        out.pop();
        annotations.append(from + 1, out);
        out.push(b'}');
    }

    /// Whether the content is written as an object anyway.
    fn is_object(self) -> bool {
        match self {
            Content::Json(text) => text.trim_ascii_start().starts_with('{'),
            Content::Text(_) => false,
            Content::Binary(_) | Content::Base64(_) => true,
        }
    }

    /// Appends the content as a JSON value of its own kind.
    pub(super) fn value(self, out: &mut Vec<u8>) {
        match self {
            Content::Json(text) => out.extend_from_slice(text.as_bytes()),
            Content::Text(text) => json::string(text, out),
            Content::Binary(bytes) | Content::Base64(bytes) => {
                out.extend_from_slice(b"{\"data\":\"");
                out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
                out.extend_from_slice(b"\",\"encoding\":\"base64\"}");
            }
        }
    }
}
