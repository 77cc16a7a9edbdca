//! Credentials in memory.

use delta_core::{Digest, Millis};

use super::reader::MemoryReader;
use super::side_tables::MemorySideTables;
use crate::StoreError;
use crate::credential::{Credential, CredentialReader, CredentialTable};

impl CredentialReader for MemoryReader {
    fn credential(&self, hash: &Digest) -> Result<Option<Credential>, StoreError> {
        let tables = self.tables();
        let found = tables.credentials.values().find(|c| c.hash == *hash);
        Ok(found.cloned())
    }

    fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        Ok(self.tables().credentials.values().cloned().collect())
    }
}

impl CredentialTable for MemorySideTables {
    fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        let mut tables = self.tables();
        let mut row = credential.clone();
        if let Some(before) = tables.credentials.get(&credential.id) {
            row.revoked_at = before.revoked_at.or(row.revoked_at);
            row.used_at = before.used_at.or(row.used_at);
            row.used_by = before.used_by.clone().or(row.used_by);
            row.reused_at = before.reused_at.or(row.reused_at);
        }
        tables.credentials.insert(row.id.clone(), row);
        Ok(())
    }

    fn revoke_credential(&self, id: &str, at: Millis) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        let Some(credential) = tables.credentials.get_mut(id) else {
            return Ok(false);
        };
        credential.revoked_at.get_or_insert(at);
        Ok(true)
    }

    fn exchange_enrolment(
        &self,
        id: &str,
        at: Millis,
        fresh: &Credential,
    ) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        let Some(enrolment) = tables.credentials.get_mut(id) else {
            return Ok(false);
        };
        if !enrolment.may_enrol(at) {
            if enrolment.used_at.is_some() {
                enrolment.reused_at = Some(at);
            }
            return Ok(false);
        }
        enrolment.used_at = Some(at);
        enrolment.used_by = fresh.agent.clone();
        tables.credentials.insert(fresh.id.clone(), fresh.clone());
        Ok(true)
    }
}
