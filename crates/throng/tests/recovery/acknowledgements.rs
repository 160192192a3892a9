//! What users have not acknowledged is theirs still.

use serde_json::{Value, json};

use crate::home::*;
use crate::listener::*;
use crate::support::*;

/// The id of the last of so many messages, and their data.
fn take(home: &Home, listener: &mut Listener, count: usize) -> (String, Vec<Value>) {
    let messages: Vec<Value> = (0..count).map(|_| listener.next(home)).collect();
    let last = id(messages.last().unwrap());
    (last, messages.iter().map(|message| message["data"].clone()).collect())
}

#[test]
fn messages_wait_for_users_who_are_offline() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        for idiom in ALL {
            let user = format!("al{idiom:?}");
            let query = format!("user={user}");
            for number in 0..4 {
                home.send(&user, json!(number));
            }
            if keeps == Keeps::Disk {
                home.restart();
            }
            let mut first = Listener::away(idiom, &[], &query);
            first.come(&home);
            let (_, datas) = take(&home, &mut first, 4);
            assert_eq!(datas, numbers(0..4), "{keeps:?} {idiom:?}");
            // Nobody said that they arrived.
            first.cut();
            let mut second = Listener::away(idiom, &[], &query);
            second.come(&home);
            let (_, datas) = take(&home, &mut second, 4);
            assert_eq!(datas, numbers(0..4), "{keeps:?} {idiom:?}");
            second.cut();
            let (_, page) = home.history(&format!("@{user}"), "");
            let third = page["messages"][2]["id"].clone();
            let (status, done) = home.ack(json!({"user": user, "id": third}));
            assert_eq!(status, 200, "{done}");
            assert_eq!(done, json!({"topic": format!("@{user}"), "acknowledged": third}));
            home.settle();
            if keeps == Keeps::Disk {
                home.crash();
            }
            let mut last = Listener::away(idiom, &[], &query);
            last.come(&home);
            let (_, datas) = take(&home, &mut last, 1);
            assert_eq!(datas, [json!(3)], "{keeps:?} {idiom:?}");
            let (_, cursor) = home.api("GET", &format!("/api/cursors/{user}"), None);
            assert_eq!(cursor["acknowledged"], third);
        }
    }
}

/// Acknowledges in a way that the transport has; `topic` as it is acknowledged.
fn acknowledge(home: &Home, listener: &mut Listener, user: &str, topic: &str, last: &str) {
    if listener.idiom == Idiom::Ws {
        let ack = json!({"type": "ack", "id": 1, "topic": topic, "message": last});
        let reply = listener.command(ack);
        assert_eq!(reply["ok"], json!({"topic": topic, "acknowledged": last}), "{reply}");
        return;
    }
    let (status, done) = home.ack(json!({"user": user, "topic": topic, "id": last}));
    assert_eq!((status, &done["acknowledged"]), (200, &json!(last)), "{done}");
}

#[test]
fn a_window_bounds_what_is_not_acknowledged() {
    for keeps in BOTH {
        let home = Home::new(keeps);
        for idiom in [Idiom::Sse, Idiom::Stream, Idiom::Ws] {
            let (user, topic) = (format!("al{idiom:?}"), format!("w:{idiom:?}"));
            let query = format!("user={user}");
            let mut listener = Listener::with(&home, idiom, &[&topic], &query);
            home.until_members(&topic, 1);
            home.count(&topic, 0..10);
            let (last, datas) = take(&home, &mut listener, 3);
            assert_eq!(datas, numbers(0..3), "{keeps:?} {idiom:?}");
            listener.is_quiet(&home, 300);
            acknowledge(&home, &mut listener, &user, &topic, &last);
            let (last, datas) = take(&home, &mut listener, 3);
            assert_eq!(datas, numbers(3..6), "{keeps:?} {idiom:?}");
            // Cumulative, and older ones change nothing.
            acknowledge(&home, &mut listener, &user, &topic, &last);
            let (_, datas) = take(&home, &mut listener, 3);
            assert_eq!(datas, numbers(6..9), "{keeps:?} {idiom:?}");
            listener.is_quiet(&home, 100);
            // Another connection of the same user, on another transport, has a window of its own...
            let other = if idiom == Idiom::Ws { Idiom::Sse } else { Idiom::Ws };
            let mut other = Listener::with(&home, other, &[&topic], &query);
            let (last, datas) = take(&home, &mut other, 3);
            assert_eq!(datas, numbers(6..9), "{keeps:?} {idiom:?}");
            // ... and what it acknowledges opens both.
            acknowledge(&home, &mut other, &user, &topic, &last);
            assert_eq!(take(&home, &mut listener, 1).1, [json!(9)], "{keeps:?} {idiom:?}");
            assert_eq!(take(&home, &mut other, 1).1, [json!(9)], "{keeps:?} {idiom:?}");
            // One that has no user follows live, without acknowledgements.
            let mut nobody = Listener::new(&home, idiom, &[&topic]);
            home.count(&topic, 20..28);
            assert_eq!(nobody.take(&home, 8), numbers(20..28), "{keeps:?} {idiom:?}");
        }
    }
}

#[test]
fn what_the_application_acknowledges_opens_the_window() {
    let home = Home::new(Keeps::Memory);
    let mut listener = Listener::with(&home, Idiom::Stream, &["w:1"], "user=al");
    home.count("w:1", 0..6);
    let (last, _) = take(&home, &mut listener, 3);
    home.post("/api/ack", json!({"user": "al", "topic": "w:1", "id": last}));
    assert_eq!(take(&home, &mut listener, 3).1, numbers(3..6));
}

#[test]
fn polls_have_a_window_as_well() {
    let home = Home::new(Keeps::Memory);
    // From here on the topic's messages are the user's.
    home.get("/poll?topic=w:1&user=al&timeout=0");
    home.count("w:1", 0..6);
    let (_, answer) = home.get("/poll?topic=w:1&user=al&timeout=0");
    assert_eq!(datas(&answer), numbers(0..3));
}

#[test]
fn polls_acknowledge_by_post() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        home.send("al", json!(0));
        home.send("al", json!(1));
        let poll =
            |home: &Home, since: &str| home.get(&format!("/poll?user=al&timeout=0{since}")).1;
        let first = poll(&home, "");
        assert_eq!(datas(&first), numbers(0..2));
        // A place is not an acknowledgement, but who names it has the message.
        let since = format!("&since={}", first["since"].as_str().unwrap());
        assert_eq!(datas(&poll(&home, &since)), numbers(0..0));
        assert_eq!(datas(&poll(&home, "")), numbers(0..2));
        let last = first["messages"][1]["id"].clone();
        assert_eq!(home.ack(json!({"user": "al", "id": last})).0, 200);
        assert_eq!(datas(&poll(&home, "")), numbers(0..0));
        home.send("al", json!(2));
        if keeps == Keeps::Disk {
            home.crash();
        }
        assert_eq!(datas(&poll(&home, "")), numbers(2..3), "{keeps:?}");
    }
}

#[test]
fn what_is_not_acknowledged_comes_again_and_then_goes_to_the_dead_letters() {
    for keeps in BOTH {
        let home = Home::new(keeps);
        for idiom in [Idiom::Sse, Idiom::Stream, Idiom::Ws] {
            let (user, topic) = (format!("al{idiom:?}"), format!("q:{idiom:?}"));
            let mut dead = Listener::new(&home, Idiom::Stream, &["dead"]);
            let mut listener = Listener::with(&home, idiom, &[&topic], &format!("user={user}"));
            let ids = home.count(&topic, 0..2);
            assert_eq!(listener.take(&home, 2), numbers(0..2), "{keeps:?} {idiom:?}");
            // All that is not acknowledged comes again: after a second where clients acknowledge on the
            // connection itself, else when they come back. Then it is given up.
            let comes_back = |listener: &mut Listener| {
                if idiom != Idiom::Ws {
                    listener.is_quiet(&home, 1_500);
                    *listener = Listener::with(&home, idiom, &[&topic], &format!("user={user}"));
                }
            };
            comes_back(&mut listener);
            assert_eq!(listener.take(&home, 2), numbers(0..2), "{keeps:?} {idiom:?}");
            dead.is_quiet(&home, 100);
            comes_back(&mut listener);
            for (number, id) in ids.iter().enumerate() {
                let letter = dead.next(&home);
                assert_eq!(letter["event"], "dead_letter");
                let want = json!({
                    "topic": topic, "user": user, "id": id, "event": "message", "tries": 2,
                    "data": number
                });
                assert_eq!(letter["data"], want, "{keeps:?} {idiom:?}");
            }
            let path = format!("/api/cursors/{user}?topic={topic}");
            assert_eq!(home.api("GET", &path, None).1["given_up"], ids[1]);
            // The next has tries of its own, and is acknowledged in time.
            let ids = home.count(&topic, 2..3);
            assert_eq!(listener.next(&home)["id"], ids[0], "{keeps:?} {idiom:?}");
            acknowledge(&home, &mut listener, &user, &topic, &ids[0]);
            listener.is_quiet(&home, 1_500);
            dead.is_quiet(&home, 100);
        }
    }
}

#[test]
fn wrong_acknowledgements_are_refused() {
    let home = Home::new(Keeps::Memory);
    let last = home.send("al", json!(1));
    let (epoch, offset) = last.split_once(':').unwrap();
    let offset: u64 = offset.parse().unwrap();
    let ahead = format!("{epoch}:{}", offset + 1);
    let plain = home.tell("plain", json!(1), json!({}));
    for (body, status, code) in [
        (json!({"user": "al", "id": ahead}), 400, "bad_id"),
        (json!({"user": "al", "id": ELSEWHERE}), 409, "epoch_changed"),
        (json!({"user": "al", "id": plain}), 409, "epoch_changed"),
        (json!({"user": "al", "id": "x"}), 400, "bad_id"),
        (json!({"user": "al"}), 400, "bad_id"),
        (json!({"user": "al", "topic": "plain", "id": last}), 400, "not_acknowledged"),
        (json!({"user": "al", "topic": "h:1", "id": last}), 400, "not_acknowledged"),
        (json!({"user": "al", "topic": "@bo", "id": last}), 400, "bad_topic"),
        (json!({"topic": "w:1", "id": last}), 400, "bad_user"),
        (json!({"user": "", "id": last}), 400, "bad_user"),
    ] {
        let (got, refused) = home.ack(body.clone());
        let error = &refused["error"]["code"];
        assert_eq!((got, error), (status, &json!(code)), "{body}: {refused}");
        // The application's own call says the same.
        if body["user"].is_string() && body["id"].is_string() {
            let (got, refused) = home.api("POST", "/api/ack", Some(body.clone()));
            assert_eq!((got, &refused["error"]["code"]), (status, &json!(code)), "{body}");
        }
    }
    let mut socket = websocket(&home, "user=bo");
    for (ack, code) in [
        (json!({"topic": "@al", "message": last}), "no_user"),
        (json!({"user": "al", "message": last}), "no_user"),
        (json!({"topic": "plain", "message": last}), "not_acknowledged"),
        (json!({"message": ahead}), "bad_id"),
        (json!({"message": ELSEWHERE}), "epoch_changed"),
        (json!({"message": "x"}), "bad_message"),
    ] {
        let mut ack = ack;
        ack["type"] = json!("ack");
        ack["id"] = json!(1);
        let reply = command(&mut socket, ack.clone());
        assert_eq!(reply["error"]["code"], code, "{ack}: {reply}");
    }
    let mut nobody = websocket(&home, "topic=w:1");
    let ack = json!({"type": "ack", "id": 1, "topic": "w:1", "message": last});
    assert_eq!(command(&mut nobody, ack)["error"]["code"], "no_user");
    // Nothing of that moved anything.
    let (_, cursor) = home.api("GET", "/api/cursors/al", None);
    assert_eq!(cursor["acknowledged"], Value::Null);
    assert_eq!(datas(&home.get("/poll?user=al&timeout=0").1), numbers(1..2));
}

#[test]
fn what_waits_may_expire() {
    for keeps in BOTH {
        let home = Home::new(keeps);
        home.post("/api/send", json!({"user": "al", "data": "late", "ttl_seconds": 1}));
        home.send("al", json!("in time"));
        std::thread::sleep(std::time::Duration::from_millis(1_050));
        let mut listener = Listener::with(&home, Idiom::Stream, &[], "user=al");
        assert_eq!(listener.take(&home, 1), [json!("in time")], "{keeps:?}");
        listener.is_quiet(&home, 200);
    }
}

#[test]
fn the_oldest_are_dropped_where_too_many_wait() {
    for keeps in BOTH {
        let home = Home::with(keeps, &[("THRONG_OFFLINE_MESSAGES_MAX", "3")]);
        for number in 0..6 {
            home.send("al", json!(number));
        }
        let mut listener = Listener::with(&home, Idiom::Ws, &[], "user=al");
        assert_eq!(listener.take(&home, 3), numbers(3..6), "{keeps:?}");
        listener.is_quiet(&home, 100);
    }
}
