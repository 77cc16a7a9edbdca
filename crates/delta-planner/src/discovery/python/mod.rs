//! Python by `pyproject.toml`, `tox.ini`, `noxfile.py`, `setup.py` or requirements: tests by tox or
//! nox where the project has set them up, else by pytest, which writes a report, else by unittest.
//!
//! What is installed follows the lock file: uv, poetry, or pip into a folder of the job's own. A
//! project that declares nothing to install is tested with the Python that is there.

mod declared;
mod install;
mod suites;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use self::declared::Declared;
use self::install::{Install, Needs};
use self::suites::{Runner, Tests};
use super::found::{Ecosystem, Found, Job, MAX_PACKAGES, Package, Project, Report, Step};
use super::{ignored, versions};
use crate::tree::{Tree, file_name, folder_of, join};

pub struct Python;

/// Files that make their folder a project.
const MANIFESTS: [&str; 7] = [
    "pyproject.toml",
    "tox.ini",
    "noxfile.py",
    "setup.py",
    "setup.cfg",
    "requirements.txt",
    "pytest.ini",
];

/// Files beside a root's manifest that concern everything below it.
const SHARED: [&str; 8] = [
    "pyproject.toml",
    "uv.lock",
    "poetry.lock",
    "tox.ini",
    "noxfile.py",
    ".python-version",
    "conftest.py",
    "pytest.ini",
];

/// Where the root's own files are when packages lie below it.
const OWN: &[&str] = &["src", "tests", "test"];

impl Ecosystem for Python {
    fn name(&self) -> &'static str {
        "Python"
    }

    fn own(&self) -> &'static [&'static str] {
        OWN
    }

    fn looks_for(&self) -> &'static [&'static str] {
        &MANIFESTS
    }

    fn find(&self, tree: &Tree, found: &mut Found) {
        let mut folders: BTreeSet<&str> = BTreeSet::new();
        for path in tree.paths() {
            if MANIFESTS.contains(&file_name(path)) {
                folders.insert(folder_of(path));
            }
        }
        let tested = suites::of_projects(tree, &folders);
        let (untested, read) = (Tests::default(), Cell::new(0));
        let mut packages: BTreeMap<&str, Declared> = BTreeMap::new();
        for folder in folders {
            if let Some(why) = ignored(folder) {
                found.remark(join(folder, "pyproject.toml"), why);
            } else if packages.len() < MAX_PACKAGES {
                packages.insert(folder, Declared::read(tree, folder));
            } else {
                found.remark(
                    folder,
                    format!("there are more than {MAX_PACKAGES} packages"),
                );
                break;
            }
        }
        let mut groups: BTreeMap<&str, Vec<Package>> = BTreeMap::new();
        for (folder, declared) in &packages {
            let root = workspace_of(folder, &packages);
            let tests = tested.get(folder).unwrap_or(&untested);
            let install = Install::of(tree, folder, root, declared);
            // Only uv installs what the workspace declares with the package.
            let workspace = packages
                .get(root)
                .filter(|_| matches!(install, Install::Uv(..)));
            let seen = Seen {
                tree,
                folder,
                declared,
                workspace: workspace.unwrap_or(declared),
                install,
            };
            let jobs = seen.jobs(tests, &read, found);
            let named = declared.name.clone();
            let mut depends_on = declared.needs(folder, &packages);
            // Its tests and linters go through the folders below it, too.
            let inside = |it: &&&str| is_below(it, folder);
            depends_on.extend(packages.keys().filter(inside).map(|it| (*it).to_owned()));
            groups.entry(root).or_default().push(Package {
                name: named.unwrap_or_else(|| file_name(folder).to_owned()),
                folder: (*folder).to_owned(),
                depends_on,
                jobs,
                ..Package::default()
            });
        }
        for (root, packages) in groups {
            if packages.iter().all(|it| it.jobs.is_empty()) {
                continue;
            }
            found.projects.push(Project {
                ecosystem: self.name(),
                folder: root.to_owned(),
                shared: SHARED.iter().map(|it| join(root, it)).collect(),
                packages,
                jobs: Vec::new(),
            });
        }
    }
}

fn is_below(folder: &str, above: &str) -> bool {
    match above {
        "" => !folder.is_empty(),
        above => folder
            .strip_prefix(above)
            .is_some_and(|it| it.starts_with('/')),
    }
}

/// The uv workspace a folder belongs to, or the folder itself.
fn workspace_of<'f>(folder: &'f str, packages: &BTreeMap<&'f str, Declared>) -> &'f str {
    let mut above = folder;
    while !above.is_empty() {
        above = folder_of(above);
        if let Some((root, declared)) = packages.get_key_value(above) {
            let mut members = declared.members(root);
            if members.any(|glob| glob.matches(folder)) {
                return root;
            }
        }
    }
    folder
}

/// One project, with what decides how it is tested.
struct Seen<'a> {
    tree: &'a Tree,
    folder: &'a str,
    declared: &'a Declared,
    /// What is declared by the workspace that it is installed with, or once more by itself.
    workspace: &'a Declared,
    install: Install,
}

impl Seen<'_> {
    fn jobs(mut self, tests: &Tests<'_>, read: &Cell<usize>, found: &mut Found) -> Vec<Job> {
        let base = Job {
            workdir: self.folder.to_owned(),
            requires: vec![python_version(self.tree, self.folder, self.declared)],
            caches: self.install.cache().into_iter().collect(),
            ..Job::default()
        };
        let mut jobs: Vec<Job> = self.lint(&base).into_iter().collect();
        let runner = match (self.declared.tox, self.declared.nox) {
            (true, _) => Some(("tox", "tox run")),
            (false, true) => Some(("nox", "nox")),
            (false, false) => None,
        };
        if let Some((tool, command)) = runner {
            let mut steps = self.install.tool(tool);
            steps.push(self.install.run_tool(command));
            jobs.push(Job {
                kind: "test",
                steps: steps.into_iter().map(Step::of).collect(),
                reason: format!("{tool} is set up: its environments decide what is tested"),
                ..base
            });
            return jobs;
        }
        let manifest = join(self.folder, self.declared.manifest);
        if !self.declared.configured && !tests.conftest && tests.files.is_empty() {
            if jobs.is_empty() {
                let why = "has no tests, no tox, no nox and no linter set up";
                found.remark(manifest, why);
            }
            return jobs;
        }
        let runner = match self.declared.pytest {
            true => Runner::Pytest,
            false => tests.runner(self.tree, self.folder, read),
        };
        jobs.push(match runner {
            Runner::Pytest => self.pytest(&manifest, base),
            Runner::Unittest(commands) => self.unittest(&manifest, &commands, base),
        });
        jobs
    }

    fn lint(&self, base: &Job) -> Option<Job> {
        let linters = &self.declared.linters;
        if linters.is_empty() {
            return None;
        }
        let tools: Vec<&str> = linters.iter().map(|it| it.tool).collect();
        let commands: Vec<&str> = linters.iter().map(|it| it.command).collect();
        Some(Job {
            kind: "lint",
            steps: self.steps(&tools, &commands),
            reason: format!("{} set up", tools.join(", ")),
            ..base.clone()
        })
    }

    fn pytest(&mut self, manifest: &str, base: Job) -> Job {
        // Who has set it up has it; who has not gets it.
        if matches!(self.install, Install::None) && !self.declared.configured {
            self.install = Install::Venv;
        }
        let report = Report::in_folder(&base.workdir, "junit", "test-results.xml");
        let command = match &report {
            Some(_) => "python -m pytest --junitxml=test-results.xml",
            None => "python -m pytest",
        };
        Job {
            kind: "test",
            steps: self.steps(&["pytest"], &[command]),
            results: report.into_iter().collect(),
            reason: format!("{manifest}: tests by pytest"),
            ..base
        }
    }

    fn unittest(&self, manifest: &str, commands: &[String], base: Job) -> Job {
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        Job {
            kind: "test",
            steps: self.steps(&[], &commands),
            reason: format!("{manifest}: tests by unittest"),
            ..base
        }
    }

    /// What installs, then the commands; `tools` are brought where nobody declared them.
    fn steps(&self, tools: &[&str], commands: &[&str]) -> Vec<Step> {
        let needs = Needs::of(self.declared, self.workspace, tools);
        let install = self.install.steps(self.declared, &needs).into_iter();
        let commands = commands.iter().map(|it| self.install.run(it, &needs));
        install.chain(commands).map(Step::of).collect()
    }
}

fn python_version(tree: &Tree, folder: &str, declared: &Declared) -> String {
    if let Some(range) = &declared.requires_python {
        return versions::requirement("python", range);
    }
    for folder in [folder, ""] {
        if let Ok(text) = tree.text(&join(folder, ".python-version")) {
            return versions::requirement("python", versions::of_file(&text));
        }
    }
    "python".to_owned()
}
