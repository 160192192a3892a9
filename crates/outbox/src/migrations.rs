//! The tables and functions in the database, by versions.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::address::Address;
use crate::error::{DatabaseError, text};
use crate::session::connect;

/// The statements that make each version of the one before, from the first on.
const MIGRATIONS: [&str; 1] = [include_str!("../sql/1.sql")];

/// The version of the tables and functions that this program needs.
pub const VERSION: i32 = MIGRATIONS.len() as i32;

/// The first number of the advisory locks of Throng: `thrg` in ASCII. The second one is of the schema.
pub(crate) const LOCK_CLASS: i32 = 0x7468_7267;

/// The statements that make this version of that one (0: of nothing), to be applied by hand: one transaction.
pub fn script(schema: &str, from: i32) -> String {
    let mut script = String::from("BEGIN;\n\n");
    if from == 0 {
        script += &format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\";\n\n");
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(from).unwrap_or(0)) {
        script += &of_schema(migration, schema);
        script += "\n";
    }
    script + "COMMIT;\n"
}

/// A statement for a schema. Its name has no quotes: the configuration makes sure of that.
pub(crate) fn of_schema(statement: &str, schema: &str) -> String {
    statement.replace("{schema}", &format!("\"{schema}\""))
}

/// Connects, and makes the tables and functions where they are not there yet. Gives the version that was there; 0 is
/// none.
///
/// # Errors
/// When the database can't be reached, has a newer version, or does not allow it.
pub async fn migrate(
    address: &Address,
    password: &str,
    schema: &str,
) -> Result<i32, DatabaseError> {
    let (client, connection) = connect(address, password).await?;
    let result = apply(&client, schema, address.user()).await;
    drop(client);
    // It says goodbye.
    let _ = connection.await;
    result
}

/// Makes the tables and functions where they are not there yet. Gives the version that was there.
pub(crate) async fn apply(client: &Client, schema: &str, user: &str) -> Result<i32, DatabaseError> {
    let found = version(client, schema).await?;
    if found > VERSION {
        return Err(DatabaseError::Newer { schema: schema.into(), found, wanted: VERSION });
    }
    if found == VERSION {
        return Ok(found);
    }
    match apply_locked(client, schema).await {
        Ok(()) => Ok(found),
        Err(error) => {
            let _ = client.batch_execute("ROLLBACK").await;
            match error.code() {
                Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                    Err(DatabaseError::NotMigrated {
                        schema: schema.into(),
                        found,
                        wanted: VERSION,
                        user: user.into(),
                        cause: text(&error),
                    })
                }
                _ => Err(error.into()),
            }
        }
    }
}

/// Of several nodes that start at the same time one migrates, and the others find it done.
async fn apply_locked(client: &Client, schema: &str) -> Result<(), tokio_postgres::Error> {
    client.batch_execute("BEGIN").await?;
    let lock = "SELECT pg_advisory_xact_lock($1, hashtext($2))";
    client.execute(lock, &[&LOCK_CLASS, &format!("migrate {schema}")]).await?;
    let found = recorded(client, schema).await?;
    if found == 0 {
        let exists = "SELECT to_regnamespace($1) IS NOT NULL";
        if !client.query_one(exists, &[&schema]).await?.try_get::<_, bool>(0)? {
            client.batch_execute(&format!("CREATE SCHEMA \"{schema}\"")).await?;
        }
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        client.batch_execute(&of_schema(migration, schema)).await?;
    }
    client.batch_execute("COMMIT").await
}

async fn version(client: &Client, schema: &str) -> Result<i32, DatabaseError> {
    let row = client.query_one("SHOW server_version_num", &[]).await?;
    let number: String = row.try_get(0)?;
    if number.parse::<u32>().is_ok_and(|number| number < 140_000) {
        let row = client.query_one("SHOW server_version", &[]).await?;
        return Err(DatabaseError::OldServer(row.try_get(0)?));
    }
    Ok(recorded(client, schema).await?)
}

/// The version that the database has; 0 is none.
async fn recorded(client: &Client, schema: &str) -> Result<i32, tokio_postgres::Error> {
    let exists = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS relation \
                  JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = relation.relnamespace \
                  WHERE namespace.nspname = $1 AND relation.relname = 'outbox_migrations')";
    if !client.query_one(exists, &[&schema]).await?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let newest = "SELECT coalesce(max(version), 0) FROM {schema}.outbox_migrations";
    client.query_one(&of_schema(newest, schema), &[]).await?.try_get(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_one_transaction_and_names_the_schema() {
        let script = script("push", 0);
        assert!(script.starts_with("BEGIN;\n\nCREATE SCHEMA IF NOT EXISTS \"push\";\n"));
        assert!(script.ends_with("COMMIT;\n"));
        assert!(script.contains("CREATE FUNCTION \"push\".publish("));
        assert!(!script.contains("{schema}"));
        assert_eq!(super::script("push", VERSION), "BEGIN;\n\nCOMMIT;\n");
    }

    #[test]
    fn each_migration_records_its_version() {
        for (at, migration) in MIGRATIONS.iter().enumerate() {
            let record = format!("outbox_migrations (version) VALUES ({});", at + 1);
            assert!(migration.contains(&record), "{record}");
        }
    }
}
