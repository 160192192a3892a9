//! What applications read, delete, and ask for with a publish.

use serde_json::{Value, json};

use crate::home::*;
use crate::listener::*;

#[test]
fn pages_lead_through_the_whole_history_both_ways() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        let mut ids = Vec::new();
        for number in 0..25 {
            ids.extend(home.count("h:1", number..number + 1));
            home.publish("h:2", json!("x"));
        }
        if keeps == Keeps::Disk {
            home.restart();
        }
        for (reverse, want) in [(false, numbers(0..25)), (true, numbers(0..25))] {
            let mut all = Vec::new();
            let mut query = format!("limit=7&reverse={reverse}");
            let mut pages = 0;
            loop {
                let (datas, page) = home.history("h:1", &query);
                all.extend(datas);
                pages += 1;
                assert_eq!(page["complete"], true);
                assert_eq!(page["more"], page["next"].is_string(), "{page}");
                match page["next"].as_str() {
                    Some(next) => query = format!("limit=7&reverse={reverse}&since={next}"),
                    None => break,
                }
            }
            if reverse {
                all.reverse();
            }
            assert_eq!((all, pages), (want, 4), "{keeps:?} reverse={reverse}");
        }
        let (datas, page) = home.history("h:1", &format!("since={}", ids[20]));
        assert_eq!(datas, numbers(21..25));
        // Whoever has read the last page goes on from there without a gap, in a connection.
        let last = page["last"].as_str().unwrap();
        home.count("h:1", 25..27);
        let mut listener = Listener::away(Idiom::Ws, &["h:1"], "").seen(last);
        listener.come(&home);
        assert_eq!(listener.rest(&home), numbers(25..27));
        let (datas, _) = home.history("h:1", &format!("since={}&reverse=true&limit=2", ids[20]));
        assert_eq!(datas, [json!(19), json!(18)]);
        let message = &page["messages"][0];
        assert_eq!((&message["id"], &message["topic"]), (&json!(ids[21]), &json!("h:1")));
        assert!(message["published_at"].as_u64() > Some(1_600_000_000_000));
    }
}

#[test]
fn wrong_questions_are_refused() {
    let home = Home::new(Keeps::Memory);
    let refused = |method: &str, target: &str, status: u16, code: &str| {
        let (got, error) = home.api(method, target, None);
        assert_eq!((got, &error["error"]["code"]), (status, &json!(code)), "{target}: {error}");
        error
    };
    refused("GET", "/api/history/plain", 404, "no_history");
    refused("DELETE", "/api/history/plain", 404, "no_history");
    refused("GET", "/api/history/h:1?since=x", 400, "bad_since");
    let error =
        refused("GET", &format!("/api/history/h:1?since={ELSEWHERE}"), 409, "epoch_changed");
    let id = home.count("h:1", 0..1).remove(0);
    assert_eq!(error["error"]["epoch"], id.split(':').next().unwrap(), "{error}");
    assert_eq!(home.history("h:never", "").0, numbers(0..0));
    // A user's own topic, where messages wait.
    home.send("al", json!("waits"));
    assert_eq!(home.history("@al", "").0, [json!("waits")]);
}

#[test]
fn what_is_deleted_is_gone_and_those_who_come_back_are_told() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        let mut live = Listener::new(&home, Idiom::Stream, &["h:1"]);
        let ids = home.count("h:1", 0..5);
        home.count("h:2", 0..2);
        let (status, deleted) = home.api("DELETE", "/api/history/h:1", None);
        assert_eq!((status, &deleted["deleted"]), (200, &json!(true)), "{deleted}");
        for restarted in [false, true] {
            if restarted {
                match keeps {
                    Keeps::Disk => home.restart(),
                    Keeps::Memory => break,
                }
            }
            assert_eq!(home.history("h:1", "").0, numbers(0..0), "{keeps:?}");
            assert_eq!(home.history("h:2", "").0, numbers(0..2));
            for idiom in ALL {
                let mut back = Listener::away(idiom, &["h:1"], "").seen(&ids[1]);
                back.come(&home);
                let told = back.recovered(&home);
                assert_eq!(told, (json!(false), json!("too_old")), "{keeps:?} {idiom:?}");
                let mut whole = Listener::away(idiom, &["h:1"], "").seen(&ids[4]);
                whole.come(&home);
                assert_eq!(whole.recovered(&home).0, true, "{keeps:?} {idiom:?}");
            }
        }
        if keeps == Keeps::Memory {
            assert_eq!(live.rest(&home), numbers(0..5));
        }
        home.count("h:1", 5..6);
        assert_eq!(home.history("h:1", "").0.last(), Some(&json!(5)));
    }
}

#[test]
fn a_delete_is_for_all_that_was_published_before() {
    for keeps in BOTH {
        let home = Home::new(keeps);
        for round in 0..20 {
            (0..10).for_each(|number| _ = home.publish("h:1", json!(number)));
            let (status, deleted) = home.api("DELETE", "/api/history/h:1", None);
            assert_eq!(status, 200, "{deleted}");
            assert_eq!(home.history("h:1", "").0, numbers(0..0), "{keeps:?} {round}");
        }
    }
}

#[test]
fn a_repeat_is_answered_and_not_published() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        let mut live = Listener::new(&home, Idiom::Stream, &["h:1"]);
        let body = json!({"topic": "h:1", "data": 1, "idempotency_key": "k"});
        let first = home.post("/api/publish", body.clone());
        assert!(first["repeated"].is_null(), "{first}");
        let again = |home: &Home, data: u64| {
            let mut body = body.clone();
            body["data"] = json!(data);
            let again = home.post("/api/publish", body);
            assert_eq!((&again["id"], &again["repeated"]), (&first["id"], &json!(true)), "{again}");
        };
        again(&home, 2);
        assert_eq!(live.rest(&home), numbers(1..2));
        if keeps == Keeps::Disk {
            home.restart();
            again(&home, 3);
            home.crash();
            again(&home, 4);
        }
        // The key is the topic's.
        let other =
            home.post("/api/publish", json!({"topic": "h:2", "data": 1, "idempotency_key": "k"}));
        assert!(other["repeated"].is_null());
        home.settle();
        assert_eq!(home.history("h:2", "").0, numbers(1..2));
        let mail = json!({"user": "al", "data": 1, "idempotency_key": "k"});
        let mailed = home.post("/api/send", mail.clone());
        assert_eq!(home.post("/api/send", mail)["id"], mailed["id"]);
        let (status, refused) = home.api(
            "POST",
            "/api/publish",
            Some(json!({"topic": "plain", "data": 1, "idempotency_key": "k"})),
        );
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("no_history")));
    }
}

#[test]
fn repeats_at_one_moment_are_published_once() {
    for keeps in BOTH {
        let home = Home::new(keeps);
        let topic = if keeps == Keeps::Disk { "d:1" } else { "h:1" };
        let ids: Vec<Value> = std::thread::scope(|scope| {
            let publish = || {
                let body = json!({"topic": topic, "data": 1, "idempotency_key": "k"});
                home.post("/api/publish", body)["id"].clone()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(publish)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        assert_eq!(home.history(topic, "").0, numbers(1..2));
    }
}

#[test]
fn who_publishes_only_if_nothing_is_newer_is_refused_when_something_is() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        let publish = |home: &Home, if_offset: Value| {
            let body = json!({"topic": "h:1", "data": 1, "if_offset": if_offset});
            home.api("POST", "/api/publish", Some(body))
        };
        let (status, first) = publish(&home, json!(0));
        assert_eq!(status, 200, "{first}");
        home.settle();
        home.publish("h:2", json!("elsewhere"));
        for wrong in [json!(0), json!(first["offset"].as_u64().unwrap() - 1)] {
            let (status, refused) = publish(&home, wrong);
            let error = &refused["error"];
            assert_eq!((status, &error["code"]), (409, &json!("newer_message")), "{refused}");
            assert_eq!(error["last"], first["id"]);
        }
        let (status, second) = publish(&home, first["id"].clone());
        assert_eq!(status, 200, "{second}");
        if keeps == Keeps::Disk {
            home.restart();
        }
        assert_eq!(publish(&home, first["offset"].clone()).0, 409);
        assert_eq!(publish(&home, second["offset"].clone()).0, 200);
        let (status, refused) = publish(&home, json!(ELSEWHERE));
        assert_eq!((status, &refused["error"]["code"]), (409, &json!("epoch_changed")));
        // Of many at one moment one is first.
        home.settle();
        let (_, page) = home.history("h:1", "");
        let last = page["last"].clone();
        let done: Vec<u16> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| publish(&home, last.clone()).0)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(done.iter().filter(|status| **status == 200).count(), 1, "{done:?}");
    }
}

#[test]
fn a_message_can_be_for_those_only_who_are_there() {
    let home = Home::new(Keeps::Memory);
    let mut listener = Listener::new(&home, Idiom::Stream, &["h:1"]);
    let before = home.count("h:1", 0..1).remove(0);
    let id = home.tell("h:1", json!("now"), json!({"no_history": true}));
    assert_ne!(id.split(':').next(), before.split(':').next(), "of the other numbering");
    home.count("h:1", 1..2);
    // Between the two numberings there is no order.
    let mut got = listener.take(&home, 3);
    got.sort_by_key(|data| data.to_string());
    assert_eq!(got, [json!("now"), json!(0), json!(1)]);
    assert_eq!(home.history("h:1", "").0, numbers(0..2));
    for idiom in ALL {
        let mut back = Listener::away(idiom, &["h:1"], "").seen(&before);
        back.come(&home);
        assert_eq!(back.take(&home, 1), numbers(1..2), "{idiom:?}");
    }
}
