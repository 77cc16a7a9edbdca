//! Python by `pyproject.toml`, `tox.ini`, `noxfile.py`, `setup.py` or requirements: tests by tox or
//! nox where the project has set them up and its lock file knows them, else by pytest, which writes
//! a report, else by unittest or Django. Linted is what tox, nox or the hooks of pre-commit lint,
//! as they do it: a linter that is only set up is named and not run.
//!
//! What is installed follows the lock file: uv, poetry, or pip into a folder of the job's own. A
//! project that declares nothing to install is tested with the Python that is there; pytest, which
//! that does not have, is then installed alone.

mod commands;
mod declared;
mod install;
mod requirements;
mod rewriting;
mod runners;
mod suites;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use delta_wire::job_spec::CountTests;

use self::declared::Declared;
use self::install::{Install, Needs};
use self::runners::{For, Named};
use self::suites::{Runner, Tests};
use super::found::{Ecosystem, Found, Job, MAX_PACKAGES, Package, Project, Report, Step};
use super::shell::quoted;
use super::strangers::HOOKS;
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

/// Makes nox take the Python that is here, whatever versions a session names.
const HERE: &str =
    r#" --force-python "$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')""#;

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
        let mut base = Job {
            workdir: self.folder.to_owned(),
            requires: vec![python_version(self.tree, self.folder, self.declared)],
            caches: self.install.cache().into_iter().collect(),
            ..Job::default()
        };
        if let (Install::Uv(..), Some(range)) = (&self.install, &self.workspace.requires_uv) {
            base.requires.push(versions::requirement("uv", range));
        }
        let mut jobs = self.by_runner(tests, &base, found);
        jobs.extend(if jobs.iter().any(|it| it.kind == "lint") {
            None
        } else {
            self.hooks(&base, found)
        });
        let manifest = join(self.folder, self.declared.manifest);
        if !jobs.iter().any(|it| it.kind == "lint") && !self.declared.linters.is_empty() {
            let words = "no tox environment, nox session or hook that is run says how to lint";
            let tools = self.declared.linters.join(", ");
            found.remark_part(&manifest, format!("sets up {tools}, and {words}"));
        }
        if jobs.iter().any(|it| it.kind == "test") {
            return jobs;
        }
        let unusual = self.declared.configured && self.declared.unusual;
        let own = unusual || tests.any(self.tree, read);
        let django = self.declared.asks.contains("django")
            && !self.declared.pytest
            && self.tree.has(&join(self.folder, "manage.py"));
        if !own && !django {
            if self.declared.configured {
                found.remark_part(manifest, "pytest is set up, and there are no tests");
            } else if jobs.is_empty() {
                found.remark(manifest, "has no tests, no tox and no nox");
            }
            return jobs;
        }
        if django {
            let command = ["python manage.py test".to_owned()];
            jobs.push(self.unittest(&join(self.folder, "manage.py"), &command, base));
            return jobs;
        }
        // pytest takes none of the files that are unittest's alone.
        if let Some(words) = self.declared.unread_requirements(&self.install) {
            found.remark_part(&manifest, words);
        }
        let takes = unusual || !tests.files.is_empty();
        let runner = if self.declared.pytest && takes {
            Runner::Pytest
        } else {
            tests.runner(self.tree, self.folder, read)
        };
        jobs.push(match runner {
            Runner::Pytest => self.pytest(&manifest, base),
            Runner::Unittest(commands) => self.unittest(&manifest, &commands, base),
        });
        jobs
    }

    /// Jobs by tox or nox, where the project has set one up that it still uses: with a lock file
    /// that does not know it, it is what somebody left behind.
    fn by_runner(&self, tests: &Tests<'_>, base: &Job, found: &mut Found) -> Vec<Job> {
        let runners = &self.declared.runners;
        let all = [("tox", &runners.tox), ("nox", &runners.nox)];
        for (tool, named) in all {
            let Some(named) = named else { continue };
            let other = self.declared.pytest && !tests.files.is_empty();
            if self.install.is_locked() && other && !self.install.locks(self.tree, tool) {
                let words = "is set up, and not among what the lock file has: it is not used";
                found.remark(
                    join(self.folder, self.declared.manifest),
                    format!("{tool} {words}"),
                );
                continue;
            }
            let mut jobs = Vec::new();
            for (kind, is_for) in [("lint", For::Lint), ("test", For::Tests)] {
                let chosen: Vec<&Named> = named.iter().filter(|it| it.is_for == is_for).collect();
                if !chosen.is_empty() {
                    found.pre_commit |= chosen.iter().any(|it| it.hooks);
                    jobs.push(self.run_by(tool, kind, &chosen, base));
                }
            }
            for it in named {
                let why = match it.is_for {
                    For::Tests | For::Lint => continue,
                    For::Other => "is not run: what it is for is not known",
                    For::Unlisted => "is not run: the list of environments does not name it",
                    For::Idle => "is not run: it has no commands",
                    For::Rewriting => "is not run: it changes files, and checks nothing",
                };
                let what = match tool {
                    "tox" => format!("tox -e {}", it.name),
                    _ => format!("nox -s {}", it.name),
                };
                found.remark(what, why);
            }
            if !jobs.is_empty() {
                return jobs;
            }
        }
        Vec::new()
    }

    fn run_by(&self, tool: &str, kind: &'static str, chosen: &[&Named], base: &Job) -> Job {
        let names: Vec<&str> = chosen.iter().map(|it| it.name.as_str()).collect();
        let commands: Vec<String> = match tool {
            // An interpreter that is not here is no reason to succeed.
            "tox" => vec![format!(
                "tox run --skip-missing-interpreters false -e {}",
                quoted(&names.join(","))
            )],
            _ => [false, true]
                .into_iter()
                .filter_map(|versions| {
                    let some = chosen.iter().filter(|it| it.versions == versions);
                    let some: Vec<String> = some.map(|it| quoted(&it.name)).collect();
                    let force = if versions { HERE } else { "" };
                    (!some.is_empty()).then(|| format!("nox -s {}{force}", some.join(" ")))
                })
                .collect(),
        };
        let mut steps: Vec<String> = Vec::new();
        for command in commands {
            for step in self.install.tool(self.tree, self.declared, tool, &command) {
                if !steps.contains(&step) {
                    steps.push(step);
                }
            }
        }
        let counted = chosen.iter().all(|it| it.counted);
        Job {
            kind,
            steps: steps.into_iter().map(Step::of).collect(),
            count: (kind == "test").then_some(if counted {
                CountTests::Output
            } else {
                CountTests::None
            }),
            reason: format!("{tool} is set up: {}", names.join(", ")),
            ..base.clone()
        }
    }

    /// The hooks of pre-commit, where the project asks for it: they hold its lint.
    fn hooks(&self, base: &Job, found: &mut Found) -> Option<Job> {
        let there = self.tree.has(&join(self.folder, HOOKS));
        if !there || !self.declared.asks.contains("pre-commit") {
            return None;
        }
        found.pre_commit = true;
        // That hook is about people, not about what they wrote.
        let command = "pre-commit run --all-files --show-diff-on-failure";
        let mut steps = self
            .install
            .tool(self.tree, self.declared, "pre-commit", command);
        if let Some(last) = steps.last_mut() {
            *last = format!("SKIP=no-commit-to-branch {last}");
        }
        Some(Job {
            kind: "lint",
            steps: steps.into_iter().map(Step::of).collect(),
            reason: format!("{}: hooks of pre-commit", join(self.folder, HOOKS)),
            ..base.clone()
        })
    }

    fn pytest(&mut self, manifest: &str, base: Job) -> Job {
        // Python does not bring pytest along, whoever has set it up.
        if matches!(self.install, Install::None) {
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
            count: Some(match &report {
                Some(_) => CountTests::Report,
                None => CountTests::Output,
            }),
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
            count: Some(CountTests::Output),
            reason: format!("{manifest}: tests by unittest"),
            ..base
        }
    }

    /// What installs, then the commands; `tools` are brought where nobody declared them.
    fn steps(&self, tools: &[&str], commands: &[&str]) -> Vec<Step> {
        let needs = Needs::of(self.declared, self.workspace, &self.install, tools);
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
