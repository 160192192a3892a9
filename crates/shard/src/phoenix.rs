//! What a Phoenix client asks for: joins, leaves, and events for its topics.

use wire::message::{BROADCAST, PERSONAL, check_name, check_topic};
use wire::phoenix::{self, Content, Event, Form, Serializer, Status};
use wire::session::Heard;
use wire::transport::phoenix_pack;
use wire::{Draft, EventRule, JoinRule, Variant};

use crate::command::Command;
use crate::shard::Shard;
use crate::webhook::{Ask, Full, Kind, Verdict};

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
        let own = self.is_own(slot, &heard.topic);
        if !own && let Err(wrong) = check_topic(&heard.topic) {
            return refuse(variant, &heard, wrong, out);
        }
        let hash = self.broker.hash(&heard.topic);
        // A client that joins again has lost its first join: the old one ends.
        self.phoenix_end_join(slot, variant, &heard.topic, hash, out);
        let max = self.settings.session.topics_per_connection_max;
        if self.hub.count(slot).max(self.joins.count(slot)) >= max {
            return refuse(variant, &heard, "too many channels joined", out);
        }
        let meta_bytes_max = self.settings.presence_meta_bytes_max;
        if let Err(wrong) = phoenix::join_meta(&heard.payload, meta_bytes_max) {
            return refuse(variant, &heard, &wrong, out);
        }
        match self.settings.session.rules.join(&heard.topic) {
            JoinRule::Refuse => refuse(variant, &heard, "unauthorized", out),
            JoinRule::Allow => {
                let join_ref = heard.join_ref.as_deref().or(heard.ref_.as_deref());
                self.joins.insert(slot, hash, join_ref.unwrap_or_default(), false);
                self.phoenix_joined(slot, variant, &heard, NOTHING, out);
            }
            JoinRule::Webhook => {
                let join_ref = heard.join_ref.as_deref().or(heard.ref_.as_deref());
                self.joins.insert(slot, hash, join_ref.unwrap_or_default(), true);
                if let Some(heard) = self.ask(slot, Kind::Join, heard) {
                    self.joins.remove(slot, hash);
                    refuse(variant, &heard, FULL, out);
                }
            }
        }
    }

    /// The join is allowed: the connection enters, is told so, and then who is there.
    fn phoenix_joined(
        &mut self,
        slot: u32,
        variant: Variant,
        heard: &Heard,
        response: Content<'_>,
        out: &mut Vec<u8>,
    ) {
        let meta_bytes_max = self.settings.presence_meta_bytes_max;
        let meta = phoenix::join_meta(&heard.payload, meta_bytes_max).ok().flatten();
        if !self.is_own(slot, &heard.topic) {
            self.join_with(slot, &heard.topic, meta.unwrap_or("{}"));
        }
        answer(variant, heard, Status::Ok, response, out);
        if self.settings.session.rules.presence(&heard.topic) {
            let hash = self.broker.hash(&heard.topic);
            let join = self.joins.get(slot, hash);
            let join_ref = join.map(|join| join.join_ref.into_owned()).unwrap_or_default();
            for (event, json) in self.presence_of(slot, &heard.topic) {
                say(variant, out, |serializer, out| {
                    serializer.push(&join_ref, &heard.topic, event, Content::Json(&json), out)
                });
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
        // What was published before is the member's still, and leaves before the answer.
        self.settle(slot, Some(&heard.topic), out);
        answer(variant, heard, Status::Ok, NOTHING, out);
        self.phoenix_end_join(slot, variant, &heard.topic, hash, out);
    }

    /// The application took the connection out of a topic: its join, if it has one, has ended.
    pub(crate) fn phoenix_left(&mut self, slot: u32, topic: &str, out: &mut Vec<u8>) {
        let Some(variant) = self.table.get(slot).map(|connection| connection.variant) else {
            return;
        };
        if variant.phoenix().is_some() {
            let hash = self.broker.hash(topic);
            self.phoenix_end_join(slot, variant, topic, hash, out);
        }
    }

    /// Ends a join, if there is one, and says so.
    fn phoenix_end_join(
        &mut self,
        slot: u32,
        variant: Variant,
        topic: &str,
        hash: u64,
        out: &mut Vec<u8>,
    ) {
        let Some(join) = self.joins.get(slot, hash) else {
            return;
        };
        let join_ref = join.join_ref.into_owned();
        self.settle(slot, Some(topic), out);
        self.joins.remove(slot, hash);
        if !self.is_own(slot, topic) {
            self.leave(slot, topic);
        }
        say(variant, out, |serializer, out| serializer.close(&join_ref, topic, out));
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
        let max = self.settings.session.message_bytes_max;
        if heard.payload.bytes() > max {
            let why = format!("a message is at most {max} bytes");
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
        if phoenix::is_reserved(&heard.event) {
            let why = "events that begin with phx_ or presence_ are the server's own";
            return refuse(variant, &heard, why, out);
        }
        match self.settings.session.rules.events(&heard.topic) {
            EventRule::Refuse => {
                refuse(variant, &heard, "clients may not send to this topic", out);
            }
            EventRule::Webhook => {
                if let Some(heard) = self.ask(slot, Kind::Event, heard) {
                    refuse(variant, &heard, FULL, out);
                }
            }
            rule => self.phoenix_publish(slot, variant, heard, rule, out),
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
        let empty = wire::Data::Binary([].into());
        let draft = Draft {
            topic: heard.topic.clone(),
            event: Some(heard.event.clone()).filter(|event| event != "message"),
            data: std::mem::replace(&mut heard.payload, empty),
            except: (rule == EventRule::Others).then(|| self.id(slot, serial)),
        };
        match self.publish(draft) {
            Ok(_) => answer(variant, &heard, Status::Ok, NOTHING, out),
            Err(error) => refuse(variant, &heard, &error.to_string(), out),
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
    fn ask(&mut self, slot: u32, kind: Kind, mut heard: Heard) -> Option<Heard> {
        let (Some(webhook), Some(connection)) = (&self.webhook, self.table.get(slot)) else {
            return Some(heard);
        };
        let (handle, serial) = (self.handle.clone(), connection.serial);
        let users = self.hub.topics_of(slot).filter_map(|name| name.strip_prefix(PERSONAL));
        let rule = self.settings.session.rules.of(&heard.topic);
        // A join's payload is needed again when it is allowed.
        let payload = match kind {
            Kind::Join => heard.payload.clone(),
            Kind::Event => std::mem::replace(&mut heard.payload, wire::Data::Binary([].into())),
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
                    kind,
                    heard: Box::new(heard),
                    verdict,
                });
            }),
        };
        webhook.ask(ask).err().map(|Full| back)
    }

    /// The application has answered.
    pub(crate) fn verdict(&mut self, slot: u32, kind: Kind, heard: &Heard, verdict: &Verdict) {
        let Some(connection) = self.table.get(slot) else {
            return;
        };
        let variant = connection.variant;
        let response = Content::Json(&verdict.response);
        let mut out = Vec::new();
        match kind {
            Kind::Event => {
                let status = if verdict.ok { Status::Ok } else { Status::Error };
                answer(variant, heard, status, response, &mut out);
            }
            Kind::Join => {
                let hash = self.broker.hash(&heard.topic);
                let asked = heard.join_ref.as_deref().or(heard.ref_.as_deref());
                let join = self.joins.get(slot, hash);
                // The client may have left or joined again meanwhile.
                if join.is_some_and(|join| join.pending && Some(&*join.join_ref) == asked) {
                    if verdict.ok {
                        self.joins.settle(slot, hash);
                        self.phoenix_joined(slot, variant, heard, response, &mut out);
                    } else {
                        self.joins.remove(slot, hash);
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
