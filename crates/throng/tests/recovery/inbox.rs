//! Inboxes: unread messages stay until the user acknowledges them, each page shows them once, and their ids stay the
//! same.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::recovery::listener::*;
use crate::recovery::node::*;
use crate::support::*;

/// The setting for clients whose handlers may fail. Pages do not need it.
const AGAIN: (&str, &str) = ("THRONG_INBOX_REDELIVERY_SECONDS", "1");

fn cursor(node: &Node, user: &str) -> Value {
    node.api("GET", &format!("/api/cursors/{user}"), None).1
}

#[test]
fn an_open_page_gets_an_unread_message_once_and_never_loses_it() {
    // For transports that acknowledge on the connection itself, redelivery depends on the setting.
    for (settings, idioms) in
        [(&[AGAIN][..], &[ResumeStyle::Sse, ResumeStyle::Stream][..]), (&[], &[ResumeStyle::Ws])]
    {
        let node = Node::with(Storage::Memory, settings);
        let mut pages = Vec::new();
        for style in idioms {
            let user = format!("al{style:?}");
            let mut page = Listener::with(&node, *style, &[], &format!("user={user}"));
            let id = node.send(&user, json!("unread"));
            assert_eq!(page.take(&node, 1), [json!("unread")], "{style:?}");
            node.send(&user, json!("unread, too"));
            assert_eq!(page.take(&node, 1), [json!("unread, too")], "{style:?}");
            pages.push((user, id, page));
        }
        // The redelivery time passes twice here.
        std::thread::sleep(Duration::from_millis(2_100));
        for (user, id, mut page) in pages {
            let style = page.style;
            page.is_quiet(&node);
            // The page may be loaded again any number of times.
            for round in 0..8 {
                let mut again = Listener::with(&node, style, &[], &format!("user={user}"));
                let want = [json!("unread"), json!("unread, too")];
                assert_eq!(again.take(&node, 2), want, "{style:?} {round}");
            }
            let nothing = json!({
                "user": user, "topic": format!("@{user}"), "acknowledged": null, "given_up": null
            });
            assert_eq!(cursor(&node, &user), nothing, "{style:?}");
            assert_eq!(node.ack(json!({"user": user, "id": id})).0, 200);
            let mut last = Listener::with(&node, style, &[], &format!("user={user}"));
            assert_eq!(last.take(&node, 1), [json!("unread, too")], "{style:?}");
            last.is_quiet(&node);
        }
        for outcome in ["dropped", "dead_lettered"] {
            let name = format!("throng_messages_given_up_total{{outcome=\"{outcome}\"}}");
            assert_eq!(node.metric(&name), 0.0);
        }
    }
}

#[test]
fn no_message_is_delivered_again_early() {
    let node = Node::with(Storage::Memory, &[AGAIN]);
    for phase in 0..4 {
        let user = format!("al{phase}");
        let mut page = Listener::with(&node, ResumeStyle::Ws, &[], &format!("user={user}"));
        let sent = Instant::now();
        node.send(&user, json!("unread"));
        for _ in 0..2 {
            assert_eq!(page.take(&node, 1), [json!("unread")]);
        }
        let after = sent.elapsed();
        assert!(after >= Duration::from_secs(1), "it came again after {after:?}");
        // The next round begins in another part of a second.
        std::thread::sleep(Duration::from_millis(250));
    }
}

#[test]
fn a_page_without_acknowledgements_gets_new_messages() {
    let few = [("THRONG_INBOX_MESSAGES_MAX", "4"), ("THRONG_INBOX_WINDOW_MESSAGES_MAX", "4")];
    for storage in EVERYWHERE {
        let node = Node::with(storage, &few);
        for style in [ResumeStyle::Sse, ResumeStyle::Stream, ResumeStyle::Ws] {
            let user = format!("al{style:?}");
            let mut page = Listener::with(&node, style, &[], &format!("user={user}"));
            for number in 0..12 {
                // The limit drops the oldest messages, which do not block later ones.
                node.send(&user, json!(number));
                assert_eq!(page.take(&node, 1), [json!(number)], "{storage:?} {style:?}");
            }
        }
        // Expired messages don't block later ones either. One that expires too early does not come.
        let mut page = Listener::with(&node, ResumeStyle::Sse, &[], "user=al");
        for number in 0..4 {
            let body = json!({"user": "al", "data": number, "ttl_seconds": 1});
            node.post("/api/send", body);
        }
        node.until("all have expired", |_| node.history("@al", "").0.is_empty());
        node.send("al", json!("late"));
        let mut received = Vec::new();
        while received.last() != Some(&json!("late")) {
            received.extend(page.take(&node, 1));
        }
        received.pop();
        let mut sent = numbers(0..4).into_iter();
        let all = received.iter().all(|data| sent.any(|one| one == *data));
        assert!(all, "{storage:?}: {received:?}");
    }
}

#[test]
fn an_inbox_and_its_window_keep_what_they_say() {
    let sizes = [("THRONG_INBOX_MESSAGES_MAX", "40"), ("THRONG_INBOX_WINDOW_MESSAGES_MAX", "40")];
    for storage in EVERYWHERE {
        let mut node = Node::with(storage, &sizes);
        for style in ALL {
            let user = format!("al{style:?}");
            let query = format!("user={user}");
            for number in 0..43 {
                node.post("/api/send", json!({"user": user, "data": number}));
            }
            node.flush();
            assert_eq!(node.history(&format!("@{user}"), "").0, numbers(3..43), "{storage:?}");
            for restarts in [false, true] {
                if restarts && storage.outlives_server() {
                    node.restart();
                }
                let at = format!("{storage:?} {style:?} {restarts}");
                let mut page = Listener::away(style, &[], &query);
                page.connect(&node);
                assert_eq!(page.take(&node, 40), numbers(3..43), "{at}");
                page.is_quiet(&node);
            }
        }
    }
}

/// After a restart memory has little of the earlier messages. The window still applies, and messages that the limits
/// drop make room.
#[test]
fn a_window_applies_after_a_restart() {
    let few = [("THRONG_INBOX_MESSAGES_MAX", "4"), ("THRONG_INBOX_WINDOW_MESSAGES_MAX", "4")];
    for storage in [Storage::Disk, Storage::Postgres] {
        let mut node = Node::with(storage, &few);
        for style in [ResumeStyle::Sse, ResumeStyle::Stream, ResumeStyle::Ws] {
            let (user, topic) = (format!("al{style:?}"), format!("w:{style:?}"));
            let query = format!("user={user}");
            drop(Listener::with(&node, style, &[&topic], &query));
            node.until_members(&topic, 0);
            node.count(&topic, 0..10);
            (0..4).for_each(|number| _ = node.send(&user, json!(number)));
            node.restart();
            let mut worker = Listener::with(&node, style, &[&topic], &query);
            // The inbox is delivered as well, and has its own order.
            let (mut work, mut inbox) = (Vec::new(), Vec::new());
            for _ in 0..7 {
                let message = worker.next(&node);
                let to = if message["topic"] == topic { &mut work } else { &mut inbox };
                to.push(message["data"].clone());
            }
            assert_eq!((work, inbox), (numbers(0..3), numbers(0..4)), "{storage:?} {style:?}");
            node.count(&topic, 10..12);
            worker.is_quiet(&node);
            for number in 4..10 {
                node.send(&user, json!(number));
                assert_eq!(worker.take(&node, 1), [json!(number)], "{storage:?} {style:?}");
            }
        }
    }
}

#[test]
fn a_failed_handler_gets_the_message_again() {
    let node = Node::with(Storage::Memory, &[AGAIN]);
    let mut worker = Listener::with(&node, ResumeStyle::Ws, &[], "user=al");
    let id = node.send("al", json!(0));
    for _ in 0..4 {
        assert_eq!(worker.take(&node, 1), [json!(0)]);
    }
    worker.command(json!({"type": "ack", "id": 1, "message": id}));
    node.send("al", json!(2));
    // Some redeliveries may already have been on their way.
    while worker.next(&node)["data"] != 2 {}
    assert!(!worker.take(&node, 2).contains(&json!(0)), "it was acknowledged");
    assert!(node.metric("throng_messages_redelivered_total") >= 3.0);
    assert_eq!(cursor(&node, "al")["acknowledged"], id);
}

#[test]
fn deliveries_are_counted_per_message_and_dead_letters_are_not_acknowledged() {
    for storage in EVERYWHERE {
        let mut node = Node::new(storage);
        for (at, style) in
            [ResumeStyle::Sse, ResumeStyle::Stream, ResumeStyle::Poll].into_iter().enumerate()
        {
            let (user, topic) = (format!("al{style:?}"), format!("drop:{style:?}"));
            let query = format!("user={user}");
            let open = |node: &Node| Listener::with(node, style, &[&topic], &query);
            // From here on the server retains the topic's messages for the user.
            drop(open(&node));
            let path = format!("/api/cursors/{user}?topic={topic}");
            let begun = node.api("GET", &path, None).1;
            assert!(begun["acknowledged"].is_string(), "{begun}");
            assert_eq!(begun["given_up"], Value::Null);
            node.until_members(&topic, 0);
            let ids = node.count(&topic, 0..2);
            for delivery in 1..=2 {
                let received = open(&node).take(&node, 2);
                assert_eq!(received, numbers(0..2), "{storage:?} {style:?} {delivery}");
                // Deliveries of a message within a second count as one.
                std::thread::sleep(Duration::from_millis(1_100));
            }
            // The third delivery is one too many. The store may still read when the connection is open, so the test
            // waits for the cursor.
            let mut page = open(&node);
            node.until("both are given up", |node| {
                node.api("GET", &path, None).1["given_up"] == ids[1]
            });
            let fresh = node.count(&topic, 0..1);
            assert_eq!(page.next(&node)["id"], fresh[0], "{storage:?} {style:?}");
            for restarted in [false, true] {
                let end = node.api("GET", &path, None).1;
                assert_eq!(end["acknowledged"], begun["acknowledged"], "{storage:?} {restarted}");
                assert_eq!(end["given_up"], ids[1], "{storage:?} {style:?} {restarted}");
                if storage.outlives_server() {
                    node.flush();
                    node.restart();
                }
            }
            assert_eq!(open(&node).next(&node)["id"], fresh[0], "{storage:?} {style:?}");
            if storage == Storage::Memory {
                let metric = "throng_messages_given_up_total{outcome=\"dropped\"}";
                assert_eq!(node.metric(metric), 2.0 * (at + 1) as f64);
            }
        }
    }
}

/// Returns the ids of the next events with data, as a page sees them in `lastEventId`.
fn event_ids(stream: &mut Stream, count: usize) -> Vec<String> {
    let (mut ids, mut last) = (Vec::new(), String::new());
    while ids.len() < count {
        for (field, value) in stream.event() {
            match field.as_str() {
                "id" => last = value,
                "data" => ids.push(last.clone()),
                _ => {}
            }
        }
    }
    ids
}

#[test]
fn a_message_has_the_same_id_on_every_path() {
    let node = Node::new(Storage::Memory);
    let other = |number: u64| node.publish("h:other", json!(number));
    for target in ["/sse?user=al", "/sse?user=al&topic=plain", "/sse?user=al&user=bo"] {
        let mut page = node.listen(target);
        let mut ids = Vec::new();
        for number in 0..3 {
            other(number);
            ids.push(node.send("al", json!(number)));
            other(number);
        }
        let waiting = datas(&node.get("/poll?user=al&timeout=0").1).len();
        let own: Vec<String> = event_ids(&mut page, waiting).split_off(waiting - 3);
        assert_eq!(own, ids, "{target}: live");
        let mut again = node.listen(target);
        assert_eq!(event_ids(&mut again, waiting)[waiting - 3..], ids, "{target}: again");
        let mut back = Stream::new(node.connect());
        let last = format!("Last-Event-ID: {}", ids[1]);
        back.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n{last}\r\n\r\n"));
        back.head();
        // The recovery event, which has no id, is skipped.
        let all = event_ids(&mut back, waiting + 1);
        assert_eq!(all[waiting - 2..], ids, "{target}: after a reconnect");
    }
    for style in [ResumeStyle::Stream, ResumeStyle::Poll, ResumeStyle::Ws, ResumeStyle::Sse] {
        let user = format!("al{style:?}");
        let id = node.send(&user, json!(1));
        for _ in 0..2 {
            let mut page = Listener::away(style, &[], &format!("user={user}"));
            page.connect(&node);
            assert_eq!(page.next(&node)["id"], id, "{style:?}");
        }
    }
    // One topic, live and recovered, while others have messages too.
    let mut page = node.listen("/sse?topic=h:1");
    let mut ids = Vec::new();
    for number in 0..4 {
        other(number);
        ids.push(id(&node.publish("h:1", json!(number))));
        other(number);
    }
    assert_eq!(event_ids(&mut page, 4), ids);
    let mut back = node.listen(&format!("/sse?topic=h:1&since={}", ids[0]));
    assert_eq!(event_ids(&mut back, 4)[1..], ids[1..]);
    // If an id has positions of several topics, the message's own comes first.
    let mut page = node.listen("/sse?user=al&topic=h:1&topic=h:2");
    let waiting = datas(&node.get("/poll?user=al&timeout=0").1).len();
    event_ids(&mut page, waiting);
    for topic in ["h:1", "h:2"] {
        let own = id(&node.publish(topic, json!(0)));
        let received = event_ids(&mut page, 1).remove(0);
        assert_eq!(received.split('/').next(), Some(own.as_str()));
    }
    let own = node.send("al", json!("last"));
    assert_eq!(event_ids(&mut page, 1)[0].split('/').next(), Some(own.as_str()));
}

/// Makes polls and cuts them at varying moments around their responses. Each poll resumes from the `since` of the
/// last complete response. Then polls the rest. Returns the numbers that arrived and how many polls were cut.
fn polls_cut_around_replies(node: &Node, target: &str, messages: u64) -> (Vec<u64>, usize) {
    let (_, first) = node.get(&format!("{target}&timeout=0"));
    let mut since = first["since"].as_str().unwrap().to_string();
    let (mut numbers, mut cut) = (Vec::new(), 0);
    for number in 0..messages {
        let mut poll = Stream::new(node.connect());
        poll.send(&format!("GET {target}&since={since} HTTP/1.1\r\nHost: t\r\n\r\n"));
        std::thread::sleep(Duration::from_micros(number * 97 % 1_500));
        node.publish("plain", json!(number));
        // Cuts the poll before it reads the response, at varying moments.
        match number % 8 {
            0 => {
                let (_, reply) = poll.read_reply();
                let reply: Value = serde_json::from_str(&reply).unwrap();
                numbers.extend(datas(&reply).iter().filter_map(Value::as_u64));
                since = reply["since"].as_str().unwrap().to_string();
            }
            1 => {
                let _ = poll.reader.get_mut().write_all(b"GET / HTTP");
                cut += 1;
            }
            _ => cut += 1,
        }
    }
    while numbers.last() != Some(&(messages - 1)) {
        let (_, reply) = node.get(&format!("{target}&since={since}"));
        since = reply["since"].as_str().unwrap().to_string();
        let rest = datas(&reply);
        assert!(!rest.is_empty(), "{numbers:?}, and then nothing");
        numbers.extend(rest.iter().filter_map(Value::as_u64));
    }
    (numbers, cut)
}

#[test]
fn polls_cut_during_their_reply_lose_no_message() {
    let node = Node::new(Storage::Memory);
    let (numbers, cut) = polls_cut_around_replies(&node, "/poll?topic=plain", 400);
    assert!(cut >= 245, "{cut}");
    assert_eq!(numbers, (0..400).collect::<Vec<u64>>());
    // The inbox needs no position, since it delivers every message that is not acknowledged.
    let sent: BTreeSet<u64> = (0..60).collect();
    for number in &sent {
        let mut poll = Stream::new(node.connect());
        poll.send("GET /poll?user=al HTTP/1.1\r\nHost: t\r\n\r\n");
        std::thread::sleep(Duration::from_micros(number * 97 % 1_500));
        node.send("al", json!(number));
    }
    let inbox = datas(&node.get("/poll?user=al&timeout=0").1);
    assert_eq!(inbox.iter().filter_map(Value::as_u64).collect::<BTreeSet<u64>>(), sent);
}
