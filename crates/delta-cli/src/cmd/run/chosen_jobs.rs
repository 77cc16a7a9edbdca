//! Which jobs of a plan run here: all of them, one with what it needs, or one with what waits for
//! it. Pure; what is taken as passed is handed back, so that it can be said.

use std::collections::{BTreeSet, HashMap};

use delta_planner::{Pipeline, Plan, PlannedJob};
use delta_wire::nearest::nearest;
use serde_json::Value;

use crate::exit::Exit;
use crate::failure::Failure;

/// Names that an error lists: beyond it nobody reads them.
const MAX_LISTED: usize = 20;

/// The jobs that run, and what was assumed for it.
#[derive(Debug)]
pub struct Chosen {
    pub pipeline: Pipeline,
    /// Jobs before it, in the order of the plan: they do not run and count as passed.
    pub taken_as_passed: Vec<String>,
    /// Jobs that go without the artifacts of one of those: (job, of which).
    pub without: Vec<(String, String)>,
}

/// Everything, or only these jobs and all they need.
pub fn jobs(plan: &Plan, names: &[String]) -> Result<Chosen, Failure> {
    let mut wanted = BTreeSet::new();
    let graph = Graph::of(plan);
    for name in names {
        wanted.extend(find(plan, name)?);
    }
    graph.close(&mut wanted, &graph.needs);
    let mut pipeline = plan.to_pipeline();
    if !names.is_empty() {
        keep(&mut pipeline, &wanted);
    }
    Ok(Chosen {
        pipeline,
        taken_as_passed: Vec::new(),
        without: Vec::new(),
    })
}

/// A job and everything that waits for it. What comes before is taken as passed.
pub fn from(plan: &Plan, name: &str) -> Result<Chosen, Failure> {
    let graph = Graph::of(plan);
    let mut wanted: BTreeSet<usize> = find(plan, name)?.into_iter().collect();
    graph.close(&mut wanted, &graph.waiting);
    let mut before = wanted.clone();
    graph.close(&mut before, &graph.needs);
    let name_of = |at: &usize| plan.jobs[*at].job.name.clone();
    let taken_as_passed: Vec<String> = before.difference(&wanted).map(name_of).collect();
    let mut pipeline = plan.to_pipeline();
    keep(&mut pipeline, &wanted);
    let mut without = Vec::new();
    for job in &mut pipeline.jobs {
        job.needs.retain(|need| !taken_as_passed.contains(need));
        let gone = leave_inputs(job, &taken_as_passed);
        without.extend(gone.into_iter().map(|of| (job.name.clone(), of)));
    }
    Ok(Chosen {
        pipeline,
        taken_as_passed,
        without,
    })
}

fn keep(pipeline: &mut Pipeline, wanted: &BTreeSet<usize>) {
    let jobs = std::mem::take(&mut pipeline.jobs).into_iter().enumerate();
    let kept = jobs.filter(|(at, _)| wanted.contains(at));
    pipeline.jobs = kept.map(|(_, job)| job).collect();
}

/// Takes away inputs of jobs that do not run: nobody has them. Says of which.
fn leave_inputs(job: &mut PlannedJob, passed: &[String]) -> BTreeSet<String> {
    let mut gone = BTreeSet::new();
    let Some(Value::Array(inputs)) = job.around.get_mut("inputs") else {
        return gone;
    };
    inputs.retain(|input| {
        let of = input["job"].as_str().unwrap_or_default();
        let there = !passed.iter().any(|it| it == of);
        if !there {
            gone.insert(of.to_owned());
        }
        there
    });
    if inputs.is_empty() {
        job.around.remove("inputs");
    }
    gone
}

/// Who needs whom, by places in the plan.
struct Graph {
    needs: Vec<Vec<usize>>,
    waiting: Vec<Vec<usize>>,
}

impl Graph {
    fn of(plan: &Plan) -> Graph {
        let named = plan.jobs.iter().enumerate();
        let index: HashMap<&str, usize> = named
            .map(|(at, included)| (included.job.name.as_str(), at))
            .collect();
        let mut graph = Graph {
            needs: vec![Vec::new(); plan.jobs.len()],
            waiting: vec![Vec::new(); plan.jobs.len()],
        };
        for (at, included) in plan.jobs.iter().enumerate() {
            let needs = included.job.needs.iter();
            for &need in needs.filter_map(|need| index.get(need.as_str())) {
                graph.needs[at].push(need);
                graph.waiting[need].push(at);
            }
        }
        graph
    }

    /// Adds everything that can be reached.
    fn close(&self, wanted: &mut BTreeSet<usize>, edges: &[Vec<usize>]) {
        let mut open: Vec<usize> = wanted.iter().copied().collect();
        while let Some(at) = open.pop() {
            let more = edges[at].iter().copied();
            open.extend(more.filter(|it| wanted.insert(*it)));
        }
    }
}

/// The places of the job of this name: several where it is a matrix and no cell of it is named.
fn find(plan: &Plan, name: &str) -> Result<Vec<usize>, Failure> {
    let places = |fits: &dyn Fn(&PlannedJob) -> bool| -> Vec<usize> {
        let jobs = plan.jobs.iter().enumerate();
        jobs.filter(|(_, it)| fits(&it.job))
            .map(|(at, _)| at)
            .collect()
    };
    let exact = places(&|job| job.name == name);
    if !exact.is_empty() {
        return Ok(exact);
    }
    let cells = places(&|job| base(job) == name);
    if cells.is_empty() {
        Err(not_there(plan, name))
    } else {
        Ok(cells)
    }
}

/// The name of a job in the file, whichever cell it is.
fn base(job: &PlannedJob) -> &str {
    job.cell.as_ref().map_or(&job.name, |cell| &cell.job)
}

fn not_there(plan: &Plan, name: &str) -> Failure {
    let left_out = plan.omitted.iter();
    let cell = format!("{name} (");
    let mut left_out = left_out.filter(|it| it.name == name || it.name.starts_with(&cell));
    if let Some(omitted) = left_out.next() {
        let what = format!("job `{name}` is left out of this plan");
        let next = "delta-ci plan shows all reasons; \
                    --event, --branch, --tag and --input plan for another trigger";
        return Failure::new(Exit::Refused, what)
            .because(&omitted.reason)
            .next(next);
    }
    let mut names: Vec<&str> = Vec::new();
    for included in &plan.jobs {
        names.push(&included.job.name);
        if !names.contains(&base(&included.job)) {
            names.push(base(&included.job));
        }
    }
    let failure = Failure::new(Exit::NotFound, format!("there is no job `{name}`"));
    let omitted = plan.omitted.iter().map(|it| it.name.as_str());
    let near = nearest(name, names.iter().copied().chain(omitted));
    let mut listed = names.iter().take(MAX_LISTED).copied().collect::<Vec<_>>();
    let more = format!("and {} more", names.len().saturating_sub(MAX_LISTED));
    if names.len() > MAX_LISTED {
        listed.push(&more);
    }
    let failure = failure.because(format!("there is {}", listed.join(", ")));
    match near {
        Some(near) => failure.next(format!("did you mean `{near}`?")),
        None => failure.next("delta-ci plan --all shows them"),
    }
}

#[cfg(test)]
mod tests {
    use delta_planner::{Changed, Facts};

    use super::*;

    fn plan(text: &str) -> Plan {
        let pipeline = delta_planner::parse("f", text.as_bytes()).unwrap();
        delta_planner::plan(&pipeline, &Facts::push("main", Changed::All)).unwrap()
    }

    fn small() -> Plan {
        plan(
            "jobs:\n  a: {steps: [x]}\n  b: {needs: [a], steps: [x], inputs: [a]}\n  \
             c: {needs: [b], steps: [x], inputs: [b]}\n  d: {steps: [x]}\n  \
             e: {needs: [b, d], steps: [x]}\n  late: {steps: [x], if: 'branch == \"x\"'}\n  \
             m: {steps: [x], matrix: {v: [1, 2]}}\n",
        )
    }

    fn names(chosen: &Chosen) -> Vec<&str> {
        let jobs = chosen.pipeline.jobs.iter();
        jobs.map(|job| job.name.as_str()).collect()
    }

    #[test]
    fn a_job_brings_what_it_needs() {
        let plan = small();
        assert_eq!(names(&jobs(&plan, &["b".into()]).unwrap()), ["a", "b"]);
        assert_eq!(jobs(&plan, &[]).unwrap().pipeline.jobs.len(), 7);
    }

    #[test]
    fn a_job_with_a_matrix_is_all_its_cells_or_one() {
        let plan = small();
        let all = jobs(&plan, &["m".into()]).unwrap();
        assert_eq!(names(&all), ["m (v=1)", "m (v=2)"]);
        let one = jobs(&plan, &["m (v=2)".into()]).unwrap();
        assert_eq!(names(&one), ["m (v=2)"]);
    }

    #[test]
    fn from_a_job_on_what_comes_before_is_taken_as_passed() {
        let chosen = from(&small(), "b").unwrap();
        assert_eq!(names(&chosen), ["b", "c", "e"]);
        assert_eq!(chosen.taken_as_passed, ["a", "d"]);
        assert!(chosen.pipeline.jobs[0].needs.is_empty());
        assert_eq!(chosen.pipeline.jobs[1].needs, ["b"]);
        assert_eq!(chosen.pipeline.jobs[2].needs, ["b"]);
    }

    #[test]
    fn artifacts_of_what_did_not_run_are_nobodys() {
        let chosen = from(&small(), "b").unwrap();
        assert_eq!(chosen.without, [("b".to_owned(), "a".to_owned())]);
        assert_eq!(chosen.pipeline.jobs[0].inputs().count(), 0);
        assert_eq!(chosen.pipeline.jobs[1].inputs().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn a_job_that_is_not_there_is_answered_with_the_nearest() {
        let failure = jobs(&small(), &["lat".into()]).unwrap_err();
        assert_eq!(failure.exit, Exit::NotFound);
        assert!(failure.text().contains("did you mean `late`?"));
        let failure = from(&plan("jobs: {unit: {steps: [x]}}"), "unti").unwrap_err();
        assert!(failure.text().contains("did you mean `unit`?"));
        assert!(failure.text().contains("there is unit"));
    }

    #[test]
    fn a_job_that_is_left_out_says_why() {
        let failure = jobs(&small(), &["late".into()]).unwrap_err();
        assert_eq!(failure.exit, Exit::Refused);
        assert!(failure.text().contains("branch is `main`"), "{failure:?}");
    }
}
