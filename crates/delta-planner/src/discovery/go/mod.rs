//! Go: modules by `go.mod`, several together by `go.work`. Tests write their events as JSON, which
//! is read as a report; on a failure they are printed, too. A module without tests is built, as is
//! one whose tests are all behind build tags; one without packages is left alone. Linted is what
//! golangci-lint is set up for.

mod constraint;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use delta_wire::job_spec::CountTests;

use self::constraint::{Built, built};
use super::found::first_there;
use super::found::{Cache, Ecosystem, Found, Job, MAX_PACKAGES, Package, Project};
use super::found::{Remark, Report, Step};
use super::{ignored, versions};
use crate::tree::{Tree, file_name, folder_of, join, resolve};

pub struct Go;

/// Lines of one `go.mod` that are looked at: large ones have a few thousand.
const MAX_LINES: usize = 50_000;

const SHARED: [&str; 5] = [
    "go.work",
    "go.work.sum",
    "go.mod",
    "go.sum",
    ".golangci.yml",
];

const LINT_FILES: [&str; 4] = [
    ".golangci.yml",
    ".golangci.yaml",
    ".golangci.toml",
    ".golangci.json",
];

/// What is said of a module in which there is nothing to build.
const EMPTY: &str = "is of a module without packages";

/// What is said of a module of which no test runs as it is.
const BEHIND: &str = "its tests are behind build tags: ";

/// What is known of a module's tests, for whoever would run them otherwise.
pub fn untested(found: &Found, folder: &str) -> Option<&'static str> {
    let path = join(folder, "go.mod");
    if found
        .remarks
        .iter()
        .any(|it| it.what == path && it.reason == EMPTY)
    {
        return Some("go.mod is of a module without packages");
    }
    let has = |kind| {
        let project = found.has_job(folder, kind);
        project.is_some_and(|it| it.ecosystem == Go.name())
    };
    let behind = |it: &Remark| it.what == path && it.reason.starts_with(BEHIND);
    let why = if found.remarks.iter().any(behind) {
        "the module's tests are behind build tags"
    } else {
        "the module has no tests"
    };
    (has("build") && !has("test")).then_some(why)
}

impl Ecosystem for Go {
    fn name(&self) -> &'static str {
        "Go"
    }

    fn own(&self) -> &'static [&'static str] {
        &["cmd", "internal", "pkg"]
    }

    fn looks_for(&self) -> &'static [&'static str] {
        &["go.mod", "go.work"]
    }

    fn find(&self, tree: &Tree, found: &mut Found) {
        let mut modules: BTreeMap<&str, Module> = BTreeMap::new();
        for path in tree.named("go.mod") {
            let folder = folder_of(path);
            if let Some(why) = ignored(folder) {
                found.remark(path, why);
            } else if modules.len() == MAX_PACKAGES {
                found.remark(path, format!("there are more than {MAX_PACKAGES} modules"));
                break;
            } else {
                modules.insert(folder, Module::read(&tree.text(path).unwrap_or_default()));
            }
        }
        let mut roots: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let used = used(tree);
        for folder in modules.keys() {
            let root = used.get(*folder).copied().unwrap_or(folder);
            roots.entry(root).or_default().push(folder);
        }
        for (root, folders) in roots {
            let mut project = project(tree, root, &folders, &modules, found);
            project.packages.retain(|package| {
                if package.jobs.is_empty() {
                    let path = join(&package.folder, "go.mod");
                    found.remark(path, EMPTY);
                }
                !package.jobs.is_empty()
            });
            found.projects.push(project);
        }
    }
}

/// What is needed of a `go.mod` or a `go.work`.
#[derive(Default)]
struct Module {
    path: String,
    version: Option<String>,
    requires: Vec<String>,
    /// Relative paths of modules that are taken from this tree.
    replaces: Vec<String>,
    uses: Vec<String>,
}

impl Module {
    fn read(text: &str) -> Module {
        let mut module = Module::default();
        let mut block = String::new();
        for line in text.lines().take(MAX_LINES) {
            let line = line.split("//").next().unwrap_or_default().trim();
            let (verb, rest) = match block.as_str() {
                "" => line.split_once([' ', '\t']).unwrap_or((line, "")),
                block => (block, line),
            };
            if line == ")" {
                block.clear();
            } else if rest.trim() == "(" {
                block = verb.to_owned();
            } else {
                let verb = verb.to_owned();
                module.line(&verb, rest.trim());
            }
        }
        module
    }

    fn line(&mut self, verb: &str, rest: &str) {
        let mut words = rest.split_whitespace().map(|it| it.trim_matches('"'));
        let Some(first) = words.next() else { return };
        match verb {
            "module" => self.path = first.to_owned(),
            "go" => self.version = Some(first.to_owned()),
            "require" => self.requires.push(first.to_owned()),
            "use" => self.uses.push(first.to_owned()),
            "replace" => {
                let target = rest.split_once("=>").map(|(_, it)| it.trim());
                let path = target.and_then(|it| it.split_whitespace().next());
                let local = path.filter(|it| it.starts_with('.'));
                self.replaces
                    .extend(local.map(|it| it.trim_matches('"').to_owned()));
            }
            _ => {}
        }
    }
}

/// The folders that a `go.work` names, and where it lies.
fn used(tree: &Tree) -> HashMap<String, &str> {
    let mut used = HashMap::new();
    for path in tree
        .named("go.work")
        .filter(|it| ignored(folder_of(it)).is_none())
    {
        let root = folder_of(path);
        let named = Module::read(&tree.text(path).unwrap_or_default()).uses;
        let folders = named.iter().filter_map(|it| resolve(root, it));
        used.extend(folders.map(|folder| (folder, root)));
    }
    used
}

fn project(
    tree: &Tree,
    root: &str,
    folders: &[&str],
    modules: &BTreeMap<&str, Module>,
    found: &mut Found,
) -> Project {
    let by_path: HashMap<&str, &str> = folders
        .iter()
        .map(|folder| (modules[folder].path.as_str(), *folder))
        .collect();
    let packages = folders.iter().map(|folder| {
        let module = &modules[folder];
        let replaced = module.replaces.iter().filter_map(|it| resolve(folder, it));
        let beside = module
            .requires
            .iter()
            .filter_map(|it| by_path.get(it.as_str()));
        let needed = replaced.chain(beside.map(|it| (*it).to_owned()));
        let sources = Sources::of(tree, folder, modules);
        if let Tests::Behind(tags) = &sources.tests {
            let tags: Vec<&str> = tags.iter().map(String::as_str).take(MAX_TAGS).collect();
            found.remark_part(
                join(folder, "go.mod"),
                format!("{BEHIND}{}", tags.join(", ")),
            );
        }
        Package {
            name: file_name(&module.path).to_owned(),
            folder: (*folder).to_owned(),
            depends_on: needed.filter(|it| it != folder).collect::<BTreeSet<_>>(),
            jobs: if sources.are_built() {
                jobs(tree, root, folder, module, &sources.tests)
            } else {
                Vec::new()
            },
            ..Package::default()
        }
    });
    Project {
        ecosystem: Go.name(),
        folder: root.to_owned(),
        packages: packages.collect(),
        shared: SHARED.iter().map(|it| join(root, it)).collect(),
        jobs: Vec::new(),
    }
}

/// What a module has.
struct Sources {
    /// It has a package that is built.
    built: bool,
    tests: Tests,
}

/// The tests of a module.
enum Tests {
    None,
    /// All of them need one of these tags, which nobody sets by default.
    Behind(BTreeSet<String>),
    /// Which are built depends on what is not known here.
    Perhaps,
    Some,
}

/// Sources of a module that are read for what they are built with: more of them are a program.
const MAX_READ: usize = 5;

/// Files with tests that are read for it; beyond it nobody can say.
const MAX_READ_TESTS: usize = 200;

/// Tags that a remark lists.
const MAX_TAGS: usize = 8;

impl Sources {
    fn of(tree: &Tree, folder: &str, modules: &BTreeMap<&str, Module>) -> Sources {
        let (mut own, mut tests) = (Vec::new(), Vec::new());
        for path in tree.below(folder).iter().filter(|it| it.ends_with(".go")) {
            let inner = path.strip_prefix(folder).unwrap_or(path);
            let inner = inner.trim_start_matches('/');
            let aside =
                |part: &str| part.starts_with(['_', '.']) || matches!(part, "testdata" | "vendor");
            let mut above = folder_of(path);
            while above.len() > folder.len() && !modules.contains_key(above) {
                above = folder_of(above);
            }
            if above.len() > folder.len() || inner.split('/').any(aside) {
                continue;
            }
            if path.ends_with("_test.go") {
                tests.push(path.as_str())
            } else {
                own.push(path.as_str())
            }
        }
        let read = |path: &str| tree.text(path).unwrap_or_default();
        let never = |path: &str| match built(file_name(path), &read(path)) {
            Built::Behind(tags) => tags.iter().any(|it| it == "tools" || it == "ignore"),
            Built::Always | Built::Perhaps => is_never(&read(path)),
        };
        Sources {
            built: own.len() > MAX_READ || own.iter().any(|path| !never(path)),
            tests: Tests::of(tree, &tests),
        }
    }

    fn are_built(&self) -> bool {
        self.built || matches!(self.tests, Tests::Some | Tests::Perhaps)
    }
}

/// Whether a file is for tools alone, as it was written before Go 1.17.
fn is_never(text: &str) -> bool {
    let mut lines = text.lines().take_while(|it| !it.starts_with("package "));
    lines.any(|it| matches!(it.trim(), "// +build tools" | "// +build ignore"))
}

impl Tests {
    fn of(tree: &Tree, files: &[&str]) -> Tests {
        let (mut behind, mut perhaps) = (BTreeSet::new(), files.len() > MAX_READ_TESTS);
        for path in files.iter().take(MAX_READ_TESTS) {
            // What cannot be read could be anything.
            let Ok(text) = tree.text(path) else {
                perhaps = true;
                continue;
            };
            match built(file_name(path), &text) {
                Built::Always => return Tests::Some,
                Built::Perhaps => perhaps = true,
                Built::Behind(tags) => behind.extend(tags),
            }
        }
        match (perhaps, behind.is_empty()) {
            (true, _) => Tests::Perhaps,
            (false, true) => Tests::None,
            (false, false) => Tests::Behind(behind),
        }
    }
}

impl Tests {
    /// Why none is run, if that is known.
    fn missing(&self) -> Option<&'static str> {
        match self {
            Tests::None => Some("there are no tests"),
            Tests::Behind(_) => Some("no test runs without a build tag"),
            Tests::Perhaps | Tests::Some => None,
        }
    }
}

fn jobs(tree: &Tree, root: &str, folder: &str, module: &Module, tests: &Tests) -> Vec<Job> {
    let path = join(folder, "go.mod");
    let sum = join(folder, "go.sum");
    let base = Job {
        workdir: folder.to_owned(),
        requires: vec![match &module.version {
            Some(version) => versions::requirement("go", version),
            None => "go".to_owned(),
        }],
        caches: tree
            .has(&sum)
            .then(|| Cache::locked("go", &sum, &["~/go/pkg/mod"]))
            .flatten()
            .into_iter()
            .collect(),
        ..Job::default()
    };
    let mut jobs = Vec::new();
    let set_up = [folder, root].iter().find_map(|it| {
        let name = first_there(tree, it, &LINT_FILES)?;
        Some(join(it, name))
    });
    if let Some(path) = set_up {
        let mut requires = base.requires.clone();
        requires.push(linter(&tree.text(&path).unwrap_or_default()));
        jobs.push(Job {
            kind: "lint",
            steps: vec![Step::of("golangci-lint run")],
            requires,
            reason: format!("{path}: golangci-lint is set up"),
            ..base.clone()
        });
    }
    if let Some(why) = tests.missing() {
        jobs.push(Job {
            kind: "build",
            steps: vec![Step::of("go build ./...")],
            reason: format!("{path}: {why}; it is built"),
            ..base
        });
        return jobs;
    }
    // Where perhaps none is built, nothing is counted.
    let sure = matches!(tests, Tests::Some);
    let report = Report::in_folder(folder, "json", "test-results.json");
    // Only what went wrong is worth reading as text; the rest is in the report.
    let test = "go test -json ./... > test-results.json || \
                { code=$?; cat test-results.json; exit $code; }";
    jobs.push(Job {
        kind: "test",
        steps: vec![Step::of(if report.is_some() {
            test
        } else {
            "go test ./..."
        })],
        count: Some(match &report {
            _ if !sure => CountTests::None,
            Some(_) => CountTests::Report,
            None => CountTests::Output,
        }),
        results: report.into_iter().collect(),
        reason: format!("{path}: tests"),
        ..base
    });
    jobs
}

/// Files of the second version say so, and the first one does not read them.
fn linter(text: &str) -> String {
    let second = text.lines().take(MAX_LINES).any(|line| {
        let value = line.trim().strip_prefix("version").unwrap_or_default();
        let value = value.trim_start_matches([' ', ':', '=', '"', '\'']);
        line.starts_with("version") && value.starts_with('2')
    });
    if second {
        "golangci-lint>=2".to_owned()
    } else {
        "golangci-lint".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kinds of the jobs of a module with these files, how tests are counted, and the remarks.
    fn of(files: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let files = files.iter().copied().chain([("go.mod", "module a\n")]);
        let tree = Tree::of(files.map(|(path, text)| (path.to_owned(), text.to_owned())));
        let mut found = Found::default();
        Go.find(&tree, &mut found);
        let packages = found.projects.iter().flat_map(|it| &it.packages);
        let jobs = packages.flat_map(|it| &it.jobs);
        let count = |it: &Job| it.count.map_or("", |it| it.as_str());
        let jobs = jobs.map(|it| format!("{} {}", it.kind, count(it)).trim().to_owned());
        let said = found.remarks.iter().map(|it| it.reason.clone());
        (jobs.collect(), said.collect())
    }

    #[test]
    fn tests_behind_build_tags_are_not_expected_to_run() {
        let own = ("a.go", "package a\n");
        let behind = ("a_test.go", "//go:build integration\n\npackage a\n");
        let (jobs, said) = of(&[own, behind]);
        assert_eq!(jobs, ["build"]);
        assert_eq!(said, ["its tests are behind build tags: integration"]);
        let (jobs, said) = of(&[own, behind, ("b_test.go", "package a\n")]);
        assert_eq!((jobs, said.len()), (vec!["test report".to_owned()], 0));
        for doubtful in [
            ("b_linux_test.go", "package a\n"),
            ("b_test.go", "//go:build cgo\n\npackage a\n"),
        ] {
            assert_eq!(
                of(&[own, behind, doubtful]).0,
                ["test none"],
                "{doubtful:?}"
            );
        }
        assert!(of(&[behind]).0.is_empty(), "there is nothing to build");
    }

    #[test]
    fn a_go_mod_is_read_in_lines_and_in_blocks() {
        let text = "module example.org/a // here\n\ngo 1.22\n\nrequire example.org/x v1.0.0\n\
                    require (\n\texample.org/b v0.0.0\n\texample.org/c v1.2.3 // indirect\n)\n\
                    replace example.org/b => ../b\n\
                    replace (\n  example.org/d v1.0.0 => ./d\n  example.org/e => example.org/f v1\n)\n";
        let module = Module::read(text);
        assert_eq!(module.path, "example.org/a");
        assert_eq!(module.version.as_deref(), Some("1.22"));
        assert_eq!(
            module.requires,
            ["example.org/x", "example.org/b", "example.org/c"]
        );
        assert_eq!(module.replaces, ["../b", "./d"]);
        let work = Module::read("go 1.22\nuse (\n\t./a\n\t./b\n)\nuse ./c\n");
        assert_eq!(work.uses, ["./a", "./b", "./c"]);
    }
}
