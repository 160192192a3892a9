//! A live upgrade, for callers that begin and follow it. The server provides the implementation.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::http::gate::Gate;

/// Passes the state of this process to another one, while it serves.
pub trait Upgrader: Send + Sync {
    /// Begins an upgrade, or a check of one, and returns at once. Its progress has left [`UpgradeStage::Idle`], or
    /// the end of the last one, when this returns.
    ///
    /// # Errors
    /// Why it can't begin. Then nothing has happened, and the progress is as it was.
    fn begin(&self, request: UpgradeRequest) -> Result<(), UpgradeRejection>;

    /// Returns the progress of the current upgrade, or of the last. In a process that an upgrade has started, it
    /// begins with the result of that one.
    fn progress(&self) -> watch::Receiver<UpgradeProgress>;
}

/// The node's part of upgrades.
#[derive(Default)]
pub struct Upgrades {
    /// Carries them out; `None` if the server can't.
    pub upgrader: Option<Arc<dyn Upgrader>>,
    /// Makes requests wait meanwhile.
    pub gate: Arc<Gate>,
    /// The socket to which the previous process forwards requests. It is bound in a folder that no other process can
    /// reach, for a peer there says where a request comes from. The control thread takes it when it starts.
    pub forwarded: Mutex<Option<std::os::unix::net::UnixListener>>,
}

impl Upgrades {
    /// Returns the progress of the upgrade.
    pub(crate) fn progress(&self) -> UpgradeProgress {
        let newest = |upgrader: &Arc<dyn Upgrader>| upgrader.progress().borrow().clone();
        self.upgrader.as_ref().map(newest).unwrap_or_default()
    }

    pub(crate) fn take_forwarded(&self) -> Option<std::os::unix::net::UnixListener> {
        self.forwarded.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The program to upgrade to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = UpgradeRequest)]
pub struct UpgradeRequest {
    /// The binary to start; the one that this process was started as by default. A path on the
    /// node's host, of a file that only root or the server's own user can write.
    #[schema(value_type = Option<String>, nullable = false, example = "/usr/local/bin/throng")]
    pub binary: Option<PathBuf>,
    /// The socket at which another process waits, started as `throng serve --take-over SOCKET`,
    /// instead of one that this process starts.
    #[schema(value_type = Option<String>, nullable = false, example = "/run/throng/take-over")]
    pub to: Option<PathBuf>,
    /// Only find out whether it would work, and what it would change. Nothing moves.
    pub check: bool,
}

/// Why an upgrade can't begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeRejection {
    /// One is under way already.
    #[error("an upgrade is in progress: GET /api/upgrade shows how far it is")]
    UnderWay,
    /// This process has passed its state to another one, or is ending.
    #[error("{0}")]
    Ending(String),
    /// The node drains.
    #[error(
        "the node is draining, and a new process would not continue the drain: cancel it first \
         (throng drain --cancel)"
    )]
    Draining,
    /// The request names something that can't be upgraded to.
    #[error("{0}")]
    Bad(String),
}

/// The stage of an upgrade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpgradeStage {
    /// No upgrade has begun.
    #[default]
    Idle,
    /// The new process starts, and says whether it can take over the state.
    Starting,
    /// Connections are copied while they are served.
    Copying,
    /// The node serves nothing, and passes what has changed since.
    Switching,
    /// The new process serves.
    Done,
    /// It was given up. The old process serves on.
    Failed,
    /// It was only checked, and would work.
    Checked,
}

impl UpgradeStage {
    /// All, in the order of the numbers that the metric has.
    pub const ALL: [(UpgradeStage, &'static str); 7] = [
        (UpgradeStage::Idle, "idle"),
        (UpgradeStage::Starting, "starting"),
        (UpgradeStage::Copying, "copying"),
        (UpgradeStage::Switching, "switching"),
        (UpgradeStage::Done, "done"),
        (UpgradeStage::Failed, "failed"),
        (UpgradeStage::Checked, "checked"),
    ];

    /// Reports whether nothing is under way.
    pub fn is_rest(self) -> bool {
        !matches!(self, Self::Starting | Self::Copying | Self::Switching)
    }
}

/// The figures of an upgrade that is under way, or of the last one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = UpgradeProgress)]
pub struct UpgradeProgress {
    /// Its stage.
    pub stage: UpgradeStage,
    /// Upgrades that this process has begun, checks included.
    pub begun: u64,
    /// How many of them were given up.
    pub failed: u64,
    /// Shards that are completely copied.
    pub shards_done: usize,
    /// All shards.
    pub shards: usize,
    /// Connections that are copied.
    pub connections_copied: u64,
    /// All connections.
    pub connections: u64,
    /// Connections that could not be passed, and were closed.
    pub lost: u64,
    /// How long the node served nothing, in microseconds; null before that.
    pub pause_us: Option<u64>,
    /// How long it has taken so far.
    pub seconds: f64,
    /// The version that serves, or served before.
    #[schema(example = "1.4.0")]
    pub from_version: String,
    /// The version of the new process; empty until it is known.
    #[schema(example = "1.5.0")]
    pub to_version: String,
    /// The id of the new process.
    pub pid: Option<u32>,
    /// Why it was given up.
    pub error: Option<String>,
    /// State that the new process doesn't take over, and settings that differ there.
    pub notes: Vec<String>,
}

impl UpgradeProgress {
    /// Returns the result in one word, for programs, or `None` while it is under way.
    pub fn result(&self) -> Option<&'static str> {
        match self.stage {
            UpgradeStage::Done if self.lost > 0 => Some("partly_lost"),
            UpgradeStage::Done => Some("done"),
            UpgradeStage::Checked => Some("possible"),
            UpgradeStage::Idle | UpgradeStage::Failed => Some("nothing_moved"),
            UpgradeStage::Starting | UpgradeStage::Copying | UpgradeStage::Switching => None,
        }
    }

    /// Returns the result in a sentence, for people, or what is under way.
    pub fn text(&self) -> String {
        let (from, to) = (&self.from_version, &self.to_version);
        let versions = if from == to { from.clone() } else { format!("{from} to {to}") };
        match self.stage {
            UpgradeStage::Idle => "there was no upgrade".into(),
            UpgradeStage::Starting => "the new process is starting".into(),
            UpgradeStage::Copying => format!(
                "shard {} of {}, {} of {} connections, {} lost",
                self.shards_done, self.shards, self.connections_copied, self.connections, self.lost
            ),
            UpgradeStage::Switching => "the node serves no client for a moment".into(),
            UpgradeStage::Done => format!(
                "upgraded, {versions}: {} connections in {:.1} s, with a pause of {:.1} ms, {} \
                 lost",
                self.connections,
                self.seconds,
                self.pause_us.unwrap_or_default() as f64 / 1e3,
                self.lost
            ),
            UpgradeStage::Failed => format!(
                "nothing was moved, and the old process still serves: {}",
                self.error.as_deref().unwrap_or("it failed")
            ),
            UpgradeStage::Checked => format!("an upgrade is possible, {versions}"),
        }
    }
}

/// How far an upgrade is, or the result of the last one.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = UpgradeState)]
pub(crate) struct UpgradeState {
    /// At the end: `done`, `partly_lost`, `nothing_moved`, or `possible` after a check.
    #[schema(nullable = false, example = "done")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<&'static str>,
    /// The same in a sentence.
    pub text: String,
    #[serde(flatten)]
    pub progress: UpgradeProgress,
}

impl From<UpgradeProgress> for UpgradeState {
    fn from(progress: UpgradeProgress) -> Self {
        UpgradeState { result: progress.result(), text: progress.text(), progress }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_a_result_and_all_else_has_none() {
        let of = |stage, lost| UpgradeProgress { stage, lost, ..UpgradeProgress::default() };
        for (stage, name) in UpgradeStage::ALL {
            assert_eq!(of(stage, 0).result().is_some(), stage.is_rest(), "{name}");
            assert_eq!(serde_json::to_value(stage).unwrap(), name);
            assert!(!of(stage, 0).text().is_empty());
        }
        assert_eq!(of(UpgradeStage::Done, 0).result(), Some("done"));
        assert_eq!(of(UpgradeStage::Done, 1).result(), Some("partly_lost"));
        assert_eq!(of(UpgradeStage::Failed, 0).result(), Some("nothing_moved"));
    }

    #[test]
    fn what_a_request_does_not_say_is_the_default() {
        let request: UpgradeRequest = serde_json::from_str("{}").unwrap();
        assert_eq!(request, UpgradeRequest::default());
        let request = serde_json::from_str::<UpgradeRequest>(r#"{"binary":"/a","check":true}"#);
        assert_eq!(request.unwrap().binary, Some("/a".into()));
        assert!(serde_json::from_str::<UpgradeRequest>(r#"{"bianry":"/a"}"#).is_err());
    }
}
