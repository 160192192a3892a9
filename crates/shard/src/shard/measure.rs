//! Measures a shard's time and its listen queue.

use super::Shard;

impl Shard {
    /// Notes the turn that has ended, and the time asleep from then until now, in microseconds.
    pub(crate) fn measure_turn(&mut self, ended_us: u64, now_us: u64) {
        let metrics = self.engine.metrics();
        if let Some(woke_us) = self.woke_us.replace(now_us) {
            metrics.turn_time.record(ended_us.saturating_sub(woke_us), 1);
        }
        metrics.asleep_us.add(now_us.saturating_sub(ended_us));
    }

    /// Counts the connections that the kernel has let in and that wait for the shard to accept them.
    pub(crate) fn measure_listen_queue(&self) {
        let queues = self.listeners.iter();
        let waiting = queues.filter_map(|it| Some(crate::tcp_info::of(&it.socket)?.listen_queue()));
        self.engine.metrics().listen_queue.set(waiting.map(u64::from).sum());
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use engine::Listener;
    use mailbox::Wake;

    use super::*;
    use crate::listen::{Group, Listening, group};
    use crate::settings::Port;
    use crate::shard::support::shard;

    #[test]
    fn a_turn_ends_before_the_sleep_that_follows() {
        let mut shard = shard();
        let metrics = shard.engine.metrics().clone();
        // The first turn has none before it. The shard has slept since it was created.
        shard.measure_turn(100, 500);
        assert_eq!((metrics.turn_time.sum_us.get(), metrics.asleep_us.get()), (0, 400));
        shard.measure_turn(1_500, 3_500);
        assert_eq!(metrics.turn_time.buckets[10].get(), 1, "1,000 us");
        assert_eq!(metrics.asleep_us.get(), 2_400);
        // Without a sleep a turn lasts until the next one.
        shard.measure_turn(3_600, 3_600);
        assert_eq!((metrics.turn_time.sum_us.get(), metrics.asleep_us.get()), (1_100, 2_400));
    }

    #[test]
    fn turns_are_counted_and_their_sleep_is() {
        let mut shard = shard();
        let metrics = shard.engine.metrics().clone();
        for _ in 0..4 {
            shard.commands.waker().wake();
            shard.turn();
        }
        let turns: u64 = metrics.turn_time.buckets.iter().map(engine::Counter::get).sum();
        assert_eq!(turns, 3, "the last one has not ended");
        let passed_us = shard.now_us();
        assert!(metrics.turn_time.sum_us.get() + metrics.asleep_us.get() <= passed_us);
    }

    #[test]
    fn fan_outs_over_long_lists_are_counted_as_bulk() {
        let mut shard = shard();
        let metrics = shard.engine.metrics().clone();
        // More than 1,024 members. The shard drops what it sends to connections without a socket.
        for _ in 0..1_100 {
            let slot = shard.engine.open(Listener::Client, engine::Arrival::Direct(None));
            let mut request = *b"GET /sse?topic=t HTTP/1.1\r\nHost: h\r\n\r\n";
            shard.engine.on_received(slot, &mut request);
        }
        shard.perform();
        let turns = |shard: &mut Shard| {
            for _ in 0..1_000 {
                shard.commands.waker().wake();
                shard.turn();
            }
        };
        turns(&mut shard);
        assert_eq!((metrics.bulk_us.get(), metrics.delivered.get()), (0, 0));
        let publication = model::Publication::new("t", model::Data::Text("1".into()));
        shard.engine.broker().clone().publish(publication, None).unwrap();
        turns(&mut shard);
        assert_eq!(metrics.delivered.get(), 1_100);
        assert!(metrics.bulk_us.get() > 0);
    }

    #[test]
    fn the_listen_queue_is_what_no_turn_has_accepted() {
        let mut shard = shard();
        let port = Port::plain(Listener::Client);
        let address = ([127, 0, 0, 1], 0).into();
        let options = crate::start::options();
        let Group { address, mut sockets, .. } =
            group(&crate::settings::Options { backlog: 16, ..options }, (port, address), 1)
                .unwrap();
        let socket = sockets.pop().unwrap();
        shard.measure_listen_queue();
        assert_eq!(shard.engine.metrics().listen_queue.get(), 0);
        shard.listeners = vec![Listening { port, socket }];
        let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        // A client is connected before the last packet of its handshake is here.
        let began = std::time::Instant::now();
        while shard.engine.metrics().listen_queue.get() < 3 {
            shard.measure_listen_queue();
            assert!(began.elapsed().as_secs() < 60);
        }
        assert_eq!(shard.engine.metrics().listen_queue.get(), 3);
        shard.accept(1);
        shard.measure_listen_queue();
        assert_eq!(shard.engine.metrics().listen_queue.get(), 0);
        drop(clients);
    }
}
