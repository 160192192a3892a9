//! Parses HTTP/1.1 requests (RFC 9110 and 9112).

use std::mem::MaybeUninit;

use model::ErrorCode;

use super::Rejection;
use crate::query;

/// The most header lines a request may have.
pub const HEADERS_MAX: usize = 64;

/// The path of Phoenix long polls.
pub const LONGPOLL: &str = "/socket/longpoll";

/// The path of acknowledgements.
pub const ACK: &str = "/ack";

/// Bytes of an acknowledgement's body at most: two names, escaped at worst, and an id.
const ACK_BYTES_MAX: usize = 8 << 10;

/// The limits of a request's parts, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The whole head, including the empty line.
    pub head_bytes_max: usize,
    /// The target of the request line.
    pub uri_bytes_max: usize,
    /// The body.
    pub body_bytes_max: usize,
    /// The body of a request to [`LONGPOLL`], which may hold many messages.
    pub longpoll_body_bytes_max: usize,
}

/// The methods that Throng knows; a request with another gets 405 or 501.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Read.
    Get,
    /// As GET, without the body.
    Head,
    /// Publish.
    Post,
    /// The preflight of CORS.
    Options,
    /// Anything else.
    Other,
}

/// A request: the head and, if it has one, the whole body.
#[derive(Debug)]
pub struct HttpRequest<'a> {
    /// The method.
    pub method: Method,
    /// The target before `?`, not decoded.
    pub path: &'a str,
    /// The target after `?`, empty without one.
    pub query: &'a str,
    /// The minor version: HTTP/1.0 or HTTP/1.1.
    pub minor: u8,
    /// Whether the connection may stay open for another request.
    pub keep_alive: bool,
    /// `Connection` lists `upgrade` and `Upgrade` lists `websocket`.
    pub upgrade: bool,
    /// The body; empty without one.
    pub body: &'a [u8],
    headers: Vec<(&'a str, &'a [u8])>,
}

impl<'a> HttpRequest<'a> {
    /// The first value of a header that is UTF-8; the case of names doesn't matter.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.values(name).next()
    }

    /// All values of a header that are UTF-8.
    pub fn values<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'a str> + 's {
        self.bytes(name).filter_map(|value| std::str::from_utf8(value).ok()).map(str::trim_ascii)
    }

    /// All values of a header, without the white space around them.
    pub fn bytes<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'a [u8]> + 's {
        self.headers
            .iter()
            .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim_ascii())
    }
}

/// The state of parsing.
#[derive(Debug)]
pub enum Parsed<'a> {
    /// The head is not complete.
    Partial,
    /// The head is complete, and the body is not: the caller can reject the request before its body comes.
    Head {
        /// The request, without its body.
        request: HttpRequest<'a>,
        /// Head and body together, in bytes.
        bytes: usize,
        /// The peer waits for `100 Continue` before it sends the body.
        expects_continue: bool,
    },
    /// One request, and how many bytes it took.
    Whole(HttpRequest<'a>, usize),
}

/// Parses one request from the start of `bytes`. The result doesn't depend on how the bytes were split on the way
/// here.
pub fn parse<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Parsed<'a>, Rejection> {
    check_line(bytes, limits)?;
    // Most requests have few header lines, and unused slots need no initialization.
    let mut slots = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut []);
    // Bytes after the largest possible head must not change the result.
    let window = &bytes[..bytes.len().min(limits.head_bytes_max)];
    let head_bytes = match head.parse_with_uninit_headers(window, &mut slots) {
        Ok(httparse::Status::Complete(head_bytes)) => head_bytes,
        Ok(httparse::Status::Partial) if bytes.len() < limits.head_bytes_max => {
            return Ok(Parsed::Partial);
        }
        Ok(httparse::Status::Partial) => {
            let message = format!("the request head has more than {} bytes", limits.head_bytes_max);
            return Err(Rejection::new(ErrorCode::HeadTooLarge, message));
        }
        Err(error) => return Err(head_rejection(error)),
    };
    let (Some(method), Some(target), Some(minor)) = (head.method, head.path, head.version) else {
        return Err(Rejection::new(ErrorCode::BadRequest, "the request line is incomplete"));
    };
    let headers = head.headers.iter().map(|header| (header.name, header.value)).collect();
    let mut request = request(method, target, minor, headers)?;
    let body_bytes = body_bytes(&request, limits)?;
    let Some(body) = bytes[head_bytes..].get(..body_bytes) else {
        let expects_continue = request.minor == 1
            && request.header("expect").is_some_and(|v| v.eq_ignore_ascii_case("100-continue"));
        return Ok(Parsed::Head { request, bytes: head_bytes + body_bytes, expects_continue });
    };
    request.body = body;
    Ok(Parsed::Whole(request, head_bytes + body_bytes))
}

/// Rejects a request line as soon as it is too long, before the head is complete.
fn check_line(bytes: &[u8], limits: &Limits) -> Result<(), Rejection> {
    // RFC 9112, section 2.2: a server ignores an empty line before the request line.
    let start = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let line = &bytes[start..];
    let line = &line[..memchr::memchr(b'\n', line).unwrap_or(line.len())];
    let Some(from) = memchr::memchr(b' ', line) else {
        // No registered method has over 20 letters.
        if line.len() > 64 {
            return Err(Rejection::new(ErrorCode::BadRequest, "this is not an HTTP request line"));
        }
        return Ok(());
    };
    let target = &line[from + 1..];
    let target = &target[..memchr::memchr(b' ', target).unwrap_or(target.len())];
    if target.len() > limits.uri_bytes_max {
        let message = format!("the request target has more than {} bytes", limits.uri_bytes_max);
        return Err(Rejection::new(ErrorCode::UriTooLong, message));
    }
    Ok(())
}

fn head_rejection(error: httparse::Error) -> Rejection {
    match error {
        httparse::Error::TooManyHeaders => Rejection::new(
            ErrorCode::TooManyHeaders,
            format!("the request has more than {HEADERS_MAX} header lines"),
        ),
        httparse::Error::Version => Rejection::with_status(
            505,
            ErrorCode::BadVersion,
            "this server speaks only HTTP/1.1 and HTTP/1.0",
        ),
        httparse::Error::HeaderName
        | httparse::Error::HeaderValue
        | httparse::Error::NewLine
        | httparse::Error::Status
        | httparse::Error::Token => {
            let message = format!("the request head is not valid HTTP: {error}");
            Rejection::new(ErrorCode::BadRequest, message)
        }
    }
}

fn request<'a>(
    method: &'a str,
    target: &'a str,
    minor: u8,
    headers: Vec<(&'a str, &'a [u8])>,
) -> Result<HttpRequest<'a>, Rejection> {
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "OPTIONS" => Method::Options,
        _ => Method::Other,
    };
    // The absolute form that proxies use (RFC 9112, section 3.2.2).
    let absolute = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    let target = match absolute {
        Some(rest) => rest.find(['/', '?']).map_or("/", |at| &rest[at..]),
        None => target,
    };
    let target = query::split_once(target, b'#').map_or(target, |(before, _)| before);
    let (path, query) = query::split_once(target, b'?').unwrap_or((target, ""));
    let mut request = HttpRequest {
        method,
        path,
        query,
        minor,
        keep_alive: false,
        upgrade: false,
        body: &[],
        headers,
    };
    let hosts = request.bytes("host").count();
    if hosts > 1 || (hosts == 0 && minor == 1) {
        let message = "an HTTP/1.1 request must have exactly one Host header";
        return Err(Rejection::new(ErrorCode::BadHost, message));
    }
    check_text(&request.headers)?;
    let lists = |name: &str, token: &str| {
        request
            .values(name)
            .any(|value| value.split(',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token)))
    };
    let close = lists("connection", "close");
    let keep_alive = if minor == 1 { !close } else { !close && lists("connection", "keep-alive") };
    let upgrade = lists("connection", "upgrade") && lists("upgrade", "websocket");
    request.keep_alive = keep_alive;
    request.upgrade = upgrade;
    Ok(request)
}

/// Headers that decide what a request is. If one value is not UTF-8, the server must not use another value instead: a
/// proxy in front may have read the first.
const DECIDING: [&str; 8] = [
    "host",
    "connection",
    "upgrade",
    "expect",
    "content-type",
    "sec-websocket-version",
    "sec-websocket-key",
    crate::phoenix::longpoll::TOKEN_HEADER,
];

/// Rejects a request with a deciding header that is not UTF-8. Other headers are read as bytes (`Origin`,
/// `Content-Length`), count only with a value that we know (`Sec-WebSocket-Protocol` and `-Extensions`), or may be
/// another server's (`Last-Event-ID`).
fn check_text(headers: &[(&str, &[u8])]) -> Result<(), Rejection> {
    let decides = |name: &str| DECIDING.iter().any(|it| it.eq_ignore_ascii_case(name));
    let invalid =
        headers.iter().find(|(name, value)| std::str::from_utf8(value).is_err() && decides(name));
    match invalid {
        None => Ok(()),
        Some((name, _)) => {
            Err(Rejection::new(ErrorCode::BadHeader, format!("the header {name} is not UTF-8")))
        }
    }
}

/// Returns the size of the body by the head. Two lengths are an error: a proxy in front and this server must agree on
/// where the body ends (request smuggling).
fn body_bytes(request: &HttpRequest<'_>, limits: &Limits) -> Result<usize, Rejection> {
    if request.bytes("transfer-encoding").next().is_some() {
        let message = "send the body with a Content-Length: chunked requests are not supported";
        return Err(Rejection::new(ErrorCode::LengthRequired, message));
    }
    let mut lengths = request.bytes("content-length");
    let Some(first) = lengths.next() else {
        return Ok(0);
    };
    let text = std::str::from_utf8(first).unwrap_or("");
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || lengths.any(|other| other != first) {
        let message = "Content-Length must be one decimal number";
        return Err(Rejection::new(ErrorCode::BadContentLength, message));
    }
    let bytes_max = match request.path {
        LONGPOLL => limits.longpoll_body_bytes_max,
        ACK => limits.body_bytes_max.min(ACK_BYTES_MAX),
        _ => limits.body_bytes_max,
    };
    match text.parse::<usize>() {
        Ok(bytes) if bytes <= bytes_max => Ok(bytes),
        _ => {
            let message = format!("the body has more than {bytes_max} bytes");
            Err(Rejection::new(ErrorCode::BodyTooLarge, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        head_bytes_max: 512,
        uri_bytes_max: 64,
        body_bytes_max: 100,
        longpoll_body_bytes_max: 200,
    };

    fn status(bytes: &[u8]) -> u16 {
        match parse(bytes, &LIMITS) {
            Ok(Parsed::Partial | Parsed::Head { expects_continue: false, .. }) => 0,
            Ok(Parsed::Head { expects_continue: true, .. }) => 100,
            Ok(Parsed::Whole(..)) => 200,
            Err(rejection) => rejection.status,
        }
    }

    #[test]
    fn a_request_is_read_with_what_matters() {
        let bytes = b"POST /publish?topic=a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET";
        let Ok(Parsed::Whole(request, consumed)) = parse(bytes, &LIMITS) else { panic!() };
        assert_eq!(consumed, bytes.len() - 3);
        assert_eq!(
            (request.method, request.path, request.query),
            (Method::Post, "/publish", "topic=a")
        );
        assert_eq!(request.body, b"abc");
        assert!(request.keep_alive);
    }

    #[test]
    fn bytes_that_are_no_text_are_not_passed_over() {
        let status = |head: &[u8]| status(&[b"GET / HTTP/1.1\r\n", head, b"\r\n"].concat());
        for (head, want) in [
            (&b"Host: \xff\r\nHost: a\r\n"[..], 400),
            (b"Host: a\r\nHost: \xff\r\n", 400),
            (b"Host: \xff\r\n", 400),
            (b"Host: a\r\nConnection: \xff\r\nConnection: close\r\n", 400),
            (b"Host: a\r\nUPGRADE: \xffwebsocket\r\n", 400),
            (b"Host: a\r\nContent-Length: \xff\r\nContent-Length: 0\r\n", 400),
            (b"Host: a\r\nContent-Length: 0\r\nContent-Length: \xff\r\n", 400),
            (b"Host: a\r\nTransfer-Encoding: \xff\r\n", 411),
            (b"Host: a\r\nContent-Type: \xff\r\n", 400),
            (b"Host: a\r\nX-Phoenix-Longpoll-Token: \xff\r\n", 400),
            // Headers that the server doesn't read may contain anything.
            (b"Host: a\r\nCookie: caf\xe9\r\nUser-Agent: \xff\r\n", 200),
            (b"Host: a\r\nLast-Event-ID: \xff\r\n", 200),
            (b"Host: b\xc3\xbccher.example\r\n", 200),
        ] {
            assert_eq!(status(head), want, "{}", String::from_utf8_lossy(head));
        }
        let old = |head: &str| self::status(format!("GET / HTTP/1.0\r\n{head}\r\n").as_bytes());
        assert_eq!((old(""), old("Host: a\r\n"), old("Host: a\r\nHost: b\r\n")), (200, 200, 400));
    }

    #[test]
    fn the_connection_header_decides_who_stays() {
        let keep = |text: &str| match parse(text.as_bytes(), &LIMITS) {
            Ok(Parsed::Whole(request, _)) => (request.keep_alive, request.upgrade),
            other => panic!("{other:?}"),
        };
        assert_eq!(keep("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), (true, false));
        assert_eq!(
            keep("GET / HTTP/1.1\r\nHost: x\r\nConnection: x, Close\r\n\r\n"),
            (false, false)
        );
        assert_eq!(keep("GET / HTTP/1.0\r\n\r\n"), (false, false));
        assert_eq!(keep("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), (true, false));
        let upgrade = "GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\r\n";
        assert_eq!(keep(upgrade), (true, true));
    }

    #[test]
    fn each_invalid_request_has_its_status() {
        let long = "x".repeat(600);
        for (text, want) in [
            ("GET / HTTP/1.1\r\n\r\n".to_string(), 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".into(), 400),
            (format!("GET /{long}"), 414),
            (format!("GET / HTTP/1.1\r\nHost: {long}\r\n\r\n"), 431),
            (format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(70)), 431),
            ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(), 505),
            ("GET / HTTP/1.1\r\nHost\r\n\r\n".into(), 400),
            ("\u{16}\u{3}\u{1}".into(), 400),
            (long.clone(), 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n".into(), 413),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n".into(), 400),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"
                    .into(),
                400,
            ),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".into(), 411),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
                    .into(),
                100,
            ),
            ("GET / HTTP/1.1\r\nHost: a\r\n".into(), 0),
            ("GET http://h/p?q HTTP/1.1\r\nHost: a\r\n\r\n".into(), 200),
        ] {
            assert_eq!(status(text.as_bytes()), want, "{text}");
        }
    }

    proptest::proptest! {
        /// However the bytes are split, a request is either served or rejected. The rejection may name another rule,
        /// depending on which was first.
        #[test]
        fn any_split_gives_the_same_meaning(
            mut text in "(GET|POST|HEAD) /[a-z?=&%]{0,80} HTTP/1.[01]\r\n(Host: h\r\n){0,2}(Content-Length: [0-9]{1,3}\r\n)?([A-Za-z-]{1,9}: [ -~]{0,40}\r\n){0,8}\r\n[a-z]{0,40}",
            noise in proptest::collection::vec((0usize..400, 0u8..=255), 0..3),
        ) {
            let mut bytes = std::mem::take(&mut text).into_bytes();
            for (at, byte) in noise {
                if let Some(slot) = bytes.get_mut(at) { *slot = byte; }
            }
            let whole = status(&bytes);
            let first = (0..=bytes.len()).map(|end| status(&bytes[..end])).find(|s| *s != 0 && *s != 100);
            let outcome = |status: u16| match status { 0 | 100 => "more", 200 => "served", _ => "refused" };
            proptest::prop_assert_eq!(outcome(first.unwrap_or(0)), outcome(whole));
        }

        #[test]
        fn noise_never_panics(bytes: Vec<u8>) {
            status(&bytes);
        }
    }
}
