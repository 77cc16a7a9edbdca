//! Which jobs this machine can execute. Nobody else executes here: one that asks for more would
//! wait for ever. All of them are named, each with what it lacks and what is here instead.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use delta_agent::container::{self, ContainerSettings};
use delta_agent::{Machine, Sought};
use delta_core::requirement::{Capabilities, NEVER_LABELS, Requirement};
use delta_core::tool;
use delta_planner::{Pipeline, PlannedJob};
use delta_shim::container::Network;
use delta_wire::job_spec::IMAGE_REQUIREMENT;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;
use crate::{sanitize, state_words};

/// How kinds of work are told between agents and servers: words of the inside.
const WORK: &str = "work:";

/// Jobs that an error names one by one; of a large matrix the rest are alike.
const MAX_LISTED: usize = 20;

/// What runs, and what does not, with the reason.
pub struct Fitting {
    pub pipeline: Pipeline,
    pub not_run: Vec<(String, String)>,
}

/// Your own machine: what you may, your containers may.
pub fn own_containers() -> ContainerSettings {
    ContainerSettings {
        network: Network::Host,
        ..ContainerSettings::default()
    }
}

/// A job asks for something that not every machine has.
fn asks(job: &PlannedJob) -> bool {
    !requires(job).is_empty()
}

/// What these jobs ask for: nothing else on this machine need be started to find out what it is.
pub fn programs(jobs: &[PlannedJob]) -> Sought {
    if jobs.iter().any(asks) {
        let wanted = jobs.iter().flat_map(requires);
        Sought::Named(wanted.map(|it| name_of(&it).to_owned()).collect())
    } else {
        Sought::Nothing
    }
}

/// All jobs where this machine can execute them. Otherwise a refusal, or the others where those are
/// to be skipped, which also skips whatever needs them.
pub async fn check(
    pipeline: Pipeline,
    labels: &[String],
    skip: bool,
    terminal: &Terminal,
) -> Result<Fitting, Failure> {
    let mut fitting = Fitting {
        pipeline,
        not_run: Vec::new(),
    };
    if !fitting.pipeline.jobs.iter().any(asks) {
        return Ok(fitting);
    }
    let sought = programs(&fitting.pipeline.jobs);
    let here = offered(labels, &sought).await;
    let unfit = unfit(&fitting.pipeline, &here);
    if unfit.is_empty() {
        return Ok(fitting);
    }
    // Whoever is refused is shown everything.
    let offered = offered(labels, &Sought::Everything).await;
    let of = fitting.pipeline.jobs.len();
    fitting.leave_out(&unfit, &offered);
    let left = fitting.pipeline.jobs.len();
    if !skip || left == 0 {
        let waiting = &fitting.not_run[unfit.len()..];
        return Err(refusal(&unfit, waiting, &offered, of, left));
    }
    for (job, why) in &fitting.not_run {
        terminal.say(&format!(
            "- {}  not run: {}",
            sanitize::text(job),
            sanitize::text(why)
        ));
    }
    Ok(fitting)
}

impl Fitting {
    fn leave_out(&mut self, unfit: &[Unfit], offered: &[String]) {
        for it in unfit {
            self.not_run.push((it.job.clone(), it.said(offered)));
        }
        let mut gone: BTreeSet<String> = unfit.iter().map(|it| it.job.clone()).collect();
        // In the order of needs, however the file has them.
        loop {
            let mut jobs = self.pipeline.jobs.iter();
            let waits = |job: &&PlannedJob| {
                !gone.contains(&job.name) && job.needs.iter().any(|need| gone.contains(need))
            };
            let Some(job) = jobs.find(waits) else { break };
            let needs = job.needs.iter().filter(|need| gone.contains(*need));
            let needs: Vec<&str> = needs.map(String::as_str).collect();
            let why = format!("it needs {}", needs.join(", "));
            self.not_run.push((job.name.clone(), why));
            gone.insert(job.name.clone());
        }
        self.pipeline.jobs.retain(|job| !gone.contains(&job.name));
    }
}

/// A job, and what of it is not here.
struct Unfit {
    job: String,
    lacks: Vec<String>,
}

impl Unfit {
    /// `it requires node>=24, and here is node=22.1`
    fn said(&self, offered: &[String]) -> String {
        let here = self.lacks.iter().map(|lack| {
            let name = name_of(lack);
            let same = |it: &&String| it.split_once('=').is_some_and(|(of, _)| of == name);
            match offered.iter().find(same) {
                Some(other) => format!("{lack}, and here is {other}"),
                None => format!("{lack}, which is not here"),
            }
        });
        format!("it requires {}", here.collect::<Vec<_>>().join("; "))
    }
}

/// What a job asks for beside its work.
fn requires(job: &PlannedJob) -> Vec<String> {
    let image = job
        .around
        .get("image")
        .map(|_| IMAGE_REQUIREMENT.to_owned());
    job.requires.iter().cloned().chain(image).collect()
}

async fn offered(labels: &[String], sought: &Sought) -> Vec<String> {
    let runtime = container::detect(&own_containers()).await;
    let machine = Machine::with_programs(Path::new("."), sought).await;
    let mut offered = machine.with_containers(runtime.as_ref()).tags();
    // Every agent of ours has these, and nobody asks for them by hand.
    offered.retain(|it| !it.starts_with(WORK));
    offered.extend(labels.iter().cloned());
    offered
}

fn unfit(pipeline: &Pipeline, offered: &[String]) -> Vec<Unfit> {
    let capabilities = Capabilities::parse(offered.iter().map(String::as_str));
    let lacks = |text: &String| {
        Requirement::parse(text).is_ok_and(|requirement| !capabilities.meets(&requirement))
    };
    let jobs = pipeline.jobs.iter().map(|job| Unfit {
        job: job.name.clone(),
        lacks: requires(job).into_iter().filter(lacks).collect(),
    });
    jobs.filter(|it| !it.lacks.is_empty()).collect()
}

/// `waiting` are those that need one of them, each with which; `left` of all `of` jobs remain.
fn refusal(
    unfit: &[Unfit],
    waiting: &[(String, String)],
    offered: &[String],
    of: usize,
    left: usize,
) -> Failure {
    let what = match unfit {
        [only] => format!("this machine cannot execute job `{}`", only.job),
        all => format!("this machine cannot execute {} of {of} jobs", all.len()),
    };
    let listed = unfit.iter().take(MAX_LISTED);
    let mut why: Vec<String> = listed
        .map(|it| format!("{}: {}", it.job, it.said(offered)))
        .collect();
    if unfit.len() > MAX_LISTED {
        let more = (unfit.len() - MAX_LISTED) as u64;
        why.push(format!("and {} more", state_words::count(more, "job")));
    }
    if left == 0 {
        let waiting = waiting.iter().take(MAX_LISTED);
        why.extend(waiting.map(|(job, needs)| format!("{job}: {needs}")));
    }
    why.push(format!("here are {}", offered.join(", ")));
    let lacks: BTreeSet<&String> = unfit.iter().flat_map(|it| &it.lacks).collect();
    let mut next = Vec::new();
    if left > 0 {
        next.push("--skip-unfit runs the others".to_owned());
    }
    if lacks.iter().any(|lack| *lack == IMAGE_REQUIREMENT) {
        next.push("start docker or podman here".to_owned());
    }
    next.extend(advice(&lacks));
    let labels: Vec<String> = lacks.iter().filter_map(|lack| label_for(lack)).collect();
    if !labels.is_empty() {
        next.push(format!("{} if it is here after all", labels.join(" ")));
    }
    next.push("a server with an agent that has it".to_owned());
    Failure::new(Exit::Refused, what)
        .because(why.join("\n"))
        .next(next.join("; "))
}

/// How to come by the tools among these; of several, each with its name.
fn advice(lacks: &BTreeSet<&String>) -> Vec<String> {
    let known = lacks.iter().filter_map(|lack| {
        let install = tool::advice(lack)?;
        Some((name_of(lack), install))
    });
    let known: BTreeMap<&str, &str> = known.collect();
    match known.len() {
        1 => known.into_values().map(str::to_owned).collect(),
        _ => {
            let each = known.into_iter();
            each.map(|(name, install)| format!("{name}: {install}"))
                .collect()
        }
    }
}

/// What to type for a machine that has it: a label says what there is.
fn label_for(requirement: &str) -> Option<String> {
    // Of these it is said how to come by them.
    if requirement == IMAGE_REQUIREMENT || tool::advice(requirement).is_some() {
        return None;
    }
    // What is measured is as it is, whatever somebody says.
    if NEVER_LABELS.contains(&name_of(requirement)) {
        return None;
    }
    match Requirement::parse(requirement).ok()? {
        Requirement::Has(name) => Some(format!("--label {name}")),
        Requirement::Is(name, value) | Requirement::AtLeast(name, value) => {
            Some(format!("--label {name}={value}"))
        }
    }
}

fn name_of(requirement: &str) -> &str {
    requirement.split(['>', '=']).next().unwrap_or(requirement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::When;

    fn pipeline() -> Pipeline {
        let text = b"jobs:\n  here: {steps: [x]}\n  a: {steps: [x], requires: [linux, gpu]}\n  \
            last: {steps: [x], needs: [after]}\n  after: {steps: [x], needs: [a, here]}\n  \
            b: {steps: [x], requires: ['cpu>=9999']}\n";
        delta_planner::parse("f", text).unwrap()
    }

    async fn checked(labels: &[&str], skip: bool) -> Result<Fitting, Failure> {
        let labels: Vec<String> = labels.iter().map(|it| (*it).to_owned()).collect();
        let terminal = Terminal::new(true, When::Never);
        check(pipeline(), &labels, skip, &terminal).await
    }

    #[tokio::test]
    async fn all_jobs_that_ask_for_more_are_named_with_what_is_here_and_what_works() {
        let text = checked(&[], false).await.err().unwrap().text();
        for said in [
            "cannot execute 2 of 5 jobs",
            "a: it requires gpu, which is not here",
            "b: it requires cpu>=9999, and here is cpu=",
            "--skip-unfit runs the others",
            "--label gpu if it is here",
        ] {
            assert!(text.contains(said), "{said:?} in\n{text}");
        }
        // How many processors there are is not a matter of opinion.
        assert!(!text.contains("--label cpu"), "{text}");
        // What is suggested works.
        let text = checked(&["gpu"], false).await.err().unwrap().text();
        assert!(text.contains("cannot execute job `b`"), "{text}");
    }

    #[test]
    fn of_several_tools_each_hint_has_its_name() {
        let lacks = ["uv>=0.5", "golangci-lint", "gpu"].map(str::to_owned);
        let all = advice(&lacks.iter().collect());
        assert_eq!(all.len(), 2);
        assert!(all[0].starts_with("golangci-lint: "), "{all:?}");
        assert_eq!(all[1], "uv: pip install uv");
        let one = advice(&lacks[..1].iter().collect());
        assert_eq!(one, ["pip install uv"]);
    }

    #[tokio::test]
    async fn what_is_skipped_takes_what_needs_it_along() {
        let fitting = checked(&[], true).await.ok().unwrap();
        let names: Vec<&str> = fitting
            .not_run
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["a", "b", "after", "last"]);
        assert_eq!(fitting.not_run[2].1, "it needs a");
        assert_eq!(fitting.pipeline.jobs.len(), 1);
    }
}
