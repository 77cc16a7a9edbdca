//! Tests that failed by what was printed, where no report tells of them. They are sent so that
//! people see which; they make no summary, explain no exit code and excuse none.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use delta_results::Case;
use delta_shim::order::StepRecord;
use delta_wire::JobSpec;
use delta_wire::agent::proto::TestResult;
use delta_wire::job_spec::CountTests;

use super::dedup::{Id, SentResults};
use super::report_reader;
use super::verdict::wire_status;

/// Where the log is the place in which a job's tests are told of.
pub fn tells(spec: &JobSpec) -> bool {
    spec.count_tests == Some(CountTests::Output)
}

/// The steps, numbered from 1 as in the log, by which the work failed.
pub fn failed_steps(spec: &JobSpec, records: &[StepRecord]) -> HashSet<u64> {
    let failed = records.iter().filter(|it| {
        let step = spec.steps.get(it.index);
        it.exit_code != Some(0) && !step.is_some_and(|step| step.continue_on_error)
    });
    failed.map(|it| it.index as u64 + 1).collect()
}

/// Reads them from the log, in which nothing is that nobody may see, and enters them.
pub fn enter(log: &Path, steps: &HashSet<u64>, book: &SentResults) -> io::Result<()> {
    let log = BufReader::new(File::open(log)?);
    let report = book.report(None, "");
    let mut numbers: HashMap<[u8; 16], u32> = HashMap::new();
    for case in delta_results::printed_failures(log, &|step| steps.contains(&step))? {
        let hash = report_reader::hash(&[b"", case.suite.as_bytes(), case.name.as_bytes()]);
        let count = numbers.entry(hash).or_default();
        let id = Id {
            test: None,
            case: Some(hash),
            n: *count,
        };
        *count += 1;
        let status = case.status;
        book.enter(id, report, status, result(case, id.n));
    }
    Ok(())
}

fn result(case: Case, n: u32) -> TestResult {
    TestResult {
        name: case.name,
        suite: case.suite,
        status: wire_status(case.status).into(),
        duration_ms: -1,
        error_message: case.message.unwrap_or_default(),
        metadata: HashMap::from([("read_from".to_owned(), "output".to_owned())]),
        n,
        ..Default::default()
    }
}
