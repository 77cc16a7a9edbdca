//! Whether tests are why an attempt failed. A step that fails by itself, after tests that failed in
//! another one, has a reason of its own; called flaky it would be tried again for nothing.

use std::collections::HashSet;

use delta_shim::order::StepRecord;
use delta_wire::{JobSpec, Millis};

use super::dedup::Unhappy;

/// Whether each step that failed has reported a failed test itself.
pub fn failed_by_tests(spec: &JobSpec, records: &[StepRecord], unhappy: &HashSet<Unhappy>) -> bool {
    let counts = |it: &&StepRecord| {
        let step = spec.steps.get(it.index);
        it.exit_code != Some(0) && !step.is_some_and(|step| step.continue_on_error)
    };
    let first = records.first().map(|it| it.index);
    records.iter().filter(counts).all(|it| {
        let is_first = first == Some(it.index);
        unhappy.iter().any(|by| is_by(it, is_first, *by))
    })
}

/// Whether this step has reported it. File systems note times a few milliseconds early, so that
/// what was written just before a step began is never taken for its own; the first step has none
/// before it.
fn is_by(step: &StepRecord, is_first: bool, by: Unhappy) -> bool {
    let written = match by {
        Unhappy::Test(test) => return u32::try_from(step.index) == Ok(test),
        Unhappy::Report(written) => written,
    };
    let Some(Millis(began)) = Millis::from_rfc3339(&step.started_at) else {
        return false;
    };
    // Both are cut to milliseconds.
    let took = i64::try_from(step.took.as_millis()).unwrap_or(i64::MAX / 2);
    let ended = began.saturating_add(took).saturating_add(1);
    match (is_first, written) {
        (true, written) => written.is_none_or(|at| at <= ended),
        (false, written) => written.is_some_and(|at| at > began && at <= ended),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BEGAN: i64 = 1_767_225_600_000;

    /// A step that ran for a second, the `index`th second of the attempt.
    fn step(index: usize, exit_code: i32) -> StepRecord {
        let began = BEGAN + 1000 * i64::try_from(index).unwrap();
        StepRecord {
            index,
            started_at: Millis(began).to_rfc3339(),
            took: Duration::from_secs(1),
            exit_code: Some(exit_code),
            signal: None,
            timed_out: false,
            report_lost: None,
            report_lost_cause: None,
        }
    }

    fn judged(spec: &str, steps: &[StepRecord], unhappy: &[Unhappy]) -> bool {
        let spec = JobSpec::parse(spec.as_bytes()).unwrap();
        failed_by_tests(&spec, steps, &unhappy.iter().copied().collect())
    }

    // D10
    #[test]
    fn a_step_that_fails_by_itself_is_not_excused_by_tests_of_another() {
        let spec = r#"{"steps":["test","lint",{"run":"tidy","continue_on_error":true}]}"#;
        let at = |millis| Unhappy::Report(Some(BEGAN + millis));
        // The tests failed the step that ran them.
        assert!(judged(spec, &[step(0, 1)], &[at(900)]));
        assert!(judged(spec, &[step(0, 0), step(1, 1)], &[at(1500)]));
        // They ran in a step that succeeded, to its very end.
        for written in [500, 999, 1000] {
            assert!(!judged(spec, &[step(0, 0), step(1, 4)], &[at(written)]));
        }
        // Both failed, and one has a reason of its own.
        assert!(!judged(spec, &[step(0, 1), step(1, 4)], &[at(500)]));
        assert!(judged(
            spec,
            &[step(0, 1), step(1, 4)],
            &[at(500), at(1500)]
        ));
        // Whoever writes a report afterwards does not explain what was before.
        assert!(!judged(spec, &[step(0, 1), step(1, 0)], &[at(1500)]));
        assert!(judged(spec, &[step(0, 1), step(2, 1)], &[at(500)]));
        assert!(!judged(
            spec,
            &[step(0, 0), step(1, 1)],
            &[Unhappy::Report(None)]
        ));
    }

    #[test]
    fn tests_that_are_the_work_answer_for_themselves() {
        let test = |id: &str| format!(r#"{{"test_id":"{id}","execution":{{"command":"x"}}}}"#);
        let spec = format!(r#"{{"tests":[{},{}]}}"#, test("a"), test("b"));
        let (a, b) = (Unhappy::Test(0), Unhappy::Test(1));
        assert!(judged(&spec, &[step(0, 1), step(1, 0)], &[a]));
        assert!(judged(&spec, &[step(0, 0), step(1, 0)], &[b]));
        assert!(!judged(&spec, &[step(0, 1), step(1, 4)], &[a]));
    }
}
