//! The kernel's rules (Landlock) for the thread that starts a job's processes.
//!
//! Rules only ever allow: what must stay closed is walked around. A thread under any rules can
//! trace nobody outside of them, whoever its user is; from version 6 on it can signal nobody
//! outside either.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope,
};
use rustix::fs::{Access as May, access};

/// Where memory is shared by name.
pub(super) const SHARED_MEMORY: &str = "/dev/shm";

/// The newest rules we ask for; an older kernel enforces what it knows of them.
const RULES: ABI = ABI::V6;

/// Where tools, their settings and what the kernel tells are found. Of `/run` only what name
/// look-ups and a system's own tools need: services keep sockets and secrets there.
const READABLE: [&str; 15] = [
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr",
    "/etc",
    "/opt",
    "/nix",
    "/run/current-system",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/proc",
    "/sys",
];

/// Devices that every program expects; no disk, no memory, no terminal of somebody else.
const DEVICES: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];

/// What every program may read, as paths.
pub(super) fn readable() -> Vec<PathBuf> {
    READABLE.iter().map(PathBuf::from).collect()
}

/// Nothing but the system and what may be written is in reach; memory that is shared by name only
/// where it is the job's own.
pub(super) fn only_these(
    writable: &[PathBuf],
    hidden: &[PathBuf],
    shared_memory: bool,
) -> Restricted {
    let read = AccessFs::from_read(RULES);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(RULES))?
        .scope(Scope::from_all(RULES))?
        .create()?;
    for path in READABLE {
        rules = allow_around(rules, Path::new(path), hidden, read)?;
    }
    let use_device =
        AccessFs::from_file(RULES) | AccessFs::ReadDir | AccessFs::MakeReg | AccessFs::RemoveFile;
    for path in DEVICES
        .into_iter()
        .chain(shared_memory.then_some(SHARED_MEMORY))
    {
        rules = allow(rules, Path::new(path), use_device)?;
    }
    for path in writable {
        rules = allow(rules, path, AccessFs::from_all(RULES))?;
    }
    rules.restrict_self()
}

/// Everything stays in reach but what is hidden. Folders can be listed and programs run wherever
/// they are, so that nothing else is noticed of it.
pub(super) fn all_but(hidden: &[PathBuf]) -> Restricted {
    let closed =
        AccessFs::from_all(RULES) & !(AccessFs::ReadDir | AccessFs::Execute | AccessFs::IoctlDev);
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(closed)?
        .scope(Scope::Signal)?
        .create()?;
    allow_around(rules, Path::new("/"), hidden, closed)?.restrict_self()
}

/// Whether a job can still run programs that gain a privilege. Rules ask it of all but root to give
/// that up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Privileges {
    Kept,
    GivenUp,
}

/// Files are as they were; signals stay inside.
pub(super) fn signals_inside(privileges: Privileges) -> Restricted {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::Signal)?
        .create()?
        .no_new_privs(privileges == Privileges::GivenUp)
        .restrict_self()
}

pub(super) type Restricted = Result<RestrictionStatus, RulesetError>;

fn allow(
    rules: RulesetCreated,
    path: &Path,
    what: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    match PathFd::new(path) {
        Ok(place) => rules.add_rule(PathBeneath::new(place, what)),
        // What is not there needs no rule.
        Err(_) => Ok(rules),
    }
}

fn allow_around(
    mut rules: RulesetCreated,
    path: &Path,
    hidden: &[PathBuf],
    what: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let mut parts = Vec::new();
    without(path, hidden, &mut parts);
    for part in parts {
        rules = allow(rules, &part, what)?;
    }
    Ok(rules)
}

/// The parts of `path` that hold nothing hidden.
fn without(path: &Path, hidden: &[PathBuf], parts: &mut Vec<PathBuf>) {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if hidden.iter().any(|it| real.starts_with(it)) {
        return;
    }
    if !hidden.iter().any(|it| it.starts_with(&real)) {
        return parts.push(real);
    }
    let Ok(entries) = fs::read_dir(&real) else {
        return;
    };
    for entry in entries.flatten() {
        // What a link points at has a rule by its own name, or none.
        if !entry.file_type().is_ok_and(|it| it.is_symlink()) {
            without(&entry.path(), hidden, parts);
        }
    }
}

/// Those of `secrets` that can be hidden from jobs which otherwise do what this user does. Rules
/// name what is there when a job begins: what it makes in a folder above something hidden would
/// be closed to itself. So no folder on the way may be one it works in: each belongs to somebody
/// else, or is the agent's own.
pub(super) fn free_to_hide(secrets: &[PathBuf], own: &Path, home: Option<&Path>) -> Vec<PathBuf> {
    let theirs = |folder: &Path| access(folder, May::WRITE_OK).is_err();
    let free = |secret: &&PathBuf| {
        let mut above = secret.ancestors().skip(1);
        let in_home = home.is_some_and(|home| secret.starts_with(home));
        !in_home && above.all(|folder| folder.starts_with(own) || theirs(folder))
    };
    secrets.iter().filter(free).cloned().collect()
}

/// The version of the kernel's rules that is in force here.
pub(super) fn version() -> Option<ABI> {
    static VERSION: OnceLock<Option<ABI>> = OnceLock::new();
    *VERSION.get_or_init(|| {
        // The crate offers no other way to ask.
        let status = elsewhere(|| no_sockets().ok()).flatten()?;
        match status.landlock {
            LandlockStatus::Available { effective_abi, .. }
                if status.ruleset != RulesetStatus::NotEnforced =>
            {
                Some(effective_abi)
            }
            _ => None,
        }
    })
}

/// The least that every version knows.
fn no_sockets() -> Restricted {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::MakeSock)?
        .create()?
        .restrict_self()
}

/// Tries something on a thread that is thrown away with its restrictions.
pub(super) fn elsewhere<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    std::thread::spawn(act).join().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(names: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().canonicalize().expect("a path");
        for name in names {
            fs::create_dir_all(root.join(name)).expect("a folder");
        }
        (place, root)
    }

    #[test]
    fn what_is_hidden_is_walked_around() {
        let (_place, root) = tree(&["a/state/secret", "a/open", "b", "c/key"]);
        std::os::unix::fs::symlink(&root, root.join("a/loop")).expect("a link");
        let mut parts = Vec::new();
        without(
            &root,
            &[root.join("a/state"), root.join("c/key")],
            &mut parts,
        );
        parts.sort();
        assert_eq!(parts, [root.join("a/open"), root.join("b")]);
    }

    #[test]
    fn nothing_is_hidden_where_jobs_make_their_own_files() {
        let (_place, root) = tree(&["work/state", "home/state"]);
        let (work, state) = (root.join("work"), root.join("work/state"));
        let secrets = [state.clone(), root.join("home/state")];
        // Everything above the work folder can be written by whoever runs this test.
        assert!(free_to_hide(&secrets, &work, None).is_empty());
        assert_eq!(free_to_hide(&secrets, Path::new("/"), None), secrets);
        let home = root.join("home");
        assert_eq!(free_to_hide(&secrets, Path::new("/"), Some(&home)), [state]);
    }
}
