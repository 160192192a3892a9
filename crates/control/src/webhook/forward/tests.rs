use std::sync::atomic::AtomicUsize;

use model::{Data, Publication};
use shard::WebhookResponse;
use tokio::time::advance;

use super::queue::{NextStep, Pending};
use super::*;

fn rule(filter: &str) -> Forward {
    Forward {
        filter: filter.into(),
        url: "http://127.0.0.1:9/a".into(),
        timeout: Duration::from_secs(1),
        retry: Duration::from_secs(2),
        batch_messages_max: 3,
        batch_wait: Duration::from_millis(10),
        queue_messages_max: 4,
        queue_bytes_max: 2_000,
    }
}

/// A message. With `replies` its client waits for results, and counts them there.
fn message(data: &str, replies: Option<&Arc<AtomicUsize>>) -> ForwardRequest {
    let replies = replies.cloned();
    ForwardRequest {
        filter: "a".into(),
        publication: Publication::new("a", Data::Text(data.into())),
        users: Vec::new(),
        connection: None,
        transport: "mqtt",
        client: None,
        at_ms: 0,
        hook: shard::SharedHook::default(),
        reply: replies.map(|replies| -> shard::Reply<WebhookResponse> {
            Box::new(move |_| _ = replies.fetch_add(1, Ordering::Relaxed))
        }),
    }
}

fn queue() -> Arc<ForwardQueue> {
    Arc::new(ForwardQueue::new(rule("a"), Proof::default(), Arc::default()))
}

fn put(
    queue: &Arc<ForwardQueue>,
    data: &str,
    replies: Option<&Arc<AtomicUsize>>,
) -> Result<(), QueueFull> {
    queue.clone().put(message(data, replies), data.into(), 0)
}

fn sent(queue: &ForwardQueue) -> Vec<Pending> {
    match queue.poll(Instant::now()) {
        NextStep::Send(batch) => batch.into(),
        NextStep::Until(_) | NextStep::Ended => Vec::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_leaves_when_it_is_full_or_has_waited() {
    let queue = queue();
    assert!(matches!(queue.poll(Instant::now()), NextStep::Until(None)));
    put(&queue, "1", None).unwrap();
    advance(Duration::from_millis(4)).await;
    put(&queue, "2", None).unwrap();
    assert!(matches!(queue.poll(Instant::now()), NextStep::Until(Some(_))));
    advance(Duration::from_millis(6)).await;
    let batch = sent(&queue);
    assert_eq!(batch.iter().map(|it| &*it.id).collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(queue.stats().waiting, 2, "until they are taken");
    batch.into_iter().for_each(Pending::taken);
    assert_eq!(
        (queue.stats().waiting, queue.stats().waiting_bytes, queue.stats().taken),
        (0, 0, 2)
    );
    (3..7).for_each(|n| put(&queue, &n.to_string(), None).unwrap());
    assert_eq!(sent(&queue).len(), 3, "as many as a request may carry");
    assert!(sent(&queue).is_empty());
    // Messages that wait when the queue is closed are sent at once.
    queue.close();
    assert_eq!(sent(&queue).len(), 1);
    assert!(matches!(queue.poll(Instant::now()), NextStep::Ended));
}

#[tokio::test(start_paused = true)]
async fn a_full_lane_refuses_who_waits_and_drops_the_rest() {
    let (queue, replies) = (queue(), Arc::new(AtomicUsize::new(0)));
    (0..4).for_each(|_| put(&queue, "x", Some(&replies)).unwrap());
    assert_eq!(put(&queue, "x", Some(&replies)), Err(QueueFull));
    assert_eq!(put(&queue, "x", None), Err(QueueFull));
    let stats = queue.stats();
    assert_eq!((stats.waiting, stats.refused, stats.dropped), (4, 1, 1));
    let late = queue.take_late(Instant::now(), Duration::from_secs(1));
    assert!(late.is_empty());
    advance(Duration::from_secs(2)).await;
    let late = queue.take_late(Instant::now(), Duration::from_secs(1));
    assert_eq!(late.len(), 4);
    drop(late);
    assert_eq!((queue.stats().failed, replies.load(Ordering::Relaxed)), (4, 4));
    // The limit on bytes holds, except for a message that is alone.
    put(&queue, &"x".repeat(5_000), None).unwrap();
    assert_eq!(put(&queue, "x", None), Err(QueueFull));
    queue.abandon();
    assert_eq!((queue.stats().waiting_bytes, put(&queue, "x", None)), (0, Err(QueueFull)));
}

#[tokio::test]
async fn rules_come_and_go_and_what_is_for_one_that_is_gone_is_refused() {
    let (forwards, replies) =
        (Forwards::new("n".into(), Arc::default()), Arc::new(AtomicUsize::new(0)));
    let proof = Proof::default();
    forwards.set(&[rule("a"), rule("b")], &proof);
    assert_eq!((forwards.begun().len(), forwards.stats().len()), (2, 2));
    forwards.put(message("x", Some(&replies))).unwrap();
    forwards.set(&[Forward { batch_messages_max: 9, ..rule("a") }], &proof);
    let stats = forwards.stats();
    assert_eq!((stats.len(), stats[0].1.waiting), (1, 1), "what waits stays");
    forwards.set(&[], &proof);
    assert!(forwards.begun().is_empty());
    assert_eq!(replies.load(Ordering::Relaxed), 0);
    // Without a rule the message is rejected, and its `reply` is not called: a result would look like the back end's.
    assert_eq!(forwards.put(message("x", Some(&replies))), Err(QueueFull));
    assert_eq!(
        (forwards.put(message("x", None)), replies.load(Ordering::Relaxed)),
        (Err(QueueFull), 0)
    );
}

#[test]
fn a_reply_goes_where_its_client_said_or_to_its_user() {
    let reply_to = |request: ForwardRequest| {
        let queue = queue();
        queue.clone().put(request, "1".into(), 0).unwrap();
        queue.close();
        let to = sent(&queue)[0].reply_to();
        to.map(|to| (to.topic, to.correlation_data))
    };
    let properties = model::Properties {
        response_topic: Some("answers".into()),
        correlation_data: Some([7].into()),
        ..model::Properties::default()
    };
    assert_eq!(reply_to(message("x", None)), None);
    let mut request = message("x", None);
    request.users = vec!["alice".into()];
    assert_eq!(reply_to(request), Some(("@alice".into(), None)));
    let mut request = message("x", None);
    request.users = vec!["alice".into()];
    request.publication.attributes.get_or_insert_default().properties = Some(properties.into());
    assert_eq!(reply_to(request), Some(("answers".into(), Some([7].into()))));
}
