//! Why a connection ends: one table for the WebSocket close codes, the metrics' labels and the
//! advice to the client.

use crate::ErrorCode;

/// Why a connection was closed. The discriminant indexes metrics arrays, and never changes: the records of
/// connections that pass to another process have it. New ones come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CloseReason {
    /// The peer closed its end in order.
    ByClient,
    /// The peer vanished: a reset, a keep-alive or a user time-out of TCP.
    Lost,
    /// The peer requested (or HTTP implied) the end after a short response.
    Replied,
    /// The application closed it through the API.
    ByApplication,
    /// The server is draining for a stop or a restart.
    Drain,
    /// The outbox reached its limit: the peer reads too slowly.
    SlowConsumer,
    /// The request head or body did not arrive in time.
    RequestTimeout,
    /// A keep-alive connection sent no request for too long.
    Idle,
    /// A WebSocket sent nothing for too long.
    Silent,
    /// The request was not HTTP that the server can serve, or the server rejected it.
    BadRequest,
    /// A WebSocket peer broke the protocol (RFC 6455 code 1002).
    ProtocolError,
    /// Text that is not UTF-8, or compressed data that is broken (code 1007).
    InvalidPayload,
    /// A frame or message over the limit (code 1009).
    TooBig,
    /// The server had no descriptor, memory or slot left, and replied with 503.
    Overloaded,
    /// An error in the server itself.
    Internal,
    /// The client had no valid token, or sent none in time.
    Unauthorized,
    /// Its token has expired.
    TokenExpired,
    /// Its token was revoked.
    TokenRevoked,
    /// The client went on with requests over the limit of its user or its address.
    RateLimited,
    /// Another connection of the same MQTT client has its session now.
    TakenOver,
    /// The node drains, or has more connections than others, and serves on: the client should reconnect to another
    /// one.
    UseAnotherServer,
}

/// What a client of a closed connection should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Reconnect, after a back-off.
    Reconnect,
    /// Don't reconnect: the same would happen again, or the application has closed the connection.
    Stay,
}

impl CloseReason {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [CloseReason; 21] = [
        CloseReason::ByClient,
        CloseReason::Lost,
        CloseReason::Replied,
        CloseReason::ByApplication,
        CloseReason::Drain,
        CloseReason::SlowConsumer,
        CloseReason::RequestTimeout,
        CloseReason::Idle,
        CloseReason::Silent,
        CloseReason::BadRequest,
        CloseReason::ProtocolError,
        CloseReason::InvalidPayload,
        CloseReason::TooBig,
        CloseReason::Overloaded,
        CloseReason::Internal,
        CloseReason::Unauthorized,
        CloseReason::TokenExpired,
        CloseReason::TokenRevoked,
        CloseReason::RateLimited,
        CloseReason::TakenOver,
        CloseReason::UseAnotherServer,
    ];

    /// The label in metrics and in the last line of an HTTP stream. It is the code of the error where there is one.
    pub fn name(self) -> &'static str {
        match self {
            CloseReason::ByClient => "client",
            CloseReason::Lost => "lost",
            CloseReason::Replied => "answered",
            CloseReason::ByApplication => ErrorCode::ByApplication.text(),
            CloseReason::Drain => ErrorCode::Drain.text(),
            CloseReason::SlowConsumer => "slow_consumer",
            CloseReason::RequestTimeout => ErrorCode::RequestTimeout.text(),
            CloseReason::Idle => "idle",
            CloseReason::Silent => "silent",
            CloseReason::BadRequest => ErrorCode::BadRequest.text(),
            CloseReason::ProtocolError => "protocol_error",
            CloseReason::InvalidPayload => "invalid_payload",
            CloseReason::TooBig => "too_big",
            CloseReason::Overloaded => ErrorCode::Overloaded.text(),
            CloseReason::Internal => "internal",
            CloseReason::Unauthorized => ErrorCode::Unauthorized.text(),
            CloseReason::TokenExpired => ErrorCode::TokenExpired.text(),
            CloseReason::TokenRevoked => ErrorCode::TokenRevoked.text(),
            CloseReason::RateLimited => ErrorCode::RateLimited.text(),
            CloseReason::TakenOver => "taken_over",
            CloseReason::UseAnotherServer => ErrorCode::UseAnotherServer.text(),
        }
    }

    /// The WebSocket close code (RFC 6455 section 7.4; 3000–3999 are registered to libraries and
    /// frameworks, 4000–4999 private).
    pub fn code(self) -> u16 {
        match self {
            CloseReason::ByClient | CloseReason::Replied => 1000,
            CloseReason::Lost | CloseReason::Idle => 1001,
            CloseReason::ByApplication => 4000,
            CloseReason::Drain | CloseReason::UseAnotherServer => 1012,
            CloseReason::SlowConsumer => 4008,
            CloseReason::RequestTimeout | CloseReason::Silent => 4009,
            CloseReason::BadRequest => 4010,
            CloseReason::ProtocolError => 1002,
            CloseReason::InvalidPayload => 1007,
            CloseReason::TooBig => 1009,
            CloseReason::Overloaded => 1013,
            CloseReason::Internal => 1011,
            CloseReason::Unauthorized => 4401,
            CloseReason::TokenExpired => 4402,
            CloseReason::TokenRevoked => 4403,
            CloseReason::RateLimited => 4029,
            CloseReason::TakenOver => 4041,
        }
    }

    /// What the client should do next.
    pub fn advice(self) -> Advice {
        match self {
            CloseReason::ByApplication
            | CloseReason::BadRequest
            | CloseReason::ProtocolError
            | CloseReason::InvalidPayload
            | CloseReason::TooBig
            | CloseReason::Unauthorized
            | CloseReason::TokenRevoked
            | CloseReason::TakenOver => Advice::Stay,
            CloseReason::ByClient
            | CloseReason::Lost
            | CloseReason::Replied
            | CloseReason::Drain
            | CloseReason::SlowConsumer
            | CloseReason::RequestTimeout
            | CloseReason::Idle
            | CloseReason::Silent
            | CloseReason::Overloaded
            | CloseReason::Internal
            | CloseReason::RateLimited
            | CloseReason::UseAnotherServer
            // With a new token.
            | CloseReason::TokenExpired => Advice::Reconnect,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_follows_the_discriminants_and_names_are_distinct() {
        let mut names = std::collections::HashSet::new();
        for (at, close) in CloseReason::ALL.into_iter().enumerate() {
            assert_eq!(close as usize, at);
            assert!(names.insert(close.name()));
            assert!((1000..5000).contains(&close.code()));
        }
    }
}
