//! A disk that is full soon: memory that is mounted at a folder. It takes root.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::root;

/// Mounted for as long as this lives.
pub struct Mounted(PathBuf);

impl Mounted {
    /// `size` as mount takes it, such as `2m`. The folder is made where it is missing.
    pub fn of(at: &Path, size: &str) -> Result<Mounted> {
        root::required("a small disk")?;
        std::fs::create_dir_all(at).context("make its folder")?;
        let mut mount = Command::new("mount");
        let size = format!("size={size}");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at);
        let status = mount.status().context("mount cannot be started")?;
        ensure!(status.success(), "no small disk could be mounted");
        Ok(Mounted(at.to_owned()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Bytes that are taken.
    pub fn used(&self) -> Result<u64> {
        let found = rustix::fs::statvfs(&self.0).context("look at the small disk")?;
        Ok((found.f_blocks - found.f_bfree) * found.f_frsize)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
