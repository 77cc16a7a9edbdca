//! A disk that is full soon: memory that is mounted at a folder. It takes root.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Mounted for as long as this lives.
pub struct Mounted(PathBuf);

impl Mounted {
    /// `size` as mount takes it, such as `2m`.
    pub fn of(at: &Path, size: &str) -> Result<Mounted> {
        let mut mount = Command::new("mount");
        let size = format!("size={size}");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at);
        let status = mount.status().context("mount cannot be started")?;
        ensure!(status.success(), "no small disk could be mounted");
        Ok(Mounted(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
