//! Whose caches a run may write and read (T7). The server decides it from the run, never the
//! agent: a run writes to its own scope only, and reads that one, then its parent's.
//!
//! The parent of everything is the trusted default branch. So a fork reads what the default branch
//! saved and nobody ever reads what a fork saved but runs of the same ref of it. Runs without a
//! repository have those in common that the same person or program asked for.

use delta_core::run::RunHeader;
use serde::{Deserialize, Serialize};

use crate::runner_commands::hex;
use crate::writer::sha256;

/// Branches that count as the default one, as far as a run says.
const DEFAULT_BRANCHES: [&str; 2] = ["main", "master"];

/// Whose caches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    pub project: String,
    pub repository: String,
    /// Who asked for the run, where it has no repository: there is nothing else that two such runs
    /// have in common. Empty where it has one.
    #[serde(default)]
    pub created_by: String,
    pub trusted: bool,
    /// Empty: the default branch, or no branch at all.
    pub git_ref: String,
}

impl Scope {
    /// Where a run saves.
    pub fn own(run: &RunHeader) -> Scope {
        let text = run.git_ref.as_deref().unwrap_or_default();
        let branch = text.strip_prefix("refs/heads/").unwrap_or(text);
        let default = run.trusted && DEFAULT_BRANCHES.contains(&branch);
        let repository = run.repository.as_deref().unwrap_or_default();
        let created_by = match repository {
            "" => run.created_by.to_string(),
            _ => String::new(),
        };
        Scope {
            project: run.project.to_string(),
            repository: repository.to_owned(),
            created_by,
            trusted: run.trusted,
            git_ref: if default { "" } else { branch }.to_owned(),
        }
    }

    /// Where a run looks, in this order.
    pub fn readable(run: &RunHeader) -> Vec<Scope> {
        let own = Scope::own(run);
        let parent = Scope {
            trusted: true,
            git_ref: String::new(),
            ..own.clone()
        };
        if own == parent {
            vec![own]
        } else {
            vec![own, parent]
        }
    }

    /// The name of its folder: no text of a run's becomes a path.
    pub fn name(&self) -> String {
        let parts = [
            &self.project,
            &self.repository,
            &self.created_by,
            &self.git_ref,
        ];
        let mut text = format!("{};", self.trusted);
        for part in parts {
            // Lengths keep two different lists from being one text.
            text.push_str(&format!("{}:{part};", part.len()));
        }
        short(&text)
    }
}

/// Half of a hash: enough that nobody finds two texts with the same.
pub(super) fn short(text: &str) -> String {
    hex(&sha256(text.as_bytes())[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(git_ref: Option<&str>, trusted: bool) -> RunHeader {
        RunHeader {
            repository: Some("https://git.example/r".into()),
            git_ref: git_ref.map(Into::into),
            trusted,
            ..RunHeader::plain("me", &delta_core::Settings::recommended())
        }
    }

    // T7
    #[test]
    fn what_a_fork_saves_is_read_by_nobody_else() {
        let names = |run: &RunHeader| -> Vec<String> {
            Scope::readable(run).iter().map(Scope::name).collect()
        };
        let main = run(Some("refs/heads/main"), true);
        let feature = run(Some("feature"), true);
        // Whatever it calls its branch.
        let fork = run(Some("main"), false);
        let other = run(Some("patch-1"), false);
        let parent = Scope::own(&main).name();
        assert_eq!(names(&main), std::slice::from_ref(&parent));
        assert_eq!(
            names(&feature),
            [Scope::own(&feature).name(), parent.clone()]
        );
        assert_eq!(names(&fork), [Scope::own(&fork).name(), parent.clone()]);
        for reader in [&main, &feature, &other] {
            assert!(!names(reader).contains(&Scope::own(&fork).name()));
        }
        assert_eq!(
            Scope::own(&run(None, true)).name(),
            parent,
            "no branch at all"
        );
        assert_ne!(
            Scope::own(&run(Some("refs/tags/main"), true)).name(),
            parent
        );
        let mut elsewhere = run(Some("main"), true);
        elsewhere.created_by = "somebody else".into();
        assert_eq!(Scope::own(&elsewhere).name(), parent, "one repository");
        elsewhere.repository = Some("https://git.example/other".into());
        assert_ne!(Scope::own(&elsewhere).name(), parent);
    }

    // T7
    #[test]
    fn runs_without_a_repository_share_with_those_of_the_same_creator_only() {
        let by = |who: &str, trusted: bool| RunHeader {
            repository: None,
            created_by: who.into(),
            ..run(None, trusted)
        };
        let (mine, theirs) = (by("me", true), by("them", true));
        assert_eq!(Scope::own(&mine), Scope::own(&by("me", true)));
        for scope in Scope::readable(&theirs) {
            assert!(!Scope::readable(&mine).contains(&scope), "{scope:?}");
        }
        // Trust separates here, too, and only in one direction.
        let untrusted = by("me", false);
        assert!(!Scope::readable(&mine).contains(&Scope::own(&untrusted)));
        assert!(Scope::readable(&untrusted).contains(&Scope::own(&mine)));
        let mut named = by("me", true);
        named.repository = Some("https://git.example/r".into());
        assert_ne!(Scope::own(&named).name(), Scope::own(&mine).name());
    }
}
