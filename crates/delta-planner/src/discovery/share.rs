//! What several jobs of a written plan have in common, for a template each: keys that the same jobs
//! have with the same value, and that are long enough to be worth a name.

use std::collections::{HashMap, HashSet};

use crate::merge::MAX_TEMPLATES;

/// A job as it is written: each key with the lines it takes.
pub(super) struct Written {
    pub name: String,
    pub keys: Vec<(&'static str, String)>,
}

/// A template, and the jobs that extend it.
pub(super) struct Template {
    pub name: String,
    pub keys: Vec<(&'static str, String)>,
    pub jobs: Vec<usize>,
}

/// Characters that a template takes by itself, and that each job takes to extend it: what is shared
/// must save more than that.
const OWN_COST: usize = 60;
const COST_PER_JOB: usize = 30;

/// The templates, in the order in which their first jobs stand. Each key of a job is in one of them
/// at most, so that the order in which a job lists them says nothing.
pub(super) fn templates(jobs: &[Written]) -> Vec<Template> {
    let mut owners: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    for (at, job) in jobs.iter().enumerate() {
        for (key, lines) in &job.keys {
            owners.entry((key, lines.as_str())).or_default().push(at);
        }
    }
    let mut sets: HashMap<&[usize], usize> = HashMap::new();
    let mut found: Vec<Template> = Vec::new();
    for job in jobs {
        for (key, lines) in &job.keys {
            let Some(owners) = owners.get(&(*key, lines.as_str())) else {
                continue;
            };
            if owners.len() < 2 {
                continue;
            }
            let at = *sets.entry(owners).or_insert_with(|| {
                found.push(Template {
                    name: String::new(),
                    keys: Vec::new(),
                    jobs: owners.clone(),
                });
                found.len() - 1
            });
            let shared = &mut found[at].keys;
            if !shared.iter().any(|(it, _)| it == key) {
                shared.push((key, lines.clone()));
            }
        }
    }
    found.retain(|it| saved(it) > OWN_COST + COST_PER_JOB * it.jobs.len());
    found.truncate(MAX_TEMPLATES);
    name_all(&mut found, jobs);
    found
}

fn saved(template: &Template) -> usize {
    let lines: usize = template.keys.iter().map(|(_, lines)| lines.len()).sum();
    lines * (template.jobs.len() - 1)
}

fn name_all(templates: &mut [Template], jobs: &[Written]) {
    let mut taken = HashSet::new();
    for template in templates {
        let base = name(template, jobs);
        let numbered = (2..).map(|n| format!("{base}-{n}"));
        let mut free = std::iter::once(base.clone()).chain(numbered);
        template.name = free
            .find(|it| taken.insert(it.clone()))
            .unwrap_or_else(|| base.clone());
    }
}

/// What its jobs have in common in their names, such as `web` of `lint-web` and `test-web`; else
/// what it is about.
fn name(template: &Template, jobs: &[Written]) -> String {
    let mut names = template.jobs.iter().map(|at| jobs[*at].name.as_str());
    let mut tail = |name: &str| -> Option<String> {
        let (_, tail) = name.split_once('-')?;
        let same = names.all(|it| it.split_once('-').is_some_and(|(_, it)| it == tail));
        same.then(|| tail.to_owned())
    };
    let first = jobs[template.jobs[0]].name.clone();
    match tail(&first) {
        Some(tail) if tail.starts_with(|c: char| c.is_ascii_alphanumeric()) => tail,
        _ => about(template),
    }
}

/// What a template is about, by its keys: the one that it has, or the tool that its jobs ask for
/// first.
fn about(template: &Template) -> String {
    let keys: Vec<&str> = template.keys.iter().map(|(key, _)| *key).collect();
    let requires = template.keys.iter().find(|(key, _)| *key == "requires");
    let tool = requires.and_then(|(_, lines)| {
        let (_, list) = lines.split_once('[')?;
        let list = list.trim_start_matches('"');
        let end = list.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))?;
        Some(&list[..end]).filter(|it| it.starts_with(|c: char| c.is_ascii_alphanumeric()))
    });
    match (keys.as_slice(), tool) {
        (["if"], _) => "same-paths".to_owned(),
        ([key], _) => format!("same-{}", key.replace('_', "-")),
        (_, Some(tool)) => format!("jobs-with-{tool}"),
        _ => "shared".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, keys: &[(&'static str, &str)]) -> Written {
        let long = |(key, text): &(&'static str, &str)| (*key, text.repeat(200));
        Written {
            name: name.to_owned(),
            keys: keys.iter().map(long).collect(),
        }
    }

    #[test]
    fn each_set_of_jobs_that_share_something_has_one_template() {
        let jobs = [
            job("lint-web", &[("if", "w"), ("caches", "c"), ("steps", "l")]),
            job("test-web", &[("if", "w"), ("caches", "c"), ("steps", "t")]),
            job("test-api", &[("if", "a"), ("caches", "c"), ("steps", "t")]),
        ];
        let found = templates(&jobs);
        let shown: Vec<_> = found
            .iter()
            .map(|it| {
                let keys: Vec<&str> = it.keys.iter().map(|(key, _)| *key).collect();
                (it.name.as_str(), keys, it.jobs.clone())
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("web", vec!["if"], vec![0, 1]),
                ("same-caches", vec!["caches"], vec![0, 1, 2]),
                ("same-steps", vec!["steps"], vec![1, 2]),
            ]
        );
    }

    /// A template that says more than where caches are is not called after them.
    #[test]
    fn a_template_is_called_for_all_that_it_has() {
        let named = |keys: &[(&'static str, &str)]| {
            let jobs = [job("lint-web", keys), job("test-api", keys)];
            templates(&jobs)[0].name.clone()
        };
        let node = ("requires", "    requires: [\"node>=20\", npm]\n");
        let count = ("count_tests", "    count_tests: report\n");
        assert_eq!(named(&[node, ("caches", "c"), count]), "jobs-with-node");
        assert_eq!(named(&[("caches", "c")]), "same-caches");
        assert_eq!(named(&[("if", "i")]), "same-paths");
        assert_eq!(named(&[count]), "same-count-tests");
        assert_eq!(named(&[("caches", "c"), count]), "shared");
    }

    #[test]
    fn what_is_short_is_written_where_it_is() {
        let short = |name: &str| Written {
            name: name.to_owned(),
            keys: vec![("requires", "    requires: [node]\n".to_owned())],
        };
        assert!(templates(&[short("a"), short("b"), short("c")]).is_empty());
    }
}
