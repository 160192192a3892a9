//! Determines the principal of a request, from its token, certificate, proxy or the application's decision.
//!
//! The first of these places that has a token counts: `Authorization: Bearer …` (RFC 6750, section 2.1), the
//! subprotocol or header of phoenix.js for WebSockets and long polls, `token=` in the query, and a cookie. Browsers
//! send a cookie by themselves, also when a foreign page makes the request: it counts only for pages of this server's
//! own origin, or of one that the configuration names.

use std::borrow::Cow;

use auth::{Principal, TokenError};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use model::name::check_name;
use model::{CodedError, ErrorCode, Name};

use super::reply::origin_is_named;
use super::{Rejection, Route};
use crate::query;
use crate::request::{Interrupt, Pending};

/// The query parameter with a token.
pub const TOKEN_PARAMETER: &str = "token";

/// The prefix of the subprotocol in which phoenix.js 1.8 sends a token, in base64.
const PHOENIX_PREFIX: &str = "base64url.bearer.phx.";

/// The header in which the long poll of phoenix.js 1.8 sends a token.
const PHOENIX_HEADER: &str = "x-phoenix-authtoken";

/// Where a token came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenSource {
    /// A header that no page of a browser can set for a WebSocket.
    Authorization,
    /// Anywhere else.
    Other,
}

impl Route<'_> {
    /// Returns the principal of this request, which names these users.
    ///
    /// If the settings use no tokens, the request itself names its user. Otherwise the token names it, and the request
    /// may repeat that; without a token, a client's certificate names it, if it names a user. If the settings enable
    /// that, the application decides about requests without a token. A request with none of these is anonymous, and
    /// may do what needs no token.
    ///
    /// # Errors
    /// 401 if a required token is missing, or a token is invalid. 403 if the token is another user's, or the
    /// application rejects the request. `Interrupt::Pending` until the application or the keys reply.
    pub(crate) fn principal(&self, named: Vec<Name>) -> Result<Principal, Interrupt> {
        if let Some(header) = &self.settings.user_header {
            return Ok(self.by_proxy(header, &named)?);
        }
        let auth = self.settings.auth.as_ref();
        if let Some(auth) = auth
            && let Some((token, _)) = self.token()?
        {
            let verified = auth.verify(&token, self.now_s).map_err(token_rejected)?;
            if named.iter().any(|user| !verified.users.contains(user)) {
                let message = "user is not one of the users of the token: remove user, or name \
                               users of the token";
                return Err(Rejection::new(ErrorCode::NotYourUser, message).into());
            }
            return Ok(verified.into());
        }
        if let Some(user) = &self.peer.certificate_user {
            return Ok(by_certificate(user, &named)?);
        }
        if let Some(admitted) = self.admitted(&named)? {
            return Ok(admitted);
        }
        match auth {
            None if self.settings.has_certificate_users && !named.is_empty() => {
                let message =
                    "a request that names a user requires a certificate that names the same user";
                Err(Rejection::new(ErrorCode::CertificateRequired, message).into())
            }
            None => Ok(Principal::anonymous(named)),
            Some(auth) if auth.is_required() || !named.is_empty() => {
                Err(token_required(auth.is_required()).into())
            }
            Some(auth) => Ok(Principal::stranger(auth.anonymous_grants())),
        }
    }

    /// Returns the user that a trusted proxy names; anonymous if the proxy names none, or if the request doesn't come
    /// from a proxy. The request may repeat the name.
    fn by_proxy(&self, header: &str, named: &[Name]) -> Result<Principal, Rejection> {
        let mut values = self.request.bytes(header).filter(|_| self.peer.proxy.is_some());
        let user = match (values.next(), values.next()) {
            (None | Some([]), None) => None,
            (Some(user), None) => {
                let user = std::str::from_utf8(user).ok().filter(|user| check_name(user).is_ok());
                let message = "the user name from the proxy is invalid: it must be UTF-8 of 1 to \
                               254 bytes, without control characters";
                Some(user.ok_or_else(|| Rejection::new(ErrorCode::BadUser, message))?)
            }
            // The client itself may have sent one of them.
            (_, Some(_)) => {
                let message = "the proxy sent several user names: configure it to replace the \
                               client's header, not to add to it";
                return Err(Rejection::new(ErrorCode::BadUser, message));
            }
        };
        if named.iter().any(|name| user != Some(name)) {
            let message =
                "user is not the user that the proxy in front of this server names: remove user";
            return Err(Rejection::new(ErrorCode::NotYourUser, message));
        }
        Ok(Principal::anonymous(user.map(Name::from).into_iter().collect()))
    }

    /// Returns true if a token is required and this request has none.
    pub(crate) fn lacks_token(&self) -> Result<bool, Rejection> {
        let required = self.settings.auth.as_ref().is_some_and(|auth| auth.is_required());
        Ok(required && self.peer.certificate_user.is_none() && self.token()?.is_none())
    }

    /// Returns true if only a program can have sent the token. A program sees the status of a rejected handshake; a
    /// page of a browser sees none.
    pub(crate) fn is_by_header(&self) -> bool {
        matches!(self.token(), Ok(Some((_, TokenSource::Authorization))))
    }

    /// The request's token, and its source.
    fn token(&self) -> Result<Option<(Cow<'_, str>, TokenSource)>, Rejection> {
        if let Some(token) = self.request.values("authorization").find_map(bearer) {
            return Ok(Some((token.into(), TokenSource::Authorization)));
        }
        let phoenix = || self.request.header(PHOENIX_HEADER).map(Cow::Borrowed);
        let found = self.subprotocol().or_else(phoenix).or_else(|| self.query_token());
        if let Some(token) = found {
            return Ok(Some((token, TokenSource::Other)));
        }
        let Some(token) = self.cookie() else {
            return Ok(None);
        };
        self.cookie_page()?;
        Ok(Some((token.into(), TokenSource::Other)))
    }

    /// The token among the offered subprotocols.
    fn subprotocol(&self) -> Option<Cow<'_, str>> {
        let offered = self.request.values("sec-websocket-protocol");
        let mut offered = offered.flat_map(|line| line.split(',')).map(str::trim);
        let encoded = offered.find_map(|offer| offer.strip_prefix(PHOENIX_PREFIX))?;
        // The name says base64url, but phoenix.js writes the other alphabet.
        let decoded = STANDARD_NO_PAD.decode(encoded).or_else(|_| URL_SAFE_NO_PAD.decode(encoded));
        let decoded = decoded.ok()?;
        String::from_utf8(decoded).ok().map(Cow::Owned)
    }

    /// The token in the query. A Phoenix long-poll session's token has the same parameter, and doesn't count here.
    fn query_token(&self) -> Option<Cow<'_, str>> {
        let pairs = query::pairs(self.request.query).flatten();
        let mut tokens = pairs.filter(|(key, _)| key == TOKEN_PARAMETER).map(|(_, token)| token);
        tokens.find(|token| !token.is_empty() && self.settings.longpoll_key.verify(token).is_none())
    }

    fn cookie(&self) -> Option<&str> {
        let name = self.settings.token_cookie.as_deref()?;
        let cookies = self.request.values("cookie").flat_map(|line| line.split(';'));
        let mut named = cookies.filter_map(|cookie| cookie.trim().split_once('='));
        named.find(|(key, token)| *key == name && !token.is_empty()).map(|(_, token)| token)
    }

    /// Checks that the page which makes a request with a cookie may do so.
    pub(super) fn cookie_page(&self) -> Result<(), Rejection> {
        let request = self.request;
        let mut origins = request.bytes("origin").peekable();
        let allowed = match origins.peek() {
            Some(_) => {
                let host = request.header("host").unwrap_or("");
                let own = |origin: &[u8]| {
                    let origin = std::str::from_utf8(origin).ok();
                    let of = origin.and_then(|origin| Some(origin.split_once("://")?.1));
                    of.is_some_and(|of| of.eq_ignore_ascii_case(host))
                };
                origins.all(|origin| own(origin) || origin_is_named(self.settings, origin))
            }
            // A browser that sends no origin requests from its own page, or sends Sec-Fetch-Site.
            None => match request.header("sec-fetch-site") {
                Some(site) => site == "same-origin" || site == "none",
                None => matches!(request.method, super::Method::Get | super::Method::Head),
            },
        };
        match allowed {
            true => Ok(()),
            false => {
                let message = "a token in a cookie is accepted only from pages of this server's \
                               own origin, and of origins that the configuration names \
                               (client.cors_origins, without *)";
                Err(Rejection::new(ErrorCode::BadOrigin, message))
            }
        }
    }
}

/// Returns the user of the certificate as principal. The request may repeat the name.
fn by_certificate(user: &Name, named: &[Name]) -> Result<Principal, Rejection> {
    if named.iter().any(|name| name != user) {
        let message = "user is not the user of this connection's certificate: remove user";
        return Err(Rejection::new(ErrorCode::NotYourUser, message));
    }
    Ok(Principal::anonymous(vec![user.clone()]))
}

/// The token of an `Authorization` header, if its scheme is `Bearer`.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The rejection of a request without a token.
pub(crate) fn token_required(always: bool) -> Rejection {
    let message = match always {
        true => {
            "this server requires a token: Authorization: Bearer TOKEN, or token=TOKEN in the URL"
        }
        false => {
            "a request that names a user requires a token: Authorization: Bearer TOKEN, or \
             token=TOKEN in the URL"
        }
    };
    Rejection::new(ErrorCode::TokenRequired, message)
}

/// The rejection of an invalid token; pending while the keys load.
pub(crate) fn token_rejected(error: TokenError) -> Interrupt {
    if error == TokenError::KeysComing {
        return Interrupt::Pending(Pending::Keys);
    }
    Rejection::from(CodedError::from(error)).into()
}
