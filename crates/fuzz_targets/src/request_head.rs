//! A client's first bytes.

use auth::{LoginRule, Policy, Principal};
use model::{ConnectionId, JoinRule, NodeId, PublishRule, Rule, Rules};
use protocol::http::{Http, Limits};
use protocol::websocket::Decoder;
use protocol::{Codecs, Protocol, Reader, Settings};

/// Reads the requests of a connection, whole and cut short. The limits are small, so that short inputs reach
/// them.
pub fn request_head(data: &[u8]) {
    let rules = Rules {
        rules: vec![Rule {
            pattern: "r*".into(),
            join: JoinRule::Refuse,
            publish: Some(PublishRule::Refuse),
            presence: true,
            ..Rule::default()
        }],
        publish_prefixes: vec!["".into()],
        ..Rules::default()
    };
    let settings = Settings {
        http: Limits {
            head_bytes_max: 512,
            uri_bytes_max: 256,
            body_bytes_max: 128,
            longpoll_body_bytes_max: 256,
        },
        cors_origins: vec!["http://a".into()],
        topics_per_connection_max: 4,
        message_bytes_max: 128,
        frame_bytes_max: 128,
        poll_seconds: 1,
        poll_seconds_max: 1,
        compression: true,
        ws_echo: true,
        status_page: true,
        ..Settings::for_tests(Policy::new(rules, LoginRule::Allow))
    };
    let id = ConnectionId { node: NodeId(9), shard: 0, slot: 1, serial: 2 };
    let mut codecs = Codecs::new(6, 64);
    for end in [data.len(), data.len() / 2] {
        let (mut position, mut out, mut bytes) = (0, Vec::new(), data[..end].to_vec());
        loop {
            let mut reader = Reader {
                settings: &settings,
                protocols: protocol::standard(),
                id,
                peer: Default::default(),
                speaker: &|| Principal::anonymous(Vec::new()),
                stranger: false,
                now_ms: 1_000_000_000,
                decisions: protocol::request::Decisions::NONE,
                codecs: &mut codecs,
                decoder: &mut Decoder::default(),
                open: false,
            };
            let read = Http.read(&mut reader, &mut bytes[position..], &mut out);
            position += read.consumed;
            if read.consumed == 0 || position == end {
                break;
            }
        }
    }
}
