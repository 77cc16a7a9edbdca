//! Which packages a change concerns: those whose files changed, those built with them, and all
//! where a file concerns all or belongs to nobody. Each with its reason; what is uncertain runs.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::documents::Documents;
use super::found::{Found, Package, Project};
use crate::diagnostic::shown;
use crate::facts::Changed;
use crate::tree::{Tree, folder_of};

/// A package: number of its project, and its own among that project's.
pub type At = (usize, usize);

/// What a change means for every package.
pub enum Affected {
    /// All of them, and why.
    Everything(String),
    /// Those named, each with the reason; for all others there is one.
    Some {
        reasons: HashMap<At, String>,
        others: String,
    },
}

impl Affected {
    pub fn by(found: &Found, tree: &Tree, changed: &Changed) -> Affected {
        match changed {
            // The job's own reason says enough.
            Changed::All => Affected::Everything(String::new()),
            Changed::Unknown(why) => {
                Affected::Everything(format!("everything runs, as {}", shown(why)))
            }
            Changed::Files(files) => Search::new(found, tree).files(files.paths()),
        }
    }

    /// Why a package is concerned.
    pub fn reason(&self, at: At) -> Option<&str> {
        match self {
            Affected::Everything(why) => Some(why),
            Affected::Some { reasons, .. } => reasons.get(&at).map(String::as_str),
        }
    }

    /// Why a package is not.
    pub fn others(&self) -> &str {
        match self {
            Affected::Everything(_) => "",
            Affected::Some { others, .. } => others,
        }
    }
}

/// Whose a file is, as far as a change of it goes.
pub enum Belongs {
    /// It is documentation: nobody is concerned.
    Text,
    /// Packages, or whoever it is shared by.
    Owned,
    /// All packages of one project, by its number.
    Project(usize),
    /// Everybody is concerned.
    Nobody,
}

pub struct Search<'a> {
    found: &'a Found,
    texts: Documents<'a>,
    /// Who has a folder: a package, or only a project.
    owners: HashMap<&'a str, Vec<(usize, Option<usize>)>>,
    /// Packages that any change in their folder concerns.
    anything: Vec<At>,
    /// Projects that a path concerns as a whole.
    shared: HashMap<&'a str, Vec<usize>>,
    direct: HashMap<At, String>,
    documents: usize,
}

impl<'a> Search<'a> {
    pub fn new(found: &'a Found, tree: &'a Tree) -> Search<'a> {
        let mut owners: HashMap<&str, Vec<(usize, Option<usize>)>> = HashMap::new();
        let mut shared: HashMap<&str, Vec<usize>> = HashMap::new();
        let mut anything = Vec::new();
        for (number, project) in found.projects.iter().enumerate() {
            for path in &project.shared {
                shared.entry(path).or_default().push(number);
            }
            for (at, package) in project.packages.iter().enumerate() {
                let folder = package.folder.as_str();
                if package.anything {
                    anything.push((number, at));
                    continue;
                }
                owners.entry(folder).or_default().push((number, Some(at)));
            }
            let folder = project.folder.as_str();
            let unknown = project.packages.iter().all(|it| it.anything);
            if !unknown {
                let own = owners.entry(folder).or_default();
                if !own.iter().any(|(it, _)| *it == number) {
                    own.push((number, None));
                }
            }
        }
        Search {
            found,
            texts: Documents::new(tree),
            owners,
            anything,
            shared,
            direct: HashMap::new(),
            documents: 0,
        }
    }

    fn files(mut self, paths: &[String]) -> Affected {
        for path in paths {
            if let Some(why) = self.file(path) {
                return Affected::Everything(why);
            }
        }
        let others = match (paths.is_empty(), self.documents == paths.len()) {
            (true, _) => "nothing changed",
            (false, true) => "only documentation changed",
            (false, false) => "nothing changed in it or in what it depends on",
        };
        Affected::Some {
            reasons: self.with_dependents(),
            others: others.to_owned(),
        }
    }

    /// Notes what one file concerns. A text, when that is everything.
    fn file(&mut self, path: &str) -> Option<String> {
        let whole = self.shared_by(path);
        if !whole.is_empty() {
            for number in whole {
                let name = self.found.projects[number].ecosystem;
                self.all_of(
                    number,
                    &format!("{path} changed, which concerns all of {name}"),
                );
            }
            self.uncertain(path);
            return None;
        }
        let (packages, belongs) = self.owners_and_rest(path);
        self.uncertain(path);
        if matches!(belongs, Belongs::Text) {
            self.documents += 1;
            return None;
        }
        for at in &packages {
            let reason = changed(&self.package(*at).folder, path);
            self.direct.entry(*at).or_insert(reason);
        }
        match belongs {
            Belongs::Owned | Belongs::Text => None,
            Belongs::Project(number) => {
                self.all_of(
                    number,
                    &format!("{path} changed, which belongs to no package"),
                );
                None
            }
            Belongs::Nobody => Some(format!(
                "{path} changed, which belongs to no package: everything runs"
            )),
        }
    }

    /// Whose a file is.
    pub fn belongs(&self, path: &str) -> Belongs {
        if self.shared_by(path).is_empty() {
            self.owners_and_rest(path).1
        } else {
            Belongs::Owned
        }
    }

    /// The packages of a file that is shared by nobody, and whose it is.
    fn owners_and_rest(&self, path: &str) -> (Vec<At>, Belongs) {
        let (packages, nobody) = self.owners_of(path);
        let folders = packages.iter().map(|at| self.package(*at).folder.as_str());
        let folders: Vec<&str> = folders.collect();
        let belongs = match nobody {
            _ if self.texts.has(path, &folders) => Belongs::Text,
            _ if !packages.is_empty() => Belongs::Owned,
            // Inside a project that is not the whole repository.
            Some(number) if !self.found.projects[number].folder.is_empty() => {
                Belongs::Project(number)
            }
            // Nothing but what is concerned by anything.
            _ if self.owners.is_empty() && self.concerned_by_anything(path).next().is_some() => {
                Belongs::Owned
            }
            _ => Belongs::Nobody,
        };
        (packages, belongs)
    }

    /// Notes a change for those of whom it is not known what they look at.
    fn uncertain(&mut self, path: &str) {
        let concerned: Vec<At> = self.concerned_by_anything(path).collect();
        for at in concerned {
            let reason = changed(&self.package(at).folder, path);
            self.direct.entry(at).or_insert(reason);
        }
    }

    fn concerned_by_anything(&self, path: &str) -> impl Iterator<Item = At> {
        self.anything.iter().copied().filter(move |at| {
            let folder = self.package(*at).folder.as_str();
            let inner = path.strip_prefix(folder);
            folder.is_empty() || inner.is_some_and(|inner| inner.starts_with('/'))
        })
    }

    fn package(&self, (project, package): At) -> &'a Package {
        &self.found.projects[project].packages[package]
    }

    fn all_of(&mut self, number: usize, reason: &str) {
        for at in 0..self.found.projects[number].packages.len() {
            let reason = || reason.to_owned();
            self.direct.entry((number, at)).or_insert_with(reason);
        }
    }

    fn shared_by(&self, path: &str) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut at = path;
        while !at.is_empty() {
            found.extend(self.shared.get(at).into_iter().flatten());
            at = folder_of(at);
        }
        found
    }

    /// The packages that a file belongs to: for each ecosystem the nearest above it. And the
    /// nearest project that has it without any of its packages having it.
    fn owners_of(&self, path: &str) -> (Vec<At>, Option<usize>) {
        let (mut packages, mut nobody) = (Vec::new(), None);
        let mut claimed: BTreeSet<&str> = BTreeSet::new();
        let mut folder = path;
        while !folder.is_empty() {
            folder = folder_of(folder);
            for (number, at) in self.owners.get(folder).into_iter().flatten() {
                let project: &Project = &self.found.projects[*number];
                let own = at.is_some_and(|at| has(&project.packages[at], path));
                match at {
                    _ if claimed.contains(project.ecosystem) => {}
                    Some(at) if own => packages.push((*number, *at)),
                    _ => {
                        nobody.get_or_insert(*number);
                    }
                }
            }
            let here = self.owners.get(folder).into_iter().flatten();
            claimed.extend(here.map(|(number, _)| self.found.projects[*number].ecosystem));
        }
        (packages, nobody)
    }

    /// What changed, and everything that is built with it.
    fn with_dependents(self) -> HashMap<At, String> {
        let mut by_folder: HashMap<(&str, &str), At> = HashMap::new();
        for (number, project) in self.found.projects.iter().enumerate() {
            for (at, package) in project.packages.iter().enumerate() {
                by_folder.insert((project.ecosystem, &package.folder), (number, at));
            }
        }
        let mut dependents: HashMap<At, Vec<At>> = HashMap::new();
        for (number, project) in self.found.projects.iter().enumerate() {
            for (at, package) in project.packages.iter().enumerate() {
                for needed in &package.depends_on {
                    if let Some(needed) = by_folder.get(&(project.ecosystem, needed.as_str())) {
                        dependents.entry(*needed).or_default().push((number, at));
                    }
                }
            }
        }
        let mut first: Vec<At> = self.direct.keys().copied().collect();
        first.sort_unstable();
        // Each with the package in whose files the change is.
        let mut open: VecDeque<(At, At)> = first.into_iter().map(|at| (at, at)).collect();
        let mut reasons = self.direct.clone();
        while let Some((at, origin)) = open.pop_front() {
            for dependent in dependents.get(&at).into_iter().flatten() {
                if reasons.contains_key(dependent) {
                    continue;
                }
                let needed = place(&self.package(at).folder);
                let reason = if at == origin {
                    format!("depends on {needed}, which changed")
                } else {
                    let origin = place(&self.package(origin).folder);
                    format!("depends on {needed}, and so on {origin}, which changed")
                };
                reasons.insert(*dependent, reason);
                open.push_back((*dependent, origin));
            }
        }
        reasons
    }
}

/// Whether a file in a package's folder, or further down, is its own.
fn has(package: &Package, path: &str) -> bool {
    let inner = match package.folder.as_str() {
        "" => path,
        folder => path
            .strip_prefix(folder)
            .unwrap_or(path)
            .trim_start_matches('/'),
    };
    let first = inner.split('/').next().unwrap_or(inner);
    package.own.is_empty() || package.own.contains(&first)
}

fn changed(folder: &str, path: &str) -> String {
    match folder {
        "" => format!("{path} changed"),
        folder => {
            let inner = path.strip_prefix(folder).unwrap_or(path);
            format!("{folder} changed ({})", inner.trim_start_matches('/'))
        }
    }
}

/// What a folder is called in a sentence.
pub fn place(folder: &str) -> &str {
    match folder {
        "" => "the root",
        folder => folder,
    }
}
