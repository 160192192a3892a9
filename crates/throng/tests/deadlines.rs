//! What ends, or comes, after so many seconds is never early, wherever in a second it begins.

use std::thread;
use std::time::{Duration, Instant};

use protocol::mqtt::id;
use serde_json::json;

use crate::mqtt::client::*;
use crate::support::Server;

/// The parts of a second in which each deadline begins.
const PHASES: u32 = 4;

/// A client with a will is cut, and its will is waited for.
fn dies(server: &Server, name: &'static str, mut connect: Connect, will_delay_s: u32) {
    let mut hears = Connect::new(V5, &format!("{name}-hears")).open(server.client);
    hears.subscribe(&[filter(name, 1)]);
    connect = connect.will(name, "bye", 1);
    let properties = &mut connect.will.as_mut().unwrap().properties;
    properties.push(number(id::WILL_DELAY_INTERVAL, will_delay_s));
    connect.open(server.client).cut();
    assert_eq!(hears.message().payload, "bye");
}

/// Begins something, and returns when its time is over.
type Deadline = fn(&Server, &'static str);

/// Deadlines, and for how long they must not be over.
const DEADLINES: [(&str, Duration, Deadline); 4] = [
    ("will", Duration::from_secs(1), |server, name| {
        dies(server, name, Connect::kept(V5, name), 1);
    }),
    ("session", Duration::from_secs(2), |server, name| {
        let connect = Connect { clean: false, ..Connect::new(V5, name) };
        dies(server, name, connect.with(number(id::SESSION_EXPIRY_INTERVAL, 2)), 100);
    }),
    ("keep-alive", Duration::from_millis(1_500), |server, name| {
        let connect = Connect { keep_alive_s: 1, ..Connect::new(V5, name) };
        connect.open(server.client).is_told(0x8d);
    }),
    ("poll", Duration::from_secs(1), |server, name| {
        let (status, answer) = server.get(&format!("/poll?topic={name}&timeout=1"));
        assert_eq!((status, &answer["messages"]), (200, &json!([])));
    }),
];

#[test]
fn nothing_is_over_early() {
    let settings = [("THRONG_LOG_LEVEL", "error")];
    let server = &Server::with(&["--mqtt", "127.0.0.1:0"], &settings);
    thread::scope(|scope| {
        for (deadline, least, run) in DEADLINES {
            for phase in 0..PHASES {
                scope.spawn(move || {
                    thread::sleep(Duration::from_secs(1) * phase / PHASES);
                    let began = Instant::now();
                    run(server, format!("{deadline}-{phase}").leak());
                    let after = began.elapsed();
                    assert!(after >= least, "{deadline} was over after {after:?}");
                });
            }
        }
    });
}
