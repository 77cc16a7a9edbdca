//! How tests stand, from what is stored of them: *flaky* ones passed and failed on the same commit,
//! *broken* ones only fail. Found out when it is asked for; nothing of it is kept.

use delta_core::command::Status;
use delta_core::run::RunHeader;
use delta_core::{Cause, Command, LeaseKey};
use delta_store::StoreError;
use delta_store::read::Reader;
use delta_store::results::{PastResult, ResultQuery, ResultStatus, StoredResult, TestQuery};
use delta_wire::api::TestVerdict;

/// Results of one test that a verdict looks at: months of a busy branch.
pub const LOOKED_AT: usize = 200;
/// Failures of one attempt that may all be flaky. With more of them something is broken, and each
/// is a query of its own.
const MAX_FLAKY: usize = 20;

/// What the past of a test says of its failure.
pub fn judge(
    reader: &dyn Reader,
    header: &RunHeader,
    failure: &StoredResult,
) -> Result<Option<TestVerdict>, StoreError> {
    let query = TestQuery {
        name: failure.row.name.clone(),
        suite: Some(failure.row.suite.clone()),
        repository: header.repository.clone(),
        before: None,
    };
    let mut past = reader.test_history(&query, LOOKED_AT)?;
    past.retain(|it| it.repository == header.repository);
    let run = failure.lease.attempt.run();
    let here = |it: &&PastResult| {
        let commit = it.commit.is_some() && it.commit == header.commit;
        commit || it.lease.attempt.run() == run
    };
    if is_flaky(past.iter().filter(here)) {
        return Ok(Some(TestVerdict::Flaky));
    }
    Ok(is_broken(past.iter()).then_some(TestVerdict::Broken))
}

/// Results of one source: it passed, and it failed.
pub fn is_flaky<'a>(results: impl Iterator<Item = &'a PastResult> + Clone) -> bool {
    let mut passed = results.clone();
    let mut failed = results;
    passed.any(|it| it.status == ResultStatus::Pass) && failed.any(|it| it.status.is_unhappy())
}

/// It failed, be it once, and never passed.
pub fn is_broken<'a>(results: impl Iterator<Item = &'a PastResult> + Clone) -> bool {
    let mut passed = results.clone();
    let mut failed = results;
    failed.any(|it| it.status.is_unhappy()) && !passed.any(|it| it.status == ResultStatus::Pass)
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

/// Every test that failed under this lease is known to pass on the same commit, and some did fail
/// (A57).
pub fn only_flaky_failed(reader: &dyn Reader, lease: LeaseKey) -> Result<bool, StoreError> {
    let counts = reader.lease_results(lease)?.counts;
    let failed = usize::try_from(counts.failed + counts.errors).unwrap_or(usize::MAX);
    if failed == 0 || failed > MAX_FLAKY {
        return Ok(false);
    }
    let Some(rows) = reader.job(lease.attempt.job)? else {
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
        if judge(reader, &rows.run.header, &failure)? != Some(TestVerdict::Flaky) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The same result with what the server knows better.
pub fn call_flaky(command: &mut Command) {
    if may_be_flaky(command)
        && let Command::Complete { cause, .. } = command
    {
        *cause = Some(Cause::Flaky);
    }
}
