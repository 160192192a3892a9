//! Deadlines in whole seconds never end early, in whichever part of a second they begin.

use std::thread;
use std::time::{Duration, Instant};

use protocol::mqtt::id;
use serde_json::json;

use crate::mqtt::client::*;
use crate::support::Server;

/// The parts of a second in which each deadline begins.
const PHASES: u32 = 4;

/// Cuts the connection of a client with a will, and waits until the server publishes the will.
fn cut_and_receive_will(
    server: &Server,
    name: &'static str,
    mut connect: Connect,
    will_delay_s: u32,
) {
    let mut listener = Connect::new(V5, &format!("{name}-listener")).open(server.client);
    listener.subscribe(&[filter(name, 1)]);
    connect = connect.will(name, "bye", 1);
    let properties = &mut connect.will.as_mut().unwrap().properties;
    properties.push(number(id::WILL_DELAY_INTERVAL, will_delay_s));
    connect.open(server.client).cut();
    assert_eq!(listener.message().payload, "bye");
}

/// Starts a deadline, and returns when the server has acted on it.
type Deadline = fn(&Server, &'static str);

/// Each deadline's name, and the time before which the server must not act on it.
const DEADLINES: [(&str, Duration, Deadline); 4] = [
    ("will", Duration::from_secs(1), |server, name| {
        cut_and_receive_will(server, name, Connect::persistent(V5, name), 1);
    }),
    ("session", Duration::from_secs(2), |server, name| {
        let connect = Connect { clean: false, ..Connect::new(V5, name) };
        cut_and_receive_will(
            server,
            name,
            connect.with(number(id::SESSION_EXPIRY_INTERVAL, 2)),
            100,
        );
    }),
    ("keep-alive", Duration::from_millis(1_500), |server, name| {
        let connect = Connect { keep_alive_s: 1, ..Connect::new(V5, name) };
        connect.open(server.client).is_ended_for(0x8d);
    }),
    ("poll", Duration::from_secs(1), |server, name| {
        let (status, reply) = server.get(&format!("/poll?topic={name}&timeout=1"));
        assert_eq!((status, &reply["messages"]), (200, &json!([])));
    }),
];

#[test]
fn no_deadline_ends_early() {
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
                    assert!(after >= least, "{deadline} ended after {after:?}");
                });
            }
        }
    });
}
