//! Alerts: why a side ends a connection (RFC 8446, 6; RFC 5246, 7.2).

use std::fmt;

/// A record with the fatal alert `internal_error`, for a client whose handshake does not begin because the server is
/// at a limit.
pub const ALERT_OVERLOADED: [u8; 7] = [21, 3, 3, 0, 2, 2, Alert::INTERNAL_ERROR.0];

/// The description of an alert, as it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Alert(pub u8);

macro_rules! alerts {
    ($($constant:ident = $number:literal $name:literal)*) => {
        impl Alert {
            $(#[doc = concat!("`", $name, "`")] pub const $constant: Alert = Alert($number);)*

            /// The name in the RFCs, `unknown` for one that they don't define.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($number => $name,)*
                    _ => "unknown",
                }
            }
        }
    };
}

alerts! {
    CLOSE_NOTIFY = 0 "close_notify"
    UNEXPECTED_MESSAGE = 10 "unexpected_message"
    BAD_RECORD_MAC = 20 "bad_record_mac"
    RECORD_OVERFLOW = 22 "record_overflow"
    HANDSHAKE_FAILURE = 40 "handshake_failure"
    BAD_CERTIFICATE = 42 "bad_certificate"
    UNSUPPORTED_CERTIFICATE = 43 "unsupported_certificate"
    CERTIFICATE_REVOKED = 44 "certificate_revoked"
    CERTIFICATE_EXPIRED = 45 "certificate_expired"
    CERTIFICATE_UNKNOWN = 46 "certificate_unknown"
    ILLEGAL_PARAMETER = 47 "illegal_parameter"
    UNKNOWN_CA = 48 "unknown_ca"
    ACCESS_DENIED = 49 "access_denied"
    DECODE_ERROR = 50 "decode_error"
    DECRYPT_ERROR = 51 "decrypt_error"
    PROTOCOL_VERSION = 70 "protocol_version"
    INSUFFICIENT_SECURITY = 71 "insufficient_security"
    INTERNAL_ERROR = 80 "internal_error"
    INAPPROPRIATE_FALLBACK = 86 "inappropriate_fallback"
    USER_CANCELED = 90 "user_canceled"
    NO_RENEGOTIATION = 100 "no_renegotiation"
    MISSING_EXTENSION = 109 "missing_extension"
    UNSUPPORTED_EXTENSION = 110 "unsupported_extension"
    UNRECOGNIZED_NAME = 112 "unrecognized_name"
    BAD_CERTIFICATE_STATUS_RESPONSE = 113 "bad_certificate_status_response"
    UNKNOWN_PSK_IDENTITY = 115 "unknown_psk_identity"
    CERTIFICATE_REQUIRED = 116 "certificate_required"
    NO_APPLICATION_PROTOCOL = 120 "no_application_protocol"
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_have_the_names_of_the_rfcs() {
        assert_eq!(Alert(20).name(), "bad_record_mac");
        assert_eq!(Alert::NO_APPLICATION_PROTOCOL.to_string(), "no_application_protocol");
        assert_eq!(format!("{:?}", Alert(255)), "unknown (255)");
    }
}
