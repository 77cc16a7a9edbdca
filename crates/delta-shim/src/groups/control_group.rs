//! A control group for one attempt, where this machine has them: its end is one write that nothing
//! escapes. Never required: without it the tree is ended process by process.
//!
//! The shim joins its own group, so that what it starts is born inside, and leaves it before it
//! ends everything in there. Joining can take the kernel milliseconds, so it happens beside the
//! work; what was started before is found by the sweep. Only where the group also counts whom the
//! kernel ends for want of memory is it waited for ([`super::joining`]).

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use rustix::fs::{Access, access, getxattr};
use rustix::process::{Pid, Signal, kill_process};

/// Rounds in which an older kernel's group is emptied, each a few milliseconds.
const KILL_ROUNDS: u32 = 50;
const ROUND: Duration = Duration::from_millis(5);

/// How the groups of attempts are named, by whichever agent.
pub(super) const NAME_PREFIX: &str = "delta-ci-";

/// A group that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    folder: PathBuf,
    /// Where its maker was before it joined.
    home: PathBuf,
}

impl Group {
    /// Makes a group under the one this process is in, or beside it where that is the place for
    /// it. Nothing when this machine has none, or does not let us.
    pub(crate) fn make(name: &str) -> Option<Group> {
        let homes = homes(&[Kind::Unified, Kind::Freezer]);
        homes.into_iter().find_map(|(kind, home)| {
            let place = place(kind, &home);
            if kind == Kind::Unified {
                count_memory(&place);
            }
            let folder = place.join(name);
            fs::create_dir(&folder).ok()?;
            Some(Group { folder, home })
        })
    }

    /// The file in which whom the kernel ends in it for want of memory is counted, where it is.
    pub(crate) fn count(&self) -> Option<PathBuf> {
        let file = self.folder.join("memory.events");
        file.exists().then_some(file)
    }

    /// What kind of group this process could make, in a word an agent reports.
    pub(crate) fn kind() -> Option<&'static str> {
        let homes = homes(&[Kind::Unified, Kind::Freezer]);
        homes.into_iter().find_map(|(kind, home)| {
            access(place(kind, &home), Access::WRITE_OK).ok()?;
            Some(match kind {
                Kind::Unified => "cgroup:v2",
                Kind::Freezer | Kind::Memory => "cgroup:v1",
            })
        })
    }

    /// One that was made before, as [`Group::path`] told.
    pub fn at(folder: PathBuf) -> Option<Group> {
        let home = folder.parent().unwrap_or(Path::new("/")).to_owned();
        let there = folder.join("cgroup.procs").exists();
        there.then_some(Group { folder, home })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    /// Moves this process inside.
    pub(crate) fn join(&self) -> io::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), "0")
    }

    /// Moves this process back to where it was.
    pub(crate) fn leave(&self) -> io::Result<()> {
        fs::write(self.home.join("cgroup.procs"), "0")
    }

    /// Ends everything inside, which must not be the caller. True when it was done in one stroke;
    /// an older kernel's members are only frozen and ended one by one.
    pub(crate) fn kill(&self) -> bool {
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

    pub(crate) fn members(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        let numbers = text.lines().filter_map(|line| line.trim().parse().ok());
        numbers.filter_map(Pid::from_raw).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Version 2, alone or beside version 1.
    Unified,
    /// Version 1's hierarchy that can at least hold still what is inside.
    Freezer,
    /// Version 1's hierarchy that counts memory.
    Memory,
}

impl Kind {
    /// What version 1 calls it.
    fn controller(self) -> Option<&'static str> {
        match self {
            Kind::Unified => None,
            Kind::Freezer => Some("freezer"),
            Kind::Memory => Some("memory"),
        }
    }
}

/// Where groups are made by whoever is in `home`.
fn place(kind: Kind, home: &Path) -> PathBuf {
    match kind {
        Kind::Unified => place_beside(home, is_delegated),
        Kind::Freezer | Kind::Memory => home.to_owned(),
    }
}

/// Inside of it, or beside it when it was put into a part of a group
/// that is all its own (systemd's `DelegateSubgroup=`), because a group that processes are in
/// counts no memory for those below it. Never further up: limits are set there. Nor beside the
/// group of an attempt, which an agent may be a job of: that one's end is to be theirs, too.
fn place_beside(home: &Path, is_delegated: impl Fn(&Path) -> bool) -> PathBuf {
    let name = home.file_name().and_then(|name| name.to_str());
    let of_attempt = name.is_some_and(|name| name.starts_with(NAME_PREFIX));
    match home.parent() {
        Some(above) if !of_attempt && is_delegated(above) => above.to_owned(),
        _ => home.to_owned(),
    }
}

/// systemd leaves this mark at a group that it hands over.
fn is_delegated(group: &Path) -> bool {
    let marked = |name| {
        let mut value = [0; 8];
        getxattr(group, name, &mut value).is_ok_and(|length| value[..length] == *b"1")
    };
    marked("user.delegate") || marked("trusted.delegate")
}

/// Lets groups below a place count memory. Refused where processes are in it, or it is not ours:
/// then they do not.
fn count_memory(place: &Path) {
    let file = place.join("cgroup.subtree_control");
    let counted = fs::read_to_string(&file).unwrap_or_default();
    if !counted.split_whitespace().any(|it| it == "memory") {
        let _ = fs::write(file, "+memory");
    }
}

/// The groups this process is in, of these kinds and in their order.
pub(super) fn homes(kinds: &[Kind]) -> Vec<(Kind, PathBuf)> {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let (membership, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    let found = kinds
        .iter()
        .map(|kind| (*kind, home(&membership, &mounts, *kind)));
    found
        .filter_map(|(kind, home)| Some((kind, home?)))
        .collect()
}

/// The folder of the group this process is in.
fn home(membership: &str, mounts: &str, kind: Kind) -> Option<PathBuf> {
    let own = membership.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let ours = match kind.controller() {
            None => number == "0" && controllers.is_empty(),
            Some(controller) => controllers.split(',').any(|it| it == controller),
        };
        ours.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (fs_type, options) = (after.next()?, after.nth(1)?);
        let ours = match kind.controller() {
            None => fs_type == "cgroup2",
            Some(name) => fs_type == "cgroup" && options.split(',').any(|it| it == name),
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
32 25 0:28 /docker/a /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
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
        let memory = home("4:memory:/docker/a/b\n", MOUNTS, Kind::Memory);
        assert_eq!(memory, Some(PathBuf::from("/sys/fs/cgroup/memory/b")));
        assert_eq!(home("1:name=systemd:/\n", MOUNTS, Kind::Unified), None);
        assert_eq!(home(membership, "", Kind::Freezer), None);
    }

    #[test]
    fn groups_are_made_beside_a_part_that_was_handed_over_and_no_further_up() {
        let unit = Path::new("/sys/fs/cgroup/system.slice/agent.service");
        let part = unit.join("agent");
        assert_eq!(place_beside(&part, |group| group == unit), unit);
        // A unit that is not handed over has its limits, and its jobs with it.
        assert_eq!(place_beside(unit, |_| false), unit);
        assert_eq!(place_beside(&part, |_| false), part);
        assert_eq!(place_beside(Path::new("/"), |_| true), Path::new("/"));
        // An agent that is a job of another one stays in reach of that one's end.
        let attempt = unit.join("delta-ci-7-1");
        assert_eq!(place_beside(&attempt, |_| true), attempt);
    }
}
