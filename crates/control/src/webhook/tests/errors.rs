//! Responses that are errors, and their log lines.

use std::io::Write;

use super::*;

#[tokio::test]
async fn replies_that_are_none_become_errors() {
    let huge = "x".repeat(3 << 20);
    let moved = || (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, "/moved")]);
    for (reply, kind) in [
        (StatusCode::INTERNAL_SERVER_ERROR.into_response(), ErrorKind::Status),
        (StatusCode::NOT_FOUND.into_response(), ErrorKind::Status),
        (moved().into_response(), ErrorKind::Status),
        ("hello".into_response(), ErrorKind::Body),
        (r#"{"replies":[]}"#.into_response(), ErrorKind::Body),
        (r#"{"replies":[{},{}]}"#.into_response(), ErrorKind::Body),
        (r#"{"replies":[{"status":"maybe"}]}"#.into_response(), ErrorKind::Body),
        (huge.into_response(), ErrorKind::Body),
    ] {
        let reply = Mutex::new(Some(reply));
        let app = app(OPEN, move |_| reply.lock().unwrap().take().unwrap()).await;
        bench(1, settings(&app.url)).fails(kind).await;
    }
}

#[tokio::test]
async fn a_reply_without_a_body_is_ok() {
    for status in [StatusCode::OK, StatusCode::NO_CONTENT] {
        let app = app(OPEN, move |_| status.into_response()).await;
        let mut bench = bench(1, settings(&app.url));
        bench.hook_request(1, 1).unwrap();
        assert_eq!(bench.response().await, (1, true, "{}".into()));
    }
}

#[tokio::test]
async fn an_error_of_the_application_is_passed_on() {
    let body = r#"{"replies":[{"status":"error","response":{"reason": "muted"}}]}"#;
    let app = app(OPEN, move |_| body.into_response()).await;
    let mut bench = bench(1, settings(&app.url));
    bench.hook_request(1, 1).unwrap();
    assert_eq!(bench.response().await, (1, false, r#"{"reason":"muted"}"#.into()));
    assert_eq!(bench.dispatcher.stats().error, 1);
}

#[tokio::test]
async fn connections_that_break_and_servers_of_other_kinds_are_errors() {
    for (reply, kind) in [
        (&b""[..], ErrorKind::Unreachable),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", ErrorKind::Unreachable),
        (b"220 mail.example ESMTP\r\n", ErrorKind::Body),
    ] {
        let url = raw_app(reply, true).await;
        bench(1, settings(&url)).fails(kind).await;
    }
    let url = raw_app(b"no TLS here", true).await.replace("http:", "https:");
    bench(1, settings(&url)).fails(ErrorKind::Unreachable).await;
}

#[tokio::test]
async fn an_absent_application_sends_no_response() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    for url in [&url, "ftp://127.0.0.1/", "/hook", "http://[", ""] {
        bench(1, settings(url)).fails(ErrorKind::Unreachable).await;
    }
    bench(1, Settings { url: None, ..settings("") }).fails(ErrorKind::Nowhere).await;
    let secret = Some("two\nlines".into());
    bench(1, Settings { secret, ..settings(&url) }).fails(ErrorKind::Unreachable).await;
}

#[tokio::test]
async fn what_fails_in_passing_is_sent_again_with_the_same_id() {
    let responses = AtomicUsize::new(0);
    let app = app(OPEN, move |events| match responses.fetch_add(1, Ordering::Relaxed) {
        0 => StatusCode::BAD_GATEWAY.into_response(),
        1 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        2 => echo(events),
        // A 500 is a response of the application: the request is not sent again.
        3 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        _ => StatusCode::GATEWAY_TIMEOUT.into_response(),
    })
    .await;
    let mut bench = bench(1, settings(&app.url));
    bench.hook_request(1, 7).unwrap();
    assert_eq!(bench.response().await, (7, true, "7".into()));
    let ids: Vec<_> = {
        let seen = app.seen.lock().unwrap();
        seen.iter().map(|it| it.headers["webhook-id"].clone()).collect()
    };
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    // One attempt with 500, three with 504, and one while the URL is down.
    for requests in [4, 7, 8] {
        bench.hook_request(1, 8).unwrap();
        assert!(!bench.response().await.1);
        assert_eq!(app.seen.lock().unwrap().len(), requests);
    }
}

/// Collects log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn logs_name_the_cause_and_no_secrets() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone());
    // With a single subscriber, tracing disables a call site for all threads if a thread without a subscriber, such as
    // another test's, reaches it first.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let app = app(OPEN, |_| StatusCode::BAD_GATEWAY.into_response()).await;
    let url = format!("{}?key=query-s3cret", app.url);
    let with_secret = Settings { secret: Some(SECRET.into()), ..settings(&url) };
    let printed = format!("{with_secret:?}");
    assert!(printed.contains(&app.url) && !printed.contains("s3cret"), "{printed}");
    let mut bench = bench(1, with_secret);
    for _ in 0..10 {
        bench.fails(ErrorKind::Status).await;
    }
    let bad = Some(format!("{SECRET}\n"));
    bench.dispatcher.set(Settings { secret: bad, ..settings(&url) });
    bench.fails(ErrorKind::Unreachable).await;
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("WARN") && text.contains("502 Bad Gateway"), "{text}");
    assert!(text.contains(&app.url) && text.contains("the secret can't be sent"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    let warnings = text.lines().filter(|line| line.contains("WARN") && line.contains("502"));
    assert!((1..5).contains(&warnings.count()), "{text}");
    assert!(text.contains("webhook{url=") && text.contains("kind=\"status\""), "{text}");
}
