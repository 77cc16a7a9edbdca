//! Discovery: what a maintainer would write for a repository that has no pipeline file.
//!
//! Each ecosystem is one module that reads manifests and hands over packages with their jobs; what
//! runs after a change is decided here, for all of them alike, and always with a reason. What is
//! uncertain runs. Nothing of the repository is executed, and its names are data wherever they go.

mod affected;
mod assemble;
mod bundle;
mod cargo;
mod checks;
mod concerns;
mod counting;
mod documents;
mod found;
mod go;
mod make;
mod manifest;
mod mentions;
mod names;
mod node;
mod python;
mod share;
mod shell;
mod strangers;
mod tools;
mod versions;
mod write;

use std::fmt;

use self::affected::Affected;
use self::concerns::Concerns;
use self::found::{Ecosystem, Found};
use crate::facts::Changed;
use crate::pipeline::Pipeline;
use crate::plan::Plan;
use crate::tree::Tree;

pub use self::found::{Extent, Remark};
pub use self::write::{TooLong, skeleton, written};

/// Every ecosystem, in the order of the jobs. Make comes last: it leaves to others what they do.
static ECOSYSTEMS: [&dyn Ecosystem; 5] = [
    &cargo::Cargo,
    &node::Node,
    &python::Python,
    &go::Go,
    &make::Make,
];

/// Folders whose manifests are not what the repository is about.
const IGNORED: [(&str, &str); 14] = [
    ("node_modules", "lies among installed packages"),
    ("vendor", "lies among copies of other projects"),
    ("third_party", "lies among copies of other projects"),
    ("target", "lies among build results"),
    ("dist", "lies among build results"),
    (".venv", "lies among installed packages"),
    ("venv", "lies among installed packages"),
    ("testdata", "is data of tests"),
    ("test-data", "is data of tests"),
    ("fixtures", "is data of tests"),
    ("__fixtures__", "is data of tests"),
    ("examples", "is an example"),
    ("templates", "is a template"),
    ("template", "is a template"),
];

/// Why nothing in a folder is a package of its own, unless somebody above it says so.
fn ignored(folder: &str) -> Option<&'static str> {
    folder.split('/').find_map(|part| {
        let known = IGNORED.iter().find(|(name, _)| *name == part);
        let hidden = part.starts_with('.').then_some("lies in a hidden folder");
        known.map(|(_, why)| *why).or(hidden)
    })
}

/// What was found in a tree: jobs, and what was seen and left out.
pub struct Discovery<'t> {
    tree: &'t Tree,
    found: Found,
}

/// Nothing is configured and nothing was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmptyPlan {
    /// Each ecosystem, and the files that would have told of it.
    pub looked_for: Vec<(&'static str, &'static [&'static str])>,
    pub remarks: Vec<Remark>,
}

impl fmt::Display for EmptyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "looked for {}", crate::FILE_NAME)?;
        for (name, files) in &self.looked_for {
            write!(f, ", {} ({name})", files.join(" or "))?;
        }
        for remark in &self.remarks {
            write!(f, "\n{}: {}", remark.what, remark.reason)?;
        }
        Ok(())
    }
}

impl std::error::Error for EmptyPlan {}

/// Looks at a tree.
pub fn discover(tree: &Tree) -> Result<Discovery<'_>, EmptyPlan> {
    let mut found = Found::default();
    if tree.has(crate::OTHER_NAME) {
        found.remarks.push(Remark {
            what: crate::OTHER_NAME.to_owned(),
            reason: format!("is not read; did you mean {}?", crate::FILE_NAME),
            left_out: Extent::Whole,
        });
    }
    for ecosystem in ECOSYSTEMS {
        ecosystem.find(tree, &mut found);
    }
    strangers::name_them(tree, &mut found);
    if found.unsaid > 0 {
        let unsaid = found.unsaid;
        found.remarks.push(Remark {
            what: format!("{unsaid} more"),
            reason: "left out for reasons like these".to_owned(),
            left_out: Extent::Whole,
        });
    }
    let jobs = |it: &found::Project| {
        !it.jobs.is_empty() || it.packages.iter().any(|it| !it.jobs.is_empty())
    };
    found.projects.retain(jobs);
    if found.packages() > 1 {
        own_files(&mut found);
    }
    if found.projects.is_empty() {
        let looked_for = ECOSYSTEMS.iter().map(|it| (it.name(), it.looks_for()));
        return Err(EmptyPlan {
            looked_for: looked_for.collect(),
            remarks: found.remarks,
        });
    }
    Ok(Discovery { tree, found })
}

/// Where there are several packages, one that has a folder together with others keeps what is its
/// own for sure.
fn own_files(found: &mut Found) {
    for project in &mut found.projects {
        let own = ECOSYSTEMS.iter().find(|it| it.name() == project.ecosystem);
        let (root, several) = (&project.folder, project.packages.len() > 1);
        for package in &mut project.packages {
            let shares = package.folder.is_empty() || (several && package.folder == *root);
            if shares && !package.anything {
                package.own = own.map_or(Vec::new(), |it| it.own().to_vec());
            }
        }
    }
}

impl Discovery<'_> {
    /// Everything, each job with the condition that leaves it out when nothing changed that it is
    /// about.
    pub fn pipeline(&self) -> Pipeline {
        self.whole().to_pipeline()
    }

    pub(crate) fn whole(&self) -> Plan {
        let concerns = Concerns::of(&self.found, self.tree);
        let affected = Affected::by(&self.found, self.tree, &Changed::All);
        assemble::plan(&self.found, &affected, concerns.as_ref())
    }

    /// What runs after a change, and why; and what does not.
    pub fn plan(&self, changed: &Changed) -> Plan {
        let affected = Affected::by(&self.found, self.tree, changed);
        assemble::plan(&self.found, &affected, None)
    }

    /// What was seen and gives no job, as a whole or in part, and what is said of jobs.
    pub fn remarks(&self) -> &[Remark] {
        &self.found.remarks
    }

    pub fn packages(&self) -> usize {
        self.found.packages()
    }
}
