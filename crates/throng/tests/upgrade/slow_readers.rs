//! Clients that read slowly or not at all: the new server has their waiting data, and sends whole messages.

use std::time::Duration;

use crate::upgrade::api::Api;
use crate::upgrade::member::{Kind, Member, numbers};
use crate::upgrade::node::{BOTH, Node, Options, Storage};

/// More messages than the sockets take.
const MESSAGES: usize = 120;
const BYTES: usize = 8_000;

const KINDS: [Kind; 8] = [
    Kind::Sse,
    Kind::Stream,
    Kind::Ws,
    Kind::Phoenix,
    Kind::Mqtt3(0),
    Kind::Mqtt5(0),
    Kind::Mqtt5(1),
    Kind::Mqtt3(2),
];

fn text(number: usize) -> String {
    format!("{number} {}", "x".repeat(BYTES))
}

/// Returns the numbers of the texts, which must be whole.
fn numbers_of(texts: &[String]) -> Vec<String> {
    let number = |whole: &String| {
        let number = whole.split(' ').next().unwrap();
        assert_eq!(*whole, text(number.parse().unwrap()));
        number.to_string()
    };
    texts.iter().map(number).collect()
}

fn publish(node: &Node, topic: &str, range: std::ops::Range<usize>) {
    let mut api = Api::new(node.admin);
    range.for_each(|number| _ = api.publish(topic, &text(number)));
}

#[test]
fn what_waits_for_clients_that_do_not_read_comes_in_order() {
    for storage in BOTH {
        let settings = vec![("THRONG_SOCKET_SEND_BUFFER_BYTES", "64KiB")];
        let node = Node::with(Options { storage, settings, ..Options::default() });
        let mut members: Vec<Member> =
            KINDS.iter().map(|kind| Member::open(&node, *kind, "h:unread")).collect();
        let much_waits = |node: &Node| {
            node.until("much waits", |server| server.metric("throng_outbox_bytes") > 1e6);
        };
        publish(&node, "h:unread", 0..MESSAGES);
        for part in 1..=2 {
            much_waits(&node);
            node.upgrade();
            much_waits(&node);
            publish(&node, "h:unread", part * MESSAGES..(part + 1) * MESSAGES);
        }
        node.publish("h:unread", "end".into());
        for member in &mut members {
            let received = member.before_end();
            member.check_received(&numbers_of(&received), &numbers(0..3 * MESSAGES));
        }
        node.until("nothing waits", |server| server.metric("throng_outbox_bytes") == 0.0);
    }
}

/// Upgrades happen while clients read, so a message may be cut at any byte.
#[test]
fn slow_readers_get_whole_messages_through_upgrades() {
    let node = Node::with(Options {
        storage: Storage::Memory,
        settings: vec![("THRONG_SOCKET_SEND_BUFFER_BYTES", "16KiB")],
        ..Options::default()
    });
    let kinds = [Kind::Sse, Kind::Stream, Kind::Ws, Kind::Phoenix, Kind::Mqtt5(1)];
    let members: Vec<Member> =
        kinds.iter().map(|kind| Member::open(&node, *kind, "h:slow")).collect();
    std::thread::scope(|scope| {
        let read = |mut member: Member| {
            let mut received = Vec::new();
            loop {
                let text = member.next();
                if text == "end" {
                    return (member, received);
                }
                received.push(text);
                // The client reads more slowly than the publisher publishes.
                std::thread::sleep(Duration::from_millis(3));
            }
        };
        let threads = members.into_iter().map(|member| scope.spawn(move || read(member)));
        let threads: Vec<_> = threads.collect();
        for part in 0..4 {
            publish(&node, "h:slow", part * MESSAGES..(part + 1) * MESSAGES);
            node.upgrade();
        }
        node.publish("h:slow", "end".into());
        for thread in threads {
            let (member, received) = thread.join().unwrap();
            member.check_received(&numbers_of(&received), &numbers(0..4 * MESSAGES));
        }
    });
}
