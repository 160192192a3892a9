//! Parameters that somebody meant to be ours.
//!
//! A request may have parameters that mean nothing here: a cache breaker, what analytics add, the page's
//! own. But `?topics=news` opens a connection that is in no topic and says nothing of it. So a parameter
//! that can hardly be meant otherwise than as one of ours is an error, as long as the request doesn't have
//! that one as well.

/// A parameter with other names that people give it, without case, `-` and `_`.
type Known = (&'static str, &'static [&'static str]);

const TOPIC: Known = ("topic", &["channel", "channels"]);
const USER: Known = ("user", &["users", "usr", "username", "userid"]);
const TAG: Known = ("tag", &["tags"]);

/// What a listener may say.
const LISTENER: [Known; 7] = [
    TOPIC,
    USER,
    TAG,
    ("since", &[]),
    ("lastEventID", &[]),
    ("timeout", &["timeoutseconds", "timeoutms"]),
    ("format", &[]),
];

/// What a publisher may say.
const PUBLISHER: [Known; 5] = [TOPIC, USER, TAG, ("key", &["keys"]), ("event", &["eventname"])];

/// What a reader of a history may say.
const HISTORY: [Known; 5] =
    [TOPIC, USER, ("since", &[]), ("limit", &["limits"]), ("reverse", &["reversed", "backwards"])];

/// A word of fewer letters is like too many others.
const LETTERS_MIN: usize = 5;

/// What a request's unknown names were probably meant to be.
#[derive(Default)]
pub(crate) struct Meant(Vec<(&'static str, String)>);

impl Meant {
    /// Notes a name that isn't known on this path: one for each that it may have been meant to be.
    pub fn note(&mut self, path: &str, name: &str) {
        if let Some(right) = meant(path, name)
            && !self.0.iter().any(|(noted, _)| *noted == right)
        {
            self.0.push((right, name.into()));
        }
    }

    /// The right name and the one that came, of the first that the request doesn't have as well.
    pub fn missing(&self, has: impl Fn(&str) -> bool) -> Option<&(&'static str, String)> {
        self.0.iter().find(|(right, _)| !has(right))
    }
}

/// Whether a name is that of the last event's id, which clients write in different ways.
pub(super) fn is_last_event_id(name: &str) -> bool {
    plain(name) == "lasteventid"
}

/// The parameter that a name was probably meant to be.
fn meant(path: &str, name: &str) -> Option<&'static str> {
    let known: &[Known] = match path {
        "/publish" => &PUBLISHER,
        "/history" => &HISTORY,
        _ => &LISTENER,
    };
    let plain = plain(name);
    let found = known.iter().find(|(right, others)| {
        let right = self::plain(right);
        plain == right
            || others.contains(&&*plain)
            || (right.len() >= LETTERS_MIN && is_one_edit_away(plain.as_bytes(), right.as_bytes()))
    });
    // A name that is right is for another path.
    found.map(|(right, _)| *right).filter(|right| *right != name)
}

/// A name without case, `-` and `_`.
fn plain(name: &str) -> String {
    let kept = name.chars().filter(|letter| !matches!(letter, '-' | '_'));
    kept.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Whether two words differ by one letter that is another, more, missing, or has changed places with the
/// next.
fn is_one_edit_away(a: &[u8], b: &[u8]) -> bool {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[same..], &b[same..]);
    match (a, b) {
        ([x, a @ ..], [y, b @ ..]) if a == b => x != y,
        ([_, rest @ ..], _) if rest == b => true,
        (_, [_, rest @ ..]) if rest == a => true,
        ([x, y, a @ ..], [v, w, b @ ..]) => a == b && (x, y) == (w, v),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (name, right) in [("limt", "limit"), ("reversed", "reverse"), ("Since", "since")] {
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
            // Ours, where they mean nothing.
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
        assert_eq!(noted.missing(|right| right == "tag"), Some(&("topic", "topics".into())));
    }

    /// The distance by the definition (optimal string alignment).
    fn distance(a: &[u8], b: &[u8]) -> usize {
        let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 0..=a.len() {
            for j in 0..=b.len() {
                table[i][j] = match (i, j) {
                    (0, _) | (_, 0) => i + j,
                    _ => {
                        let change = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                        let least = change.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
                        let swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                        if swap { least.min(table[i - 2][j - 2] + 1) } else { least }
                    }
                };
            }
        }
        table[a.len()][b.len()]
    }

    proptest::proptest! {
        #[test]
        fn one_edit_is_a_distance_of_one(a in "[abc]{0,6}", b in "[abc]{0,6}") {
            let (a, b) = (a.as_bytes(), b.as_bytes());
            proptest::prop_assert_eq!(is_one_edit_away(a, b), distance(a, b) == 1);
        }

        #[test]
        fn no_name_does_harm(name: String) {
            for path in ["/sse", "/publish"] {
                proptest::prop_assert!(meant(path, &name).is_none_or(|right| right != name));
            }
        }
    }
}
