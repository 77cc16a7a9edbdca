//! Which paths each job is about, for a pipeline file that has to say so: its packages, what they
//! are built with, what all of them share, and whatever belongs to nobody.
//!
//! Never narrower than what [`super::affected`] finds for the files that are there: where a list
//! cannot be written, or nobody would read it, there is none, and the job runs each time.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::affected::{At, Belongs, Search};
use super::found::{Found, Package};
use crate::FILE_NAME;
use crate::condition::Condition;
use crate::glob::{Glob, MAX_PATTERN};
use crate::tree::{Tree, folder_of, join};

/// Paths of one job: what fits on a few lines.
const MAX_PATHS: usize = 40;
/// Bytes of all of them, half of what a condition may have.
const MAX_BYTES: usize = 2_000;

/// The paths of one job. None when it is about everything.
pub type Paths = Option<BTreeSet<String>>;

/// What is known of a whole repository.
pub struct Concerns<'f> {
    found: &'f Found,
    tree: &'f Tree,
    by_folder: HashMap<(&'f str, &'f str), At>,
    /// Concerns every package of a project, by its number, beside what is shared.
    loose: HashMap<usize, BTreeSet<String>>,
    /// Concerns everything.
    nobodys: BTreeSet<String>,
}

impl<'f> Concerns<'f> {
    /// Nothing where there is one package: whatever changes is about it.
    pub fn of(found: &'f Found, tree: &'f Tree) -> Option<Concerns<'f>> {
        if found.packages() < 2 {
            return None;
        }
        let mut by_folder = HashMap::new();
        for (number, project) in found.projects.iter().enumerate() {
            for (at, package) in project.packages.iter().enumerate() {
                let key = (project.ecosystem, package.folder.as_str());
                by_folder.insert(key, (number, at));
            }
        }
        let search = Search::new(found, tree);
        // Folders in which something belongs to somebody.
        let mut owned: HashSet<&str> = HashSet::new();
        let mut strays: Vec<(&str, Option<usize>)> = Vec::new();
        for path in tree.paths() {
            match search.belongs(path) {
                Belongs::Text => {}
                Belongs::Nobody => strays.push((path, None)),
                Belongs::Project(number) => strays.push((path, Some(number))),
                Belongs::Owned => {
                    let mut folder = folder_of(path);
                    while !folder.is_empty() && owned.insert(folder) {
                        folder = folder_of(folder);
                    }
                }
            }
        }
        let mut concerns = Concerns {
            found,
            tree,
            by_folder,
            loose: HashMap::new(),
            nobodys: BTreeSet::from([FILE_NAME.to_owned()]),
        };
        for (path, of) in strays {
            let whole = highest(path, &owned).to_owned();
            match of {
                None => concerns.nobodys.insert(whole),
                Some(number) => concerns.loose.entry(number).or_default().insert(whole),
            };
        }
        Some(concerns)
    }

    /// What a job of one package is about.
    pub fn package(&self, at: At) -> Paths {
        self.packages([at], MAX_PATHS)
    }

    /// What a job for all packages of a project is about.
    pub fn project(&self, number: usize) -> Paths {
        let project = &self.found.projects[number];
        let mut paths = self.packages(
            (0..project.packages.len()).map(|at| (number, at)),
            usize::MAX,
        )?;
        if !project.folder.is_empty() {
            paths.insert(project.folder.clone());
        }
        Some(paths)
    }

    /// A list of everything that could be there one day would be read by nobody.
    fn is_there(&self, path: &str) -> bool {
        self.tree.has(path) || !self.tree.below(path).is_empty()
    }

    /// Nothing when more than `most` packages are concerned: their list would be too long, and to
    /// write it for each of thousands takes its time.
    fn packages(&self, packages: impl IntoIterator<Item = At>, most: usize) -> Paths {
        let mut open: Vec<At> = packages.into_iter().collect();
        let mut seen: BTreeSet<At> = open.iter().copied().collect();
        if open.is_empty() {
            return None;
        }
        let mut paths = self.nobodys.clone();
        let mut projects = BTreeSet::new();
        while let Some((number, at)) = open.pop() {
            if seen.len() > most {
                return None;
            }
            let project = &self.found.projects[number];
            let package = &project.packages[at];
            let there = own(package)?.into_iter();
            paths.extend(there.filter(|path| self.is_there(path)));
            if projects.insert(number) {
                let shared = project.shared.iter().filter(|path| self.is_there(path));
                paths.extend(shared.cloned());
                paths.extend(self.loose.get(&number).into_iter().flatten().cloned());
            }
            let needed = package.depends_on.iter();
            let needed = needed.filter_map(|it| self.by_folder.get(&(project.ecosystem, it)));
            open.extend(needed.copied().filter(|it| seen.insert(*it)));
        }
        Some(paths)
    }
}

/// The condition that says so. None when the list is too long, or has a name that is a pattern.
pub fn condition(paths: &Paths) -> Option<Condition> {
    let paths = paths.as_ref()?;
    // A folder means what is in it.
    let inside = |path: &str| {
        let mut folder = folder_of(path);
        while !folder.is_empty() && !paths.contains(folder) {
            folder = folder_of(folder);
        }
        !folder.is_empty()
    };
    let paths: Vec<&String> = paths.iter().filter(|path| !inside(path)).collect();
    let bytes: usize = paths.iter().map(|it| it.len()).sum();
    if paths.len() > MAX_PATHS || bytes > MAX_BYTES {
        return None;
    }
    let plain = |path: &str| {
        let meant = |c: char| "*?[]{}\\".contains(c) || c.is_control();
        path.len() <= MAX_PATTERN && !path.contains(meant)
    };
    let globs = paths.iter().filter(|path| plain(path));
    let globs: Vec<Glob> = globs.filter_map(|path| Glob::parse(path).ok()).collect();
    (globs.len() == paths.len()).then_some(Condition::Changed(globs))
}

/// Where the files of a package are. None when it has all of the repository.
fn own(package: &Package) -> Paths {
    match (package.folder.as_str(), package.own.is_empty()) {
        ("", true) => None,
        (folder, true) => Some(BTreeSet::from([folder.to_owned()])),
        (folder, false) => Some(package.own.iter().map(|it| join(folder, it)).collect()),
    }
}

/// The highest folder above a path in which nothing belongs to anybody, or the path itself.
fn highest<'p>(path: &'p str, owned: &HashSet<&str>) -> &'p str {
    let mut whole = path;
    let mut folder = folder_of(path);
    while !folder.is_empty() {
        if !owned.contains(folder) {
            whole = folder;
        }
        folder = folder_of(folder);
    }
    whole
}
