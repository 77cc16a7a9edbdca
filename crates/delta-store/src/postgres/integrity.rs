//! What PostgreSQL can say about its own files: amcheck where it is installed and may be used, and
//! otherwise that every row of every table can be read, which a damaged page prevents only where
//! the cluster has checksums or the damage shows. Says which of the two it was.

use tokio_postgres::Error;

use super::connect::{Planning, SCHEMA, Session};
use super::error::Trouble;
use super::pools::Pools;
use crate::StoreError;
use crate::doctor::Integrity;

const TABLES: &str = "SELECT c.oid::bigint, c.relname::text FROM pg_class c \
     JOIN pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = $1 AND c.relkind = 'r' ORDER BY c.relname";

const INDEXES: &str = "SELECT c.oid::bigint, c.relname::text, i.indisvalid FROM pg_index i \
     JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
     JOIN pg_am a ON a.oid = c.relam \
     WHERE n.nspname = $1 AND a.amname = 'btree' ORDER BY c.relname";

/// The schema that amcheck's functions are in.
const AMCHECK: &str = "SELECT quote_ident(n.nspname) FROM pg_extension e \
     JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'amcheck'";

/// Reads everything, so on a session of its own that waits as long as it takes.
pub(super) fn look(pools: &Pools, progress: &mut dyn FnMut(&str)) -> Result<Integrity, StoreError> {
    pools.alone(Planning::Unbounded, async |session| {
        Ok(Look::new(session).everything(progress).await?)
    })
}

struct Look<'a> {
    session: &'a Session,
    found: Integrity,
}

impl<'a> Look<'a> {
    fn new(session: &'a Session) -> Look<'a> {
        Look {
            session,
            found: Integrity::default(),
        }
    }

    async fn everything(mut self, progress: &mut dyn FnMut(&str)) -> Result<Integrity, Trouble> {
        let (tables, indexes) = (self.list(TABLES).await?, self.list(INDEXES).await?);
        let amcheck = self.amcheck().await?;
        for (id, name, _) in &tables {
            progress(&format!("table {name}"));
            match &amcheck {
                Some(schema) => self.rows_of(schema, *id, name).await?,
                None => self.read(name).await?,
            }
        }
        for (id, name, valid) in &indexes {
            progress(&format!("index {name}"));
            if !valid {
                self.found
                    .fault(format!("index {name} is not valid: REINDEX INDEX {name}"));
            }
            if let Some(schema) = &amcheck {
                let sql = format!("SELECT {schema}.bt_index_check({id}::oid::regclass, true)");
                let checked = self.session.client.query(&sql, &[]).await;
                self.heard(checked.map(drop), &format!("index {name}"))?;
            }
        }
        let (tables, indexes) = (tables.len(), indexes.len());
        self.found.checked = match amcheck {
            Some(_) => format!("amcheck looked at {tables} tables and {indexes} indexes"),
            None => self.without(tables, indexes).await?,
        };
        Ok(self.found)
    }

    /// What was done without amcheck, and what was not.
    async fn without(&self, tables: usize, indexes: usize) -> Result<String, Trouble> {
        let rows = self
            .session
            .client
            .query("SHOW data_checksums", &[])
            .await
            .map_err(|error| Trouble::of(&error))?;
        let on = rows
            .first()
            .is_some_and(|row| row.get::<_, &str>(0) == "on");
        let on = if on { "on" } else { "off" };
        Ok(format!(
            "every row of {tables} tables was read, with page checksums {on}; {indexes} indexes \
             were not looked at, for which PostgreSQL needs the extension amcheck and the right \
             to use it"
        ))
    }

    /// Where its functions are, if this role may call them.
    async fn amcheck(&self) -> Result<Option<String>, Trouble> {
        let found = self
            .session
            .client
            .query(AMCHECK, &[])
            .await
            .map_err(|error| Trouble::of(&error))?;
        let Some(schema) = found.first().map(|row| row.get::<_, String>(0)) else {
            return Ok(None);
        };
        let may = format!(
            "SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_proc p \
             WHERE p.pronamespace = '{schema}'::regnamespace \
             AND p.proname IN ('bt_index_check', 'verify_heapam')"
        );
        let may = self
            .session
            .client
            .query(&may, &[])
            .await
            .map_err(|error| Trouble::of(&error))?
            .first()
            .and_then(|row| row.get::<_, Option<bool>>(0));
        Ok(Some(schema).filter(|_| may == Some(true)))
    }

    async fn rows_of(&mut self, schema: &str, id: i64, name: &str) -> Result<(), Trouble> {
        let sql = format!(
            "SELECT blkno, msg FROM {schema}.verify_heapam({id}::oid::regclass, \
             check_toast => true)"
        );
        match self.session.client.query(&sql, &[]).await {
            Ok(rows) => {
                for row in rows {
                    let (block, said): (i64, String) = (row.get(0), row.get(1));
                    self.found
                        .fault(format!("table {name}, block {block}: {said}"));
                }
                Ok(())
            }
            Err(error) => self.heard(Err(error), &format!("table {name}")),
        }
    }

    /// Every row with all of its columns, the long ones that lie elsewhere too.
    async fn read(&mut self, name: &str) -> Result<(), Trouble> {
        let sql = format!("SELECT sum(length(t::text)) FROM {SCHEMA}.{name} t");
        let read = self.session.client.query(&sql, &[]).await;
        self.heard(read.map(drop), &format!("table {name}"))
    }

    /// What is damaged is found; what cannot be asked is an error.
    fn heard(&mut self, answer: Result<(), Error>, what: &str) -> Result<(), Trouble> {
        let Err(error) = answer else {
            return Ok(());
        };
        let damaged = error
            .code()
            .is_some_and(|code| code.code().starts_with("XX"));
        match error.as_db_error() {
            Some(said) if damaged => {
                self.found.fault(format!("{what}: {}", said.message()));
                Ok(())
            }
            _ => Err(Trouble::of(&error)),
        }
    }

    async fn list(&self, sql: &str) -> Result<Vec<(i64, String, bool)>, Trouble> {
        let rows = self
            .session
            .client
            .query(sql, &[&SCHEMA])
            .await
            .map_err(|error| Trouble::of(&error))?;
        let row = |row: &tokio_postgres::Row| {
            let valid = row.try_get(2).unwrap_or(true);
            (row.get(0), row.get(1), valid)
        };
        Ok(rows.iter().map(row).collect())
    }
}
