//! Measures how far an agent's clock is ahead: the coordinator pings the agent for its time, and uses the pong with
//! the shortest round trip.

use std::collections::VecDeque;

/// Stored pongs: those of about 8 s, since two arrive each second. In this time clocks drift apart only a little.
const PONGS_MAX: usize = 16;

/// The coordinator's measurements of an agent's clock.
#[derive(Debug, Default)]
pub struct AgentClock {
    /// Pings without a pong yet: their numbers, and when they were sent.
    pinged: VecDeque<(u64, u64)>,
    /// Round-trip time of the last pongs, and how far ahead the clock was then; in nanoseconds.
    pongs: VecDeque<(u64, i64)>,
    next: u64,
}

impl AgentClock {
    /// Counts a ping that is sent at this time. Returns its number.
    pub fn ping(&mut self, now_ns: u64) -> u64 {
        self.next += 1;
        self.pinged.push_back((self.next, now_ns));
        if self.pinged.len() > PONGS_MAX {
            self.pinged.pop_front();
        }
        self.next
    }

    /// Takes a pong: the agent's time was `at_ns`.
    pub fn on_pong(&mut self, number: u64, at_ns: u64, now_ns: u64) {
        let Some(at) = self.pinged.iter().position(|(pinged, _)| *pinged == number) else {
            return;
        };
        let Some((_, pinged_ns)) = self.pinged.remove(at) else { return };
        let took = now_ns.saturating_sub(pinged_ns);
        let ahead = i128::from(at_ns) - i128::from(pinged_ns + took / 2);
        if let Ok(ahead) = i64::try_from(ahead) {
            self.pongs.push_back((took, ahead));
        }
        if self.pongs.len() > PONGS_MAX {
            self.pongs.pop_front();
        }
    }

    /// Returns how far the clock is ahead, and the largest error of this measurement, in nanoseconds. `None` before
    /// the first pong.
    pub fn ahead(&self) -> Option<(i64, u64)> {
        self.pongs.iter().min_by_key(|(took, _)| *took).map(|(took, ahead)| (*ahead, took / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_pong_counts() {
        let mut clock = AgentClock::default();
        assert_eq!(clock.ahead(), None);
        let (slow, quick) = (clock.ping(1_000), clock.ping(2_000));
        clock.on_pong(slow, 9_400, 5_000);
        assert_eq!(clock.ahead(), Some((6_400, 2_000)));
        clock.on_pong(quick, 7_050, 2_100);
        assert_eq!(clock.ahead(), Some((5_000, 50)));
        // No ping has number 77, and a second pong to one ping does not count.
        clock.on_pong(quick, 1, 2_100);
        clock.on_pong(77, u64::MAX, 2_100);
        assert_eq!(clock.ahead(), Some((5_000, 50)));
        // A clock that is behind, and a pong that grows old.
        for at in 0..PONGS_MAX as u64 {
            let number = clock.ping(10_000 + at);
            clock.on_pong(number, 9_200 + at, 10_400 + at);
        }
        assert_eq!(clock.ahead(), Some((-1_000, 200)));
    }
}
