//! Users of their own for jobs, where the agent may give them some.

use std::fs;
use std::path::Path;

use rustix::thread::CapabilitySet;

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

pub(super) fn may_switch_users() -> bool {
    let able = rustix::thread::capabilities(None).is_ok_and(|it| it.effective.contains(SWITCHING));
    able && is_mapped(FIRST_USER) && is_mapped(FIRST_USER + USER_BLOCKS * USERS_PER_BLOCK)
}

/// Whether this number means a user here: inside a container it may not.
pub(super) fn is_mapped(user: u32) -> bool {
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
pub(super) fn is_open_to_all(folder: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    const PASS: u32 = 0o001;
    let Some(parent) = folder.parent() else {
        return true;
    };
    parent
        .ancestors()
        .all(|above| fs::metadata(above).is_ok_and(|it| it.permissions().mode() & PASS != 0))
}

/// The user of a slot: always one for an agent's slot, and two agents hardly ever share it.
pub(super) fn user_of(state: &Path, slot: u32) -> u32 {
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
    fn slots_and_agents_have_users_of_their_own() {
        let user = |state: &str, slot| user_of(Path::new(state), slot);
        assert_eq!(user("/a", 1), user("/a", 1));
        assert_ne!(user("/a", 1), user("/a", 2));
        assert_ne!(user("/a", 1), user("/b", 1));
        assert!(user("/a", 1024) < 1 << 31);
    }
}
