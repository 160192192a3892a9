//! The claims of a token.

use std::fmt;
use std::sync::Arc;

use auth::{Grants, Patterns, TokenError, TokenMark, TopicToken, Verified};
use model::Name;
use model::name::{NAME_BYTES_MAX, check_name, check_topic};
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use serde_json::value::RawValue;

use crate::revocation::id_hash;

/// Patterns that one token may have for one action.
pub const PATTERNS_MAX: usize = 100;

/// Bytes of a token's info about its bearer.
pub const INFO_BYTES_MAX: usize = 4 << 10;

/// Users of one token.
const USERS_MAX: usize = 100;

/// Seconds by which clocks may differ: a token may be this much too new.
const CLOCKS_SECONDS: u64 = 60;

/// The claims that are read; others are the application's own.
#[derive(Debug, Deserialize)]
pub(crate) struct Claims {
    sub: Option<String>,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default, deserialize_with = "date")]
    exp: Option<Date>,
    #[serde(default, deserialize_with = "date")]
    nbf: Option<Date>,
    #[serde(default, deserialize_with = "date")]
    iat: Option<Date>,
    pub iss: Option<String>,
    aud: Option<Audience>,
    pub jti: Option<String>,
    throng: Option<Throng>,
    topic: Option<String>,
}

/// The claims of this server alone.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Throng {
    #[serde(default)]
    subscribe: Vec<String>,
    #[serde(default)]
    publish: Vec<String>,
    #[serde(default)]
    presence: Vec<String>,
    #[serde(default)]
    history: Vec<String>,
    info: Option<Box<RawValue>>,
}

/// Seconds since 1970, which may have a fraction (RFC 7519, section 2, `NumericDate`).
#[derive(Clone, Copy, Debug)]
struct Date(f64);

impl Date {
    /// Returns the second in which it is.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    fn seconds(self) -> u64 {
        self.0 as u64
    }

    /// Returns the first second that begins then or later.
    fn end_seconds(self) -> u64 {
        Date(self.0.ceil()).seconds()
    }
}

/// Reads a date. A null date is an error: the token's author expects a limit that would not be there.
fn date<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Option<Date>, D::Error> {
    struct Number;

    impl Visitor<'_> for Number {
        type Value = f64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number, of seconds since 1970")
        }

        fn visit_f64<E>(self, value: f64) -> Result<f64, E> {
            Ok(value)
        }

        #[expect(clippy::cast_precision_loss, reason = "no date has so many digits")]
        fn visit_u64<E>(self, value: u64) -> Result<f64, E> {
            Ok(value as f64)
        }

        #[expect(clippy::cast_precision_loss, reason = "no date has so many digits")]
        fn visit_i64<E>(self, value: i64) -> Result<f64, E> {
            Ok(value as f64)
        }
    }

    deserializer.deserialize_f64(Number).map(|seconds| Some(Date(seconds)))
}

/// One or several (RFC 7519, section 4.1.3).
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Audience {
    fn names(&self, audience: &str) -> bool {
        match self {
            Audience::One(one) => one == audience,
            Audience::Several(several) => several.iter().any(|one| one == audience),
        }
    }
}

/// The requirements for claims.
pub(crate) struct Expected<'a> {
    /// The accepted issuers; any if there is none.
    pub issuers: &'a [String],
    /// The required audience. Without one, a token must name none.
    pub audience: Option<&'a str>,
    /// The time, in seconds since 1970.
    pub now_s: u64,
}

impl Claims {
    /// Reads the claims of a token whose signature is valid.
    pub fn read(json: &[u8]) -> Result<Self, TokenError> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let claims = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            let (path, text) = (error.path().to_string(), error.inner().to_string());
            // The author wrote claims, not this JSON: its lines and columns say nothing.
            let text = text.split(" at line ").next().unwrap_or_default();
            // The path of the whole is a dot.
            let claim = if path == "." { "the claims" } else { &path };
            TokenError::Claim(format!("{claim}: {text}"))
        })?;
        deserializer.end().map_err(|error| TokenError::Claim(error.to_string()))?;
        Ok(claims)
    }

    /// Checks the issuer, the audience and the times.
    pub fn check(&self, expected: &Expected<'_>) -> Result<(), TokenError> {
        let Expected { issuers, audience, now_s } = *expected;
        let issued = |issuer: &String| issuers.contains(issuer);
        if !issuers.is_empty() && !self.iss.as_ref().is_some_and(issued) {
            return Err(TokenError::Issuer);
        }
        match (&self.aud, audience) {
            (None, None) => {}
            (Some(aud), Some(audience)) if aud.names(audience) => {}
            (Some(_), _) | (None, Some(_)) => return Err(TokenError::Audience),
        }
        if self.exp.is_some_and(|exp| exp.end_seconds() <= now_s) {
            return Err(TokenError::Expired);
        }
        // A token of the future would outlive the revocation of all that were issued until then.
        if [self.nbf, self.iat]
            .into_iter()
            .flatten()
            .any(|at| at.seconds() > now_s + CLOCKS_SECONDS)
        {
            return Err(TokenError::NotYet);
        }
        Ok(())
    }

    /// Returns the token's users, the subject first.
    pub fn users(&self) -> Result<Vec<Name>, TokenError> {
        let mut users = Vec::new();
        for user in self.sub.iter().chain(&self.users) {
            let wrong = |error| TokenError::Claim(format!("sub and users name users: {error}"));
            check_name(user).map_err(wrong)?;
            if !users.iter().any(|known: &Name| known == user) {
                users.push(Name::from(user));
            }
        }
        if users.len() > USERS_MAX {
            return Err(TokenError::Claim(format!("it has more than {USERS_MAX} users")));
        }
        Ok(users)
    }

    /// Returns when it was issued, in seconds since 1970; 0 when it doesn't say.
    pub fn issued_s(&self) -> u32 {
        self.iat.map_or(0, |iat| u32::try_from(iat.seconds()).unwrap_or(u32::MAX))
    }

    /// Returns what a connection with it may do. Without the claim `throng` it has the grants `otherwise`.
    pub fn verified(self, otherwise: &Arc<Grants>) -> Result<Verified, TokenError> {
        if self.topic.is_some() {
            let message = "it is for one topic: send it with a request for that topic, in \
                           addition to a token that identifies you";
            return Err(TokenError::Claim(message.into()));
        }
        let users = self.users()?;
        let mark = TokenMark {
            issued_s: self.issued_s(),
            id_hash: self.jti.as_deref().map_or(0, id_hash),
        };
        let expires = self.exp.map(Date::end_seconds);
        let Some(throng) = self.throng else {
            let grants = otherwise.clone();
            return Ok(Verified { users, grants, info: None, expires, mark });
        };
        let Throng { subscribe, publish, presence, history, info } = throng;
        let claim = |message: String| TokenError::Claim(format!("throng.{message}"));
        let lists = Throng { subscribe, publish, presence, history, info: None };
        let grants = Arc::new(lists.grants().map_err(claim)?);
        let info = info.filter(|info| info.get() != "null");
        let info = info.map(|info| self::info(info.get())).transpose().map_err(claim)?;
        Ok(Verified { users, grants, info, expires, mark })
    }

    /// Returns the contents of a token for one topic.
    pub fn topic(self) -> Result<TopicToken, TokenError> {
        let users = self.users()?;
        let Some(topic) = self.topic else {
            let message = "it is not a token for one topic: it has no claim topic";
            return Err(TokenError::Claim(message.into()));
        };
        let wrong =
            |error| TokenError::Claim(format!("the claim topic must name a topic: {error}"));
        check_topic(&topic).map_err(wrong)?;
        if users.is_empty() {
            let message = "its claim sub must name the user who may enter the topic";
            return Err(TokenError::Claim(message.into()));
        }
        Ok(TopicToken { users, topic: topic.into() })
    }
}

/// Reads grants in the form of the claim `throng`: `{"subscribe":["chat:{sub}:*"],"publish":[…],"presence":[…],
/// "history":[…]}`.
///
/// # Errors
/// When it is something else, or has more than [`PATTERNS_MAX`] patterns of an action.
pub fn grants(json: &str) -> Result<Grants, String> {
    let lists: Throng = serde_json::from_str(json).map_err(|error| error.to_string())?;
    match lists.info {
        None => lists.grants(),
        Some(_) => Err("info is not a grant".into()),
    }
}

/// Checks the info about a bearer for other members: an object, which stays as it is.
///
/// # Errors
/// When it is something else, or larger than [`INFO_BYTES_MAX`].
pub fn info(json: &str) -> Result<Arc<str>, String> {
    if !json.starts_with('{') || json.len() > INFO_BYTES_MAX {
        return Err(format!("info must be an object of at most {INFO_BYTES_MAX} bytes"));
    }
    Ok(json.into())
}

impl Throng {
    fn grants(self) -> Result<Grants, String> {
        let Throng { subscribe, publish, presence, history, info: _ } = self;
        Ok(Grants::Patterns(Patterns {
            subscribe: patterns("subscribe", subscribe)?,
            publish: patterns("publish", publish)?,
            presence: patterns("presence", presence)?,
            history: patterns("history", history)?,
        }))
    }
}

fn patterns(action: &str, list: Vec<String>) -> Result<Vec<Box<str>>, String> {
    if list.len() > PATTERNS_MAX {
        return Err(format!("{action} has more than {PATTERNS_MAX} patterns"));
    }
    if list.iter().any(|pattern| pattern.len() > NAME_BYTES_MAX) {
        return Err(format!("{action} has a pattern of more than {NAME_BYTES_MAX} bytes"));
    }
    Ok(list.into_iter().map(String::into_boxed_str).collect())
}
