//! What users have not read: it stays, each page shows it once, and it is the same message each time.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::home::*;
use crate::listener::*;
use crate::support::*;

/// For clients whose handlers may fail; a page has none.
const AGAIN: (&str, &str) = ("THRONG_OFFLINE_REDELIVERY_SECONDS", "1");

fn cursor(home: &Home, user: &str) -> Value {
    home.api("GET", &format!("/api/cursors/{user}"), None).1
}

#[test]
fn an_unread_message_is_shown_once_by_an_open_page_and_never_given_up() {
    // Where clients acknowledge on the connection itself, that is a matter of the setting.
    for (settings, idioms) in
        [(&[AGAIN][..], &[Idiom::Sse, Idiom::Stream][..]), (&[], &[Idiom::Ws])]
    {
        let home = Home::with(Keeps::Memory, settings);
        for idiom in idioms {
            let user = format!("al{idiom:?}");
            let mut page = Listener::with(&home, *idiom, &[], &format!("user={user}"));
            let id = home.send(&user, json!("unread"));
            assert_eq!(page.take(&home, 1), [json!("unread")], "{idiom:?}");
            page.is_quiet(&home, 2_500);
            home.send(&user, json!("unread, too"));
            assert_eq!(page.take(&home, 1), [json!("unread, too")], "{idiom:?}");
            page.is_quiet(&home, 1_500);
            // However often it is loaded again.
            for round in 0..8 {
                let mut again = Listener::with(&home, *idiom, &[], &format!("user={user}"));
                let want = [json!("unread"), json!("unread, too")];
                assert_eq!(again.take(&home, 2), want, "{idiom:?} {round}");
            }
            let nothing = json!({
                "user": user, "topic": format!("@{user}"), "acknowledged": null, "given_up": null
            });
            assert_eq!(cursor(&home, &user), nothing, "{idiom:?}");
            assert_eq!(home.ack(json!({"user": user, "id": id})).0, 200);
            let mut last = Listener::with(&home, *idiom, &[], &format!("user={user}"));
            assert_eq!(last.take(&home, 1), [json!("unread, too")], "{idiom:?}");
            last.is_quiet(&home, 100);
        }
        for outcome in ["dropped", "dead_lettered"] {
            let name = format!("throng_messages_given_up_total{{outcome=\"{outcome}\"}}");
            assert_eq!(home.metric(&name), 0.0);
        }
    }
}

#[test]
fn a_page_that_reads_nothing_is_told_what_is_new() {
    let few = [("THRONG_OFFLINE_MESSAGES_MAX", "4"), ("THRONG_OFFLINE_WINDOW_MESSAGES_MAX", "4")];
    for keeps in BOTH {
        let home = Home::with(keeps, &few);
        for idiom in [Idiom::Sse, Idiom::Stream, Idiom::Ws] {
            let user = format!("al{idiom:?}");
            let mut page = Listener::with(&home, idiom, &[], &format!("user={user}"));
            for number in 0..12 {
                // The oldest are dropped; they hold up nothing.
                home.send(&user, json!(number));
                assert_eq!(page.take(&home, 1), [json!(number)], "{keeps:?} {idiom:?}");
            }
        }
        // Nor do those that have expired.
        let mut page = Listener::with(&home, Idiom::Sse, &[], "user=al");
        for number in 0..4 {
            let body = json!({"user": "al", "data": number, "ttl_seconds": 1});
            home.post("/api/send", body);
            assert_eq!(page.take(&home, 1), [json!(number)], "{keeps:?}");
        }
        std::thread::sleep(Duration::from_millis(1_100));
        home.send("al", json!("late"));
        assert_eq!(page.take(&home, 1), [json!("late")], "{keeps:?}");
    }
}

#[test]
fn a_client_whose_handler_failed_is_given_the_message_again() {
    let home = Home::with(Keeps::Memory, &[AGAIN]);
    let mut worker = Listener::with(&home, Idiom::Ws, &[], "user=al");
    let id = home.send("al", json!(0));
    for _ in 0..4 {
        assert_eq!(worker.take(&home, 1), [json!(0)]);
    }
    worker.command(json!({"type": "ack", "id": 1, "message": id}));
    home.send("al", json!(2));
    // Some may have been on their way.
    while worker.next(&home)["data"] != 2 {}
    assert!(!worker.take(&home, 2).contains(&json!(0)), "it was acknowledged");
    assert!(home.metric("throng_messages_redelivered_total") >= 3.0);
    assert_eq!(cursor(&home, "al")["acknowledged"], id);
}

/// How often each of two messages comes to a user who reads nothing, on connections one after the
/// other; until nothing comes.
fn deliveries(home: &Home, idiom: Idiom, topic: &str, query: &str) -> [usize; 2] {
    let mut counts = [0; 2];
    loop {
        let mut page = Listener::with(home, idiom, &[topic], query);
        let heard = page.rest_before(home, "plain");
        if heard.is_empty() {
            return counts;
        }
        heard.iter().for_each(|data| counts[data.as_u64().unwrap() as usize] += 1);
        // Those of one second count once.
        std::thread::sleep(Duration::from_millis(1_100));
    }
}

#[test]
fn deliveries_are_counted_by_message_and_what_is_given_up_is_not_called_acknowledged() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        for (at, idiom) in [Idiom::Sse, Idiom::Stream, Idiom::Poll].into_iter().enumerate() {
            let (user, topic) = (format!("al{idiom:?}"), format!("drop:{idiom:?}"));
            let query = format!("user={user}&topic=plain");
            // From here on the topic's messages are the user's.
            drop(Listener::with(&home, idiom, &[&topic], &query));
            home.until_members(&topic, 0);
            let ids = home.count(&topic, 0..2);
            let path = format!("/api/cursors/{user}?topic={topic}");
            let begun = home.api("GET", &path, None).1;
            assert_eq!(begun["given_up"], Value::Null);
            assert_eq!(deliveries(&home, idiom, &topic, &query), [2, 2], "{keeps:?} {idiom:?}");
            for restarted in [false, true] {
                let end = home.api("GET", &path, None).1;
                assert_eq!(end["acknowledged"], begun["acknowledged"], "{keeps:?} {restarted}");
                assert_eq!(end["given_up"], ids[1], "{keeps:?} {idiom:?} {restarted}");
                if keeps == Keeps::Disk {
                    home.settle();
                    home.restart();
                }
            }
            let fresh = home.count(&topic, 0..1);
            let mut page = Listener::with(&home, idiom, &[&topic], &query);
            assert_eq!(page.next(&home)["id"], fresh[0], "{keeps:?} {idiom:?}");
            if keeps == Keeps::Memory {
                let metric = "throng_messages_given_up_total{outcome=\"dropped\"}";
                assert_eq!(home.metric(metric), 2.0 * (at + 1) as f64);
            }
        }
    }
}

/// The ids of the next events that have data, as a page's `lastEventId` has them.
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
fn a_message_has_one_id_however_it_comes() {
    let home = Home::new(Keeps::Memory);
    let other = |number: u64| home.publish("h:other", json!(number));
    for target in ["/sse?user=al", "/sse?user=al&topic=plain", "/sse?user=al&user=bo"] {
        let mut page = home.listen(target);
        let mut ids = Vec::new();
        for number in 0..3 {
            other(number);
            ids.push(home.send("al", json!(number)));
            other(number);
        }
        let waiting = datas(&home.get("/poll?user=al&timeout=0").1).len();
        let own: Vec<String> = event_ids(&mut page, waiting).split_off(waiting - 3);
        assert_eq!(own, ids, "{target}: live");
        let mut again = home.listen(target);
        assert_eq!(event_ids(&mut again, waiting)[waiting - 3..], ids, "{target}: again");
        let mut back = Stream::new(home.connect());
        let last = format!("Last-Event-ID: {}", ids[1]);
        back.send(&format!("GET {target} HTTP/1.1\r\nHost: t\r\n{last}\r\n\r\n"));
        back.head();
        // With what says that it is recovered, which has no id.
        let all = event_ids(&mut back, waiting + 1);
        assert_eq!(all[waiting - 2..], ids, "{target}: after a reconnect");
    }
    for idiom in [Idiom::Stream, Idiom::Poll, Idiom::Ws, Idiom::Sse] {
        let user = format!("al{idiom:?}");
        let id = home.send(&user, json!(1));
        for _ in 0..2 {
            let mut page = Listener::away(idiom, &[], &format!("user={user}"));
            page.come(&home);
            assert_eq!(page.next(&home)["id"], id, "{idiom:?}");
        }
    }
    // One topic, live and caught up, while others are busy.
    let mut page = home.listen("/sse?topic=h:1");
    let mut ids = Vec::new();
    for number in 0..4 {
        other(number);
        ids.push(id(&home.publish("h:1", json!(number))));
        other(number);
    }
    assert_eq!(event_ids(&mut page, 4), ids);
    let mut back = home.listen(&format!("/sse?topic=h:1&since={}", ids[0]));
    assert_eq!(event_ids(&mut back, 4)[1..], ids[1..]);
    // Where the id must say more, the message's own comes first.
    let mut page = home.listen("/sse?user=al&topic=h:1&topic=h:2");
    let waiting = datas(&home.get("/poll?user=al&timeout=0").1).len();
    event_ids(&mut page, waiting);
    for topic in ["h:1", "h:2"] {
        let own = id(&home.publish(topic, json!(0)));
        let heard = event_ids(&mut page, 1).remove(0);
        assert_eq!(heard.split('/').next(), Some(own.as_str()));
    }
    let own = home.send("al", json!("last"));
    assert_eq!(event_ids(&mut page, 1)[0].split('/').next(), Some(own.as_str()));
}

/// Polls that are cut in every moment around their answers, each from the `since` of the last one
/// that was read whole; then what is left. The numbers that came, and how many polls were cut.
fn polls_cut_around_answers(home: &Home, target: &str, messages: u64) -> (Vec<u64>, usize) {
    let (_, first) = home.get(&format!("{target}&timeout=0"));
    let mut since = first["since"].as_str().unwrap().to_string();
    let (mut numbers, mut cut) = (Vec::new(), 0);
    for number in 0..messages {
        let mut poll = Stream::new(home.connect());
        poll.send(&format!("GET {target}&since={since} HTTP/1.1\r\nHost: t\r\n\r\n"));
        std::thread::sleep(Duration::from_micros(number * 97 % 1_500));
        home.publish("plain", json!(number));
        // It is cut before its answer is read; in all moments.
        match number % 8 {
            0 => {
                let (_, answer) = poll.answer();
                let answer: Value = serde_json::from_str(&answer).unwrap();
                numbers.extend(datas(&answer).iter().filter_map(Value::as_u64));
                since = answer["since"].as_str().unwrap().to_string();
            }
            1 => {
                let _ = poll.reader.get_mut().write_all(b"GET / HTTP");
                cut += 1;
            }
            _ => cut += 1,
        }
    }
    loop {
        let (_, answer) = home.get(&format!("{target}&timeout=0&since={since}"));
        let rest = datas(&answer);
        since = answer["since"].as_str().unwrap().to_string();
        if rest.is_empty() {
            return (numbers, cut);
        }
        numbers.extend(rest.iter().filter_map(Value::as_u64));
    }
}

#[test]
fn polls_that_are_cut_in_the_moment_of_their_answer_lose_nothing() {
    let home = Home::new(Keeps::Memory);
    let (numbers, cut) = polls_cut_around_answers(&home, "/poll?topic=plain", 400);
    assert!(cut >= 245, "{cut}");
    assert_eq!(numbers, (0..400).collect::<Vec<u64>>());
    // The inbox needs no place: what is not acknowledged is there.
    let sent: BTreeSet<u64> = (0..60).collect();
    for number in &sent {
        let mut poll = Stream::new(home.connect());
        poll.send("GET /poll?user=al HTTP/1.1\r\nHost: t\r\n\r\n");
        std::thread::sleep(Duration::from_micros(number * 97 % 1_500));
        home.send("al", json!(number));
    }
    let inbox = datas(&home.get("/poll?user=al&timeout=0").1);
    assert_eq!(inbox.iter().filter_map(Value::as_u64).collect::<BTreeSet<u64>>(), sent);
}
