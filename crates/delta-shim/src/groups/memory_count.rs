//! A group of version 1 in which the kernel counts, for one attempt alone, whom it ends for want of
//! memory. Version 2 counts in the attempt's control group ([`super::control_group`]). Never
//! required: where there is neither, only the machine's count is known, and others are among those.
//!
//! It sets no limit: those of the groups above hold as before. Only the thread that starts the
//! job's processes joins it, so that they are born inside: to move a thread takes microseconds,
//! where to move a process takes milliseconds, and nothing of the shim's own is counted.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io};

use super::control_group::{Group, Kind, NAME_PREFIX, homes};

/// Rounds in which a group that somebody has just left is removed, and the pause between them.
const ROUNDS: u32 = 50;
const ROUND: Duration = Duration::from_millis(5);

/// A group that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Memory {
    folder: PathBuf,
}

impl Memory {
    /// Makes a group under the one this process is in. Nothing when this machine has none, or does
    /// not let us.
    pub fn make(name: &str) -> Option<Memory> {
        let (_, home) = homes(&[Kind::Memory]).pop()?;
        // Older kernels may let a group inside use more than the one around it.
        let nested = fs::read_to_string(home.join("memory.use_hierarchy"));
        if nested.is_ok_and(|it| it.trim() != "1") {
            return None;
        }
        let folder = home.join(name);
        fs::create_dir(&folder).ok()?;
        Some(Memory { folder })
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The file that counts.
    pub fn count(&self) -> PathBuf {
        self.folder.join("memory.oom_control")
    }

    /// Moves the calling thread inside, and nothing else of its process.
    pub fn join(&self) -> io::Result<()> {
        fs::write(self.folder.join("tasks"), "0")
    }

    /// Removes it, which everybody has left or is about to.
    pub fn remove(&self) {
        for _ in 0..ROUNDS {
            if fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                return;
            }
            std::thread::sleep(ROUND);
        }
    }
}

/// Whether an attempt's memory is counted here for itself, in a word an agent reports. Tried out.
pub(crate) fn kind() -> Option<&'static str> {
    static TRIES: AtomicU64 = AtomicU64::new(0);
    let number = TRIES.fetch_add(1, Ordering::Relaxed);
    let name = format!("{NAME_PREFIX}try-{}-{number}", std::process::id());
    if let Some(memory) = Memory::make(&name) {
        memory.remove();
        return Some("memory:v1");
    }
    let group = Group::make(&name)?;
    let counted = group.count().is_some();
    let _ = fs::remove_dir(group.path());
    counted.then_some("memory:v2")
}
