//! Secrets in memory.

use delta_core::Text;

use super::reader::MemoryReader;
use super::side_tables::MemorySideTables;
use crate::StoreError;
use crate::secrets::{SecretAbout, SecretId, SecretPlace, SecretReader, SecretRow, SecretTable};

impl SecretReader for MemoryReader {
    fn secrets(&self) -> Result<Vec<SecretAbout>, StoreError> {
        let tables = self.tables();
        let rows = tables.secrets.values();
        Ok(rows.map(|row| row.about.clone()).collect())
    }

    fn secret(&self, id: &SecretId) -> Result<Option<SecretRow>, StoreError> {
        Ok(self.tables().secrets.get(id).cloned())
    }

    fn secrets_for(
        &self,
        names: &[Text],
        place: SecretPlace<'_>,
    ) -> Result<Vec<SecretRow>, StoreError> {
        let good_for = |scope: &Text, wanted: &str| scope.is_empty() || **scope == *wanted;
        let tables = self.tables();
        let rows = tables.secrets.iter().filter(|(id, _)| {
            names.contains(&id.name)
                && good_for(&id.repository, place.repository)
                && good_for(&id.branch, place.branch)
                && good_for(&id.environment, place.environment)
        });
        Ok(rows.map(|(_, row)| row.clone()).collect())
    }
}

impl SecretTable for MemorySideTables {
    fn put_secret(&self, row: &SecretRow, instead_of: Option<u64>) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        let there = tables.secrets.get(&row.about.id);
        if there.map(|there| there.about.version) != instead_of {
            return Ok(false);
        }
        let mut row = row.clone();
        if let Some(there) = there {
            row.about.created_at = there.about.created_at;
        }
        tables.secrets.insert(row.about.id.clone(), row);
        Ok(true)
    }

    fn remove_secret(&self, id: &SecretId) -> Result<bool, StoreError> {
        Ok(self.tables().secrets.remove(id).is_some())
    }
}
