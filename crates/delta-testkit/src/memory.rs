//! A control group with little memory, so that what is put into it runs out of it. It takes root and
//! a hierarchy that counts memory, of either version.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::root;

/// How long those inside may take to be gone when it is removed.
const PATIENCE: Duration = Duration::from_secs(5);

/// There for as long as this lives.
pub struct LittleMemory {
    folder: PathBuf,
}

impl LittleMemory {
    /// Makes one under the group of this process, with so many bytes and no swap.
    pub fn of(bytes: u64) -> Result<LittleMemory> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        root::required("a control group with little memory")?;
        let membership = fs::read_to_string("/proc/self/cgroup").context("the groups")?;
        let path = |which: &str| {
            let line = membership.lines().find(|line| line.contains(which));
            line.and_then(|line| line.rsplit_once(':'))
                .map(|(_, path)| path.trim_start_matches('/'))
        };
        let (home, limit) = match path(":memory:") {
            Some(path) => (
                Path::new("/sys/fs/cgroup/memory").join(path),
                "memory.limit_in_bytes",
            ),
            None => {
                let path = path("0::").context("this machine has no control groups")?;
                (Path::new("/sys/fs/cgroup").join(path), "memory.max")
            }
        };
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = home.join(format!("delta-test-{}-{number}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let little = LittleMemory { folder };
        ensure!(
            little.folder.join(limit).exists(),
            "groups here count no memory: {}",
            little.folder.display()
        );
        fs::write(little.folder.join(limit), bytes.to_string()).context("set its limit")?;
        let swap = little.folder.join("memory.swap.max");
        if swap.exists() {
            fs::write(swap, "0").context("take its swap")?;
        }
        Ok(little)
    }

    /// Puts a process inside; what it starts is born there.
    pub fn add(&self, pid: u32) -> Result<()> {
        fs::write(self.members(), pid.to_string()).context("put a process inside")
    }

    /// Where a process writes `0` to join.
    pub fn members(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Groups that were made inside.
    pub fn inside(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let entries = entries.map(|entry| entry.path());
        entries.filter(|path| path.is_dir()).collect()
    }
}

impl Drop for LittleMemory {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
