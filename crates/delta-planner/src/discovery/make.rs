//! Make: the targets `lint`, `build`, `test` and `check` of a makefile. A target is left to another
//! tool of the same folder where that has a job of the same kind: makefiles usually wrap it, and
//! the tool itself writes reports.

use std::collections::{BTreeMap, BTreeSet};

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
    for target in TARGETS.into_iter().filter(|it| targets.contains_key(it)) {
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
        // Both are words for tests; one that needs the other does it, too.
        let same = match target {
            "test" => Some("check"),
            "check" => Some("test"),
            _ => None,
        };
        let wider = same.filter(|it| needs(&targets, it, target));
        if let Some(wider) = wider.filter(|it| *it == "test" || !needs(&targets, target, it)) {
            let reason = format!("make {wider} needs it, and does it");
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
        if !TARGETS.iter().any(|it| targets.contains_key(it)) {
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

/// Names that stand before a colon at the beginning of a line, assignments left out, each with
/// what it needs.
fn targets(text: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut targets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut lines = text.lines().take(MAX_LINES);
    while let Some(line) = lines.next() {
        if line.starts_with(['\t', ' ', '#', '.']) {
            continue;
        }
        let Some((names, rest)) = line.split_once(':') else {
            continue;
        };
        let assigns = rest.starts_with('=') || rest.starts_with(":=") || names.contains('=');
        if assigns {
            continue;
        }
        let mut needed = BTreeSet::new();
        let mut part = rest;
        loop {
            // Behind a semicolon stands a recipe.
            let end = part.find([';', '#']);
            let words = part[..end.unwrap_or(part.len())].split_whitespace();
            needed.extend(words.map(|it| it.trim_matches(['\\', ':'])));
            let goes_on = end.is_none() && part.ends_with('\\');
            match goes_on.then(|| lines.next()).flatten() {
                Some(next) => part = next,
                None => break,
            }
        }
        for name in names.split_whitespace() {
            targets.entry(name).or_default().extend(&needed);
        }
    }
    targets
}

/// Whether making one target makes another.
fn needs(targets: &BTreeMap<&str, BTreeSet<&str>>, target: &str, other: &str) -> bool {
    let mut seen = BTreeSet::from([target]);
    let mut open = vec![target];
    while let Some(at) = open.pop() {
        let needed = targets.get(at).into_iter().flatten();
        open.extend(needed.copied().filter(|it| seen.insert(it)));
    }
    target != other && seen.contains(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_from_assignments_and_recipes() {
        let text = ".PHONY: all test\nCC := cc\nX ::= y\nA = b:c\nall: test\ntest lint: x | y\n\
                    \tcheck: no\nbuild:: z\n# check:\nOPT ?= a:b\n";
        let found: Vec<&str> = targets(text).into_keys().collect();
        assert_eq!(found, ["all", "build", "lint", "test"]);
    }

    fn jobs(text: &str) -> Vec<&'static str> {
        let tree = Tree::of([("Makefile".to_owned(), text.to_owned())]);
        let mut found = Found::default();
        Make.find(&tree, &mut found);
        let jobs = found.projects.iter().flat_map(|it| &it.packages[0].jobs);
        jobs.map(|it| it.kind).collect()
    }

    #[test]
    fn a_target_that_another_needs_is_made_once() {
        assert_eq!(jobs("test: check\ncheck:\n\ttrue\n"), ["test"]);
        assert_eq!(
            jobs("check: lint \\\n  unit\nunit: test\nlint test:\n"),
            ["lint", "check"]
        );
        assert_eq!(jobs("test: check\ncheck: test\n"), ["test"]);
        assert_eq!(
            jobs("test: a # check\ncheck: b ; test\n"),
            ["test", "check"]
        );
        assert_eq!(jobs("build:\ntest: build\n"), ["build", "test"]);
    }
}
