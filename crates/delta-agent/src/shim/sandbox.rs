//! What a job is kept from: files, signals, privileges, another user's things.
//!
//! Restrictions are put on one thread, the one that starts the job's processes: they inherit them,
//! and the shim around them stays free to write the log and to end what it started. What this
//! machine cannot enforce is left out and not claimed: [`Confinement::enforced`] is what is
//! reported.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope,
};
use rustix::process::{Resource, Rlimit, getpriority_process, setpriority_process, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use serde::{Deserialize, Serialize};

use super::group::Group;

/// The newest rules we ask for; an older kernel enforces what it knows of them.
const RULES: ABI = ABI::V6;

/// Below the agent and the shim, so that a job that eats the processor never starves the heartbeat
/// (F54).
const JOB_NICENESS: i32 = 10;

/// Processes and threads of one job's user: a parallel build has hundreds, a fork bomb more.
const MAX_PROCESSES: u64 = 8192;

/// Where tools, their settings and what the kernel tells are found.
const READABLE: [&str; 13] = [
    "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/opt", "/nix", "/run",
    "/proc", "/sys",
];

/// Devices that every program expects; no disk, no memory, no terminal of somebody else.
const DEVICES: [&str; 9] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
];

/// The first of the users that jobs become. Above every range that distributions, systemd and
/// container tools hand out, below the largest number that old interfaces can carry.
const FIRST_USER: u32 = 1_879_048_192;
/// Agents on one machine that are kept apart, by the place of their state.
const USER_BLOCKS: u32 = 1 << 16;
/// Slots of one agent.
const USERS_PER_BLOCK: u32 = 1 << 10;

/// What a user-switching agent must be allowed: to give files away, to look into what it gave, to
/// signal it, and to become somebody else.
const SWITCHING: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// How far jobs are trusted with this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// They read the system and write their own folders, and nothing else.
    Strict,
    /// They do what the agent's user may do; its tools work as they do by hand.
    Host,
}

impl Sandbox {
    /// What a run gets: an untrusted one is always confined.
    pub fn for_run(self, trusted: bool) -> Sandbox {
        if trusted { self } else { Sandbox::Strict }
    }
}

/// What one attempt is confined to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    pub sandbox: Sandbox,
    /// The user and group it becomes.
    pub user: Option<u32>,
}

impl Confinement {
    /// The agent's own user, unrestricted.
    pub const HOST: Confinement = Confinement {
        sandbox: Sandbox::Host,
        user: None,
    };

    /// For the attempts of one slot: with a user of the slot's own where this agent may switch
    /// users and that user can reach the work folder.
    pub fn of_slot(sandbox: Sandbox, state: &Path, work: &Path, slot: u32) -> Confinement {
        let user = match sandbox {
            Sandbox::Strict if may_switch_users() && is_open_to_all(work) => {
                Some(user_of(state, slot))
            }
            _ => None,
        };
        Confinement { sandbox, user }
    }

    /// What is really enforced, in words an agent reports.
    pub fn enforced(&self) -> Vec<String> {
        let mut words: Vec<String> = Group::kind().into_iter().map(str::to_owned).collect();
        if self.sandbox == Sandbox::Host {
            words.insert(0, "host".to_owned());
            return words;
        }
        words.insert(0, "strict".to_owned());
        if let Some(abi) = landlock_abi() {
            words.push(format!("landlock:{abi}"));
        }
        for (word, there) in [("uid", self.user.is_some()), ("no-capabilities", is_root())] {
            if there {
                words.push(word.to_owned());
            }
        }
        words.extend(["rlimits", "no-new-privs", "clean-env"].map(str::to_owned));
        words
    }
}

/// The folders a confined job may write.
pub(super) struct Places<'a> {
    pub writable: &'a [PathBuf],
    /// Never readable, wherever it lies: the agent's state.
    pub hidden: &'a Path,
}

/// Restricts the calling thread, and with it everything that is started from it. An error means
/// that the job must not be started.
pub(super) fn confine(confinement: Confinement, places: &Places<'_>) -> Result<(), String> {
    if getpriority_process(None).is_ok_and(|now| now < JOB_NICENESS) {
        // Not being allowed to is no reason not to work.
        let _ = setpriority_process(None, JOB_NICENESS);
    }
    if confinement.sandbox == Sandbox::Host {
        if is_root() {
            // Root needs no promise to give up privileges, so its tools still work; but a job must
            // not end or trace its shim by mistake.
            let _ = signals_inside().map(|rules| rules.no_new_privs(false).restrict_self());
        }
        return Ok(());
    }
    let failed = |what: &str, why: &dyn std::fmt::Display| format!("no sandbox: {what}: {why}");
    limit(Resource::Core, 0).map_err(|why| failed("core size", &why))?;
    if confinement.user.is_some() {
        limit(Resource::Nproc, MAX_PROCESSES).map_err(|why| failed("processes", &why))?;
    }
    set_no_new_privs(true).map_err(|why| failed("no-new-privs", &why))?;
    restrict_files(places).map_err(|why| failed("landlock", &why))?;
    if is_root() {
        // Those for becoming the job's user are given up by becoming it.
        let kept = match confinement.user {
            Some(_) => CapabilitySet::SETUID.union(CapabilitySet::SETGID),
            None => CapabilitySet::empty(),
        };
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets).map_err(|why| failed("capabilities", &why))?;
    }
    Ok(())
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    Ok(setrlimit(resource, limit)?)
}

fn signals_inside() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::Signal)?
        .create()
}

fn restrict_files(places: &Places<'_>) -> Result<RestrictionStatus, RulesetError> {
    let read = AccessFs::from_read(RULES);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(RULES))?
        .scope(Scope::from_all(RULES))?
        .create()?;
    let mut readable = Vec::new();
    for path in READABLE {
        without(Path::new(path), places.hidden, &mut readable);
    }
    for path in readable {
        if let Ok(place) = PathFd::new(&path) {
            rules = rules.add_rule(PathBeneath::new(place, read))?;
        }
    }
    let use_device =
        AccessFs::from_file(RULES) | AccessFs::ReadDir | AccessFs::MakeReg | AccessFs::RemoveFile;
    for path in DEVICES {
        if let Ok(place) = PathFd::new(path) {
            rules = rules.add_rule(PathBeneath::new(place, use_device))?;
        }
    }
    for path in places.writable {
        if let Ok(place) = PathFd::new(path) {
            rules = rules.add_rule(PathBeneath::new(place, AccessFs::from_all(RULES)))?;
        }
    }
    rules.restrict_self()
}

/// The parts of `path` that do not hold `hidden`: rules only ever allow, so what must stay closed
/// is walked around.
fn without(path: &Path, hidden: &Path, parts: &mut Vec<PathBuf>) {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if hidden == real || real.starts_with(hidden) {
        return;
    }
    if !hidden.starts_with(&real) {
        return parts.push(real);
    }
    let Ok(entries) = fs::read_dir(&real) else {
        return;
    };
    for entry in entries.flatten() {
        without(&entry.path(), hidden, parts);
    }
}

/// The version of the kernel's rules that is in force here.
fn landlock_abi() -> Option<ABI> {
    // Tried on a thread that is thrown away: the crate offers no other way to ask.
    std::thread::spawn(|| {
        signals_inside()
            .and_then(RulesetCreated::restrict_self)
            .ok()
    })
    .join()
    .ok()
    .flatten()
    .filter(|status| status.ruleset != RulesetStatus::NotEnforced)
    .and_then(|status| match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi),
        _ => None,
    })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn may_switch_users() -> bool {
    let able = rustix::thread::capabilities(None).is_ok_and(|it| it.effective.contains(SWITCHING));
    able && is_mapped(FIRST_USER) && is_mapped(FIRST_USER + USER_BLOCKS * USERS_PER_BLOCK)
}

/// Whether this number means a user here: inside a container it may not.
fn is_mapped(user: u32) -> bool {
    let Ok(map) = fs::read_to_string("/proc/self/uid_map") else {
        return false;
    };
    map.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(first)), Some(_), Some(Ok(count))) => {
                (first..first.saturating_add(count)).contains(&u64::from(user))
            }
            _ => false,
        }
    })
}

/// Whether anybody may pass through the folders that lead here.
fn is_open_to_all(folder: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    const PASS: u32 = 0o001;
    let Some(parent) = folder.parent() else {
        return true;
    };
    parent
        .ancestors()
        .all(|above| fs::metadata(above).is_ok_and(|it| it.permissions().mode() & PASS != 0))
}

/// The same agent always gives a slot the same user, and two agents hardly ever share one.
fn user_of(state: &Path, slot: u32) -> u32 {
    use std::os::unix::ffi::OsStrExt;
    // FNV-1a: a few bytes spread evenly, nothing secret about it.
    let hash = state.as_os_str().as_bytes().iter();
    let hash = hash.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    FIRST_USER + (hash % USER_BLOCKS) * USERS_PER_BLOCK + slot % USERS_PER_BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_walked_around() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().canonicalize().expect("a path");
        for name in ["a/state/secret", "a/open", "b"] {
            fs::create_dir_all(root.join(name)).expect("a folder");
        }
        let mut parts = Vec::new();
        without(&root, &root.join("a/state"), &mut parts);
        parts.sort();
        assert_eq!(parts, [root.join("a/open"), root.join("b")]);
    }

    #[test]
    fn slots_and_agents_have_users_of_their_own() {
        let user = |state: &str, slot| user_of(Path::new(state), slot);
        assert_eq!(user("/a", 1), user("/a", 1));
        assert_ne!(user("/a", 1), user("/a", 2));
        assert_ne!(user("/a", 1), user("/b", 1));
        assert!(user("/a", 1024) < 1 << 31);
    }

    #[test]
    fn an_untrusted_run_is_always_confined() {
        assert_eq!(Sandbox::Host.for_run(false), Sandbox::Strict);
        assert_eq!(Sandbox::Host.for_run(true), Sandbox::Host);
    }
}
