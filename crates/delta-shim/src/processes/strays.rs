//! What a lost shim has left, ended from outside: for an agent, whose child none of it is.
//!
//! Found is what is below the shim while it is there, what carries the attempt's mark or the job's
//! name in its environment, and what is below any of these. All of it is held still before
//! anything is ended: whoever forks meanwhile is found in the next pass. Each process is taken by a
//! hold on itself, looked at again once it is held, and signalled through it: a number that changed
//! hands is nobody's end.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open};

use super::mark::Mark;
use super::tree::{SeenProcess, above, below, look, processes};
use crate::program::SUBCOMMAND;

/// Looks for processes that were born while others were being held still.
const STILLING_PASSES: u32 = 16;

/// Rounds in which everything is looked for, held and ended, and the pause between them.
const ROUNDS: u32 = 100;
const ROUND: Duration = Duration::from_millis(5);

/// By what the processes of an attempt are known.
pub struct Traits {
    /// The attempt's state folder: the last word on its shim's command line.
    pub folder: Option<PathBuf>,
    pub mark: Option<Mark>,
    /// Entries of its environment, all of which a process has to have; none where it is empty.
    pub entries: Vec<String>,
}

/// A process that is held: its number means nobody else as long as this is there.
struct HeldProcess {
    seen: SeenProcess,
    hold: Option<OwnedFd>,
}

impl Traits {
    /// Ends everything of the attempt, the shim too. Blocks for a moment. True when nothing of it
    /// was found any more.
    pub fn end_all(&self) -> bool {
        for _ in 0..ROUNDS {
            let held = self.hold_still();
            if held.is_empty() {
                return true;
            }
            for process in &held {
                process.send(Signal::KILL);
            }
            std::thread::sleep(ROUND);
        }
        false
    }

    /// Everything there is of it, and nothing of it runs.
    fn hold_still(&self) -> Vec<HeldProcess> {
        let mut known = HashSet::new();
        let mut held = Vec::new();
        for _ in 0..STILLING_PASSES {
            let all: Vec<SeenProcess> = processes().filter(|seen| !seen.dead).collect();
            // A job can put its mark on processes of its user: whatever is above us is nobody's
            // stray, and what else is below it is not either.
            let above = above(&all, getpid().as_raw_nonzero().get());
            let fits = |it: &&SeenProcess| !above.contains(&it.pid) && self.fits(it);
            let mut found: Vec<SeenProcess> = all.iter().filter(fits).copied().collect();
            // What it was above belongs to it as well, though it may have no trait left.
            let roots = found.iter().map(|it| it.pid).chain(known.iter().copied());
            found.extend(below(&all, roots.collect()));
            let fresh: Vec<SeenProcess> = found
                .into_iter()
                .filter(|it| !above.contains(&it.pid) && known.insert(it.pid))
                .collect();
            if fresh.is_empty() {
                break;
            }
            for process in fresh.into_iter().filter_map(HeldProcess::of) {
                process.send(Signal::STOP);
                held.push(process);
            }
        }
        held
    }

    fn fits(&self, seen: &SeenProcess) -> bool {
        self.is_shim(seen.pid) || self.is_marked(seen.pid) || self.is_named(seen.pid)
    }

    fn is_shim(&self, pid: i32) -> bool {
        let Some(folder) = &self.folder else {
            return false;
        };
        let words = [SUBCOMMAND.as_bytes(), folder.as_os_str().as_bytes()];
        let last = [b"\0", words[0], b"\0", words[1], b"\0"].concat();
        of(pid, "cmdline").ends_with(&last)
    }

    fn is_marked(&self, pid: i32) -> bool {
        self.mark.is_some_and(|mark| mark.is_on(pid))
    }

    fn is_named(&self, pid: i32) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        let environment = of(pid, "environ");
        let has = |entry: &String| {
            let mut parts = environment.split(|byte| *byte == 0);
            parts.any(|it| it == entry.as_bytes())
        };
        self.entries.iter().all(has)
    }
}

impl HeldProcess {
    /// Nothing when it is gone, or its number is somebody else's by now.
    fn of(seen: SeenProcess) -> Option<HeldProcess> {
        let hold = pidfd_open(Pid::from_raw(seen.pid)?, PidfdFlags::empty()).ok();
        // Looked at once it is held: it cannot change any more.
        let still = look(Path::new(&format!("/proc/{}", seen.pid)))?;
        (still.start == seen.start).then_some(HeldProcess { seen, hold })
    }

    /// The proof is that nothing is found any more, not here.
    fn send(&self, signal: Signal) {
        match (&self.hold, Pid::from_raw(self.seen.pid)) {
            (Some(hold), _) => drop(rustix::process::pidfd_send_signal(hold, signal)),
            // A kernel without holds: as near as can be.
            (None, Some(pid)) => drop(kill_process(pid, signal)),
            (None, None) => {}
        }
    }
}

fn of(pid: i32, file: &str) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()
}
