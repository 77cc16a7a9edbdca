//! The root of a workspace: the jobs of its own scripts, and what these do for all packages. A
//! script that only starts those of packages is left to them; what one does beside that is never
//! dropped.

use std::collections::HashMap;

use super::manager::Manager;
use super::over::{Over, over};
use super::{Install, Manifest, name_of, scripts};
use crate::discovery::found::{Job, Package};
use crate::tree::Tree;

/// The root with what its own scripts do. `built` says that packages have something to build.
pub fn root_package(
    tree: &Tree,
    root: &str,
    members: &[&str],
    manifest: &Manifest,
    manager: &Manager,
    built: bool,
) -> Option<Package> {
    // Tests of packages are run where they are built, by the root's own script if it has one.
    let tests_packages = !members.is_empty() && starts_beside(&manifest.scripts, "test");
    let build_all = tests_packages && built && !manifest.scripts.contains_key("build");
    let install = Install {
        manager,
        root,
        before: (!build_all).then_some(&[]),
        root_build: false,
    };
    let left = |name: &str| {
        let needed = name == "build" && tests_packages;
        !members.is_empty() && !needed && over(&manifest.scripts, name) == Over::Only
    };
    let jobs = root_jobs(tree, root, manifest, &install, left);
    (!jobs.is_empty()).then(|| Package {
        name: name_of(root, manifest),
        folder: root.to_owned(),
        // Its scripts usually go over all packages.
        depends_on: members.iter().map(|member| (*member).to_owned()).collect(),
        jobs,
        ..Package::default()
    })
}

/// Whether a script starts those of packages and does something else, too.
fn starts_beside(scripts: &HashMap<String, String>, name: &str) -> bool {
    matches!(over(scripts, name), Over::Some | Over::All)
}

/// Scripts of a workspace's root, but those that are `left` to its packages.
fn root_jobs(
    tree: &Tree,
    root: &str,
    manifest: &Manifest,
    install: &Install<'_>,
    left: impl Fn(&str) -> bool,
) -> Vec<Job> {
    let mut kept = manifest.scripts.clone();
    for name in scripts::run_by_jobs().filter(|name| left(name)) {
        kept.remove(name);
    }
    // A tool that knows the packages' order builds what is tested.
    if scripts::is_by_task_runner(&scripts::followed(&kept, "test")) {
        kept.remove("build");
    }
    let own = Manifest {
        scripts: kept,
        dependencies: manifest.dependencies.clone(),
        engine: manifest.engine.clone(),
        ..Manifest::default()
    };
    install.jobs(tree, root, &own, &own)
}

/// What is said of scripts that only start those of packages, of which none has one; `has` tells
/// whether any member has a script.
pub fn idle_starts(manifest: &Manifest, has: impl Fn(&str) -> bool) -> Option<String> {
    let idle = scripts::run_by_jobs()
        .filter(|name| over(&manifest.scripts, name) == Over::Only && !has(name));
    let idle = idle.collect::<Vec<_>>().join(", ");
    let words = "only starts scripts of packages, and none of them has one";
    (!idle.is_empty()).then(|| format!("its own {idle} {words}"))
}

/// What the root's own scripts do for all packages.
pub struct ByRoot {
    /// Kinds of jobs that a tool which knows the packages' order does.
    kinds: Vec<&'static str>,
    /// Scripts of packages that the root's of the same name start, each of them.
    started: Vec<&'static str>,
    /// Scripts of the root that start those of packages, which run on their own as well.
    twice: Vec<&'static str>,
    /// The root is built by a script of its own, which packages may need.
    pub builds_alone: bool,
}

impl ByRoot {
    pub fn of(manifest: &Manifest) -> ByRoot {
        let scripts = &manifest.scripts;
        let by_runner = |name: &&str| {
            scripts.contains_key(*name)
                && scripts::is_by_task_runner(&scripts::followed(scripts, name))
        };
        let mut kinds: Vec<&str> = ["lint", "build", "test"]
            .into_iter()
            .filter(by_runner)
            .collect();
        // Whoever tests by such a tool has it build what comes before.
        if kinds.contains(&"test") && !kinds.contains(&"build") {
            kinds.push("build");
        }
        // A package's job has to build whatever the root's does.
        let starts_all = |name: &str| name != "build" && over(scripts, name) == Over::All;
        let beside = scripts::run_by_jobs().filter(|name| starts_beside(scripts, name));
        let (started, twice) = beside.partition(|name| starts_all(name));
        let build = scripts
            .contains_key("build")
            .then(|| scripts::followed(scripts, "build"));
        ByRoot {
            kinds,
            started,
            twice,
            builds_alone: over(scripts, "build") == Over::Nothing
                && build.is_some_and(|text| !scripts::is_by_task_runner(&text)),
        }
    }

    pub fn does(&self, kind: &str) -> bool {
        self.kinds.contains(&kind)
    }

    /// A package without the scripts that the root's start, if there are any.
    pub fn leaves(&self, package: &Manifest) -> Option<Manifest> {
        (!self.started.is_empty()).then(|| {
            let mut rest = package.clone();
            rest.scripts
                .retain(|name, _| !self.started.contains(&name.as_str()));
            rest
        })
    }

    /// What is said of it.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut all = self.kinds.clone();
        all.extend(self.started.iter().filter(|name| !self.does(name)));
        if !all.is_empty() {
            let all = all.join(", ");
            words.push(format!(
                "its own {all} goes over all packages: theirs are not run once more"
            ));
        }
        let twice = self.twice.iter().filter(|name| !self.does(name)).copied();
        let twice: Vec<&str> = twice.collect();
        if !twice.is_empty() {
            let twice = twice.join(", ");
            words.push(format!(
                "its own {twice} starts scripts of packages, too, which are run once more by jobs \
                 of their own"
            ));
        }
        words
    }
}
