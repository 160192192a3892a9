//! What connections come back with, where they do, and what they acknowledge.

use std::fmt::Write;

use wire::client::Client;

use super::Worker;
use crate::clock::now_ns;
use crate::crowd::acker::{Acker, Job};
use crate::crowd::connection::Stage;
use crate::crowd::memory::{Idiom, Memory};
use crate::crowd::{Common, Stat};
use crate::payload::To;
use crate::sequence::Tracker;

impl Common {
    /// The names of the topics that a connection follows.
    pub(super) fn names(&self, memory: &Memory) -> Vec<String> {
        let name = |room: u32| {
            let plan = &self.plan;
            plan.topic.text(plan.first + room * plan.users_per_room.max(1), room)
        };
        // Only there a topic is named by the server.
        let named = memory.topics.iter().filter(|_| memory.idiom == Idiom::Joins);
        named.map(|followed| name(followed.room)).collect()
    }

    /// How much was published that a connection hasn't got, told in words if that is asked for.
    pub(super) fn missing(
        &self,
        memory: &Memory,
        index: u32,
        client: &dyn Client,
        tells: bool,
    ) -> u64 {
        let published = &self.published;
        let sure = |to, tracker: &Tracker, here| {
            let missing = tracker.missing(here);
            let sure = if missing == 0 { 0 } else { published.sure(to, here, missing) };
            u64::from(sure)
        };
        let to = To::User(self.plan.first + index);
        let mut missing = sure(to, &memory.user.tracker, published.user(index));
        for followed in &memory.topics {
            let here = published.topic(followed.room);
            missing += sure(To::Topic(followed.room), &followed.tracker, here);
        }
        if missing > 0 && tells {
            self.faults.tell(|| {
                let user = self.plan.first + index;
                let client = client.name();
                let places = memory.places();
                format!("missing at the end: {missing} on {client}, user {user}; {places}")
            });
        }
        missing
    }
}

impl Worker<'_> {
    pub(super) fn recovers(&self) -> bool {
        self.common.plan.recover
    }

    /// Every second WebSocket asks for its topics with commands, the others in the URL.
    pub(super) fn subscribes(&self, index: u32) -> bool {
        let number = self.common.plan.first + self.from + index;
        self.recovers() && number.is_multiple_of(2) && self.client(index).name() == "ws"
    }

    fn idiom(&self, index: u32) -> Idiom {
        let client = self.client(index);
        match () {
            () if !self.recovers() => Idiom::Nothing,
            () if client.has_one_place() => Idiom::One,
            () if client.joins() || self.subscribes(index) => Idiom::Joins,
            () => Idiom::Each,
        }
    }

    /// An attempt to connect begins.
    pub(super) fn remember_begin(&mut self, index: u32) {
        if self.memories.is_empty() {
            return;
        }
        let (plan, idiom) = (&self.common.plan, self.idiom(index));
        let number = plan.first + self.from + index;
        let memory = self.memories[index as usize].get_or_insert_with(|| {
            let rooms = if plan.topic.is_empty() { Vec::new() } else { plan.rooms_of(number) };
            Box::new(Memory::new(idiom, rooms.into_iter(), plan.acks.is_some()))
        });
        if !memory.begin(now_ns()) {
            self.numbers[Stat::NotRecovered as usize] += 1;
        }
    }

    /// In a storm: a connection will miss so many messages of each of its topics.
    pub(super) fn owe(&mut self, index: u32) {
        let missed = self.common.plan.missed;
        if let Some(Some(memory)) = self.memories.get_mut(index as usize) {
            memory.owed = missed.saturating_mul(memory.topics.len() as u32);
        }
    }

    /// Adds to `self.path` what a connection asks for beside its user and its first topic, and gives
    /// the place that says all, or is that of all topics without their own.
    pub(super) fn add_places(&mut self, index: u32) -> Option<String> {
        let memory = self.memories.get(index as usize)?.as_deref()?;
        let plan = &self.common.plan;
        let number = plan.first + self.from + index;
        let (subscribes, client) = (self.subscribes(index), self.client(index));
        let path = &mut self.path;
        let name =
            |room: u32| plan.topic.text(plan.first + room * plan.users_per_room.max(1), room);
        let joins = memory.idiom == Idiom::Joins;
        if subscribes {
            *path = without_topics(path);
        } else {
            // Writing to a String can't fail.
            for followed in memory.topics.iter().skip(1) {
                let _ = write!(path, "&topic={}", name(followed.room));
            }
            for followed in &memory.topics {
                if let Some(place) = followed.place {
                    let _ = write!(path, "&since:{}={place}", name(followed.room));
                }
            }
        }
        let user = || plan.user.text(number, plan.room(number));
        if memory.acks.is_some() && client.joins() {
            // A topic must be joined to acknowledge what comes of it.
            let _ = write!(path, "&topic=@{}", user());
        }
        if let Some(place) = memory.user.place.filter(|_| !joins && memory.acks.is_none()) {
            let _ = write!(path, "&since:@{}={place}", user());
        }
        if memory.idiom == Idiom::One && memory.last.is_none() && !client.answers_at_once() {
            // Where it is, before it waits.
            path.push_str("&timeout=0");
        }
        match memory.idiom {
            Idiom::One => memory.last.as_deref().map(str::to_string),
            Idiom::Each => memory.base.map(|base| base.to_string()),
            Idiom::Nothing | Idiom::Joins => None,
        }
    }

    /// A connection that is open asks for its topics, where it does so by commands.
    pub(super) fn subscribe(&mut self, index: u32) {
        if !self.subscribes(index) {
            return;
        }
        let (client, plan) = (self.client(index), &self.common.plan);
        let Some(Some(memory)) = self.memories.get(index as usize) else {
            return;
        };
        for followed in &memory.topics {
            let room = followed.room;
            let name = plan.topic.text(plan.first + room * plan.users_per_room.max(1), room);
            let since = followed.place.map(|place| place.to_string());
            client.subscribe(&name, since.as_deref(), &mut self.reply);
        }
    }

    /// So many messages came to a connection's user, the last with this number and id.
    pub(super) fn acknowledge(&mut self, index: u32, messages: u32, number: u32, id: String) {
        let Some(acks) = self.common.plan.acks else {
            return;
        };
        let (client, plan) = (self.client(index), &self.common.plan);
        let Some(Some(memory)) = self.memories.get_mut(index as usize) else {
            return;
        };
        let Some(state) = &mut memory.acks else {
            return;
        };
        state.waiting += messages;
        if state.waiting < acks.every || id.is_empty() {
            return;
        }
        state.waiting = 0;
        if self.random.unit() * 100.0 < acks.skip_percent {
            return;
        }
        let user_number = plan.first + self.from + index;
        let user = plan.user.text(user_number, plan.room(user_number));
        if client.acknowledge(&user, &id, &mut self.reply) {
            if let Ok(id) = id.parse() {
                state.send(id, number);
            }
            return;
        }
        let server = self.path(index);
        if self.acker.is_none() {
            match Acker::start(&self.common.plan.servers) {
                Ok(acker) => self.acker = Some(acker),
                Err(_) => return self.numbers[Stat::AckFailed as usize] += 1,
            }
        }
        if let Some(acker) = &self.acker {
            acker.send(Job { server, index, number, user, id });
        }
    }

    /// What the server took by requests of their own.
    pub(super) fn take_acknowledged(&mut self, now_ns: u64) {
        let Some(acker) = &self.acker else {
            return;
        };
        let (taken, failed) = acker.take();
        self.numbers[Stat::AckFailed as usize] = failed;
        for (index, number) in taken {
            if let Some(Some(memory)) = self.memories.get_mut(index as usize)
                && let Some(acks) = &mut memory.acks
            {
                let done = acks.done(number, now_ns);
                self.numbers[Stat::Acked as usize] += u64::from(done);
            }
        }
    }

    /// True while a connection is there that can be cut.
    pub(super) fn is_there(&self, index: u32) -> bool {
        let stage = self.connections[index as usize].stage;
        matches!(stage, Stage::Asked | Stage::Open)
    }
}

/// A path without the parameters that name topics.
fn without_topics(path: &str) -> String {
    let Some((base, query)) = path.split_once('?') else {
        return path.to_string();
    };
    let kept: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("topic=")).collect();
    format!("{base}?{}", kept.join("&"))
}
