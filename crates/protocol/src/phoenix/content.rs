//! The content of a message, and how it is written.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{Annotations, Payload};
use crate::json;
use model::Data;

/// The content of a message to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// JSON text, which must be valid. An object is sent unchanged, and another value as `{"data":…}`, because
    /// clients expect an object. In a reply the value is the response.
    Json(&'a str),
    /// Text, sent as a JSON string.
    Text(&'a str),
    /// Bytes: a binary message in V2; `{"data":"…","encoding":"base64"}` in V1, which has no binary messages.
    Binary(&'a [u8]),
    /// Bytes that are sent as `{"data":"…","encoding":"base64"}` in V2 too, for a transport or a client without
    /// binary messages.
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

    /// Appends the content with the server's annotations as the `payload` of a push or a broadcast, always an object.
    pub(super) fn annotated(self, annotations: &Annotations<'_>, out: &mut Vec<u8>) {
        if let Content::Json(text) = self
            && self.is_object()
        {
            return annotations.object(text, out);
        }
        let from = out.len();
        self.object(out);
        // A value other than an object is in an object of ours, which has a member before the brace.
        out.pop();
        annotations.append(from + 1, out);
        out.push(b'}');
    }

    /// Returns true if the content is written as an object.
    fn is_object(self) -> bool {
        match self {
            Content::Json(text) => text.trim_ascii_start().starts_with('{'),
            Content::Text(_) => false,
            Content::Binary(_) | Content::Base64(_) => true,
        }
    }

    /// Appends the content as a JSON value of its own type.
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
