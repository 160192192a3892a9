//! Publishers that never stop, and clients that reconnect again and again: the server responds to all of them.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::mqtt::client::{Connect, V5};
use crate::support::{Stream, TIMEOUT, connect};
use crate::upgrade::api::Api;
use crate::upgrade::member::{Publisher, numbers};
use crate::upgrade::node::{BOTH, Node, SetOnDrop, Storage};

/// An action that a thread repeats, and the number of repetitions.
struct Loop<'a> {
    count: AtomicUsize,
    act: Box<dyn Fn(usize) + Sync + Send + 'a>,
}

impl<'a> Loop<'a> {
    fn new(act: impl Fn(usize) + Sync + Send + 'a) -> Self {
        Loop { count: AtomicUsize::new(0), act: Box::new(act) }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn run(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) && self.count() < Publisher::MESSAGES_MAX {
            (self.act)(self.count());
            self.count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn publishes<'a>(node: &'a Node, topic: &'a str) -> Loop<'a> {
    let api = std::sync::Mutex::new(Api::new(node.admin));
    Loop::new(move |number| _ = api.lock().unwrap().publish(topic, &number.to_string()))
}

fn is_healthy(address: SocketAddr) {
    let mut stream = Stream::new(TcpStream::connect(address).expect("a connect was refused"));
    stream.reader.get_ref().set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let reply = stream.rest();
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply:?}");
}

#[test]
fn publishers_and_new_clients_are_all_replied() {
    for storage in BOTH {
        let node = Node::new(storage);
        let topics: &[&str] = match storage {
            Storage::Memory => &["h:one", "h:two", "plain"],
            Storage::Disk => &["h:one", "d:one", "d:two", "plain"],
        };
        let publishers: Vec<Loop> = topics.iter().map(|topic| publishes(&node, topic)).collect();
        let clients = [
            Loop::new(|_| is_healthy(node.client)),
            Loop::new(|_| is_healthy(node.admin)),
            Loop::new(|_| Connect::new(V5, "").open(node.client).disconnect()),
        ];
        let loops: Vec<&Loop> = publishers.iter().chain(&clients).collect();
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let threads = loops.iter().map(|one| scope.spawn(move || one.run(stop)));
            let threads: Vec<_> = threads.collect();
            let guard = SetOnDrop(stop);
            for round in 0..=3 {
                let before: Vec<usize> = loops.iter().map(|one| one.count()).collect();
                node.until("each loop goes on", |_| {
                    let expected = before.iter().map(|count| count + 10);
                    let goes_on = |(one, expected): (&&Loop, usize)| {
                        one.count() >= expected.min(Publisher::MESSAGES_MAX)
                    };
                    loops.iter().zip(expected).all(goes_on)
                });
                if round < 3 {
                    node.upgrade();
                }
            }
            drop(guard);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        for (topic, publisher) in topics.iter().zip(&publishers) {
            if *topic != "plain" {
                let mut api = Api::new(node.admin);
                let expected = numbers(0..publisher.count());
                node.until("the last is readable", |_| api.history(topic).len() >= expected.len());
                assert_eq!(api.history(topic), expected, "{topic}");
            }
        }
    }
}

/// The new server responds on connections to the admin port that were open before.
#[test]
fn an_open_admin_connection_is_served_by_the_new_server() {
    let node = Node::new(Storage::Memory);
    let mut idle: Vec<Api> = (0..20).map(|_| Api::new(node.admin)).collect();
    idle.iter_mut().for_each(|api| _ = api.publish("h:a", "before"));
    node.switch();
    for api in &mut idle {
        assert_eq!(api.history("h:a").len(), 20);
    }
    let open = |path: &str| {
        let mut stream = Stream::new(connect(node.admin));
        stream.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert!(stream.head().starts_with("HTTP/1.1 200 "), "{path}");
        stream
    };
    let streams = ["/api/live", "/api/trace?user=alice"].map(open);
    node.switch();
    // The streams of samples and of a trace end, so that their readers connect to the new server.
    for mut stream in streams {
        let end = Instant::now() + TIMEOUT;
        while !stream.chunk().is_empty() {
            assert!(Instant::now() < end, "it does not end");
        }
    }
    let mut trace = open("/api/trace?user=alice");
    assert!(trace.chunk().contains("\"trace\""));
}
