//! Repositories as they are found, and the plan that a maintainer would have written for each.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use delta_planner::{Changed, EmptyPlan, Pipeline, Plan, Remark, Tree};

/// A fixture: its files, and what changed.
pub struct Repository {
    pub files: Vec<(String, String)>,
    pub changed: Vec<String>,
}

impl Repository {
    pub fn read(name: &str) -> Repository {
        let path = folder().join(format!("{name}.repo"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{path:?}: {why}"));
        let mut repository = Repository {
            files: Vec::new(),
            changed: Vec::new(),
        };
        for line in text.lines() {
            if let Some(path) = line.strip_prefix("== ") {
                repository.files.push((path.to_owned(), String::new()));
            } else if let Some((_, text)) = repository.files.last_mut() {
                text.push_str(line);
                text.push('\n');
            } else if let Some(path) = line.strip_prefix("changed: ") {
                repository.changed.push(path.to_owned());
            } else if let Some(other) = line.strip_prefix("like: ") {
                // Nothing but what changed stands in such a file.
                let files = Repository::read(other).files;
                let changed = text.lines().filter_map(|it| it.strip_prefix("changed: "));
                let changed = changed.map(str::to_owned).collect();
                return Repository { files, changed };
            }
        }
        repository
    }

    pub fn tree(&self) -> Tree {
        Tree::of(self.files.iter().cloned())
    }

    pub fn changed(&self) -> Changed {
        match self.changed.is_empty() {
            true => Changed::All,
            false => Changed::files(self.changed.iter().cloned()),
        }
    }
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/repositories")
}

pub fn all() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).expect("fixtures");
    let names = entries.map(|entry| entry.expect("entry").file_name());
    let names = names.filter_map(|name| name.to_str()?.strip_suffix(".repo").map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// A plan as text: what a person would want to compare.
fn shown(repository: &Repository) -> String {
    let tree = repository.tree();
    match delta_planner::discover(&tree) {
        Ok(discovery) => {
            let plan = discovery.plan(&repository.changed());
            plan_text(&plan, discovery.remarks())
        }
        Err(empty) => empty_text(&empty),
    }
}

fn empty_text(empty: &EmptyPlan) -> String {
    format!("EMPTY_PLAN: {empty}\n")
}

fn plan_text(plan: &Plan, remarks: &[Remark]) -> String {
    let mut text = String::new();
    for included in &plan.jobs {
        let job = &included.job;
        let _ = writeln!(text, "{}: {}", job.name, included.reason);
        if job.workdir != "." {
            let _ = writeln!(text, "    in {}", job.workdir);
        }
        if !job.requires.is_empty() {
            let _ = writeln!(text, "    requires {}", job.requires.join(", "));
        }
        for step in &job.steps {
            let _ = writeln!(text, "    $ {}", step.spec.run.replace('\n', "\n      "));
        }
        for (key, value) in &job.around {
            for item in value.as_array().into_iter().flatten() {
                let _ = writeln!(text, "    {key} {item}");
            }
            if let Some(word) = value.as_str() {
                let _ = writeln!(text, "    {key} {word}");
            }
        }
    }
    for omitted in &plan.omitted {
        let _ = writeln!(text, "- {}: {}", omitted.name, omitted.reason);
    }
    for remark in remarks {
        let _ = writeln!(text, "? {}: {}", remark.what, remark.reason);
    }
    text
}

#[test]
fn discovery_gives_the_plan_a_maintainer_would_write() {
    let bless = std::env::var_os("DELTA_BLESS").is_some();
    let names = all();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        let text = shown(&Repository::read(&name));
        let path = folder().join(format!("{name}.plan"));
        if bless {
            std::fs::write(&path, &text).expect("write");
        }
        let wanted = std::fs::read_to_string(&path).unwrap_or_default();
        let how = "read the change, then DELTA_BLESS=1 cargo test -p delta-planner repositories";
        assert_eq!(text, wanted, "{name}: {how}");
    }
}

/// A name as it must be in a script: without anything that a shell reads.
#[test]
fn hostile_names_are_data() {
    let repository = Repository::read("hostile");
    let tree = repository.tree();
    let discovery = delta_planner::discover(&tree).expect("something is found");
    for job in &discovery.pipeline().jobs {
        let name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        assert!(job.name.chars().all(name), "{}", job.name);
        for step in &job.steps {
            for bad in ["$(touch", "$(id", "`id"] {
                let quoted = format!("'{bad}");
                let bare = step.spec.run.replace(&quoted, "");
                assert!(!bare.contains(bad), "{}", step.spec.run);
            }
        }
    }
}

/// What `init` writes reads back as the same jobs.
#[test]
fn a_written_plan_reads_back_as_the_same_plan() {
    for name in all() {
        let tree = Repository::read(&name).tree();
        let Ok(discovery) = delta_planner::discover(&tree) else {
            continue;
        };
        same_when_read_back(
            &delta_planner::written(&discovery).expect("short"),
            &discovery.pipeline(),
        );
    }
}

pub fn same_when_read_back(text: &str, wanted: &Pipeline) {
    match delta_planner::parse("written", text.as_bytes()) {
        Ok(read) => assert_eq!(&read, wanted, "{text}"),
        Err(faults) => panic!("{faults}\n{text}"),
    }
}
