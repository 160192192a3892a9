//! The rules and settings of a simulated shard.

use std::sync::Arc;

use model::{AcknowledgeRule, HistoryRule, Rule, Rules};

use super::log::{AGAIN, REDELIVERY_SECONDS, TOPICS, WINDOW, What, conflates};
use crate::core::count::count;
use crate::core::settings::Settings;

fn history(messages_max: u64, acknowledge: Option<AcknowledgeRule>) -> Option<Arc<HistoryRule>> {
    let (bytes_max, seconds_max) = (1 << 30, 1_000_000);
    let (durable, compact) = (false, false);
    let rule = HistoryRule { messages_max, bytes_max, seconds_max, durable, compact, acknowledge };
    Some(Arc::new(rule))
}

pub(super) fn rules() -> Rules {
    let rule = |(at, (pattern, what)): (usize, &(&str, What))| {
        let history = match *what {
            What::Big | What::Extra | What::Newest { retained: true } => history(1_000_000, None),
            What::Small(retained) => history(retained as u64, None),
            What::State(retained) => history(retained as u64, None)
                .map(|rule| HistoryRule { compact: true, ..(*rule).clone() }.into()),
            What::Newest { retained: false } | What::Plain | What::All | What::Passing => None,
            What::Ack(retained) => {
                let acknowledge = AcknowledgeRule {
                    window_messages_max: count(WINDOW),
                    redelivery_seconds: if at == AGAIN { REDELIVERY_SECONDS } else { 0 },
                    delivery_count_max: 0,
                    dead_letter: None,
                };
                history(retained as u64, Some(acknowledge))
            }
        };
        let conflate = conflates(at);
        let pattern = (*pattern).into();
        (history.is_some() || conflate).then(|| Rule {
            pattern,
            conflate,
            history,
            ..Rule::default()
        })
    };
    Rules { rules: TOPICS.iter().enumerate().filter_map(rule).collect(), ..Rules::default() }
}

pub(crate) fn settings() -> Settings {
    Settings::for_tests(auth::Policy::new(rules(), auth::LoginRule::Allow))
}
