//! Names of jobs: the kind alone where there is one of it, else the kind and what it is for. They
//! follow from what was found, never from what changed, so that a job keeps its name.

use std::collections::{HashMap, HashSet};

use delta_wire::api::create_run::MAX_NAME;

use super::found::Found;
use crate::tree::file_name;

/// A job's place: project, package (none for the project's own), and number among its jobs.
pub type Place = (usize, Option<usize>, usize);

pub fn names(found: &Found) -> HashMap<Place, String> {
    let mut wanted: Vec<Wanted> = Vec::new();
    for (number, project) in found.projects.iter().enumerate() {
        let whole = labels(&project.folder, project.ecosystem, None);
        for (at, job) in project.jobs.iter().enumerate() {
            wanted.push(Wanted {
                place: (number, None, at),
                kind: job.kind,
                at_root: project.folder.is_empty(),
                labels: whole.clone(),
            });
        }
        for (inner, package) in project.packages.iter().enumerate() {
            let labels = labels(&package.folder, project.ecosystem, Some(&package.name));
            for (at, job) in package.jobs.iter().enumerate() {
                wanted.push(Wanted {
                    place: (number, Some(inner), at),
                    kind: job.kind,
                    at_root: package.folder.is_empty(),
                    labels: labels.clone(),
                });
            }
        }
    }
    // How many there are of a kind, and how many of them are for the root.
    let mut kinds: HashMap<&str, (usize, usize)> = HashMap::new();
    for it in &wanted {
        let (all, at_root) = kinds.entry(it.kind).or_default();
        *all += 1;
        *at_root += usize::from(it.at_root);
    }
    let mut taken: HashSet<String> = HashSet::new();
    let mut names = HashMap::new();
    for it in wanted {
        // The only one for the root has the word to itself: the others say what they are for.
        let name = match kinds[it.kind] {
            (1, _) => it.kind.to_owned(),
            (_, 1) if it.at_root => it.kind.to_owned(),
            _ => free(it.kind, &it.labels, &taken),
        };
        taken.insert(name.clone());
        names.insert(it.place, name);
    }
    names
}

/// A job that is to have a name.
struct Wanted {
    place: Place,
    kind: &'static str,
    at_root: bool,
    labels: Vec<String>,
}

/// What a package may be called, best first.
fn labels(folder: &str, ecosystem: &str, name: Option<&str>) -> Vec<String> {
    let ecosystem = ecosystem.to_ascii_lowercase();
    let mut labels = Vec::new();
    match folder {
        "" => {
            labels.push(ecosystem.clone());
            labels.extend(name.map(str::to_owned));
        }
        folder => {
            labels.extend(name.map(str::to_owned));
            labels.push(file_name(folder).to_owned());
            labels.push(folder.to_owned());
            labels.push(format!("{ecosystem}-{folder}"));
        }
    }
    let clean = labels.iter().map(|it| clean(it));
    clean.filter(|it| !it.is_empty()).collect()
}

/// Letters, digits and the marks that a name of a job may have; the rest becomes a dash.
fn clean(label: &str) -> String {
    let letter = |c: char| match c {
        c if c.is_ascii_alphanumeric() || matches!(c, '_' | '.') => c,
        _ => '-',
    };
    let mut text: String = label.chars().take(MAX_NAME / 2).map(letter).collect();
    while text.contains("--") {
        text = text.replace("--", "-");
    }
    text.trim_matches('-').to_owned()
}

fn free(kind: &str, labels: &[String], taken: &HashSet<String>) -> String {
    let full = labels.iter().map(|label| format!("{kind}-{label}"));
    if let Some(name) = full.into_iter().find(|name| !taken.contains(name)) {
        return name;
    }
    let label = labels.first().map_or("job", String::as_str);
    let mut numbers = 2_usize..;
    let named = numbers.find_map(|n| {
        let name = format!("{kind}-{label}-{n}");
        (!taken.contains(&name)).then_some(name)
    });
    named.unwrap_or_else(|| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_becomes_a_plain_one() {
        assert_eq!(clean("@scope/ui"), "scope-ui");
        assert_eq!(clean("$(id); rm -rf *"), "id-rm-rf");
        assert_eq!(clean("日本"), "");
        assert_eq!(clean(&"x".repeat(500)).len(), MAX_NAME / 2);
    }

    #[test]
    fn names_that_are_taken_are_told_apart() {
        let labels = vec!["ui".to_owned(), "web-ui".to_owned()];
        let mut taken = HashSet::new();
        for wanted in ["test-ui", "test-web-ui", "test-ui-2", "test-ui-3"] {
            let name = free("test", &labels, &taken);
            assert_eq!(name, wanted);
            taken.insert(name);
        }
    }
}
