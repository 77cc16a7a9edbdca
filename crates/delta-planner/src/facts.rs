//! What is known of the trigger that a plan is made for. Facts come from a verified event or from a
//! person; nothing here reads them from anywhere.

use std::collections::BTreeMap;
use std::fmt;

use crate::glob::Glob;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    Push,
    PullRequest,
    Tag,
    /// A person or a program asked for it.
    Manual,
}

impl Event {
    pub const ALL: [Event; 4] = [Event::Push, Event::PullRequest, Event::Tag, Event::Manual];

    pub fn name(self) -> &'static str {
        match self {
            Event::Push => "push",
            Event::PullRequest => "pull_request",
            Event::Tag => "tag",
            Event::Manual => "manual",
        }
    }

    pub fn from_name(name: &str) -> Option<Event> {
        Event::ALL.into_iter().find(|event| event.name() == name)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The trigger of a run, as far as conditions can ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub event: Event,
    /// The branch that was pushed to, or is checked out. None for a tag and for a pull request: a
    /// fork may call its branch what it likes, and `branch == "main"` must not hold there.
    pub branch: Option<String>,
    pub tag: Option<String>,
    /// As git spells it, such as `refs/heads/main`.
    pub git_ref: Option<String>,
    /// Of a pull request: where it is to go.
    pub target: Option<String>,
    /// Of a pull request: the branch it comes from, by whatever name its author gave.
    pub source: Option<String>,
    pub changed: Changed,
    /// As a person gave them; checked against what the file declares.
    pub inputs: BTreeMap<String, String>,
    /// Whether the run may have secrets: decided by the server, never by the file.
    pub trusted: bool,
}

impl Facts {
    /// A run that a person asks for, with nothing known about what changed.
    pub fn manual() -> Facts {
        Facts {
            event: Event::Manual,
            branch: None,
            tag: None,
            git_ref: None,
            target: None,
            source: None,
            changed: Changed::Unknown("nobody said what changed".to_owned()),
            inputs: BTreeMap::new(),
            trusted: true,
        }
    }

    /// What steps are told of the trigger, as variables.
    pub fn words(&self) -> Vec<(String, String)> {
        let words = [
            ("DELTA_EVENT", Some(self.event.name())),
            ("DELTA_REF", self.git_ref.as_deref()),
            ("DELTA_BRANCH", self.branch.as_deref()),
            ("DELTA_TAG", self.tag.as_deref()),
        ];
        let known = words.into_iter().filter_map(|(name, it)| Some((name, it?)));
        known
            .map(|(name, it)| (name.to_owned(), it.to_owned()))
            .collect()
    }

    /// A push of a branch with these changes.
    pub fn push(branch: &str, changed: Changed) -> Facts {
        Facts {
            event: Event::Push,
            branch: Some(branch.to_owned()),
            git_ref: Some(format!("refs/heads/{branch}")),
            changed,
            ..Facts::manual()
        }
    }
}

/// The files that changed, where that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// It is not known, and why, as the end of a sentence: whatever depends on it runs.
    Unknown(String),
    /// Everything is to be taken as changed: somebody asked for all.
    All,
    Files(ChangedFiles),
}

impl Changed {
    pub fn files(paths: impl IntoIterator<Item = String>) -> Changed {
        Changed::Files(ChangedFiles::new(paths))
    }
}

/// Paths from the root, `/` between their parts; sorted, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedFiles(Vec<String>);

impl ChangedFiles {
    pub fn new(paths: impl IntoIterator<Item = String>) -> ChangedFiles {
        let mut paths: Vec<String> = paths.into_iter().collect();
        paths.sort();
        paths.dedup();
        ChangedFiles(paths)
    }

    pub fn paths(&self) -> &[String] {
        &self.0
    }

    /// The first path that a pattern covers. Only paths that begin as it does are looked at.
    pub fn covered_by(&self, pattern: &Glob) -> Option<&str> {
        let prefix = pattern.prefix();
        let from = self.0.partition_point(|path| *path < prefix);
        let alike = self.0[from..].iter();
        let mut alike = alike.take_while(|path| path.starts_with(&prefix));
        alike.find(|path| pattern.covers(path)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_finds_its_path_among_many() {
        let paths = ["z.md", "crates/b/x.rs", "crates/a/y.rs", "crates/a"];
        let files = ChangedFiles::new(paths.map(str::to_owned));
        let found = |text: &str| files.covered_by(&Glob::parse(text).unwrap());
        assert_eq!(found("crates/a/**"), Some("crates/a"));
        assert_eq!(found("crates/a/*"), Some("crates/a/y.rs"));
        assert_eq!(found("**/*.md"), Some("z.md"));
        assert_eq!(found("crates/c/**"), None);
        assert_eq!(found("crates"), Some("crates/a"));
    }

    #[test]
    fn names_of_events_read_back() {
        for event in Event::ALL {
            assert_eq!(Event::from_name(event.name()), Some(event));
        }
    }
}
