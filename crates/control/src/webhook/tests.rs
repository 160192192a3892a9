//! The dispatcher against an application that is there, slow, wrong, or not there.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use shard::{Ask, AskKind, Full, Verdict, Webhook};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use wire::{ConnectionId, Data};

use super::*;

const SECRET: &str = "s3cret-of-the-hook";

/// A question of connection `0-slot-3` whose answer nobody hears.
pub fn ask(slot: u32) -> Ask {
    Ask {
        url: None,
        kind: AskKind::Event,
        topic: "room:1".into(),
        event: "say".into(),
        payload: Data::Json("{}".into()),
        users: vec!["alice".into(), "bob".into()],
        connection: ConnectionId { shard: 0, slot, serial: 3 },
        reply: Box::new(|_| ()),
    }
}

/// A request that came in.
struct Seen {
    headers: HeaderMap,
    events: Vec<Value>,
}

impl Seen {
    fn payloads(&self) -> Vec<Value> {
        self.events.iter().map(|event| event["payload"].clone()).collect()
    }
}

type Answer = dyn Fn(&[Value]) -> Response + Send + Sync;

/// An application that keeps what it is asked, and answers as it is told when the gate lets it.
struct App {
    url: String,
    seen: Mutex<Vec<Seen>>,
    gate: Semaphore,
    under_way: AtomicUsize,
    under_way_max: AtomicUsize,
    answer: Box<Answer>,
}

async fn app(
    gate: usize,
    answer: impl Fn(&[Value]) -> Response + Send + Sync + 'static,
) -> Arc<App> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let app = Arc::new(App {
        url: format!("http://{}/hook", listener.local_addr().unwrap()),
        seen: Mutex::default(),
        gate: Semaphore::new(gate),
        under_way: AtomicUsize::new(0),
        under_way_max: AtomicUsize::new(0),
        answer: Box::new(answer),
    });
    let moved = || async { echo(&[Value::Null]) };
    let router = Router::new().route("/hook", post(hook)).route("/moved", get(moved).post(moved));
    let router = router.with_state(app.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    app
}

async fn hook(State(app): State<Arc<App>>, headers: HeaderMap, body: String) -> Response {
    let mut body: Value = serde_json::from_str(&body).unwrap();
    let Value::Array(events) = body["events"].take() else { panic!("no events") };
    let answer = (app.answer)(&events);
    let under_way = app.under_way.fetch_add(1, Ordering::Relaxed) + 1;
    app.under_way_max.fetch_max(under_way, Ordering::Relaxed);
    app.seen.lock().unwrap().push(Seen { headers, events });
    app.gate.acquire().await.unwrap().forget();
    app.under_way.fetch_sub(1, Ordering::Relaxed);
    answer
}

impl App {
    /// How many events each request had, as soon as there were so many requests.
    async fn sizes(&self, requests: usize) -> Vec<usize> {
        for _ in 0..1000 {
            let sizes: Vec<_> = self.seen.lock().unwrap().iter().map(|s| s.events.len()).collect();
            if sizes.len() >= requests {
                return sizes;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the application was not asked {requests} times");
    }
}

/// Replies that say which event they are for.
fn echo(events: &[Value]) -> Response {
    let replies = events.iter().map(|event| json!({"response": event["payload"]}));
    json!({"replies": replies.collect::<Vec<_>>()}).to_string().into_response()
}

const OPEN: usize = Semaphore::MAX_PERMITS;

/// A dispatcher at work, and who asks it.
struct Bench {
    dispatcher: Arc<Dispatcher>,
    worker: JoinHandle<()>,
    sender: mpsc::UnboundedSender<(u32, Verdict)>,
    told: mpsc::UnboundedReceiver<(u32, Verdict)>,
}

fn settings(url: &str) -> Settings {
    Settings {
        url: Some(url.into()),
        secret: None,
        timeout: Duration::from_secs(60),
        batch_events_max: 100,
    }
}

/// One URL may have half of three quarters of these events.
fn fixed(queue_events_max: usize, requests_max: usize) -> Fixed {
    let queue_events_per_url_max = queue_events_max;
    Fixed { queue_events_max, queue_events_per_url_max, queue_bytes_max: 2 << 20, requests_max }
}

fn bench(requests_max: usize, settings: Settings) -> Bench {
    let fixed = fixed(2666, requests_max);
    let (dispatcher, worker) = Dispatcher::new(fixed, settings);
    let (sender, told) = mpsc::unbounded_channel();
    Bench { dispatcher, worker: tokio::spawn(worker.run()), sender, told }
}

impl Bench {
    /// Asks for connection `slot`, with the number `n` as payload.
    fn ask(&self, slot: u32, n: u32) -> Result<(), Full> {
        self.ask_at(None, slot, n)
    }

    fn ask_at(&self, url: Option<&str>, slot: u32, n: u32) -> Result<(), Full> {
        let sender = self.sender.clone();
        let reply = Box::new(move |verdict| drop(sender.send((n, verdict))));
        let payload = Data::Json(n.to_string().into());
        self.dispatcher.ask(Ask { url: url.map(Into::into), payload, reply, ..ask(slot) })
    }

    /// The next answer: whose it is, whether it is ok, and its response.
    async fn told(&mut self) -> (u32, bool, String) {
        let told = tokio::time::timeout(Duration::from_secs(30), self.told.recv()).await;
        let (n, verdict) = told.expect("an answer").unwrap();
        (n, verdict.ok, verdict.response.into())
    }

    /// Asks once, and checks that it fails so.
    async fn fails(&mut self, failure: Failure) {
        let before = self.dispatcher.stats().failed[failure as usize];
        self.ask(1, 1).unwrap();
        let reason = format!(r#"{{"reason":"{}"}}"#, failure.reason());
        assert_eq!(self.told().await, (1, false, reason));
        let stats = self.dispatcher.stats();
        assert_eq!((stats.failed[failure as usize], stats.waiting), (before + 1, 0));
    }
}

#[tokio::test]
async fn what_waits_for_a_slow_answer_goes_together_in_order() {
    let app = app(0, echo).await;
    let mut bench = bench(1, Settings { batch_events_max: 3, ..settings(&app.url) });
    bench.ask(0, 0).unwrap();
    app.sizes(1).await;
    for n in 1..6 {
        bench.ask(n, n).unwrap();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(app.sizes(1).await, [1], "one request at a time");
    assert_eq!(bench.dispatcher.stats().waiting, 6);
    app.gate.add_permits(3);
    for n in 0..6 {
        assert_eq!(bench.told().await, (n, true, n.to_string()));
    }
    assert_eq!(app.sizes(3).await, [1, 3, 2]);
    let stats = bench.dispatcher.stats();
    assert_eq!((stats.asked, stats.ok, stats.requests, stats.waiting), (6, 6, 3, 0));
    let latency: u64 = bench.dispatcher.latency().buckets.iter().map(|count| count.get()).sum();
    assert_eq!(latency, 6);
}

#[tokio::test]
async fn lanes_work_side_by_side_and_keep_the_order_of_each_connection() {
    let app = app(0, echo).await;
    let mut bench = bench(4, Settings { batch_events_max: 5, ..settings(&app.url) });
    for n in 0..40 {
        for slot in 0..20 {
            bench.ask(slot, slot * 100 + n).unwrap();
        }
    }
    app.sizes(4).await;
    app.gate.add_permits(OPEN);
    for _ in 0..800 {
        let (n, ok, response) = bench.told().await;
        assert_eq!((ok, response), (true, n.to_string()));
    }
    assert_eq!(app.under_way_max.load(Ordering::Relaxed), 4);
    let seen = app.seen.lock().unwrap();
    let mut next = [0; 20];
    for n in seen.iter().flat_map(Seen::payloads) {
        let (slot, n) = (n.as_u64().unwrap() / 100, n.as_u64().unwrap() % 100);
        assert_eq!(next[slot as usize], n, "of connection {slot}");
        next[slot as usize] += 1;
    }
    assert!(seen.iter().all(|request| request.events.len() <= 5));
}

#[tokio::test]
async fn rules_with_their_own_url_are_asked_there() {
    let (one, other) = (app(OPEN, echo).await, app(OPEN, echo).await);
    let mut bench = bench(1, settings(&one.url));
    bench.ask(1, 1).unwrap();
    bench.ask_at(Some(&other.url), 1, 2).unwrap();
    bench.ask(1, 3).unwrap();
    let mut told = [bench.told().await.0, bench.told().await.0, bench.told().await.0];
    told.sort_unstable();
    assert_eq!(told, [1, 2, 3]);
    assert_eq!(one.seen.lock().unwrap()[0].payloads(), [1, 3]);
    assert_eq!(other.seen.lock().unwrap()[0].payloads(), [2]);
}

#[tokio::test]
async fn an_url_that_nobody_answers_at_slows_no_other() {
    let (dead, other) = (app(0, echo).await, app(OPEN, echo).await);
    let mut bench = bench(2, settings(&other.url));
    (0..40).for_each(|n| bench.ask_at(Some(&dead.url), n, n).unwrap());
    dead.sizes(2).await;
    for n in 40..60 {
        bench.ask(n % 4, n).unwrap();
        assert_eq!(bench.told().await, (n, true, n.to_string()));
    }
    assert_eq!(dead.under_way_max.load(Ordering::Relaxed), 2);
    assert_eq!(bench.dispatcher.stats().waiting, 40);
    dead.gate.add_permits(OPEN);
    for _ in 0..40 {
        assert!(bench.told().await.1);
    }
}

#[tokio::test]
async fn a_url_that_hangs_refuses_no_client_of_another() {
    // It takes connections and says nothing.
    let hangs = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs = format!("http://{}/", hangs.local_addr().unwrap());
    let good = app(OPEN, echo).await;
    let mut bench = bench(2, settings(&good.url));
    let taken = (0..3000).filter(|n| bench.ask_at(Some(&hangs), *n, *n).is_ok()).count();
    assert_eq!(taken, 1000, "half of what is not kept for others");
    // More than all that the queue holds, and the other is renewed all the time.
    for n in 0..3000 {
        assert_eq!(bench.ask_at(Some(&hangs), n, n), Err(Full));
        bench.ask(n, n).expect("room for one that answers");
        assert_eq!(bench.told().await, (n, true, n.to_string()));
    }
    let urls = bench.dispatcher.urls(9);
    let (name, of) = &urls[0];
    assert_eq!((name, of.waiting, of.refused), (&hangs, 1000, 5000));
    assert_eq!((&urls[1].0, urls[1].1.refused), (&good.url, 0));
}

#[tokio::test]
async fn a_lane_is_there_while_something_is_in_it() {
    let app = app(OPEN, echo).await;
    let fixed = fixed(9, 2);
    let (dispatcher, mut worker) = Dispatcher::new(fixed, settings(&app.url));
    (0..2).for_each(|_| dispatcher.ask(ask(1)).unwrap());
    let touched = worker.sort(dispatcher.intake.take().unwrap());
    let mut requests = JoinSet::new();
    let settings = Settings { batch_events_max: 1, ..settings(&app.url) };
    for waiting in [1, 0] {
        worker.send(&touched[0], &settings, &mut requests);
        assert_eq!(worker.lanes.len(), 1);
        let done = requests.join_next_with_id().await.unwrap();
        assert_eq!(worker.finish(done).as_ref(), Some(&touched[0]));
        assert_eq!(dispatcher.stats().waiting, waiting);
    }
    worker.send(&touched[0], &settings, &mut requests);
    assert!(worker.lanes.is_empty() && requests.is_empty());
}

#[tokio::test]
async fn an_answer_that_is_late_is_not_waited_for() {
    let app = app(0, echo).await;
    let mut bench =
        bench(1, Settings { timeout: Duration::from_millis(100), ..settings(&app.url) });
    bench.fails(Failure::Timeout).await;
    app.gate.add_permits(OPEN);
    bench.ask(1, 2).unwrap();
    assert_eq!(bench.told().await, (2, true, "2".into()));
}

#[tokio::test]
async fn what_is_never_sent_is_late_as_well() {
    let app = app(0, echo).await;
    let timeout = Duration::from_millis(500);
    let mut bench = bench(1, Settings { timeout, batch_events_max: 1, ..settings(&app.url) });
    let start = Instant::now();
    (0..20).for_each(|n| bench.ask(n, n).unwrap());
    for n in 0..20 {
        assert_eq!((bench.told().await.0, start.elapsed() >= timeout), (n, true));
    }
    assert!(start.elapsed() < timeout * 4, "all at once, not one after another");
    let stats = bench.dispatcher.stats();
    assert_eq!(stats.failed[Failure::Timeout as usize], 20);
    assert!(stats.requests < 20, "{} requests", stats.requests);
    assert_eq!((stats.waiting, stats.waiting_bytes), (0, 0));
    app.gate.add_permits(OPEN);
    bench.ask(1, 21).unwrap();
    assert_eq!(bench.told().await, (21, true, "21".into()), "the lane is free again");
}

#[tokio::test]
async fn a_request_goes_on_for_those_that_have_time() {
    let app = app(1, echo).await;
    let timeout = Duration::from_secs(2);
    let mut bench = bench(1, settings(&app.url));
    // The first one waits for the certificates to be read.
    bench.ask(0, 0).unwrap();
    assert!(bench.told().await.1);
    bench.dispatcher.set(Settings { timeout, ..settings(&app.url) });
    bench.ask(0, 1).unwrap();
    app.sizes(2).await;
    bench.ask(1, 2).unwrap();
    tokio::time::sleep(timeout / 2).await;
    bench.ask(2, 3).unwrap();
    app.gate.add_permits(1);
    assert_eq!(bench.told().await, (1, true, "1".into()));
    assert_eq!(app.sizes(3).await, [1, 1, 2]);
    assert_eq!(bench.told().await, (2, false, Failure::Timeout.verdict().response.into()));
    app.gate.add_permits(1);
    assert_eq!(bench.told().await, (3, true, "3".into()));
}

#[tokio::test]
async fn a_shorter_timeout_holds_at_once() {
    let app = app(0, echo).await;
    let mut bench = bench(1, Settings { timeout: Duration::from_secs(60), ..settings(&app.url) });
    bench.ask(1, 1).unwrap();
    app.sizes(1).await;
    let timeout = Duration::from_millis(10);
    bench.dispatcher.set(Settings { timeout, ..settings(&app.url) });
    assert_eq!(bench.told().await, (1, false, Failure::Timeout.verdict().response.into()));
}

#[tokio::test]
async fn a_body_that_never_ends_is_late_too() {
    let url = raw_app(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", false).await;
    let mut bench = bench(1, Settings { timeout: Duration::from_millis(100), ..settings(&url) });
    bench.fails(Failure::Timeout).await;
}

#[tokio::test]
async fn answers_that_are_none_become_errors() {
    let huge = "x".repeat(3 << 20);
    let moved = || (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, "/moved")]);
    for (answer, failure) in [
        (StatusCode::INTERNAL_SERVER_ERROR.into_response(), Failure::Status),
        (StatusCode::NOT_FOUND.into_response(), Failure::Status),
        (moved().into_response(), Failure::Status),
        ("hello".into_response(), Failure::Body),
        (r#"{"replies":[]}"#.into_response(), Failure::Body),
        (r#"{"replies":[{},{}]}"#.into_response(), Failure::Body),
        (r#"{"replies":[{"status":"maybe"}]}"#.into_response(), Failure::Body),
        (huge.into_response(), Failure::Body),
    ] {
        let answer = Mutex::new(Some(answer));
        let app = app(OPEN, move |_| answer.lock().unwrap().take().unwrap()).await;
        bench(1, settings(&app.url)).fails(failure).await;
    }
}

#[tokio::test]
async fn an_answer_without_a_body_is_ok() {
    for status in [StatusCode::OK, StatusCode::NO_CONTENT] {
        let app = app(OPEN, move |_| status.into_response()).await;
        let mut bench = bench(1, settings(&app.url));
        bench.ask(1, 1).unwrap();
        assert_eq!(bench.told().await, (1, true, "{}".into()));
    }
}

#[tokio::test]
async fn an_error_of_the_application_is_passed_on() {
    let body = r#"{"replies":[{"status":"error","response":{"reason": "muted"}}]}"#;
    let app = app(OPEN, move |_| body.into_response()).await;
    let mut bench = bench(1, settings(&app.url));
    bench.ask(1, 1).unwrap();
    assert_eq!(bench.told().await, (1, false, r#"{"reason":"muted"}"#.into()));
    assert_eq!(bench.dispatcher.stats().error, 1);
}

/// Answers each connection's first bytes with these; then closes it, or keeps quiet.
async fn raw_app(answer: &'static [u8], close: bool) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(answer).await;
            if !close {
                kept.push(stream);
            }
        }
    });
    url
}

#[tokio::test]
async fn connections_that_break_and_servers_of_other_kinds_are_errors() {
    for (answer, failure) in [
        (&b""[..], Failure::Unreachable),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", Failure::Unreachable),
        (b"220 mail.example ESMTP\r\n", Failure::Body),
    ] {
        let url = raw_app(answer, true).await;
        bench(1, settings(&url)).fails(failure).await;
    }
    let url = raw_app(b"no TLS here", true).await.replace("http:", "https:");
    bench(1, settings(&url)).fails(Failure::Unreachable).await;
}

#[tokio::test]
async fn where_nobody_is_nobody_answers() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    for url in [&url, "ftp://127.0.0.1/", "/hook", "http://[", ""] {
        bench(1, settings(url)).fails(Failure::Unreachable).await;
    }
    bench(1, Settings { url: None, ..settings("") }).fails(Failure::Nowhere).await;
    let secret = Some("two\nlines".into());
    bench(1, Settings { secret, ..settings(&url) }).fails(Failure::Unreachable).await;
}

#[tokio::test]
async fn a_full_queue_takes_no_more_until_something_is_answered() {
    let app = app(0, echo).await;
    let fixed = fixed(4, 1);
    let (dispatcher, worker) = Dispatcher::new(fixed, settings(&app.url));
    let (sender, told) = mpsc::unbounded_channel();
    let mut bench = Bench { dispatcher, worker: tokio::spawn(worker.run()), sender, told };
    assert_eq!([1, 2, 3].map(|n| bench.ask(n, n)), [Ok(()), Ok(()), Err(Full)]);
    app.sizes(1).await;
    assert_eq!(bench.ask(4, 4), Err(Full));
    app.gate.add_permits(OPEN);
    assert_eq!((bench.told().await.0, bench.told().await.0), (1, 2));
    bench.ask(5, 5).unwrap();
    assert_eq!(bench.told().await.0, 5, "refused ones are not told");
    let stats = bench.dispatcher.stats();
    assert_eq!((stats.asked, stats.failed[Failure::Full as usize], stats.waiting), (3, 2, 0));
}

#[tokio::test]
async fn a_request_says_what_it_is_and_proves_who_asks() {
    let app = app(OPEN, echo).await;
    let mut bench = bench(1, settings(&app.url));
    bench.ask(1, 1).unwrap();
    bench.told().await;
    bench.dispatcher.set(Settings { secret: Some(SECRET.into()), ..settings(&app.url) });
    bench.ask(1, 2).unwrap();
    bench.told().await;
    let seen = app.seen.lock().unwrap();
    let header = |at: usize, name| seen[at].headers.get(name).map(|v| v.to_str().unwrap());
    assert_eq!(header(0, header::CONTENT_TYPE), Some("application/json"));
    let agent = concat!("throng/", env!("CARGO_PKG_VERSION"));
    assert_eq!(header(0, header::USER_AGENT), Some(agent));
    assert_eq!(header(0, header::AUTHORIZATION), None);
    assert_eq!(header(1, header::AUTHORIZATION), Some(format!("Bearer {SECRET}").as_str()));
}

/// Log lines, kept.
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
async fn logs_hold_the_cause_and_no_secrets() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone());
    // While there is a single subscriber, tracing turns off call sites for all threads when one
    // without a subscriber, here another test's, comes to them first.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let app = app(OPEN, |_| StatusCode::BAD_GATEWAY.into_response()).await;
    let url = format!("{}?key=query-s3cret", app.url);
    let with_secret = Settings { secret: Some(SECRET.into()), ..settings(&url) };
    let printed = format!("{with_secret:?}");
    assert!(printed.contains(&app.url) && !printed.contains("s3cret"), "{printed}");
    let mut bench = bench(1, with_secret);
    for _ in 0..10 {
        bench.fails(Failure::Status).await;
    }
    let bad = Some(format!("{SECRET}\n"));
    bench.dispatcher.set(Settings { secret: bad, ..settings(&url) });
    bench.fails(Failure::Unreachable).await;
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("WARN") && text.contains("502 Bad Gateway"), "{text}");
    assert!(text.contains(&app.url) && text.contains("the secret can't be sent"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    assert!(text.matches("502 Bad Gateway").count() < 5, "{text}");
}

#[tokio::test]
async fn new_settings_hold_for_what_waits_but_for_its_url() {
    let (one, other) = (app(0, echo).await, app(OPEN, echo).await);
    let mut bench = bench(1, settings(&one.url));
    for n in 0..4 {
        bench.ask(1, n).unwrap();
        one.sizes(1).await;
    }
    // Time for the worker to put them into their lane.
    tokio::time::sleep(Duration::from_millis(50)).await;
    bench.dispatcher.set(Settings { batch_events_max: 2, ..settings(&other.url) });
    bench.ask(1, 4).unwrap();
    assert_eq!(bench.told().await.0, 4);
    one.gate.add_permits(3);
    for n in 0..4 {
        assert_eq!(bench.told().await.0, n);
    }
    assert_eq!((one.sizes(3).await, other.sizes(1).await), (vec![1, 2, 1], vec![1]));
}

/// Two requests under way, more behind them.
async fn busy() -> (Arc<App>, Bench) {
    let app = app(0, echo).await;
    let bench = bench(2, Settings { batch_events_max: 1, ..settings(&app.url) });
    (0..20).for_each(|n| bench.ask(n, n).unwrap());
    app.sizes(2).await;
    // These are in the intake yet.
    (20..30).for_each(|n| bench.ask(n, n).unwrap());
    (app, bench)
}

async fn all_told_of_the_end(mut bench: Bench) {
    let reason = r#"{"reason":"the server is shutting down"}"#;
    let mut told = Vec::new();
    for _ in 0..30 {
        let (n, ok, response) = bench.told().await;
        assert_eq!((ok, response.as_str()), (false, reason));
        told.push(n);
    }
    told.sort_unstable();
    assert!(told.into_iter().eq(0..30), "each once");
    let stats = bench.dispatcher.stats();
    assert_eq!((stats.failed[Failure::Stopped as usize], stats.waiting), (30, 0));
    assert_eq!(bench.ask(1, 1), Err(Full));
}

#[tokio::test]
async fn at_the_end_all_that_wait_are_told() {
    let (_app, mut bench) = busy().await;
    bench.dispatcher.stop();
    let ended = tokio::time::timeout(Duration::from_secs(5), &mut bench.worker).await;
    ended.expect("the worker ends").unwrap();
    all_told_of_the_end(bench).await;

    let (_app, bench) = busy().await;
    bench.worker.abort();
    all_told_of_the_end(bench).await;
}

#[test]
fn a_runtime_that_ends_leaves_nobody_waiting() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (_app, bench) = first.block_on(busy());
    drop(first);
    runtime().block_on(all_told_of_the_end(bench));
    // Nor does a worker that never ran.
    let fixed = fixed(9, 1);
    let (dispatcher, worker) = Dispatcher::new(fixed, settings(""));
    dispatcher.ask(ask(1)).unwrap();
    drop(worker);
    assert_eq!(dispatcher.stats().failed[Failure::Stopped as usize], 1);
    assert_eq!(dispatcher.ask(ask(1)), Err(Full));
}

#[tokio::test]
async fn threads_of_all_shards_may_ask_at_once() {
    let app = app(OPEN, echo).await;
    let mut bench = bench(3, settings(&app.url));
    // Time for the worker to fall asleep.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let threads: Vec<_> = (0..4)
        .map(|shard| {
            let (dispatcher, sender) = (bench.dispatcher.clone(), bench.sender.clone());
            std::thread::spawn(move || {
                for n in shard * 100..shard * 100 + 100 {
                    let sender = sender.clone();
                    let reply = Box::new(move |verdict| drop(sender.send((n, verdict))));
                    let payload = Data::Json(n.to_string().into());
                    dispatcher.ask(Ask { payload, reply, ..ask(shard) }).unwrap();
                }
            })
        })
        .collect();
    let mut next = [0, 100, 200, 300];
    for _ in 0..400 {
        let (n, ok, response) = bench.told().await;
        assert_eq!((ok, response), (true, n.to_string()));
        assert_eq!(next[n as usize / 100], n);
        next[n as usize / 100] += 1;
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
