//! Phoenix Channels: broadcasts as `Phoenix.Socket.V1.JSONSerializer` and
//! `Phoenix.Socket.V2.JSONSerializer` write them, to a WebSocket or for the next long poll.

use super::{Tools, Transport, ws};
use crate::phoenix::{Content, Form, Serializer};
use crate::ws::frame;
use crate::{Close, Data, Kept, Message};

/// `polled` for a long-poll session.
pub(super) struct Phoenix {
    pub serializer: Serializer,
    pub polled: bool,
}

impl Transport for Phoenix {
    fn name(&self) -> &'static str {
        if self.polled { "phoenix_longpoll" } else { "phoenix" }
    }

    /// A broadcast: no refs of a member's, so that it is the same for all. A message that history
    /// keeps has its id there.
    fn encode(&self, message: &Message, _tools: &mut Tools, out: &mut Vec<u8>) {
        let draft = &message.draft;
        let mut payload = Vec::with_capacity(draft.data.bytes() + 96);
        let content = content(&draft.data, self.polled);
        let id = (message.kept != Kept::No).then_some(message.id);
        let (topic, event) = (&draft.topic, message.event());
        let encoded = self.serializer.broadcast(topic, event, id, content, &mut payload);
        // Names are checked where they come in: they fit.
        if let Ok(form) = encoded {
            pack(self.polled, form, &payload, out);
        }
    }

    /// Nothing: it is the client that beats, every 30 s, and is answered.
    fn heartbeat(&self, _out: &mut Vec<u8>) {}

    fn goodbye(&self, close: Close, _retry_ms: u32, out: &mut Vec<u8>) {
        if !self.polled {
            let code = match close {
                // As Phoenix does for a forced disconnect.
                Close::ByApplication => 1001,
                close => close.code(),
            };
            ws::close(code, close.name(), out);
        }
    }

    fn window_bits(&self) -> Option<u8> {
        (!self.polled).then_some(0)
    }
}

/// How data go to a client: phoenix.js reads every polled message as JSON, so that bytes are
/// base64 in an object there.
fn content(data: &Data, polled: bool) -> Content<'_> {
    match Content::from(data) {
        Content::Binary(bytes) if polled => Content::Base64(bytes),
        content => content,
    }
}

/// Appends an encoded message as it is kept or sent: a WebSocket frame, or for a long-poll session
/// a comma and a JSON string, an element of the answer's `messages`.
pub fn pack(polled: bool, form: Form, payload: &[u8], out: &mut Vec<u8>) {
    if polled {
        crate::phoenix::longpoll::element(form, payload, out);
    } else {
        frame::encode(form.opcode(), false, payload, out);
    }
}
