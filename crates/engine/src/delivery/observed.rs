//! Messages whose delivery is observed: few at a time, and mostly none.

use std::sync::Arc;

use broker::{DeliveryObserver, ShardDelivery};
use model::{Envelope, Position};

use crate::core::output::{ObservedDelivery, Output};

/// Messages that a shard observes at a time.
const OBSERVED_MESSAGES_MAX: usize = 1_024;

/// How long a shard observes a message, in microseconds.
const OBSERVATION_US_MAX: u64 = 60_000_000;

/// The observed messages that some list of members has not had in full.
#[derive(Default)]
pub(crate) struct ObservedMessages(Vec<ObservedMessage>);

struct ObservedMessage {
    id: Position,
    topic_hash: u64,
    /// Lists of members that have not had it in full.
    lists: u32,
    members: u64,
    received_us: u64,
    observer: Arc<dyn DeliveryObserver>,
}

impl ObservedMessage {
    fn delivered(self, shard: u16) -> Output {
        let ObservedMessage { members, received_us, observer, .. } = self;
        let delivery = ShardDelivery { shard, members, received_us, sent_us: received_us };
        Output::Observed(Box::new(ObservedDelivery { observer, delivery }))
    }
}

impl ObservedMessages {
    /// Observes a message that a shard received now. Returns the output for a message that no list of members waits
    /// for.
    pub fn observe(
        &mut self,
        message: &Envelope,
        observer: &Arc<dyn DeliveryObserver>,
        lists: u32,
        members: u64,
        shard: u16,
        now_us: u64,
    ) -> Option<Output> {
        let (id, topic_hash, observer) = (message.id, message.topic_hash, observer.clone());
        let observed =
            ObservedMessage { id, topic_hash, lists, members, received_us: now_us, observer };
        match (members, lists) {
            (0, _) => return None,
            (_, 0) => return Some(observed.delivered(shard)),
            _ => self.push(observed),
        }
        None
    }

    fn push(&mut self, message: ObservedMessage) {
        match self.0.len() < OBSERVED_MESSAGES_MAX {
            true => self.0.push(message),
            false => message.observer.on_unobserved(),
        }
    }

    /// Called when a list of members has had these messages in full. Returns an output for each that no other list
    /// waits for.
    pub fn on_done<'a>(
        &mut self,
        done: impl Iterator<Item = &'a Arc<Envelope>>,
        shard: u16,
    ) -> Vec<Output> {
        match self.0.is_empty() {
            true => Vec::new(),
            false => done.filter_map(|message| self.on_list_done(message, shard)).collect(),
        }
    }

    fn on_list_done(&mut self, message: &Envelope, shard: u16) -> Option<Output> {
        let is_same =
            |it: &ObservedMessage| it.id == message.id && it.topic_hash == message.topic_hash;
        let at = self.0.iter().position(is_same)?;
        self.0[at].lists -= 1;
        (self.0[at].lists == 0).then(|| self.0.swap_remove(at).delivered(shard))
    }

    /// Forgets messages whose members did not get them in [`OBSERVATION_US_MAX`]. Called once a second.
    pub fn expire(&mut self, now_us: u64) {
        let is_late =
            |it: &mut ObservedMessage| now_us.saturating_sub(it.received_us) >= OBSERVATION_US_MAX;
        self.0.extract_if(.., is_late).for_each(|it| it.observer.on_unobserved());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use broker::Receipt;
    use model::{Data, Epoch, Message, Publication};

    use super::*;
    use crate::core::metrics::Metrics;
    use crate::delivery::support::World;

    /// The calls of an observer: a delivery, or `None` for an unobserved message.
    #[derive(Default)]
    struct Observer(Mutex<Vec<Option<ShardDelivery>>>);

    impl DeliveryObserver for Observer {
        fn on_delivered(&self, delivery: ShardDelivery) {
            self.0.lock().unwrap().push(Some(delivery));
        }

        fn on_unobserved(&self) {
            self.0.lock().unwrap().push(None);
        }
    }

    fn message(offset: u64) -> Envelope {
        let publication = Publication::new("t", Data::Text("x".into()));
        Message::new(publication, Position { epoch: Epoch(1), offset }, 7, 0).into()
    }

    fn observed(
        offset: u64,
        observer: &Arc<Observer>,
        lists: u32,
        received_us: u64,
    ) -> ObservedMessage {
        let Envelope { message, .. } = message(offset);
        let (id, topic_hash, observer) = (message.id, message.topic_hash, observer.clone());
        ObservedMessage { id, topic_hash, lists, members: 30, received_us, observer }
    }

    #[test]
    fn a_message_is_delivered_with_the_last_of_its_lists() {
        let mut messages = ObservedMessages::default();
        let observer = Arc::new(Observer::default());
        messages.push(observed(1, &observer, 2, 500));
        messages.push(observed(2, &observer, 1, 600));
        assert!(messages.on_list_done(&message(1), 4).is_none(), "members of a filter wait");
        assert!(messages.on_list_done(&message(9), 4).is_none(), "it is not observed");
        let Some(Output::Observed(done)) = messages.on_list_done(&message(1), 4) else { panic!() };
        let delivery = ShardDelivery { shard: 4, members: 30, received_us: 500, sent_us: 500 };
        assert_eq!(done.delivery, delivery);
        done.observer.on_delivered(delivery);
        assert!(messages.on_list_done(&message(2), 4).is_some() && messages.0.is_empty());
        assert_eq!(*observer.0.lock().unwrap(), [Some(delivery)]);
    }

    /// Records how many messages the engine has delivered when it reports one.
    struct Counter {
        metrics: Arc<Metrics>,
        seen: Mutex<Vec<(ShardDelivery, u64)>>,
    }

    impl DeliveryObserver for Counter {
        fn on_delivered(&self, delivery: ShardDelivery) {
            self.seen.lock().unwrap().push((delivery, self.metrics.delivered.get()));
        }

        fn on_unobserved(&self) {
            panic!("the engine observes it");
        }
    }

    #[test]
    fn an_engine_reports_a_message_behind_the_last_slice_of_its_last_list() {
        let mut world = World::new();
        // A slice has two members in tests. The filter's members are another list.
        let members = [
            "GET /stream?topic=a HTTP/1.1",
            "GET /stream?topic=a HTTP/1.1",
            "GET /sse?topic=a HTTP/1.1",
            "GET /stream?topic=a HTTP/1.1",
            "GET /stream?topic=a HTTP/1.1",
            "GET /stream?topic=%2B&filter=mqtt HTTP/1.1",
            "GET /stream?topic=%23&filter=mqtt HTTP/1.1",
        ];
        let clients: Vec<_> = members.iter().map(|request| world.open(request)).collect();
        let metrics = world.driver.engine.metrics().clone();
        let counter = Arc::new(Counter { metrics, seen: Mutex::default() });
        let mut delivered = 0;
        for (topic, members) in [("a", 7), ("b", 2), ("x/y/z", 1)] {
            let receipt = Receipt::with_observer(|_| {}, Some(counter.clone()));
            let publication = Publication::new(topic, Data::Text("hello".into()));
            world.driver.engine.core.broker.publish(publication, Some(receipt)).unwrap();
            world.turn();
            delivered += members;
            let seen = std::mem::take(&mut *counter.seen.lock().unwrap());
            let [(delivery, delivered_then)] = &seen[..] else { panic!("{topic}: {seen:?}") };
            assert_eq!((delivery.shard, delivery.members), (0, members), "{topic}");
            assert_eq!(*delivered_then, delivered, "{topic}");
        }
        assert!(clients.iter().all(|client| world.read(client).contains("hello")));
        assert!(world.driver.engine.core.observed.0.is_empty());
        // A topic without a member has nothing to report.
        let receipt = Receipt::with_observer(|_| {}, Some(counter.clone()));
        let publication = Publication::new("@nobody", Data::Text("hello".into()));
        world.driver.engine.core.broker.publish(publication, Some(receipt)).unwrap();
        world.turn();
        assert!(counter.seen.lock().unwrap().is_empty());
    }

    #[test]
    fn messages_beyond_the_limits_are_not_observed() {
        let mut messages = ObservedMessages::default();
        let observer = Arc::new(Observer::default());
        let unobserved = || std::mem::take(&mut *observer.0.lock().unwrap()).len();
        for offset in 0..OBSERVED_MESSAGES_MAX as u64 + 3 {
            messages.push(observed(offset, &observer, 1, offset));
        }
        assert_eq!((messages.0.len(), unobserved()), (OBSERVED_MESSAGES_MAX, 3));
        messages.expire(OBSERVATION_US_MAX - 1);
        assert_eq!((messages.0.len(), unobserved()), (OBSERVED_MESSAGES_MAX, 0));
        messages.expire(OBSERVATION_US_MAX + 1);
        assert_eq!((messages.0.len(), unobserved()), (OBSERVED_MESSAGES_MAX - 2, 2));
    }
}
