//! The table of credentials: looked up by hash, written outside any batch, and the one exchange
//! that must happen once.

use delta_core::{Digest, Millis};
use rusqlite::{Connection, Params, TransactionBehavior, named_params, params};

use super::connection::store_error;
use super::reader::SqliteReader;
use super::rows;
use super::side_tables::SqliteSideTables;
use crate::StoreError;
use crate::credential::{Credential, CredentialReader, CredentialTable};

/// The project of credentials, until there are more.
pub(super) const PROJECT: &str = "default";

/// In the order in which a row is read.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT credential_id, name, role, hash, created_at, expires_at, revoked_at, pool, \
             zones, labels, agent, used_at, used_by, reused_at FROM credentials ",
            $rest
        )
    };
}

impl CredentialReader for SqliteReader {
    fn credential(&self, hash: &Digest) -> Result<Option<Credential>, StoreError> {
        let sql = select!("WHERE hash = ?1");
        rows::one(&self.lookup(), sql, [hash], rows::read_credential)
    }

    fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        let sql = select!("ORDER BY credential_id");
        rows::all(&self.reader(), sql, [], rows::read_credential)
    }
}

impl CredentialTable for SqliteSideTables {
    fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        put(&self.writer(), credential)
    }

    fn revoke_credential(&self, id: &str, at: Millis) -> Result<bool, StoreError> {
        let sql = "UPDATE credentials SET revoked_at = coalesce(revoked_at, ?2) \
                   WHERE credential_id = ?1";
        Ok(execute(&self.writer(), sql, params![id, at.0])? > 0)
    }

    fn exchange_enrolment(
        &self,
        id: &str,
        at: Millis,
        fresh: &Credential,
    ) -> Result<bool, StoreError> {
        exchange(&mut self.writer(), id, at, fresh)
    }
}

/// What was revoked or used stays so, whatever is written over it.
fn put(writer: &Connection, credential: &Credential) -> Result<(), StoreError> {
    let sql = "INSERT INTO credentials (credential_id, project, name, role, hash, created_at, \
               expires_at, revoked_at, pool, zones, labels, agent, used_at, used_by, reused_at) \
               VALUES (:id, :project, :name, :role, :hash, :created_at, :expires_at, \
               :revoked_at, :pool, :zones, :labels, :agent, :used_at, :used_by, :reused_at) \
               ON CONFLICT (credential_id) DO UPDATE SET name = excluded.name, \
               role = excluded.role, hash = excluded.hash, created_at = excluded.created_at, \
               expires_at = excluded.expires_at, pool = excluded.pool, zones = excluded.zones, \
               labels = excluded.labels, agent = excluded.agent, \
               revoked_at = coalesce(revoked_at, excluded.revoked_at), \
               used_at = coalesce(used_at, excluded.used_at), \
               used_by = coalesce(used_by, excluded.used_by), \
               reused_at = coalesce(reused_at, excluded.reused_at)";
    let values = named_params! {
        ":id": &*credential.id,
        ":project": PROJECT,
        ":name": &*credential.name,
        ":role": credential.role.name(),
        ":hash": credential.hash,
        ":created_at": credential.created_at.0,
        ":expires_at": credential.expires_at.map(|at| at.0),
        ":revoked_at": credential.revoked_at.map(|at| at.0),
        ":pool": &*credential.scope.pool,
        ":zones": credential.scope.zones_column(),
        ":labels": credential.scope.labels_column(),
        ":agent": credential.agent.as_deref(),
        ":used_at": credential.used_at.map(|at| at.0),
        ":used_by": credential.used_by.as_deref(),
        ":reused_at": credential.reused_at.map(|at| at.0),
    };
    execute(writer, sql, values).map(drop)
}

fn exchange(
    writer: &mut Connection,
    id: &str,
    at: Millis,
    fresh: &Credential,
) -> Result<bool, StoreError> {
    let both = writer
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(store_error)?;
    let sql = "UPDATE credentials SET used_at = ?2, used_by = ?3 WHERE credential_id = ?1 \
               AND role = 'enrolment' AND used_at IS NULL AND revoked_at IS NULL \
               AND (expires_at IS NULL OR expires_at > ?2)";
    let used = execute(&both, sql, params![id, at.0, fresh.agent.as_deref()])? > 0;
    if used {
        put(&both, fresh)?;
    } else {
        let sql = "UPDATE credentials SET reused_at = ?2 WHERE credential_id = ?1 \
                   AND used_at IS NOT NULL";
        execute(&both, sql, params![id, at.0])?;
    }
    both.commit().map_err(store_error)?;
    Ok(used)
}

fn execute(on: &Connection, sql: &str, values: impl Params) -> Result<usize, StoreError> {
    on.execute(sql, values).map_err(store_error)
}
