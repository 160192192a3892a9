//! The intake, into which shards put their requests, and the one response of each request.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shard::{Full, WebhookRequest, WebhookResponse};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::error::{ErrorKind, shown};
use super::{Fixed, body};

/// What is counted; any thread may write.
#[derive(Default)]
pub(super) struct Counts {
    pub accepted: AtomicU64,
    pub ok: AtomicU64,
    pub error: AtomicU64,
    pub unanswered: [AtomicU64; ErrorKind::ALL.len()],
    pub waiting: AtomicUsize,
    /// What those hold in memory that wait; see [`body::held_bytes`].
    pub waiting_bytes: AtomicUsize,
}

/// What waits for one URL.
pub(super) struct Share {
    url: Arc<str>,
    waiting: AtomicUsize,
    bytes: AtomicUsize,
    rejected: AtomicU64,
}

/// What waits for one URL, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UrlStats {
    /// Gauge: requests without an answer so far.
    pub waiting: u64,
    /// Gauge: bytes of their payloads and names.
    pub waiting_bytes: u64,
    /// Requests that were rejected because too many waited. It begins anew when the URL was not
    /// used for long and many others are.
    pub rejected: u64,
}

/// A request that was accepted and gets one response: dropped without one, it gets the response that
/// the node shuts down.
pub(super) struct PendingRequest {
    pub ask: WebhookRequest,
    /// When a shard put it into the intake.
    pub accepted_at: Instant,
    /// Where to send it; nowhere if no URL was configured when it came.
    pub url: Option<Arc<str>>,
    bytes: usize,
    share: Arc<Share>,
    counts: Arc<Counts>,
    has_response: bool,
}

impl PendingRequest {
    /// Passes on the application's response.
    pub fn respond(mut self, response: WebhookResponse) {
        let count = match response {
            WebhookResponse::Ok { .. } => &self.counts.ok,
            WebhookResponse::Error(_) | WebhookResponse::Silent(_) => &self.counts.error,
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.end(response);
    }

    /// Responds in the application's place, with the reason why it has not.
    pub fn fail(mut self, kind: ErrorKind) {
        self.counts.unanswered[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.end(kind.response());
    }

    /// How long it has waited.
    pub fn age(&self) -> Duration {
        self.accepted_at.elapsed()
    }

    fn end(&mut self, response: WebhookResponse) {
        self.has_response = true;
        self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
        self.counts.waiting_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.share.waiting.fetch_sub(1, Ordering::Relaxed);
        self.share.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        let reply = std::mem::replace(&mut self.ask.reply, Box::new(|_| ()));
        reply(response);
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if !self.has_response {
            self.counts.unanswered[ErrorKind::Stopped as usize].fetch_add(1, Ordering::Relaxed);
            self.end(ErrorKind::Stopped.response());
        }
    }
}

/// The way from the shards to the control thread.
pub(super) struct Intake {
    events: Bound,
    events_per_url_max: usize,
    bytes: Bound,
    /// In place of a URL where there is none.
    nowhere: Arc<str>,
    counts: Arc<Counts>,
    state: Mutex<State>,
    /// Notified when there is something to take, and at the end.
    pub ready: Notify,
}

struct State {
    open: bool,
    requests: VecDeque<PendingRequest>,
    shares: HashMap<Arc<str>, Arc<Share>>,
    /// The URL of the request that was rejected last.
    rejected: Option<Arc<str>>,
}

/// Events that a URL may always have, inside the bounds of all, however many wait for others.
const URL_EVENTS: usize = 64;

/// What these may hold.
const URL_BYTES: usize = 256 << 10;

/// How many URLs may have that at least when the bounds are small: then it is less.
const URLS_MIN: usize = 16;

/// One in so many is reserved for that.
const RESERVED_PART: usize = 4;

/// A bound on what waits, for all URLs and for one.
#[derive(Clone, Copy)]
struct Bound {
    all: usize,
    /// What a URL may always have, from what is reserved.
    of_url: usize,
}

impl Bound {
    fn new(all: usize, of_url: usize) -> Self {
        Bound { all, of_url: of_url.min(all / RESERVED_PART / URLS_MIN) }
    }

    /// Whether a URL that has `own` of all that waits may have so many more.
    ///
    /// It may have as many as there is room for yet. So however many wait for one that does not
    /// answer, as many again can wait for others, and of those none can take all of that either.
    /// What halves for each of them is soon nothing, so a part is reserved for those that have little.
    fn has_room(self, own: usize, waiting: usize, more: usize) -> bool {
        let own = own.saturating_add(more);
        let shared = self.all - self.all / RESERVED_PART;
        own <= shared.saturating_sub(waiting)
            || own <= self.of_url && waiting.saturating_add(more) <= self.all
    }
}

/// URLs that are known. With more, those that nothing waits for are forgotten.
const URLS_MAX: usize = 1_000;

impl State {
    fn share(&mut self, url: &Arc<str>) -> Arc<Share> {
        if let Some(share) = self.shares.get(url) {
            return share.clone();
        }
        if self.shares.len() >= URLS_MAX {
            self.shares.retain(|_, share| share.waiting.load(Ordering::Relaxed) > 0);
        }
        let share = Share {
            url: url.clone(),
            waiting: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            rejected: AtomicU64::new(0),
        };
        self.shares.entry(url.clone()).or_insert(Arc::new(share)).clone()
    }
}

impl Intake {
    /// An intake with the bounds of all URLs and of each.
    pub fn new(fixed: &Fixed, counts: Arc<Counts>) -> Self {
        let state =
            State { open: true, requests: VecDeque::new(), shares: HashMap::new(), rejected: None };
        Intake {
            events: Bound::new(fixed.queue_events_max, URL_EVENTS),
            events_per_url_max: fixed.queue_events_per_url_max,
            bytes: Bound::new(fixed.queue_bytes_max, URL_BYTES),
            nowhere: "".into(),
            counts,
            state: Mutex::new(state),
            ready: Notify::new(),
        }
    }

    /// Puts requests, each for its URL, to the others; rejects all of them at the limits of one, and after
    /// the end.
    pub fn put(&self, asks: Vec<(WebhookRequest, Option<Arc<str>>)>) -> Result<(), Full> {
        let mut state = self.lock();
        // What each URL would have then, of those that these are for.
        let mut shares: Vec<(Arc<Share>, usize, usize)> = Vec::with_capacity(1);
        let (mut all, mut all_bytes) = (0, 0);
        for (ask, url) in &asks {
            let bytes = body::held_bytes(ask);
            let share = state.share(url.as_ref().unwrap_or(&self.nowhere));
            let at = shares.iter().position(|(known, ..)| Arc::ptr_eq(known, &share));
            let at = at.unwrap_or_else(|| {
                shares.push((share, 0, 0));
                shares.len() - 1
            });
            let (share, events, held) = &mut shares[at];
            (*events, *held) = (*events + 1, *held + bytes);
            let (share, events, held) = (share.clone(), *events, *held);
            (all, all_bytes) = (all + 1, all_bytes + bytes);
            if !state.open || !self.has_room(&share, (events, held), (all, all_bytes)) {
                let rejected = asks.len() as u64;
                self.counts.unanswered[ErrorKind::Full as usize]
                    .fetch_add(rejected, Ordering::Relaxed);
                share.rejected.fetch_add(rejected, Ordering::Relaxed);
                state.rejected = Some(share.url.clone());
                return Err(Full);
            }
        }
        // The worker takes all at once, so only the first must wake it: a wake-up is a system call.
        let first = state.requests.is_empty();
        // Under the lock, so that the oldest come first.
        let accepted_at = Instant::now();
        for (ask, url) in asks {
            let bytes = body::held_bytes(&ask);
            let share = state.share(url.as_ref().unwrap_or(&self.nowhere));
            self.counts.waiting.fetch_add(1, Ordering::Relaxed);
            self.counts.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.counts.accepted.fetch_add(1, Ordering::Relaxed);
            share.waiting.fetch_add(1, Ordering::Relaxed);
            share.bytes.fetch_add(bytes, Ordering::Relaxed);
            let counts = self.counts.clone();
            let request =
                PendingRequest { ask, accepted_at, url, bytes, share, counts, has_response: false };
            state.requests.push_back(request);
        }
        drop(state);
        if first {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Whether a URL may have so many more events and bytes, the last of which is one of so many more of
    /// all URLs. To be called under the lock, since the numbers grow only there.
    fn has_room(
        &self,
        share: &Share,
        (more, more_bytes): (usize, usize),
        (all, all_bytes): (usize, usize),
    ) -> bool {
        let waiting = self.counts.waiting.load(Ordering::Relaxed) + all - more;
        let held = self.counts.waiting_bytes.load(Ordering::Relaxed) + all_bytes - more_bytes;
        let own = share.waiting.load(Ordering::Relaxed);
        let own_held = share.bytes.load(Ordering::Relaxed);
        let few = own + more <= self.events_per_url_max && self.events.has_room(own, waiting, more);
        // A request that is alone is accepted however large it is: else it could never be sent.
        let alone = waiting == 0 && more == 1;
        few && (alone || self.bytes.has_room(own_held, held, more_bytes))
    }

    /// What waits for each URL, by the name that a log may hold; no more than so many, those first
    /// for which most wait.
    pub fn urls(&self, max: usize) -> Vec<(String, UrlStats)> {
        let mut urls: HashMap<String, UrlStats> = HashMap::new();
        for (url, share) in self.lock().shares.iter().filter(|(url, _)| !url.is_empty()) {
            let stats = urls.entry(shown(url)).or_default();
            stats.waiting += share.waiting.load(Ordering::Relaxed) as u64;
            stats.waiting_bytes += share.bytes.load(Ordering::Relaxed) as u64;
            stats.rejected += share.rejected.load(Ordering::Relaxed);
        }
        let mut urls: Vec<_> = urls.into_iter().collect();
        urls.sort_by(|(a, x), (b, y)| y.waiting.cmp(&x.waiting).then_with(|| a.cmp(b)));
        urls.truncate(max);
        urls
    }

    /// The URL of the request that was rejected last.
    pub fn last_rejected(&self) -> Option<Arc<str>> {
        self.lock().rejected.clone()
    }

    /// All that came since the last time; `None` after the end.
    pub fn take(&self) -> Option<VecDeque<PendingRequest>> {
        let mut state = self.lock();
        state.open.then(|| std::mem::take(&mut state.requests))
    }

    /// Rejects whatever comes from now on, and fails what is here.
    pub fn close(&self) {
        let mut state = self.lock();
        state.open = false;
        let requests = std::mem::take(&mut state.requests);
        drop(state);
        // Their replies are called here, without the lock.
        drop(requests);
        self.ready.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use model::Data;

    use super::super::tests::{ask, ask_with};
    use super::*;

    /// A request that came just now.
    pub fn request(ask: WebhookRequest) -> PendingRequest {
        let (bytes, counts) = (body::held_bytes(&ask), Arc::new(Counts::default()));
        counts.waiting.store(1, Ordering::Relaxed);
        counts.waiting_bytes.store(bytes, Ordering::Relaxed);
        let share = Arc::new(Share {
            url: "".into(),
            waiting: AtomicUsize::new(1),
            bytes: AtomicUsize::new(bytes),
            rejected: AtomicU64::new(0),
        });
        let accepted_at = Instant::now();
        PendingRequest { ask, accepted_at, url: None, bytes, share, counts, has_response: false }
    }

    fn fixed(events_max: usize, per_url_max: usize, bytes_max: usize) -> Fixed {
        Fixed {
            queue_events_max: events_max,
            queue_events_per_url_max: per_url_max,
            queue_bytes_max: bytes_max,
            requests_max: 1,
            events: super::super::EventLimits { events_max: 1, bytes_max: 1 },
        }
    }

    #[test]
    fn the_intake_is_bounded_in_bytes_too() {
        let counts = Arc::new(Counts::default());
        let sized = |bytes: usize| ask_with(1, Data::Text("x".repeat(bytes).into()));
        let names = body::held_bytes(&sized(0));
        // Of which a quarter is reserved.
        let intake = Intake::new(&fixed(20, 20, 2666), counts.clone());
        let held = || counts.waiting_bytes.load(Ordering::Relaxed);
        let took = |bytes: usize| intake.put(vec![(sized(bytes), None)]).is_ok();
        assert!(took(600 - names) && took(400 - names));
        assert_eq!(held(), 1000);
        assert!(!took(0), "it has a topic and an event at least");
        let mut taken = intake.take().unwrap();
        assert!(!took(0), "those that are under way hold memory, too");
        taken.pop_front().unwrap().fail(ErrorKind::Timeout);
        assert_eq!(held(), 400);
        assert!(took(500 - names) && !took(201 - names));
        drop((taken, intake.take()));
        assert_eq!((held(), counts.waiting.load(Ordering::Relaxed)), (0, 0));
        assert!(took(5000) && !took(0), "a large one is taken alone");
        assert_eq!(counts.accepted.load(Ordering::Relaxed), 4);
        assert_eq!(counts.unanswered[ErrorKind::Full as usize].load(Ordering::Relaxed), 4);
    }

    #[test]
    fn however_many_urls_hang_the_next_one_has_room() {
        let sized = || ask_with(1, Data::Text("x".repeat(1000).into()));
        let bytes = body::held_bytes(&sized());
        for fixed in [fixed(1024, 1024, usize::MAX), fixed(usize::MAX, 1024, 1024 * bytes)] {
            let intake = Intake::new(&fixed, Arc::default());
            let took = |url: &str| {
                let url: Arc<str> = url.into();
                (0..).take_while(|_| intake.put(vec![(sized(), Some(url.clone()))]).is_ok()).count()
            };
            let taken: Vec<_> = (0..14).map(|n| took(&format!("http://hangs/{n}"))).collect();
            // Half of what is free of three quarters, each time, and never less than is reserved.
            assert_eq!(taken[..6], [384, 192, 96, 48, 24, 16]);
            assert_eq!(taken[6..], [16; 8]);
            assert_eq!(took("http://answers"), 16);
            let urls = intake.urls(2);
            assert_eq!((urls.len(), urls[0].0.as_str()), (2, "http://hangs/0"));
            let held = (384 * bytes) as u64;
            assert_eq!(urls[0].1, UrlStats { waiting: 384, waiting_bytes: held, rejected: 1 });
            assert_eq!(intake.last_rejected().as_deref(), Some("http://answers"));
            drop(intake.take());
            assert_eq!(intake.urls(2)[0].1.waiting, 0);
        }
    }

    #[test]
    fn with_the_defaults_each_of_many_urls_has_its_part_and_the_bound_holds() {
        let intake = Intake::new(&fixed(20_000, 10_000, 128 << 20), Arc::default());
        let took = |n: usize| {
            let url: Arc<str> = format!("http://hangs/{n}").into();
            (0..).take_while(|_| intake.put(vec![(ask(1), Some(url.clone()))]).is_ok()).count()
        };
        let taken: Vec<_> = (0..200).map(took).collect();
        assert_eq!(taken[0], 7_500);
        assert!(taken[..78].iter().all(|taken| *taken >= URL_EVENTS), "{taken:?}");
        assert_eq!(taken.iter().sum::<usize>(), 20_000);
    }

    #[test]
    fn a_url_has_its_own_bound() {
        let intake = Intake::new(&fixed(100, 3, 1 << 20), Arc::default());
        let put = |url: &str| intake.put(vec![(ask(1), Some(url.into()))]).is_ok();
        assert_eq!([(); 5].map(|()| put("a")), [true, true, true, false, false]);
        assert!(put("b"));
        intake.take().unwrap().pop_front().unwrap().fail(ErrorKind::Timeout);
        assert!(put("a"));
    }

    #[test]
    fn requests_that_belong_together_are_taken_or_rejected_together() {
        let intake = Intake::new(&fixed(100, 3, 1 << 20), Arc::default());
        let put = |urls: &[&str]| {
            intake
                .put(
                    urls.iter()
                        .map(|url| (ask(1), Some(format!("http://{url}/").into())))
                        .collect(),
                )
                .is_ok()
        };
        assert!(put(&["a", "b", "a"]));
        assert!(!put(&["b", "a", "a"]), "the second is one too many of its URL");
        assert!(put(&["b", "b", "a"]) && !put(&["c", "b"]) && put(&["c"]));
        let rejected = |url: &str| {
            let url = format!("http://{url}/");
            intake.urls(9).into_iter().find(|(it, _)| *it == url).unwrap().1
        };
        assert_eq!((rejected("a").rejected, rejected("b").rejected), (3, 2));
        assert_eq!(intake.take().unwrap().len(), 7);
    }

    #[test]
    fn urls_of_former_configurations_are_forgotten() {
        let intake = Intake::new(&fixed(9, 9, 1 << 20), Arc::default());
        for n in 0..3 * URLS_MAX {
            intake.put(vec![(ask(1), Some(format!("http://a/{n}").into()))]).unwrap();
            drop(intake.take());
        }
        assert!(intake.urls(usize::MAX).len() <= URLS_MAX);
    }

    #[test]
    fn a_request_gets_one_response_whatever_happens_to_it() {
        let (sender, responses) = std::sync::mpsc::channel();
        let mut requests = [1, 2, 3].map(|slot| request(ask(slot)));
        for request in &mut requests {
            let sender = sender.clone();
            request.ask.reply = Box::new(move |response| sender.send(response).unwrap());
        }
        let [first, second, third] = requests;
        let sent = WebhookResponse::yes();
        first.respond(sent.clone());
        second.fail(ErrorKind::Timeout);
        drop(third);
        drop(sender);
        let want = [sent, ErrorKind::Timeout.response(), ErrorKind::Stopped.response()];
        assert_eq!(responses.into_iter().collect::<Vec<_>>(), want);
    }
}
