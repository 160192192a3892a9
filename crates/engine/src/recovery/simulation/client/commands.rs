//! The commands of a client on an open connection, and their replies.

use super::super::log::{Log, PASSING, TOPICS, count, what};
use super::super::newest::Newest;
use super::super::progress::{Begins, Progress};
use super::super::read::Kind;
use super::{Client, Command, From, Pending, is_newest, is_state};

impl Client {
    /// Handles the reply to a command.
    pub(super) fn reply(
        &mut self,
        log: &Log,
        id: u64,
        since: Option<String>,
        recovered: Option<bool>,
        why: &str,
    ) {
        let name = self.name;
        let connection = self.connection.as_mut().unwrap();
        let at = connection.pending.iter().position(|it| it.id == id).expect("a command");
        let Pending { topic, command, requested, .. } = connection.pending.remove(at).unwrap();
        // A command that changes nothing gets its reply at once.
        let changes = !matches!(command, Command::Enter { from: From::Now, was_in: true });
        let earlier = connection.pending.iter().find(|it| it.topic == topic && it.id < id);
        assert!(!changes || earlier.is_none(), "client {name}: answered before {earlier:?}");
        connection.commanded.insert(topic);
        let Command::Enter { from, was_in } = command else {
            connection.inside.remove(&topic);
            connection.live.remove(&topic);
            connection.live.remove(&(PASSING + topic));
            return;
        };
        connection.inside.insert(topic);
        if !was_in {
            connection.joined[topic] = log[topic].len();
            connection.joined[PASSING + topic] = log[PASSING + topic].len();
            if is_newest(topic) && !what(topic).has_history() {
                self.newest.insert(topic, Newest::new(log[topic].len()));
            }
        }
        if !what(topic).has_history() || (was_in && matches!(from, From::Now)) {
            let in_vain = matches!(from, From::WhatIsThere(_)) && why.contains("no_history");
            assert_eq!(recovered, in_vain.then_some(false), "client {name}: {why}");
            return;
        }
        let since = since.expect("where it is");
        if is_state(topic) {
            let lost = recovered == Some(false);
            assert!(!lost || (why.contains("too_old") && self.has_lost(log, topic)), "{why}");
            let state = self.states.entry(topic).or_default();
            // A position before the first message is that of a client without messages.
            state.enter(requested, lost || !matches!(from, From::Position(1..)));
            // The client may have later messages, which come again.
            state.go_back(count(&log[topic], &since));
            self.since.insert(topic, since);
            return;
        }
        let next = count(&log[topic], &since);
        assert_eq!(matches!(from, From::Now), recovered.is_none());
        match from {
            From::Now => {}
            From::Position(from) => {
                assert_eq!(next, from, "client {name}: not from where it asked")
            }
            From::WhatIsThere(begins) => {
                assert_eq!(recovered, Some(true), "client {name}: {why}");
                // The client has left before any message came.
                let leaves = connection.pending.iter().any(|it| it.topic == topic && it.id > id);
                let may_be = begins.may_be(next, log[topic].len()) || (leaves && next == 0);
                assert!(may_be, "client {name}: {topic} begins with {next}: {begins:?}");
            }
        }
        let jump = recovered == Some(false);
        if is_newest(topic) {
            let newest = self.newest.entry(topic).or_default();
            match from {
                From::Position(_) => newest.go_back(next),
                From::Now | From::WhatIsThere(_) => *newest = Newest::new(next),
            }
        }
        self.progress.insert(topic, Progress::new(next, jump));
        if jump {
            assert!(why.contains("too_old"), "client {name}: {why}");
            assert!(self.has_lost(log, topic), "client {name}: nothing of {topic} was lost");
        }
        self.since.insert(topic, since);
    }

    /// Enters or leaves a topic, or requests the missed messages again. With `anew`, requests stored messages.
    pub fn command(&mut self, log: &Log, topic: usize, enter: bool, anew: bool) {
        let Some(connection) = &mut self.connection else { return };
        let is_in = connection.inside.contains(&topic);
        let last = connection.pending.iter().rfind(|it| it.topic == topic);
        let is_in = last.map_or(is_in, |it| matches!(it.command, Command::Enter { .. }));
        let phoenix = self.kind == Kind::Phoenix;
        if (!enter && !is_in) || (enter && is_in && phoenix) || what(topic).is_acknowledged() {
            return;
        }
        // A client that has requested the whole state has no position before the state comes.
        let renews = |it: &Pending| {
            it.topic == topic
                && matches!(it.command, Command::Enter { from: From::WhatIsThere(_), .. })
        };
        if enter && is_state(topic) && connection.pending.iter().any(renews) {
            return;
        }
        self.commands += 1;
        let id = self.commands;
        let known = self.since.get(&topic).filter(|_| enter && !(anew && self.requested.is_some()));
        let requested = self.requested.filter(|_| enter && known.is_none());
        let from = match (known, requested) {
            (Some(position), _) if is_state(topic) => From::Position(count(&log[topic], position)),
            (Some(_), _) => From::Position(self.progress.get(&topic).map_or(0, |it| it.next)),
            (None, Some(requested)) => From::WhatIsThere(Begins::new(log, topic, requested, false)),
            (None, None) => From::Now,
        };
        let name = TOPICS[topic].0;
        let since = known.cloned().or(requested.map(|requested| requested.to_string()));
        let since_field = since.map_or(String::new(), |since| format!("\"since\":\"{since}\""));
        let text = match (phoenix, enter) {
            (false, true) if since_field.is_empty() => {
                format!(r#"{{"type":"subscribe","id":{id},"topic":"{name}"}}"#)
            }
            (false, true) => {
                format!(r#"{{"type":"subscribe","id":{id},"topic":"{name}",{since_field}}}"#)
            }
            (false, false) => format!(r#"{{"type":"unsubscribe","id":{id},"topic":"{name}"}}"#),
            (true, true) => format!(r#"["{id}","{id}","{name}","phx_join",{{{since_field}}}]"#),
            (true, false) => format!(r#"[null,"{id}","{name}","phx_leave",{{}}]"#),
        };
        super::super::trace(|| format!("client {} sends {text}", self.name));
        let command = if enter { Command::Enter { from, was_in: is_in } } else { Command::Leave };
        let requested = log[topic].len();
        connection.pending.push_back(Pending { id, topic, command, requested });
        let mut out = Vec::new();
        let opcode = protocol::websocket::frame::Opcode::Text;
        protocol::websocket::frame::encode_masked(opcode, false, text.as_bytes(), [0; 4], &mut out);
        self.send(&out);
    }
}
