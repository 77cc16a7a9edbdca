//! A control group for one attempt, where this machine has them: its end is one write that nothing
//! escapes. Never required: without it the tree is ended process by process.
//!
//! The shim joins its own group, so that what it starts is born inside, and leaves it before it
//! ends everything in there. Joining can take the kernel milliseconds, so it happens beside the
//! work; what was started before is found by the sweep.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process};

/// Rounds in which an older kernel's group is emptied, each a few milliseconds.
const KILL_ROUNDS: u32 = 50;
const ROUND: Duration = Duration::from_millis(5);

/// A group that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    folder: PathBuf,
}

impl Group {
    /// Makes a group under the one this process is in. Nothing when this machine has none, or does
    /// not let us.
    pub fn make(name: &str) -> Option<Group> {
        homes().into_iter().find_map(|(_, home)| {
            let folder = home.join(name);
            fs::create_dir(&folder).ok()?;
            Some(Group { folder })
        })
    }

    /// What kind of group this process could make, in a word an agent reports.
    pub fn kind() -> Option<&'static str> {
        homes().into_iter().find_map(|(kind, home)| {
            access(home, Access::WRITE_OK).ok()?;
            Some(match kind {
                Kind::Unified => "cgroup:v2",
                Kind::Freezer => "cgroup:v1",
            })
        })
    }

    /// One that was made before, as [`Group::path`] told.
    pub fn at(folder: PathBuf) -> Option<Group> {
        folder
            .join("cgroup.procs")
            .exists()
            .then_some(Group { folder })
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Moves this process inside.
    pub fn join(&self) -> io::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), "0")
    }

    /// Moves this process back to where it was.
    pub fn leave(&self) -> io::Result<()> {
        let above = self.folder.parent().unwrap_or(Path::new("/"));
        fs::write(above.join("cgroup.procs"), "0")
    }

    /// Ends everything inside, which must not be the caller. True when it was done in one stroke;
    /// an older kernel's members are only frozen and ended one by one.
    pub fn kill(&self) -> bool {
        if fs::write(self.folder.join("cgroup.kill"), "1").is_ok() {
            return true;
        }
        let _ = fs::write(self.folder.join("freezer.state"), "FROZEN");
        for pid in self.members() {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = fs::write(self.folder.join("freezer.state"), "THAWED");
        false
    }

    /// Ends everything inside until nothing is left, and removes the group. For an agent whose shim
    /// is gone; blocks for a moment. True when it is empty.
    pub fn clear(&self) -> bool {
        for _ in 0..KILL_ROUNDS {
            if fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                return true;
            }
            self.kill();
            std::thread::sleep(ROUND);
        }
        false
    }

    pub fn members(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        let numbers = text.lines().filter_map(|line| line.trim().parse().ok());
        numbers.filter_map(Pid::from_raw).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Version 2, alone or beside version 1.
    Unified,
    /// Version 1's hierarchy that can at least hold still what is inside.
    Freezer,
}

/// The groups this process is in, best first.
fn homes() -> Vec<(Kind, PathBuf)> {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let (membership, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    let kinds = [Kind::Unified, Kind::Freezer].into_iter();
    kinds
        .filter_map(|kind| Some((kind, home(&membership, &mounts, kind)?)))
        .collect()
}

/// The folder of the group this process is in.
fn home(membership: &str, mounts: &str, kind: Kind) -> Option<PathBuf> {
    let own = membership.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let ours = match kind {
            Kind::Unified => number == "0" && controllers.is_empty(),
            Kind::Freezer => controllers.split(',').any(|it| it == "freezer"),
        };
        ours.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (fs_type, options) = (after.next()?, after.nth(1)?);
        let ours = match kind {
            Kind::Unified => fs_type == "cgroup2",
            Kind::Freezer => fs_type == "cgroup" && options.split(',').any(|it| it == "freezer"),
        };
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        // Inside a container the mount may show only a part of the hierarchy.
        let below = match root {
            "/" => own,
            root => own.strip_prefix(root).unwrap_or("/"),
        };
        ours.then(|| Path::new(point).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
24 1 0:22 / /proc rw,relatime - proc proc rw
30 25 0:26 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
31 25 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn both_kinds_of_groups_are_found() {
        let membership = "6:freezer:/agents\n0::/system.slice/agent.service\n";
        let unified = home(membership, MOUNTS, Kind::Unified);
        let wanted = "/sys/fs/cgroup/unified/system.slice/agent.service";
        assert_eq!(unified, Some(PathBuf::from(wanted)));
        let freezer = home(membership, MOUNTS, Kind::Freezer);
        assert_eq!(
            freezer,
            Some(PathBuf::from("/sys/fs/cgroup/freezer/agents"))
        );
        assert_eq!(home("1:name=systemd:/\n", MOUNTS, Kind::Unified), None);
        assert_eq!(home(membership, "", Kind::Freezer), None);
    }
}
