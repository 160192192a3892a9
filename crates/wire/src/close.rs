//! Why a connection ends: one table for the WebSocket close codes, the metrics' labels and the
//! advice to the client.

/// Why a connection was closed. The discriminant indexes metrics arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Close {
    /// The peer closed its end in order.
    ByClient,
    /// The peer vanished: a reset, a keep-alive or a user time-out of TCP.
    Lost,
    /// The peer asked for (or HTTP implied) the end after a short answer.
    Answered,
    /// The application closed it through the API.
    ByApplication,
    /// The server is draining for a stop or a restart.
    Drain,
    /// The outbox was full: the peer reads more slowly than it is sent to.
    SlowConsumer,
    /// The request head or body did not arrive in time.
    RequestTimeout,
    /// A keep-alive connection asked for nothing for too long.
    Idle,
    /// Nothing was heard from a WebSocket for too long.
    Silent,
    /// The request was not HTTP that we can answer, or was refused.
    BadRequest,
    /// A WebSocket peer broke the protocol (RFC 6455 code 1002).
    ProtocolError,
    /// Text that is not UTF-8, or compressed data that is broken (code 1007).
    InvalidPayload,
    /// A frame or message over the limit (code 1009).
    TooBig,
    /// No descriptor, memory or place was left: answered 503.
    Overloaded,
    /// Something went wrong in the server itself.
    Internal,
}

/// What a client of a closed connection should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Come back, after a back-off.
    Reconnect,
    /// Don't: the same would happen again, or the application wants it gone.
    Stay,
}

impl Close {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Close; 15] = [
        Close::ByClient,
        Close::Lost,
        Close::Answered,
        Close::ByApplication,
        Close::Drain,
        Close::SlowConsumer,
        Close::RequestTimeout,
        Close::Idle,
        Close::Silent,
        Close::BadRequest,
        Close::ProtocolError,
        Close::InvalidPayload,
        Close::TooBig,
        Close::Overloaded,
        Close::Internal,
    ];

    /// The label in metrics and in the last line of an HTTP stream.
    pub fn name(self) -> &'static str {
        match self {
            Close::ByClient => "client",
            Close::Lost => "lost",
            Close::Answered => "answered",
            Close::ByApplication => "application",
            Close::Drain => "drain",
            Close::SlowConsumer => "slow_consumer",
            Close::RequestTimeout => "request_timeout",
            Close::Idle => "idle",
            Close::Silent => "silent",
            Close::BadRequest => "bad_request",
            Close::ProtocolError => "protocol_error",
            Close::InvalidPayload => "invalid_payload",
            Close::TooBig => "too_big",
            Close::Overloaded => "overloaded",
            Close::Internal => "internal",
        }
    }

    /// The WebSocket close code (RFC 6455 section 7.4; 3000–3999 are registered to libraries and
    /// frameworks, 4000–4999 private).
    pub fn code(self) -> u16 {
        match self {
            Close::ByClient | Close::Answered => 1000,
            Close::Lost | Close::Idle => 1001,
            Close::ByApplication => 4000,
            Close::Drain => 1012,
            Close::SlowConsumer => 4008,
            Close::RequestTimeout | Close::Silent => 4009,
            Close::BadRequest => 4010,
            Close::ProtocolError => 1002,
            Close::InvalidPayload => 1007,
            Close::TooBig => 1009,
            Close::Overloaded => 1013,
            Close::Internal => 1011,
        }
    }

    /// What the client should do next.
    pub fn advice(self) -> Advice {
        match self {
            Close::ByApplication
            | Close::BadRequest
            | Close::ProtocolError
            | Close::InvalidPayload
            | Close::TooBig => Advice::Stay,
            _ => Advice::Reconnect,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_follows_the_discriminants_and_names_are_distinct() {
        let mut names = std::collections::HashSet::new();
        for (at, close) in Close::ALL.into_iter().enumerate() {
            assert_eq!(close as usize, at);
            assert!(names.insert(close.name()));
            assert!((1000..5000).contains(&close.code()));
        }
    }
}
