//! Subscriptions of MQTT clients.

use auth::{Action, Consent, Deny, Permit};
use model::filter::{has_wildcard, levels};
use model::name::check_topic;
use model::{CloseReason, ErrorCode, Name, Qos, TopicKind, name};
use protocol::mqtt::{ReasonCode, RetainHandling, Subscribe, Want};
use sessions::{Backlog, Replay, Subscription, SubscriptionOptions};

use super::shared_groups::has_left;
use super::state::{Details, PendingSubscribe};
use crate::core::Core;
use crate::core::metrics::Limited;
use crate::engine::Engine;
use crate::webhook::WebhookResponse;
use crate::webhook::pending_hook::PendingHook;
use crate::webhook::request::{HookRequest, send_requests};

impl Engine {
    /// Ends a client's subscription to a topic that the application took it out of.
    pub(crate) fn mqtt_left(&mut self, slot: u32, topic: &str) {
        let core = &mut self.core;
        if !core.mqtt.leave(slot, topic) {
            return;
        }
        if let (Some(details), Some(row)) = (core.mqtt.details(slot), core.mqtt.row(slot))
            && details.session.outlives()
        {
            let (session, will) = (&details.session, details.will.as_ref());
            core.shared.mqtt_sessions.keep(&row.key, session, will, None);
        }
    }
}

impl Engine {
    /// Takes a client out of a topic or a filter, unless another subscription has it there.
    fn mqtt_leave_list(&mut self, slot: u32, name: &Name) {
        let details = self.core.mqtt.details(slot);
        let has = |details: &Details| {
            details.session.subscriptions.iter().any(|it| it.hub_name() == name)
        };
        if details.is_some_and(has) {
            return;
        }
        match TopicKind::of(name) {
            TopicKind::Ordinary => drop(self.leave(slot, name)),
            TopicKind::Filter(_) => drop(self.core.leave_filter(slot, name)),
            // The client is a member by itself.
            TopicKind::Personal(_) | TopicKind::Broadcast => {}
        }
        self.core.mqtt.wake(slot);
    }
}

impl Core {
    /// Returns where a session begins with a topic that users acknowledge: at its user's cursor, as on all
    /// transports. `None` if a subscription begins with live messages.
    fn mqtt_begin(&self, slot: u32, subscription: &Subscription) -> Option<u64> {
        let Subscription { filter, group, options, .. } = subscription;
        let outlives = self.mqtt.details(slot).is_some_and(|it| it.session.outlives());
        if !outlives || group.is_some() || !subscription.is_exact() || !options.qos.is_confirmed() {
            return None;
        }
        self.history.rule(filter)?.acknowledge.as_ref()?;
        let user = self.mqtt_user(slot, filter)?;
        Some(self.history.cursor(&user, filter))
    }

    /// Returns the user for whom a client acknowledges a topic.
    pub(super) fn mqtt_user(&self, slot: u32, topic: &str) -> Option<Name> {
        let own = TopicKind::of(topic).user().map(Name::from);
        own.or_else(|| self.principal(slot).users.first().cloned())
    }

    /// Notes that the application is about to put a client into a topic.
    pub(crate) fn mqtt_pin(&mut self, slot: u32) {
        if let Some(details) = self.mqtt_details(slot) {
            details.is_pinned = true;
        }
    }
}

/// The result for one filter: the granted QoS, or the reason of a rejection.
type Granted = Result<Qos, ReasonCode>;

impl Engine {
    /// Makes the subscriptions that the policy allows, requests the application's decisions about the rest, and
    /// replies when all are known.
    pub(super) fn mqtt_subscribe(&mut self, slot: u32, subscribe: Subscribe, out: &mut Vec<u8>) {
        for _ in &subscribe.wants {
            self.rates.has_joined(&mut self.core, slot);
        }
        let mut results: Vec<Option<Granted>> = Vec::with_capacity(subscribe.wants.len());
        let mut undecided = Vec::new();
        for (at, want) in subscribe.wants.iter().enumerate() {
            match self.mqtt_decide(slot, want) {
                Err(reason) => results.push(Some(Err(reason))),
                Ok((Consent::Given(permit), below_only)) => {
                    let id = subscribe.subscription;
                    let granted = self.mqtt_enter_filter(slot, want, (permit, below_only), id);
                    results.push(Some(Ok(granted)));
                }
                Ok((Consent::Requested(_), _)) => {
                    undecided.push((at, want.filter.clone()));
                    results.push(None);
                }
            }
        }
        let pending = PendingSubscribe { number: 0, subscribe, results };
        if undecided.is_empty() {
            return self.mqtt_subscribed(slot, pending, out);
        }
        self.mqtt_request_decisions(slot, pending, undecided, out);
    }

    /// Decides whether a client may subscribe to a filter, and whether only below it.
    fn mqtt_decide(&mut self, slot: u32, want: &Want) -> Result<(Consent, bool), ReasonCode> {
        let core = &self.core;
        let settings = core.settings.clone();
        let Some(own) = settings.mqtt() else { return Err(ReasonCode::NotAuthorized) };
        let is_wide = has_wildcard(&want.filter);
        if is_wide && !own.wildcards {
            return Err(ErrorCode::WildcardsOff.into());
        }
        let mut names = want.group.iter().chain([&want.filter]);
        let is_deep = is_wide && levels(&want.filter) > settings.session.filter_levels_max;
        if is_deep || names.any(|name| name::check_name(name).is_err()) {
            return Err(ErrorCode::BadFilter.into());
        }
        let kind = TopicKind::of(&want.filter);
        if !is_wide && kind.is_ordinary() && check_topic(&want.filter).is_err() {
            return Err(ErrorCode::BadFilter.into());
        }
        // A group shares messages of ordinary topics, and no user's own.
        if want.group.is_some() && !kind.is_ordinary() {
            return Err(ReasonCode::NotAuthorized);
        }
        if !self.mqtt_is_known(slot, want) {
            let count = core.hub.count(slot);
            if count >= settings.session.topics_per_connection_max {
                core.metrics.limited[Limited::Topics as usize].add(1);
                return Err(ErrorCode::TooManyTopics.into());
            }
            let Engine { core, rates, .. } = self;
            let capacity_reached = || core.capacity_reached(&[], std::iter::once(&want.filter));
            if let Some(limited) = rates.quota.topics_reached(core, slot).or_else(capacity_reached)
            {
                return Err(limited.code().into());
            }
        }
        let core = &self.core;
        let policy = &settings.session.policy;
        let principal = core.principal(slot);
        if kind == TopicKind::Broadcast {
            // Every client is a member.
            return Ok((Consent::Given(Permit::default()), false));
        }
        let decide = |name: &str| {
            let topic = policy.topic(name);
            policy.decide(&principal, Action::Subscribe, &topic).undenied()
        };
        if !is_wide {
            return decide(&want.filter).map(|it| (it, false)).map_err(|deny| match deny {
                // No client may do this.
                Deny::JoinRefused => ReasonCode::UnspecifiedError,
                Deny::JoinUndecided
                | Deny::AnotherUser
                | Deny::PublishRefused
                | Deny::PublishUndecided
                | Deny::PublishOwn
                | Deny::PublishSystem
                | Deny::NoPresence
                | Deny::NotItsUser
                | Deny::LoginRefused
                | Deny::NotGranted
                | Deny::OutOfScope => ReasonCode::NotAuthorized,
            });
        }
        if let Ok(consent) = decide(&name::filter(None, &want.filter)) {
            return Ok((consent, false));
        }
        // A client that may have `a/*` may have what is below `a`.
        let below = want.filter.strip_suffix('#').filter(|above| above.ends_with('/'));
        let below = below.map(|above| name::filter(None, &format!("{above}+/#")));
        let below = below.and_then(|below| decide(&below).ok());
        below.map(|consent| (consent, true)).ok_or(ReasonCode::NotAuthorized)
    }

    /// Checks whether a client has subscribed to the filter before.
    fn mqtt_is_known(&self, slot: u32, want: &Want) -> bool {
        let core = &self.core;
        let is = |it: &Subscription| it.filter == want.filter && it.group == want.group;
        match core.mqtt.details(slot) {
            Some(details) => details.session.subscriptions.iter().any(is),
            None => core.mqtt.subscriptions(slot, core.hub.topics_of(slot)).iter().any(is),
        }
    }

    /// Adds or replaces a subscription of the client.
    fn mqtt_enter_filter(
        &mut self,
        slot: u32,
        want: &Want,
        (permit, below_only): (Permit, bool),
        id: u32,
    ) -> Qos {
        let Want { filter, group, qos, no_local, retain_as_published, retain_handling } =
            want.clone();
        let options = SubscriptionOptions { qos, no_local, retain_as_published, below_only };
        // The subscription does not get older messages, whenever this shard receives them.
        let top = self.core.history.top().offset;
        let mut subscription = Subscription::new(filter, group, options, id, top);
        let cursor = self.core.mqtt_begin(slot, &subscription);
        subscription.since = cursor.unwrap_or(top);
        let name = subscription.hub_name().clone();
        let is_shared = subscription.group.is_some();
        let replay =
            Replay { reach: subscription.reach().into(), options: options.bits(), id, after: None };
        let Some(details) = self.core.mqtt_details(slot) else { return qos };
        let subscriptions = &mut details.session.subscriptions;
        let same = |it: &&mut Subscription| {
            it.filter == subscription.filter && it.group == subscription.group
        };
        let known = subscriptions.iter_mut().find(same);
        let is_new = known.is_none();
        let is_raised = known.as_ref().is_some_and(|it| !it.options.qos.is_confirmed());
        if (is_new || is_raised)
            && let Some(after) = cursor.filter(|cursor| *cursor < top)
        {
            let topic = subscription.filter.clone();
            details.session.backlogs.push(Backlog { topic, after, until: top });
        }
        let mut left = None;
        match known {
            Some(known) => {
                // With QoS 0 the client has already had the messages up to now.
                if !is_raised {
                    subscription.since = known.since;
                }
                let before = std::mem::replace(known, subscription);
                details.has_unsaved_subscriptions |= before != *known;
                left = Some(before.hub_name().clone()).filter(|before| *before != name);
            }
            None => {
                // Most clients have one, and a vector that grows begins with capacity for four.
                subscriptions.reserve_exact(usize::from(subscriptions.is_empty()));
                subscriptions.push(subscription);
                details.has_unsaved_subscriptions = true;
            }
        }
        details.work.rescan();
        let replays = match retain_handling {
            RetainHandling::Always => true,
            RetainHandling::New => is_new,
            RetainHandling::Never => false,
        };
        if replays && !is_shared {
            details.session.replays.retain(|it| it.reach != replay.reach);
            details.session.replays.push(replay);
            self.core.mqtt.wake(slot);
        }
        if let Some(left) = left {
            self.mqtt_leave_list(slot, &left);
        }
        match TopicKind::of(&name) {
            TopicKind::Ordinary => drop(self.join(slot, &name, permit.presence)),
            TopicKind::Filter(_) => drop(self.core.enter_filter(slot, &name)),
            // The client is a member by itself.
            TopicKind::Personal(_) | TopicKind::Broadcast => {}
        }
        self.rates.quota.settle(&self.core, slot);
        qos
    }

    /// Replies to SUBSCRIBE when all is known and the session is stored.
    fn mqtt_subscribed(&mut self, slot: u32, pending: PendingSubscribe, out: &mut Vec<u8>) {
        let PendingSubscribe { subscribe, results, .. } = pending;
        let core = &mut self.core;
        let Some(mqtt) = core.mqtt_protocol(slot) else { return };
        let refused = Err(ReasonCode::UnspecifiedError);
        let results: Vec<Granted> =
            results.into_iter().map(|result| result.unwrap_or(refused)).collect();
        let mut packet = Vec::new();
        mqtt.subscribed(subscribe.id, &results, &core.mqtt_limits(slot), &mut packet);
        self.mqtt_reply_when_stored(slot, packet, out);
    }

    /// Sends a reply about subscriptions: when they are stored, if they outlive the connection.
    fn mqtt_reply_when_stored(&mut self, slot: u32, packet: Vec<u8>, out: &mut Vec<u8>) {
        let core = &mut self.core;
        let sessions = core.shared.mqtt_sessions.clone();
        let details = core.mqtt.details_mut(slot).filter(|it| it.session.outlives());
        let outlives = details.is_some();
        let has_unsaved_subscriptions =
            details.is_some_and(|it| std::mem::take(&mut it.has_unsaved_subscriptions));
        let done = match outlives && sessions.is_stored() {
            true => core.mqtt_done(slot, packet, false),
            false => {
                out.extend_from_slice(&packet);
                None
            }
        };
        if has_unsaved_subscriptions
            && let (Some(details), Some(row)) = (core.mqtt.details(slot), core.mqtt.row(slot))
        {
            sessions.keep(&row.key, &details.session, details.will.as_ref(), done);
        } else if let Some(done) = done {
            sessions.settle(done);
        }
        core.mqtt.trim(slot);
    }

    pub(super) fn mqtt_unsubscribe(
        &mut self,
        slot: u32,
        id: u16,
        filters: &[Name],
        out: &mut Vec<u8>,
    ) {
        let results: Vec<ReasonCode> =
            filters.iter().map(|filter| self.mqtt_leave(slot, filter)).collect();
        let core = &self.core;
        let Some(mqtt) = core.mqtt_protocol(slot) else { return };
        let mut packet = Vec::new();
        mqtt.unsubscribed(id, &results, &core.mqtt_limits(slot), &mut packet);
        // The history retains meanwhile what other members are to get.
        let sessions = self.core.shared.mqtt_sessions.clone();
        let topics = self.core.mqtt_left_topics(slot);
        topics.iter().for_each(|topic| sessions.interests().add(topic));
        self.mqtt_reply_when_stored(slot, packet, out);
        // The subscriptions are stored first: after a crash in between, the server still sees that the client has
        // left the group of these messages.
        if !self.core.mqtt_leave_refs(slot, has_left) {
            self.say_goodbye(slot, CloseReason::Overloaded);
        }
        topics.iter().for_each(|topic| sessions.interests().remove(topic));
    }

    /// Ends a subscription of the client, to a filter as the client wrote it.
    fn mqtt_leave(&mut self, slot: u32, text: &str) -> ReasonCode {
        let Ok(parsed) = model::filter::Filter::parse(text) else {
            return ReasonCode::TopicFilterInvalid;
        };
        let core = &mut self.core;
        let Some(details) = core.mqtt_details(slot) else {
            return ReasonCode::NoSubscriptionExisted;
        };
        let subscriptions = &details.session.subscriptions;
        let position = subscriptions
            .iter()
            .position(|it| it.filter == parsed.filter && it.group.as_deref() == parsed.group);
        let Some(at) = position else {
            core.mqtt.trim(slot);
            return ReasonCode::NoSubscriptionExisted;
        };
        let name = subscriptions[at].hub_name().clone();
        let topic = (core.broker.hash(&name), name.as_str());
        // Older messages still go to the client.
        let owed: Vec<_> = core.hub.owed(slot, Some(topic)).into_iter().cloned().collect();
        self.mqtt_deliver(slot, Some(&name), &owed);
        let already_delivered = self.core.mqtt_already_delivered(slot, &name);
        if let Some(details) = self.core.mqtt.details_mut(slot) {
            let gone = details.session.subscriptions.remove(at);
            details.has_unsaved_subscriptions = true;
            details.already_delivered.extend(already_delivered);
            if gone.group.is_none() {
                details.session.backlogs.retain(|it| it.topic != gone.filter);
                details.session.replays.retain(|it| *it.reach != *gone.reach());
            }
        }
        self.mqtt_leave_list(slot, &name);
        ReasonCode::Success
    }

    /// Requests the application's decisions about filters, by their indexes.
    fn mqtt_request_decisions(
        &mut self,
        slot: u32,
        mut pending: PendingSubscribe,
        undecided: Vec<(usize, Name)>,
        out: &mut Vec<u8>,
    ) {
        let core = &mut self.core;
        let number = core.joins.number();
        pending.number = number;
        let users: Vec<Name> = core.users(slot).map(Into::into).collect();
        let Some(protocol) = core.protocol(slot) else { return };
        let requests = undecided.into_iter().map(|(at, topic)| {
            let hook = PendingHook::Mqtt(number, at);
            HookRequest::subscribe(topic, users.clone(), protocol.name(), hook)
        });
        let requests: Vec<HookRequest> = requests.collect();
        if let Some(details) = core.mqtt_details(slot) {
            details.pending_subscribes.push(pending);
        }
        let Err(not_sent) = send_requests(core, slot, requests) else { return };
        let allowed = core.settings.silence_allows;
        for hook in not_sent.hooks {
            if let PendingHook::Mqtt(number, at) = hook {
                let result = if allowed { Ok(()) } else { Err(ReasonCode::ServerBusy) };
                self.mqtt_subscribe_decided(slot, number, at, result, out);
            }
        }
    }

    /// Takes the application's decision about a filter.
    pub(crate) fn on_mqtt_subscribe_reply(
        &mut self,
        slot: u32,
        number: u32,
        at: usize,
        response: WebhookResponse,
    ) {
        let result = response.entered(&self.core.settings);
        let result = result.map(|_| ()).map_err(|_| ReasonCode::NotAuthorized);
        let mut out = Vec::new();
        self.mqtt_subscribe_decided(slot, number, at, result, &mut out);
        self.mqtt_flush(slot, &mut out);
        self.mqtt_serve(slot);
    }

    fn mqtt_subscribe_decided(
        &mut self,
        slot: u32,
        number: u32,
        at: usize,
        result: Result<(), ReasonCode>,
        out: &mut Vec<u8>,
    ) {
        let Some(details) = self.core.mqtt.details(slot) else { return };
        let pending = details.pending_subscribes.iter().find(|it| it.number == number);
        let Some(pending) = pending else { return };
        let (id, want) = (pending.subscribe.subscription, pending.subscribe.wants.get(at).cloned());
        let Some(want) = want else { return };
        let granted = result.map(|()| {
            // The rule may have changed since the request.
            let settings = self.core.settings.clone();
            let permit = Permit::of(&settings.session.policy.topic(&want.filter));
            self.mqtt_enter_filter(slot, &want, (permit, false), id)
        });
        let Some(details) = self.core.mqtt.details_mut(slot) else { return };
        let Some(position) = details.pending_subscribes.iter().position(|it| it.number == number)
        else {
            return;
        };
        if let Some(result) = details.pending_subscribes[position].results.get_mut(at) {
            *result = Some(granted);
        }
        if details.pending_subscribes[position].results.iter().all(Option::is_some) {
            let pending = details.pending_subscribes.remove(position);
            self.mqtt_subscribed(slot, pending, out);
        }
    }
}
