//! What a WebSocket's frames mean.

use super::{Acknowledged, Heard as Phoenix, Settings, join_refusal, publish_refusal};
use crate::command::Subscribe;
use crate::phoenix::{self, Address, Content, Serializer, Status};
use crate::transport::ws as frames;
use crate::{Close, Draft, Name, Tools, Variant, command, ws};

/// A message to the echo may have so many bytes: the conformance suite sends 16 MiB.
const ECHO_BYTES_MAX: usize = 32 << 20;

/// What a WebSocket client sent, in order.
#[derive(Debug)]
pub enum Input {
    /// Bytes to send back as they are: a pong, an echo, the answer to a ping or to a bad command.
    Send(Vec<u8>),
    /// Enter a topic; answer with [`ws_reply`].
    Subscribe(Box<str>, Subscribe),
    /// Leave a topic; answer with [`ws_reply`].
    Unsubscribe(Box<str>, Name),
    /// Publish; answer with [`ws_reply`].
    Publish(Box<str>, Draft),
    /// A user has messages up to a place; answer with [`ws_reply`].
    Acknowledge(Box<str>, Acknowledged),
    /// A message of a Phoenix client.
    Phoenix(Phoenix),
    /// Close after sending these last bytes.
    Close(Close, Vec<u8>),
}

/// Reads a frame of a WebSocket client's bytes, or what there is of it, and gives the bytes taken; 0
/// where there is just the beginning of a frame's head. After [`Input::Close`] nothing more is to be read.
pub fn websocket(
    settings: &Settings,
    variant: Variant,
    decoder: &mut ws::Decoder,
    tools: &mut Tools,
    bytes: &mut [u8],
    inputs: &mut Vec<Input>,
) -> usize {
    let window_bits = variant.window_bits().unwrap_or(0);
    let echo = variant.name() == "echo";
    let phoenix = variant.phoenix().map(|(serializer, _)| serializer);
    let bytes_max = if echo { ECHO_BYTES_MAX } else { settings.frame_bytes_max };
    let mut events = Vec::new();
    let mut context = ws::Context {
        role: ws::Role::Server,
        limits: ws::Limits { frame_bytes_max: bytes_max as u64, message_bytes_max: bytes_max },
        inflater: (window_bits > 0).then(|| tools.inflater()),
    };
    let taken = decoder.feed_frame(&mut context, bytes, &mut |event| match event {
        ws::Event::Text(_) | ws::Event::Binary(_) if phoenix.is_some() => {
            events.extend(phoenix.map(|serializer| phoenix_input(serializer, &event)));
        }
        ws::Event::Text(text) if !echo => events.push(text_input(settings, text)),
        ws::Event::Binary(payload) if !echo => events.push(binary_input(settings, payload)),
        ws::Event::Text(text) => events.push(Heard::Echo(ws::frame::Opcode::Text, text.into())),
        ws::Event::Binary(payload) => {
            events.push(Heard::Echo(ws::frame::Opcode::Binary, payload.into()));
        }
        ws::Event::Ping(payload) => {
            let mut out = Vec::new();
            ws::frame::encode(ws::frame::Opcode::Pong, false, payload, &mut out);
            events.push(Heard::Input(Input::Send(out)));
        }
        ws::Event::Pong(_) => {}
        ws::Event::Close(told) => {
            let mut out = Vec::new();
            match told {
                // The same code goes back (RFC 6455, section 5.5.1).
                Some((code, _)) => frames::close(code, "", &mut out),
                None => ws::frame::encode(ws::frame::Opcode::Close, false, &[], &mut out),
            }
            events.push(Heard::Input(Input::Close(Close::ByClient, out)));
        }
    });
    for heard in events {
        inputs.push(match heard {
            Heard::Input(input) => input,
            Heard::Echo(opcode, payload) => {
                let mut out = Vec::with_capacity(payload.len() + 16);
                frames::data(opcode, &payload, window_bits, tools, &mut out);
                Input::Send(out)
            }
            Heard::Reply(text) => {
                let mut out = Vec::with_capacity(text.len() + 8);
                frames::data(ws::frame::Opcode::Text, &text, window_bits, tools, &mut out);
                Input::Send(out)
            }
        });
    }
    taken.unwrap_or_else(|error| {
        let close = match error.code() {
            1007 => Close::InvalidPayload,
            1009 => Close::TooBig,
            _ => Close::ProtocolError,
        };
        let mut out = Vec::new();
        frames::close(error.code(), &error.to_string(), &mut out);
        inputs.push(Input::Close(close, out));
        bytes.len()
    })
}

/// A message that can't be read ends the connection, with the words that help to mend the client.
///
/// One that the frames are whole around, and that another client's protocol may well have, is
/// answered instead: nobody knows its reference, so the answer is of the connection's own topic.
fn phoenix_input(serializer: Serializer, event: &ws::Event<'_>) -> Heard {
    let parsed = match event {
        ws::Event::Text(text) => serializer.parse_text(text),
        ws::Event::Binary(bytes) => serializer.parse_binary(bytes),
        _ => return Heard::Input(Input::Send(Vec::new())),
    };
    Heard::Input(match parsed {
        Ok(incoming) => Input::Phoenix(incoming.into()),
        Err(error) if error.is_passable() => {
            return Heard::Reply(phoenix_wrong(serializer, &error));
        }
        Err(error) => {
            let mut out = Vec::new();
            frames::close(Close::ProtocolError.code(), &error.to_string(), &mut out);
            Input::Close(Close::ProtocolError, out)
        }
    })
}

/// The answer to a message whose reference nobody knows. A phoenix.js gives it to `onMessage` and to
/// its logger.
fn phoenix_wrong(serializer: Serializer, error: &phoenix::Error) -> Vec<u8> {
    let to = Address { join_ref: None, ref_: None, topic: phoenix::TOPIC_PHOENIX };
    let mut reason = b"{\"reason\":".to_vec();
    command::push_string(&error.to_string(), &mut reason);
    reason.push(b'}');
    let mut out = Vec::new();
    let reason = String::from_utf8_lossy(&reason);
    // These names fit.
    let _ = serializer.reply(to, Status::Error, Content::Json(&reason), &mut out);
    out
}

enum Heard {
    Input(Input),
    Echo(ws::frame::Opcode, Vec<u8>),
    Reply(Vec<u8>),
}

fn text_input(settings: &Settings, text: &str) -> Heard {
    command_input(settings, command::parse(text, None))
}

fn binary_input(settings: &Settings, payload: &[u8]) -> Heard {
    let end = memchr::memchr(b'\n', payload).unwrap_or(payload.len());
    let data = payload.get(end + 1..).unwrap_or(&[]);
    match std::str::from_utf8(&payload[..end]) {
        Ok(text) => command_input(settings, command::parse(text, Some(data))),
        Err(_) => {
            let mut out = Vec::new();
            let message = "a binary frame begins with a command in JSON and a newline";
            command::reply_error("null", "bad_json", message, &mut out);
            Heard::Reply(out)
        }
    }
}

fn command_input(
    settings: &Settings,
    command: Result<command::Command, command::BadCommand>,
) -> Heard {
    let mut out = Vec::new();
    match command {
        Ok(command::Command { id, what }) => match what {
            command::What::Subscribe(wish) => match join_refusal(settings, &wish.topic) {
                None => return Heard::Input(Input::Subscribe(id, wish)),
                Some(why) => command::reply_error(&id, "forbidden", why, &mut out),
            },
            command::What::Unsubscribe(topic) => {
                return Heard::Input(Input::Unsubscribe(id, topic));
            }
            command::What::Publish(draft) => match publish_fault(settings, &draft) {
                None => return Heard::Input(Input::Publish(id, draft)),
                Some((code, message)) => command::reply_error(&id, code, &message, &mut out),
            },
            command::What::Acknowledge(acknowledged) => {
                return Heard::Input(Input::Acknowledge(id, acknowledged));
            }
            command::What::Ping => command::reply_ok(&id, "{}", &mut out),
        },
        Err(bad) => command::reply_error(&bad.id, bad.code, &bad.message, &mut out),
    }
    Heard::Reply(out)
}

fn publish_fault(settings: &Settings, draft: &Draft) -> Option<(&'static str, String)> {
    if let Some(why) = publish_refusal(settings, &draft.topic) {
        return Some(("forbidden", why.into()));
    }
    if draft.data.bytes() > settings.message_bytes_max {
        let message = format!("a message is at most {} bytes", settings.message_bytes_max);
        return Some(("message_too_large", message));
    }
    None
}

/// Appends the framed answer to a WebSocket command.
pub fn ws_reply(
    variant: Variant,
    tools: &mut Tools,
    id: &str,
    result: Result<&str, (&str, &str)>,
    out: &mut Vec<u8>,
) {
    let mut text = Vec::new();
    match result {
        Ok(ok) => command::reply_ok(id, ok, &mut text),
        Err((code, message)) => command::reply_error(id, code, message, &mut text),
    }
    let window_bits = variant.window_bits().unwrap_or(0);
    frames::data(ws::frame::Opcode::Text, &text, window_bits, tools, out);
}
