//! How a folder of this program's own data is known on disk, whatever its name: a server's data, an
//! agent's work and state, and copies that are kept. It may lie in the tree that is planned and
//! executed, and holds keys and tokens: neither a plan nor a workspace ever has it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The usual name.
pub const USUAL: &str = ".delta-ci";

/// The file by which tools of backup know a folder that can be made again.
pub const CACHE_TAG: &str = "CACHEDIR.TAG";

/// What that file says in a folder of ours; its first line is everybody's.
pub const CACHE_TAG_TEXT: &str = "\
Signature: 8a477f597d28d172789f06886806bc55
# Copies of trees, kept by delta-ci run. They can be removed when it does not run.
";

/// Made before anything else in a folder that one process has at a time.
const LOCK: &str = "lock";

/// Beside the lock, one of these is there: a store, a key, an agent's attempts.
const BESIDE: [&str; 4] = ["delta-ci.db", "secret.key", "admin.sock", "attempts"];

/// Whether a folder is one of ours.
pub fn is(folder: &Path) -> bool {
    if folder.file_name().is_some_and(|name| name == USUAL) {
        return true;
    }
    let there = |name: &str| fs::symlink_metadata(folder.join(name)).ok();
    let locked = there(LOCK).is_some_and(|it| it.is_file() && it.len() < 64);
    if locked && BESIDE.iter().any(|name| there(name).is_some()) {
        return true;
    }
    let tag = there(CACHE_TAG).is_some_and(|it| it.len() == CACHE_TAG_TEXT.len() as u64);
    tag && fs::read(folder.join(CACHE_TAG)).is_ok_and(|it| it == CACHE_TAG_TEXT.as_bytes())
}

/// Answers that are remembered, for a list of files.
#[derive(Debug, Default)]
pub struct Known(HashMap<PathBuf, bool>);

impl Known {
    /// Whether a path below `root` lies in a folder of ours.
    pub fn holds(&mut self, root: &Path, path: &Path) -> bool {
        let Some(folder) = path.parent().filter(|it| !it.as_os_str().is_empty()) else {
            return path == Path::new(USUAL);
        };
        if let Some(known) = self.0.get(folder) {
            return *known;
        }
        let ours = self.holds(root, folder) || is(&root.join(folder));
        self.0.insert(folder.to_owned(), ours);
        ours
    }
}
