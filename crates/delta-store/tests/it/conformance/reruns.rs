//! Runs that were run again: found from the old one, with what they keep of it.

use delta_core::command::Kept;
use delta_core::run::RunHeader;
use delta_core::{AttemptState, Resolution, RunState};
use delta_store::read::RunFilter;

use super::Fixture;
use super::bench::{Bench, header, new_job, policy, run_id};

pub fn reruns_are_found_from_the_run_they_repeat(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let again = |of| RunHeader {
        rerun_of: Some(run_id(of)),
        ..header()
    };
    let jobs = || vec![new_job("unit", policy("linux"))];
    bench.create_with(1, header(), jobs());
    bench.create_with(2, again(1), jobs());
    bench.create_with(3, again(2), jobs());
    bench.create_with(4, again(1), jobs());
    let bench = bench.reopen();
    for (old, new) in [(1, vec![4, 2]), (2, vec![3]), (3, vec![])] {
        let filter = RunFilter {
            rerun_of: Some(run_id(old)),
            ..RunFilter::default()
        };
        let found = bench.reader.runs(&filter, 9).expect("the store answers");
        let new: Vec<_> = new.into_iter().map(run_id).collect();
        assert_eq!(found.iter().map(|it| it.id).collect::<Vec<_>>(), new);
    }
}

pub fn kept_jobs_have_ended_and_say_whose_result_they_have(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let mut lint = new_job("lint", policy("linux"));
    lint.kept = Some(Kept {
        job: run_id(1).job(1),
        resolution: Resolution::Succeeded,
        cause: None,
    });
    let mut unit = new_job("unit", policy("linux"));
    unit.policy.needs = vec![1];
    let run = bench.create_with(2, header(), vec![lint, unit]);
    let mut bench = bench.reopen();
    let rows = bench.reader.run(run).unwrap().unwrap();
    let (kept, attempt) = &rows.jobs[0];
    assert_eq!(kept.kept, Some(run_id(1).job(1)));
    assert_eq!(kept.resolution, Some(Resolution::Succeeded));
    assert_eq!(attempt.state, AttemptState::Succeeded);
    assert_eq!(rows.jobs[1].0.kept, None);
    assert_eq!(
        bench.work_off("r1", &["linux"]),
        Some(run.job(2).attempt(1))
    );
    assert_eq!(bench.work_off("r1", &["linux"]), None);
    assert_eq!(bench.run(run).outcome, Some(RunState::Success));
}
