//! Make: the targets `lint`, `build`, `test` and `check` of a makefile.
//!
//! Where another tool of the same folder has a job of the same kind, the target takes its place if
//! its recipe brings along what it needs (`go test`, `cargo …`, `uv run …`): it is what maintainers
//! run, and does at least as much. One that takes tools for granted that the other job installs is
//! left to that. Tools that a recipe calls are requirements of the job.

mod recipes;

use std::collections::BTreeSet;

use delta_wire::job_spec::CountTests;

use self::recipes::Makefile;
use super::found::{Ecosystem, Found, Job, MAX_PACKAGES, Package, Project, Step};
use super::{ignored, tools, versions};
use crate::tree::{Tree, file_name, folder_of, join};

pub struct Make;

/// In the order in which GNU make looks for them.
const NAMES: [&str; 3] = ["GNUmakefile", "makefile", "Makefile"];

const TARGETS: [&str; 4] = ["lint", "build", "test", "check"];

/// Beginnings of commands that bring along what they need.
const WHOLE: [&str; 12] = [
    "go test",
    "go vet",
    "go build",
    "golangci-lint",
    "gotestsum",
    "cargo ",
    "uv run",
    "uvx ",
    "poetry run",
    "hatch ",
    "tox",
    "nox",
];

/// Words of a recipe whose tool ends with a line that is counted.
const COUNTED: [&str; 9] = [
    "go test",
    "gotestsum",
    "cargo test",
    "cargo nextest",
    "pytest",
    "unittest",
    "ctest",
    "prove",
    "mocha",
];

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
    let makefile = Makefile::read(&text);
    let mut jobs = Vec::new();
    for target in TARGETS.into_iter().filter(|it| makefile.has(it)) {
        let job = job(folder, path, target, &makefile);
        // `check` is the word for tests where there is no `test`.
        let kinds: &[&str] = match target {
            "lint" => &["lint", "clippy"],
            "check" => &["test", "check"],
            other => &[other],
        };
        if let Some(other) = kinds.iter().find_map(|kind| found.has_job(folder, kind)) {
            let name = other.ecosystem;
            let commands = makefile.commands(target);
            let begins = |line: &String| WHOLE.iter().any(|it| line.starts_with(it));
            let whole = commands.iter().any(begins);
            if whole && target != "check" {
                take_place(found, folder, kinds, job);
            } else {
                let reason = format!("{name} has jobs for it in the same folder");
                found.remark(format!("make {target}"), reason);
            }
            continue;
        }
        // Both are words for tests; one that needs the other does it, too.
        let same = match target {
            "test" => Some("check"),
            "check" => Some("test"),
            _ => None,
        };
        let wider = same.filter(|it| makefile.needs(it, target));
        if let Some(wider) = wider.filter(|it| *it == "test" || !makefile.needs(target, it)) {
            let reason = format!("make {wider} needs it, and does it");
            found.remark(format!("make {target}"), reason);
            continue;
        }
        jobs.push(job);
    }
    if jobs.is_empty() {
        if !TARGETS.iter().any(|it| makefile.has(it)) {
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

fn job(folder: &str, path: &str, target: &'static str, makefile: &Makefile<'_>) -> Job {
    let commands = makefile.commands(target);
    let mut requires = vec!["make".to_owned()];
    for tool in commands.iter().flat_map(|it| tools::of_script(it)) {
        if !requires.iter().any(|it| it == tool) {
            requires.push(tool.to_owned());
        }
    }
    let tests = matches!(target, "test" | "check");
    let counted = commands
        .iter()
        .any(|line| COUNTED.iter().any(|it| line.contains(it)));
    Job {
        kind: target,
        steps: vec![Step::of(format!("make {target}"))],
        workdir: folder.to_owned(),
        requires,
        count: tests.then_some(match counted {
            true => CountTests::Output,
            false => CountTests::None,
        }),
        reason: format!("{path}: target {target}"),
        ..Job::default()
    }
}

/// Puts a target where another tool has jobs of these kinds: it keeps what those ask for.
fn take_place(found: &mut Found, folder: &str, kinds: &[&str], job: Job) {
    let replace = |jobs: &mut Vec<Job>| {
        let Some(at) = jobs.iter().position(|it| kinds.contains(&it.kind)) else {
            return;
        };
        let mut new = Job {
            caches: jobs[at].caches.clone(),
            ..job.clone()
        };
        new.requires.extend(jobs[at].requires.iter().cloned());
        new.requires = versions::strictest(&new.requires);
        jobs[at] = new;
        let mut seen = 0;
        jobs.retain(|it| {
            seen += usize::from(kinds.contains(&it.kind));
            !kinds.contains(&it.kind) || seen == 1
        });
    };
    for project in &mut found.projects {
        if project.folder == folder {
            replace(&mut project.jobs);
        }
        for package in project.packages.iter_mut().filter(|it| it.folder == folder) {
            replace(&mut package.jobs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Found {
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        let tree = Tree::of(files);
        let mut found = Found::default();
        super::super::go::Go.find(&tree, &mut found);
        Make.find(&tree, &mut found);
        found
    }

    fn jobs(text: &str) -> Vec<Job> {
        let found = found(&[("Makefile", text)]);
        let jobs = found
            .projects
            .into_iter()
            .flat_map(|it| it.packages)
            .flat_map(|it| it.jobs);
        jobs.collect()
    }

    fn kinds(text: &str) -> Vec<&'static str> {
        jobs(text).iter().map(|it| it.kind).collect()
    }

    #[test]
    fn a_target_that_another_needs_is_made_once() {
        assert_eq!(kinds("test: check\ncheck:\n\ttrue\n"), ["test"]);
        assert_eq!(
            kinds("check: lint \\\n  unit\nunit: test\nlint test:\n"),
            ["lint", "check"]
        );
        assert_eq!(kinds("test: check\ncheck: test\n"), ["test"]);
        assert_eq!(
            kinds("test: a # check\ncheck: b ; test\n"),
            ["test", "check"]
        );
        assert_eq!(kinds("build:\ntest: build\n"), ["build", "test"]);
    }

    #[test]
    fn tools_of_a_recipe_are_asked_for() {
        let text = "TIDY ?= clang-tidy\nlint: style\n\t@$(TIDY) jsmn.h -- -std=c99\nstyle:\n\
                    \t-${MAKE} x\n\tclang-format --dry-run a.c\ntest:\n\t./run\n";
        let jobs = jobs(text);
        assert_eq!(jobs[0].requires, ["make", "clang-tidy", "clang-format"]);
        assert_eq!(jobs[0].count, None);
        assert_eq!(jobs[1].requires, ["make"]);
        assert_eq!(jobs[1].count, Some(CountTests::None));
    }

    /// What maintainers run is at least what a plan of ours would.
    #[test]
    fn a_target_that_does_the_same_takes_the_place_of_ours() {
        let module = [("go.mod", "module a\ngo 1.22\n"), ("a.go", "package a\n")];
        let of = |makefile: &str| {
            let files = [
                module[0],
                module[1],
                ("a_test.go", ""),
                ("Makefile", makefile),
            ];
            let found = found(&files);
            let jobs = found
                .projects
                .iter()
                .flat_map(|it| &it.packages)
                .flat_map(|it| &it.jobs);
            let steps = jobs.map(|it| (it.steps[0].head.clone(), it.requires.join(" ")));
            steps.collect::<Vec<_>>()
        };
        let whole = of("test: vet\n\tgo test -race ./...\nvet:\n\tgo vet ./...\n");
        assert_eq!(
            whole,
            [("make test".to_owned(), "go>=1.22 make".to_owned())]
        );
        let other = of("test:\n\tdocker compose run test\n");
        assert!(other[0].0.starts_with("go test"), "{other:?}");
    }
}
