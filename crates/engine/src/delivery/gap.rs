//! Notices of a gap: when messages of other nodes are lost, the members of their topics get one.
//!
//! The notice is a message of its own ([`Message::gap`]) in the topic's fan-out: it comes before later messages, and
//! each protocol writes it in its form for a client that has missed messages. Polls get no notice: each reads the
//! recent window, and finds it incomplete.

use std::sync::Arc;

use broker::Gap;
use model::name::BROADCAST;
use model::{Envelope, Message, Name, TopicKind};

use crate::core::Core;

/// The most topics of one gap that get a notice each. If more topics have members here, each connection gets one
/// notice for all topics.
const TOPICS_MAX: usize = if cfg!(test) { 3 } else { 1_024 };

impl Core {
    /// Sends the notices of a gap.
    pub(crate) fn on_gap(&mut self, gap: &Gap) {
        let topics: Vec<Name> = match gap.is_everyone() {
            true => Vec::new(),
            false => self.affected_topics(gap).take(TOPICS_MAX + 1).cloned().collect(),
        };
        if gap.is_everyone() || topics.len() > TOPICS_MAX {
            let notice = self.gap_notice(gap, BROADCAST);
            if self.hub.broadcast(notice.clone()) > 0 {
                self.handle.inbox.backlog.enter(&notice);
            }
            return;
        }
        for topic in topics {
            let notice = self.gap_notice(gap, &topic);
            if self.hub.publish(notice.topic_hash, &topic, notice.clone()) > 0 {
                self.handle.inbox.backlog.enter(&notice);
            }
        }
    }

    /// Returns the topics with members here that may have lost messages. A filter may have matched any of them.
    fn affected_topics<'a>(&'a self, gap: &'a Gap) -> impl Iterator<Item = &'a Name> {
        let topics = self.hub.all_topics().map(|(name, ..)| name);
        topics.filter(|name| match TopicKind::of(name) {
            TopicKind::Filter(_) => true,
            TopicKind::Ordinary | TopicKind::Personal(_) | TopicKind::Broadcast => gap.has(name),
        })
    }

    fn gap_notice(&self, gap: &Gap, topic: &str) -> Arc<Envelope> {
        let hash = self.broker.hash(topic);
        Arc::new(Message::gap(topic, gap.position, hash, self.now_us).into())
    }
}

#[cfg(test)]
mod tests {
    use model::{Epoch, Position};

    use super::*;
    use crate::core::command::Command;
    use crate::delivery::support::World;

    /// Loses messages of these topics.
    fn lose(world: &mut World, topics: &'static [&str]) {
        let position = Position { epoch: Epoch(10), offset: 7 };
        let gap = Gap::new(position, topics.contains(&"*"), move |it| topics.contains(&it));
        world.handle.send(Command::Gap(Arc::new(gap)));
        world.turn();
    }

    fn object(topic: &str) -> String {
        format!(
            r#"{{"type":"recovery","since":"0000000a:7","recovered":false,"reason":"too_old","topics":{{"{topic}":"too_old"}}}}"#
        )
    }

    #[test]
    fn each_member_of_a_topic_gets_the_notice_of_its_protocol() {
        let mut world = World::new();
        let sse = world.open("GET /sse?topic=a HTTP/1.1");
        let json = world.open("GET /sse?topic=a&format=json HTTP/1.1");
        let stream = world.open("GET /stream?topic=a&user=al HTTP/1.1");
        let socket = world.open("GET /ws?topic=a HTTP/1.1");
        let all = world.open("GET /stream?topic=%2B&filter=mqtt HTTP/1.1");
        let other = world.open("GET /stream?topic=b HTTP/1.1");
        let phoenix = world.open("GET /socket/websocket?vsn=2.0.0 HTTP/1.1");
        world.send_frame(&phoenix, r#"["1","1","a","phx_join",{}]"#);
        lose(&mut world, &["a", "c"]);
        let event = format!("event: recovery\ndata: {}\n\n", object("a"));
        assert!(world.read(&sse).contains(&event));
        assert!(world.read(&json).contains(&event));
        assert!(world.read(&stream).contains(&(object("a") + "\n")));
        assert!(world.read(&socket).ends_with(&object("a")));
        assert!(world.read(&all).contains(&(object("+") + "\n")), "it may have matched");
        let pushed = format!(r#"[null,null,"a","recovery",{}]"#, object("a"));
        assert!(world.read(&phoenix).ends_with(&pushed));
        assert_eq!(world.read(&other), "");
        lose(&mut world, &["@al"]);
        assert!(world.read(&stream).contains(&(object("@al") + "\n")));
        assert_eq!((world.read(&sse), world.read(&other)), (String::new(), String::new()));
    }

    #[test]
    fn of_many_topics_and_of_those_to_everyone_each_connection_gets_one_notice() {
        let mut world = World::new();
        let many = world.open("GET /stream?topic=a&topic=b&topic=c&topic=d HTTP/1.1");
        let other = world.open("GET /stream?topic=e HTTP/1.1");
        lose(&mut world, &["a", "b", "c"]);
        let text = world.read(&many);
        assert!(["a", "b", "c"].iter().all(|topic| text.contains(&object(topic))), "{text}");
        assert_eq!(world.read(&other), "");
        for lost in [&["a", "b", "c", "d"][..], &["*"]] {
            lose(&mut world, lost);
            for client in [&many, &other] {
                let text = world.read(client);
                assert_eq!(text.matches("recovery").count(), 1, "{text}");
                assert!(text.contains(&object("*")), "{text}");
            }
        }
        // The notices don't count as on their way any more.
        let hash = world.driver.engine.core.broker.hash("*");
        let backlog = world.handle.backlog().counter(hash);
        assert_eq!(backlog.load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}
