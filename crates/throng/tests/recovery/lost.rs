//! Those who can't be given what they missed are told so, and why, and go on from now.

use std::time::Duration;

use serde_json::{Value, json};

use crate::home::*;
use crate::listener::*;
use crate::support::*;

/// Comes back to a topic and is told this; then it goes on with what comes.
fn told(home: &Home, mut listener: Listener, reason: &str) {
    listener.come(home);
    let told = listener.recovered(home);
    assert_eq!(told, (json!(false), json!(reason)), "{:?}", listener.idiom);
    let rest = listener.rest(home);
    assert!(!rest.contains(&json!("old")), "{:?}: {rest:?}", listener.idiom);
    // Its place is a good one again.
    listener.cut();
    listener.come(home);
    assert_eq!(listener.rest(home), numbers(0..0), "{:?}", listener.idiom);
}

#[test]
fn memory_does_not_outlive_the_process() {
    let mut home = Home::new(Keeps::Memory);
    let places: Vec<Listener> = ALL
        .iter()
        .map(|idiom| {
            let topic = format!("h:{idiom:?}");
            let mut listener = Listener::new(&home, *idiom, &[&topic]);
            home.tell(&topic, json!("old"), json!({}));
            assert_eq!(listener.take(&home, 1), [json!("old")]);
            listener.cut();
            listener
        })
        .collect();
    home.restart();
    places.into_iter().for_each(|listener| told(&home, listener, "epoch_changed"));
}

#[test]
fn a_store_does() {
    let mut home = Home::new(Keeps::Disk);
    let mut listeners: Vec<Listener> =
        ALL.iter().map(|idiom| Listener::new(&home, *idiom, &["d:1"])).collect();
    home.count("d:1", 0..3);
    for listener in &mut listeners {
        assert_eq!(listener.take(&home, 3), numbers(0..3));
        listener.cut();
    }
    // The publisher has its answer, so that it is on disk.
    home.count("d:1", 3..6);
    home.crash();
    let last = home.count("d:1", 6..7).remove(0);
    for mut listener in listeners {
        listener.come(&home);
        assert_eq!(listener.take(&home, 4), numbers(3..7), "{:?}", listener.idiom);
        assert_eq!(listener.recovered(&home), (json!(true), Value::Null), "{:?}", listener.idiom);
    }
    let (_, page) = home.history("d:1", "");
    assert_eq!(page["messages"].as_array().unwrap().last().unwrap()["id"], last);
}

#[test]
fn what_limits_let_go_is_too_old() {
    for keeps in BOTH {
        let home = Home::new(keeps);
        for idiom in ALL {
            let topic = format!("small:{idiom:?}");
            let mut listener = Listener::new(&home, idiom, &[&topic]);
            home.count(&topic, 0..1);
            assert_eq!(listener.take(&home, 1), numbers(0..1));
            listener.cut();
            // Three are kept, and that is all that it missed.
            home.count(&topic, 1..4);
            listener.come(&home);
            assert_eq!(listener.take(&home, 3), numbers(1..4), "{keeps:?} {idiom:?}");
            assert_eq!(listener.recovered(&home).0, true, "{keeps:?} {idiom:?}");
            listener.cut();
            home.count(&topic, 4..8);
            listener.come(&home);
            let told = listener.recovered(&home);
            assert_eq!(told, (json!(false), json!("too_old")), "{keeps:?} {idiom:?}");
            // What there is comes.
            assert_eq!(listener.rest(&home), numbers(5..8), "{keeps:?} {idiom:?}");
        }
    }
}

#[test]
fn time_lets_go_as_well() {
    for keeps in BOTH {
        let home = Home::new(keeps);
        let id = home.count("brief:1", 0..1).remove(0);
        home.tell("brief:1", json!("old"), json!({}));
        home.until("it is too old", |_| home.history("brief:1", "").0.is_empty());
        // Memory and disk may let it go at different moments.
        std::thread::sleep(Duration::from_millis(1_100));
        for idiom in ALL {
            let mut listener = Listener::away(idiom, &["brief:1"], "").seen(&id);
            listener.come(&home);
            let got = listener.recovered(&home);
            assert_eq!(got, (json!(false), json!("too_old")), "{keeps:?} {idiom:?}");
        }
    }
}

#[test]
fn topics_without_history_have_none() {
    let home = Home::new(Keeps::Memory);
    let id = home.count("h:1", 0..1).remove(0);
    for idiom in [Idiom::Sse, Idiom::Stream, Idiom::Ws] {
        told(&home, Listener::away(idiom, &["plain"], "").seen(&id), "no_history");
    }
    let (_, answer) = home.get(&format!("/poll?topic=plain&since:plain={id}&timeout=5"));
    let want = (&json!(false), &json!("no_history"));
    assert_eq!((&answer["recovered"], &answer["reason"]), want, "{answer}");
    // One of several that has none does not spoil the others, where each is asked for.
    let query = format!("since:h:1={id}&since:plain={id}");
    let mut both = Listener::with(&home, Idiom::Stream, &["h:1", "plain"], &query);
    home.count("h:1", 1..2);
    assert_eq!(both.take(&home, 1), numbers(1..2));
    assert_eq!(both.told[0]["topics"], json!({"plain": "no_history"}));
    assert_eq!(both.recovered(&home), (json!(false), json!("no_history")));
}

#[test]
fn an_id_of_the_future_is_of_another_life() {
    let home = Home::new(Keeps::Memory);
    let id = home.count("h:1", 0..1).remove(0);
    let ahead = format!("{}:1000", id.split(':').next().unwrap());
    for idiom in ALL {
        let mut listener = Listener::away(idiom, &["h:1"], "").seen(&ahead);
        listener.come(&home);
        assert_eq!(listener.recovered(&home), (json!(false), json!("epoch_changed")), "{idiom:?}");
        assert_eq!(listener.rest(&home), numbers(0..0), "{idiom:?}");
    }
    // Ids of other servers, from before the page talked to this one, ask for nothing.
    let mut stream = Stream::new(home.connect());
    stream.send("GET /sse?topic=h:1 HTTP/1.1\r\nHost: t\r\nLast-Event-ID: 42\r\n\r\n");
    assert!(stream.head().starts_with("HTTP/1.1 200 "));
    home.tell("h:1", json!("now"), json!({}));
    assert_eq!(stream.data(), "now");
}

#[test]
fn messages_expire_while_a_client_is_away() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        let id = home.count("h:1", 0..1).remove(0);
        home.tell("h:1", json!("old"), json!({"ttl_seconds": 1}));
        home.tell("h:1", json!(1), json!({"ttl_seconds": 600}));
        assert_eq!(home.history("h:1", "").0, [json!(0), json!("old"), json!(1)]);
        std::thread::sleep(Duration::from_millis(1_050));
        assert_eq!(home.history("h:1", "").0, numbers(0..2), "{keeps:?}");
        if keeps == Keeps::Disk {
            home.restart();
        }
        for idiom in ALL {
            let mut listener = Listener::away(idiom, &["h:1"], "").seen(&id);
            listener.come(&home);
            assert_eq!(listener.take(&home, 1), numbers(1..2), "{keeps:?} {idiom:?}");
            assert_eq!(listener.recovered(&home).0, true, "{keeps:?} {idiom:?}");
        }
    }
}
