//! Everything an attempt ever started, and its end with a proof (D9).
//!
//! The shim is the reaper of its descendants: whoever loses its parent becomes its child, whatever
//! session or group it moved to. So "no child is left" means that nothing is left, and that is one
//! call to the kernel. Until then descendants are looked up in `/proc`, held still, and killed, in
//! rounds: whoever forked during a round is found in the next.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgrp, getpid, kill_process, kill_process_group, wait,
};

use crate::groups::control_group::Group;

/// Looks within one round for processes that were born while others were being held still.
const STILLING_PASSES: u32 = 8;

/// One process as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SeenProcess {
    pub pid: i32,
    parent: i32,
    group: i32,
    pub dead: bool,
    /// When it began, in ticks since the boot: with its number, nobody else.
    pub start: u64,
}

/// What reaping found.
#[derive(Debug, Default)]
pub(crate) struct Reaped {
    /// Who ended, and how.
    pub ended: Vec<(Pid, WaitStatus)>,
    /// There is no child any more, and so no descendant.
    pub none_left: bool,
}

/// Takes the ends of all children that ended.
pub(crate) fn reap() -> Reaped {
    let mut reaped = Reaped::default();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(ended)) => reaped.ended.push(ended),
            Ok(None) => return reaped,
            Err(Errno::INTR) => {}
            Err(_) => {
                reaped.none_left = true;
                return reaped;
            }
        }
    }
}

/// Asks everything to end.
pub(crate) fn terminate() {
    for seen in descendants() {
        send(seen.pid, Signal::TERM);
        // A stopped process hears TERM only when it continues.
        send(seen.pid, Signal::CONT);
    }
}

/// One round of ending everything.
pub(crate) fn kill(group: Option<&Group>) {
    // Only what this process is not inside of may be ended in one stroke.
    if let Some(group) = group {
        let inside = || group.members().contains(&getpid());
        if !inside() || (group.leave().is_ok() && !inside()) {
            group.kill();
        }
    }
    let mut still = HashSet::new();
    let mut groups = BTreeSet::new();
    for _ in 0..STILLING_PASSES {
        let fresh: Vec<SeenProcess> = descendants()
            .into_iter()
            .filter(|seen| !seen.dead && still.insert(seen.pid))
            .collect();
        if fresh.is_empty() {
            break;
        }
        for seen in &fresh {
            send(seen.pid, Signal::STOP);
        }
        groups.extend(fresh.iter().map(|seen| seen.group));
    }
    // A whole group at once leaves no gap for a member that is just forking.
    for group in groups {
        if group != getpgrp().as_raw_nonzero().get()
            && let Some(group) = Pid::from_raw(group)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
    for pid in still {
        send(pid, Signal::KILL);
    }
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // Gone meanwhile, or not ours to signal: the proof is in the reaping, not here.
        let _ = kill_process(pid, signal);
    }
}

/// All descendants of this process, zombies too.
fn descendants() -> Vec<SeenProcess> {
    descendants_of(getpid().as_raw_nonzero().get())
}

/// The process of this number and all its descendants.
pub fn family(root: i32) -> Vec<i32> {
    let descendants = descendants_of(root).into_iter();
    let below = descendants.map(|seen| seen.pid);
    std::iter::once(root).chain(below).collect()
}

fn descendants_of(root: i32) -> Vec<SeenProcess> {
    let all: Vec<SeenProcess> = processes().collect();
    below(&all, vec![root])
}

/// This process and all that it came from.
pub(super) fn above(all: &[SeenProcess], pid: i32) -> HashSet<i32> {
    let parents: HashMap<i32, i32> = all.iter().map(|it| (it.pid, it.parent)).collect();
    let mut found = HashSet::from([pid]);
    let mut at = pid;
    while let Some(parent) = parents.get(&at)
        && found.insert(*parent)
    {
        at = *parent;
    }
    found
}

/// All descendants of these among those.
pub(super) fn below(all: &[SeenProcess], mut roots: Vec<i32>) -> Vec<SeenProcess> {
    let mut children: HashMap<i32, Vec<SeenProcess>> = HashMap::new();
    for seen in all {
        children.entry(seen.parent).or_default().push(*seen);
    }
    let mut found: Vec<SeenProcess> = Vec::new();
    while let Some(parent) = roots.pop() {
        for seen in children.remove(&parent).unwrap_or_default() {
            roots.push(seen.pid);
            found.push(seen);
        }
    }
    found
}

/// Every process of the machine.
pub(super) fn processes() -> impl Iterator<Item = SeenProcess> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let name = entry.file_name();
        let numbered = name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        numbered.then(|| look(&entry.path()))?
    })
}

/// The process that is described here.
pub(super) fn look(place: &Path) -> Option<SeenProcess> {
    let stat = fs::read(place.join("stat")).ok()?;
    read_stat(&String::from_utf8_lossy(&stat))
}

/// `/proc/PID/stat`; the name inside it may itself contain blanks and brackets.
fn read_stat(stat: &str) -> Option<SeenProcess> {
    let (before, after) = stat.rsplit_once(')')?;
    let pid = before.split_once(' ')?.0.parse().ok()?;
    let mut fields = after.split_ascii_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X" | "x");
    Some(SeenProcess {
        pid,
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        dead,
        // Sixteen that nobody asks for lie in between.
        start: fields.nth(16)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_hide_the_rest() {
        let stat = "42 (a) b (c)) S 1 77 78 0 -1 4194560 9 8 7 6 5 4 3 2 30 10 1 0 123456 99";
        let wanted = SeenProcess {
            pid: 42,
            parent: 1,
            group: 77,
            dead: false,
            start: 123_456,
        };
        assert_eq!(read_stat(stat), Some(wanted));
        assert_eq!(read_stat("garbage"), None);
    }
}
