//! What ecosystems hand over: projects with their packages, the jobs of each, and what was seen and
//! left out. Plain data; what runs after a change is decided in [`super::affected`].

use std::collections::BTreeSet;

use delta_wire::job_spec::CountTests;

use crate::tree::Tree;

/// Packages of one repository. Beyond it somebody must say what is to run.
pub const MAX_PACKAGES: usize = 20_000;

/// Remarks that are kept; a tree of fixtures could have one per file.
pub const MAX_REMARKS: usize = 100;

/// What was found in a tree.
#[derive(Debug, Default)]
pub struct Found {
    pub projects: Vec<Project>,
    /// What was seen and left out, with the reason.
    pub remarks: Vec<Remark>,
    /// Remarks beyond [`MAX_REMARKS`].
    pub unsaid: usize,
    /// A job runs the hooks of pre-commit.
    pub pre_commit: bool,
}

impl Found {
    /// Notes something that gives no job.
    pub fn remark(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        self.note(what.into(), reason.into(), Extent::Whole);
    }

    /// Notes something of which a part gives no job, while others may.
    pub fn remark_part(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        self.note(what.into(), reason.into(), Extent::Part);
    }

    /// Notes something that is said of jobs, and of which nothing is left out.
    pub fn remark_jobs(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        self.note(what.into(), reason.into(), Extent::Nothing);
    }

    fn note(&mut self, what: String, reason: String, left_out: Extent) {
        if self.remarks.len() >= MAX_REMARKS {
            self.unsaid += 1;
            return;
        }
        self.remarks.push(Remark {
            what,
            reason,
            left_out,
        });
    }

    /// Whether a project has a job in this folder, of whichever kind.
    pub fn has_project(&self, folder: &str) -> bool {
        let mut kinds = ["lint", "clippy", "fmt", "build", "test"].iter();
        kinds.any(|kind| self.has_job(folder, kind).is_some())
    }

    pub fn packages(&self) -> usize {
        self.projects.iter().map(|it| it.packages.len()).sum()
    }

    /// Whether a project of another ecosystem has a job of this kind for this very folder.
    pub fn has_job(&self, folder: &str, kind: &str) -> Option<&Project> {
        self.projects.iter().find(|project| {
            let whole = project.folder == folder && project.jobs.iter().any(|it| it.kind == kind);
            let mut packages = project.packages.iter().filter(|it| it.folder == folder);
            whole || packages.any(|it| it.jobs.iter().any(|job| job.kind == kind))
        })
    }
}

/// Something that was seen, and of which there is more to say than its jobs do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// A path, or a part of the plan.
    pub what: String,
    pub reason: String,
    /// How much of it gives no job.
    pub left_out: Extent,
}

/// How much of something is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// It gives no job.
    Whole,
    /// There may be jobs for it, and they leave out what the reason names.
    Part,
    /// All of it is run.
    Nothing,
}

/// A workspace, or a package that stands alone.
#[derive(Debug)]
pub struct Project {
    /// Such as `Cargo`.
    pub ecosystem: &'static str,
    /// Empty at the root.
    pub folder: String,
    /// Files and folders, from the root, that concern every package: manifest, lock, toolchain.
    pub shared: Vec<String>,
    pub packages: Vec<Package>,
    /// Jobs for all packages together, each narrowed to those that changed where its tool can.
    pub jobs: Vec<Job>,
}

#[derive(Debug, Default)]
pub struct Package {
    /// As its tool calls it.
    pub name: String,
    pub folder: String,
    /// Folders of packages of the same ecosystem that it is built with.
    pub depends_on: BTreeSet<String>,
    /// Where its own files are when it shares its folder with the whole project; without any,
    /// everything in its folder is its own.
    pub own: Vec<&'static str>,
    /// It has tests of its own, where jobs of the whole project are narrowed to some packages.
    pub tested: bool,
    /// Of its tests at least one runs for sure.
    pub counted: bool,
    /// What its jobs look at is not known: any change in its folder concerns it, and is nobody's
    /// for that.
    pub anything: bool,
    pub jobs: Vec<Job>,
}

/// One job, before it has a name.
#[derive(Debug, Clone, Default)]
pub struct Job {
    /// `lint`, `test`, …: the first part of its name.
    pub kind: &'static str,
    pub steps: Vec<Step>,
    /// From the root.
    pub workdir: String,
    pub requires: Vec<String>,
    pub results: Vec<Report>,
    /// Where it is told how many tests ran; absent of jobs that are not for testing.
    pub count: Option<CountTests>,
    pub caches: Vec<Cache>,
    /// Why a maintainer would have it.
    pub reason: String,
}

/// A command, in parts where it can be narrowed to some packages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    pub head: String,
    pub select: Option<Select>,
    pub tail: String,
}

/// How a command is told which packages it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Select {
    /// What means all of them, such as ` --workspace`.
    pub all: String,
    /// What stands before the name of one, such as ` -p `.
    pub one: &'static str,
}

impl Step {
    pub fn of(script: impl Into<String>) -> Step {
        Step {
            head: script.into(),
            ..Step::default()
        }
    }

    /// The script for some packages by name; none for all of them.
    pub fn script(&self, names: Option<&[&str]>) -> String {
        let mut script = self.head.clone();
        match (&self.select, names) {
            (None, _) => {}
            (Some(select), None) => script.push_str(&select.all),
            (Some(select), Some(names)) => {
                for name in names {
                    script.push_str(select.one);
                    script.push_str(&super::shell::quoted(name));
                }
            }
        }
        script.push_str(&self.tail);
        script
    }
}

/// A report of tests that a job writes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Report {
    pub format: &'static str,
    /// From the root.
    pub path: String,
}

impl Report {
    /// A report in a folder; none when its path would be read as a pattern.
    pub fn in_folder(folder: &str, format: &'static str, name: &str) -> Option<Report> {
        let plain = !folder.contains(['*', '?', '[', ']', '{', '}', '\\']);
        plain.then(|| Report {
            format,
            path: crate::tree::join(folder, name),
        })
    }
}

/// A cache of what tools fetch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cache {
    pub key: String,
    pub restore_key: String,
    pub paths: Vec<String>,
}

impl Cache {
    /// Fetched packages, known by a lock file.
    pub fn locked(tool: &str, lock: &str, paths: &[&str]) -> Option<Cache> {
        let plain = !lock.contains(['*', '?', '[', ']', '{', '}', '\\']);
        plain.then(|| Cache {
            key: format!("{tool}-{{os}}-{{arch}}-{{hash:{lock}}}"),
            restore_key: format!("{tool}-{{os}}-{{arch}}-"),
            paths: paths.iter().map(|it| (*it).to_owned()).collect(),
        })
    }
}

/// One kind of project, and how to find it. More are added by one module each, and a row in
/// [`super::ECOSYSTEMS`].
pub trait Ecosystem: Sync {
    /// What people call it.
    fn name(&self) -> &'static str;
    /// Where a package's own files are when it has the root and is not alone in the repository.
    /// Anything else there could be anybody's.
    fn own(&self) -> &'static [&'static str];
    /// The files that tell of it, for whoever has none.
    fn looks_for(&self) -> &'static [&'static str];
    /// Adds what is there. Ecosystems before it in the table have added theirs.
    fn find(&self, tree: &Tree, found: &mut Found);
}

/// The commands of the files that tell of a tool, in order, that are there.
pub fn first_there<'n>(tree: &Tree, folder: &str, names: &[&'n str]) -> Option<&'n str> {
    let mut there = names
        .iter()
        .filter(|it| tree.has(&crate::tree::join(folder, it)));
    there.next().copied()
}
