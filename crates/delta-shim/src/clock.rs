//! The agent's two clocks: one that only counts, for deadlines, and one that tells the time, for
//! information.

use std::time::SystemTime;

use delta_core::time::Millis;
use rustix::time::{ClockId, clock_gettime};

/// Includes the time a machine sleeps: a lease expires on the server meanwhile, so it must here.
#[cfg(target_os = "linux")]
const COUNTING: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const COUNTING: ClockId = ClockId::Monotonic;

/// Milliseconds on a clock that never steps. Comparable within one boot of this machine only.
pub fn now() -> Millis {
    let now = clock_gettime(COUNTING);
    Millis(now.tv_sec * 1000 + now.tv_nsec / 1_000_000)
}

/// What this machine believes the time is, as the protocol spells it; nobody decides by it.
pub fn wall_time() -> String {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let millis = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    delta_wire::Millis(millis).to_rfc3339()
}

/// Which boot of this machine this is: moments of [`now`] mean nothing in another.
pub fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
