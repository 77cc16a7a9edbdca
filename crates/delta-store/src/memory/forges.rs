//! Repositories, reports and approvals in memory.

use delta_core::{Millis, RunId, Text};

use super::reader::MemoryReader;
use super::side_tables::MemorySideTables;
use crate::StoreError;
use crate::forges::{Approval, ForgeReader, ForgeTables, ReportRow, RepositoryRow, stage_of};

impl ForgeReader for MemoryReader {
    fn repositories(&self) -> Result<Vec<RepositoryRow>, StoreError> {
        Ok(self.tables().repositories.values().cloned().collect())
    }

    fn repository(&self, name: &str) -> Result<Option<RepositoryRow>, StoreError> {
        Ok(self.tables().repositories.get(name).cloned())
    }

    fn reports_due(&self, now: Millis, limit: usize) -> Result<Vec<ReportRow>, StoreError> {
        let tables = self.tables();
        let told = |row: &&ReportRow| {
            let run = tables.runs.get(&row.run);
            run.is_none_or(|run| row.stage >= stage_of(run))
        };
        let rows = tables.reports.values();
        let mut due: Vec<ReportRow> = rows
            .filter(|row| row.next_at <= now && !told(row))
            .cloned()
            .collect();
        due.sort_by_key(|row| (row.next_at, row.run));
        due.truncate(limit);
        Ok(due)
    }

    fn report(&self, run: RunId) -> Result<Option<ReportRow>, StoreError> {
        Ok(self.tables().reports.get(&run).cloned())
    }

    fn approval(&self, run: RunId) -> Result<Option<Approval>, StoreError> {
        Ok(self.tables().approvals.get(&run).cloned())
    }

    fn plan(&self, run: RunId) -> Result<Option<Text>, StoreError> {
        Ok(self.tables().plans.get(&run).cloned())
    }
}

impl ForgeTables for MemorySideTables {
    fn put_repository(
        &self,
        row: &RepositoryRow,
        instead_of: Option<u64>,
    ) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        let there = tables.repositories.get(&row.name);
        if there.map(|there| there.version) != instead_of {
            return Ok(false);
        }
        let mut row = row.clone();
        if let Some(there) = there {
            row.created_at = there.created_at;
        }
        tables.repositories.insert(row.name.clone(), row);
        Ok(true)
    }

    fn remove_repository(&self, name: &str) -> Result<bool, StoreError> {
        Ok(self.tables().repositories.remove(name).is_some())
    }

    fn take_report(&self, seen: &ReportRow, until: Millis) -> Result<bool, StoreError> {
        let mut tables = self.tables();
        let Some(row) = tables.reports.get_mut(&seen.run).filter(|row| *row == seen) else {
            return Ok(false);
        };
        row.tries += 1;
        row.next_at = until;
        Ok(true)
    }

    fn put_report(&self, row: &ReportRow) -> Result<(), StoreError> {
        if let Some(there) = self.tables().reports.get_mut(&row.run) {
            *there = row.clone();
        }
        Ok(())
    }

    fn remove_report(&self, run: RunId) -> Result<(), StoreError> {
        self.tables().reports.remove(&run);
        Ok(())
    }

    fn approve(&self, run: RunId, approval: &Approval) -> Result<(), StoreError> {
        let mut tables = self.tables();
        let there = tables.approvals.entry(run);
        there.or_insert_with(|| approval.clone());
        Ok(())
    }

    fn put_plan(&self, run: RunId, text: &str) -> Result<(), StoreError> {
        self.tables().plans.insert(run, text.into());
        Ok(())
    }
}
