//! Secrets in PostgreSQL. A statement may be sent
//! again after a broken connection: what it wrote the first time counts as written by it.

use delta_core::Text;
use tokio_postgres::Row;

use super::reader::PgReader;
use super::side_tables::PgSideTables;
use super::sql::Sql;
use super::value::{Fields, escape};
use crate::StoreError;
use crate::secrets::{SecretAbout, SecretId, SecretPlace, SecretReader, SecretRow, SecretTable};

impl SecretReader for PgReader {
    fn secrets(&self) -> Result<Vec<SecretAbout>, StoreError> {
        let found = self.pools.rows(Sql::Secrets, &[])?;
        found
            .iter()
            .map(|row| about(&mut Fields::of(row)))
            .collect()
    }

    fn secret(&self, id: &SecretId) -> Result<Option<SecretRow>, StoreError> {
        let found = self.pools.rows(
            Sql::Secret,
            &[
                &escape(&id.name),
                &escape(&id.repository),
                &escape(&id.environment),
                &escape(&id.branch),
            ],
        )?;
        found.first().map(read).transpose()
    }

    fn secrets_for(
        &self,
        names: &[Text],
        place: SecretPlace<'_>,
    ) -> Result<Vec<SecretRow>, StoreError> {
        let names: Vec<String> = names.iter().map(|name| escape(name).into_owned()).collect();
        let found = self.pools.rows(
            Sql::SecretsFor,
            &[
                &names,
                &escape(place.repository),
                &escape(place.environment),
                &escape(place.branch),
            ],
        )?;
        found.iter().map(read).collect()
    }
}

impl SecretTable for PgSideTables {
    fn put_secret(&self, row: &SecretRow, instead_of: Option<u64>) -> Result<bool, StoreError> {
        let about = &row.about;
        let (name, repository) = (escape(&about.id.name), escape(&about.id.repository));
        let (environment, by) = (escape(&about.id.environment), escape(&about.updated_by));
        let branch = escape(&about.id.branch);
        let (kind, key) = (&*about.kind, &*about.key);
        let version = about.version.cast_signed();
        let sealed = row.sealed.as_slice();
        let written = match instead_of {
            None => self.pools.rows(
                Sql::NewSecret,
                &[
                    &name,
                    &repository,
                    &environment,
                    &kind,
                    &version,
                    &key,
                    &about.updated_at.0,
                    &by,
                    &sealed,
                    &about.created_at.0,
                    &branch,
                ],
            ),
            Some(old) => self.pools.rows(
                Sql::ReplaceSecret,
                &[
                    &name,
                    &repository,
                    &environment,
                    &kind,
                    &version,
                    &key,
                    &about.updated_at.0,
                    &by,
                    &sealed,
                    &old.cast_signed(),
                    &branch,
                ],
            ),
        };
        Ok(!written?.is_empty())
    }

    fn remove_secret(&self, id: &SecretId) -> Result<bool, StoreError> {
        let gone = self.pools.rows(
            Sql::RemoveSecret,
            &[
                &escape(&id.name),
                &escape(&id.repository),
                &escape(&id.environment),
                &escape(&id.branch),
            ],
        )?;
        Ok(!gone.is_empty())
    }
}

/// The statements.
pub(super) fn text(sql: Sql) -> &'static str {
    macro_rules! about {
        () => {
            "name, repository, branch, environment, kind, version, key_id, created_at, updated_at, \
             updated_by"
        };
    }
    match sql {
        Sql::Secrets => concat!(
            "SELECT ",
            about!(),
            " FROM secrets ORDER BY name, repository, branch, environment"
        ),
        Sql::Secret => concat!(
            "SELECT ",
            about!(),
            ", sealed FROM secrets WHERE project = 'default' AND name = $1 AND repository = $2 \
             AND environment = $3 AND branch = $4"
        ),
        Sql::SecretsFor => concat!(
            "SELECT ",
            about!(),
            ", sealed FROM secrets WHERE project = 'default' AND name = ANY ($1) \
             AND repository IN ('', $2) AND environment IN ('', $3) AND branch IN ('', $4)"
        ),
        Sql::NewSecret => {
            "INSERT INTO secrets AS s (project, name, repository, environment, kind, version, \
             key_id, updated_at, updated_by, sealed, created_at, branch) \
             VALUES ('default', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
             ON CONFLICT (project, name, repository, branch, environment) DO UPDATE \
             SET version = s.version WHERE s.version = excluded.version \
             AND s.sealed = excluded.sealed RETURNING name"
        }
        Sql::ReplaceSecret => {
            "UPDATE secrets SET kind = $4, version = $5, key_id = $6, updated_at = $7, \
             updated_by = $8, sealed = $9 WHERE project = 'default' AND name = $1 \
             AND repository = $2 AND environment = $3 AND branch = $11 \
             AND (version = $10 OR (version = $5 AND sealed = $9)) RETURNING name"
        }
        Sql::RemoveSecret => {
            "DELETE FROM secrets WHERE project = 'default' AND name = $1 AND repository = $2 \
             AND environment = $3 AND branch = $4 RETURNING name"
        }
        other => unreachable!("{other:?} is not about secrets"),
    }
}

fn about(fields: &mut Fields<'_>) -> Result<SecretAbout, StoreError> {
    Ok(SecretAbout {
        id: SecretId {
            name: fields.text()?,
            repository: fields.text()?,
            branch: fields.text()?,
            environment: fields.text()?,
        },
        kind: fields.text()?,
        version: fields.unsigned()?,
        key: fields.text()?,
        created_at: fields.millis()?,
        updated_at: fields.millis()?,
        updated_by: fields.text()?,
    })
}

fn read(row: &Row) -> Result<SecretRow, StoreError> {
    let mut fields = Fields::of(row);
    Ok(SecretRow {
        about: about(&mut fields)?,
        sealed: fields.bytes()?.to_vec(),
    })
}
