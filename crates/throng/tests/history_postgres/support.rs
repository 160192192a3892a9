//! Servers whose history is in a real PostgreSQL.

use serde_json::Value;

pub use crate::cluster::support::{Nats, until_disconnected, until_nodes};
pub use crate::outbox::support::{Postgres, until};
use crate::support::*;

/// Topics with history, and their limits.
pub const RULES: &str = "[[topics]]\npattern = \"few:*\"\nhistory_messages_max = 3\ndurable = true\n\
                     [[topics]]\npattern = \"old:*\"\nhistory_messages_max = 9\nhistory_seconds_max = 1\n\
                     durable = true\n\
                     [[topics]]\npattern = \"chat:*\"\nhistory_messages_max = 100000\n\
                     history_bytes_max = \"1GiB\"\ndurable = true\n\
                     [[topics]]\npattern = \"map:*\"\nhistory_messages_max = 3\ncompact = true\n\
                     durable = true\n\
                     [[topics]]\npattern = \"brief:*\"\nhistory_messages_max = 3\nhistory_seconds_max = 1\n\
                     compact = true\ndurable = true\n\
                     [[topics]]\npattern = \"job:*\"\nhistory_messages_max = 9\ndurable = true\n\
                     acknowledge = true\n";

/// A condition on a process of PostgreSQL: it waits for a lock.
pub const LOCKED: &str = "wait_event_type = 'Lock'";

/// A database, and the configuration of servers that have their history in it.
pub struct Database {
    pub postgres: Postgres,
    folder: Scratch,
}

impl Database {
    pub fn start() -> Self {
        Database { postgres: Postgres::start(), folder: Scratch::new("history") }
    }

    /// Starts a server, with further settings.
    pub fn server_with(&self, settings: &[(&str, &str)]) -> Server {
        let file = self.folder.write("throng.toml", RULES).display().to_string();
        let url = [("THRONG_HISTORY_URL", &*self.postgres.url("postgres"))];
        let server =
            Server::with(&["--shards", "1", "--config", &file], &[&url, settings].concat());
        until_connected(&server);
        server
    }

    /// Starts the nodes of a cluster that have their history here, and waits until they know each other.
    pub fn nodes(&self, nats: &Nats) -> [Server; 3] {
        self.nodes_with(nats, &[])
    }

    /// Like [`Database::nodes`], with further settings.
    pub fn nodes_with(&self, nats: &Nats, settings: &[(&str, &str)]) -> [Server; 3] {
        let file = self.folder.write("throng.toml", RULES).display().to_string();
        let url = [("THRONG_HISTORY_URL", &*self.postgres.url("postgres"))];
        let nodes = ["a", "b", "c"]
            .map(|name| nats.node_with(name, &["--config", &file], &[&url, settings].concat()));
        nodes.iter().for_each(|node| until_nodes(node, 2));
        nodes.iter().for_each(until_connected);
        nodes
    }

    pub fn server(&self) -> Server {
        self.server_with(&[])
    }

    /// Starts a server that connects as the database user `b`, which [`Database::lock_out`] locks out.
    pub fn server_b(&self, settings: &[(&str, &str)]) -> Server {
        self.postgres.psql("CREATE ROLE b SUPERUSER LOGIN");
        let url = [("THRONG_HISTORY_URL", &*self.postgres.url("b"))];
        self.server_with(&[&url, settings].concat())
    }

    /// Terminates the sessions of the user `b`, which can't log in again until [`Database::let_in`].
    pub fn lock_out(&self, server: &Server) {
        self.postgres.psql("ALTER ROLE b NOLOGIN");
        self.postgres
            .psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'b'");
        until_away(server);
    }

    pub fn let_in(&self) {
        self.postgres.psql("ALTER ROLE b LOGIN");
    }

    /// Returns the processes of PostgreSQL whose last statement has this text, and for which a condition holds.
    pub fn processes(&self, part: &str, condition: &str) -> Vec<String> {
        let found = self.postgres.psql(&format!(
            "SELECT pid FROM pg_stat_activity WHERE position('{part}' IN query) > 0 AND {condition} \
             AND pid <> pg_backend_pid()"
        ));
        found.lines().map(str::to_owned).collect()
    }

    /// Makes all messages but the last older than the time within which the server deletes none.
    pub fn age(&self) {
        self.postgres.psql(
            "UPDATE throng.history_messages SET at_ms = at_ms - 120000 \
             WHERE log_offset < (SELECT last_offset FROM throng.history_log); \
             UPDATE throng.history_replaced SET replaced_ms = replaced_ms - 120000",
        );
    }

    pub fn rows(&self) -> u64 {
        self.postgres.psql("SELECT count(*) FROM throng.history_messages").parse().unwrap()
    }

    /// Kills a server as a crash does, and starts another one.
    pub fn replace(&self, mut server: Server) -> Server {
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        self.server()
    }
}

/// Waits until a server appends to its database and reads from it.
pub fn until_connected(server: &Server) {
    server.until("it is connected", |server| server.metric("throng_history_connected") == 1.0);
}

/// Waits until a server knows that its database is away.
pub fn until_away(server: &Server) {
    server.until("the database is away", |server| server.metric("throng_history_connected") == 0.0);
}

/// Connects a member of a topic. The query may have the position of an earlier connection.
pub fn member(server: &Server, query: &str) -> Stream {
    let mut stream = server.listen(&format!("/stream?{query}"));
    assert_eq!(stream.next_object()["type"], "welcome");
    stream
}

/// Returns the id and the data of the next message.
pub fn next(stream: &mut Stream) -> (String, Value) {
    loop {
        let object = stream.next_object();
        if let Some(data) = object.get("data") {
            return (object["id"].as_str().unwrap_or_default().into(), data.clone());
        }
    }
}

/// Waits until the server rejects publishes with an error that has this text.
pub fn until_refused(server: &Server, part: &str) {
    let body = serde_json::json!({"topic": "chat:1", "data": "refused"});
    server.until(&format!("it refuses: {part}"), |server| {
        let (status, reply) = server.api("POST", "/api/publish", Some(body.clone()));
        assert_eq!(status, 503, "{reply}");
        reply["error"]["message"].as_str().unwrap().contains(part)
    });
}

/// Returns the next messages, up to one with this data.
pub fn until_data(stream: &mut Stream, last: &Value) -> Vec<(String, Value)> {
    let mut all = vec![next(stream)];
    while all.last().is_some_and(|(_, data)| data != last) {
        all.push(next(stream));
    }
    all
}

/// Publishes, and returns the id.
pub fn publish(server: &Server, topic: &str, data: impl Into<Value>) -> String {
    let published = server.publish(topic, data.into());
    published["id"].as_str().unwrap().to_owned()
}

/// Returns the ids and data of all messages of a topic, read in pages.
pub fn history(server: &Server, topic: &str) -> Vec<(String, Value)> {
    let (mut all, mut since) = (Vec::new(), String::new());
    loop {
        let target = format!("/api/history/{topic}?limit=100{since}");
        let (status, page) = server.api("GET", &target, None);
        assert_eq!(status, 200, "{page}");
        let messages = page["messages"].as_array().unwrap().iter();
        all.extend(
            messages.map(|message| {
                (message["id"].as_str().unwrap().to_owned(), message["data"].clone())
            }),
        );
        if page["more"] == false {
            return all;
        }
        since = format!("&since={}", page["next"].as_str().unwrap());
    }
}

/// Returns the data of messages.
pub fn data(messages: &[(String, Value)]) -> Vec<Value> {
    messages.iter().map(|(_, data)| data.clone()).collect()
}
