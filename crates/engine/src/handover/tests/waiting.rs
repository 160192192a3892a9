//! Connections that wait: for the history, an acknowledgement, the application, a slow reader, the rest of a message.

use super::*;

#[test]
fn a_catch_up_goes_on_at_the_same_position() {
    for is_late in [false, true] {
        for (name, path, ids) in
            [("sse", "/sse?", true), ("stream", "/stream?", false), ("ws", "/ws?", false)]
        {
            let target = format!("{path}user=u0&topic=big/1&topic=big/2&topic=plain");
            let since = |target: &str| {
                let target = format!("{target}&since:big/1=fffffff8:2&since:big/2=fffffff8:0");
                match name {
                    "ws" => socket(&target, ""),
                    "sse" | "stream" => get(&target),
                    other => panic!("no requests for {other}"),
                }
            };
            let mut steps: Vec<Step> =
                (0..8).map(|n| Publish("big/1", format!("{n} {}", fill(500)))).collect();
            steps.extend((0..5).map(|n| Publish("big/2", format!("{n}"))));
            steps.extend([Open(0, 0, since(&target)), History, History]);
            steps.extend([Publish("big/1", fill(900)), Publish("plain", "live".into())]);
            for _ in 0..6 {
                steps.extend([History, Read(0)]);
            }
            steps.extend([Publish("big/2", "live".into()), Read(0), History, Read(0)]);
            if name == "ws" {
                // An id of another log: everything is missed.
                let other = r#"{"type":"subscribe","id":9,"topic":"big/3","since":"00000001:5"}"#;
                steps.extend([Publish("big/3", "before".into()), text(0, other)]);
                steps.extend([History, History, Publish("big/3", "after".into()), Read(0)]);
            }
            if ids {
                steps.extend([Publish("big/1", fill(9)), Publish("big/2", fill(9)), Read(0)]);
            }
            check(name, is_late, &steps);
        }
    }
}

#[test]
fn a_client_that_requested_what_is_there_gets_it() {
    for is_late in [false, true] {
        for since in ["start", "last:4"] {
            let query = format!("user=u0&topic=big/1&topic=big/2&since={since}");
            let before = (0..8).map(|n| Publish("big/1", format!("{n} {}", fill(500))));
            let mut steps: Vec<Step> = before.collect();
            steps.push(Publish("big/2", "last".into()));
            let subscribe =
                format!(r#"{{"type":"subscribe","id":9,"topic":"big/1","since":"{since}"}}"#);
            let join = format!(r#"["1","1","big/1","phx_join",{{"since":"{since}"}}]"#);
            steps.extend([
                Open(0, 0, get(&format!("/sse?{query}"))),
                Open(1, 1, get(&format!("/stream?{query}"))),
                Open(2, 0, get(&format!("/poll?{query}&timeout=9"))),
                Open(3, 1, socket("/ws?user=u1", "")),
                text(3, &subscribe),
                Open(4, 0, socket("/socket/websocket?vsn=2.0.0&user=u2", "")),
                text(4, &join),
            ]);
            for _ in 0..6 {
                steps.push(History);
                steps.extend((0..5).map(Read));
            }
            steps.extend([Publish("big/1", "live".into()), Read(0), Read(1), Read(3), Read(4)]);
            check(&format!("since={since}"), is_late, &steps);
        }
    }
}

#[test]
fn a_state_is_complete_once_on_either_engine() {
    for is_late in [false, true] {
        let keys = ["a", "b", "c", "d"];
        let set = |key: &'static str| Set("state/1", key, format!("{key} {}", fill(500)));
        let mut steps: Vec<Step> = keys.into_iter().map(set).collect();
        let query = "user=u0&topic=state/1&topic=state/2";
        let join = r#"["1","1","state/1","phx_join",{}]"#;
        steps.extend([
            Open(0, 0, get(&format!("/sse?{query}"))),
            Open(1, 1, get(&format!("/stream?{query}"))),
            Open(2, 0, get(&format!("/poll?{query}&timeout=9"))),
            Open(3, 0, socket("/socket/websocket?vsn=2.0.0&user=u2", "")),
            text(3, join),
            // Too old: the client gets the state anew.
            Open(4, 0, get("/stream?topic=state/1&since:state/1=fffffff8:1")),
            Set("state/1", "e", "five".into()),
        ]);
        for _ in 0..5 {
            steps.push(History);
            steps.extend((0..5).map(Read));
        }
        steps.extend([Set("state/1", "a", "live".into()), Read(0), Read(1), Read(3), Read(4)]);
        check("state", is_late, &steps);
        let texts = Scene::play(&steps, is_late, |_| When::Never).texts();
        let matches = |client: usize, text: &str| texts[client].matches(text).count();
        let marker = r#"\"type\":\"state_complete\""#;
        let markers = [0, 1, 3, 4].map(|client| matches(client, marker));
        assert_eq!(markers, [2, 2, 1, 1], "{texts:?}");
        assert_eq!(
            matches(2, r#"\"state_complete\":[\"state/1\",\"state/2\"]"#),
            1,
            "{}",
            texts[2]
        );
    }
}

#[test]
fn pages_that_wait_for_the_history_come_in_order() {
    let history = |id: u32, more: &str| {
        text(1, &format!(r#"{{"type":"history","id":{id},"topic":"big/1"{more}}}"#))
    };
    let push = |reference: u32, payload: &str| {
        text(2, &format!(r#"["1","{reference}","big/1","history",{payload}]"#))
    };
    let mut steps: Vec<Step> = (0..5).map(|n| Publish("big/1", format!("{n}"))).collect();
    steps.extend([
        Open(0, 0, get("/history?topic=big/1&limit=2")),
        Open(1, 1, socket("/ws?user=u1", "")),
        history(1, ""),
        history(2, r#","since":"last:2""#),
        history(3, r#","reverse":true,"limit":1"#),
        history(4, r#","since":"00000001:5""#),
        Open(2, 0, socket("/socket/websocket?vsn=2.0.0&user=u2", "")),
        text(2, r#"["1","1","big/1","phx_join",{}]"#),
        push(2, r#"{"since":"last:1"}"#),
        push(3, r#"{"limit":0}"#),
        push(4, r#"{"limit":1}"#),
        Open(3, 0, get("/history?user=u3&limit=2")),
        // It leaves before the reply.
        Open(4, 0, get("/history?topic=big/1")),
        Cut(4),
    ]);
    for _ in 0..6 {
        steps.push(History);
        steps.extend((0..4).map(Read));
    }
    steps.extend([Send(0, get("/history?topic=plain").into()), History, Read(0)]);
    for is_late in [false, true] {
        check("pages", is_late, &steps);
        let texts = Scene::play(&steps, is_late, |_| When::Never).texts();
        let pages = [0, 1, 2].map(|client| texts[client].matches(r#"\"complete\":true"#).count());
        assert_eq!(pages, [1, 3, 2], "{is_late}: {texts:?}");
        let errors =
            [(0, "no_history"), (1, "epoch_changed"), (2, "limit must be"), (3, "no_history")];
        for (client, error) in errors {
            assert!(texts[client].contains(error), "{is_late} {error}: {}", texts[client]);
        }
        let order: Vec<usize> = (1..=4)
            .map(|id| texts[1].find(&format!(r#"\"reply\",\"id\":{id}"#)).unwrap())
            .collect();
        assert!(order.is_sorted(), "{is_late}: {order:?}");
    }
}

#[test]
fn a_client_may_wait_for_so_many_pages_and_no_more() {
    let mut scene = Scene::new(true);
    scene.step(&Publish("big/1", "one".into()));
    scene.step(&Open(0, 0, socket("/ws?user=u0", "")));
    scene.late.iter().for_each(|late| late.pause(true));
    for id in 0..20 {
        scene.step(&text(0, &format!(r#"{{"type":"history","id":{id},"topic":"big/1"}}"#)));
    }
    scene.read(0);
    let count = |scene: &Scene, what: &str| scene.texts()[0].matches(what).count();
    assert_eq!((count(&scene, "too_many_reads"), count(&scene, "complete")), (4, 0));
    scene.late.iter().for_each(|late| late.pause(false));
    for _ in 0..40 {
        scene.step(&History);
        scene.read(0);
    }
    assert_eq!((count(&scene, "too_many_reads"), count(&scene, "complete")), (4, 16));
    scene.step(&text(0, r#"{"type":"history","id":99,"topic":"big/1"}"#));
    scene.step(&History);
    scene.read(0);
    assert_eq!(count(&scene, "complete"), 17);
}

#[test]
fn nothing_is_read_for_a_client_that_has_left() {
    let query = "user=u0&topic=big/1&topic=big/2&since=last:4";
    let subscribe = |topic: &str| {
        format!(r#"{{"type":"subscribe","id":9,"topic":"{topic}","since":"last:4"}}"#)
    };
    let requests = [
        Publish("big/1", "one".into()),
        Open(0, 0, get(&format!("/sse?{query}"))),
        Open(1, 0, get(&format!("/poll?{query}&timeout=9"))),
        Open(2, 0, get("/history?topic=big/1&since=last:4")),
        Open(3, 0, socket("/ws?user=u1", "")),
        text(3, &subscribe("big/1")),
        text(3, &subscribe("big/2")),
    ];
    let leave = [
        vec![],
        vec![Cut(0)],
        vec![Cut(0), Cut(1)],
        vec![Cut(0), Cut(1), Cut(2)],
        vec![text(3, r#"{"type":"unsubscribe","id":10,"topic":"big/1"}"#)],
        vec![Cut(3)],
    ];
    let abandoned = leave.map(|leave| {
        let mut scene = Scene::new(true);
        scene.late.iter().for_each(|late| late.pause(true));
        requests.iter().chain(&leave).for_each(|step| scene.step(step));
        scene.late.iter().for_each(|late| late.pause(false));
        (0..4).for_each(|_| scene.step(&History));
        scene.late.as_ref().unwrap().abandoned()
    });
    assert_eq!(abandoned, [0, 1, 2, 3, 1, 2]);
    // Another engine repeats the queries: their requesters are still there.
    let mut scene = Scene::new(true);
    requests.iter().for_each(|step| scene.step(step));
    scene.upgrade(What::TakeOver);
    (0..4).for_each(|_| scene.step(&History));
    (0..4).for_each(|client| scene.read(client));
    assert!(scene.texts()[..4].iter().all(|text| text.contains("one")), "{:?}", scene.texts());
}

#[test]
fn polls_that_wait_for_the_history_get_its_reply() {
    let steps = [
        Publish("big/1", "one".into()),
        Open(0, 0, get("/poll?topic=big/1&topic=plain&since=fffffff8:0&timeout=9")),
        Publish("big/1", "two".into()),
        History,
        History,
        Read(0),
        Send(0, get("/poll?topic=big/1&timeout=9").into()),
        Publish("big/1", "three".into()),
        History,
        History,
        History,
        Read(0),
        Open(1, 1, get("/poll?topic=ack/1&topic=big/2&user=u1&timeout=2")),
        History,
        Wait(30),
        History,
        History,
        Read(1),
    ];
    for is_late in [false, true] {
        check("poll", is_late, &steps);
    }
}

#[test]
fn a_poll_learns_what_is_gone_from_whichever_engine_replies() {
    let poll = get("/poll?topic=big/1&since=00000001:5&timeout=9");
    let steps = [Publish("big/1", "one".into()), Open(0, 0, poll), History];
    let play = |upgrade: bool| {
        let mut scene = Scene::new(true);
        steps.iter().for_each(|step| scene.step(step));
        if upgrade {
            scene.late.iter().for_each(|late| late.reply_at_once());
            scene.upgrade(What::TakeOver);
        }
        (0..3).for_each(|_| scene.step(&History));
        scene.read(0);
        scene.texts()
    };
    let want = play(false);
    assert!(want[0].contains("epoch_changed"), "{want:?}");
    assert_eq!(play(true), want);
}

#[test]
fn errors_of_old_queries_close_no_connection() {
    let target = "user=u0&topic=big/1&since=fffffff8:0";
    let steps = [
        Publish("big/1", "one".into()),
        Open(0, 0, get(&format!("/sse?{target}"))),
        Open(1, 0, get(&format!("/poll?{target}&timeout=9"))),
        History,
        History,
        Read(0),
        Read(1),
    ];
    let want = Scene::play(&steps, true, |_| When::Never).texts();
    for upgrade in 1..5 {
        let mut scene = Scene::new(true);
        for (at, step) in steps.iter().enumerate() {
            scene.step(step);
            if at != upgrade {
                continue;
            }
            let query_max = scene.drivers[0].engine.recovery.catchups.query();
            scene.upgrade(What::TakeOver);
            for (slot, query) in (0..2).flat_map(|slot| (0..=query_max).map(move |n| (slot, n))) {
                let core = &scene.drivers[0].engine.core;
                let Some(serial) = core.table.get(slot).map(|it| it.serial) else { continue };
                let numbers = vec![query];
                scene.handles[0].send(Command::Started { slot, serial, query, start: None });
                scene.handles[0].send(Command::Pulled { slot, serial, numbers, piece: None });
            }
        }
        (0..CLIENTS).for_each(|client| scene.read(client));
        assert_eq!(scene.texts(), want, "an upgrade after step {upgrade}");
    }
}

#[test]
fn what_is_not_acknowledged_stays_so() {
    for is_late in [false, true] {
        let mut steps = vec![Open(0, 0, socket("/ws?user=u0&topic=ack/1&topic=ack/2", ""))];
        steps.extend((1..6).map(|n| Publish("ack/1", format!("{n}"))));
        steps.extend([History, History, Read(0)]);
        for offset in [1, 3] {
            let ack = format!(
                r#"{{"type":"ack","id":{offset},"topic":"ack/1","message":"fffffff8:{offset}"}}"#
            );
            steps.extend([text(0, &ack), History, History, Read(0)]);
        }
        // Unacknowledged messages are delivered again.
        steps.extend([Wait(45), History, History, Read(0), Wait(40), History, Read(0)]);
        steps.extend([Login(0, "w"), History, Read(0), Logout(0, "u0"), History, Read(0)]);
        steps.extend([Publish("ack/2", "last".into()), History, History, Read(0)]);
        check("acknowledgements", is_late, &steps);
    }
}

#[test]
fn joins_lists_and_webhooks_wait_as_before() {
    let user = |n: usize| format!("/socket/websocket?vsn=2.0.0&user=u{n}");
    let meta = format!(r#"["1","1","seen/1","phx_join",{{"meta":{{"x":"{}"}}}}]"#, fill(20_000));
    let since = r#"["7","8","big/1","phx_join",{"since":"fffffff8:1"}]"#;
    let steps = [
        Publish("big/1", "one".into()),
        Publish("big/1", "two".into()),
        Open(0, 0, socket(&user(0), "")),
        Open(1, 1, socket(&user(1), "")),
        Read(0),
        Read(1),
        text(0, r#"["1","2","asked/1","phx_join",{}]"#),
        text(0, r#"["odd ref","3","asked/2","phx_join",{}]"#),
        ReplyTarget(true),
        text(0, r#"["1","4","asked/1","event",{"a":1}]"#),
        text(0, r#"["9","9","*","phx_join",{}]"#),
        text(0, r#"["10","10","@u0","phx_join",{"tags":["a"]}]"#),
        ReplyTarget(false),
        Publish("*", "all".into()),
        Publish("@u0", "own".into()),
        Read(0),
        text(0, since),
        History,
        text(0, r#"["7","9","big/1","phx_leave",{}]"#),
        History,
        History,
        Read(0),
        // The presence snapshot is long, and the client does not read.
        text(1, &meta),
        Wait(5),
        Read(1),
        text(0, r#"["2","11","seen/1","phx_join",{"meta":{}}]"#),
        text(0, r#"["3","12","seen/2","phx_join",{}]"#),
        text(0, r#"["4","13","seen/1","phx_join",{}]"#),
        text(0, r#"["4","14","seen/1","presence_update",{"meta":{"y":1}}]"#),
        Wait(5),
        Read(0),
        Read(1),
        Cut(1),
        Wait(5),
        Read(0),
    ];
    for is_late in [false, true] {
        check("phoenix", is_late, &steps);
    }
}

/// A pending request, subscriptions and messages of /ws, and their replies.
#[test]
fn requests_to_the_application_wait_as_before() {
    let topics = "topic=plain&topic=asked/1&topic=asked/2";
    let pipelined = format!("{}{}", get(&format!("/poll?{topics}&timeout=0")), get("/healthz"));
    let post =
        "POST /publish?topic=both/1&user=u9 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi";
    let ws = |at: usize, id: usize, kind: &str, topic: &str| {
        let data = if kind == "publish" { r#","data":1"# } else { "" };
        text(at, &format!(r#"{{"type":"{kind}","id":{id},"topic":"{topic}"{data}}}"#))
    };
    for ok in [true, false] {
        let steps = [
            Open(0, 0, get(&format!("/sse?user=u0&{topics}"))),
            Open(1, 1, get(&format!("/stream?{topics}"))),
            Open(2, 0, pipelined.clone()),
            Open(3, 1, socket("/ws?user=u3", "")),
            Open(4, 0, socket(&format!("/ws?{topics}"), "")),
            Open(5, 0, post.into()),
            ws(3, 1, "subscribe", "asked/1"),
            ws(3, 2, "subscribe", "asked/3"),
            ws(3, 3, "unsubscribe", "asked/3"),
            ws(3, 4, "publish", "both/1"),
            ws(3, 5, "publish", "asked/1"),
            ws(3, 6, "ping", ""),
            Wait(5),
            ReplyTarget(ok),
            Publish("asked/1", "heard by members".into()),
            Read(0),
            Read(1),
            Read(2),
            Read(3),
            Read(4),
            Read(5),
            ws(3, 7, "subscribe", "both/1"),
            ReplyTarget(true),
            Publish("both/1", "heard by one".into()),
            Read(3),
        ];
        for is_late in [false, true] {
            check("hooks", is_late, &steps);
        }
        let texts = Scene::play(&steps, false, |_| When::Never).texts();
        for (client, text) in texts.iter().enumerate().take(5) {
            assert_eq!(text.contains("heard by members"), ok && client != 2, "{client}: {text}");
        }
        let status =
            |client: usize| texts[client].split(' ').nth(1).unwrap_or_default().to_string();
        let want = if ok { "200" } else { "403" };
        assert_eq!([0, 1, 2, 5].map(status), [want; 4], "{texts:?}");
        assert!(texts[2].contains(r#"\"status\":\"ok\""#), "it goes on: {}", texts[2]);
        assert!(texts[3].contains("heard by one"), "{}", texts[3]);
    }
}

#[test]
fn lists_wait_on_every_transport_as_before() {
    let big = fill(20_000);
    let subscribe = |topic: &str, id: usize| {
        format!(r#"{{"type":"subscribe","id":{id},"topic":"{topic}","meta":{{"x":"{big}"}}}}"#)
    };
    let topics = "topic=seen/1&topic=seen/2&topic=seen/3";
    let mut steps = vec![Open(0, 0, socket("/ws?user=u0", ""))];
    for (id, topic) in ["seen/1", "seen/2", "seen/3"].into_iter().enumerate() {
        steps.push(text(0, &subscribe(topic, id)));
    }
    steps.extend([Wait(5), Read(0), Wait(5), Read(0)]);
    // The clients don't read these snapshots for a while.
    steps.extend([
        Open(1, 1, get(&format!("/sse?user=u1&{topics}"))),
        Open(2, 0, get(&format!("/stream?user=u2&{topics}"))),
        Open(3, 1, socket(&format!("/ws?user=u3&{topics}"), "")),
        text(3, r#"{"type":"presence","id":7,"topic":"seen/2"}"#),
        text(3, r#"{"type":"presence_update","id":8,"topic":"seen/2","meta":{"y":1}}"#),
        text(3, r#"{"type":"subscribe","id":9,"topic":"seen/1"}"#),
        Wait(5),
    ]);
    for client in [1, 2, 3, 0, 1, 2, 3, 1, 2, 3, 0] {
        steps.extend([Read(client), Wait(2)]);
    }
    let texts = Scene::play(&steps, false, |_| When::Never).texts();
    for (client, text) in texts.iter().enumerate().take(4).skip(1) {
        let lists = text.matches("presence_state").count();
        assert!(lists >= 3, "{lists} lists came to client {client}");
    }
    for is_late in [false, true] {
        check("lists", is_late, &steps);
    }
}

#[test]
fn what_clients_choose_and_how_much_they_ask_is_carried() {
    let mut steps = vec![
        Open(0, 0, socket("/ws?user=u0&topic=plain&topic=stored", "")),
        text(0, r#"{"type":"subscribe","id":1,"topic":"a","tags":["x"]}"#),
        text(0, r#"{"type":"login","id":2,"user":"w"}"#),
        text(0, r#"{"type":"subscribe","id":3,"topic":"seen/1"}"#),
        Read(0),
        Open(1, 0, get("/sse?topic=a&tag=x&tag=y")),
        Publish("a", "without a tag".into()),
        // The client itself has entered the topic: it stays.
        text(0, r#"{"type":"logout","id":4,"user":"w"}"#),
        text(0, r#"{"type":"logout","id":5,"user":"u0"}"#),
        Publish("stored", "one".into()),
    ];
    // More than it may publish in a second: the engine stops reading from it for a while.
    for n in 0..8 {
        steps.push(text(0, &format!(r#"{{"type":"publish","id":{n},"topic":"p","data":{n}}}"#)));
    }
    steps.extend([Wait(3), Read(0), Wait(12), Read(0), Wait(12), Read(0), Read(1)]);
    check("choices", false, &steps);
}

#[test]
fn a_message_may_be_cut_anywhere() {
    let mut frames = Vec::new();
    encode_masked(Opcode::Ping, false, b"ping", [5, 6, 7, 8], &mut frames);
    let fragment = |head: u8, bytes: &[u8]| {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![head, 0x80 | u8::try_from(bytes.len()).unwrap()];
        frame.extend(mask);
        frame.extend(bytes.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        frame
    };
    // The first fragment ends in the middle of a character of three bytes.
    let whole = r#"{"type":"publish","id":1,"topic":"plain","data":"€uro"}"#;
    let (head, tail) = whole.as_bytes().split_at(whole.find('€').unwrap() + 1);
    frames.extend(fragment(0x01, head));
    frames.extend(fragment(0x89, b"between"));
    frames.extend(fragment(0x80, tail));
    for cut in 1..frames.len() {
        let open = Open(0, 0, socket("/ws?user=u0&topic=plain", ""));
        let (first, rest) = frames.split_at(cut);
        let steps = [open, Send(0, first.to_vec()), Send(0, rest.to_vec()), Read(0)];
        let want = Scene::play(&steps, false, |_| When::Never);
        let with = Scene::play(&steps, false, |at| if at == 1 { When::After } else { When::Never });
        assert_eq!(with.texts(), want.texts(), "cut after {cut} bytes");
        let received = String::from_utf8_lossy(&want.received[0]).into_owned();
        assert!(received.contains("€uro") && received.contains("between"), "{received}");
    }
}
