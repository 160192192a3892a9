//! The cookie of a browser that is signed in.

use axum::http::{HeaderMap, HeaderValue, header};

use super::host;

/// The start of the cookie's name. A browser sends a cookie to all ports of a host, so the port is in the name, too:
/// a user may have several nodes open.
const NAME: &str = "throng_session";

/// With this prefix, a browser takes the cookie over TLS alone, and from no other name of the domain.
const SECURE: &str = "__Host-";

fn name(host: &str) -> String {
    match host::port(host) {
        Some(port) => format!("{NAME}_{port}"),
        None => NAME.into(),
    }
}

/// Returns the session's id in a request.
pub(super) fn read<'h>(headers: &'h HeaderMap, host: &str) -> Option<&'h str> {
    let name = name(host);
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.split_once('='));
    let ours = pairs.filter_map(|(key, id)| {
        let (key, id) = (key.trim(), id.trim());
        let plain = key.strip_prefix(SECURE);
        (plain.unwrap_or(key) == name).then_some((plain.is_some(), id))
    });
    // A cookie that was set over TLS counts before one that an attacker on the way may have set.
    ours.max_by_key(|(is_secure, _)| *is_secure).map(|(_, id)| id)
}

/// Makes a browser send this id for this many seconds. An empty id and 0 make it forget the id.
pub(super) fn write(host: &str, id: &str, seconds: u64, is_secure: bool) -> Option<HeaderValue> {
    let (prefix, secure) = if is_secure { (SECURE, "; Secure") } else { ("", "") };
    let name = name(host);
    let cookie = format!(
        "{prefix}{name}={id}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    );
    HeaderValue::try_from(cookie).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_own_cookie_is_found() {
        let read = |cookies: &[&str], host: &str| {
            let mut headers = HeaderMap::new();
            for cookie in cookies {
                headers.append(header::COOKIE, cookie.parse().unwrap());
            }
            super::read(&headers, host).map(str::to_owned)
        };
        let of = |text: &str| Some(text.to_owned());
        assert_eq!(read(&["a=b; throng_session_8001=x1"], "h:8001"), of("x1"));
        assert_eq!(read(&["a=b", "throng_session_8001=x1"], "h:8001"), of("x1"));
        assert_eq!(read(&["throng_session_8002=x1"], "h:8001"), None);
        assert_eq!(read(&["throng_session=x1"], "h"), of("x1"));
        assert_eq!(read(&["throng_session=a; __Host-throng_session=b"], "h"), of("b"));
        assert_eq!(read(&["__Host-throng_session=b; throng_session=a"], "h"), of("b"));
        assert_eq!(read(&["throng_session", "xthrong_session=a"], "h"), None);
        assert_eq!(
            write("h:8001", "x1", 60, true).unwrap(),
            "__Host-throng_session_8001=x1; Path=/; Max-Age=60; HttpOnly; SameSite=Strict; Secure"
        );
        let plain = write("[::1]", "", 0, false).unwrap();
        assert_eq!(plain, "throng_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict");
    }
}
