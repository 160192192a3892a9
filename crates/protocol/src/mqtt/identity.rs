//! The identity of an MQTT client: from a token in its password, user name or authentication data; from the
//! application; from its certificate; or from its user name alone, if the server requires no proof.

use auth::{Principal, Source, TokenError, TokenMark};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::name::check_name;
use model::{ErrorCode, Name};

use super::ReasonCode;
use super::packet::Connect;
use super::property::id;
use crate::protocol::Reader;
use crate::request::{Admission, ConnectDecision, ConnectRequest, Credentials, Pending};

/// The authentication method for tokens in CONNECT, and in AUTH for new ones.
pub const TOKEN_METHOD: &str = "token";

/// The error for a client that names a user and has no certificate.
const CERTIFICATE_REQUIRED: &str = "a user name requires a certificate that names the same user";

/// The reason why a client may not connect, or not yet.
pub(super) enum Refusal {
    /// A code, and a text for the client's developer.
    Code(ReasonCode, &'static str),
    /// The server reads CONNECT again after this.
    Pending(Pending),
}

/// Returns the client's principal, and whether it was proved.
pub(super) fn principal(
    reader: &Reader<'_>,
    connect: &Connect<'_>,
) -> Result<(Principal, bool), Refusal> {
    let settings = reader.settings;
    let method = connect.properties.text(id::AUTHENTICATION_METHOD);
    if method.is_some_and(|method| method != TOKEN_METHOD) {
        let text = "the authentication method must be: token";
        return Err(Refusal::Code(ReasonCode::BadAuthenticationMethod, text));
    }
    if settings.user_header.is_some() {
        // Only a proxy names users, and MQTT has no header for it.
        return Ok((Principal::anonymous(Vec::new()), true));
    }
    let data = connect.properties.binary(id::AUTHENTICATION_DATA);
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(String::from);
    let password = connect.password.and_then(text);
    let is_token = |text: &&str| text.bytes().filter(|byte| *byte == b'.').count() == 2;
    let by_method = data.filter(|_| method.is_some()).and_then(text);
    let token = by_method.as_deref().or_else(|| password.as_deref().filter(is_token));
    let (token, user) = match (token, connect.user) {
        (Some(token), user) => (Some(token), user),
        (None, Some(user)) if settings.auth.is_some() && is_token(&user) => (Some(user), None),
        (None, user) => (None, user),
    };
    let user = user.filter(|user| !user.is_empty());
    if user.is_some_and(|user| check_name(user).is_err()) {
        let text = "the user name is longer than 254 bytes, or has control characters";
        return Err(Refusal::Code(ReasonCode::BadUserNameOrPassword, text));
    }
    let named: Vec<Name> = user.into_iter().map(Name::from).collect();
    if let (Some(auth), Some(token)) = (&settings.auth, token) {
        let verified = auth.verify(token, reader.now_s()).map_err(refused)?;
        if named.iter().any(|user| !verified.users.contains(user)) {
            let text = "the user name is not one of the users of the token";
            return Err(Refusal::Code(ReasonCode::BadUserNameOrPassword, text));
        }
        return Ok((verified.into(), true));
    }
    if let Some(user) = &reader.peer.certificate_user {
        if named.iter().any(|name| name != user) {
            let text = "the user name is not the user of the certificate";
            return Err(Refusal::Code(ReasonCode::BadUserNameOrPassword, text));
        }
        return Ok((Principal::anonymous(vec![user.clone()]), true));
    }
    if settings.connect_headers.is_some() {
        return admitted(reader, connect, named).map(|principal| (principal, true));
    }
    match &settings.auth {
        None if settings.has_certificate_users && !named.is_empty() => {
            Err(Refusal::Code(ErrorCode::CertificateRequired.into(), CERTIFICATE_REQUIRED))
        }
        None => Ok((Principal::anonymous(named), settings.has_certificate_users)),
        Some(auth) if auth.is_required() || !named.is_empty() => {
            let text = "this server requires a token: send it as the password, or with the \
                        authentication method token";
            Err(Refusal::Code(ReasonCode::NotAuthorized, text))
        }
        Some(auth) => Ok((Principal::stranger(auth.anonymous_grants()), true)),
    }
}

/// The rejection of a token; pending while the keys load.
fn refused(error: TokenError) -> Refusal {
    if error == TokenError::KeysComing {
        return Refusal::Pending(Pending::Keys);
    }
    if error == TokenError::KeysUnavailable {
        let text = "the server has not been able to fetch the keys of this token's issuer: try \
                    again later";
        return Refusal::Code(error.code().into(), text);
    }
    Refusal::Code(error.code().into(), "the token is invalid, expired or revoked")
}

/// Returns the principal that the application gives the client.
fn admitted(
    reader: &Reader<'_>,
    connect: &Connect<'_>,
    named: Vec<Name>,
) -> Result<Principal, Refusal> {
    let Some(ConnectDecision { result, at_s }) = &reader.decisions.connect else {
        let password = connect.password.map(|bytes| match std::str::from_utf8(bytes) {
            Ok(text) => (text.into(), false),
            Err(_) => (STANDARD.encode(bytes).into(), true),
        });
        let credentials = Credentials {
            client: connect.client.into(),
            user: connect.user.map(Into::into),
            password,
        };
        return Err(Refusal::Pending(Pending::Connect(Box::new(ConnectRequest {
            transport: "mqtt",
            users: named,
            credentials: Some(credentials),
            ..ConnectRequest::default()
        }))));
    };
    let refused = |_: &crate::http::Rejection| {
        Refusal::Code(ReasonCode::NotAuthorized, "the application rejected this client")
    };
    let auth = reader.settings.auth.as_ref();
    let Some(admission) = result.as_ref().map_err(refused)? else {
        // The application leaves the decision to the server.
        return match auth {
            None if reader.settings.has_certificate_users && !named.is_empty() => {
                Err(Refusal::Code(ErrorCode::CertificateRequired.into(), CERTIFICATE_REQUIRED))
            }
            None => Ok(Principal::anonymous(named)),
            Some(auth) if auth.is_required() || !named.is_empty() => {
                let text = "this server requires a token";
                Err(Refusal::Code(ReasonCode::NotAuthorized, text))
            }
            Some(auth) => Ok(Principal::stranger(auth.anonymous_grants())),
        };
    };
    let Admission { users, grants, topics: _, info, seconds: _ } = &**admission;
    let anonymous = match auth {
        Some(auth) => Principal::stranger(auth.anonymous_grants()),
        None => Principal::anonymous(Vec::new()),
    };
    let mark = TokenMark { issued_s: u32::try_from(*at_s).unwrap_or(u32::MAX), id_hash: 0 };
    Ok(Principal {
        users: users.clone().unwrap_or(named),
        client: None,
        grants: grants.clone().unwrap_or(anonymous.grants),
        info: info.clone(),
        expires: admission.expires_s(*at_s),
        mark,
        source: Source::Hook,
    })
}
