//! Texts that say where something is on the web: origins, and URLs of webhooks.

/// `*`, or what a browser sends as `Origin` (RFC 6454, section 6.2), `null` included: origins are
/// compared as texts, so what no browser would write could never match.
pub(crate) fn is_origin(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text == "*" || text == "null";
    };
    is_name(scheme, b"+-.") && is_host(rest)
}

/// Whether requests can be sent to this URL; else what is wrong with it. A text that may hold a
/// password is not repeated.
pub(crate) fn webhook(url: &str) -> Result<(), String> {
    let rest = url.strip_prefix("http://").or(url.strip_prefix("https://"));
    let end = rest.and_then(|rest| rest.find(['/', '?', '#']));
    let host = rest.map(|rest| &rest[..end.unwrap_or(rest.len())]);
    if host.is_some_and(|host| host.contains('@')) {
        return Err("a URL is printed and logged, so it must hold no user and no password: use \
                    webhook.secret, which is sent as Authorization: Bearer"
            .into());
    }
    if host.is_none_or(|host| !is_host(&host.to_ascii_lowercase())) {
        let shown = if url.contains('@') { "this".into() } else { format!("{url:?}") };
        return Err(format!(
            "{shown} is no URL that a webhook can be sent to: write http://host[:port]/path, or \
             https:// instead"
        ));
    }
    if url.contains('#') {
        return Err("a fragment (# and what follows) is never sent: leave it out".into());
    }
    // RFC 3986, section 2; a client would refuse other characters at the first request.
    match url.chars().find(|c| !c.is_ascii_graphic() || "\"<>\\^`{|}".contains(*c)) {
        Some(c) => Err(format!("{c:?} can't stand in a URL: write it percent-encoded")),
        None => Ok(()),
    }
}

/// `host[:port]` in lower case.
fn is_host(text: &str) -> bool {
    // Digits of an IPv6 address stand in brackets and have colons of their own.
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bare {
        Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_name(host, b"-._"),
    };
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    host && port.is_none_or(|port| digits(port) && port.parse::<u16>().is_ok())
}

fn is_name(text: &str, more: &[u8]) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !text.is_empty() && text.bytes().all(|byte| plain(byte) || more.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_what_browsers_send() {
        for good in
            ["*", "null", "https://a.b", "http://a:1", "capacitor://localhost", "http://[::1]:80"]
        {
            assert!(is_origin(good), "{good}");
        }
        for bad in [
            "",
            "a",
            "https://",
            "://a",
            "https://a/",
            "https://A.b",
            "https://a:x",
            "http://a:99999",
            "https://a:",
            "https://*.a",
            "https://u@a",
            "http://[x]",
            "http://[::1",
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }

    #[test]
    fn webhooks_go_to_urls_with_a_host() {
        for good in [
            "http://a",
            "https://A.b:8443/hook?x=1&y=%20",
            "http://[::1]:80/",
            "http://a?b",
            "http://a/@b",
        ] {
            assert_eq!(webhook(good), Ok(()), "{good}");
        }
        for (bad, want) in [
            ("", "is no URL"),
            ("a.b/hook", "is no URL"),
            ("ftp://a", "is no URL"),
            ("http://", "is no URL"),
            ("http:///hook", "is no URL"),
            ("http://:80/", "is no URL"),
            ("http://a:99999", "is no URL"),
            ("http://a b/", "is no URL"),
            ("http://a/b c", "' ' can't stand"),
            ("http://a/é", "percent-encoded"),
            ("http://a/#b", "fragment"),
            ("https://u:hunter2@a/", "use webhook.secret"),
            ("ftp://u:hunter2@a/", "this is no URL"),
        ] {
            let wrong = webhook(bad).unwrap_err();
            assert!(wrong.contains(want) && !wrong.contains("hunter2"), "{bad}: {wrong}");
        }
    }
}
