//! The rules and settings of a simulated shard.

use std::sync::Arc;

use model::{AcknowledgeRule, HistoryRule, Rule, Rules};

use super::{AGAIN, REDELIVERY_SECONDS, TOPICS, WINDOW, What};
use crate::settings::Settings;

fn history(messages_max: u64, acknowledge: Option<AcknowledgeRule>) -> Option<Arc<HistoryRule>> {
    let (bytes_max, seconds_max) = (1 << 30, 1_000_000);
    let (durable, compact) = (false, false);
    let history =
        HistoryRule { messages_max, bytes_max, seconds_max, durable, compact, acknowledge };
    Some(Arc::new(history))
}

pub(super) fn rules() -> Rules {
    let rule = |(at, (pattern, what)): (usize, &(&str, What))| {
        let history = match *what {
            What::Big | What::Extra => history(1_000_000, None),
            What::Small(retained) => history(retained as u64, None),
            What::Plain | What::All => None,
            What::Ack => {
                let acknowledge = AcknowledgeRule {
                    window_messages_max: WINDOW as u32,
                    redelivery_seconds: if at == AGAIN { REDELIVERY_SECONDS } else { 0 },
                    tries_max: 0,
                    dead_letter: None,
                };
                history(1_000_000, Some(acknowledge))
            }
        };
        history.is_some().then(|| Rule { pattern: (*pattern).into(), history, ..Rule::default() })
    };
    Rules { rules: TOPICS.iter().enumerate().filter_map(rule).collect(), ..Rules::default() }
}

pub(crate) fn settings() -> Settings {
    let never = 1_000_000;
    Settings {
        session: protocol::Settings {
            http: protocol::http::Limits {
                head_bytes_max: 8192,
                uri_bytes_max: 4096,
                body_bytes_max: 4096,
                longpoll_body_bytes_max: 4096,
            },
            cors_origins: vec!["*".into()],
            policy: auth::Policy::new(rules(), auth::LoginRule::Allow),
            topics_per_connection_max: 16,
            message_bytes_max: 4096,
            frame_bytes_max: 4096,
            sse_retry_ms: 2000,
            poll_seconds: 25,
            poll_seconds_max: 60,
            sse_heartbeat_seconds: 10,
            stream_heartbeat_seconds: 10,
            ws_ping_seconds: never as u32,
            ws_silence_seconds: never as u32,
            phoenix_silence_seconds: never as u32,
            compression: false,
            ws_echo: false,
            status_page: false,
            longpoll_key: protocol::phoenix::token::Key([0; 32]),
            files: Arc::new([]),
        },
        connections_max: never,
        connections_per_address_max: 0,
        accept_per_second_max: 0,
        outbox_bytes_max: 12 << 10,
        outbox_messages_max: 60,
        input_bytes_max: never as usize,
        outboxes_bytes_max: never as usize,
        publishes_per_second_max: 0,
        joins_per_second_max: 0,
        head_seconds: never as u32,
        idle_seconds: never as u32,
        longpoll_seconds: 25,
        longpoll_sessions_max: 10,
        longpoll_sessions_per_address_max: 0,
        presence_meta_bytes_max: 100,
    }
}
