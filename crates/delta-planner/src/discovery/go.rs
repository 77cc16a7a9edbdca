//! Go: modules by `go.mod`, several together by `go.work`. Tests write their events as JSON, which
//! is read as a report; on a failure they are printed, too. A module without tests is built, one
//! without packages left alone; linted is what golangci-lint is set up for.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use delta_wire::job_spec::CountTests;

use super::found::first_there;
use super::found::{Cache, Ecosystem, Found, Job, MAX_PACKAGES, Package, Project, Report, Step};
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
    (has("build") && !has("test")).then_some("the module has no tests")
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
            let mut project = project(tree, root, &folders, &modules);
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

fn project(tree: &Tree, root: &str, folders: &[&str], modules: &BTreeMap<&str, Module>) -> Project {
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
        Package {
            name: file_name(&module.path).to_owned(),
            folder: (*folder).to_owned(),
            depends_on: needed.filter(|it| it != folder).collect::<BTreeSet<_>>(),
            jobs: match Sources::of(tree, folder, modules) {
                Sources::None => Vec::new(),
                sources => jobs(tree, root, folder, module, sources == Sources::Tested),
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
#[derive(PartialEq, Eq)]
enum Sources {
    /// No package that is ever built.
    None,
    Untested,
    Tested,
}

/// Sources of a module that are read for what they are built with: more of them are a program.
const MAX_READ: usize = 5;

impl Sources {
    fn of(tree: &Tree, folder: &str, modules: &BTreeMap<&str, Module>) -> Sources {
        let mut own = Vec::new();
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
                return Sources::Tested;
            }
            own.push(path);
        }
        let built = own.len() > MAX_READ
            || own.iter().any(|path| {
                let text = tree.text(path).unwrap_or_default();
                let mut lines = text
                    .lines()
                    .take_while(|line| !line.starts_with("package "));
                let never = [
                    "//go:build tools",
                    "//go:build ignore",
                    "// +build tools",
                    "// +build ignore",
                ];
                !lines.any(|line| never.contains(&line.trim()))
            });
        match built {
            true => Sources::Untested,
            false => Sources::None,
        }
    }
}

fn jobs(tree: &Tree, root: &str, folder: &str, module: &Module, tested: bool) -> Vec<Job> {
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
    if !tested {
        jobs.push(Job {
            kind: "build",
            steps: vec![Step::of("go build ./...")],
            reason: format!("{path}: there are no tests; it is built"),
            ..base
        });
        return jobs;
    }
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
    match second {
        true => "golangci-lint>=2".to_owned(),
        false => "golangci-lint".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
