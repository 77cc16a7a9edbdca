//! Everything an attempt ever started, and its end with a proof (D9).
//!
//! The shim is the reaper of its descendants: whoever loses its parent becomes its child, whatever
//! session or group it moved to. So "no child is left" means that nothing is left, and that is one
//! call to the kernel. Until then descendants are looked up in `/proc`, held still, and killed, in
//! rounds: whoever forked during a round is found in the next.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgrp, getpid, kill_process, kill_process_group, wait,
};

use super::group::Group;

/// Looks within one round for processes that were born while others were being held still.
const STILLING_PASSES: u32 = 8;

/// Rounds in which what a lost shim has left is looked for, and the pause between them.
const STRAY_ROUNDS: u32 = 100;
const ROUND: Duration = Duration::from_millis(5);

/// One process as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    pid: i32,
    parent: i32,
    group: i32,
    dead: bool,
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
        let fresh: Vec<Seen> = descendants()
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
fn descendants() -> Vec<Seen> {
    descendants_of(getpid().as_raw_nonzero().get())
}

/// The process of this number and all its descendants.
pub(crate) fn family(root: i32) -> Vec<i32> {
    let descendants = descendants_of(root).into_iter();
    let below = descendants.map(|seen| seen.pid);
    std::iter::once(root).chain(below).collect()
}

fn descendants_of(root: i32) -> Vec<Seen> {
    let mut children: HashMap<i32, Vec<Seen>> = HashMap::new();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        if let Some(seen) = read_stat(&String::from_utf8_lossy(&stat)) {
            children.entry(seen.parent).or_default().push(seen);
        }
    }
    let mut found: Vec<Seen> = Vec::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        for seen in children.remove(&parent).unwrap_or_default() {
            open.push(seen.pid);
            found.push(seen);
        }
    }
    found
}

/// `/proc/PID/stat`; the name inside it may itself contain blanks and brackets.
fn read_stat(stat: &str) -> Option<Seen> {
    let (before, after) = stat.rsplit_once(')')?;
    let pid = before.split_once(' ')?.0.parse().ok()?;
    let mut fields = after.split_ascii_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X" | "x");
    Some(Seen {
        pid,
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        dead,
    })
}

/// Ends, as well as it can be told from outside, what a lost shim has left: processes that carry
/// these entries in their environment. For an agent; never the caller itself. Whoever forked while
/// it was looked for is found in the next round; blocks for a moment.
pub(crate) fn kill_strays(marks: &[String]) {
    for _ in 0..STRAY_ROUNDS {
        let mut found = false;
        for (pid, process) in processes() {
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            let has = |mark: &String| {
                environment
                    .split(|byte| *byte == 0)
                    .any(|it| it == mark.as_bytes())
            };
            if marks.iter().all(has) {
                found = true;
                send(pid, Signal::KILL);
            }
        }
        if !found {
            return;
        }
        std::thread::sleep(ROUND);
    }
}

/// Ends the shim of this folder if it still lives, which is then its last argument.
pub(crate) fn kill_shim(folder: &Path) {
    let last = [b"\0", folder.as_os_str().as_bytes(), b"\0"].concat();
    for (pid, process) in processes() {
        let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
        if arguments.ends_with(&last) {
            send(pid, Signal::KILL);
        }
    }
}

/// Every process but the caller: its number and where it is described.
fn processes() -> impl Iterator<Item = (i32, PathBuf)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let other = pid != getpid().as_raw_nonzero().get();
        other.then(|| (pid, entry.path()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_hide_the_rest() {
        let stat = "42 (a) b (c)) S 1 77 78 0 -1 4194560";
        let wanted = Seen {
            pid: 42,
            parent: 1,
            group: 77,
            dead: false,
        };
        assert_eq!(read_stat(stat), Some(wanted));
        assert_eq!(read_stat("garbage"), None);
    }
}
