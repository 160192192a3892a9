//! Another process continues the work with the application.

use ::handover::testing::pass;
use ::handover::{Part, Sent};
use model::{Name, Publication};
use shard::{Command, EventSource, ForwardRequest, HookEvent, PendingHook, SharedHook};

use super::*;

/// The responses that a shard gets: the number of the request, and whether the response is ok.
type Replies = mpsc::UnboundedReceiver<(u32, bool)>;

/// A shard that passes on the responses it gets.
fn shards() -> (ToShard, Replies) {
    let (sender, replies) = mpsc::unbounded_channel();
    let to_shard = move |shard, command| {
        let Command::WebhookResponded { slot, serial, hook, response } = command else { panic!() };
        assert_eq!((shard, serial), (0, 3));
        let number = match hook {
            PendingHook::Connect(number) => number,
            other => panic!("{other:?}"),
        };
        assert_eq!(number % 10, slot);
        let _ = sender.send((number, matches!(response, WebhookResponse::Ok { .. })));
    };
    (Arc::new(to_shard), replies)
}

async fn next(replies: &mut Replies) -> (u32, bool) {
    tokio::time::timeout(TIMEOUT, replies.recv()).await.expect("an answer").unwrap()
}

/// A request with a number, of connection `number % 10`.
fn numbered_request(number: u32, to_shard: &ToShard) -> WebhookRequest {
    let (slot, to_shard) = (number % 10, to_shard.clone());
    let hook = SharedHook::new(PendingHook::Connect(number));
    let base = hook_request_with(slot, Data::Json(number.to_string().into()));
    let shared_hook = hook.clone();
    let reply = Box::new(move |response| {
        let Some(hook) = shared_hook.take() else { return };
        to_shard(0, Command::WebhookResponded { slot, serial: 3, hook, response });
    });
    WebhookRequest { hook, reply, ..base }
}

fn dispatcher(settings: Settings) -> (Arc<Dispatcher>, Workers) {
    Dispatcher::new(
        fixed(2666, 1),
        settings,
        super::EventStart { node: "n1".into(), ..Default::default() },
    )
}

fn ids(app: &App) -> Vec<String> {
    let seen = app.seen.lock().unwrap();
    seen.iter().map(|it| it.headers["webhook-id"].to_str().unwrap().into()).collect()
}

fn payloads(app: &App) -> Vec<Vec<Value>> {
    app.seen.lock().unwrap().iter().map(Seen::payloads).collect()
}

#[tokio::test]
async fn requests_are_repeated_and_get_one_response() {
    let app = app(0, echo).await;
    let set = || Settings { batch_events_max: 2, ..settings(&app.url) };
    let (old, workers) = dispatcher(set());
    let worker = tokio::spawn(workers.worker.run());
    let ((to_old, mut old_replies), (to_new, mut new_replies)) = (shards(), shards());
    let (new, new_workers) = dispatcher(set());
    new.stand_still();
    let parts = [Hooks::new(old.clone(), to_old.clone()), Hooks::new(new.clone(), to_new.clone())];
    let mut sent = Sent::new();
    old.send(vec![numbered_request(1, &to_old)]).unwrap();
    app.sizes(1).await;
    assert_eq!(pass(&parts[0], &parts[1], &mut sent), 1);
    app.gate.add_permits(1);
    assert_eq!(next(&mut old_replies).await, (1, true));
    old.send(vec![numbered_request(2, &to_old), numbered_request(12, &to_old)]).unwrap();
    app.sizes(2).await;
    for number in [3, 4, 5] {
        old.send(vec![numbered_request(number, &to_old)]).unwrap();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    old.stand_still();
    old.send(vec![numbered_request(6, &to_old)]).unwrap();
    // What the application responds from now on has no effect here.
    app.gate.add_permits(1);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((old_replies.try_recv().is_err(), app.sizes(2).await.len()), (true, 2));
    // One request has ended, and six have come.
    assert_eq!(pass(&parts[0], &parts[1], &mut sent), 7);
    assert_eq!(pass(&parts[0], &parts[1], &mut sent), 0);
    parts[1].complete().unwrap();
    let worker_of_new = tokio::spawn(new_workers.worker.run());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(app.sizes(2).await.len(), 2, "it stands still");
    // The old dispatcher ends, and sends no replies.
    worker.abort();
    old.end();
    drop(old);
    new.go_on();
    app.gate.add_permits(OPEN / 2);
    for number in [2, 12, 3, 4, 5, 6] {
        assert_eq!(next(&mut new_replies).await, (number, true));
    }
    assert!(old_replies.try_recv().is_err() && new_replies.try_recv().is_err());
    let payloads = payloads(&app);
    let want = [json!([1]), json!([2, 12]), json!([2, 12]), json!([3, 4]), json!([5, 6])];
    assert_eq!(json!(payloads), json!(want));
    let ids = ids(&app);
    assert!(ids[1] == ids[2] && ids[2] != ids[3], "a repetition has the id of the first");
    assert_eq!((new.stats().accepted, new.stats().waiting), (6, 0));
    worker_of_new.abort();
}

#[tokio::test]
async fn an_upgrade_that_fails_loses_no_request() {
    let app = app(0, echo).await;
    let timeout = Duration::from_secs(3);
    let set = Settings { batch_events_max: 2, timeout, ..settings(&app.url) };
    let (old, workers) = dispatcher(set);
    let worker = tokio::spawn(workers.worker.run());
    let (to_old, mut replies) = shards();
    old.send(vec![numbered_request(1, &to_old)]).unwrap();
    app.sizes(1).await;
    for number in [2, 3, 4] {
        old.send(vec![numbered_request(number, &to_old)]).unwrap();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    old.stand_still();
    app.gate.add_permits(OPEN / 2);
    // No time limit passes meanwhile.
    tokio::time::sleep(timeout + Duration::from_millis(500)).await;
    assert!(replies.try_recv().is_err());
    old.go_on();
    for number in 1..=4 {
        assert_eq!(next(&mut replies).await, (number, true));
    }
    assert_eq!(app.sizes(3).await, [1, 2, 1]);
    worker.abort();
}

#[test]
fn a_request_is_written_with_all_that_the_application_is_sent() {
    use protocol::request::{ConnectRequest, Credentials};
    use shard::Connecting;
    let (to_shard, _replies) = shards();
    let pair = |name: &str, value: &str| (name.into(), value.into());
    let request = ConnectRequest {
        transport: "mqtt",
        users: vec!["al".into()],
        path: "/mqtt".into(),
        query: vec![pair("a", "1"), pair("a", "2")],
        headers: vec![pair("cookie", "x=y")],
        credentials: Some(Credentials {
            client: "c".into(),
            user: Some("u".into()),
            password: Some(("cGFzcw==".into(), true)),
        }),
    };
    let address = Some("2001:db8::1".parse().unwrap());
    let connect = Connecting { address, request, topics_max: 9 };
    let mut base = numbered_request(1, &to_shard);
    base.url = Some("http://other/".into());
    base.details.kind = WebhookKind::Connect;
    base.details.payload = Some(Data::Binary([0, 255].into()));
    (base.details.tags, base.details.key) = (vec!["t".into()], Some("k".into()));
    base.details.connect = Some(Box::new(connect));
    let body = body::write([&base].into_iter());
    let (old, _workers) = dispatcher(settings("http://one/"));
    let (new, _new_workers) = dispatcher(settings("http://one/"));
    old.send(vec![base]).unwrap();
    let parts = [&old, &new].map(|it| Hooks::new(it.clone(), to_shard.clone()));
    assert_eq!(pass(&parts[0], &parts[1], &mut Sent::new()), 1);
    parts[1].complete().unwrap();
    let taken = new.request_queue.take().unwrap();
    assert_eq!(
        String::from_utf8(body::write(taken.iter().map(|it| &it.hook_request))),
        String::from_utf8(body)
    );
    assert_eq!(taken[0].url.as_deref(), Some("http://other/"));
    assert_eq!(taken[0].hook_request.details.connect.as_ref().map(|it| it.topics_max), Some(9));
    // Damaged records are errors.
    assert!(parts[1].import(b"qshort", Some(b"")).is_err());
    parts[1].import(&[b'q', 0, 0, 0, 0, 0, 0, 0, 0], Some(b"\xff")).unwrap();
    assert!(parts[1].complete().is_err());
}

fn joined(topic: &str) -> HookEvent {
    let connection = ConnectionId { node: model::NodeId(9), shard: 0, slot: 1, serial: 3 };
    let source = EventSource { connection, users: vec!["al".into()], transport: "ws" };
    HookEvent::Joined(source, topic.into())
}

#[tokio::test]
async fn events_go_on_with_their_numbers() {
    let app = app(0, echo).await;
    let all = HookEvents {
        connected: true,
        disconnected: true,
        joined: true,
        left: true,
        occupied: true,
        vacated: true,
    };
    let set = || Settings { batch_events_max: 3, events: all, ..settings(&app.url) };
    let ((old, workers), (new, new_workers)) = (dispatcher(set()), dispatcher(set()));
    new.stand_still();
    let parts = [EventsPart::new(old.clone()), EventsPart::new(new.clone())];
    let mut sent = Sent::new();
    let event_sender = tokio::spawn(workers.event_sender.run());
    // The event that the node has begun is under way, and not taken.
    app.sizes(1).await;
    old.notify(0, vec![joined("a"), joined("b")]);
    old.notify(0, vec![HookEvent::Occupied("t".into())]);
    let waiting = || old.event_queue.lock().after(None, 9, |_| ()).len();
    until("the events wait", || waiting() == 4).await;
    // Four events wait, one topic is occupied, and there is the state.
    assert_eq!(pass(&parts[0], &parts[1], &mut sent), 4 + 1 + 1);
    old.stand_still();
    let source = |event| match event {
        HookEvent::Joined(source, _) => source,
        _ => unreachable!(),
    };
    let (reason, seconds) = (model::CloseReason::ByClient, 7);
    old.notify(0, vec![HookEvent::Disconnected { source: source(joined("")), reason, seconds }]);
    old.notify(0, vec![HookEvent::Vacated("t".into()), HookEvent::Occupied("u".into())]);
    app.gate.add_permits(1);
    tokio::time::sleep(Duration::from_millis(50)).await;
    // An event without a number, and two topics with an event that is due.
    assert_eq!(pass(&parts[0], &parts[1], &mut sent), 3);
    event_sender.abort();
    old.end();
    parts[1].complete().unwrap();
    let event_sender = tokio::spawn(new_workers.event_sender.run());
    new.notify(0, vec![joined("c")]);
    new.go_on();
    app.gate.add_permits(OPEN / 2);
    let events = || -> Vec<Value> {
        app.seen.lock().unwrap().iter().flat_map(|seen| seen.events.clone()).collect()
    };
    until("nine events", || events().len() >= 9).await;
    let events = events();
    let shown = |event: &Value| {
        let topic = event["topic"].as_str().unwrap_or_default();
        format!("{} {topic}", event["kind"].as_str().unwrap())
    };
    let shown: Vec<String> = events.iter().map(shown).collect();
    // The first request comes again unchanged, and there is no second event that the node has begun.
    assert_eq!(shown[..5], ["started ", "started ", "joined a", "joined b", "occupied t"]);
    let mut rest = shown[5..].to_vec();
    rest.sort_unstable();
    assert_eq!(rest, ["disconnected ", "joined c", "occupied u", "vacated t"]);
    let ids_of: Vec<u64> =
        events.iter().map(|event| event["id"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(ids_of[0], ids_of[1]);
    assert!(ids_of[1..].windows(2).all(|pair| pair[1] == pair[0] + 1), "{ids_of:?}");
    assert_eq!(ids(&app)[0], ids(&app)[1]);
    event_sender.abort();
}

struct NoReplies;

impl PublishReplies for NoReplies {
    fn publish(
        &self,
        _: &[u8],
        _: &dyn Fn(&str) -> Option<ReplyTo>,
        _: &Arc<ReplyCounts>,
    ) -> Result<(), String> {
        Ok(())
    }
}

/// A back end that records its messages.
async fn back_end(gate: usize) -> Arc<App> {
    app(gate, |_| StatusCode::NO_CONTENT.into_response()).await
}

fn forwarded(filter: &str, number: u32, to_shard: &ToShard) -> ForwardRequest {
    let WebhookRequest { connection, hook, reply, .. } = numbered_request(number, to_shard);
    ForwardRequest {
        filter: filter.into(),
        publication: Publication::new("a", Data::Json(number.to_string().into())),
        users: vec![Name::from("al")],
        connection: Some(connection),
        transport: "mqtt",
        client: Some("pump".into()),
        at_ms: 77,
        hook,
        reply: Some(reply),
    }
}

#[tokio::test]
async fn messages_for_back_ends_are_sent_again_in_their_order() {
    let app = back_end(0).await;
    let forward = |filter: &str| Forward {
        filter: filter.into(),
        url: app.url.as_str().into(),
        timeout: Duration::from_secs(60),
        retry: Duration::from_secs(60),
        batch_messages_max: 2,
        batch_wait: Duration::ZERO,
        queue_messages_max: 100,
        queue_bytes_max: 1 << 20,
    };
    let set = |filters: &[&str]| Settings {
        forwards: filters.iter().map(|filter| forward(filter)).collect(),
        ..settings(&app.url)
    };
    let ((old, workers), (new, new_workers)) =
        (dispatcher(set(&["a", "b"])), dispatcher(set(&["a"])));
    new.stand_still();
    let ((to_old, mut old_replies), (to_new, mut new_replies)) = (shards(), shards());
    let parts =
        [Forwarded::new(old.clone(), to_old.clone()), Forwarded::new(new.clone(), to_new.clone())];
    let forwarder = tokio::spawn(workers.forwarder.run(Arc::new(NoReplies)));
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut sent = Sent::new();
    old.forward(forwarded("a", 1, &to_old)).unwrap();
    app.sizes(1).await;
    assert_eq!(pass(&parts[0], &parts[1], &mut sent), 2, "a message and the state");
    for number in [2, 3, 4] {
        old.forward(forwarded("a", number, &to_old)).unwrap();
    }
    old.set(set(&["a"]));
    old.stand_still();
    let unwatched = ForwardRequest { reply: None, ..forwarded("a", 5, &to_old) };
    unwatched.hook.take();
    old.forward(unwatched).unwrap();
    app.gate.add_permits(1);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(pass(&parts[0], &parts[1], &mut sent), 4 + 1);
    assert_eq!(pass(&parts[0], &parts[1], &mut sent), 0);
    forwarder.abort();
    old.end();
    parts[1].complete().unwrap();
    let forwarder = tokio::spawn(new_workers.forwarder.run(Arc::new(NoReplies)));
    new.go_on();
    new.forward(forwarded("a", 6, &to_new)).unwrap();
    app.gate.add_permits(OPEN / 2);
    for number in [1, 2, 3, 4, 6] {
        assert_eq!(next(&mut new_replies).await, (number, true));
    }
    assert!(old_replies.try_recv().is_err());
    let seen = app.seen.lock().unwrap();
    let data: Vec<Vec<Value>> = seen
        .iter()
        .map(|it| it.events.iter().map(|event| event["data"].clone()).collect())
        .collect();
    assert_eq!(json!(data[..4]), json!([[1], [1], [2, 3], [4, 5]]));
    assert_eq!(seen[0].events[0], seen[1].events[0], "with the same id and all else");
    let ids: Vec<&Value> = seen[1..].iter().flat_map(|it| &it.events).map(|it| &it["id"]).collect();
    assert_eq!(json!(ids), json!(["n1-1", "n1-2", "n1-3", "n1-4", "n1-5", "n1-6"]));
    drop(seen);
    let request_ids = self::ids(&app);
    assert!(request_ids[0] == request_ids[1] && request_ids[1] != request_ids[2]);
    forwarder.abort();
}

#[tokio::test]
async fn a_message_whose_rule_is_gone_gets_a_response() {
    let (old, _workers) = dispatcher(Settings {
        forwards: vec![Forward {
            filter: "a".into(),
            url: "http://127.0.0.1:9/".into(),
            timeout: Duration::from_secs(1),
            retry: Duration::from_secs(1),
            batch_messages_max: 2,
            batch_wait: Duration::ZERO,
            queue_messages_max: 100,
            queue_bytes_max: 1 << 20,
        }],
        ..settings("")
    });
    let (new, _new_workers) = dispatcher(settings(""));
    let ((to_old, _replies), (to_new, mut replies)) = (shards(), shards());
    old.forward(forwarded("a", 1, &to_old)).unwrap();
    // A reload removes the rule before its messages are sent.
    old.set(settings(""));
    let parts = [Forwarded::new(old, to_old), Forwarded::new(new, to_new)];
    assert_eq!(pass(&parts[0], &parts[1], &mut Sent::new()), 2);
    parts[1].complete().unwrap();
    assert_eq!(next(&mut replies).await, (1, false));
}
