//! Converts values to types, for the rest of the program.

use std::fmt;
use std::net::SocketAddr;

use auth::{CertificateUser, LoginRule};
use model::{JoinRule, PublishRule};
use proxies::ProxyHeader;

use crate::Value;
use crate::setting::Mode;

/// What `Debug` prints for a field: a placeholder for a secret.
pub(crate) fn shown(mode: Mode, value: &dyn fmt::Debug) -> &dyn fmt::Debug {
    if mode == Mode::Secret { &"(hidden)" } else { value }
}

/// A type of a setting. Every setting has a value of its kind before the conversion, so the fallbacks are never used.
pub(crate) trait Typed: Sized {
    fn typed(value: Option<&Value>) -> Self;

    /// Converts a value that may be missing, for settings and keys that may be unset.
    fn optional(value: Option<&Value>) -> Option<Self> {
        value.map(|value| Self::typed(Some(value)))
    }
}

impl Typed for bool {
    fn typed(value: Option<&Value>) -> Self {
        matches!(value, Some(Value::Bool(true)))
    }
}

impl Typed for u64 {
    /// Converts a number, or a time to seconds since 1970.
    fn typed(value: Option<&Value>) -> Self {
        match value {
            Some(Value::Number(number)) => *number,
            Some(Value::Text(time)) => crate::time::seconds(time).unwrap_or(0),
            _ => 0,
        }
    }
}

impl Typed for String {
    fn typed(value: Option<&Value>) -> Self {
        if let Some(Value::Text(text)) = value { text.clone() } else { String::new() }
    }
}

impl Typed for Vec<String> {
    fn typed(value: Option<&Value>) -> Self {
        if let Some(Value::List(items)) = value { items.clone() } else { Vec::new() }
    }
}

impl<T: Typed> Typed for Option<T> {
    fn typed(value: Option<&Value>) -> Self {
        T::optional(value)
    }
}

impl Typed for SocketAddr {
    fn typed(value: Option<&Value>) -> Self {
        let address = String::typed(value).parse();
        address.unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// An empty text is no address.
    fn optional(value: Option<&Value>) -> Option<Self> {
        String::typed(value).parse().ok()
    }
}

/// An enum of words. The first one is the fallback.
macro_rules! words {
    ($(#[doc = $doc:literal])* $name:ident {$(
        #[doc = $variant_doc:literal]
        $variant:ident = $word:literal;
    )*}) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {$(
            #[doc = $variant_doc]
            $variant,
        )*}

        impl $name {
            /// The words, in the order of the variants.
            pub const WORDS: &[&str] = &[$($word),*];
        }

        impl Typed for $name {
            fn typed(value: Option<&Value>) -> Self {
                const ALL: &[$name] = &[$($name::$variant),*];
                let text = String::typed(value);
                ALL[$name::WORDS.iter().position(|word| **word == text).unwrap_or(0)]
            }
        }
    };
}

/// The words of an enum that another crate defines. The first one is the fallback.
macro_rules! words_of {
    ($(#[doc = $doc:literal])* $words:ident: $type:ty {$($variant:ident = $word:literal;)*}) => {
        $(#[doc = $doc])*
        pub(crate) const $words: &[&str] = &[$($word),*];

        impl Typed for $type {
            fn typed(value: Option<&Value>) -> Self {
                const ALL: &[$type] = &[$(<$type>::$variant),*];
                let text = String::typed(value);
                ALL[$words.iter().position(|word| **word == text).unwrap_or(0)]
            }
        }
    };
}

words_of! {
    /// Whether a client may log in as other users while it is connected.
    LOGIN_WORDS: LoginRule {
        Allow = "allow";
        Refuse = "refuse";
    }
}

words_of! {
    /// The field of a client's certificate that contains its user.
    CLIENT_USER_WORDS: CertificateUser {
        None = "none";
        CommonName = "common-name";
        Host = "host";
        Email = "email";
        Uri = "uri";
    }
}

words_of! {
    /// The header or protocol in which trusted proxies give a client's address.
    PROXY_HEADER_WORDS: ProxyHeader {
        XForwardedFor = "x-forwarded-for";
        Forwarded = "forwarded";
        ProxyProtocol = "proxy-protocol";
    }
}

words_of! {
    /// Whether a client may join a topic.
    JOIN_WORDS: JoinRule {
        Allow = "allow";
        Refuse = "refuse";
        Webhook = "webhook";
    }
}

words_of! {
    /// Whether clients may publish to a topic, and where their messages go.
    PUBLISH_WORDS: PublishRule {
        Allow = "allow";
        Others = "others";
        Refuse = "refuse";
        Webhook = "webhook";
        Ask = "ask";
    }
}

words! {
    /// The method of sending messages.
    Sender {
        /// io_uring if the kernel allows it, otherwise write.
        Auto = "auto";
        /// Batched io_uring sends.
        IoUring = "io_uring";
        /// One system call for each connection.
        Write = "write";
    }
}

words! {
    /// A version of TLS.
    TlsVersion {
        /// 1.2, RFC 5246.
        Tls12 = "1.2";
        /// 1.3, RFC 8446.
        Tls13 = "1.3";
    }
}

words! {
    /// Whether a client must have a certificate.
    ClientCertificates {
        /// A client without a certificate is accepted.
        Optional = "optional";
        /// A client without a certificate is rejected.
        Required = "required";
    }
}

words! {
    /// The format of the log.
    LogFormat {
        /// Lines for people.
        Text = "text";
        /// A JSON object a line.
        Json = "json";
    }
}

words! {
    /// The decision if the application does not reply.
    Silence {
        /// The request is denied.
        Deny = "deny";
        /// The request is allowed.
        Allow = "allow";
    }
}
