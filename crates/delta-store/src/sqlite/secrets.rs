//! Secrets in SQLite.

use delta_core::Text;
use rusqlite::{Row, params};

use super::connection::store_error;
use super::credentials::PROJECT;
use super::reader::SqliteReader;
use super::rows::{self, Columns};
use super::side_tables::SqliteSideTables;
use crate::StoreError;
use crate::codec::column;
use crate::secrets::{SecretAbout, SecretId, SecretPlace, SecretReader, SecretRow, SecretTable};

macro_rules! select {
    ($also:literal, $rest:literal) => {
        concat!(
            "SELECT name, repository, branch, environment, kind, version, key_id, created_at, \
             updated_at, updated_by",
            $also,
            " FROM secrets ",
            $rest
        )
    };
}

impl SecretReader for SqliteReader {
    fn secrets(&self) -> Result<Vec<SecretAbout>, StoreError> {
        let sql = select!("", "ORDER BY name, repository, branch, environment");
        rows::all(&self.reader(), sql, [], |row| {
            about(&mut Columns { row, next: 0 })
        })
    }

    fn secret(&self, id: &SecretId) -> Result<Option<SecretRow>, StoreError> {
        let sql = select!(
            ", sealed",
            "WHERE name = ?1 AND repository = ?2 AND environment = ?3 AND branch = ?4"
        );
        let values = params![&*id.name, &*id.repository, &*id.environment, &*id.branch];
        rows::one(&self.reader(), sql, values, read)
    }

    fn secrets_for(
        &self,
        names: &[Text],
        place: SecretPlace<'_>,
    ) -> Result<Vec<SecretRow>, StoreError> {
        let sql = select!(
            ", sealed",
            "WHERE name = ?1 AND repository IN ('', ?2) AND environment IN ('', ?3) \
             AND branch IN ('', ?4)"
        );
        let reader = self.reader();
        let mut found = Vec::new();
        for name in names {
            let values = params![&**name, place.repository, place.environment, place.branch];
            found.extend(rows::all(&reader, sql, values, read)?);
        }
        Ok(found)
    }
}

impl SecretTable for SqliteSideTables {
    fn put_secret(&self, row: &SecretRow, instead_of: Option<u64>) -> Result<bool, StoreError> {
        let about = &row.about;
        let sql = match instead_of {
            None => {
                "INSERT INTO secrets (project, name, repository, environment, kind, version, \
                 key_id, created_at, updated_at, updated_by, sealed, branch) \
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?13 WHERE ?12 IS NULL \
                 ON CONFLICT DO NOTHING"
            }
            Some(_) => {
                "UPDATE secrets SET kind = ?5, version = ?6, key_id = ?7, updated_at = ?9, \
                 updated_by = ?10, sealed = ?11 WHERE project = ?1 AND name = ?2 \
                 AND repository = ?3 AND environment = ?4 AND branch = ?13 \
                 AND ?8 IS NOT NULL AND version = ?12"
            }
        };
        let values = params![
            PROJECT,
            &*about.id.name,
            &*about.id.repository,
            &*about.id.environment,
            &*about.kind,
            column::signed(about.version),
            &*about.key,
            about.created_at.0,
            about.updated_at.0,
            &*about.updated_by,
            row.sealed,
            instead_of.map(column::signed),
            &*about.id.branch,
        ];
        let written = self.writer().execute(sql, values).map_err(store_error)?;
        Ok(written > 0)
    }

    fn remove_secret(&self, id: &SecretId) -> Result<bool, StoreError> {
        let sql = "DELETE FROM secrets WHERE name = ?1 AND repository = ?2 AND environment = ?3 \
                   AND branch = ?4";
        let values = params![&*id.name, &*id.repository, &*id.environment, &*id.branch];
        let gone = self.writer().execute(sql, values).map_err(store_error)?;
        Ok(gone > 0)
    }
}

fn about(c: &mut Columns<'_, '_>) -> Result<SecretAbout, StoreError> {
    Ok(SecretAbout {
        id: SecretId {
            name: c.text()?,
            repository: c.text()?,
            branch: c.text()?,
            environment: c.text()?,
        },
        kind: c.text()?,
        version: column::unsigned(c.get()?),
        key: c.text()?,
        created_at: c.millis()?,
        updated_at: c.millis()?,
        updated_by: c.text()?,
    })
}

fn read(row: &Row) -> Result<SecretRow, StoreError> {
    let mut c = Columns { row, next: 0 };
    Ok(SecretRow {
        about: about(&mut c)?,
        sealed: c.bytes(|bytes| Ok(bytes.to_vec()))?,
    })
}
