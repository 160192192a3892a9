//! URLs of servers. Most callers use no TLS.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use url::ParseError;

/// A server and a path on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The value of the `Host` header.
    pub host: String,
    /// The address to connect to.
    pub address: SocketAddr,
    /// Path and query. Empty when the URL names none.
    pub path: String,
    /// True if the server speaks TLS at that address.
    pub is_tls: bool,
}

/// The schemes that a URL may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Schemes {
    /// `http` and `ws`.
    Plain,
    /// Also `https`.
    Admin,
    /// Also `https`, `wss`, `mqtt` and `mqtts`.
    All,
}

impl Schemes {
    fn has(self, scheme: &str) -> bool {
        match scheme {
            "http" | "ws" => true,
            "https" => self != Schemes::Plain,
            _ => self == Schemes::All && matches!(scheme, "wss" | "mqtt" | "mqtts"),
        }
    }
}

impl Url {
    /// Parses an `http://` (or `ws://`) URL and resolves its host. A host with a port is enough.
    ///
    /// # Errors
    /// If the scheme is another, or the host can't be resolved.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_of(text, None, Schemes::Plain)
    }

    /// As [`Url::parse`], also for `https://`. `port` is for a host without scheme and port.
    ///
    /// # Errors
    /// If the scheme is another, or the host can't be resolved.
    pub fn parse_admin(text: &str, port: u16) -> Result<Self> {
        Self::parse_of(text, Some(port), Schemes::Admin)
    }

    /// As [`Url::parse`], also for `https://`, `wss://`, `mqtt://` and `mqtts://`.
    ///
    /// # Errors
    /// If the scheme is another, or the host can't be resolved.
    pub fn parse_any(text: &str) -> Result<Self> {
        Self::parse_of(text, None, Schemes::All)
    }

    fn parse_of(text: &str, port: Option<u16>, schemes: Schemes) -> Result<Self> {
        let (base, path) = text.split_at(base_end(text));
        if let Err(reason) = check_path(path) {
            bail!("{}: {reason}", shown(text));
        }
        let mut url = Self::parse_base_of(base, port, schemes)?;
        url.path = match path {
            "/" => String::new(),
            path if path.starts_with('?') => format!("/{path}"),
            path => path.to_string(),
        };
        Ok(url)
    }

    /// As [`Url::parse_any`], for the part before the path. The path may be a template, so it stays as it is written.
    ///
    /// # Errors
    /// If the scheme is another, or the host can't be resolved.
    pub fn parse_any_base(base: &str) -> Result<Self> {
        Self::parse_base_of(base, None, Schemes::All)
    }

    fn parse_base_of(base: &str, port: Option<u16>, schemes: Schemes) -> Result<Self> {
        let is_tls = ["https://", "wss://", "mqtts://"].iter().any(|it| base.starts_with(it));
        ensure!(
            !is_tls || schemes != Schemes::Plain,
            "{}: this command does not speak TLS: name the http:// port behind it",
            shown(base)
        );
        let has_scheme = base.contains("://");
        let is_number = !base.is_empty() && base.bytes().all(|byte| byte.is_ascii_digit());
        ensure!(!is_number, "{base}: is this a port? Write the host, too: localhost:{base}");
        let parsed = match has_scheme {
            true => url::Url::parse(base),
            false => url::Url::parse(&format!("http://{base}")),
        };
        let mut url = match parsed {
            Ok(url) if schemes.has(url.scheme()) && !base.ends_with(':') => url,
            Err(ParseError::InvalidPort) => {
                bail!("{}: the port must be a number up to 65535", shown(base))
            }
            Err(_) if !base.is_ascii() => bail!(
                "{}: the host's name is not ASCII: write it as DNS does, in punycode (xn--...)",
                shown(base)
            ),
            _ => bail!("{}: write a URL like http://127.0.0.1:8000", shown(base)),
        };
        ensure!(
            url.username().is_empty() && url.password().is_none(),
            "a URL must not contain a user or password, because it is not sent: remove the part \
             before the @"
        );
        if !has_scheme && (base.ends_with(']') || !base.contains(':')) {
            let port = port.with_context(|| {
                format!(
                    "{base}: write a URL like http://127.0.0.1:8000, or host and port, as \
                     {base}:8000"
                )
            })?;
            let _ = url.set_port(Some(port));
        }
        let host = url.host_str().unwrap_or_default();
        let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let addresses = url
            .socket_addrs(|| default_port(url.scheme()))
            .with_context(|| format!("{base}: the host can't be looked up; is the name right?"))?;
        // `localhost` often resolves to ::1 first, where few servers listen.
        let v4 = addresses.iter().find(|address| address.is_ipv4());
        let address = v4.or(addresses.first()).copied();
        let address = address.with_context(|| format!("{base}: the host has no address"))?;
        Ok(Self { host, address, path: String::new(), is_tls })
    }

    /// Returns the host without its port, and an IPv6 address without its brackets.
    pub fn host_name(&self) -> &str {
        let name = match self.host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &self.host,
        };
        name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name)
    }
}

/// Returns the default port of a scheme that the URL standard does not know.
fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "mqtt" => Some(1_883),
        "mqtts" => Some(8_883),
        _ => None,
    }
}

/// Returns the begin of the path, the query or the fragment of a URL.
pub fn base_end(text: &str) -> usize {
    let next = |from: usize| text[from..].find(['/', '?', '#']).map_or(text.len(), |at| from + at);
    let first = next(0);
    // The slashes after a scheme begin no path.
    let is_scheme = text[..first].ends_with(':') && text[first..].starts_with("//");
    if is_scheme { next(first + 2) } else { first }
}

/// Checks that a request can have this path and query.
///
/// # Errors
/// The reason why it can't.
pub fn check_path(path: &str) -> Result<(), &'static str> {
    if path.contains('#') {
        return Err("a fragment (# and the text after it) is never sent: remove it");
    }
    match path.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        false => Err("spaces and non-ASCII characters must be written as %XX in a URL"),
    }
}

/// Returns a URL for an error: without a possible password.
fn shown(text: &str) -> &str {
    if text.contains('@') { "a URL with @ in it" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let url = Url::parse("http://127.0.0.1:8000").unwrap();
        assert_eq!((url.host.as_str(), url.path.as_str()), ("127.0.0.1:8000", ""));
        let url = Url::parse("ws://127.0.0.1/a?b=c").unwrap();
        assert_eq!((url.address.port(), url.path.as_str()), (80, "/a?b=c"));
        assert_eq!(Url::parse("http://[::1]:9?x").unwrap().path, "/?x");
        let url = Url::parse("http://127.0.0.1:80/{user}?a=b@c").unwrap();
        assert_eq!((url.host.as_str(), url.path.as_str()), ("127.0.0.1", "/{user}?a=b@c"));
    }

    #[test]
    fn a_host_with_a_port_is_enough() {
        for text in ["localhost:18000", "localhost:18000/", "http://LOCALHOST:18000"] {
            let url = Url::parse(text).unwrap();
            let parts = (url.host.as_str(), url.address.port(), url.path.as_str());
            assert_eq!(parts, ("localhost:18000", 18_000, ""), "{text}");
        }
        let url = Url::parse("[::1]:9/sse?of=http://a/").unwrap();
        assert_eq!((url.host.as_str(), url.path.as_str()), ("[::1]:9", "/sse?of=http://a/"));
        let with = |text| Url::parse_admin(text, 8_001).unwrap().host;
        assert_eq!(
            (with("127.0.0.1"), with("[::1]/")),
            ("127.0.0.1:8001".into(), "[::1]:8001".into())
        );
        assert_eq!(
            (with("127.0.0.1:80"), with("http://[::1]")),
            ("127.0.0.1".into(), "[::1]".into())
        );
    }

    #[test]
    fn schemes_with_tls_are_parsed_where_the_caller_speaks_it() {
        for (text, host, port, is_tls) in [
            ("https://127.0.0.1", "127.0.0.1", 443, true),
            ("https://127.0.0.1:443/x", "127.0.0.1", 443, true),
            ("wss://LOCALHOST:8443", "localhost:8443", 8_443, true),
            ("mqtts://127.0.0.1", "127.0.0.1", 8_883, true),
            ("mqtts://[::1]:443", "[::1]:443", 443, true),
            ("mqtt://127.0.0.1", "127.0.0.1", 1_883, false),
            ("http://127.0.0.1:1", "127.0.0.1:1", 1, false),
            ("127.0.0.1:1", "127.0.0.1:1", 1, false),
        ] {
            let url = Url::parse_any(text).unwrap();
            let parts = (url.host.as_str(), url.address.port(), url.is_tls);
            assert_eq!(parts, (host, port, is_tls), "{text}");
        }
        assert!(Url::parse("mqtts://a:1").is_err() && Url::parse("mqtt://127.0.0.1:1").is_err());
        assert!(Url::parse_any("ftp://a").is_err() && Url::parse_any("mqtts://").is_err());
    }

    #[test]
    fn the_name_of_a_host_has_no_port_and_no_brackets() {
        for (text, want) in [
            ("localhost:1", "localhost"),
            ("http://localhost", "localhost"),
            ("[::1]:1", "::1"),
            ("http://[::1]", "::1"),
            ("mqtts://127.0.0.1", "127.0.0.1"),
        ] {
            assert_eq!(Url::parse_any(text).unwrap().host_name(), want, "{text}");
        }
    }

    #[test]
    fn an_error_says_what_to_write_and_shows_no_password() {
        for (text, want) in [
            ("https://x", "TLS"),
            ("wss://x:1/y", "TLS"),
            ("x", "write a URL like http://127.0.0.1:8000, or host and port, as x:8000"),
            ("[::1]", "as [::1]:8000"),
            ("", "write a URL like"),
            ("ftp://x", "write a URL like"),
            ("http:/127.0.0.1:1", "write a URL like"),
            ("http://", "write a URL like"),
            ("http://127.0.0.1:", "write a URL like"),
            ("::1:8000", "write a URL like"),
            ("a b:1", "write a URL like"),
            ("8000", "Write the host, too: localhost:8000"),
            ("localhost:x", "the port must be a number"),
            ("localhost:65536", "the port must be a number"),
            ("münchen.example:80", "punycode"),
            ("http://127.0.0.1/a b", "%XX"),
            ("http://127.0.0.1/é", "%XX"),
            ("http://127.0.0.1/a#b", "fragment"),
            ("http://me:hunter2@127.0.0.1:1/", "remove the part before the @"),
            ("me:hunter2@127.0.0.1:1", "remove the part before the @"),
            ("https://me:hunter2@a/", "TLS"),
            ("http://me:hunter2@a b/", "write a URL like"),
            ("http://me:hunter2@a/#", "fragment"),
        ] {
            let error = format!("{:#}", Url::parse(text).unwrap_err());
            assert!(error.contains(want) && !error.contains("hunter2"), "{text}: {error}");
        }
    }
}
