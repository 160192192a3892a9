//! Checks of origins, and of URLs of webhooks.

use url::{Host, Url};

/// Returns true for `*` and for texts that a browser sends as `Origin` (RFC 6454, section 6.2), including `null`.
/// Origins are compared as texts, so any other text would never match.
pub(crate) fn is_origin(text: &str) -> bool {
    if text == "*" || text == "null" {
        return true;
    }
    let Ok(url) = Url::parse(text) else { return false };
    let Some(host) = url.host_str() else { return false };
    let origin = format!("{}://{host}", url.scheme());
    // Browsers omit the scheme's default port.
    let with_port = url.port().map(|port| format!("{origin}:{port}"));
    let is_host = match url.host() {
        Some(Host::Domain(name)) => is_name(name),
        host => host.is_some(),
    };
    is_host && (text == origin || with_port.is_some_and(|with_port| text == with_port))
}

/// Bytes of a URL, at most. The HTTP client rejects longer ones.
const URL_BYTES_MAX: usize = 65_534;

/// Bytes of a host name and of a label between dots, at most (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: (usize, usize) = (253, 63);

/// Checks that spans can be sent to this URL.
pub(crate) fn collector(text: &str) -> Result<(), String> {
    webhook(text).map_err(|_| {
        "this is not the URL of a collector: write http://host[:port]/v1/traces, or https:// \
         instead, without a user, a password, a query or a fragment"
            .into()
    })
}

/// Checks that requests can be sent to this URL. The error does not repeat a text that may contain a password.
pub(crate) fn webhook(text: &str) -> Result<(), String> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    if url.as_ref().is_some_and(|url| !url.username().is_empty() || url.password().is_some()) {
        return Err(
            "a URL is printed and logged, so it must contain no user and no password: use \
                    webhook.secret, which is sent as Authorization: Bearer"
                .into(),
        );
    }
    if text.contains('?') {
        return Err(
            "a URL is printed and logged, so it must contain no query (? and what follows), \
                    where secrets often are: use webhook.secret, which is sent as \
                    Authorization: Bearer, and put the rest into the path"
                .into(),
        );
    }
    let shown = if text.contains(['@', '#']) { "this".into() } else { format!("{text:?}") };
    // The written text: the parser is lenient, but the HTTP client is not.
    let authority = text.split_once("://").and_then(|(_, rest)| rest.split(['/', '#']).next());
    if authority.is_some_and(|authority| !authority.is_ascii()) {
        return Err(format!(
            "{shown} has a host name that is not ASCII: write it as DNS does, in punycode \
             (xn--...)"
        ));
    }
    if !url.zip(authority).is_some_and(|(url, authority)| is_reachable(&url, authority)) {
        return Err(format!(
            "{shown} is not a valid URL of a webhook: write http://host[:port]/path, or \
             https:// instead"
        ));
    }
    if text.contains('#') {
        return Err("a fragment (# and what follows) is never sent: leave it out".into());
    }
    if text.len() > URL_BYTES_MAX {
        return Err(format!("it has {} bytes, more than {URL_BYTES_MAX}", text.len()));
    }
    // RFC 3986, section 2. The HTTP client would reject other characters at the first request.
    match text.chars().find(|c| !c.is_ascii_graphic() || "\"<>\\^`{|}".contains(*c)) {
        Some(c) => Err(format!("{c:?} is not allowed in a URL: write it percent-encoded")),
        None => Ok(()),
    }
}

/// Checks that the host of the URL is an address, or a name that DNS could resolve, and that the authority contains
/// it literally: not encoded, not after more slashes.
fn is_reachable(url: &Url, authority: &str) -> bool {
    let is_written = |host: &str| {
        let written = authority.get(..host.len());
        written.is_some_and(|written| written.eq_ignore_ascii_case(host))
    };
    let known = match url.host() {
        Some(Host::Domain(name)) => {
            let (name_max, label_max) = NAME_BYTES_MAX;
            let bare = name.strip_suffix('.').unwrap_or(name);
            let labels = bare.split('.').all(|label| (1..=label_max).contains(&label.len()));
            labels && bare.len() <= name_max && is_name(name) && is_written(name)
        }
        Some(Host::Ipv4(address)) => is_written(&address.to_string()),
        // One address has many forms.
        Some(Host::Ipv6(_)) => authority.starts_with('['),
        None => false,
    };
    known && !authority.ends_with(':')
}

/// Checks that a host name has only characters that are in use.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !name.is_empty() && name.bytes().all(|byte| plain(byte) || b"-._".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_what_browsers_send() {
        for valid in
            ["*", "null", "https://a.b", "http://a:1", "capacitor://localhost", "http://[::1]:81"]
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
            "https://a:443",
            "http://[::1]:80",
            "https://*.a",
            "https://u@a",
            "http://[x]",
            "http://[::1",
            "http://1",
            "http://[::ABCD]",
            "data:x",
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
            "HTTP://10.0.0.1:08000/",
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
            assert!(webhook(&invalid).unwrap_err().contains("is not a valid URL"), "{invalid}");
        }
        for (invalid, want) in [
            ("", "is not a valid URL"),
            ("a.b/hook", "is not a valid URL"),
            ("ftp://a", "is not a valid URL"),
            ("http://", "is not a valid URL"),
            ("http:///hook", "is not a valid URL"),
            ("http:/hook", "is not a valid URL"),
            ("http:hook", "is not a valid URL"),
            ("http:\\\\a/", "is not a valid URL"),
            (" http://a", "' ' is not allowed"),
            ("http://a\t.b/", "is not a valid URL"),
            ("http://a/\tb", "not allowed"),
            ("http://a\\b", "not allowed"),
            ("http://1/", "is not a valid URL"),
            ("http://0x7f.1/", "is not a valid URL"),
            ("http://a:", "is not a valid URL"),
            ("http://a:/b", "is not a valid URL"),
            ("http://:80/", "is not a valid URL"),
            ("http://a:99999", "is not a valid URL"),
            ("http://a b/", "is not a valid URL"),
            ("http://a/b c", "' ' is not allowed"),
            ("http://a/é", "percent-encoded"),
            ("http://a..b/", "is not a valid URL"),
            ("http://.a/", "is not a valid URL"),
            ("http://./", "is not a valid URL"),
            ("http://[::1/", "is not a valid URL"),
            ("http://a%41/", "is not a valid URL"),
            ("http://münchen.example/x", "punycode"),
            ("http://münchen.example/#hunter2", "this has a host name"),
            ("http://a?key=hunter2", "must contain no query"),
            ("http://a b/?key=hunter2", "must contain no query"),
            ("ftp://a/b?key=hunter2", "must contain no query"),
            ("ftp://a/b#hunter2", "this is not a valid URL of a webhook"),
            ("https://u:hunter2@a/?key=hunter2", "must contain no user"),
            ("https://u:hunt/hunter2@a/", "this is not a valid URL of a webhook"),
            ("http://a/#b", "fragment"),
            ("https://u:hunter2@a/", "use webhook.secret"),
            ("ftp://u:hunter2@a/", "this is not a valid URL of a webhook"),
        ] {
            let error = webhook(invalid).unwrap_err();
            assert!(error.contains(want) && !error.contains("hunter2"), "{invalid}: {error}");
        }
    }
}
