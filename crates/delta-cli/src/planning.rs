//! From a folder to a plan: its pipeline file, or what was found in its place, and what changed in
//! it. Shared by `plan`, `init` and `run`.

use std::path::{Path, PathBuf};

use delta_planner::{
    Changed, Event, Facts, Folder, Pipeline, Plan, Remark, changed_since, default_base,
};

use crate::exit::Exit;
use crate::failure::Failure;

/// What is to be planned, and for which trigger.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Asked {
    /// Everything, whatever changed
    #[arg(long)]
    pub all: bool,
    /// What changed is counted from the merge base with this [default: the main branch]
    #[arg(long, value_name = "REF", conflicts_with = "all")]
    pub base: Option<String>,
}

/// A plan, and where it comes from.
pub struct Planned {
    pub plan: Plan,
    /// The pipeline file; none where the plan was found.
    pub file: Option<PathBuf>,
    /// Seen, and gives no job.
    pub remarks: Vec<Remark>,
    /// What was taken as changed, said in a few words.
    pub changed: String,
}

/// The tree that jobs work on, and the pipeline file, which may not be there.
pub fn locate(path: &Path) -> (PathBuf, PathBuf) {
    if !path.is_file() {
        return (path.to_owned(), path.join(delta_planner::FILE_NAME));
    }
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    (folder.unwrap_or(Path::new(".")).to_owned(), path.to_owned())
}

/// Plans a folder, or the folder of a pipeline file.
pub fn plan(path: &Path, asked: &Asked, facts: Facts) -> Result<Planned, Failure> {
    let (tree, file) = locate(path);
    let (changed, said) = changed(&tree, asked);
    if file.exists() {
        let pipeline = read_pipeline(&file)?;
        let facts = Facts { changed, ..facts };
        let plan = delta_planner::plan(&pipeline, &facts).map_err(|faults| {
            let all: Vec<String> = faults.iter().map(ToString::to_string).collect();
            Failure::new(Exit::Usage, "the inputs do not fit the pipeline file")
                .because(all.join("\n"))
        })?;
        return Ok(Planned {
            plan,
            file: Some(file),
            remarks: Vec::new(),
            changed: said,
        });
    }
    let listed = Folder::tree(&tree).map_err(|error| {
        let what = format!("cannot look at {}", tree.display());
        Failure::new(Exit::NotFound, what).caused_by(&error)
    })?;
    let found = delta_planner::discover(&listed).map_err(|empty| nothing(&tree, &empty))?;
    Ok(Planned {
        plan: found.plan(&changed),
        file: None,
        remarks: found.remarks().to_vec(),
        changed: said,
    })
}

/// Nothing is configured, and nothing was found.
pub fn nothing(tree: &Path, empty: &delta_planner::EmptyPlan) -> Failure {
    let what = format!("EMPTY_PLAN: there is nothing to run in {}", tree.display());
    Failure::new(Exit::NotFound, what)
        .because(empty)
        .next(format!(
            "write {}: jobs: {{build: {{steps: [make]}}}}",
            delta_planner::FILE_NAME
        ))
}

pub fn read_pipeline(file: &Path) -> Result<Pipeline, Failure> {
    let shown = file.display().to_string();
    let bytes = std::fs::read(file).map_err(|error| {
        Failure::new(Exit::NotFound, format!("cannot read {shown}"))
            .caused_by(&error)
            .next("write one, or name the folder that has one: delta-ci run PATH")
    })?;
    delta_planner::parse(&shown, &bytes).map_err(|faults| {
        let count = faults.items.len() + faults.left_out;
        let things = if count == 1 { "a fault" } else { "faults" };
        Failure::new(Exit::Usage, format!("{shown} has {things}")).because(faults)
    })
}

/// A person at a checkout: what is not committed counts, too.
fn changed(tree: &Path, asked: &Asked) -> (Changed, String) {
    if asked.all {
        return (Changed::All, "everything was asked for".to_owned());
    }
    let Some(base) = asked.base.clone().or_else(|| default_base(tree)) else {
        let why = "there is no branch to compare with";
        return (
            Changed::Unknown(why.to_owned()),
            format!("{why}: everything runs"),
        );
    };
    match changed_since(tree, &base, None) {
        // Whoever types it in a clean checkout of the main branch wants to see it run.
        Changed::Files(files) if files.paths().is_empty() && asked.base.is_none() => {
            let why = format!("nothing differs from {base}");
            (
                Changed::Unknown(why.clone()),
                format!("{why}: everything runs"),
            )
        }
        Changed::Files(files) => {
            let count = files.paths().len();
            let things = if count == 1 { "file" } else { "files" };
            let said = format!("{count} {things} changed since the merge base with {base}");
            (Changed::Files(files), said)
        }
        Changed::Unknown(why) => (
            Changed::Unknown(why.clone()),
            format!("{why}: everything runs"),
        ),
        Changed::All => (Changed::All, "everything was asked for".to_owned()),
    }
}

/// The trigger of what a person runs by hand: the branch that is checked out.
pub fn facts_of(tree: &Path, event: Option<Event>, branch: Option<String>) -> Facts {
    let branch = branch.or_else(|| delta_planner::branch_of(tree));
    let facts = match &branch {
        Some(branch) => Facts::push(branch, Changed::All),
        None => Facts::manual(),
    };
    Facts {
        event: event.unwrap_or(Event::Manual),
        ..facts
    }
}
