//! What messages are marked with: tags to choose by, and keys whose last value is kept.

use serde_json::{Value, json};

use crate::home::*;
use crate::listener::*;

fn tagged(home: &Home, topic: &str) {
    home.tell(topic, json!("red"), json!({"tags": ["red"]}));
    home.tell(topic, json!("none"), json!({}));
    home.tell(topic, json!("blue"), json!({"tags": ["blue"]}));
    home.tell(topic, json!("both"), json!({"tags": ["blue", "red"]}));
    home.tell(topic, json!("green"), json!({"tags": ["green"]}));
}

/// A mark with a tag that the listener chose.
fn until_mark(home: &Home, listener: &mut Listener, topic: &str) -> Vec<Value> {
    let mark = mark();
    home.tell(topic, mark.clone(), json!({"tags": ["red"]}));
    listener.before(home, &mark)
}

#[test]
fn subscribers_choose_by_tags_live_and_when_they_come_back() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        for topic in ["h:t", "plain"] {
            for idiom in ALL {
                let topic = &format!("{topic}{idiom:?}");
                let mut one = Listener::with(&home, idiom, &[topic], "tag=red");
                let mut two = Listener::with(&home, idiom, &[topic], "tag=blue&tag=red");
                tagged(&home, topic);
                let (red, both) = (json!("red"), json!("both"));
                assert_eq!(until_mark(&home, &mut one, topic), [red.clone(), both.clone()]);
                let want = [red.clone(), json!("blue"), both.clone()];
                assert_eq!(until_mark(&home, &mut two, topic), want, "{idiom:?}");
                if !topic.starts_with("h:") {
                    continue;
                }
                one.cut();
                tagged(&home, topic);
                if keeps == Keeps::Disk {
                    home.restart();
                }
                one.come(&home);
                let got = until_mark(&home, &mut one, topic);
                assert_eq!(got, [red, both], "{keeps:?} {idiom:?}");
            }
        }
    }
}

#[test]
fn messages_to_users_and_to_all_pass_any_tag() {
    let home = Home::new(Keeps::Memory);
    for idiom in ALL {
        let user = format!("al{idiom:?}");
        let query = format!("user={user}&tag=red");
        let mut listener = Listener::with(&home, idiom, &["h:1"], &query);
        home.tell("h:1", json!("blue"), json!({"tags": ["blue"]}));
        home.send(&user, json!("mail"));
        assert_eq!(listener.take(&home, 1), [json!("mail")], "{idiom:?}");
        home.post("/api/broadcast", json!({"data": "all"}));
        assert_eq!(listener.take(&home, 1), [json!("all")], "{idiom:?}");
    }
}

#[test]
fn tags_are_checked() {
    let home = Home::new(Keeps::Memory);
    for bad in [json!([""]), json!(["x".repeat(65)]), json!(vec!["a"; 17])] {
        let body = json!({"topic": "h:1", "data": 1, "tags": bad});
        let (status, refused) = home.api("POST", "/api/publish", Some(body));
        // The same tag many times is one.
        let ok = bad == json!(vec!["a"; 17]) && status == 200;
        assert!(ok || refused["error"]["code"] == "bad_tags", "{bad}: {status} {refused}");
    }
    let (status, refused) = home.get("/sse?topic=h:1&tag=");
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("bad_tag")));
    let page_of = |query: &str| home.history("h:1", query).1;
    home.tell("h:1", json!(1), json!({"tags": ["red", "é"], "key": "k"}));
    let message = page_of("reverse=true&limit=1")["messages"][0].clone();
    assert_eq!((&message["tags"], &message["key"]), (&json!(["red", "é"]), &json!("k")));
}

fn set(home: &Home, key: &str, data: Value) {
    home.tell("c:1", data, json!({"key": key}));
}

#[test]
fn a_compact_topic_gives_newcomers_the_state_and_then_changes() {
    for keeps in BOTH {
        let mut home = Home::new(keeps);
        for round in 0..5 {
            for key in ["a", "c"] {
                set(&home, key, json!(format!("{key}{round}")));
            }
        }
        let state = [json!("a4"), json!("c4")];
        assert_eq!(home.history("c:1", "").0, state, "{keeps:?}");
        if keeps == Keeps::Disk {
            home.restart();
        }
        for (round, idiom) in ALL.into_iter().enumerate() {
            let mut newcomer = Listener::new(&home, idiom, &["c:1"]);
            assert_eq!(newcomer.take(&home, 2), state, "{keeps:?} {idiom:?}");
            let key = format!("d{round}");
            set(&home, &key, json!(round));
            assert_eq!(newcomer.take(&home, 1), [json!(round)], "{keeps:?} {idiom:?}");
            // Who was here gets changes only.
            newcomer.cut();
            set(&home, "c", json!("c5"));
            set(&home, "c", json!("c4"));
            newcomer.come(&home);
            let got = newcomer.take(&home, 1);
            assert_eq!(got, [json!("c4")], "{keeps:?} {idiom:?}");
            assert_eq!(newcomer.recovered(&home).0, true, "{keeps:?} {idiom:?}");
            // One from another life gets the state, which is all that there is to know.
            let mut lost = Listener::away(idiom, &["c:1"], "").seen(ELSEWHERE);
            lost.come(&home);
            let (a, last) = (lost.take(&home, 1), lost.rest(&home));
            assert_eq!((a, last.last()), (state[..1].to_vec(), Some(&json!("c4"))), "{idiom:?}");
            home.api("DELETE", "/api/history/c:1", None);
            set(&home, "a", json!("a4"));
            set(&home, "c", json!("c4"));
        }
    }
}

/// What is removed is told to those who knew it, and not to newcomers.
fn null_removes(keeps: Keeps, restart: bool) {
    for idiom in ALL {
        let mut home = Home::new(keeps);
        set(&home, "a", json!("a"));
        set(&home, "b", json!("b"));
        let mut known = Listener::new(&home, idiom, &["c:1"]);
        assert_eq!(known.take(&home, 2), [json!("a"), json!("b")], "{keeps:?} {idiom:?}");
        known.cut();
        set(&home, "b", Value::Null);
        if restart {
            home.restart();
        }
        known.come(&home);
        assert_eq!(known.rest(&home), [Value::Null], "{keeps:?} {idiom:?}");
        let mut newcomer = Listener::new(&home, idiom, &["c:1"]);
        assert_eq!(newcomer.rest(&home), [json!("a")], "{keeps:?} {idiom:?}");
    }
}

#[test]
fn null_removes_a_key() {
    null_removes(Keeps::Memory, false);
    null_removes(Keeps::Disk, false);
}

#[test]
fn null_removes_a_key_also_on_disk() {
    null_removes(Keeps::Disk, true);
}
