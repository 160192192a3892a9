//! The versioned tables and functions of a part of Throng in a database.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::address::Address;
use crate::error::{DatabaseError, text};
use crate::session::connect;

/// The first number of Throng's advisory locks: `thrg` in ASCII. The second number names what is locked.
pub const LOCK_CLASS: i32 = 0x7468_7267;

/// The tables and functions of a part of Throng.
///
/// The last statement of each script inserts the number of its version into the table `PART_migrations`, which the
/// first script makes. If programs of earlier versions can use the tables as well, its column `usable_from` has the first
/// of these versions. A table may lack this column.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// The part, by the name of its command.
    pub part: &'static str,
    /// For each version, from the first on, the statements that make it from the one before. `{schema}` is the
    /// schema's name.
    pub scripts: &'static [&'static str],
}

/// Returns a statement for a schema. The configuration ensures that its name has no quotes.
pub fn of_schema(statement: &str, schema: &str) -> String {
    statement.replace("{schema}", &format!("\"{schema}\""))
}

impl Schema {
    /// Returns the version of the tables and functions that this program needs.
    pub const fn version(&self) -> i32 {
        self.scripts.len() as i32
    }

    /// Returns the statements that migrate that version (0: none) to this one, as one transaction to be applied by
    /// hand.
    pub fn script(&self, schema: &str, from: i32) -> String {
        let mut script = String::from("BEGIN;\n\n");
        if from == 0 {
            script += &format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\";\n\n");
        }
        for migration in self.scripts.iter().skip(usize::try_from(from).unwrap_or(0)) {
            script += &of_schema(migration, schema);
            script += "\n";
        }
        script + "COMMIT;\n"
    }

    /// Connects, and makes missing tables and functions. Returns the version that the database had; 0 is none.
    ///
    /// # Errors
    /// If the database can't be reached, has a newer version, or does not allow it.
    pub async fn migrate(
        &self,
        address: &Address,
        password: &str,
        schema: &str,
    ) -> Result<i32, DatabaseError> {
        let session = connect(address, password, |_| ()).await?;
        let result = self.apply(&session.client, schema, address.user()).await;
        session.close().await;
        result
    }

    /// Makes missing tables and functions. Returns the version that the database had, which may be a newer one.
    ///
    /// # Errors
    /// If the database has a newer version that this program can't use, or does not allow it.
    pub async fn apply(
        &self,
        client: &Client,
        schema: &str,
        user: &str,
    ) -> Result<i32, DatabaseError> {
        let (part, expected) = (self.part, self.version());
        let found = self.found(client, schema).await?;
        if found == expected || found > expected && self.is_usable(client, schema).await? {
            return Ok(found);
        }
        if found > expected {
            return Err(DatabaseError::Newer { part, schema: schema.into(), found, expected });
        }
        match self.apply_locked(client, schema).await {
            Ok(()) => Ok(found),
            Err(error) => {
                let _ = client.batch_execute("ROLLBACK").await;
                match error.code() {
                    Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                        Err(DatabaseError::NotMigrated {
                            part,
                            schema: schema.into(),
                            found,
                            expected,
                            user: user.into(),
                            cause: text(&error),
                        })
                    }
                    _ => Err(error.into()),
                }
            }
        }
    }

    /// If several nodes start at the same time, one migrates, and the others find it done.
    async fn apply_locked(
        &self,
        client: &Client,
        schema: &str,
    ) -> Result<(), tokio_postgres::Error> {
        client.batch_execute("BEGIN").await?;
        let lock = "SELECT pg_advisory_xact_lock($1, hashtext($2))";
        client.execute(lock, &[&LOCK_CLASS, &format!("migrate {schema}")]).await?;
        let found = self.recorded(client, schema).await?;
        if found == 0 {
            let exists = "SELECT to_regnamespace($1) IS NOT NULL";
            if !client.query_one(exists, &[&schema]).await?.try_get::<_, bool>(0)? {
                client.batch_execute(&format!("CREATE SCHEMA \"{schema}\"")).await?;
            }
        }
        for migration in self.scripts.iter().skip(usize::try_from(found).unwrap_or(0)) {
            client.batch_execute(&of_schema(migration, schema)).await?;
        }
        client.batch_execute("COMMIT").await
    }

    /// Returns the version that the database has; 0 is none. Changes nothing.
    ///
    /// # Errors
    /// If PostgreSQL is too old, or does not reply.
    pub async fn found(&self, client: &Client, schema: &str) -> Result<i32, DatabaseError> {
        let row = client.query_one("SHOW server_version_num", &[]).await?;
        let number: String = row.try_get(0)?;
        if number.parse::<u32>().is_ok_and(|number| number < 140_000) {
            let row = client.query_one("SHOW server_version", &[]).await?;
            return Err(DatabaseError::OldServer(row.try_get(0)?));
        }
        Ok(self.recorded(client, schema).await?)
    }

    /// Returns true if the newest version in the database says that programs of this version can use it.
    async fn is_usable(
        &self,
        client: &Client,
        schema: &str,
    ) -> Result<bool, tokio_postgres::Error> {
        // The row as JSON has the column, or not.
        let usable = format!(
            "SELECT coalesce((to_jsonb(m)->>'usable_from')::integer <= $1::integer, false) \
             FROM {{schema}}.{}_migrations AS m ORDER BY m.version DESC LIMIT 1",
            self.part
        );
        client.query_one(&of_schema(&usable, schema), &[&self.version()]).await?.try_get(0)
    }

    /// Returns the version that the database has; 0 is none.
    async fn recorded(&self, client: &Client, schema: &str) -> Result<i32, tokio_postgres::Error> {
        let table = format!("{}_migrations", self.part);
        let exists = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS relation \
                      JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = relation.relnamespace \
                      WHERE namespace.nspname = $1 AND relation.relname = $2)";
        if !client.query_one(exists, &[&schema, &table]).await?.try_get::<_, bool>(0)? {
            return Ok(0);
        }
        let newest = format!("SELECT coalesce(max(version), 0) FROM {{schema}}.{table}");
        client.query_one(&of_schema(&newest, schema), &[]).await?.try_get(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_one_transaction_and_names_the_schema() {
        let schema = Schema { part: "a", scripts: &["CREATE TABLE {schema}.a_migrations ();\n"] };
        assert_eq!(
            schema.script("push", 0),
            "BEGIN;\n\nCREATE SCHEMA IF NOT EXISTS \"push\";\n\nCREATE TABLE \"push\".a_migrations ();\n\nCOMMIT;\n"
        );
        assert_eq!(schema.script("push", 1), "BEGIN;\n\nCOMMIT;\n");
    }
}
