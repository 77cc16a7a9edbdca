//! From what was found and what a change concerns to a plan: each job with its name, its commands
//! narrowed to the packages that are concerned, and its reason.

use delta_wire::job_spec::{CountTests, check_around};
use serde_json::{Map, Value, json};

use super::affected::{Affected, place};
use super::bundle::{Chosen, bundled};
use super::concerns::{Concerns, condition};
use super::found::{Found, Job, Project};
use super::names::names;
use super::{tools, versions};
use crate::pipeline::{PlannedJob, PlannedStep};
use crate::plan::{Included, Omitted, Plan};

/// Packages that a command is narrowed to by name. Beyond it the whole project is meant: a command
/// line has an end, and most of the work is then the same.
const MAX_NAMED: usize = 200;

/// Packages that a reason lists.
const MAX_LISTED: usize = 3;

/// With `concerns`, each job has a condition that says what it is about.
pub fn plan(found: &Found, affected: &Affected, concerns: Option<&Concerns<'_>>) -> Plan {
    let names = names(found);
    let (mut chosen, mut omitted) = (Vec::new(), Vec::new());
    for (number, project) in found.projects.iter().enumerate() {
        let (concerned, why) = concerned(number, project, affected);
        for (at, job) in project.jobs.iter().enumerate() {
            let name = names[&(number, None, at)].clone();
            match &concerned {
                None => omitted.push(omit(name, affected)),
                Some(packages) => {
                    let packages = packages.as_deref().filter(|it| narrows(project, job, it));
                    chosen.push(Chosen {
                        concerns: concerns.and_then(|it| it.project(number)),
                        ..choose(name, project, job, packages, &why)
                    });
                }
            }
        }
        for (inner, package) in project.packages.iter().enumerate() {
            for (at, job) in package.jobs.iter().enumerate() {
                let name = names[&(number, Some(inner), at)].clone();
                match affected.reason((number, inner)) {
                    None => omitted.push(omit(name, affected)),
                    Some(why) => chosen.push(Chosen {
                        concerns: concerns.and_then(|it| it.package((number, inner))),
                        ..choose(name, project, job, None, why)
                    }),
                }
            }
        }
    }
    let jobs = bundled(chosen).into_iter().map(included);
    Plan::of(jobs.collect(), omitted)
}

fn omit(name: String, affected: &Affected) -> Omitted {
    Omitted {
        name,
        reason: affected.others().to_owned(),
    }
}

/// The names of the concerned packages of a project: none of them, some, or (nothing) all; and why.
fn concerned<'f>(
    number: usize,
    project: &'f Project,
    affected: &Affected,
) -> (Option<Option<Vec<&'f str>>>, String) {
    if let Affected::Everything(why) = affected {
        return (Some(None), why.clone());
    }
    let packages = project.packages.iter().enumerate();
    let some = packages.filter_map(|(at, package)| {
        let why = affected.reason((number, at))?;
        Some((package, why))
    });
    let some: Vec<_> = some.collect();
    // A reason that all share is said once; otherwise each says which package it is about.
    let mut said: Vec<String> = Vec::new();
    for (package, why) in &some {
        let sentence = if why.starts_with("depends on") {
            format!("{} {why}", place(&package.folder))
        } else {
            (*why).to_owned()
        };
        if !said.contains(&sentence) && said.len() <= MAX_LISTED {
            said.push(sentence);
        }
    }
    let more = some.len().saturating_sub(MAX_LISTED);
    if said.len() > MAX_LISTED {
        said.truncate(MAX_LISTED);
        said.push(format!("and {more} more"));
    }
    let why = said.join("; ");
    let names = match some.len() {
        0 => None,
        count if count == project.packages.len() || count > MAX_NAMED => Some(None),
        _ => Some(Some(some.iter().map(|(it, _)| it.name.as_str()).collect())),
    };
    (names, why)
}

/// Whether a job may be narrowed to these packages. One that counts tests is not narrowed to
/// packages without any: it would find none, though there are some.
fn narrows(project: &Project, job: &Job, names: &[&str]) -> bool {
    let tested = |name: &&str| {
        let mut packages = project.packages.iter();
        packages.any(|it| it.name == **name && it.tested)
    };
    job.count.is_none() || names.iter().any(tested)
}

/// Whether one of these packages has a test that runs for sure.
fn are_counted(project: &Project, names: &[&str]) -> bool {
    let mut packages = project.packages.iter();
    packages.any(|it| it.counted && names.contains(&it.name.as_str()))
}

fn choose(
    name: String,
    project: &Project,
    job: &Job,
    packages: Option<&[&str]>,
    why: &str,
) -> Chosen {
    let steps: Vec<String> = job.steps.iter().map(|it| it.script(packages)).collect();
    Chosen {
        name,
        kind: job.kind,
        ecosystem: project.ecosystem,
        workdir: job.workdir.clone(),
        requires: requires(job, &steps),
        steps,
        results: job.results.clone(),
        count: match (job.count, packages) {
            (Some(CountTests::Output), Some(names)) if !are_counted(project, names) => {
                Some(CountTests::None)
            }
            (count, _) => count,
        },
        caches: job.caches.clone(),
        reason: match why {
            "" => job.reason.clone(),
            why => format!("{}; {why}", job.reason),
        },
        concerns: None,
    }
}

/// What the job asks for, and each tool that one of its steps calls.
fn requires(job: &Job, steps: &[String]) -> Vec<String> {
    let mut all = job.requires.clone();
    for tool in steps.iter().flat_map(|it| tools::of_script(it)) {
        if !all.iter().any(|it| versions::tool_of(it) == tool) {
            all.push(tool.to_owned());
        }
    }
    all
}

fn included(chosen: Chosen) -> Included {
    let around = around(&chosen);
    let steps = chosen.steps.iter().map(|it| PlannedStep::from(it.as_str()));
    let mut job = PlannedJob::new(&chosen.name, steps.collect());
    job.condition = condition(&chosen.concerns);
    job.requires = chosen.requires;
    if !chosen.workdir.is_empty() {
        job.workdir = chosen.workdir;
    }
    job.around = around;
    Included {
        job,
        reason: chosen.reason,
    }
}

/// Reports and caches, as a pipeline file would have them. What the job spec does not take, such as
/// a path that is too long, is left out: a job without its cache is still the job.
fn around(chosen: &Chosen) -> Map<String, Value> {
    let results: Vec<Value> = chosen
        .results
        .iter()
        .map(|it| json!({"format": it.format, "path": it.path}))
        .collect();
    let caches: Vec<Value> = chosen
        .caches
        .iter()
        .map(|it| json!({"key": it.key, "restore_keys": [it.restore_key], "paths": it.paths}))
        .collect();
    let mut all = Map::new();
    for (key, values) in [("results", results), ("caches", caches)] {
        if values.is_empty() {
            continue;
        }
        if let Ok(Value::Object(checked)) = check_around(&json!({ key: values })) {
            all.extend(checked);
        }
    }
    let count = match chosen.count {
        Some(CountTests::Report) if !all.contains_key("results") => Some(CountTests::None),
        other => other,
    };
    all.extend(count.map(|it| ("count_tests".to_owned(), json!(it.as_str()))));
    all
}
