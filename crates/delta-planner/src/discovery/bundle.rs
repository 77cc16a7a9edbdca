//! Many packages in few jobs. A run has a bound on its jobs, and nobody reads a thousand: beyond a
//! few hundred, packages of one ecosystem share jobs of the same kind, in the order of folders.

use std::collections::{BTreeSet, HashMap};

use delta_wire::job_spec::CountTests;

use super::concerns::Paths;
use super::found::{Cache, Report};
use super::shell::quoted;
use super::versions;

/// Jobs of one plan before packages are put together: a third of what a run may have, and already
/// more than anybody looks at one by one.
pub const MAX_OWN_JOBS: usize = 300;

/// Packages of one shared job; what stands around a job is a list of at most this many.
const MAX_TOGETHER: usize = 100;

/// A job that runs, with its commands written out.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    pub name: String,
    pub kind: &'static str,
    pub ecosystem: &'static str,
    /// From the root.
    pub workdir: String,
    pub steps: Vec<String>,
    pub requires: Vec<String>,
    pub results: Vec<Report>,
    pub count: Option<CountTests>,
    pub caches: Vec<Cache>,
    pub reason: String,
    /// What it is about, where somebody asked.
    pub concerns: Paths,
}

/// Puts packages together until there are few enough jobs. Within the bound nothing changes.
pub fn bundled(jobs: Vec<Chosen>) -> Vec<Chosen> {
    if jobs.len() <= MAX_OWN_JOBS {
        return jobs;
    }
    let size = jobs.len().div_ceil(MAX_OWN_JOBS).min(MAX_TOGETHER);
    let mut groups: Vec<Vec<Chosen>> = Vec::new();
    let mut open: HashMap<(&str, &str), usize> = HashMap::new();
    for job in jobs {
        let key = (job.ecosystem, job.kind);
        let group = open.get(&key).copied();
        match group.filter(|at| groups[*at].len() < size) {
            Some(at) => groups[at].push(job),
            None => {
                open.insert(key, groups.len());
                groups.push(vec![job]);
            }
        }
    }
    groups.into_iter().map(together).collect()
}

fn together(mut group: Vec<Chosen>) -> Chosen {
    if group.len() == 1 {
        return group.remove(0);
    }
    let (count, last) = (group.len(), group[group.len() - 1].name.clone());
    let name = format!("{}-and-{}-more", group[0].name, count - 1);
    let reason = format!(
        "{count} packages together, from {} to {last}, so that the plan stays readable; {}",
        group[0].name, group[0].reason
    );
    let mut whole = Chosen {
        name,
        workdir: String::new(),
        steps: common(&group),
        reason,
        ..group[0].clone()
    };
    let done = whole.steps.len();
    for job in group {
        let alone = job.steps.into_iter().skip(done);
        whole.steps.push(script(&job.workdir, alone));
        whole.requires.extend(job.requires);
        whole.results.extend(job.results);
        if whole.count != job.count {
            // No one place tells of all of them.
            whole.count = Some(CountTests::None);
        }
        whole.caches.extend(job.caches);
        whole.concerns = match (whole.concerns, job.concerns) {
            (Some(all), Some(more)) => Some(all.into_iter().chain(more).collect()),
            _ => None,
        };
    }
    whole.requires = versions::strictest(&whole.requires);
    whole.results = once(whole.results);
    whole.caches = once(whole.caches);
    whole
}

/// What all of them do first in the same folder, such as installing: done once.
fn common(group: &[Chosen]) -> Vec<String> {
    let first = &group[0];
    let shared = |at: &usize| {
        let mut others = group.iter();
        others.all(|it| it.workdir == first.workdir && it.steps.get(*at) == first.steps.get(*at))
    };
    // The last step of each is what it is about.
    let most = group.iter().map(|it| it.steps.len()).min().unwrap_or(1);
    let count = (0..most.saturating_sub(1)).take_while(shared).count();
    let steps = first.steps.iter().take(count);
    steps
        .map(|step| script(&first.workdir, [step.clone()]))
        .collect()
}

/// Several commands as one step, which ends at the first that fails.
fn script(folder: &str, steps: impl IntoIterator<Item = String>) -> String {
    let there = (!folder.is_empty()).then(|| format!("cd {}", quoted(folder)));
    let lines: Vec<String> = there.into_iter().chain(steps).collect();
    lines.join("\n")
}

fn once<T: Ord>(items: Vec<T>) -> Vec<T> {
    let items: BTreeSet<T> = items.into_iter().collect();
    items.into_iter().collect()
}
