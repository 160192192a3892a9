//! A full queue: the server rejects publishes with a clear error, and stores all that it accepted.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;

use crate::store::folder::{Caller, Folder, end};
use crate::support::header;

const SMALL_QUEUE: &str = r#"
[client]
publish_prefixes = [""]
[timeouts]
drain_seconds = 0
[store]
queue_messages_max = 4
[[topics]]
pattern = "d:*"
history_messages_max = 1000000
history_bytes_max = "1GiB"
durable = true
[[topics]]
pattern = "h:*"
history_messages_max = 1000000
history_bytes_max = "1GiB"
"#;

/// Publishers of each kind at the same time, and how many messages each publishes.
const PUBLISHERS: usize = 8;
const MESSAGES: usize = 40;
/// How often they all publish at the most, until a publish is rejected.
const ROUNDS_MAX: usize = 10;

/// The accepted texts in order, and how many were rejected.
type Outcome = (Vec<(String, String)>, usize);

fn publisher(name: String, topic: &'static str, client: bool, caller: &mut Caller) -> Outcome {
    let (mut taken, mut refused) = (Vec::new(), 0);
    for number in 0..MESSAGES {
        let data = format!("{name}.{number}");
        let reply = match client {
            true => caller.call("POST", &format!("/publish?topic={topic}"), "text/plain", &data),
            false => caller.post("/api/publish", &json!({"topic": topic, "data": data})),
        };
        let reply = reply.unwrap();
        if reply.status == 200 {
            taken.push((data, reply.body["id"].as_str().unwrap().into()));
            continue;
        }
        assert_eq!(reply.status, 503, "{}", reply.body);
        assert!(header(&reply.head, "retry-after").is_some(), "{}", reply.head);
        let (code, message) = (&reply.body["error"]["code"], &reply.body["error"]["message"]);
        assert_eq!(code, "store_busy", "{message}");
        assert!(message.as_str().unwrap().contains("the store is overloaded"), "{message}");
        refused += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    (taken, refused)
}

#[test]
fn a_full_queue_rejects_publishes_and_loses_no_message() {
    let folder = Folder::new("queue", SMALL_QUEUE);
    let server = folder.serve();
    let publishers = [("d:a", false), ("h:a", false), ("d:a", true), ("h:a", true)];
    let (mut outcomes, mut refused) = (Vec::new(), 0);
    // With a quick disk and a slow machine, the queue may have room for a whole round.
    for round in 0..ROUNDS_MAX {
        let threads: Vec<_> = (0..PUBLISHERS * publishers.len())
            .map(|at| {
                let (topic, client) = publishers[at % publishers.len()];
                let address = if client { server.client } else { server.admin };
                std::thread::spawn(move || {
                    let mut caller = Caller::new(address).unwrap();
                    (topic, publisher(format!("{round}.{at}"), topic, client, &mut caller))
                })
            })
            .collect();
        let round = threads.into_iter().map(|thread| thread.join().unwrap());
        outcomes.extend(round);
        refused = outcomes.iter().map(|(_, (_, refused))| refused).sum();
        if refused > 0 {
            break;
        }
    }
    assert!(refused > 0, "the queue was never full");
    println!("{refused} of {} were refused", outcomes.len() * MESSAGES);
    // Checks all responses, now and after an orderly restart.
    assert_eq!(end(server), Some(0));
    let server = folder.serve();
    let mut caller = Caller::new(server.admin).unwrap();
    for topic in ["d:a", "h:a"] {
        let stored = caller.history(topic, None, 1_000);
        let ids: HashMap<&str, &str> =
            stored.iter().map(|message| (&*message.data, &*message.id)).collect();
        assert_eq!(ids.len(), stored.len(), "{topic}: a message is there twice");
        let mine: Vec<_> = outcomes.iter().filter(|(of, _)| *of == topic).collect();
        let taken: usize = mine.iter().map(|(_, (taken, _))| taken.len()).sum();
        assert_eq!(stored.len(), taken, "{topic}: what was refused is not there");
        for (data, id) in mine.iter().flat_map(|(_, (taken, _))| taken) {
            assert_eq!(ids.get(&**data), Some(&&**id), "{topic}: {data}");
        }
    }
}
