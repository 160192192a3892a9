//! `throng store import`: writes a new store of a history in PostgreSQL.

use std::path::PathBuf;

use admin::text::grouped;
use clap::Args;
use history_postgres::{LogReader, LogTransferError};
use sessions::RETAINED;
use store::{CursorRow, Imported, PutFailed, StoreImport, TransferError};
use subscriptions::{Change, EditError};

use super::database::{self, Target};
use super::subscriptions::{Packer, counts_text};
use crate::error::CommandError;
use crate::flags::Flags;

#[derive(Args)]
pub struct Import {
    /// The directory of the new store, which must not have a store.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    database: database::HistoryUrl,
    #[command(flatten)]
    settings: Box<Flags>,
}

/// The most rows of cursors that wait to be put.
const CURSOR_ROWS_MAX: usize = 65_536;

/// The most retained messages that wait to be put.
const RETAINED_ROWS_MAX: usize = 1_024;

/// Why an import ended early.
enum Failure {
    Database(LogTransferError),
    /// A user or a topic in the table of subscriptions has a name that no server gives.
    Subscription(EditError),
    /// The store has the reason.
    PutFailed,
}

impl From<LogTransferError> for Failure {
    fn from(error: LogTransferError) -> Self {
        Failure::Database(error)
    }
}

impl From<::database::DatabaseError> for Failure {
    fn from(error: ::database::DatabaseError) -> Self {
        Failure::Database(error.into())
    }
}

impl From<EditError> for Failure {
    fn from(error: EditError) -> Self {
        Failure::Subscription(error)
    }
}

impl From<PutFailed> for Failure {
    fn from(_: PutFailed) -> Self {
        Failure::PutFailed
    }
}

pub fn run(args: &Import) -> Result<(), CommandError> {
    let config = database::load(&args.settings, Some(&args.dir))?;
    let dir = &args.dir;
    let Target { address, password, schema } = args.database.target(&config)?;
    let key_seconds = config.history.idempotency_seconds_max;
    let (mut packer, mut cursors, mut retained) = (Packer::new(), 0_u64, 0_u64);
    let imported = store::import(dir, super::new_epoch()?, |store| -> Result<_, Failure> {
        let reader = LogReader::begin(&address, &password, &schema)?;
        reader.rows(|row| Ok::<_, Failure>(store.put(row)?))?;
        store.put_keys(&reader.keys(key_seconds)?)?;
        let mut rows = Vec::new();
        reader.cursors(|user, topic, cursor| {
            cursors += 1;
            let of_cursor = history_local::rows_of_cursor(&topic, cursor);
            rows.extend(of_cursor.map(|(topic, offset)| CursorRow {
                user: user.clone(),
                topic,
                offset,
            }));
            match rows.len() >= CURSOR_ROWS_MAX {
                true => store.put_cursors(&std::mem::take(&mut rows)).map_err(Failure::from),
                false => Ok(()),
            }
        })?;
        store.put_cursors(&rows)?;
        let mut rows = Vec::new();
        reader.retained(|topic, record| {
            retained += 1;
            rows.push((topic, record));
            match rows.len() >= RETAINED_ROWS_MAX {
                true => {
                    store.put_records(RETAINED, &std::mem::take(&mut rows)).map_err(Failure::from)
                }
                false => Ok(()),
            }
        })?;
        store.put_records(RETAINED, &rows)?;
        reader.run(async |client| {
            subscriptions_postgres::read_all(client, &schema, |user| put(store, &packer.add(user)?))
                .await
        })?;
        put(store, &packer.pack()?)?;
        Ok(reader.head())
    });
    let imported = imported.map_err(|error| match error {
        TransferError::Store(error) => super::runtime(error),
        TransferError::Other(Failure::Database(error)) => super::database_error(&error),
        TransferError::Other(Failure::Subscription(error)) => super::database_error(&error),
        TransferError::Other(Failure::PutFailed) => super::database_error(&PutFailed),
    })?;
    let Imported { topics, messages, keys, lost_range: (after, _) } = imported;
    let (topics, messages) = (grouped(topics), grouped(messages));
    let (keys, cursors) = (grouped(keys), grouped(cursors));
    super::print(&format!(
        "{topics} topics with {messages} messages, {keys} idempotency keys and {cursors} cursors are \
         imported into {dir}: serve it with --data {dir}\n\
         messages after offset {after} may be missing: servers may have appended them since; \
         clients that come back are notified\n{}",
        super::retained_text(retained),
        dir = dir.display()
    ));
    super::print(&counts_text(packer.counts()));
    Ok(())
}

/// Puts users' subscriptions.
fn put(store: &mut StoreImport<'_>, change: &Change) -> Result<(), Failure> {
    if !change.is_empty() {
        store.put_subscriptions(&change.puts, &change.names)?;
    }
    Ok(())
}
