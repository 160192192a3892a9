//! The names of events, for all transports at once: which may be published, and which are the
//! server's own or have a meaning to the software that receives them.
//!
//! An event's name goes as it is to an `EventSource` and to Phoenix clients. The other transports
//! carry it in a field of its own, `event`, beside the `type` that is the server's, so that
//! `heartbeat`, `welcome`, `close` and `reply` are names like any other.

use crate::name::check_name;
use crate::{CodedError, ErrorCode};

/// The name of the event that reports to clients of Server-Sent Events what was recovered.
pub const RECOVERY: &str = "recovery";

/// The name of the event that reports that the state of a compacted topic is complete.
pub const STATE_COMPLETE: &str = "state_complete";

/// A reserved name, or the beginning of reserved names.
#[derive(Clone, Copy)]
enum Own {
    Name(&'static str),
    Prefix(&'static str),
}

/// The reserved names, and why each is reserved.
const OWN: [(Own, &str); 7] = [
    (Own::Name(RECOVERY), "the server sends it to say whether all missed messages have arrived"),
    (Own::Name(STATE_COMPLETE), "the server sends it when the state of a topic has arrived"),
    (Own::Name("error"), "an EventSource passes it to onerror, as if the connection had failed"),
    (Own::Name("open"), "an EventSource passes it to onopen, as if it had just connected"),
    (Own::Prefix("phx_"), "Phoenix clients treat them as protocol messages on joins and replies"),
    (Own::Prefix("chan_reply_"), "Phoenix clients treat them as replies to a push"),
    (Own::Prefix("presence_"), "the server sends them for presence"),
];

/// Checks the name of an event to be published: [`check_name`] accepts it, and it is not reserved. The server's own
/// messages don't pass here.
///
/// # Errors
/// `bad_event` if it is no name, `reserved_event` if it is reserved.
pub fn check_event(event: &str) -> Result<(), CodedError> {
    check_name(event).map_err(|error| CodedError::new(ErrorCode::BadEvent, error))?;
    let message = match own(event) {
        None => return Ok(()),
        Some((Own::Name(name), why)) => format!("the event {name} can't be published: {why}"),
        Some((Own::Prefix(prefix), why)) => {
            format!(
                "the event {event} can't be published, because names that begin with {prefix} are \
                 reserved: {why}"
            )
        }
    };
    Err(CodedError::new(ErrorCode::ReservedEvent, message))
}

/// Returns true if an event's name is reserved: only the server's own messages have such names.
pub fn is_reserved(event: &str) -> bool {
    own(event).is_some()
}

fn own(event: &str) -> Option<&'static (Own, &'static str)> {
    OWN.iter().find(|(own, _)| match own {
        Own::Name(name) => event == *name,
        Own::Prefix(prefix) => event.starts_with(prefix),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_applications_own_events_pass() {
        for event in [
            "message",
            "update",
            "close",
            "closed",
            "opened",
            "errors",
            "Error",
            "heartbeat",
            "welcome",
            "reply",
            "ack",
            "broadcast",
            "phx",
            "presence",
            "recovery.done",
            "state",
            "state_complete.v2",
            "é",
        ] {
            assert_eq!(check_event(event), Ok(()), "{event}");
            assert!(!is_reserved(event));
        }
        for bad in ["", "a\nb", "a\rb", "a\0", "\u{85}"] {
            assert_eq!(check_event(bad).unwrap_err().code, ErrorCode::BadEvent, "{bad:?}");
        }
    }
}
