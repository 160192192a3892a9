//! Copies the store of a running node. The configuration says in which directory, and the caller names the copy, so
//! that a key can write nowhere else.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use model::ErrorCode;
use serde::{Deserialize, Serialize};
use store::{BackupError, Store};
use utoipa::ToSchema;

use crate::Node;
use crate::http::{Body, ErrorBody, Rejection};

/// The longest name of a backup, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// A backup to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackupRequest {
    /// The copy's directory below `store.backups`: up to 128 ASCII letters, digits, `.`, `_` and `-`, a letter or digit
    /// first. It has no store yet; the node creates it if it is missing.
    #[schema(example = "2026-11-26", min_length = 1, max_length = 128)]
    name: String,
}

/// The last backup of this node's store.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct BackupState {
    /// `none` since the process began, `running`, `done` or `failed`.
    #[schema(example = "running")]
    state: &'static str,
    /// The directory of the copy, on the node's machine.
    dir: Option<String>,
    /// Rows that are copied.
    rows: u64,
    /// How many rows the store has; 0 until they are counted.
    rows_total: u64,
    /// The bytes of the copied rows.
    bytes: u64,
    /// Why it failed.
    error: Option<String>,
}

/// How far the backup of this node's store is, or the result of the last one.
#[utoipa::path(get, path = "/api/backup", tag = "operate", responses(
    (status = 200, body = BackupState),
    (status = 409, body = ErrorBody, description = "The node has no store")))]
pub(crate) async fn progress(
    State(node): State<Arc<Node>>,
) -> Result<Json<BackupState>, Rejection> {
    Ok(Json(BackupState::of(store_of(&node)?)))
}

/// Start to copy this node's store, as of its last commit, into a new directory in `store.backups` of its machine.
/// Publishing goes on meanwhile. The response comes at once, and `GET /api/backup` has the progress.
#[utoipa::path(post, path = "/api/backup", tag = "operate", request_body = BackupRequest, responses(
    (status = 200, body = BackupState),
    (status = 400, body = ErrorBody, description = "The body is not JSON, or the name of the backup is not allowed"),
    (status = 409, body = ErrorBody, description = "The node has no store, another backup is running, or a backup with \
        this name exists"),
    (status = 503, body = ErrorBody, description = "Too many reads are queued for the store, or the server is going \
        down")))]
pub(crate) async fn begin(
    State(node): State<Arc<Node>>,
    Body(BackupRequest { name }): Body<BackupRequest>,
) -> Result<Json<BackupState>, Rejection> {
    let store = store_of(&node)?;
    let dir = node.live().backups.clone();
    if !is_backup_name(&name) {
        let message = format!(
            "the name of a backup has up to {NAME_BYTES_MAX} ASCII letters, digits, '.', '_' and \
             '-', and begins with a letter or digit: the node writes the copy under this name to \
             {} (store.backups)",
            dir.display()
        );
        return Err(Rejection::new(ErrorCode::BadBackup, message));
    }
    let epoch = getrandom::u32().map_err(|error| {
        let message =
            format!("the system has no random numbers for the epoch of the copy: {error}");
        Rejection::new(ErrorCode::Overloaded, message)
    })?;
    store.begin_backup(&dir.join(name), epoch)?;
    Ok(Json(BackupState::of(store)))
}

/// Checks that a name is one part of a path, and neither hidden nor like a flag.
fn is_backup_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(is_allowed)
}

fn store_of(node: &Node) -> Result<&Store, Rejection> {
    node.store.as_ref().ok_or_else(|| {
        let message =
            "this node has no store, it keeps everything in memory: start it with --data DIR \
             (store.data)";
        Rejection::new(ErrorCode::NoStore, message)
    })
}

impl BackupState {
    fn of(store: &Store) -> Self {
        let Some(backup) = store.last_backup() else {
            return BackupState { state: "none", ..BackupState::default() };
        };
        let (state, error) = match backup.result {
            None => ("running", None),
            Some(Ok(())) => ("done", None),
            Some(Err(error)) => ("failed", Some(error)),
        };
        BackupState {
            state,
            dir: Some(backup.dir.to_string_lossy().into()),
            rows: backup.rows,
            rows_total: backup.rows_total,
            bytes: backup.bytes,
            error,
        }
    }
}

impl From<BackupError> for Rejection {
    fn from(error: BackupError) -> Self {
        let code = match error {
            BackupError::Running { .. } => ErrorCode::BackupRunning,
            BackupError::Exists { .. } => ErrorCode::BackupExists,
            BackupError::Busy => ErrorCode::StoreBusy,
            BackupError::Closed => ErrorCode::GoingDown,
        };
        Rejection::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::is_backup_name;

    #[test]
    fn a_backup_name_is_one_part_of_a_path() {
        for name in ["2026-11-26", "a", "nightly.1_b", &"x".repeat(128)] {
            assert!(is_backup_name(name), "{name}");
        }
        let refused = [
            "", ".", "..", ".hidden", "-flag", "a/b", "/tmp/a", "../a", "a\\b", "a b", "a\0b", "ä",
            "a\n",
        ];
        for name in refused.into_iter().chain([&*"x".repeat(129)]) {
            assert!(!is_backup_name(name), "{name:?}");
        }
    }
}
