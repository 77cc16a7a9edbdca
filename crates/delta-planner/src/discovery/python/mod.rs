//! Python by `pyproject.toml`, `tox.ini`, `noxfile.py`, `setup.py` or requirements: tests by tox or
//! nox where the project has set them up, else by pytest, which writes a report, else by unittest.
//!
//! What is installed follows the lock file: uv, poetry, or pip into a folder of the job's own. A
//! project that declares nothing to install is tested with the Python that is there.

mod declared;
mod install;

use std::collections::{BTreeMap, BTreeSet};

use self::declared::Declared;
use self::install::Install;
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
        let tested = tested(tree, &folders);
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
            let tests = tested.get(folder).copied().unwrap_or_default();
            let jobs = jobs(tree, folder, declared, root, tests, found);
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

/// Which projects have files of tests: each file counts for the nearest project above it.
fn tested<'t>(tree: &'t Tree, folders: &BTreeSet<&'t str>) -> BTreeMap<&'t str, Tests> {
    let mut tested: BTreeMap<&str, Tests> = BTreeMap::new();
    for path in tree.paths() {
        let name = file_name(path);
        let test =
            (name.starts_with("test_") && name.ends_with(".py")) || name.ends_with("_test.py");
        if !test && name != "conftest.py" {
            continue;
        }
        let mut above = folder_of(path);
        while !above.is_empty() && !folders.contains(above) {
            above = folder_of(above);
        }
        let tests = tested.entry(above).or_default();
        tests.files |= test;
        tests.conftest |= name == "conftest.py";
    }
    tested
}

#[derive(Clone, Copy, Default)]
struct Tests {
    files: bool,
    conftest: bool,
}

fn jobs(
    tree: &Tree,
    folder: &str,
    declared: &Declared,
    root: &str,
    tests: Tests,
    found: &mut Found,
) -> Vec<Job> {
    let install = Install::of(tree, folder, root, declared);
    let base = Job {
        workdir: folder.to_owned(),
        requires: vec![python_version(tree, folder, declared)],
        caches: install.cache().into_iter().collect(),
        ..Job::default()
    };
    let manifest = join(folder, declared.manifest);
    let mut jobs = Vec::new();
    if !declared.linters.is_empty() {
        let checks = declared.linters.iter().map(|it| install.run(it.command));
        let missing: Vec<&str> = declared.linters.iter().map(|it| it.tool).collect();
        let names = missing.join(", ");
        let steps = install.steps(declared, &missing).into_iter().chain(checks);
        jobs.push(Job {
            kind: "lint",
            steps: steps.map(Step::of).collect(),
            reason: format!("{names} set up"),
            ..base.clone()
        });
    }
    let runner = match (declared.tox, declared.nox) {
        (true, _) => Some(("tox", "tox run")),
        (false, true) => Some(("nox", "nox")),
        (false, false) => None,
    };
    if let Some((tool, command)) = runner {
        let mut steps = install.tool(tool);
        steps.push(install.run_tool(command));
        jobs.push(Job {
            kind: "test",
            steps: steps.into_iter().map(Step::of).collect(),
            reason: format!("{tool} is set up: its environments decide what is tested"),
            ..base
        });
        return jobs;
    }
    if !declared.configured && !tests.conftest && !tests.files {
        if jobs.is_empty() {
            let why = "has no tests, no tox, no nox and no linter set up";
            found.remark(manifest, why);
        }
        return jobs;
    }
    let pytest = declared.pytest || tests.conftest;
    jobs.push(test_job(declared, &install, &manifest, pytest, base));
    jobs
}

fn test_job(
    declared: &Declared,
    install: &Install,
    manifest: &str,
    pytest: bool,
    base: Job,
) -> Job {
    let report = Report::in_folder(&base.workdir, "junit", "test-results.xml");
    let (needed, command, why) = match (pytest, &report) {
        (true, Some(_)) => (
            &["pytest"][..],
            "python -m pytest --junitxml=test-results.xml",
            "tests by pytest",
        ),
        (true, None) => (&["pytest"][..], "python -m pytest", "tests by pytest"),
        (false, _) => (&[][..], "python -m unittest discover", "tests by unittest"),
    };
    let mut steps = install.steps(declared, needed);
    steps.push(install.run(command));
    Job {
        kind: "test",
        steps: steps.into_iter().map(Step::of).collect(),
        results: report.filter(|_| pytest).into_iter().collect(),
        reason: format!("{manifest}: {why}"),
        ..base
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
