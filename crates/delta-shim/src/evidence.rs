//! What a shim sees when a step ends: processes that the kernel ended for want of memory, the room
//! on the disk, the last lines of the log. From it the verdict is made, and people believe it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use delta_wire::Evidence;
use delta_wire::evidence::{MAX_LAST_LINES, MAX_LINE_BYTES};
use rustix::fs::statvfs;

use crate::spool::Spool;
use crate::verdict::NEARLY_FULL_BELOW;

/// Bytes of the log's end that are looked at for its last lines.
const TAIL_BYTES: u64 = 8 * 1024;

/// Where the kernel counts for all of them.
const MACHINE: &str = "/proc/vmstat";

/// Counts the processes that the kernel ends for want of memory while a step runs.
#[derive(Debug)]
pub(crate) struct OomWatch {
    file: PathBuf,
    whose: Whose,
    before: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The attempt's, and nobody else's.
    Own,
    /// The agent's group, or all of the machine: others' may be among them.
    Shared,
}

impl OomWatch {
    /// In a group that the attempt has to itself, by the file that counts there.
    pub fn own(file: PathBuf) -> OomWatch {
        let whose = Whose::Own;
        let before = count(&file);
        OomWatch {
            file,
            whose,
            before,
        }
    }

    /// In the group of this process where they are counted, otherwise on the whole machine. The
    /// group is the one it is in now.
    pub fn shared() -> OomWatch {
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let counted = groups(&membership)
            .into_iter()
            .find(|file| count(file).is_some());
        let file = counted.unwrap_or_else(|| MACHINE.into());
        let before = count(&file);
        OomWatch {
            file,
            whose: Whose::Shared,
            before,
        }
    }

    /// From here on: what went before is another step's.
    pub fn step_begins(&mut self) {
        self.before = count(&self.file);
    }

    /// Somebody who knows better has counted: until the next step, nothing is said.
    pub fn dismiss(&mut self) {
        self.before = None;
    }

    /// How many since then; nothing when there were none, or nobody counts.
    pub fn kills(&self) -> Option<u64> {
        let kills = count(&self.file)?.checked_sub(self.before?)?;
        (kills > 0).then_some(kills)
    }

    /// How many of the attempt's own processes were killed since then, where that is known.
    pub fn own_kills(&self) -> Option<u64> {
        self.kills().filter(|_| self.whose == Whose::Own)
    }
}

/// Files that count for the groups this process is in: version 2, then version 1.
fn groups(membership: &str) -> Vec<PathBuf> {
    let group = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let path = path.trim_start_matches('/');
        match controllers {
            "" => Some(Path::new("/sys/fs/cgroup").join(path).join("memory.events")),
            _ if controllers.split(',').any(|it| it == "memory") => {
                let root = Path::new("/sys/fs/cgroup/memory");
                Some(root.join(path).join("memory.oom_control"))
            }
            _ => None,
        }
    };
    let mut groups: Vec<PathBuf> = membership.lines().filter_map(group).collect();
    groups.sort_by_key(|path| path.ends_with("memory.oom_control"));
    groups
}

fn count(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

/// How many the kernel has ended on this machine since it began, where it says so.
pub(crate) fn kills_on_this_machine() -> Option<u64> {
    count(Path::new(MACHINE))
}

/// The last lines of a log without our marks, as text.
fn last_lines(file: &Path) -> io::Result<Vec<String>> {
    let file = File::open(file)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL_BYTES);
    let mut tail = vec![0; usize::try_from(length - from).unwrap_or(0)];
    file.read_exact_at(&mut tail, from)?;
    let begins = |line: &str| {
        let number = line.strip_prefix("--- step ")?.split_once(": ")?.0;
        number.parse::<u32>().ok()
    };
    let text = String::from_utf8_lossy(&tail);
    let lines: Vec<&str> = text.lines().collect();
    // What earlier steps and the checkout printed is theirs.
    let step = lines.iter().rposition(|line| begins(line).is_some());
    // The first may be half of a line.
    let half = usize::from(from > 0);
    let of_step = lines.iter().skip(step.map_or(half, |at| at + 1)).copied();
    Ok(shown(of_step, |line| line.starts_with("--- ")))
}

/// The lines in the last bytes of a log as text, without those that are `ours`.
fn lines_of(tail: &[u8], ours: impl Fn(&str) -> bool) -> Vec<String> {
    let text = String::from_utf8_lossy(tail);
    // The first may be half of a line.
    let half = usize::from(tail.len() as u64 >= TAIL_BYTES);
    shown(text.lines().skip(half), ours)
}

fn shown<'a>(lines: impl Iterator<Item = &'a str>, ours: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = lines.filter(|line| !line.trim().is_empty() && !ours(line));
    let cut = |line: &str| line[..line.floor_char_boundary(MAX_LINE_BYTES)].to_owned();
    let lines: Vec<String> = lines.map(cut).collect();
    lines[lines.len().saturating_sub(MAX_LAST_LINES)..].to_vec()
}

/// Everything that is worth telling of work that failed, in the words of its step alone.
pub(crate) fn gather(workspace: &Path, spool: &Spool, oom: &OomWatch) -> Evidence {
    Evidence {
        oom_kills: oom.kills(),
        ..seen(
            workspace,
            lines_of(&spool.last_bytes(TAIL_BYTES), |line| spool.is_mark(line)),
        )
    }
}

/// Everything that is worth telling of what failed before or after the work.
pub fn around(workspace: &Path, spool: &Path) -> Evidence {
    seen(workspace, last_lines(spool).unwrap_or_default())
}

/// Bytes that are free for us where this folder is.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let found = statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

fn seen(workspace: &Path, last_lines: Vec<String>) -> Evidence {
    Evidence {
        signal: None,
        oom_kills: None,
        free_bytes: free_bytes(workspace).filter(|free| *free < NEARLY_FULL_BELOW),
        last_lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_both_kinds_are_found() {
        let unified = groups("0::/user.slice/a\n");
        assert_eq!(
            unified,
            [Path::new("/sys/fs/cgroup/user.slice/a/memory.events")]
        );
        let hybrid = groups("4:memory:/b/c\n2:cpu,cpuacct:/\n0::/\n");
        assert_eq!(
            hybrid,
            [
                Path::new("/sys/fs/cgroup/memory.events"),
                Path::new("/sys/fs/cgroup/memory/b/c/memory.oom_control")
            ]
        );
        assert_eq!(groups("nonsense"), [""; 0].map(PathBuf::from));
    }

    #[test]
    fn the_last_lines_are_those_of_the_job() {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = folder.path().join("spool");
        let mut text = "early\n".repeat(5000);
        text.push_str("x\n\n--- step 2: make\nerror: no rule\nmake: *** [all] Error 2");
        fs::write(&spool, text).expect("a log");
        let lines = last_lines(&spool).expect("lines");
        assert_eq!(lines, ["error: no rule", "make: *** [all] Error 2"]);
        fs::write(&spool, "early\n".repeat(5000)).expect("a log");
        let lines = last_lines(&spool).expect("lines");
        assert_eq!(lines, ["early"; MAX_LAST_LINES]);
        fs::write(&spool, [0xff; 9000]).expect("a log");
        assert!(last_lines(&spool).expect("lines").len() <= 1);
    }
}
