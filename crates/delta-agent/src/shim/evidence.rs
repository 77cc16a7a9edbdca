//! What a shim sees when a step ends: processes that the kernel ended for want of memory, the room
//! on the disk, the last lines of the log. From it the verdict is made, and people believe it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use delta_wire::Evidence;
use delta_wire::evidence::{MAX_LAST_LINES, MAX_LINE_BYTES};

use crate::executor::{NEARLY_FULL_BELOW, Spool};
use crate::workspace::free_bytes;

/// Bytes of the log's end that are looked at for its last lines.
const TAIL_BYTES: u64 = 8 * 1024;

/// Where the kernel counts for all of them.
const MACHINE: &str = "/proc/vmstat";

/// Counts the processes that the kernel ends for want of memory while a step runs.
#[derive(Debug)]
pub(super) struct OomWatch {
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

    /// The same of the attempt's own processes, where that is known.
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
pub(super) fn kills_on_this_machine() -> Option<u64> {
    count(Path::new(MACHINE))
}

/// The last lines of a log without our marks, as text.
fn last_lines(file: &Path) -> io::Result<Vec<String>> {
    let file = File::open(file)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL_BYTES);
    let mut tail = vec![0; usize::try_from(length - from).unwrap_or(0)];
    file.read_exact_at(&mut tail, from)?;
    Ok(lines_of(&tail))
}

/// The same of the last bytes of one.
fn lines_of(tail: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(tail);
    // The first may be half of a line.
    let whole = text
        .lines()
        .skip(usize::from(tail.len() as u64 >= TAIL_BYTES));
    let lines = whole.filter(|line| !line.trim().is_empty() && !line.starts_with("--- "));
    let cut = |line: &str| line[..line.floor_char_boundary(MAX_LINE_BYTES)].to_owned();
    let lines: Vec<String> = lines.map(cut).collect();
    lines[lines.len().saturating_sub(MAX_LAST_LINES)..].to_vec()
}

/// Everything that is worth telling of work that failed.
pub(super) fn gather(workspace: &Path, spool: &Spool, oom: &OomWatch) -> Evidence {
    Evidence {
        oom_kills: oom.kills(),
        ..seen(workspace, lines_of(&spool.last_bytes(TAIL_BYTES)))
    }
}

/// The same of what failed before or after the work.
pub(crate) fn around(workspace: &Path, spool: &Path) -> Evidence {
    seen(workspace, last_lines(spool).unwrap_or_default())
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
        assert_eq!(lines.len(), MAX_LAST_LINES);
        assert_eq!(lines[18..], ["error: no rule", "make: *** [all] Error 2"]);
        fs::write(&spool, [0xff; 9000]).expect("a log");
        assert!(last_lines(&spool).expect("lines").len() <= 1);
    }
}
