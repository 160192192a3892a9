//! Resumes connections after a reconnect, and acknowledges their messages.

use std::fmt::Write;

use client::Client;

use super::Worker;
use crate::clock::now_ns;
use crate::crowd::acker::{Acker, Job};
use crate::crowd::connection::Stage;
use crate::crowd::resume_state::{ResumeState, ResumeStyle};
use crate::crowd::{Common, Stat};
use crate::payload::To;
use crate::sequence::Tracker;

impl Common {
    /// Returns the names of a connection's topics, if the server names them in its messages.
    pub(super) fn names(&self, resume_state: &ResumeState) -> Vec<String> {
        let name = |room: u32| {
            let plan = &self.plan;
            plan.topic.text(plan.first + room * plan.users_per_room.max(1), room)
        };
        // The server names the topic only if the client joined it.
        if resume_state.style != ResumeStyle::Joins {
            return Vec::new();
        }
        resume_state.topics.iter().map(|progress| name(progress.room)).collect()
    }

    /// Returns how many published messages a connection has not received. Adds a description to the
    /// anomalies if `describes`.
    pub(super) fn missing(
        &self,
        resume_state: &ResumeState,
        index: u32,
        client: &dyn Client,
        describes: bool,
    ) -> u64 {
        let published = &self.published;
        let sure = |to, tracker: &Tracker, last| {
            let missing = tracker.missing(last);
            let sure = if missing == 0 { 0 } else { published.count_sure(to, last, missing) };
            u64::from(sure)
        };
        let to = To::User(self.plan.first + index);
        let mut missing = sure(to, &resume_state.user.tracker, published.user(index));
        for progress in &resume_state.topics {
            let last = published.topic(progress.room);
            missing += sure(To::Topic(progress.room), &progress.tracker, last);
        }
        if missing > 0 && describes {
            self.anomalies.add(|| {
                let user = self.plan.first + index;
                let client = client.name();
                let state = resume_state.describe();
                format!("missing at the end: {missing} on {client}, user {user}; {state}")
            });
        }
        missing
    }
}

impl Worker<'_> {
    pub(super) fn recovers(&self) -> bool {
        self.common.plan.recover
    }

    /// Returns whether a connection subscribes to its topics by commands. Every second WebSocket does; the others
    /// name the topics in the URL.
    pub(super) fn subscribes_by_command(&self, index: u32) -> bool {
        let number = self.common.plan.first + self.at(index);
        self.recovers() && number.is_multiple_of(2) && self.client(index).name() == "ws"
    }

    fn resume_style(&self, index: u32) -> ResumeStyle {
        let client = self.client(index);
        match () {
            () if !client.is_http() && self.common.plan.persistent => ResumeStyle::Session,
            () if !self.recovers() => ResumeStyle::Nothing,
            () if client.has_one_token() => ResumeStyle::One,
            () if client.joins() || self.subscribes_by_command(index) => ResumeStyle::Joins,
            () => ResumeStyle::Each,
        }
    }

    /// Prepares the resume state for an attempt to connect.
    pub(super) fn begin_resume(&mut self, index: u32) {
        if self.resume_states.is_empty() {
            return;
        }
        let (plan, style) = (&self.common.plan, self.resume_style(index));
        let number = plan.first + self.at(index);
        let resume_state = self.resume_states[index as usize].get_or_insert_with(|| {
            let rooms = if plan.topic.is_empty() { Vec::new() } else { plan.rooms_of(number) };
            Box::new(ResumeState::new(style, rooms.into_iter(), plan.acks.is_some()))
        });
        if !resume_state.begin_attempt(now_ns()) {
            self.stats[Stat::NotRecovered as usize] += 1;
            let why = "the server sent no position to resume from";
            self.common.anomalies.cause(format!("recovery: {why}"));
        }
    }

    /// In a storm, notes how many messages a connection will miss.
    pub(super) fn expect_missed(&mut self, index: u32) {
        let missed = self.common.plan.missed;
        if let Some(Some(resume_state)) = self.resume_states.get_mut(index as usize) {
            resume_state.missed_left = missed.saturating_mul(resume_state.topics.len() as u32);
        }
    }

    /// Adds the parameters for further topics and for resuming to `self.path`. Returns the resume
    /// token that covers all topics, or all topics without a position of their own.
    pub(super) fn add_resume_parameters(&mut self, index: u32) -> Option<String> {
        let resume_state = self.resume_states.get(index as usize)?.as_deref()?;
        let plan = &self.common.plan;
        let number = plan.first + self.at(index);
        let (subscribes, client) = (self.subscribes_by_command(index), self.client(index));
        let path = &mut self.path;
        let name =
            |room: u32| plan.topic.text(plan.first + room * plan.users_per_room.max(1), room);
        let joins = resume_state.style == ResumeStyle::Joins;
        if subscribes {
            *path = without_topics(path);
        } else {
            // Writing to a String can't fail.
            for progress in resume_state.topics.iter().skip(1) {
                let _ = write!(path, "&topic={}", name(progress.room));
            }
            for progress in &resume_state.topics {
                if let Some(position) = progress.position {
                    let _ = write!(path, "&since:{}={position}", name(progress.room));
                }
            }
        }
        let user = || plan.user.text(number, plan.room(number));
        if resume_state.acks.is_some() && client.joins() {
            // A client must join a topic to acknowledge its messages.
            let _ = write!(path, "&topic=@{}", user());
        }
        if !joins
            && resume_state.acks.is_none()
            && let Some(position) = resume_state.user.position
        {
            let _ = write!(path, "&since:@{}={position}", user());
        }
        let has_token = resume_state.token.is_some();
        if resume_state.style == ResumeStyle::One && !has_token && !client.replies_at_once() {
            // The first long poll fetches a resume token and doesn't wait for messages.
            path.push_str("&timeout=0");
        }
        match resume_state.style {
            ResumeStyle::One => resume_state.token.as_deref().map(str::to_string),
            ResumeStyle::Each => resume_state.base.map(|base| base.to_string()),
            ResumeStyle::Nothing | ResumeStyle::Joins | ResumeStyle::Session => None,
        }
    }

    /// Subscribes an open connection to its topics, if it uses commands for that.
    pub(super) fn subscribe(&mut self, index: u32) {
        if !self.subscribes_by_command(index) {
            return;
        }
        let (client, plan) = (self.client(index), &self.common.plan);
        let Some(Some(resume_state)) = self.resume_states.get(index as usize) else {
            return;
        };
        for progress in &resume_state.topics {
            let room = progress.room;
            let name = plan.topic.text(plan.first + room * plan.users_per_room.max(1), room);
            let since = progress.position.map(|position| position.to_string());
            client.subscribe(&name, since.as_deref(), &mut self.reply);
        }
    }

    /// Acknowledges `messages` messages to a connection's user, the last with this number and id, if
    /// an acknowledgement is due.
    pub(super) fn acknowledge(&mut self, index: u32, messages: u32, number: u32, id: String) {
        let Some(acks) = self.common.plan.acks else {
            return;
        };
        let (client, plan) = (self.client(index), &self.common.plan);
        let user_number = plan.first + self.at(index);
        let Some(Some(resume_state)) = self.resume_states.get_mut(index as usize) else {
            return;
        };
        let Some(state) = &mut resume_state.acks else {
            return;
        };
        state.unacknowledged += messages;
        if state.unacknowledged < acks.every || id.is_empty() {
            return;
        }
        state.unacknowledged = 0;
        if self.random.unit() * 100.0 < acks.skip_percent {
            return;
        }
        let user = plan.user.text(user_number, plan.room(user_number));
        if client.acknowledge(&user, &id, &mut self.reply) {
            if let Ok(id) = id.parse() {
                state.send(id, number);
            }
            return;
        }
        let server = self.write_path(index);
        if self.acker.is_none() {
            let Common { plan, anomalies, .. } = self.common;
            match plan.servers_with_tls().and_then(|servers| Acker::start(servers, anomalies)) {
                Ok(acker) => self.acker = Some(acker),
                Err(error) => {
                    self.common.anomalies.cause(format!("acknowledgement: {error:#}"));
                    return self.stats[Stat::AckFailed as usize] += 1;
                }
            }
        }
        if let Some(acker) = &self.acker {
            acker.send(Job { server, index, number, user, id });
        }
    }

    /// Counts the acknowledgements by `POST /ack` that the server accepted.
    pub(super) fn take_acknowledged(&mut self, now_ns: u64) {
        let Some(acker) = &self.acker else {
            return;
        };
        let (accepted, failed) = acker.take();
        self.stats[Stat::AckFailed as usize] = failed;
        for (index, number) in accepted {
            if let Some(Some(resume_state)) = self.resume_states.get_mut(index as usize)
                && let Some(acks) = &mut resume_state.acks
            {
                let done = acks.done(number, now_ns);
                self.stats[Stat::Acked as usize] += u64::from(done);
            }
        }
    }

    /// Returns true while a connection can be cut.
    pub(super) fn is_connected(&self, index: u32) -> bool {
        let stage = self.connections[index as usize].stage;
        matches!(stage, Stage::Requested | Stage::Open)
    }
}

/// Returns the path without the parameters that name topics.
fn without_topics(path: &str) -> String {
    let Some((base, query)) = path.split_once('?') else {
        return path.to_string();
    };
    let others: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("topic=")).collect();
    format!("{base}?{}", others.join("&"))
}
