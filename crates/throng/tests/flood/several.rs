//! Several targets, and several nodes to publish at.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::flood::{HISTORY, configured};
use crate::flooding::*;
use crate::support::{Server, free_port};

/// A second way to the same server, which a test can cut off.
struct Proxy {
    address: SocketAddr,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
    is_dead: Arc<AtomicBool>,
}

impl Proxy {
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy {
            address: listener.local_addr().unwrap(),
            sockets: Arc::default(),
            is_dead: Arc::default(),
        };
        let (sockets, is_dead) = (proxy.sockets.clone(), proxy.is_dead.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if is_dead.load(Ordering::Relaxed) {
                    return;
                }
                let server = TcpStream::connect(to).unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || pass_on(from, to));
                }
                sockets.lock().unwrap().extend([client, server]);
            }
        });
        proxy
    }

    /// Ends all connections, and stops listening.
    fn kill(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        // One more connection wakes up the thread that accepts.
        let _ = TcpStream::connect(self.address);
        for socket in self.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}

#[test]
fn connections_are_spread_over_the_targets_and_each_has_its_counts() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let targets = servers.each_ref().map(|server| server.client.to_string()).join(",");
    let mut run = Flood::start(&format!("hold {targets} -t sse,ws -c 120 --hold {LONG}"));
    run.until_all_arrived();
    for server in &servers {
        for transport in ["sse", "ws"] {
            let name = format!("throng_connections{{transport=\"{transport}\"}}");
            server.until(&format!("20 of {transport}"), |server| server.metric(&name) == 20.0);
        }
    }
    servers[2].post("/api/disconnect", json!({"user": "u3"}));
    run.until_count("closed", 1);
    let end = run.stop();
    end.errors([("closed", 1)]);
    let counts = |open: u64, closed: u64, at: usize| {
        json!({
            "target": servers[at].client.to_string(), "open": open, "opened": 40, "failed": 0,
            "closed": closed, "cuts": 0, "lost": 0,
        })
    };
    assert_eq!(
        end.summary["targets"],
        json!([counts(40, 0, 0), counts(40, 0, 1), counts(39, 1, 2)])
    );
}

#[test]
fn those_that_come_back_go_to_another_target_and_miss_nothing_when_one_dies() {
    let server = configured("roam", HISTORY, &[]);
    let proxy = Proxy::start(server.client);
    let unused = free_port();
    let port = server.admin.port();
    let mut run = Flood::start(&format!(
        "cut {},{} --admin http://127.0.0.1:{port},http://127.0.0.1:{unused},http://localhost:{port} -c 100 \
         -t sse,stream,poll,ws,phoenix --topics 10 --messages 60 --cuts-per-second 20 --away 0.3 \
         --send-rate 30 --hold {LONG}",
        server.client, proxy.address
    ));
    run.until_count("cuts", 40);
    proxy.kill();
    for (count, least) in [("cuts", 100), ("caught_up", 50), ("failed", 1)] {
        run.until_count(count, least);
    }
    let end = run.stop();
    // The tool counts the end of a target as cuts, and does not count failed reconnects to it.
    end.all_recovered(100).counts([("closed", 0), ("publish_failed", 0), ("publish_unsure", 0)]);
    let targets = end.summary["targets"].as_array().unwrap();
    assert_eq!(
        (&targets[0]["open"], &targets[1]["open"]),
        (&json!(100), &json!(0)),
        "{targets:#?}"
    );
    assert!(targets[1]["opened"].as_u64() > Some(40), "{targets:#?}");
    let cuts = targets.iter().map(|target| target["cuts"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(cuts, end.count("cuts"), "{:#}", end.summary);
}

#[test]
fn messages_that_are_lost_count_for_the_target_where_they_are() {
    let servers = [Server::start(), Server::start()];
    // The second server is alone, and does not get what the tool publishes at the first.
    let run = format!("one-topic {},{}", servers[0].client, servers[1].client);
    let end = flood(&format!(
        "{run} --admin http://{} -c 20 --messages 20 --hold 1 --settle 10",
        servers[0].admin
    ));
    let lost = end.count("published") * 10;
    end.errors([("lost", lost)]);
    let targets = &end.summary["targets"];
    assert_eq!(
        (&targets[0]["lost"], &targets[1]["lost"]),
        (&json!(0), &json!(lost)),
        "{targets:#}"
    );
}
