//! `throng store export`: writes a store's history into PostgreSQL.

use std::path::{Path, PathBuf};

use admin::text::grouped;
use clap::Args;
use history_postgres::{LogTransferError, LogWriter, Written};
use sessions::RetainedWrite;
use store::{LogHead, OtherRows, StoreExport, TransferError};
use subscriptions::Subscriptions;

use super::database::{self, Target};
use super::subscriptions as stored_subscriptions;
use crate::error::CommandError;
use crate::flags::Flags;

#[derive(Args)]
pub struct Export {
    /// The store's directory [default: the configuration's store.data].
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    database: database::HistoryUrl,
    #[command(flatten)]
    settings: Box<Flags>,
}

pub fn run(args: &Export) -> Result<(), CommandError> {
    let config = database::load(&args.settings, args.dir.as_deref())?;
    let dir = args.dir.as_deref().unwrap_or(Path::new(&config.store.data));
    let dir = super::require_named(dir, "export")?;
    let target = args.database.target(&config)?;
    let (report, export) = StoreExport::open(&dir).map_err(super::runtime)?;
    super::print_report(&dir, &report)?;
    let Some(export) = export else { return Err(CommandError::Findings) };
    let others = export.other_rows().map_err(super::runtime)?;
    let key_seconds = config.history.idempotency_seconds_max;
    let subscriptions = stored_subscriptions::read(&export)?;
    let written = write(&export, &subscriptions, &target, key_seconds);
    let (written, head) = written.map_err(|error| match error {
        TransferError::Store(error) => super::runtime(error),
        TransferError::Other(error) => super::database_error(&error),
    })?;
    super::print(&text(&dir, &target.schema, written, head.epoch != export.head().epoch));
    super::print(&stored_subscriptions::counts_text((
        subscriptions.users(),
        subscriptions.edges(),
    )));
    super::print(&left_out_text(&others, written.retained));
    Ok(())
}

/// Writes the whole history and all subscriptions in one transaction.
fn write(
    export: &StoreExport,
    subscriptions: &Subscriptions,
    target: &Target,
    key_seconds: u64,
) -> Result<(Written, LogHead), TransferError<LogTransferError>> {
    let Target { address, password, schema } = target;
    let other = TransferError::Other;
    let has_subscriptions = subscriptions.users() > 0;
    let others = if has_subscriptions { &[subscriptions_postgres::SCHEMA][..] } else { &[] };
    let mut writer = LogWriter::begin(address, password, schema, others).map_err(other)?;
    writer.add_topics(export.topics().iter().map(|topic| &topic.topic.name)).map_err(other)?;
    for topic in export.topics() {
        writer.begin_topic(&topic.topic).map_err(other)?;
        let floor = export.messages(topic, |message| writer.message(&message))?;
        writer.end_topic(floor).map_err(other)?;
    }
    writer.add_keys(&export.keys()?, key_seconds).map_err(other)?;
    let cursors = export.cursors()?.into_iter().map(|row| (row.user, row.topic, row.offset));
    writer.add_cursors(&history_local::cursors_of_rows(cursors)).map_err(other)?;
    let retained = export.records(sessions::RETAINED)?.into_iter();
    let retained = retained.filter_map(|(topic, record)| {
        Some((topic.as_str().into(), RetainedWrite::of_record(record)?))
    });
    writer.add_retained(&retained.collect::<Vec<_>>()).map_err(other)?;
    if has_subscriptions {
        let pages = stored_subscriptions::pages(subscriptions);
        let written = writer
            .run(async |client| subscriptions_postgres::write_all(client, schema, pages).await);
        if !written.map_err(|error| other(error.into()))? {
            return Err(other(LogTransferError::HasSubscriptions { schema: schema.clone() }));
        }
    }
    let mut head = export.head();
    if export.has_gaps() {
        let random = getrandom::u32().map_err(|error| other(std::io::Error::from(error).into()))?;
        head.epoch = other_epoch(head.epoch, random);
    }
    Ok((writer.commit(head).map_err(other)?, head))
}

/// Returns an epoch that is not this one. 0 is none.
fn other_epoch(epoch: u32, random: u32) -> u32 {
    let is_usable = |new: &u32| *new != 0 && *new != epoch;
    [random, epoch ^ 1].into_iter().find(is_usable).unwrap_or(2)
}

/// Formats the counts of exported rows.
fn text(dir: &Path, schema: &str, written: Written, has_new_epoch: bool) -> String {
    let Written { topics, messages, keys, cursors, retained } = written;
    let (topics, messages) = (grouped(topics), grouped(messages));
    let (keys, cursors) = (grouped(keys), grouped(cursors));
    let ids = match has_new_epoch {
        true => {
            "under a new epoch, because the store may lack messages that clients have seen: clients that come back \
             learn that messages may be missing"
        }
        false => "with the ids that clients know",
    };
    let dir = dir.display();
    format!(
        "{topics} topics with {messages} messages, {keys} idempotency keys and {cursors} cursors are \
         in the schema {schema:?}, {ids}\n\
         serve them with history.url instead of store.data. Do not start a server with {dir} \
         again: it would assign ids of this history a second time\n{}",
        super::retained_text(retained)
    )
}

/// Formats the counts of rows that stayed behind, with the reasons. `retained` is the number of exported retained messages.
fn left_out_text(others: &OtherRows, retained: u64) -> String {
    let OtherRows { events, records } = others;
    let of_part = |parts: &[&str]| -> u64 {
        records
            .iter()
            .filter(|(part, _)| parts.contains(&part.as_str()))
            .map(|(_, rows)| rows)
            .sum()
    };
    let sessions = sessions::Part::ALL.map(sessions::Part::name);
    let known = [&sessions[..], &[sessions::RETAINED, control::REVOCATIONS]].concat();
    let unknown: u64 = records.values().sum::<u64>() - of_part(&known);
    let mut text = String::new();
    let rows: [(u64, &str); 5] = [
        (
            of_part(&[sessions::Part::Session.name()]),
            "sessions of MQTT, with their pending messages: with a history in PostgreSQL they end \
             with their connections",
        ),
        (
            of_part(&[control::REVOCATIONS]),
            "revoked tokens: with a history in PostgreSQL revocations are only in memory; revoke \
             them again",
        ),
        (
            *events,
            "events for the application: with a history in PostgreSQL they are only in memory; let \
             a server deliver them first",
        ),
        (
            of_part(&[sessions::RETAINED]).saturating_sub(retained),
            "retained messages of MQTT that this version can't read",
        ),
        (unknown, "records of a newer version"),
    ];
    for (count, what) in rows {
        if count > 0 {
            text += &format!("not exported: {} {what}\n", grouped(count));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn another_epoch_is_another_and_never_none() {
        assert_eq!(other_epoch(7, 9), 9);
        for (epoch, random) in [(7, 7), (7, 0), (1, 1), (1, 0)] {
            let new = other_epoch(epoch, random);
            assert!(new != epoch && new != 0, "{epoch} {random}: {new}");
        }
    }

    #[test]
    fn what_stays_behind_is_counted_and_has_a_reason() {
        let records =
            [("mqtt_session", 2), ("mqtt_progress", 2), ("mqtt_retained", 3), ("later", 4)];
        let records: BTreeMap<String, u64> =
            records.into_iter().map(|(part, rows)| (part.into(), rows)).collect();
        let others = OtherRows { events: 1_000, records };
        let text = left_out_text(&others, 1);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("not exported: 2 sessions of MQTT"), "{text}");
        assert!(lines[1].starts_with("not exported: 1,000 events"), "{text}");
        assert!(lines[2].starts_with("not exported: 2 retained messages"), "{text}");
        assert_eq!(lines[3], "not exported: 4 records of a newer version");
        assert_eq!(left_out_text(&OtherRows::default(), 0), "");
    }
}
