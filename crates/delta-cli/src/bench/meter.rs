//! What a process and the machine used, read from /proc; and the server's own counters.

use std::fs;
use std::time::Duration;

/// Clock ticks per second that Linux shows to user space, on every architecture.
const TICKS_PER_SECOND: u64 = 100;

/// What a process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu: Duration,
    pub resident_bytes: u64,
    pub peak_resident_bytes: u64,
}

impl Usage {
    /// Of the process with this id; nothing where /proc does not tell.
    pub fn of(pid: u32) -> Usage {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        Usage {
            cpu: cpu_of(&stat).unwrap_or_default(),
            resident_bytes: kilobytes(&status, "VmRSS:") * 1024,
            peak_resident_bytes: kilobytes(&status, "VmHWM:") * 1024,
        }
    }
}

/// Fields 14 and 15, counted behind the name, which may hold blanks and parentheses itself.
fn cpu_of(stat: &str) -> Option<Duration> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis(
        (user + system) * 1000 / TICKS_PER_SECOND,
    ))
}

fn kilobytes(status: &str, name: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Ticks of the whole machine: all of them, and those another machine on the same host took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    total: u64,
    stolen: u64,
}

impl Machine {
    pub fn now() -> Machine {
        Machine::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(text: &str) -> Machine {
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|field| field.parse().ok())
            .collect();
        Machine {
            total: ticks.iter().sum(),
            stolen: ticks.get(7).copied().unwrap_or(0),
        }
    }

    /// Percent of the time since `before` that was stolen.
    pub fn steal_since(self, before: Machine) -> f64 {
        let total = self.total.saturating_sub(before.total) as f64;
        let stolen = self.stolen.saturating_sub(before.stolen) as f64;
        super::numbers::ratio(stolen * 100.0, total)
    }
}

/// A few of the server's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    pub flushes: f64,
    pub batches: f64,
    pub commands: f64,
    pub grants: f64,
    pub commit_seconds: f64,
    pub parked: f64,
}

impl Counters {
    pub fn parse(text: &str) -> Counters {
        let value = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
                .unwrap_or(0.0)
        };
        Counters {
            flushes: value("delta_store_flushes "),
            batches: value("delta_batch_size_count "),
            commands: value("delta_batch_size_sum "),
            grants: value("delta_leases_granted_total "),
            commit_seconds: value("delta_commit_seconds_sum "),
            parked: value("delta_parked_slots "),
        }
    }

    pub fn since(self, before: Counters) -> Counters {
        Counters {
            flushes: self.flushes - before.flushes,
            batches: self.batches - before.batches,
            commands: self.commands - before.commands,
            grants: self.grants - before.grants,
            commit_seconds: self.commit_seconds - before.commit_seconds,
            parked: self.parked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) b) S 1 1 1 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 1 1 1";
        assert_eq!(cpu_of(stat), Some(Duration::from_secs(3)));
    }

    #[test]
    fn steal_is_a_share_of_all_ticks() {
        let before = Machine::parse("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1 1");
        let after = Machine::parse("cpu  20 0 20 155 0 0 0 5 0 0\n");
        assert_eq!(after.steal_since(before), 5.0);
    }

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let text = "# TYPE delta_batch_size histogram\ndelta_batch_size_sum 90.0\n\
            delta_batch_size_count 9\ndelta_store_flushes 10\ndelta_leases_granted_total 3\n";
        let counters = Counters::parse(text);
        assert_eq!((counters.commands, counters.batches), (90.0, 9.0));
        assert_eq!((counters.flushes, counters.grants), (10.0, 3.0));
    }
}
