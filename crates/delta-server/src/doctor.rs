//! What a server's doctor looks at beside events and tables: what the engine says about its own
//! files, and whether the logs, artifacts and caches that are named are where they should be.
//!
//! Reads only. What never came is not missing: that a log is incomplete is said where it is shown.

use std::path::Path;

use delta_core::{Attempt, RunId};
use delta_store::StoreError;
use delta_store::doctor::{self, Integrity, Report};
use delta_store::read::Reader;

use crate::objects::Objects;
use crate::objects::references::lost_artifacts;

/// Objects that are told one by one.
const TOLD: usize = 20;

/// Runs that are read at a time.
const PAGE: usize = 500;

/// What was found.
#[derive(Debug, Default)]
pub struct Findings {
    pub integrity: Integrity,
    pub report: Report,
    pub missing: Missing,
}

/// Objects that are named and not there.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Missing {
    pub count: u64,
    /// The first of them.
    pub told: Vec<String>,
}

impl Missing {
    fn add(&mut self, what: String) {
        self.count += 1;
        if self.told.len() < TOLD {
            self.told.push(what);
        }
    }
}

/// Looks at everything. A database that is too damaged to be read is a finding, not an error.
pub fn examine(reader: &dyn Reader, objects: &Objects) -> Result<Findings, StoreError> {
    let mut findings = Findings {
        integrity: reader.integrity(&mut |_| {})?,
        ..Findings::default()
    };
    match doctor::examine(reader, &mut |_| {}) {
        Ok(report) => findings.report = report,
        Err(StoreError::Corrupt(why)) => findings.integrity.fault(why),
        Err(error) => return Err(error),
    }
    match missing(reader, objects) {
        Ok(missing) => findings.missing = missing,
        Err(StoreError::Corrupt(why)) => findings.integrity.fault(why),
        Err(error) => return Err(error),
    }
    Ok(findings)
}

fn missing(reader: &dyn Reader, objects: &Objects) -> Result<Missing, StoreError> {
    let mut missing = Missing::default();
    let mut after = None;
    loop {
        let page = reader.run_ids(after, PAGE)?;
        for &run in &page {
            of_run(reader, objects, run, &mut missing)?;
        }
        match page.last() {
            Some(last) => after = Some(*last),
            None => break,
        }
    }
    let caches = objects.caches();
    let mut gone = caches.all().map_err(unreadable)?;
    gone.retain(|cache| !is_whole(&caches.bytes_of(cache), cache.meta.size));
    if !gone.is_empty() {
        // One that was removed just now is not named any more.
        let named = caches.all().map_err(unreadable)?;
        gone.retain(|cache| named.iter().any(|it| it.id == cache.id));
    }
    for cache in gone {
        missing.add(format!("cache {} ({})", cache.meta.key, cache.id));
    }
    Ok(missing)
}

fn of_run(
    reader: &dyn Reader,
    objects: &Objects,
    run: RunId,
    missing: &mut Missing,
) -> Result<(), StoreError> {
    let Some(rows) = reader.run(run)? else {
        return Ok(());
    };
    for (job, current) in rows.jobs {
        // Most jobs are tried once: then it is at hand.
        let attempts = match current.id.index {
            1 => vec![current],
            _ => reader.job(job.id)?.map_or(vec![], |rows| rows.attempts),
        };
        for attempt in &attempts {
            of_attempt(objects, attempt, missing);
        }
    }
    Ok(())
}

fn of_attempt(objects: &Objects, attempt: &Attempt, missing: &mut Missing) {
    let Some((report, lease)) = attempt.report.as_ref().zip(attempt.lease.as_ref()) else {
        return;
    };
    let declared = report.log.is_some_and(|(length, _)| length > 0);
    if declared && objects.log_is_lost(attempt.id.lease(lease.epoch)) {
        missing.add(format!("log of {}", attempt.id));
    }
    for upload in lost_artifacts(objects, attempt) {
        missing.add(format!("artifact {upload} of {}", attempt.id));
    }
}

fn is_whole(path: &Path, size: u64) -> bool {
    path.metadata().is_ok_and(|found| found.len() == size)
}

fn unreadable(error: std::io::Error) -> StoreError {
    StoreError::Failing(format!("the folder of logs and artifacts: {error}"))
}
