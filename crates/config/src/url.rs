//! Checks of origins and of URLs of webhooks.

/// True for `*` and for what a browser sends as `Origin` (RFC 6454, section 6.2), including `null`.
/// Origins are compared as texts, so a text that no browser sends would never match.
pub(crate) fn is_origin(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text == "*" || text == "null";
    };
    is_name(scheme, b"+-.") && is_host(rest)
}

/// The longest URL in bytes. The HTTP client rejects longer ones.
const URL_BYTES_MAX: usize = 65_534;

/// The longest host name, and the longest label between dots (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: (usize, usize) = (253, 63);

/// Checks that requests can be sent to this URL. The error does not repeat a text that may contain
/// a password.
pub(crate) fn webhook(url: &str) -> Result<(), String> {
    let rest = url.strip_prefix("http://").or(url.strip_prefix("https://"));
    let authority = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    if authority.is_some_and(|authority| authority.contains('@')) {
        return Err("a URL is printed and logged, so it must hold no user and no password: use \
                    webhook.secret, which is sent as Authorization: Bearer"
            .into());
    }
    if url.contains('?') {
        return Err("a URL is printed and logged, so it must hold no query (? and what follows), \
                    where secrets often are: use webhook.secret, which is sent as \
                    Authorization: Bearer, and put the rest into the path"
            .into());
    }
    let shown = if url.contains(['@', '#']) { "this".into() } else { format!("{url:?}") };
    if authority.is_some_and(|authority| !authority.is_ascii()) {
        return Err(format!(
            "{shown} has a host name that is not ASCII: write it as DNS does, in punycode \
             (xn--...)"
        ));
    }
    if authority.is_none_or(|authority| !is_reachable(&authority.to_ascii_lowercase())) {
        return Err(format!(
            "{shown} is no URL that a webhook can be sent to: write http://host[:port]/path, or \
             https:// instead"
        ));
    }
    if url.contains('#') {
        return Err("a fragment (# and what follows) is never sent: leave it out".into());
    }
    if url.len() > URL_BYTES_MAX {
        return Err(format!("it has {} bytes, more than {URL_BYTES_MAX}", url.len()));
    }
    // RFC 3986, section 2. The HTTP client would reject other characters at the first request.
    match url.chars().find(|c| !c.is_ascii_graphic() || "\"<>\\^`{|}".contains(*c)) {
        Some(c) => Err(format!("{c:?} can't stand in a URL: write it percent-encoded")),
        None => Ok(()),
    }
}

/// Whether a `host[:port]` in lower case is an address or a name that DNS could resolve.
fn is_reachable(text: &str) -> bool {
    let name = text.split(':').next().unwrap_or_default();
    let name = name.strip_suffix('.').unwrap_or(name);
    let (name_max, label_max) = NAME_BYTES_MAX;
    let labels = name.split('.').all(|label| (1..=label_max).contains(&label.len()));
    let known = text.starts_with('[') || (labels && name.len() <= name_max);
    known && is_host(text)
}

/// True for `host[:port]` in lower case.
fn is_host(text: &str) -> bool {
    // An IPv6 address is in brackets and contains colons itself.
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
        for valid in
            ["*", "null", "https://a.b", "http://a:1", "capacitor://localhost", "http://[::1]:80"]
        {
            assert!(is_origin(valid), "{valid}");
        }
        for invalid in [
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
            assert!(!is_origin(invalid), "{invalid}");
        }
    }

    #[test]
    fn webhook_urls_need_a_host() {
        for valid in [
            "http://a",
            "https://A.b:8443/hook/x=1&y=%20",
            "http://[::1]:80/",
            "http://[::1]",
            "http://[::ffff:1.2.3.4]/",
            "http://a.b.:80",
            "http://xn--mnchen-3ya.example/",
            "http://a/@b",
        ] {
            assert_eq!(webhook(valid), Ok(()), "{valid}");
        }
        let label = "a".repeat(63);
        let long = [label.as_str(); 4].join(".");
        for valid in [format!("http://{label}.b/"), format!("http://{}/", &long[..253])] {
            assert_eq!(webhook(&valid), Ok(()), "{valid}");
        }
        let path = format!("http://a/{}", "b".repeat(URL_BYTES_MAX - 9));
        assert_eq!(webhook(&path), Ok(()));
        assert!(webhook(&format!("{path}b")).unwrap_err().contains("65535 bytes, more than"));
        for invalid in [format!("http://a{label}.b/"), format!("http://{long}/")] {
            assert!(webhook(&invalid).unwrap_err().contains("is no URL"), "{invalid}");
        }
        for (invalid, want) in [
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
            ("http://a..b/", "is no URL"),
            ("http://.a/", "is no URL"),
            ("http://./", "is no URL"),
            ("http://[::1/", "is no URL"),
            ("http://a%41/", "is no URL"),
            ("http://münchen.example/x", "punycode"),
            ("http://münchen.example/#hunter2", "this has a host name"),
            ("http://a?key=hunter2", "must hold no query"),
            ("http://a b/?key=hunter2", "must hold no query"),
            ("ftp://a/b?key=hunter2", "must hold no query"),
            ("ftp://a/b#hunter2", "this is no URL"),
            ("https://u:hunter2@a/?key=hunter2", "must hold no user"),
            ("https://u:hunt/hunter2@a/", "this is no URL"),
            ("http://a/#b", "fragment"),
            ("https://u:hunter2@a/", "use webhook.secret"),
            ("ftp://u:hunter2@a/", "this is no URL"),
        ] {
            let error = webhook(invalid).unwrap_err();
            assert!(error.contains(want) && !error.contains("hunter2"), "{invalid}: {error}");
        }
    }
}
