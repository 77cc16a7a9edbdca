//! A mark that everything a job starts carries, and that cannot be taken off: by it the processes
//! of a shim that is gone are found, whatever they did to their environment, parents and sessions.
//!
//! It is the upper bound of a resource that the kernel has not looked at since long ago (locks on
//! files, [`Resource::Locks`]). Bounds are inherited by every child and every program it becomes,
//! can be read of anybody's process, and can only ever be lowered by whoever is not root. So a
//! process can lose its mark, by lowering it, but not by accident, and never take on another's
//! that is higher.

use std::{fs, io};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// How `/proc` calls the resource.
const NAME: &str = "Max file locks";

/// The highest mark where there is no bound yet: no bound at all for any program.
const HIGHEST: u64 = 1 << 62;

/// Below this, marks of two attempts could meet, or be a bound that somebody has set on purpose.
const LOWEST: u64 = 1 << 40;

/// The mark of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mark(u64);

impl Mark {
    /// One that nobody else has. Nothing where this process has a mark already and there is no room
    /// below it: an agent may be the job of another, not of many.
    pub fn fresh() -> Option<Mark> {
        let bound = getrlimit(Resource::Locks).maximum.unwrap_or(HIGHEST);
        let mut random = [0; 8];
        getrandom::fill(&mut random).ok()?;
        Mark::below(bound.min(HIGHEST), u64::from_be_bytes(random))
    }

    /// In the upper half of what is left, so that jobs of jobs can be marked as well.
    fn below(bound: u64, random: u64) -> Option<Mark> {
        let half = bound / 2;
        (half >= LOWEST).then(|| Mark(half + random % half))
    }

    /// Marks this process, and with it whatever it starts from now on.
    pub(crate) fn put(self) -> io::Result<()> {
        let bound = Rlimit {
            current: Some(self.0),
            maximum: Some(self.0),
        };
        Ok(setrlimit(Resource::Locks, bound)?)
    }

    /// Whether this process carries it.
    pub(crate) fn is_on(self, pid: i32) -> bool {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        read(&limits) == Some(self.0)
    }
}

/// The upper bound, where there is one.
fn read(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(NAME))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_bound_is_what_counts() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max locked memory         8388608              8388608              bytes\n\
                      Max file locks            7                    4611686018427387903  locks\n";
        assert_eq!(read(limits), Some(4_611_686_018_427_387_903));
        assert_eq!(
            read("Max file locks   unlimited   unlimited   locks\n"),
            None
        );
        assert_eq!(read(""), None);
    }

    #[test]
    fn a_job_of_a_job_is_marked_below_it() {
        let outer = Mark::below(HIGHEST, 12_345).expect("a mark");
        let inner = Mark::below(outer.0, u64::MAX).expect("a mark");
        assert!(inner.0 < outer.0 && outer.0 < HIGHEST);
        assert!(inner.0 > LOWEST && HIGHEST < u64::MAX / 2);
        assert_eq!(Mark::below(1000, 1), None, "somebody's own bound");
        assert_ne!(Mark::fresh(), Mark::fresh());
    }
}
