//! What only root can set up. A test that needs it fails for anybody else, and says so: one that
//! returned early would pass without having looked.

use anyhow::{Result, ensure};

/// An error that names what takes root, for whoever is not.
pub fn required(what: &str) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this test needs root, for {what}: run it as root, or leave it out by name"
    );
    Ok(())
}
