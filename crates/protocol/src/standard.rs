//! The list of this crate's protocols.

use std::sync::LazyLock;

use crate::http::Http;
use crate::mqtt::Mqtt;
use crate::phoenix::{Phoenix, Serializer};
use crate::poll::LongPoll;
use crate::protocol::{ProtocolRef, Protocols};
use crate::sse::Sse;
use crate::stream::Stream;
use crate::websocket::{Echo, WebSocket};

/// All protocols of this crate but HTTP, which is 0. A new protocol needs its encodings here, or, from outside,
/// [`Protocols::with`]. Each encoding has the number of its position, from 1 on; protocols from outside count from
/// [`model::Encoding::MAX`] downwards, so that the numbers don't collide.
const STANDARD: [ProtocolRef; 18] = [
    &Sse { json: false },
    &Sse { json: true },
    &Stream,
    &LongPoll,
    &WebSocket { window_bits: 0 },
    &WebSocket { window_bits: 15 },
    &WebSocket { window_bits: 9 },
    &Echo { window_bits: 0 },
    &Echo { window_bits: 15 },
    &Echo { window_bits: 9 },
    &Phoenix { serializer: Serializer::V1, polled: false },
    &Phoenix { serializer: Serializer::V2, polled: false },
    &Phoenix { serializer: Serializer::V1, polled: true },
    &Phoenix { serializer: Serializer::V2, polled: true },
    &Mqtt::ALL[0],
    &Mqtt::ALL[1],
    &Mqtt::ALL[2],
    &Mqtt::ALL[3],
];

/// The protocols of this crate. A connection begins in HTTP.
pub fn standard() -> &'static Protocols {
    static ALL: LazyLock<Protocols> = LazyLock::new(|| {
        STANDARD.iter().fold(Protocols::new(&Http), |all, protocol| all.with(*protocol))
    });
    &ALL
}

#[cfg(test)]
mod tests {
    use model::ErrorCode;
    use model::event::{RECOVERY, STATE_COMPLETE, check_event};

    use super::*;
    use crate::phoenix;
    use crate::protocol::Protocol;

    #[test]
    fn no_client_may_publish_events_of_the_server_and_the_platforms() {
        for event in [
            RECOVERY,
            STATE_COMPLETE,
            "error",
            "open",
            phoenix::EVENT_JOIN,
            phoenix::EVENT_LEAVE,
            phoenix::EVENT_REPLY,
            phoenix::EVENT_CLOSE,
            phoenix::EVENT_ERROR,
            phoenix::EVENT_PRESENCE_STATE,
            phoenix::EVENT_PRESENCE_DIFF,
            phoenix::EVENT_PRESENCE_UPDATE,
            "presence_count",
            "chan_reply_7",
        ] {
            let error = check_event(event).unwrap_err();
            assert_eq!(error.code, ErrorCode::ReservedEvent);
            assert!(error.message.contains(event), "{error}");
        }
        let mut out = Vec::new();
        Sse { json: false }.recovery(b"{}", &mut crate::Codecs::new(6, 64), &mut out);
        assert!(out.starts_with(format!("event: {RECOVERY}\n").as_bytes()));
        out.clear();
        Sse { json: false }.state_complete("t", &mut crate::Codecs::new(6, 64), &mut out);
        assert!(out.starts_with(format!("event: {STATE_COMPLETE}\n").as_bytes()));
    }
}
