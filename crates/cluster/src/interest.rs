//! The streams that have members here.

use crate::Stream;
use crate::stream::PerStream;

/// Counts the topics with members in each stream.
///
/// Interest lasts for a time after the last member has left: topics come and go, and a polling client is no member
/// between two polls.
#[derive(Debug)]
pub struct Interest {
    topics: PerStream<u32>,
    is_on: PerStream<bool>,
    /// When a topic of the stream last lost its last member.
    left_us: PerStream<u64>,
    linger_us: u64,
}

impl Interest {
    /// Makes the interest of a node without members; it outlives members by `linger_us` microseconds. It always
    /// includes the broadcast stream and that of presence.
    pub fn new(linger_us: u64) -> Self {
        let mut interest = Interest {
            topics: PerStream::new(0),
            is_on: PerStream::new(false),
            left_us: PerStream::new(0),
            linger_us,
        };
        for stream in [Stream::EVERYONE, Stream::PRESENCE] {
            interest.topics.set(stream, 1);
            interest.is_on.set(stream, true);
        }
        interest
    }

    /// Adds a topic of the stream with its first member. Returns true if interest begins with it.
    pub fn enter(&mut self, stream: Stream) -> bool {
        self.topics.set(stream, self.topics.get(stream).saturating_add(1));
        let was_on = self.is_on.get(stream);
        self.is_on.set(stream, true);
        !was_on
    }

    /// Removes a topic of the stream that lost its last member at this time in microseconds.
    pub fn leave(&mut self, stream: Stream, now_us: u64) {
        self.topics.set(stream, self.topics.get(stream).saturating_sub(1));
        self.left_us.set(stream, now_us);
    }

    /// Returns true if the node is interested in a stream.
    pub fn is_on(&self, stream: Stream) -> bool {
        self.is_on.get(stream)
    }

    /// Returns when a topic of a stream last lost its last member, in microseconds.
    pub fn left_us(&self, stream: Stream) -> u64 {
        self.left_us.get(stream)
    }

    /// Restores another process's interest in a stream, and the time at which a topic of it lost its last member
    /// there. Topics that have members here stay.
    pub fn restore(&mut self, stream: Stream, is_on: bool, left_us: u64) {
        self.is_on.set(stream, is_on || self.topics.get(stream) > 0);
        self.left_us.set(stream, left_us);
    }

    /// Ends interest, and returns its streams. Call it about once a second.
    pub fn expire(&mut self, now_us: u64) -> Vec<Stream> {
        let is_expired = |stream: &Stream| {
            let until_us = self.left_us.get(*stream).saturating_add(self.linger_us);
            self.is_on.get(*stream) && self.topics.get(*stream) == 0 && until_us <= now_us
        };
        let ended: Vec<Stream> = Stream::all().filter(is_expired).collect();
        ended.iter().for_each(|stream| self.is_on.set(*stream, false));
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use random::Random;

    use super::*;

    #[test]
    fn interest_begins_with_the_first_topic_and_ends_a_while_after_the_last() {
        let (mut interest, news) = (Interest::new(10), Stream::of("news"));
        assert!(interest.is_on(Stream::EVERYONE) && !interest.is_on(news));
        assert!(interest.enter(news) && !interest.enter(news));
        interest.leave(news, 0);
        assert!(interest.expire(100).is_empty() && interest.is_on(news));
        interest.leave(news, 100);
        assert!(interest.expire(109).is_empty());
        assert!(!interest.enter(news), "it has not ended");
        interest.leave(news, 105);
        assert!(interest.expire(110).is_empty(), "the last member left at 105");
        assert_eq!(interest.expire(115), [news]);
        assert!(!interest.is_on(news) && interest.enter(news));
    }

    #[test]
    fn interest_is_on_while_and_shortly_after_there_are_topics() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let mut interest = Interest::new(50);
            let mut model = BTreeMap::<Stream, (u32, Option<u64>)>::new();
            for now_us in 0..2_000 {
                let stream = Stream::from_number(u16::from(random.below(6_u8))).unwrap();
                let (topics, left_us) = model.entry(stream).or_insert((0, None));
                match random.one_in(2_u32) {
                    true => {
                        interest.enter(stream);
                        *topics += 1;
                    }
                    false if *topics > 0 => {
                        interest.leave(stream, now_us);
                        (*topics, *left_us) = (*topics - 1, Some(now_us));
                    }
                    false => {}
                }
                interest.expire(now_us);
                for (stream, (topics, left_us)) in &model {
                    let lingers = left_us.is_some_and(|left_us| now_us < left_us + 50);
                    let expected = *topics > 0 || lingers;
                    assert!(
                        interest.is_on(*stream) || !expected,
                        "seed {seed}, {now_us} us, {stream:?}"
                    );
                }
            }
            let left: Vec<_> = model.iter().filter(|(_, (topics, _))| *topics == 0).collect();
            interest.expire(10_000);
            assert!(left.iter().all(|(stream, _)| !interest.is_on(**stream)), "seed {seed}");
        }
    }
}
