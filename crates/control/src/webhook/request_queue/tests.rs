//! The limits of the request queue.

use model::Data;

use super::super::tests::{hook_request, hook_request_with};
use super::*;
use crate::outgoing::Authorities;

/// A request that came just now.
pub fn request(hook_request: WebhookRequest) -> PendingRequest {
    let (bytes, counts) = (body::memory_bytes(&hook_request), Arc::new(Counts::default()));
    counts.waiting.store(1, Ordering::Relaxed);
    counts.waiting_bytes.store(bytes, Ordering::Relaxed);
    let share = Arc::new(Share {
        url: "".into(),
        waiting: AtomicUsize::new(1),
        bytes: AtomicUsize::new(bytes),
        rejected: AtomicU64::new(0),
    });
    let accepted_at = Instant::now();
    PendingRequest {
        hook_request,
        accepted_at,
        url: None,
        number: 0,
        sent_in: None,
        bytes,
        share,
        counts,
        has_response: false,
    }
}

fn fixed(events_max: usize, per_url_max: usize, bytes_max: usize) -> Fixed {
    Fixed {
        authorities: Authorities::SYSTEM,
        queue_events_max: events_max,
        queue_events_per_url_max: per_url_max,
        queue_bytes_max: bytes_max,
        requests_max: 1,
        events: super::super::EventLimits { events_max: 1, bytes_max: 1 },
        tracer: None,
    }
}

#[test]
fn the_request_queue_is_bounded_in_bytes_too() {
    let counts = Arc::new(Counts::default());
    let sized = |bytes: usize| hook_request_with(1, Data::Text("x".repeat(bytes).into()));
    let names = body::memory_bytes(&sized(0));
    // A quarter of the bytes is reserved.
    let request_queue = RequestQueue::new(&fixed(20, 20, 2666), counts.clone());
    let waiting = || counts.waiting_bytes.load(Ordering::Relaxed);
    let took = |bytes: usize| request_queue.put(vec![(sized(bytes), None)]).is_ok();
    assert!(took(600 - names) && took(400 - names));
    assert_eq!(waiting(), 1000);
    assert!(!took(0), "it has a topic and an event at least");
    let mut taken = request_queue.take().unwrap();
    assert!(!took(0), "those that are under way hold memory, too");
    taken.pop_front().unwrap().fail(ErrorKind::Timeout);
    assert_eq!(waiting(), 400);
    assert!(took(500 - names) && !took(201 - names));
    drop((taken, request_queue.take()));
    assert_eq!((waiting(), counts.waiting.load(Ordering::Relaxed)), (0, 0));
    assert!(took(5000) && !took(0), "a large one is taken alone");
    assert_eq!(counts.accepted.load(Ordering::Relaxed), 4);
    assert_eq!(counts.failures[ErrorKind::Full as usize].load(Ordering::Relaxed), 4);
}

#[test]
fn however_many_urls_hang_the_next_one_has_capacity() {
    let sized = || hook_request_with(1, Data::Text("x".repeat(1000).into()));
    let bytes = body::memory_bytes(&sized());
    for fixed in [fixed(1024, 1024, usize::MAX), fixed(usize::MAX, 1024, 1024 * bytes)] {
        let request_queue = RequestQueue::new(&fixed, Arc::default());
        let took = |url: &str| {
            let url: Arc<str> = url.into();
            (0..)
                .take_while(|_| request_queue.put(vec![(sized(), Some(url.clone()))]).is_ok())
                .count()
        };
        let taken: Vec<_> = (0..14).map(|n| took(&format!("http://hangs/{n}"))).collect();
        // Each URL gets half of what is free of three quarters, and never less than its reserved share.
        assert_eq!(taken[..6], [384, 192, 96, 48, 24, 16]);
        assert_eq!(taken[6..], [16; 8]);
        assert_eq!(took("http://answers"), 16);
        let urls = request_queue.urls(2);
        assert_eq!((urls.len(), urls[0].0.as_str()), (2, "http://hangs/0"));
        let waiting = (384 * bytes) as u64;
        assert_eq!(urls[0].1, UrlStats { waiting: 384, waiting_bytes: waiting, rejected: 1 });
        assert_eq!(request_queue.last_rejected().as_deref(), Some("http://answers"));
        drop(request_queue.take());
        assert_eq!(request_queue.urls(2)[0].1.waiting, 0);
    }
}

#[test]
fn with_the_defaults_each_of_many_urls_has_its_part_and_the_bound_holds() {
    let request_queue = RequestQueue::new(&fixed(20_000, 10_000, 128 << 20), Arc::default());
    let took = |n: usize| {
        let url: Arc<str> = format!("http://hangs/{n}").into();
        (0..)
            .take_while(|_| request_queue.put(vec![(hook_request(1), Some(url.clone()))]).is_ok())
            .count()
    };
    let taken: Vec<_> = (0..200).map(took).collect();
    assert_eq!(taken[0], 7_500);
    assert!(taken[..78].iter().all(|taken| *taken >= URL_EVENTS), "{taken:?}");
    assert_eq!(taken.iter().sum::<usize>(), 20_000);
}

#[test]
fn a_url_has_its_own_bound() {
    let request_queue = RequestQueue::new(&fixed(100, 3, 1 << 20), Arc::default());
    let put = |url: &str| request_queue.put(vec![(hook_request(1), Some(url.into()))]).is_ok();
    assert_eq!([(); 5].map(|()| put("a")), [true, true, true, false, false]);
    assert!(put("b"));
    request_queue.take().unwrap().pop_front().unwrap().fail(ErrorKind::Timeout);
    assert!(put("a"));
}

#[test]
fn requests_that_belong_together_are_taken_or_rejected_together() {
    let request_queue = RequestQueue::new(&fixed(100, 3, 1 << 20), Arc::default());
    let put = |urls: &[&str]| {
        request_queue
            .put(
                urls.iter()
                    .map(|url| (hook_request(1), Some(format!("http://{url}/").into())))
                    .collect(),
            )
            .is_ok()
    };
    assert!(put(&["a", "b", "a"]));
    assert!(!put(&["b", "a", "a"]), "the second is one too many of its URL");
    assert!(put(&["b", "b", "a"]) && !put(&["c", "b"]) && put(&["c"]));
    let rejected = |url: &str| {
        let url = format!("http://{url}/");
        request_queue.urls(9).into_iter().find(|(it, _)| *it == url).unwrap().1
    };
    assert_eq!((rejected("a").rejected, rejected("b").rejected), (3, 2));
    assert_eq!(request_queue.take().unwrap().len(), 7);
}

#[test]
fn urls_of_former_configurations_are_forgotten() {
    let request_queue = RequestQueue::new(&fixed(9, 9, 1 << 20), Arc::default());
    for n in 0..3 * URLS_MAX {
        request_queue.put(vec![(hook_request(1), Some(format!("http://a/{n}").into()))]).unwrap();
        drop(request_queue.take());
    }
    assert!(request_queue.urls(usize::MAX).len() <= URLS_MAX);
}

#[test]
fn a_request_gets_one_response_whatever_happens_to_it() {
    let (sender, responses) = std::sync::mpsc::channel();
    let mut requests = [1, 2, 3].map(|slot| request(hook_request(slot)));
    for request in &mut requests {
        let sender = sender.clone();
        request.hook_request.reply = Box::new(move |response| sender.send(response).unwrap());
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
