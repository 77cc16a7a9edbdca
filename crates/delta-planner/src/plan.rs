//! The plan: which jobs of a pipeline belong to a run, and why each of them does or does not.
//!
//! A pure function of the pipeline and the facts of its trigger. What cannot be known runs. A job
//! is left out for one of two reasons, and they differ for whoever needs it:
//!
//! - Its condition does not hold, whatever changed. Then nothing that needs it runs either: a
//!   deployment does not go ahead because its gate was left out.
//! - Nothing changed that it is about. Then its last outcome still stands and its need counts as
//!   met; who takes its artifacts brings it back in. Whoever states what changed counts from where
//!   everything went well: a job that failed there is never left out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use delta_wire::step::StepWhen;
use serde_json::Value;

use crate::condition::{Known, Truth};
use crate::diagnostic::Diagnostic;
use crate::facts::Facts;
use crate::pipeline::{Pipeline, PlannedJob, PlannedStep};
use crate::trigger::InputFault;

/// What a run is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// In the order of the pipeline.
    pub jobs: Vec<Included>,
    pub omitted: Vec<Omitted>,
    /// What the pipeline says about all of them; its own jobs are those of `jobs`.
    rest: Pipeline,
}

/// A job that runs. Its conditions are resolved and its needs are jobs of the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Included {
    pub job: PlannedJob,
    /// A sentence without a full stop.
    pub reason: String,
}

/// A job that is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Omitted {
    pub name: String,
    pub reason: String,
}

impl Plan {
    /// A plan of jobs that nobody wrote a pipeline for.
    pub(crate) fn of(jobs: Vec<Included>, omitted: Vec<Omitted>) -> Plan {
        Plan {
            jobs,
            omitted,
            rest: Pipeline::default(),
        }
    }

    /// What is to be said of the file, and fails nothing.
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.rest.warnings
    }

    /// The jobs as a pipeline without conditions.
    pub fn to_pipeline(&self) -> Pipeline {
        Pipeline {
            jobs: self.jobs.iter().map(|it| it.job.clone()).collect(),
            ..self.rest.clone()
        }
    }

    /// The body of `POST /api/v1/runs`. A plan without jobs makes none: see A14.
    pub fn to_request(&self) -> Value {
        self.to_pipeline().to_request()
    }
}

/// Plans one run, or says what is wrong with the inputs that were given.
pub fn plan(pipeline: &Pipeline, facts: &Facts) -> Result<Plan, Vec<InputFault>> {
    let inputs = pipeline.triggers.inputs(facts)?;
    let known = Known {
        facts,
        inputs: &inputs,
        all_changed: false,
        success: true,
    };
    let verdicts = match pipeline.triggers.admits(facts) {
        Ok(()) => settle(pipeline, known),
        Err(why) => pipeline
            .jobs
            .iter()
            .map(|_| Verdict::Barred(why.clone()))
            .collect(),
    };
    let index: HashMap<&str, usize> = names(pipeline);
    let needs = needs_of_plan(pipeline, &verdicts, &index);
    let (mut jobs, mut omitted) = (Vec::new(), Vec::new());
    for (at, (job, verdict)) in pipeline.jobs.iter().zip(verdicts).enumerate() {
        match verdict {
            Verdict::Runs(reason) => {
                let mut job = resolved(job, known);
                job.needs = needs[at]
                    .iter()
                    .map(|n| pipeline.jobs[*n].name.clone())
                    .collect();
                jobs.push(Included { job, reason });
            }
            Verdict::Barred(reason) | Verdict::Unchanged(reason) => omitted.push(Omitted {
                name: job.name.clone(),
                reason,
            }),
        }
    }
    let rest = Pipeline {
        triggers: pipeline.triggers.clone(),
        fail_fast: pipeline.fail_fast,
        concurrency: (pipeline.concurrency.as_ref()).and_then(|it| it.of(facts)),
        timeout: pipeline.timeout,
        jobs: Vec::new(),
        warnings: pipeline.warnings.clone(),
    };
    Ok(Plan {
        jobs,
        omitted,
        rest,
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Runs(String),
    /// Its condition does not hold, or it needs one whose does not.
    Barred(String),
    /// Nothing changed that it is about.
    Unchanged(String),
}

fn names(pipeline: &Pipeline) -> HashMap<&str, usize> {
    let jobs = pipeline.jobs.iter().enumerate();
    jobs.map(|(at, job)| (job.name.as_str(), at)).collect()
}

/// Each job by itself, then what follows for those around it.
fn settle(pipeline: &Pipeline, known: Known<'_>) -> Vec<Verdict> {
    let index = names(pipeline);
    let judged = pipeline.jobs.iter().map(|job| judge(job, known));
    let mut verdicts: Vec<Verdict> = judged.collect();
    let order = in_order(pipeline, &index);
    for &at in &order {
        let needs = pipeline.jobs[at].needs.iter();
        let barred = needs
            .filter_map(|need| index.get(need.as_str()))
            .find(|need| matches!(verdicts[**need], Verdict::Barred(_)));
        if let (Some(need), false) = (barred, matches!(verdicts[at], Verdict::Barred(_))) {
            let need = &pipeline.jobs[*need].name;
            verdicts[at] = Verdict::Barred(format!("it needs `{need}`, which is left out"));
        }
    }
    for &at in order.iter().rev() {
        if !matches!(verdicts[at], Verdict::Runs(_)) {
            continue;
        }
        let job = &pipeline.jobs[at];
        for input in job.inputs().filter_map(|name| index.get(name)) {
            if let Verdict::Unchanged(why) = &verdicts[*input] {
                let reason = format!("`{}` takes its artifacts, although {why}", job.name);
                verdicts[*input] = Verdict::Runs(reason);
            }
        }
    }
    verdicts
}

fn judge(job: &PlannedJob, known: Known<'_>) -> Verdict {
    let everything = Known {
        all_changed: true,
        ..known
    };
    let runs = match &job.condition {
        None => "it has no condition".to_owned(),
        Some(condition) => {
            let why = condition.why(known);
            match condition.judge(known) {
                Truth::Yes | Truth::Unknown => why,
                Truth::No if condition.judge(everything) == Truth::No => {
                    return Verdict::Barred(why);
                }
                Truth::No => return Verdict::Unchanged(why),
            }
        }
    };
    let none_of = |known| {
        !job.steps
            .iter()
            .any(|step| step_when(step, known).is_some())
    };
    match (none_of(known), none_of(everything)) {
        (false, _) => Verdict::Runs(runs),
        (true, true) => Verdict::Barred("the condition of none of its steps holds".to_owned()),
        (true, false) => Verdict::Unchanged("nothing changed that its steps are about".to_owned()),
    }
}

/// On which outcome of those before it a step runs: (well, badly). None when on neither.
fn step_when(step: &PlannedStep, known: Known<'_>) -> Option<(bool, bool)> {
    let Some(condition) = &step.condition else {
        return Some((true, false));
    };
    let holds = |success| condition.judge(Known { success, ..known }) != Truth::No;
    let asks = condition.asks_outcome();
    match (holds(true), asks && holds(false)) {
        (false, false) => None,
        when => Some(when),
    }
}

/// The job with its conditions answered, and the inputs of the run among its variables.
fn resolved(job: &PlannedJob, known: Known<'_>) -> PlannedJob {
    let mut job = PlannedJob {
        condition: None,
        concurrency: (job.concurrency.as_ref()).and_then(|it| it.of(known.facts)),
        ..job.clone()
    };
    job.steps = job
        .steps
        .iter()
        .filter_map(|it| resolved_step(it, known))
        .collect();
    let env = std::mem::take(&mut job.env);
    job.env = input_variables(known.inputs);
    let own = |name: &String| env.iter().any(|(it, _)| it == name);
    job.env.retain(|(name, _)| !own(name));
    job.env.extend(env);
    job
}

fn resolved_step(step: &PlannedStep, known: Known<'_>) -> Option<PlannedStep> {
    let mut spec = step.spec.clone();
    spec.when = match step_when(step, known)? {
        (true, true) => StepWhen::Always,
        (false, true) => StepWhen::Failure,
        (_, false) => StepWhen::Success,
    };
    Some(spec.into())
}

/// `INPUT_LEVEL` for the input `level`: a value reaches a script as a variable, never as its text.
fn input_variables(inputs: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let named = inputs.iter();
    named
        .map(|(name, value)| (variable("INPUT", name), value.clone()))
        .collect()
}

/// The variable that carries a value of this name.
pub(crate) fn variable(prefix: &str, name: &str) -> String {
    format!("{prefix}_{}", name.to_uppercase().replace('-', "_"))
}

/// For each job the jobs of the plan it waits for: in the place of one that is left out, those it
/// would have waited for itself.
fn needs_of_plan(
    pipeline: &Pipeline,
    verdicts: &[Verdict],
    index: &HashMap<&str, usize>,
) -> Vec<BTreeSet<usize>> {
    let mut needs = vec![BTreeSet::new(); pipeline.jobs.len()];
    for at in in_order(pipeline, index) {
        let mut waits = BTreeSet::new();
        for need in pipeline.jobs[at]
            .needs
            .iter()
            .filter_map(|it| index.get(it.as_str()))
        {
            match verdicts[*need] {
                Verdict::Runs(_) => drop(waits.insert(*need)),
                _ => waits.extend(needs[*need].iter().copied()),
            }
        }
        needs[at] = waits;
    }
    needs
}

/// Jobs behind those they need. In a circle, which a pipeline file never has, the rest follows.
fn in_order(pipeline: &Pipeline, index: &HashMap<&str, usize>) -> Vec<usize> {
    let count = pipeline.jobs.len();
    let (mut open, mut dependents) = (vec![0_usize; count], vec![Vec::new(); count]);
    for (at, job) in pipeline.jobs.iter().enumerate() {
        for need in job.needs.iter().filter_map(|it| index.get(it.as_str())) {
            open[at] += 1;
            dependents[*need].push(at);
        }
    }
    let mut order: Vec<usize> = (0..count).filter(|at| open[*at] == 0).collect();
    let mut next = 0;
    while let Some(&done) = order.get(next) {
        next += 1;
        for &at in &dependents[done] {
            open[at] -= 1;
            if open[at] == 0 {
                order.push(at);
            }
        }
    }
    order.extend((0..count).filter(|at| open[*at] > 0));
    order
}
