//! What a Phoenix client asks for: joins, leaves, and events for its topics.

use wire::events::check_event;
use wire::message::{BROADCAST, PERSONAL, check_name, check_topic};
use wire::phoenix::{self, Content, Event, Form, Serializer, Status};
use wire::session::{Acknowledged, Asked, Heard};
use wire::transport::phoenix_pack;
use wire::{Draft, EventRule, JoinRule, Variant};

use crate::command::{Answer, Command};
use crate::follow::To;
use crate::publish::acknowledged_json;
use crate::shard::Shard;
use crate::webhook::{Ask, Full, Kind, Verdict};

/// What the application is asked about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether the client may join; with the number of the question.
    Join(u32),
    /// What to answer to an event.
    Event,
}

/// Questions of one connection that the application has not answered: more are refused, so that no
/// client fills the queue of all.
const QUESTIONS: u32 = 128;

/// A list of presence that goes out whatever else waits, in bytes.
const SHORT_LIST_BYTES: usize = 16 << 10;

/// An answer that has nothing to say.
const NOTHING: Content<'static> = Content::Json("{}");

impl Shard {
    /// Does what the message says; answers go to `out`, for a long-poll session as the elements of
    /// its next answer.
    pub(crate) fn phoenix(&mut self, slot: u32, variant: Variant, heard: Heard, out: &mut Vec<u8>) {
        match heard.kind() {
            Event::Heartbeat => answer(variant, &heard, Status::Ok, NOTHING, out),
            Event::Join => self.phoenix_join(slot, variant, heard, out),
            Event::Leave => self.phoenix_leave(slot, variant, &heard, out),
            Event::Other => self.phoenix_event(slot, variant, heard, out),
        }
    }

    fn phoenix_join(&mut self, slot: u32, variant: Variant, heard: Heard, out: &mut Vec<u8>) {
        if heard.topic == phoenix::TOPIC_PHOENIX {
            return refuse(variant, &heard, "unmatched topic", out);
        }
        if variant.is_polled()
            && let Some(why) = self.join_refusal(slot)
        {
            return refuse(variant, &heard, why, out);
        }
        self.has_joined(slot);
        let own = self.is_own(slot, &heard.topic);
        if !own && let Err(wrong) = check_topic(&heard.topic) {
            return refuse(variant, &heard, wrong, out);
        }
        let hash = self.broker.hash(&heard.topic);
        // A client that joins again has lost its first join: the old one ends.
        if !own
            && self.joins.get(slot, hash).is_some()
            && self.kept().rule(&heard.topic).is_some()
            && phoenix::join_since(&heard.payload).is_ok_and(|since| since.is_some())
        {
            // What it is still owed is among what it asks for.
            self.tell_waiting(slot, hash, out);
            self.leave(slot, &heard.topic);
        }
        let end = self.phoenix_end_join(slot, variant, &heard.topic, hash, out);
        out.extend_from_slice(&end);
        if !self.is_open(slot) {
            return;
        }
        let max = self.settings.session.topics_per_connection_max;
        let is_in = own || self.hub.topics_of(slot).any(|name| *name == heard.topic);
        if !is_in && self.hub.count(slot) + self.joins.pending(slot) >= max {
            return refuse(variant, &heard, "too many channels joined", out);
        }
        if let Some(why) = self.too_large(&heard) {
            return refuse(variant, &heard, &why, out);
        }
        if let Err(wrong) = self.payload_fault(&heard) {
            return refuse(variant, &heard, &wrong, out);
        }
        match self.settings.session.rules.join(&heard.topic) {
            JoinRule::Refuse => refuse(variant, &heard, "unauthorized", out),
            JoinRule::Allow => {
                self.joins.insert(slot, hash, join_ref(&heard));
                self.phoenix_joined(slot, heard, "{}".into(), out);
            }
            JoinRule::Webhook => {
                self.joins.insert(slot, hash, join_ref(&heard));
                let question = Question::Join(self.joins.ask(slot, hash));
                if let Some(heard) = self.ask(slot, question, heard) {
                    self.joins.remove(slot, hash);
                    refuse(variant, &heard, FULL, out);
                }
            }
        }
    }

    /// What is wrong with a join's payload.
    fn payload_fault(&self, heard: &Heard) -> Result<(), String> {
        phoenix::join_meta(&heard.payload, self.settings.presence_meta_bytes_max)?;
        phoenix::join_since(&heard.payload)?;
        phoenix::join_tags(&heard.payload)?;
        Ok(())
    }

    /// The join is allowed: the connection enters, and is told so when it is known from where.
    fn phoenix_joined(&mut self, slot: u32, heard: Heard, response: Box<str>, out: &mut Vec<u8>) {
        let meta_bytes_max = self.settings.presence_meta_bytes_max;
        let meta = phoenix::join_meta(&heard.payload, meta_bytes_max).ok().flatten();
        let topic = heard.topic.clone();
        if !self.is_own(slot, &topic) {
            self.join_with(slot, &topic, meta.unwrap_or("{}"));
        }
        // All three were read before.
        let tags = phoenix::join_tags(&heard.payload).unwrap_or_default();
        let since = phoenix::join_since(&heard.payload).ok().flatten();
        self.choose(slot, Some(&topic), &tags);
        let topics = since.map(|since| (topic.clone(), since)).into_iter().collect();
        let asked = Asked { all: None, topics };
        let to = To::Phoenix(heard.into(), response);
        self.follow(slot, std::slice::from_ref(&topic), &asked, to, out);
    }

    /// Tells a client that it has joined, and then who is there.
    pub(crate) fn phoenix_entered(
        &mut self,
        slot: u32,
        variant: Variant,
        heard: &Heard,
        response: &str,
        out: &mut Vec<u8>,
    ) {
        answer(variant, heard, Status::Ok, Content::Json(response), out);
        if self.settings.session.rules.presence(&heard.topic) {
            self.tell_list(slot, variant, &heard.topic, out);
        }
    }

    /// Tells a member who is there. A long list waits while anything else does, so that a client
    /// which joins many topics at once is not taken for one that doesn't read.
    fn tell_list(&mut self, slot: u32, variant: Variant, topic: &str, out: &mut Vec<u8>) {
        let hash = self.broker.hash(topic);
        let Some(join) = self.joins.get(slot, hash).filter(|join| !join.pending) else {
            return;
        };
        let join_ref = join.join_ref.into_owned();
        let lists = self.presence_of(slot, topic);
        if lists.iter().map(|(_, json)| json.len()).sum::<usize>() > SHORT_LIST_BYTES {
            if !out.is_empty() {
                self.send(slot, out, 0);
                out.clear();
            }
            let outbox = self.table.get(slot).and_then(|connection| connection.outbox());
            if outbox.is_some_and(|outbox| !outbox.is_empty()) {
                let due = self.lists_due.entry(slot).or_default();
                if !due.iter().any(|name| name == topic) {
                    due.push(topic.into());
                }
                return;
            }
        }
        for (event, json) in lists {
            say(variant, out, |serializer, out| {
                serializer.push(&join_ref, topic, event, Content::Json(&json), out)
            });
        }
    }

    /// The client has taken what waited for it: it is told the next of the lists that do.
    pub(crate) fn tell_due_lists(&mut self, slot: u32) {
        while let Some(due) = self.lists_due.get_mut(&slot) {
            let topic = due.remove(0);
            if due.is_empty() {
                self.lists_due.remove(&slot);
            }
            let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
                return;
            };
            let mut out = Vec::new();
            self.tell_list(slot, variant, &topic, &mut out);
            if !out.is_empty() {
                self.send(slot, &out, 0);
            }
            let outbox = self.table.get(slot).and_then(|connection| connection.outbox());
            if outbox.is_some_and(|outbox| !outbox.is_empty()) {
                return;
            }
        }
    }

    fn phoenix_leave(&mut self, slot: u32, variant: Variant, heard: &Heard, out: &mut Vec<u8>) {
        let hash = self.broker.hash(&heard.topic);
        if let Some(join) = self.joins.get(slot, hash)
            && heard.join_ref.as_deref().is_some_and(|of| of != join.join_ref)
        {
            return;
        }
        // What was published before is the member's still, and leaves before the answer; after it
        // comes the end of the join.
        let end = self.phoenix_end_join(slot, variant, &heard.topic, hash, out);
        answer(variant, heard, Status::Ok, NOTHING, out);
        out.extend_from_slice(&end);
    }

    /// The application took the connection out of a topic: its join, if it has one, has ended.
    pub(crate) fn phoenix_left(&mut self, slot: u32, topic: &str, out: &mut Vec<u8>) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        if variant.phoenix().is_some() {
            let hash = self.broker.hash(topic);
            let end = self.phoenix_end_join(slot, variant, topic, hash, out);
            out.extend_from_slice(&end);
        }
    }

    /// Ends a join, if there is one: what it is still owed goes to `out`. Gives the message that it
    /// has ended.
    fn phoenix_end_join(
        &mut self,
        slot: u32,
        variant: Variant,
        topic: &str,
        hash: u64,
        out: &mut Vec<u8>,
    ) -> Vec<u8> {
        let mut end = Vec::new();
        let Some(join) = self.joins.get(slot, hash) else {
            return end;
        };
        let join_ref = join.join_ref.into_owned();
        self.joins.remove(slot, hash);
        if self.is_own(slot, topic) {
            self.tell_waiting(slot, hash, out);
            self.unfollow(slot, hash);
        } else {
            self.settle(slot, Some(topic), out);
            self.leave(slot, topic);
        }
        say(variant, &mut end, |serializer, end| serializer.close(&join_ref, topic, end));
        end
    }

    /// Why a client's message is too large, if it is.
    fn too_large(&self, heard: &Heard) -> Option<String> {
        let max = self.settings.session.message_bytes_max;
        (heard.payload.bytes() > max).then(|| format!("a message is at most {max} bytes"))
    }

    fn phoenix_event(&mut self, slot: u32, variant: Variant, heard: Heard, out: &mut Vec<u8>) {
        let hash = self.broker.hash(&heard.topic);
        let join = self.joins.get(slot, hash).filter(|join| !join.pending);
        let Some(join) = join else {
            let unmatched = Heard { join_ref: None, ..heard };
            return refuse(variant, &unmatched, "unmatched topic", out);
        };
        if heard.join_ref.as_deref().is_some_and(|of| of != join.join_ref) {
            // Of a join that was before.
            return;
        }
        if let Some(why) = self.too_large(&heard) {
            return refuse(variant, &heard, &why, out);
        }
        if let Err(wrong) = check_name(&heard.event) {
            return refuse(variant, &heard, wrong, out);
        }
        if heard.event == phoenix::EVENT_PRESENCE_UPDATE
            && self.settings.session.rules.presence(&heard.topic)
        {
            return self.phoenix_presence_update(slot, variant, &heard, hash, out);
        }
        if heard.event == phoenix::EVENT_ACK && self.is_acknowledged(&heard.topic) {
            return self.phoenix_ack(slot, variant, &heard, out);
        }
        if check_topic(&heard.topic).is_err() {
            // Its own topic or everyone's: only the application sends to those.
            return refuse(variant, &heard, NOT_HERE, out);
        }
        match self.settings.session.rules.events(&heard.topic) {
            EventRule::Refuse => {
                refuse(variant, &heard, NOT_HERE, out);
            }
            // To the application an event may have any name: nobody else hears it.
            EventRule::Webhook => {
                if let Some(heard) = self.ask(slot, Question::Event, heard) {
                    refuse(variant, &heard, FULL, out);
                }
            }
            rule => match check_event(&heard.event) {
                Ok(()) => self.phoenix_publish(slot, variant, heard, rule, out),
                Err((_, wrong)) => refuse(variant, &heard, &wrong, out),
            },
        }
    }

    fn phoenix_publish(
        &mut self,
        slot: u32,
        variant: Variant,
        mut heard: Heard,
        rule: EventRule,
        out: &mut Vec<u8>,
    ) {
        let Some(serial) = self.table.get(slot).map(|connection| connection.serial) else {
            return;
        };
        let topic = heard.topic.clone();
        if variant.is_polled()
            && let Some(why) = self.publish_refusal(slot, &topic)
        {
            return refuse(variant, &heard, why, out);
        }
        let empty = wire::Data::Binary([].into());
        let draft = Draft {
            topic: heard.topic.clone(),
            event: Some(heard.event.clone()).filter(|event| event != "message"),
            data: std::mem::replace(&mut heard.payload, empty),
            except: (rule == EventRule::Others).then(|| self.id(slot, serial)),
            marks: None,
        };
        if self.is_durable(&topic) {
            self.publish_durable(slot, draft, Answer::Phoenix(heard.into()));
        } else {
            let published = self.publish(draft);
            self.phoenix_published(variant, &heard, &published, out);
        }
        self.has_published(slot, &topic);
    }

    /// Tells a client what became of what it sent.
    pub(crate) fn phoenix_published(
        &self,
        variant: Variant,
        heard: &Heard,
        published: &Result<wire::Id, broker::PublishError>,
        out: &mut Vec<u8>,
    ) {
        match published {
            Ok(_) => answer(variant, heard, Status::Ok, NOTHING, out),
            Err(error) => refuse(variant, heard, &error.to_string(), out),
        }
    }

    fn is_acknowledged(&self, topic: &str) -> bool {
        self.kept().rule(topic).is_some_and(|keep| keep.acknowledge.is_some())
    }

    fn phoenix_ack(&mut self, slot: u32, variant: Variant, heard: &Heard, out: &mut Vec<u8>) {
        let id = match phoenix::ack_id(&heard.payload) {
            Ok(id) => id,
            Err(wrong) => return refuse(variant, heard, &wrong, out),
        };
        let acknowledged = Acknowledged { user: None, topic: Some(heard.topic.clone()), id };
        match self.acknowledge(Some(slot), acknowledged) {
            Ok((topic, place)) => {
                let response = acknowledged_json(&topic, place);
                answer(variant, heard, Status::Ok, Content::Json(&response), out);
            }
            Err(error) => refuse(variant, heard, &error.to_string(), out),
        }
    }

    fn phoenix_presence_update(
        &mut self,
        slot: u32,
        variant: Variant,
        heard: &Heard,
        hash: u64,
        out: &mut Vec<u8>,
    ) {
        let meta_bytes_max = self.settings.presence_meta_bytes_max;
        match phoenix::meta(&heard.payload, meta_bytes_max) {
            Ok(meta) if self.update_presence(slot, hash, meta) => {
                answer(variant, heard, Status::Ok, NOTHING, out);
            }
            Ok(_) => {
                let why = "this connection has no user: connect with the parameter user";
                refuse(variant, heard, why, out);
            }
            Err(wrong) => refuse(variant, heard, &wrong, out),
        }
    }

    /// Asks the application. Gives the message back when it can't be asked now.
    fn ask(&mut self, slot: u32, question: Question, mut heard: Heard) -> Option<Heard> {
        let (Some(webhook), Some(connection)) = (&self.webhook, self.table.get_mut(slot)) else {
            return Some(heard);
        };
        if connection.extra().questions >= QUESTIONS {
            return Some(heard);
        }
        let (handle, serial) = (self.handle.clone(), connection.serial);
        let users = self.hub.topics_of(slot).filter_map(|name| name.strip_prefix(PERSONAL));
        let rule = self.settings.session.rules.of(&heard.topic);
        // A join's payload is needed again when it is allowed.
        let (kind, payload) = match question {
            Question::Join(_) => (Kind::Join, heard.payload.clone()),
            Question::Event => {
                let empty = wire::Data::Binary([].into());
                (Kind::Event, std::mem::replace(&mut heard.payload, empty))
            }
        };
        let back = heard.clone();
        let ask = Ask {
            url: rule.and_then(|rule| rule.webhook_url.clone()),
            kind,
            topic: heard.topic.clone(),
            event: heard.event.clone(),
            payload,
            users: users.map(Into::into).collect(),
            connection: self.id(slot, serial),
            reply: Box::new(move |verdict| {
                handle.send(Command::Verdict {
                    slot,
                    serial,
                    question,
                    heard: Box::new(heard),
                    verdict,
                });
            }),
        };
        if let Err(Full) = webhook.ask(ask) {
            return Some(back);
        }
        if let Some(connection) = self.table.get_mut(slot) {
            connection.extra().questions += 1;
        }
        None
    }

    /// The application has answered.
    pub(crate) fn verdict(
        &mut self,
        slot: u32,
        question: Question,
        heard: &Heard,
        verdict: &Verdict,
    ) {
        let Some(connection) = self.table.get_mut(slot) else {
            return;
        };
        let questions = &mut connection.extra().questions;
        *questions = questions.saturating_sub(1);
        connection.trim();
        let variant = connection.variant;
        let mut out = Vec::new();
        match question {
            Question::Event => {
                let status = if verdict.ok { Status::Ok } else { Status::Error };
                answer(variant, heard, status, Content::Json(&verdict.response), &mut out);
            }
            Question::Join(number) => {
                let hash = self.broker.hash(&heard.topic);
                if self.joins.answered(slot, hash, number) {
                    if verdict.ok {
                        let response = verdict.response.clone();
                        self.phoenix_joined(slot, heard.clone(), response, &mut out);
                    } else {
                        self.joins.remove(slot, hash);
                        let response = Content::Json(&verdict.response);
                        answer(variant, heard, Status::Error, response, &mut out);
                    }
                }
            }
        }
        if !out.is_empty() {
            self.send(slot, &out, 0);
        }
    }

    /// Topics that a connection is in by itself: everyone's, and its users' own. Joining them lets
    /// the client hear what comes anyway.
    fn is_own(&self, slot: u32, topic: &str) -> bool {
        topic == BROADCAST
            || (topic.starts_with(PERSONAL) && self.hub.topics_of(slot).any(|name| name == topic))
    }
}

/// The join's ref, as the client knows it; clients of old versions have just the message's.
fn join_ref(heard: &Heard) -> &str {
    heard.join_ref.as_deref().or(heard.ref_.as_deref()).unwrap_or_default()
}

/// Why a client's event is not published.
const NOT_HERE: &str = "clients may not send to this topic";

/// Why the application can't be asked.
const FULL: &str = "the application is busy: try again later";

/// Appends an answer, if one is wanted.
fn answer(
    variant: Variant,
    heard: &Heard,
    status: Status,
    response: Content<'_>,
    out: &mut Vec<u8>,
) {
    if heard.ref_.is_some() {
        say(variant, out, |serializer, out| {
            serializer.reply(heard.address(), status, response, out)
        });
    }
}

/// Appends an answer that says why it was not done.
fn refuse(variant: Variant, heard: &Heard, reason: &str, out: &mut Vec<u8>) {
    let mut response = b"{\"reason\":".to_vec();
    wire::command::push_string(reason, &mut response);
    response.push(b'}');
    let response = String::from_utf8_lossy(&response);
    answer(variant, heard, Status::Error, Content::Json(&response), out);
}

/// Appends one message as the variant writes it. What can't be written (names are checked, so that
/// this is a fault of ours) is left out.
fn say(
    variant: Variant,
    out: &mut Vec<u8>,
    write: impl FnOnce(Serializer, &mut Vec<u8>) -> Result<Form, phoenix::Error>,
) {
    let Some((serializer, polled)) = variant.phoenix() else {
        return;
    };
    let mut payload = Vec::new();
    match write(serializer, &mut payload) {
        Ok(form) => phoenix_pack(polled, form, &payload, out),
        Err(error) => tracing::error!("a Phoenix message could not be written: {error}"),
    }
}
