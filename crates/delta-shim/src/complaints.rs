//! What goes wrong inside a shim, written into a file of its own: nobody hears its standard error.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::order::COMPLAINTS_FILE;

/// Where this shim writes what goes wrong inside itself; no file as long as nothing does.
static COMPLAINTS: OnceLock<PathBuf> = OnceLock::new();

/// From here on complaints go into this state folder.
pub fn go_to(folder: &Path) {
    let _ = COMPLAINTS.set(folder.join(COMPLAINTS_FILE));
}

/// Says what went wrong to whoever looks for a lost shim.
pub fn complain(text: &str) {
    let Some(path) = COMPLAINTS.get() else { return };
    let mut options = File::options();
    let file = options.create(true).append(true).mode(0o600).open(path);
    // Nobody is left to be told.
    let _ = file.and_then(|mut file| writeln!(file, "{text}"));
}
