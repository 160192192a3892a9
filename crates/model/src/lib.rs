//! The data of Throng: names, positions, messages, rules, errors and close reasons. No codec, no I/O.

#![forbid(unsafe_code)]
#![warn(clippy::match_wildcard_for_single_variants, clippy::wildcard_enum_match_arm)]

pub mod close;
pub mod connection;
pub mod envelope;
pub mod error_code;
pub mod event;
pub mod filter;
pub mod group;
pub mod logical_time;
pub mod message;
pub mod name;
pub mod node;
pub mod position;
pub mod quality;
pub mod resume;
pub mod rules;
pub mod since;
pub mod tags;
pub mod topic;

pub use close::CloseReason;
pub use connection::{ConnectionId, ConnectionIdError};
pub use envelope::{Encoding, Encodings, Envelope, FilterKey};
pub use error_code::{Blame, CodedError, ErrorCode, ErrorRow, Remedy, ReplyCode};
pub use group::GroupChoice;
pub use logical_time::LogicalTime;
pub use message::{Attributes, Data, Message, MessageSource, Publication, Retention};
pub use name::Name;
pub use node::NodeId;
pub use position::{Epoch, Position, PositionError};
pub use quality::{PROPERTIES_BYTES_MAX, Properties, PropertiesError, Qos, USER_PROPERTIES_MAX};
pub use resume::{Behind, ELSEWHERE, Frontier, RecoveryGap, ResumeToken, ResumeTokenError};
pub use rules::{AcknowledgeRule, HistoryRule, JoinRule, PublishRule, Rule, Rules};
pub use since::{ResumeRequest, Since, SinceError};
pub use topic::{Topic, TopicKind};
