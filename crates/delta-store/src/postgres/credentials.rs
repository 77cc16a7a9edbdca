//! Credentials of all servers on one database: looked up on connections of their own, and the one
//! exchange that must happen once however many servers are asked for it.

use delta_core::{Digest, Millis};
use tokio_postgres::Row;

use super::connect::Session;
use super::reader::PgReader;
use super::side_tables::PgSideTables;
use super::sql::Sql;
use super::value::{Fields, escape};
use crate::StoreError;
use crate::codec::corrupt;
use crate::credential::{Credential, CredentialReader, CredentialTable, Role, Scope};

impl CredentialReader for PgReader {
    fn credential(&self, hash: &Digest) -> Result<Option<Credential>, StoreError> {
        let hash = hash.as_slice();
        let pool = &self.pools.credentials;
        let found = self.pools.ask(pool, async |session: &Session| {
            session.rows(Sql::Credential, &[&hash]).await
        })?;
        found.first().map(read).transpose()
    }

    fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        let found = self.pools.rows(Sql::Credentials, &[])?;
        found.iter().map(read).collect()
    }
}

impl CredentialTable for PgSideTables {
    fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.with_values(Sql::PutCredential, credential, None)
            .map(drop)
    }

    fn revoke_credential(&self, id: &str, at: Millis) -> Result<bool, StoreError> {
        let id = escape(id);
        Ok(self.execute(Sql::RevokeCredential, &id, at)? > 0)
    }

    // One statement, and one that may be sent again after a broken connection: what it made the
    // first time is found the second time.
    fn exchange_enrolment(
        &self,
        id: &str,
        at: Millis,
        fresh: &Credential,
    ) -> Result<bool, StoreError> {
        let id = escape(id);
        let found = self.with_values(Sql::ExchangeEnrolment, fresh, Some((&id, at)))?;
        let done = found
            .first()
            .map(|row| row.try_get(0))
            .transpose()
            .map_err(|e| corrupt("an exchange", e))?;
        if done == Some(true) {
            return Ok(true);
        }
        self.execute(Sql::NoteReuse, &id, at)?;
        Ok(false)
    }
}

impl PgSideTables {
    fn execute(&self, sql: Sql, id: &str, at: Millis) -> Result<u64, StoreError> {
        self.pools
            .ask(&self.pools.pages, async |session: &Session| {
                let statement = session.statement(sql);
                session.client.execute(statement, &[&id, &at.0]).await
            })
    }

    fn with_values(
        &self,
        sql: Sql,
        credential: &Credential,
        enrolment: Option<(&str, Millis)>,
    ) -> Result<Vec<Row>, StoreError> {
        let millis = |at: Option<Millis>| at.map(|at| at.0);
        let (id, name) = (escape(&credential.id), escape(&credential.name));
        let Scope { pool, .. } = &credential.scope;
        let zones = credential.scope.zones_column();
        let labels = credential.scope.labels_column();
        let agent = credential.agent.as_deref().map(escape);
        let used_by = credential.used_by.as_deref().map(escape);
        let (hash, role) = (credential.hash.as_slice(), credential.role.name());
        let (expires, revoked) = (millis(credential.expires_at), millis(credential.revoked_at));
        let (used, reused) = (millis(credential.used_at), millis(credential.reused_at));
        let pool = escape(pool);
        let mut values: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> = vec![
            &id,
            &name,
            &role,
            &hash,
            &credential.created_at.0,
            &expires,
            &revoked,
            &pool,
            &zones,
            &labels,
            &agent,
            &used,
            &used_by,
            &reused,
        ];
        if let Some((id, at)) = &enrolment {
            values.push(id);
            values.push(&at.0);
        }
        self.pools.rows(sql, &values)
    }
}

fn read(row: &Row) -> Result<Credential, StoreError> {
    let mut fields = Fields::of(row);
    let (id, name) = (fields.text()?, fields.text()?);
    let role = fields.plain()?;
    Ok(Credential {
        id,
        name,
        role: Role::from_name(role)
            .ok_or_else(|| corrupt("a credential", format!("unknown role `{role}`")))?,
        hash: fields.digest()?,
        created_at: fields.millis()?,
        expires_at: fields.opt_millis()?,
        revoked_at: fields.opt_millis()?,
        scope: Scope::from_columns(fields.text()?, fields.plain()?, fields.plain()?),
        agent: fields.opt_text()?,
        used_at: fields.opt_millis()?,
        used_by: fields.opt_text()?,
        reused_at: fields.opt_millis()?,
    })
}
