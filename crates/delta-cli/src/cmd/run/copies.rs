//! What jobs work on when it is not the tree itself: copies of it, kept from one run to the next
//! where that can be done, and what becomes of them at the end.

use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use delta_agent::local::{Bounds, Loan, LocalTree, Refused, Shelf};
use delta_agent::workspace::{self, Source};
use delta_planner::PlannedJob;

use super::outbox::Outbox;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::human_time;
use crate::sanitize;
use crate::secret_input;
use crate::terminal::Terminal;

/// How long folders are removed before somebody who waits is told.
const QUIET: Duration = Duration::from_millis(700);

/// The copies of one run.
pub struct Copies {
    local: LocalTree,
    shelf: Option<Shelf>,
    loan: Option<Loan>,
}

impl Copies {
    /// Says once which of them were there before.
    pub fn prepare(
        tree: &Path,
        temporary: &Path,
        jobs: &[PlannedJob],
        fresh: bool,
        terminal: &Terminal,
    ) -> Copies {
        let mut copies = Copies {
            local: LocalTree::of(tree),
            shelf: None,
            loan: None,
        };
        copies.local.objects = Some(temporary.join("repository"));
        // Another CI system runs this: what it wants is a clean copy, and it keeps what it wants.
        if is_ci(std::env::var("CI").ok().as_deref()) {
            return copies;
        }
        let Some(root) = Shelf::usual() else {
            return copies;
        };
        let jobs: Vec<(String, String)> = jobs.iter().map(apart).collect();
        let opened = Shelf::open(&root, tree).and_then(|shelf| match shelf {
            Some(shelf) => Ok(Some((shelf.borrow(&jobs, fresh)?, shelf))),
            None => Ok(None),
        });
        match opened {
            Ok(Some((loan, shelf))) => copies.take(loan, shelf, terminal),
            Ok(None) => {}
            Err(error) => terminal.say(&format!(
                "workspaces are not kept: {} cannot be used: {error}",
                root.display()
            )),
        }
        copies
    }

    fn take(&mut self, loan: Loan, shelf: Shelf, terminal: &Terminal) {
        if let Some(since) = loan.since {
            let age = SystemTime::now().duration_since(since).unwrap_or_default();
            let age = human_time::short(age);
            terminal.say(&format!(
                "workspaces kept from {age} ago; --fresh for new ones"
            ));
        }
        if !loan.in_use.is_empty() {
            let names = sanitize::text(&loan.in_use.join(", "));
            terminal.say(&format!(
                "another run works in the workspace of {names}: a fresh copy, and not kept"
            ));
        }
        self.local.objects = Some(shelf.objects());
        self.local.kept = loan.kept();
        // Beside the run; what it does not come to is done by the next one.
        let trimmed = shelf.clone();
        std::thread::spawn(move || trimmed.trim(Bounds::USUAL, SystemTime::now()));
        (self.loan, self.shelf) = (Some(loan), Some(shelf));
    }

    pub fn source(&self) -> Source {
        Source::Copy(self.local.clone())
    }

    /// A folder for what the jobs of this run leave; nothing where nothing is kept.
    pub fn artifacts(&self, terminal: &Terminal) -> Option<Outbox> {
        let opened = Outbox::numbered(&self.shelf.as_ref()?.artifacts());
        let said = |error: &io::Error| terminal.say(&format!("artifacts are not kept: {error}"));
        opened.inspect_err(said).ok()
    }

    /// No process of a job is left: the next run goes on with these workspaces.
    pub fn give_back(&mut self, terminal: &Terminal) {
        if let Some(Err(error)) = self.loan.take().map(Loan::give_back) {
            terminal.say(&format!("the workspaces are not kept: {error}"));
        }
    }
}

/// A tree whose files git does not tell is not copied: what it ignores, secrets and build results,
/// would be in the copy, and the repository would not.
pub fn check(tree: &Path) -> Result<(), Failure> {
    let Err(refused) = LocalTree::of(tree).check() else {
        return Ok(());
    };
    let what = format!(
        "{} cannot be copied for the jobs",
        secret_input::shown(tree)
    );
    let in_place = "--in-place, which copies nothing";
    let next = match &refused {
        Refused::ByGit {
            advice: Some(advice),
            ..
        } => format!("{advice} if you trust it; or {in_place}"),
        Refused::ByGit { advice: None, .. } => in_place.to_owned(),
        Refused::NoGit { .. } => format!("install git, or put it on PATH; or {in_place}"),
    };
    let failure = Failure::new(Exit::Refused, what);
    Err(failure.because(refused.to_string()).next(next))
}

/// Set by most CI systems.
fn is_ci(said: Option<&str>) -> bool {
    said.is_some_and(|it| !matches!(it, "" | "0" | "false"))
}

/// A job, and what its workspace must not be shared over: what was built in one image is of no use
/// in another.
fn apart(job: &PlannedJob) -> (String, String) {
    let part = |name: &str| job.around.get(name).map(ToString::to_string);
    let parts = [part("image"), part("container")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (job.name.clone(), parts.join("\n"))
}

/// Removes the folder of a run. That takes a while where a job has left a hundred thousand files:
/// then it is said what is waited for.
pub fn remove(folder: tempfile::TempDir, terminal: &Terminal) {
    let folder = folder.keep();
    let (done, over) = mpsc::channel();
    let gone = folder.clone();
    std::thread::spawn(move || {
        // Another thread may still be at a part of it.
        let mut removed = workspace::remove_tree(&gone);
        if removed.is_err() {
            removed = workspace::remove_tree(&gone);
        }
        let _ = done.send(removed);
    });
    let removed = match over.recv_timeout(QUIET) {
        Err(mpsc::RecvTimeoutError::Timeout) => {
            let place = folder.display();
            terminal.say(&format!("removing {place}, where the jobs worked"));
            over.recv()
        }
        removed => removed.map_err(|_| mpsc::RecvError),
    };
    if let Ok(Err(error)) = removed {
        terminal.say(&format!("{} cannot be removed: {error}", folder.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_ci_system_is_known_by_its_variable() {
        assert!(is_ci(Some("true")) && is_ci(Some("woodpecker")));
        assert!(!is_ci(None) && !is_ci(Some("")) && !is_ci(Some("false")));
    }
}
