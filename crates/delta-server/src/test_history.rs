//! How tests stand, from what is stored of them: *flaky* ones passed and failed on the same commit,
//! *broken* ones only fail. Found out when it is asked for; nothing of it is kept.

use std::collections::HashMap;

use delta_core::command::Status;
use delta_core::run::RunHeader;
use delta_core::{Cause, Command, LeaseKey};
use delta_store::StoreError;
use delta_store::read::{JobRows, Reader};
use delta_store::results::{
    PastResult, RETRIED, ResultQuery, ResultRow, ResultStatus, StoredResult, TestQuery,
};
use delta_wire::api::TestVerdict;

/// Results of one test that a verdict looks at: months of a busy branch.
pub const LOOKED_AT: usize = 200;
/// Failures of one attempt that may all be flaky. With more of them something is broken, and each
/// is a query of its own.
const MAX_FLAKY: usize = 20;

/// What the past of a test says of its failure. The same test in another job is another one: what
/// passes on one system may well fail on the next.
pub fn judge(
    reader: &dyn Reader,
    header: &RunHeader,
    job: &str,
    failure: &StoredResult,
) -> Result<Option<TestVerdict>, StoreError> {
    let past = past(reader, header, job, failure)?;
    let here = |it: &&PastResult| is_same_source(it, header, failure);
    if is_flaky(past.iter().filter(here)) {
        return Ok(Some(TestVerdict::Flaky));
    }
    Ok(is_broken(past.iter()).then_some(TestVerdict::Broken))
}

/// Results of this very test, newest first.
fn past(
    reader: &dyn Reader,
    header: &RunHeader,
    job: &str,
    failure: &StoredResult,
) -> Result<Vec<PastResult>, StoreError> {
    let query = TestQuery {
        name: failure.row.name.clone(),
        suite: Some(failure.row.suite.clone()),
        repository: header.repository.clone(),
        before: None,
    };
    let mut past = reader.test_history(&query, LOOKED_AT)?;
    past.retain(|it| {
        it.repository == header.repository && it.key == failure.row.key && &*it.job == job
    });
    Ok(past)
}

/// Of the same commit, or, where there is none, of the same run.
fn is_same_source(it: &PastResult, header: &RunHeader, failure: &StoredResult) -> bool {
    let commit = it.commit.is_some() && it.commit == header.commit;
    commit || it.lease.attempt.run() == failure.lease.attempt.run()
}

/// Results of one source: some test among them passed, and failed.
pub fn is_flaky<'a>(results: impl Iterator<Item = &'a PastResult>) -> bool {
    seen(results).any(|it| it == (true, true))
}

/// Some test among them failed, be it once, and never passed.
pub fn is_broken<'a>(results: impl Iterator<Item = &'a PastResult>) -> bool {
    seen(results).any(|it| it == (false, true))
}

/// Whether each test passed, and failed. The same one in another job is another one. One that
/// passed when its tool tried it again did both. Of one that was read from what its tool printed
/// nobody knows when it passes.
fn seen<'a>(results: impl Iterator<Item = &'a PastResult>) -> impl Iterator<Item = (bool, bool)> {
    let mut seen: HashMap<([u8; 16], &str), (bool, bool)> = HashMap::new();
    for it in results.filter(|it| !it.printed) {
        let (passed, failed) = seen.entry((it.key, &*it.job)).or_default();
        let passes = it.status == ResultStatus::Pass;
        *passed |= passes;
        *failed |= it.status.is_unhappy() || (passes && it.retried);
    }
    seen.into_values()
}

/// It passed when its tool tried it again.
pub fn passed_again(row: &ResultRow) -> bool {
    let metadata = row.metadata.as_deref();
    row.status == ResultStatus::Pass && metadata.is_some_and(|it| it.contains(RETRIED))
}

/// Whether a result may be one of flaky tests alone: work that failed by itself, and nobody says
/// better why.
pub fn may_be_flaky(command: &Command) -> bool {
    matches!(
        command,
        Command::Complete {
            status: Status::Failed,
            cause: None | Some(Cause::UserExit),
            ..
        }
    )
}

/// Every test that failed under this lease is known to pass in the same job on the same commit, and
/// some did fail (A57).
pub fn only_flaky_failed(reader: &dyn Reader, lease: LeaseKey) -> Result<bool, StoreError> {
    let known = reader.lease_results(lease)?;
    let failed = known.counts.failed + known.counts.errors;
    let failed = usize::try_from(failed).unwrap_or(usize::MAX);
    let dropped = known.claim.is_some_and(|claim| claim.dropped > 0);
    if failed == 0 || failed > MAX_FLAKY || dropped {
        return Ok(false);
    }
    let Some(job) = reader.job(lease.attempt.job)? else {
        return Ok(false);
    };
    let query = ResultQuery {
        run: lease.attempt.run(),
        job: Some(lease.attempt.job.n),
        attempt: Some(lease.attempt.index),
        only: vec![ResultStatus::Fail, ResultStatus::Error],
        after: None,
    };
    for failure in reader.results(&query, MAX_FLAKY)? {
        if !passes_elsewhere(reader, &job, &failure)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether another lease of the same job saw it pass. What strangers report decides nothing for a
/// run that is trusted.
fn passes_elsewhere(
    reader: &dyn Reader,
    job: &JobRows,
    failure: &StoredResult,
) -> Result<bool, StoreError> {
    let header = &job.run.header;
    let past = past(reader, header, &job.job.name, failure)?;
    let passed = past.iter().filter(|it| {
        it.status == ResultStatus::Pass
            && it.lease != failure.lease
            && is_same_source(it, header, failure)
    });
    for it in passed.take(MAX_FLAKY) {
        let Some(other) = reader.job(it.lease.attempt.job)? else {
            continue;
        };
        let trusted = other.run.header.trusted || !header.trusted;
        if trusted {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Changes a result into that of a flaky test: the server knows of a try that passed.
pub fn call_flaky(command: &mut Command) {
    if may_be_flaky(command)
        && let Command::Complete { cause, .. } = command
    {
        *cause = Some(Cause::Flaky);
    }
}
