//! A control group with little memory, so that what is put into it runs out of it. It takes root,
//! and groups that count memory, of either version.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{XattrFlags, setxattr};

use crate::root;

/// How long those inside may take to be gone when it is removed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The part that processes are put into, with groups of version 2: a group that has others below it
/// has none of its own.
const PART: &str = "agent";

/// There for as long as this lives.
pub struct LittleMemory {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl LittleMemory {
    /// Makes one with so many bytes and no swap: under the group of this process, or, with groups
    /// of version 2, at the top, handed over as systemd does it with `Delegate=yes` and
    /// `DelegateSubgroup=agent`.
    pub fn of(bytes: u64) -> Result<LittleMemory> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        root::required("a control group with little memory")?;
        let membership = fs::read_to_string("/proc/self/cgroup").context("the groups")?;
        let own = membership
            .lines()
            .find(|line| line.contains(":memory:"))
            .and_then(|line| line.rsplit_once(":/"));
        let (home, version) = match own {
            Some((_, path)) => (Path::new("/sys/fs/cgroup/memory").join(path), Version::One),
            None => (PathBuf::from("/sys/fs/cgroup"), Version::Two),
        };
        if version == Version::Two {
            fs::write(home.join("cgroup.subtree_control"), "+memory")
                .context("let groups count memory")?;
        }
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = home.join(format!("delta-test-{}-{number}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let little = LittleMemory { folder, version };
        little.limit(bytes)?;
        Ok(little)
    }

    fn limit(&self, bytes: u64) -> Result<()> {
        let write = |name: &str, text: &str| {
            let file = self.folder.join(name);
            fs::write(&file, text).with_context(|| format!("write {}", file.display()))
        };
        if self.version == Version::One {
            return write("memory.limit_in_bytes", &bytes.to_string());
        }
        write("memory.max", &bytes.to_string())?;
        if self.folder.join("memory.swap.max").exists() {
            write("memory.swap.max", "0")?;
        }
        setxattr(&self.folder, "user.delegate", b"1", XattrFlags::empty()).context("the mark")?;
        fs::create_dir(self.folder.join(PART)).context("make its part")
    }

    /// Puts a process inside; what it starts is born there.
    pub fn add(&self, pid: u32) -> Result<()> {
        fs::write(self.members(), pid.to_string()).context("put a process inside")
    }

    /// Where a process writes `0` to join.
    pub fn members(&self) -> PathBuf {
        let place = match self.version {
            Version::One => self.folder.clone(),
            Version::Two => self.folder.join(PART),
        };
        place.join("cgroup.procs")
    }

    /// Groups that others made inside.
    pub fn inside(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let others = entries.filter(|path| path.is_dir() && !path.ends_with(PART));
        others.collect()
    }
}

impl Drop for LittleMemory {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.folder.exists() && Instant::now() < deadline {
            let _ = fs::remove_dir(self.folder.join(PART));
            if fs::remove_dir(&self.folder).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
