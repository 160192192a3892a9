//! Writes and reads the whole table in a transaction of the caller, to move subscriptions into the database and out of
//! it.

use std::pin::pin;

use database::{DatabaseError, of_schema, signed};
use futures_util::StreamExt;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::SCHEMA;
use crate::session::{SEPARATOR, UserTopics, user_topics};

/// While the transaction has the lock of the one row, servers can't edit the table.
const LOCK: &str = "SELECT last_change FROM {schema}.subscriptions_log FOR UPDATE";

const INSERT: &str = "INSERT INTO {schema}.subscriptions (user_name, topics, change, changed_at) \
     SELECT u.user_name, string_to_array(u.topics, E'\\n'), $3 + u.n, clock_timestamp() \
     FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (user_name, topics, n)";

const FINISH: &str = "UPDATE {schema}.subscriptions_log SET last_change = $1, total = $2";

const READ: &str = "SELECT user_name, topics FROM {schema}.subscriptions WHERE topics <> '{}'";

/// Writes pages of users, each with at least one topic, into a table that never had a row. Returns false, and writes
/// nothing, if it had one.
///
/// # Errors
/// If the database rejects a row, or a user comes twice.
pub async fn write_all(
    client: &Client,
    schema: &str,
    pages: impl Iterator<Item = Vec<UserTopics>>,
) -> Result<bool, DatabaseError> {
    let row = client.query_one(&of_schema(LOCK, schema), &[]).await?;
    if row.try_get::<_, i64>("last_change")? > 0 {
        return Ok(false);
    }
    let insert = client.prepare(&of_schema(INSERT, schema)).await?;
    let (mut last, mut total) = (0, 0);
    for mut page in pages {
        // The function for edits stores topics in this order.
        page.iter_mut().for_each(|user| user.topics.sort_unstable());
        let users: Vec<&str> = page.iter().map(|it| &*it.user).collect();
        let topics: Vec<String> = page.iter().map(|it| it.topics.join(SEPARATOR)).collect();
        let before = signed(last);
        let parameters: [&(dyn ToSql + Sync); 3] = [&users, &topics, &before];
        client.execute(&insert, &parameters).await?;
        last += page.len() as u64;
        total += page.iter().map(|it| it.topics.len() as u64).sum::<u64>();
    }
    client.execute(&of_schema(FINISH, schema), &[&signed(last), &signed(total)]).await?;
    Ok(true)
}

/// Passes all users who have topics to `each`, in any order. A database without the table has none.
///
/// # Errors
/// If the database fails, or has a table of a newer version.
pub async fn read_all<E: From<DatabaseError>>(
    client: &Client,
    schema: &str,
    mut each: impl FnMut(UserTopics) -> Result<(), E>,
) -> Result<(), E> {
    let (found, expected) = (SCHEMA.found(client, schema).await?, SCHEMA.version());
    if found == 0 {
        return Ok(());
    }
    if found > expected {
        let (part, schema) = (SCHEMA.part, schema.into());
        return Err(DatabaseError::Newer { part, schema, found, expected }.into());
    }
    let none: [&(dyn ToSql + Sync); 0] = [];
    let rows = client.query_raw(&of_schema(READ, schema), none).await;
    let mut rows = pin!(rows.map_err(DatabaseError::from)?);
    while let Some(row) = rows.next().await {
        each(user_topics(&row.map_err(DatabaseError::from)?)?)?;
    }
    Ok(())
}
