//! Make: the targets `lint`, `build`, `test` and `check` of a makefile. A target is left to another
//! tool of the same folder where that has a job of the same kind: makefiles usually wrap it, and
//! the tool itself writes reports.

use std::collections::BTreeSet;

use super::found::{Ecosystem, Found, Job, MAX_PACKAGES, Package, Project, Step};
use super::ignored;
use crate::tree::{Tree, file_name, folder_of, join};

pub struct Make;

/// In the order in which GNU make looks for them.
const NAMES: [&str; 3] = ["GNUmakefile", "makefile", "Makefile"];

const TARGETS: [&str; 4] = ["lint", "build", "test", "check"];

/// Lines of one makefile that are looked at; generated ones have tens of thousands.
const MAX_LINES: usize = 100_000;

impl Ecosystem for Make {
    fn name(&self) -> &'static str {
        "Make"
    }

    fn own(&self) -> &'static [&'static str] {
        &[]
    }

    fn looks_for(&self) -> &'static [&'static str] {
        &["Makefile", "GNUmakefile"]
    }

    fn find(&self, tree: &Tree, found: &mut Found) {
        let mut folders: BTreeSet<&str> = BTreeSet::new();
        for path in tree.paths() {
            if NAMES.contains(&file_name(path)) && folders.len() < MAX_PACKAGES {
                folders.insert(folder_of(path));
            }
        }
        for folder in folders {
            let name = NAMES.iter().find(|it| tree.has(&join(folder, it)));
            let path = join(folder, name.unwrap_or(&"Makefile"));
            // One below another makefile is usually started by it.
            let root = folder.is_empty() || !beneath(tree, folder);
            if let Some(why) = ignored(folder) {
                found.remark(path, why);
            } else if !root {
                found.remark(path, "lies below another makefile");
            } else {
                one(tree, folder, &path, found);
            }
        }
    }
}

fn beneath(tree: &Tree, folder: &str) -> bool {
    let mut above = folder;
    while !above.is_empty() {
        above = folder_of(above);
        if NAMES.iter().any(|name| tree.has(&join(above, name))) {
            return true;
        }
    }
    false
}

fn one(tree: &Tree, folder: &str, path: &str, found: &mut Found) {
    let text = match tree.text(path) {
        Ok(text) => text,
        Err(why) => return found.remark(path, why.to_string()),
    };
    let targets = targets(&text);
    let mut jobs = Vec::new();
    for target in TARGETS.into_iter().filter(|it| targets.contains(it)) {
        // `check` is the word for tests where there is no `test`.
        let kinds: &[&str] = match target {
            "lint" => &["lint", "clippy"],
            "check" => &["test", "check"],
            other => &[other],
        };
        let other = kinds.iter().find_map(|kind| found.has_job(folder, kind));
        if let Some(other) = other {
            let reason = format!("{} has jobs for it in the same folder", other.ecosystem);
            found.remark(format!("make {target}"), reason);
            continue;
        }
        jobs.push(Job {
            kind: target,
            steps: vec![Step::of(format!("make {target}"))],
            workdir: folder.to_owned(),
            reason: format!("{path}: target {target}"),
            ..Job::default()
        });
    }
    if jobs.is_empty() {
        if !TARGETS.iter().any(|it| targets.contains(it)) {
            found.remark(path, "has no target called lint, build, test or check");
        }
        return;
    }
    found.projects.push(Project {
        ecosystem: Make.name(),
        folder: folder.to_owned(),
        shared: Vec::new(),
        packages: vec![Package {
            name: file_name(folder).to_owned(),
            folder: folder.to_owned(),
            jobs,
            anything: true,
            ..Package::default()
        }],
        jobs: Vec::new(),
    });
}

/// Names that stand before a colon at the beginning of a line, assignments left out.
fn targets(text: &str) -> BTreeSet<&str> {
    let mut targets = BTreeSet::new();
    for line in text.lines().take(MAX_LINES) {
        if line.starts_with(['\t', ' ', '#', '.']) {
            continue;
        }
        let Some((names, rest)) = line.split_once(':') else {
            continue;
        };
        let assigns = rest.starts_with('=') || rest.starts_with(":=") || names.contains('=');
        if !assigns {
            targets.extend(names.split_whitespace());
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_from_assignments_and_recipes() {
        let text = ".PHONY: all test\nCC := cc\nX ::= y\nA = b:c\nall: test\ntest lint: x | y\n\
                    \tcheck: no\nbuild:: z\n# check:\nOPT ?= a:b\n";
        let found: Vec<&str> = targets(text).into_iter().collect();
        assert_eq!(found, ["all", "build", "lint", "test"]);
    }
}
