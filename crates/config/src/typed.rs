//! The typed values, for the rest of the program.

use std::fmt;
use std::net::SocketAddr;

use auth::{CertificateUser, LoginRule};
use model::{JoinRule, PublishRule};
use proxies::ProxyHeader;

use crate::Value;
use crate::setting::Mode;

/// What `Debug` prints for a field: a secret is hidden.
pub(crate) fn shown(mode: Mode, value: &dyn fmt::Debug) -> &dyn fmt::Debug {
    if mode == Mode::Secret { &"(hidden)" } else { value }
}

/// A type of a setting. Every setting has a value of its kind before the conversion, so the
/// fallbacks are never used.
pub(crate) trait Typed: Sized {
    fn typed(value: Option<&Value>) -> Self;

    /// A value that may be missing, for settings and keys of which not all have one.
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
    /// A number, or of a time the seconds since 1970.
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

/// The words of an enum that the crate has in which it is used. The first one is the fallback.
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
    /// Whether clients become other users while they are connected.
    LOGIN_WORDS: LoginRule {
        Allow = "allow";
        Refuse = "refuse";
    }
}

words_of! {
    /// Which field of a client's certificate is its user.
    CLIENT_USER_WORDS: CertificateUser {
        None = "none";
        CommonName = "common-name";
        Host = "host";
        Email = "email";
        Uri = "uri";
    }
}

words_of! {
    /// How trusted proxies say where a client is.
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
    /// Whether clients may publish to a topic, and who gets it.
    PUBLISH_WORDS: PublishRule {
        Allow = "allow";
        Others = "others";
        Refuse = "refuse";
        Webhook = "webhook";
        Ask = "ask";
    }
}

words! {
    /// How messages leave.
    Sender {
        /// io_uring where the kernel allows it, else write.
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
        /// It may have none.
        Optional = "optional";
        /// A client without one is rejected.
        Required = "required";
    }
}

words! {
    /// How is logged.
    LogFormat {
        /// Lines for people.
        Text = "text";
        /// A JSON object a line.
        Json = "json";
    }
}

words! {
    /// What an application that says nothing is taken to have said.
    Silence {
        /// No.
        Deny = "deny";
        /// Yes.
        Allow = "allow";
    }
}
