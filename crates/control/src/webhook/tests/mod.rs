//! The dispatcher against an application that responds, is slow, fails, or can't be reached.

mod end;
mod errors;
mod upgrade;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use model::{ConnectionId, Data};
use serde_json::{Value, json};
use shard::{QueueFull, RequestDetails, Webhook, WebhookKind, WebhookRequest, WebhookResponse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;

const SECRET: &str = "s3cret-of-the-hook";

/// A test fails if it has waited for this long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIMEOUT, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A request of connection `0-slot-3` whose response is ignored.
pub fn hook_request(slot: u32) -> WebhookRequest {
    let users = vec!["alice".into(), "bob".into()];
    let about = RequestDetails::new(WebhookKind::Message, Some("room:1".into()), users, "phoenix");
    let payload = Some(Data::Json("{}".into()));
    WebhookRequest {
        url: None,
        details: RequestDetails { event: Some("say".into()), payload, ..about },
        connection: ConnectionId { node: model::NodeId(9), shard: 0, slot, serial: 3 },
        hook: shard::SharedHook::default(),
        reply: Box::new(|_| ()),
    }
}

/// A request with this payload, of the connection in this slot, whose response is ignored.
pub fn hook_request_with(slot: u32, payload: Data) -> WebhookRequest {
    let mut base = hook_request(slot);
    base.details.payload = Some(payload);
    base
}

/// A request that the application has got.
struct Seen {
    headers: HeaderMap,
    events: Vec<Value>,
}

impl Seen {
    fn payloads(&self) -> Vec<Value> {
        self.events.iter().map(|event| event["payload"].clone()).collect()
    }
}

type Responder = dyn Fn(&[Value]) -> Response + Send + Sync;

/// An application that records its requests. It responds with `responder`, once its gate has a permit.
struct App {
    url: String,
    seen: Mutex<Vec<Seen>>,
    gate: Semaphore,
    under_way: AtomicUsize,
    under_way_max: AtomicUsize,
    responder: Box<Responder>,
}

async fn app(
    gate: usize,
    responder: impl Fn(&[Value]) -> Response + Send + Sync + 'static,
) -> Arc<App> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let app = Arc::new(App {
        url: format!("http://{}/hook", listener.local_addr().unwrap()),
        seen: Mutex::default(),
        gate: Semaphore::new(gate),
        under_way: AtomicUsize::new(0),
        under_way_max: AtomicUsize::new(0),
        responder: Box::new(responder),
    });
    let moved = || async { echo(&[Value::Null]) };
    let router = Router::new().route("/hook", post(hook)).route("/moved", get(moved).post(moved));
    let router = router.with_state(app.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    app
}

async fn hook(State(app): State<Arc<App>>, headers: HeaderMap, body: String) -> Response {
    let mut body: Value = serde_json::from_str(&body).unwrap();
    let key = if body.get("messages").is_some() { "messages" } else { "events" };
    let Value::Array(events) = body[key].take() else { panic!("no events") };
    let outcome = (app.responder)(&events);
    let under_way = app.under_way.fetch_add(1, Ordering::Relaxed) + 1;
    app.under_way_max.fetch_max(under_way, Ordering::Relaxed);
    app.seen.lock().unwrap().push(Seen { headers, events });
    app.gate.acquire().await.unwrap().forget();
    app.under_way.fetch_sub(1, Ordering::Relaxed);
    outcome
}

impl App {
    /// Returns how many events each request had, once there are this many requests.
    async fn sizes(&self, requests: usize) -> Vec<usize> {
        let sizes = || -> Vec<usize> {
            self.seen.lock().unwrap().iter().map(|request| request.events.len()).collect()
        };
        until(&format!("{requests} requests"), || sizes().len() >= requests).await;
        sizes()
    }
}

/// The response to a request whose time is over.
fn late() -> String {
    format!(r#"{{"reason":"{}"}}"#, ErrorKind::Timeout.reason())
}

/// Replies with the payload of each event.
fn echo(events: &[Value]) -> Response {
    let replies = events.iter().map(|event| json!({"response": event["payload"]}));
    json!({"replies": replies.collect::<Vec<_>>()}).to_string().into_response()
}

const OPEN: usize = Semaphore::MAX_PERMITS;

/// A running dispatcher, and the responses to its requests.
struct Bench {
    dispatcher: Arc<Dispatcher>,
    worker: JoinHandle<()>,
    sender: mpsc::UnboundedSender<(u32, WebhookResponse)>,
    responses: mpsc::UnboundedReceiver<(u32, WebhookResponse)>,
}

fn settings(url: &str) -> Settings {
    Settings {
        url: Some(url.into()),
        secret: None,
        signing_key: None,
        timeout: Duration::from_secs(60),
        batch_events_max: 100,
        events: HookEvents::default(),
        event_retry: Duration::from_secs(60),
        occupancy: Duration::ZERO,
        forwards: Vec::new(),
    }
}

/// One URL may have half of three quarters of this number of requests.
fn fixed(queue_events_max: usize, requests_max: usize) -> Fixed {
    let queue_events_per_url_max = queue_events_max;
    let events = EventLimits { events_max: 1_000, bytes_max: 1 << 20 };
    let queue_bytes_max = 2 << 20;
    let authorities = Authorities::SYSTEM;
    Fixed {
        authorities,
        queue_events_max,
        queue_events_per_url_max,
        queue_bytes_max,
        requests_max,
        events,
        tracer: None,
    }
}

fn bench(requests_max: usize, settings: Settings) -> Bench {
    let fixed = fixed(2666, requests_max);
    let (dispatcher, Workers { worker, .. }) =
        Dispatcher::new(fixed, settings, EventStart::default());
    let (sender, responses) = mpsc::unbounded_channel();
    Bench { dispatcher, worker: tokio::spawn(worker.run()), sender, responses }
}

impl Bench {
    /// Sends a request of connection `slot`, with the number `n` as payload.
    fn hook_request(&self, slot: u32, n: u32) -> Result<(), QueueFull> {
        self.hook_request_at(None, slot, n)
    }

    fn hook_request_at(&self, url: Option<&str>, slot: u32, n: u32) -> Result<(), QueueFull> {
        let sender = self.sender.clone();
        let reply = Box::new(move |response| drop(sender.send((n, response))));
        let base = hook_request_with(slot, Data::Json(n.to_string().into()));
        let url = url.map(Into::into);
        self.dispatcher.send(vec![WebhookRequest { url, reply, ..base }])
    }

    /// Returns the next response: the number of its request, whether it is ok, and its text.
    async fn response(&mut self) -> (u32, bool, String) {
        let next = tokio::time::timeout(TIMEOUT, self.responses.recv()).await;
        let (n, response) = next.expect("a response").unwrap();
        match response {
            WebhookResponse::Ok { response, .. } => (n, true, response.into()),
            WebhookResponse::Error(refusal) => (n, false, refusal.response.into()),
            WebhookResponse::Silent(reason) => (n, false, format!(r#"{{"reason":"{reason}"}}"#)),
        }
    }

    /// Sends a request, and checks that it fails with this error.
    async fn fails(&mut self, kind: ErrorKind) {
        let before = self.dispatcher.stats().failures[kind as usize];
        self.hook_request(1, 1).unwrap();
        let reason = format!(r#"{{"reason":"{}"}}"#, kind.reason());
        assert_eq!(self.response().await, (1, false, reason));
        let stats = self.dispatcher.stats();
        assert_eq!((stats.failures[kind as usize], stats.waiting), (before + 1, 0));
    }
}

#[tokio::test]
async fn what_waits_for_a_slow_reply_goes_together_in_order() {
    let app = app(0, echo).await;
    let mut bench = bench(1, Settings { batch_events_max: 3, ..settings(&app.url) });
    bench.hook_request(0, 0).unwrap();
    app.sizes(1).await;
    for n in 1..6 {
        bench.hook_request(n, n).unwrap();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(app.sizes(1).await, [1], "one request at a time");
    assert_eq!(bench.dispatcher.stats().waiting, 6);
    app.gate.add_permits(3);
    for n in 0..6 {
        assert_eq!(bench.response().await, (n, true, n.to_string()));
    }
    assert_eq!(app.sizes(3).await, [1, 3, 2]);
    let stats = bench.dispatcher.stats();
    assert_eq!((stats.accepted, stats.ok, stats.http_requests, stats.waiting), (6, 6, 3, 0));
    let latency: u64 = bench.dispatcher.latency().buckets.iter().map(|count| count.get()).sum();
    assert_eq!(latency, 6);
}

#[tokio::test]
async fn queues_work_side_by_side_and_in_the_order_of_each_connection() {
    let app = app(0, echo).await;
    let mut bench = bench(4, Settings { batch_events_max: 5, ..settings(&app.url) });
    // The port in the URL differs in each run, and is part of the hash that chooses a queue. With this many connections
    // none of the four queues is empty.
    for n in 0..12 {
        for slot in 0..64 {
            bench.hook_request(slot, slot * 100 + n).unwrap();
        }
    }
    app.sizes(4).await;
    app.gate.add_permits(OPEN);
    for _ in 0..12 * 64 {
        let (n, ok, response) = bench.response().await;
        assert_eq!((ok, response), (true, n.to_string()));
    }
    assert_eq!(app.under_way_max.load(Ordering::Relaxed), 4);
    let seen = app.seen.lock().unwrap();
    let mut next = [0; 64];
    for n in seen.iter().flat_map(Seen::payloads) {
        let (slot, n) = (n.as_u64().unwrap() / 100, n.as_u64().unwrap() % 100);
        assert_eq!(next[slot as usize], n, "of connection {slot}");
        next[slot as usize] += 1;
    }
    assert!(seen.iter().all(|request| request.events.len() <= 5));
}

#[tokio::test]
async fn rules_with_their_own_url_go_there() {
    let (one, other) = (app(OPEN, echo).await, app(OPEN, echo).await);
    let mut bench = bench(1, settings(&one.url));
    bench.hook_request(1, 1).unwrap();
    bench.hook_request_at(Some(&other.url), 1, 2).unwrap();
    bench.hook_request(1, 3).unwrap();
    let mut numbers =
        [bench.response().await.0, bench.response().await.0, bench.response().await.0];
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(one.seen.lock().unwrap()[0].payloads(), [1, 3]);
    assert_eq!(other.seen.lock().unwrap()[0].payloads(), [2]);
}

#[tokio::test]
async fn an_url_without_responses_slows_no_other() {
    let (dead, other) = (app(0, echo).await, app(OPEN, echo).await);
    let mut bench = bench(2, settings(&other.url));
    (0..40).for_each(|n| bench.hook_request_at(Some(&dead.url), n, n).unwrap());
    dead.sizes(2).await;
    for n in 40..60 {
        bench.hook_request(n % 4, n).unwrap();
        assert_eq!(bench.response().await, (n, true, n.to_string()));
    }
    assert_eq!(dead.under_way_max.load(Ordering::Relaxed), 2);
    assert_eq!(bench.dispatcher.stats().waiting, 40);
    dead.gate.add_permits(OPEN);
    for _ in 0..40 {
        assert!(bench.response().await.1);
    }
}

#[tokio::test]
async fn a_url_that_hangs_rejects_no_client_of_another() {
    // It accepts connections and never responds.
    let hangs = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs = format!("http://{}/", hangs.local_addr().unwrap());
    let good = app(OPEN, echo).await;
    let mut bench = bench(2, settings(&good.url));
    let taken = (0..3000).filter(|n| bench.hook_request_at(Some(&hangs), *n, *n).is_ok()).count();
    assert_eq!(taken, 1000, "half of what is not reserved for others");
    // These requests exceed the queue's capacity, and requests to the other URL come and go meanwhile.
    for n in 0..3000 {
        assert_eq!(bench.hook_request_at(Some(&hangs), n, n), Err(QueueFull));
        bench.hook_request(n, n).expect("room for one that answers");
        assert_eq!(bench.response().await, (n, true, n.to_string()));
    }
    let urls = bench.dispatcher.urls(9);
    let (name, of) = &urls[0];
    assert_eq!((name, of.waiting, of.rejected), (&hangs, 1000, 5000));
    assert_eq!((&urls[1].0, urls[1].1.rejected), (&good.url, 0));
}

#[tokio::test]
async fn a_queue_is_there_while_something_is_in_it() {
    let app = app(OPEN, echo).await;
    let fixed = fixed(9, 2);
    let (dispatcher, Workers { mut worker, .. }) =
        Dispatcher::new(fixed, settings(&app.url), EventStart::default());
    (0..2).for_each(|_| dispatcher.send(vec![hook_request(1)]).unwrap());
    let touched = worker.sort(dispatcher.request_queue.take().unwrap());
    let mut batches = tokio::task::JoinSet::new();
    let settings = Settings { batch_events_max: 1, ..settings(&app.url) };
    for waiting in [1, 0] {
        worker.send(&touched[0], &settings, &mut batches);
        assert_eq!(dispatcher.queues().len(), 1);
        let done = batches.join_next_with_id().await.unwrap();
        assert_eq!(worker.finish(done).as_ref(), Some(&touched[0]));
        assert_eq!(dispatcher.stats().waiting, waiting);
    }
    worker.send(&touched[0], &settings, &mut batches);
    assert!(dispatcher.queues().is_empty() && batches.is_empty());
}

#[tokio::test]
async fn a_late_reply_counts_as_a_timeout() {
    let app = app(0, echo).await;
    let mut bench =
        bench(1, Settings { timeout: Duration::from_millis(100), ..settings(&app.url) });
    bench.fails(ErrorKind::Timeout).await;
    bench.dispatcher.set(settings(&app.url));
    app.gate.add_permits(OPEN);
    bench.hook_request(1, 2).unwrap();
    assert_eq!(bench.response().await, (2, true, "2".into()));
}

#[tokio::test]
async fn what_is_never_sent_is_late_as_well() {
    let app = app(0, echo).await;
    let timeout = Duration::from_millis(500);
    let mut bench = bench(1, Settings { timeout, batch_events_max: 1, ..settings(&app.url) });
    let start = Instant::now();
    (0..20).for_each(|n| bench.hook_request(n, n).unwrap());
    for n in 0..20 {
        assert_eq!((bench.response().await.0, start.elapsed() >= timeout), (n, true));
    }
    let stats = bench.dispatcher.stats();
    assert_eq!(stats.failures[ErrorKind::Timeout as usize], 20);
    assert!(stats.http_requests < 20, "{} requests", stats.http_requests);
    assert_eq!((stats.waiting, stats.waiting_bytes), (0, 0));
    bench.dispatcher.set(settings(&app.url));
    app.gate.add_permits(OPEN);
    bench.hook_request(1, 21).unwrap();
    assert_eq!(bench.response().await, (21, true, "21".into()), "the queue is free again");
}

#[tokio::test]
async fn a_request_goes_on_for_those_that_have_time() {
    let app = app(1, echo).await;
    let timeout = Duration::from_secs(4);
    let mut bench = bench(1, settings(&app.url));
    // The first request waits until the certificates are read.
    bench.hook_request(0, 0).unwrap();
    assert!(bench.response().await.1);
    bench.dispatcher.set(Settings { timeout, ..settings(&app.url) });
    bench.hook_request(0, 1).unwrap();
    app.sizes(2).await;
    bench.hook_request(1, 2).unwrap();
    tokio::time::sleep(timeout / 2).await;
    bench.hook_request(2, 3).unwrap();
    app.gate.add_permits(1);
    assert_eq!(bench.response().await, (1, true, "1".into()));
    assert_eq!(app.sizes(3).await, [1, 1, 2]);
    assert_eq!(bench.response().await, (2, false, late()));
    app.gate.add_permits(1);
    assert_eq!(bench.response().await, (3, true, "3".into()));
}

#[tokio::test]
async fn a_shorter_timeout_holds_at_once() {
    let app = app(0, echo).await;
    let mut bench = bench(1, Settings { timeout: Duration::from_secs(60), ..settings(&app.url) });
    bench.hook_request(1, 1).unwrap();
    app.sizes(1).await;
    let timeout = Duration::from_millis(10);
    bench.dispatcher.set(Settings { timeout, ..settings(&app.url) });
    assert_eq!(bench.response().await, (1, false, late()));
}

#[tokio::test]
async fn a_body_that_never_ends_is_late_too() {
    let url = raw_app(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", false).await;
    let mut bench = bench(1, Settings { timeout: Duration::from_millis(100), ..settings(&url) });
    bench.fails(ErrorKind::Timeout).await;
}

/// Replies to the first bytes of each connection with `outcome`. Then closes it, or sends no more.
async fn raw_app(outcome: &'static [u8], close: bool) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(outcome).await;
            if !close {
                open.push(stream);
            }
        }
    });
    url
}

#[tokio::test]
async fn a_full_queue_takes_no_more_until_something_is_served() {
    let app = app(0, echo).await;
    let fixed = fixed(4, 1);
    let (dispatcher, Workers { worker, .. }) =
        Dispatcher::new(fixed, settings(&app.url), EventStart::default());
    let (sender, responses) = mpsc::unbounded_channel();
    let mut bench = Bench { dispatcher, worker: tokio::spawn(worker.run()), sender, responses };
    assert_eq!([1, 2, 3].map(|n| bench.hook_request(n, n)), [Ok(()), Ok(()), Err(QueueFull)]);
    app.sizes(1).await;
    assert_eq!(bench.hook_request(4, 4), Err(QueueFull));
    app.gate.add_permits(OPEN);
    assert_eq!((bench.response().await.0, bench.response().await.0), (1, 2));
    bench.hook_request(5, 5).unwrap();
    assert_eq!(bench.response().await.0, 5, "rejected ones get none");
    let stats = bench.dispatcher.stats();
    assert_eq!(
        (stats.accepted, stats.failures[ErrorKind::Full as usize], stats.waiting),
        (3, 2, 0)
    );
}

#[tokio::test]
async fn a_request_says_what_it_is_and_proves_who_asks() {
    let app = app(OPEN, echo).await;
    let mut bench = bench(1, settings(&app.url));
    bench.hook_request(1, 1).unwrap();
    bench.response().await;
    bench.dispatcher.set(Settings { secret: Some(SECRET.into()), ..settings(&app.url) });
    bench.hook_request(1, 2).unwrap();
    bench.response().await;
    let seen = app.seen.lock().unwrap();
    let header = |at: usize, name| seen[at].headers.get(name).map(|v| v.to_str().unwrap());
    assert_eq!(header(0, header::CONTENT_TYPE), Some("application/json"));
    let agent = concat!("throng/", env!("CARGO_PKG_VERSION"));
    assert_eq!(header(0, header::USER_AGENT), Some(agent));
    assert_eq!(header(0, header::AUTHORIZATION), None);
    assert_eq!(header(1, header::AUTHORIZATION), Some(format!("Bearer {SECRET}").as_str()));
}

#[tokio::test]
async fn new_settings_apply_to_what_waits_but_for_its_url() {
    let (one, other) = (app(0, echo).await, app(OPEN, echo).await);
    let mut bench = bench(1, settings(&one.url));
    for n in 0..4 {
        bench.hook_request(1, n).unwrap();
        one.sizes(1).await;
    }
    // Time for the worker to put the requests into their queue.
    tokio::time::sleep(Duration::from_millis(50)).await;
    bench.dispatcher.set(Settings { batch_events_max: 2, ..settings(&other.url) });
    bench.hook_request(1, 4).unwrap();
    assert_eq!(bench.response().await.0, 4);
    one.gate.add_permits(3);
    for n in 0..4 {
        assert_eq!(bench.response().await.0, n);
    }
    assert_eq!((one.sizes(3).await, other.sizes(1).await), (vec![1, 2, 1], vec![1]));
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
                    let reply = Box::new(move |response| drop(sender.send((n, response))));
                    let base = hook_request_with(shard, Data::Json(n.to_string().into()));
                    let request = WebhookRequest { reply, ..base };
                    dispatcher.send(vec![request]).unwrap();
                }
            })
        })
        .collect();
    let mut next = [0, 100, 200, 300];
    for _ in 0..400 {
        let (n, ok, response) = bench.response().await;
        assert_eq!((ok, response), (true, n.to_string()));
        assert_eq!(next[n as usize / 100], n);
        next[n as usize / 100] += 1;
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
