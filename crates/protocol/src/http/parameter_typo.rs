//! Parameters with a typo: names that are nearly those of known ones.
//!
//! A request may have parameters that mean nothing here: a cache breaker, what analytics add, the page's own. But
//! `?topics=news` opens a connection that silently joins no topic. So a parameter that is probably one of ours with a
//! typo is an error, unless the request has the right one as well. So is one that another call takes and this path
//! doesn't: without it the request would do something else than its sender expects.

use super::Rejection;
use crate::typo::{is_one_edit_away, plain};
use model::ErrorCode;

/// A parameter, and other names that people use for it, in lower case without `-` and `_`.
type Known = (&'static str, &'static [&'static str]);

const TOPIC: Known = ("topic", &["channel", "channels"]);
const USER: Known = ("user", &["users", "usr", "username", "userid"]);
const TAG: Known = ("tag", &["tags"]);

/// The parameters of a listener.
const LISTENER: [Known; 8] = [
    TOPIC,
    USER,
    TAG,
    ("since", &[]),
    ("lastEventID", &[]),
    ("timeout", &["timeoutseconds", "timeoutms"]),
    ("format", &[]),
    ("filter", &["filters", "wildcard", "wildcards"]),
];

/// The parameters of a publisher.
const PUBLISHER: [Known; 5] = [TOPIC, USER, TAG, ("key", &["keys"]), ("event", &["eventname"])];

/// The parameters of a reader of a history.
const HISTORY: [Known; 5] = [
    TOPIC,
    USER,
    ("since", &["after", "sinceid"]),
    ("limit", &["limits"]),
    ("reverse", &["reversed", "backwards"]),
];

/// A parameter that a path doesn't take, in lower case without `-` and `_`, and what to do instead.
type UnsupportedParameter = (&'static str, &'static str);

const APPLICATION_ONLY: &str =
    "only the application may set it, in POST /api/publish on the admin port";
const SENDER: &str = "the sender of a client's message is the first user of its request. Only the \
                      application may set another sender, in POST /api/publish on the admin port";
const ONCE: &str = "only the application may set it, in POST /api/publish on the admin port. To \
                    send a message again without duplicates, put an id of your own into the data, \
                    and let receivers ignore ids that they already have";

/// Parameters of the application's publish that a client's publish doesn't take.
const NOT_FOR_PUBLISHERS: [UnsupportedParameter; 6] = [
    ("sender", SENDER),
    ("id", ONCE),
    ("idempotencykey", ONCE),
    ("nohistory", APPLICATION_ONLY),
    ("ttlseconds", APPLICATION_ONLY),
    ("ifoffset", APPLICATION_ONLY),
];

const BEFORE: &str = "did you mean since with reverse=true? (For each further page, send the value \
                      of next from the previous page as since.)";

/// Parameters with which other servers turn pages.
const NOT_FOR_READERS: [UnsupportedParameter; 5] = [
    ("before", BEFORE),
    ("until", BEFORE),
    ("offset", BEFORE),
    ("page", BEFORE),
    ("cursor", BEFORE),
];

/// Shorter words resemble too many others.
const LETTERS_MIN: usize = 5;

/// What a parameter unknown to this path probably means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// This parameter, with a typo.
    As(&'static str),
    /// Something that the path doesn't do, with what to do instead.
    Unsupported(&'static str),
}

impl Kind {
    /// Guesses what an unknown name means; `None` if it resembles nothing of this path.
    fn of(path: &str, name: &str) -> Option<Self> {
        let (known, refused): (&[Known], &[UnsupportedParameter]) = match path {
            "/publish" => (&PUBLISHER, &NOT_FOR_PUBLISHERS),
            "/history" => (&HISTORY, &NOT_FOR_READERS),
            _ => (&LISTENER, &[]),
        };
        let plain = plain(name);
        if let Some((_, instead)) = refused.iter().find(|(refused, _)| *refused == plain) {
            return Some(Kind::Unsupported(instead));
        }
        let found = known.iter().find(|(right, others)| {
            let right = self::plain(right);
            let is_long = right.len() >= LETTERS_MIN;
            plain == right
                || others.contains(&&*plain)
                || (is_long && is_one_edit_away(plain.as_bytes(), right.as_bytes()))
        });
        // A right name that comes here is valid on another path.
        found.map(|(right, _)| *right).filter(|right| *right != name).map(Kind::As)
    }
}

/// What the unknown names of a request probably mean.
#[derive(Default)]
pub(crate) struct Meant(Vec<(Kind, String)>);

impl Meant {
    /// Notes a name that this path doesn't know, once for each meaning.
    pub fn note(&mut self, path: &str, name: &str) {
        if let Some(kind) = Kind::of(path, name)
            && !self.0.iter().any(|(noted, _)| *noted == kind)
        {
            self.0.push((kind, name.into()));
        }
    }

    /// Rejects the first noted name, unless the request has the right parameter as well.
    pub fn check(&self, path: &str, has: impl Fn(&str) -> bool) -> Result<(), Rejection> {
        let is_wrong = |(kind, _): &&(Kind, String)| match kind {
            Kind::As(right) => !has(right),
            Kind::Unsupported(_) => true,
        };
        let message = match self.0.iter().find(is_wrong) {
            None => return Ok(()),
            Some((Kind::As(right), name)) => format!(
                "there is no parameter {name}: did you mean {right}? (Repeat it for several \
                 values: topic=a&topic=b)"
            ),
            Some((Kind::Unsupported(instead), name)) => {
                format!("{path} has no parameter {name}: {instead}")
            }
        };
        Err(Rejection::new(ErrorCode::BadParameter, message))
    }
}

/// Checks that a name is that of the last event's id, which clients write in different ways.
pub(super) fn is_last_event_id(name: &str) -> bool {
    plain(name) == "lasteventid"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(path: &str, name: &str) -> Option<&'static str> {
        match Kind::of(path, name)? {
            Kind::As(right) => Some(right),
            Kind::Unsupported(instead) => panic!("{name}: {instead}"),
        }
    }

    #[test]
    fn what_a_path_does_not_take_is_refused_with_what_to_do() {
        let instead = |path, name| match Kind::of(path, name) {
            Some(Kind::Unsupported(instead)) => instead,
            other => panic!("{path} {name}: {other:?}"),
        };
        for name in
            ["sender", "id", "idempotency_key", "Idempotency-Key", "no_history", "noHistory"]
        {
            assert!(instead("/publish", name).contains("/api/publish"), "{name}");
        }
        for name in ["ttl_seconds", "if_offset"] {
            assert!(instead("/publish", name).contains("only the application"), "{name}");
        }
        for name in ["before", "until", "offset", "page", "Before"] {
            assert!(instead("/history", name).contains("since with reverse=true"), "{name}");
        }
        for (path, name) in [("/sse", "before"), ("/sse", "sender"), ("/publish", "page")] {
            assert_eq!(Kind::of(path, name), None, "{path} {name}");
        }
        let mut meant = Meant::default();
        meant.note("/history", "before");
        assert!(meant.check("/history", |_| true).is_err(), "whatever else it names");
    }

    #[test]
    fn what_was_meant_is_named() {
        for (name, right) in [
            ("topics", "topic"),
            ("Topic", "topic"),
            ("tpoic", "topic"),
            ("topc", "topic"),
            ("topik", "topic"),
            ("channel", "topic"),
            ("CHANNELS", "topic"),
            ("users", "user"),
            ("USER", "user"),
            ("user_id", "user"),
            ("userName", "user"),
            ("tags", "tag"),
            ("sicne", "since"),
            ("Since", "since"),
            ("lastEventIdx", "lastEventID"),
            ("timeouts", "timeout"),
            ("timeout_seconds", "timeout"),
            ("formt", "format"),
        ] {
            assert_eq!(meant("/sse", name), Some(right), "{name}");
        }
        for (name, right) in
            [("limt", "limit"), ("reversed", "reverse"), ("Since", "since"), ("after", "since")]
        {
            assert_eq!(meant("/history", name), Some(right), "{name}");
        }
        for (name, right) in [("keys", "key"), ("Key", "key"), ("evnt", "event"), ("chanel", "")] {
            assert_eq!(meant("/publish", name).unwrap_or(""), right, "{name}");
        }
    }

    #[test]
    fn what_others_add_is_passed_over() {
        for name in [
            "",
            "_",
            "t",
            "ts",
            "v",
            "cb",
            "nocache",
            "utm_source",
            "utm_medium",
            "gclid",
            "fbclid",
            "msclkid",
            "_ga",
            "uid",
            "cid",
            "sid",
            "ref",
            "tab",
            "page",
            "lang",
            "kid",
            "q",
            "id",
            "token",
            "access_token",
            "vsn",
            "uses",
            "used",
            "us",
            "tan",
            "bag",
            "room",
            "optics",
            "tropical",
            "topic[]x",
            "formation",
            "eventId",
            "è",
            "topıc",
            // Ours, on paths that don't use them.
            "event",
            "key",
            "limit",
            "connect_timeout",
        ] {
            assert_eq!(meant("/sse", name), None, "{name}");
        }
        for ours in ["topic", "user", "tag", "since", "lastEventID", "timeout", "format"] {
            assert_eq!(meant("/sse", ours), None, "{ours}");
        }
        for other in ["since", "timeout", "format", "lastEventID"] {
            assert_eq!(meant("/publish", other), None, "{other}");
        }
    }

    #[test]
    fn the_id_of_the_last_event_has_many_spellings() {
        for name in ["lastEventID", "lastEventId", "Last-Event-ID", "last_event_id"] {
            assert!(is_last_event_id(name), "{name}");
        }
        assert!(!is_last_event_id("eventId"));
    }

    #[test]
    fn each_name_that_was_meant_is_noted_once() {
        let mut noted = Meant::default();
        (0..1_000).for_each(|_| noted.note("/sse", "tags"));
        noted.note("/sse", "topics");
        assert_eq!(noted.0.len(), 2);
        assert!(noted.check("/sse", |right| right == "tag").is_err(), "topics is left");
        assert!(noted.check("/sse", |_| true).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn no_name_does_harm(name: String) {
            for path in ["/sse", "/publish", "/history"] {
                if let Some(Kind::As(right)) = Kind::of(path, &name) {
                    proptest::prop_assert!(right != name);
                }
            }
        }
    }
}
