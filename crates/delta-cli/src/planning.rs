//! From a folder to a plan: its pipeline file, or what was found in its place, and what changed in
//! it. Shared by `plan`, `init` and `run`.

use std::path::{Path, PathBuf};

use delta_planner::{
    Changed, Event, Facts, Folder, Pipeline, Plan, Remark, branch_of, changed_since, default_base,
    is_commit,
};
use delta_wire::nearest::nearest;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::secret_input;
use crate::state_words;
use crate::terminal::{Terminal, Tone};

/// What is to be planned, and for which trigger.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Asked {
    /// Everything, whatever changed
    #[arg(long)]
    pub all: bool,
    /// What changed is counted from the merge base with this [default: the main branch]
    #[arg(long, value_name = "REF", conflicts_with = "all")]
    pub base: Option<String>,
    /// As if this had happened: push, pull_request, tag, manual [default: manual, or tag]
    #[arg(long, value_name = "EVENT", value_parser = event)]
    event: Option<Event>,
    /// As if this branch was checked out
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,
    /// As if this tag was pushed
    #[arg(long, value_name = "NAME", conflicts_with = "branch")]
    tag: Option<String>,
    /// A value for an input that the file declares under `on: {manual: …}`; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = input)]
    input: Vec<(String, String)>,
}

fn event(text: &str) -> Result<Event, String> {
    let all: Vec<&str> = Event::ALL.iter().map(|it| it.name()).collect();
    Event::from_name(text).ok_or_else(|| match nearest(text, all.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known: {}", all.join(", ")),
    })
}

pub fn input(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = parts.ok_or_else(|| "write --input NAME=VALUE".to_owned())?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Asked {
    /// What is asked for where jobs are `named`: whoever names a job wants it, whatever changed.
    pub fn naming(&self, named: bool) -> Asked {
        Asked {
            all: self.all || (named && self.base.is_none()),
            ..self.clone()
        }
    }

    /// The trigger of what a person asks for: the branch that is checked out, unless they say
    /// otherwise. Each event knows what it knows on a server, and no more.
    fn facts(&self, tree: &Path) -> Facts {
        let event = self.event.unwrap_or(match &self.tag {
            Some(_) => Event::Tag,
            None => Event::Manual,
        });
        let branch = self.branch.clone().or_else(|| branch_of(tree));
        let on_branch = matches!(event, Event::Push | Event::Manual) && self.tag.is_none();
        let facts = match (&branch, &self.tag) {
            (Some(branch), _) if on_branch => Facts::push(branch, Changed::All),
            (_, Some(tag)) => Facts {
                tag: Some(tag.clone()),
                git_ref: Some(format!("refs/tags/{tag}")),
                ..Facts::manual()
            },
            (Some(branch), None) if event == Event::PullRequest => Facts {
                source: Some(branch.clone()),
                target: self
                    .base
                    .clone()
                    .or_else(|| default_base(tree))
                    .and_then(local),
                ..Facts::manual()
            },
            _ => Facts::manual(),
        };
        let inputs = self.input.iter().cloned().collect();
        Facts {
            event,
            inputs,
            ..facts
        }
    }
}

/// A branch as its own repository calls it; `origin/HEAD` is no name of one.
fn local(branch: String) -> Option<String> {
    let name = branch.strip_prefix("origin/").unwrap_or(&branch);
    (name != "HEAD").then(|| name.to_owned())
}

/// What is to be said of a pipeline file that is planned all the same.
pub fn say_warnings(planned: &Planned, terminal: &Terminal) {
    for warning in planned.plan.warnings() {
        for line in warning.to_string().lines() {
            terminal.say(&terminal.paint_err(Tone::Warn, line));
        }
    }
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
    /// What steps are told of the trigger.
    pub words: Vec<(String, String)>,
}

/// What was seen and gives no job, for programs.
pub fn left_out(remarks: &[Remark]) -> serde_json::Value {
    let remarks = remarks.iter();
    remarks
        .map(|it| serde_json::json!({"what": it.what, "reason": it.reason}))
        .collect()
}

/// The tree that jobs work on, and the pipeline file, which may not be there.
pub fn locate(path: &Path) -> (PathBuf, PathBuf) {
    if !path.is_file() {
        return (path.to_owned(), path.join(delta_planner::FILE_NAME));
    }
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    (folder.unwrap_or(Path::new(".")).to_owned(), path.to_owned())
}

/// Whether the pipeline file is there. Under its usual name it is a plain file, as a server wants
/// it; whoever names another file may name a link.
fn is_file(file: &Path) -> Result<bool, Failure> {
    if file.file_name() != Some(delta_planner::FILE_NAME.as_ref()) {
        return Ok(file.exists());
    }
    let Ok(about) = file.symlink_metadata() else {
        return Ok(false);
    };
    let what = match about.file_type() {
        kind if kind.is_file() => return Ok(true),
        kind if kind.is_symlink() => "a link",
        kind if kind.is_dir() => "a folder",
        _ => "a device or a pipe",
    };
    let what = delta_planner::no_plain_file(&secret_input::shown(file), what);
    Err(Failure::new(Exit::Usage, what).next("put the file itself there"))
}

/// Plans a folder, or the folder of a pipeline file.
pub fn plan(path: &Path, asked: &Asked) -> Result<Planned, Failure> {
    if !path.exists() {
        let what = format!("there is no {}", secret_input::shown(path));
        return Err(Failure::new(Exit::NotFound, what)
            .next("name a folder, or a pipeline file: delta-ci run PATH"));
    }
    let (tree, file) = locate(path);
    let (changed, said) = changed(&tree, asked)?;
    let words = asked.facts(&tree).words();
    if is_file(&file)? {
        let pipeline = read_pipeline(&file)?;
        let facts = Facts {
            changed,
            ..asked.facts(&tree)
        };
        let plan = delta_planner::plan(&pipeline, &facts).map_err(|faults| {
            let all: Vec<String> = faults.iter().map(ToString::to_string).collect();
            Failure::new(Exit::Usage, "the inputs do not fit the pipeline file")
                .because(all.join("\n"))
                .next("`on: {manual: {inputs: …}}` of the file declares them, see docs/pipeline.md")
        })?;
        return Ok(Planned {
            plan,
            file: Some(file),
            remarks: Vec::new(),
            changed: said,
            words,
        });
    }
    let listed = Folder::tree(&tree).map_err(|error| {
        let what = format!("cannot look at {}", secret_input::shown(&tree));
        Failure::new(Exit::NotFound, what)
            .caused_by(&error)
            .next("name a folder that is there: delta-ci plan PATH")
    })?;
    let found = delta_planner::discover(&listed).map_err(|empty| nothing(&tree, &empty))?;
    Ok(Planned {
        plan: found.plan(&changed),
        file: None,
        remarks: found.remarks().to_vec(),
        changed: said,
        words,
    })
}

/// Nothing is configured, and nothing was found.
fn nothing(tree: &Path, empty: &delta_planner::EmptyPlan) -> Failure {
    let what = format!(
        "EMPTY_PLAN: there is nothing to run in {}",
        secret_input::shown(tree)
    );
    let file = delta_planner::FILE_NAME;
    Failure::new(Exit::NotFound, what)
        .because(empty)
        .next(match above(tree) {
            Some(root) => format!(
                "{file} is above: name its folder, {}",
                secret_input::shown(&root)
            ),
            None => format!("delta-ci init leaves {file} to edit: what was seen, and a job"),
        })
}

/// The folder above this one that has a pipeline file, in the same repository.
fn above(tree: &Path) -> Option<PathBuf> {
    let tree = tree.canonicalize().ok()?;
    let inside = tree.ancestors().take_while(|it| !it.join(".git").exists());
    let root = tree.ancestors().nth(inside.count())?;
    let mut folders = tree.ancestors().skip(1);
    let found = folders.find(|it| it.join(delta_planner::FILE_NAME).exists())?;
    found.starts_with(root).then(|| found.to_owned())
}

pub fn read_pipeline(file: &Path) -> Result<Pipeline, Failure> {
    let shown = secret_input::shown(file);
    let bytes = std::fs::read(file).map_err(|error| {
        Failure::new(Exit::NotFound, format!("cannot read {shown}"))
            .caused_by(&error)
            .next("write one, or name the folder that has one: delta-ci run PATH")
    })?;
    delta_planner::parse(&shown, &bytes).map_err(|faults| {
        let things = match faults.faults() {
            1 => "a fault",
            _ => "faults",
        };
        Failure::new(Exit::Usage, format!("{shown} has {things}")).because(faults)
    })
}

/// A person at a checkout: what is not committed counts, too.
fn changed(tree: &Path, asked: &Asked) -> Result<(Changed, String), Failure> {
    if asked.all {
        return Ok((Changed::All, "everything was asked for".to_owned()));
    }
    let uncertain = |why: String| {
        let said = format!("{why}: everything runs");
        (Changed::Unknown(why), said)
    };
    if let Some(base) = asked.base.as_ref().filter(|it| !is_commit(tree, it)) {
        let what = format!(
            "--base: there is no commit `{base}` in {}",
            secret_input::shown(tree)
        );
        return Err(Failure::new(Exit::NotFound, what)
            .next("name a branch, a tag or a commit; --all asks for everything"));
    }
    let Some(base) = asked.base.clone().or_else(|| default_base(tree)) else {
        return Ok(uncertain("there is no branch to compare with".to_owned()));
    };
    Ok(match changed_since(tree, &base, None) {
        // Whoever types it in a clean checkout of the main branch wants to see it run.
        Changed::Files(files) if files.paths().is_empty() && asked.base.is_none() => {
            uncertain(format!("nothing differs from {base}"))
        }
        Changed::Files(files) => {
            let count = state_words::count(files.paths().len() as u64, "file");
            let said = format!("{count} changed since the merge base with {base}");
            (Changed::Files(files), said)
        }
        Changed::Unknown(why) => uncertain(why),
        Changed::All => (Changed::All, "everything was asked for".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_knows_what_it_knows_on_a_server() {
        let nowhere = Path::new("/nonexistent");
        let on = |event| Asked {
            event,
            branch: Some("topic".to_owned()),
            base: Some("origin/main".to_owned()),
            ..Asked::default()
        };
        let manual = on(None).facts(nowhere);
        assert_eq!(manual.event, Event::Manual);
        assert_eq!(manual.branch.as_deref(), Some("topic"));
        let request = on(Some(Event::PullRequest)).facts(nowhere);
        assert_eq!((request.branch, request.git_ref), (None, None));
        assert_eq!(request.source.as_deref(), Some("topic"));
        assert_eq!(request.target.as_deref(), Some("main"));
        let tag = Asked {
            tag: Some("v1".to_owned()),
            ..Asked::default()
        };
        let tag = tag.facts(nowhere);
        assert_eq!((tag.event, tag.branch), (Event::Tag, None));
        assert_eq!(tag.tag.as_deref(), Some("v1"));
    }

    #[test]
    fn what_is_typed_wrong_says_what_to_type() {
        assert_eq!(
            event("pul_request"),
            Err("did you mean `pull_request`?".into())
        );
        assert!(input("level").is_err() && input("=x").is_err());
        assert_eq!(input("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
    }
}
