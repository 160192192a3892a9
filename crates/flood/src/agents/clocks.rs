//! How far an agent's clock is ahead: measured by questions for its time, of which the quickest answer counts.

use std::collections::VecDeque;

/// Answers that count. Two come in a second, and clocks part by less than a microsecond while so many come.
const ANSWERS: usize = 16;

/// What is known of an agent's clock.
#[derive(Debug, Default)]
pub struct AgentClock {
    /// Questions that were not answered yet: their number, and when they were asked.
    asked: VecDeque<(u64, u64)>,
    /// How long the last ones took, and how far ahead the clock was then; in nanoseconds.
    answers: VecDeque<(u64, i64)>,
    next: u64,
}

impl AgentClock {
    /// Asks at this time. Returns the question's number.
    pub fn ask(&mut self, now_ns: u64) -> u64 {
        self.next += 1;
        self.asked.push_back((self.next, now_ns));
        if self.asked.len() > ANSWERS {
            self.asked.pop_front();
        }
        self.next
    }

    /// The answer has come: the agent's time was `at_ns`.
    pub fn answered(&mut self, number: u64, at_ns: u64, now_ns: u64) {
        let Some(at) = self.asked.iter().position(|(asked, _)| *asked == number) else {
            return;
        };
        let Some((_, asked_ns)) = self.asked.remove(at) else { return };
        let took = now_ns.saturating_sub(asked_ns);
        let ahead = i128::from(at_ns) - i128::from(asked_ns + took / 2);
        if let Ok(ahead) = i64::try_from(ahead) {
            self.answers.push_back((took, ahead));
        }
        if self.answers.len() > ANSWERS {
            self.answers.pop_front();
        }
    }

    /// How far the clock is ahead, and how wrong that may be, in nanoseconds. `None` before the first answer.
    pub fn ahead(&self) -> Option<(i64, u64)> {
        self.answers.iter().min_by_key(|(took, _)| *took).map(|(took, ahead)| (*ahead, took / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_answer_counts() {
        let mut clock = AgentClock::default();
        assert_eq!(clock.ahead(), None);
        let (slow, quick) = (clock.ask(1_000), clock.ask(2_000));
        clock.answered(slow, 9_400, 5_000);
        assert_eq!(clock.ahead(), Some((6_400, 2_000)));
        clock.answered(quick, 7_050, 2_100);
        assert_eq!(clock.ahead(), Some((5_000, 50)));
        // Nobody asked this, and one is answered once.
        clock.answered(quick, 1, 2_100);
        clock.answered(77, u64::MAX, 2_100);
        assert_eq!(clock.ahead(), Some((5_000, 50)));
        // A clock that is behind, and an answer that grows old.
        for at in 0..ANSWERS as u64 {
            let number = clock.ask(10_000 + at);
            clock.answered(number, 9_200 + at, 10_400 + at);
        }
        assert_eq!(clock.ahead(), Some((-1_000, 200)));
    }
}
